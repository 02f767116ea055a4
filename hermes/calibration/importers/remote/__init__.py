"""The script that prices batches in another interpreter, with a package that ours may lack.

It is run as a file (`python ask_aiconfigurator.py REQUEST.json ANSWER.json`) and imports nothing of hermes.
"""
