"""The array types of the package, one dtype each, and elementary functions that give the same bits on every processor.

NumPy has other exponentials and logarithms where a processor has AVX-512: one value in twenty differs in the 16th
digit. Those of `math` are the C library's, which do not look at the width of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "FloatArray", "IntArray", "exp", "log", "log1p", "log2", "power"]

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def exp(x: npt.ArrayLike) -> FloatArray:
    """Return e to the power of each element; infinity where that is too large."""
    return _each(math.exp, x, math.inf)


def log(x: npt.ArrayLike) -> FloatArray:
    """Return the natural logarithm of each element; minus infinity of 0, NaN below."""
    return _each(math.log, x)


def log2(x: npt.ArrayLike) -> FloatArray:
    """Return the logarithm to base 2 of each element; minus infinity of 0, NaN below."""
    return _each(math.log2, x)


def log1p(x: npt.ArrayLike) -> FloatArray:
    """Return the natural logarithm of 1 plus each element, which is larger than -1."""
    return _each(math.log1p, x)


def power(x: npt.ArrayLike, exponent: float) -> FloatArray:
    """Return each element, which is positive, to a power."""
    return _each(math.pow, x, math.inf, exponent)


def _each(function: Callable[..., float], x: npt.ArrayLike, beyond: float = math.nan, *more: float) -> FloatArray:
    """Return a function of each element, and of `more`. beyond: Its value where it raises `OverflowError`."""
    values = np.asarray(x, dtype=np.float64)
    given = values.ravel().tolist()
    try:
        found = np.fromiter(map(function, given, *map(repeat, more)), np.float64, len(given))
    except (ValueError, OverflowError):
        found = np.array([_one(function, value, beyond, *more) for value in given], dtype=np.float64)
    return found.reshape(values.shape)


def _one(function: Callable[..., float], value: float, beyond: float, *more: float) -> float:
    try:
        return function(value, *more)
    except OverflowError:
        return beyond
    except ValueError:
        return -math.inf if value == 0 else math.nan
