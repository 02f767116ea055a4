"""Sums of floats, rounded alike on every Python.

`sum` of floats carries the rounding errors along since Python 3.12, and did not before: totals differ in the 16th
digit, and a time of a step that is rounded to nanoseconds could differ in one. They would also differ from NumPy's
additions of whole runs of steps. A plug-in of mypy refuses `sum` of floats in this package.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

__all__ = ["float_sum"]


def float_sum(values: Iterable[float]) -> float:
    """Return the values added from left to right, each sum rounded; 0 without any."""
    return reduce(add, values, 0)
