"""The array types of the package, one dtype each, and elementary functions that give the same bits on every processor.

NumPy has other exponentials and logarithms where a processor has AVX-512: one value in twenty differs in the 16th
digit. Those of `math` are the C library's, which do not look at the width of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AnyArray", "BoolArray", "FloatArray", "IntArray", "exp", "log", "log1p", "log2", "power"]

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
    return _each(partial(_power, exponent), x, math.inf)


def _power(exponent: float, value: float) -> float:
    return math.pow(value, exponent)


def _each(function: Callable[[float], float], x: npt.ArrayLike, beyond: float = math.nan) -> FloatArray:
    """Return a function of each element. beyond: Its value where it raises `OverflowError`."""
    values = np.asarray(x, dtype=np.float64)
    try:
        found = [function(value) for value in values.ravel().tolist()]
    except (ValueError, OverflowError):
        found = [_one(function, value, beyond) for value in values.ravel().tolist()]
    return np.array(found, dtype=np.float64).reshape(values.shape)


def _one(function: Callable[[float], float], value: float, beyond: float) -> float:
    try:
        return function(value)
    except OverflowError:
        return beyond
    except ValueError:
        return -math.inf if value == 0 else math.nan
