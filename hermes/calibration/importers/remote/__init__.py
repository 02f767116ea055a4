"""Scripts that price batches in another interpreter, with a package that ours may lack.

Each is run as a file (`python ask_genz.py REQUEST.json ANSWER.json`) and imports nothing of hermes but `serving`, from
its own folder.
"""
