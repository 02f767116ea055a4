"""What runs on the machine that is measured: standard library, numpy and the engine itself, nothing else of hermes."""
