"""Validation of a profile against the real engine: the same online workload, simulated and served.

    workload     the file that both sides get
    engines      runs a real engine on it, in its own interpreter
    result       the engine's times of every token
    prediction   simulates the workload
    contention   decides, by rules fixed beforehand, which attempts other load on the machine spoiled
    report       compares the two (with `hermes.calibration.comparison`)
    session      runs all of it, in a folder that keeps every measurement
"""
