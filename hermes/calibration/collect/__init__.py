"""Collectors: modules for the measured machine; they need the standard library, numpy and the engine, no more of
hermes."""
