"""Holding a profile against the real engine: the same online workload, simulated and served.

`workload` is the file both sides get. A real engine serves it in its own interpreter (`engines`), and answers with the
times of every token (`result`); `prediction` simulates it. `contention` decides, by rules fixed beforehand, which
attempts the machine spoiled; `comparison` and `report` put the two beside each other; `session` does all of it, in a
folder that keeps whatever was measured.
"""
