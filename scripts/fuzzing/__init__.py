"""Mutations of valid inputs, for `scripts/fuzz_inputs.py` and the tests."""
