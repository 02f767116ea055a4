"""Reasoning workloads: longer answers, and several answers to one prompt."""

from __future__ import annotations

import numpy as np

from hermes.arrays import IntArray
from hermes.errors import InputError
from hermes.workload.base import MAX_TOKENS

__all__ = ["branch_tokens", "scaled_outputs"]


def scaled_outputs(output_tokens: IntArray, scale: float) -> IntArray:
    """Return `scale` times as many tokens, rounded, at least 1; shape (n,). `InputError` above the longest answer."""
    scaled = np.maximum(1, np.rint(output_tokens * scale))
    if len(scaled) and scaled.max() > MAX_TOKENS:
        raise InputError(f"answers of at most {MAX_TOKENS} tokens", float(scaled.max()), field="output_scale")
    tokens: IntArray = scaled.astype(np.int64)
    return tokens


def branch_tokens(output_tokens: IntArray, branches: int, spread: float, rng: np.random.Generator) -> IntArray:
    """Draw the output tokens of each request's branches, shape (n, branches), at least 1 each.

    They are uniform within `spread` of the request's output tokens, relative to them. Rows are drawn in order from one
    stream, so that more requests leave the earlier ones unchanged.
    """
    if not spread:
        return np.repeat(output_tokens[:, None], branches, axis=1)
    factor = 1 + spread * (2 * rng.random((len(output_tokens), branches)) - 1)
    drawn: IntArray = np.maximum(1, np.rint(output_tokens[:, None] * factor)).astype(np.int64)
    return drawn
