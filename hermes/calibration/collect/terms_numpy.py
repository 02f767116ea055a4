"""Operators in numpy, in single precision on a CPU, whatever is installed.

Also what all backends of the terms collector use: operators ready to run, and the time of one run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hermes.calibration.collect.counters import waited_s
from hermes.calibration.collect.session import PointFailed

__all__ = ["NumpyBackend", "Operator", "attention", "copies_of", "cpu_rows", "host_cache_bytes"]

GUESSED_CACHE_BYTES = 64 * 2**20
MOST_COPIES = 2048
PROBES = 3

VALUE_BYTES = 4
QUERY_BLOCK = 128   # rows of a prompt that attend together: keys after their last one are skipped
TOP_P = 0.95
NO_WATTS = "not available: watts are read from NVIDIA's driver, and this backend computes on the CPU"


@dataclass
class Operator:
    """One operator at one size."""

    calls: list[Callable[[], Any]]
    """The operator on different copies of its cold operands; repetitions take them in turn."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a reader of the journal should know (which kernel, one launch or two)."""


def copies_of(operand_bytes: float, walk_bytes: float) -> int:
    """Return how many copies of an operand are together larger than `walk_bytes`, one at least."""
    return min(max(math.ceil(walk_bytes / max(operand_bytes, 1.0)), 1), MOST_COPIES)


def host_cache_bytes() -> int:
    """Return the size of the CPU's last-level cache; a guess where Linux does not say."""
    found = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii", errors="replace").strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        if text.rstrip("KM").isdigit():
            found = max(found, int(text.rstrip("KM")) * unit)
    return found or GUESSED_CACHE_BYTES


def cpu_rows(operator: Operator, repetitions: int, sample_s: float) -> list[dict[str, Any]]:
    """Time an operator on this CPU: wall clock, CPU time of all threads, and time waited for a core, of one run."""
    calls, count = operator.calls, len(operator.calls)
    began = time.perf_counter()
    for index in range(PROBES):
        calls[index % count]()
    once = (time.perf_counter() - began) / PROBES
    loops = max(1, math.ceil(sample_s / max(once, 1e-9)))
    turn, rows = PROBES, []
    for repetition in range(-1, repetitions):   # the first does not count
        waited, cpu, wall = waited_s(), time.process_time(), time.perf_counter()
        for index in range(turn, turn + loops):
            calls[index % count]()
        wall = time.perf_counter() - wall
        cpu, waited = time.process_time() - cpu, waited_s() - waited
        turn += loops
        if repetition >= 0:
            rows.append({"repetition": repetition, "time_s": wall / loops, "cpu_time_s": cpu / loops,
                         "waited_s": waited / loops})
    return rows


Array = Any


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of each sequence's last tokens.

    Args:
        q: (sequences, new, heads, head dim); the last query stands at the last key.
        k, v: (sequences, key/value heads, tokens, head dim).
    """
    batch, new, heads, dim = q.shape
    kv_heads, tokens = k.shape[1], k.shape[2]
    group, past = heads // kv_heads, tokens - new
    out = np.empty_like(q)
    for first in range(0, new, QUERY_BLOCK):
        last = min(new, first + QUERY_BLOCK)
        seen, rows = past + last, last - first
        part = q[:, first:last].reshape(batch, rows, kv_heads, group, dim).transpose(0, 2, 3, 1, 4)
        part = part.reshape(batch, kv_heads, group * rows, dim)
        scores = part @ k[:, :, :seen].transpose(0, 1, 3, 2)
        scores *= dim**-0.5
        if rows > 1:
            hidden = np.arange(seen)[None, :] > past + np.arange(first, last)[:, None]
            scores.reshape(batch, kv_heads, group, rows, seen)[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        found = (scores @ v[:, :, :seen]).reshape(batch, kv_heads, group, rows, dim)
        out[:, first:last] = found.transpose(0, 3, 1, 2, 4).reshape(batch, rows, heads, dim)
    return out


class NumpyBackend:
    """Operators on the CPU."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._draw = np.random.default_rng(0)
        self._walk = int(plan["cache_bytes"]) or 2 * host_cache_bytes()

    def describe(self) -> dict[str, Any]:
        """Return versions, the device, kernels, notes. JSON."""
        return {"engine": f"numpy {np.__version__}", "beside": "apart", "cold_bytes": self._walk,
                "notes": ["numpy: no kernel serves a prompt and decodes in one launch; they were launched apart"]}

    def operator(self, point: dict[str, Any]) -> Operator:
        """Return the operator of a point, operands in place."""
        term = point["term"]
        if term in ("prefill", "decode", "beside"):
            return self._attention(point)
        if "n" in point:
            return self._product(point)
        x = self._random(point["rows"], point["width"])
        return Operator([self._on_rows(term, x)])

    def time(self, operator: Operator, repetitions: int, sample_s: float) -> tuple[list[dict[str, Any]], str]:
        """Return rows (`time_s` of one run each) and how they were timed."""
        return cpu_rows(operator, repetitions, sample_s), "wall clock and CPU time"

    def power(self, point: dict[str, Any], hold_s: float) -> dict[str, Any]:
        """There are no watts to read."""
        raise PointFailed(NO_WATTS)

    def _random(self, *shape: int) -> Array:
        return self._draw.standard_normal(shape, dtype=np.float32)

    def _product(self, point: dict[str, Any]) -> Operator:
        rows, n, k = point["rows"], point["n"], point["k"]
        x, out = self._random(rows, k), np.empty((rows, n), dtype=np.float32)

        def call(weights: Array) -> Callable[[], Any]:
            return lambda: np.matmul(x, weights.T, out=out)

        copies = copies_of(VALUE_BYTES * n * k, self._walk)
        return Operator([call(self._random(n, k)) for _ in range(copies)])

    def _on_rows(self, term: str, x: Array) -> Callable[[], Any]:
        rows, width = x.shape
        other, scale, out = self._random(rows, width), self._random(width), np.empty_like(x)

        def norm() -> None:
            np.multiply(x, x, out=out)
            np.multiply(x, 1.0 / np.sqrt(out.mean(axis=1, keepdims=True) + 1e-5), out=out)
            np.multiply(out, scale, out=out)

        def rotary() -> None:
            half = width // 2
            first, second = x[:, :half], x[:, half : 2 * half]
            np.multiply(first, other[:, :half], out=out[:, :half])
            out[:, :half] -= second * other[:, half : 2 * half]
            np.multiply(second, other[:, :half], out=out[:, half : 2 * half])
            out[:, half : 2 * half] += first * other[:, half : 2 * half]

        def activation() -> None:
            np.exp(-x, out=out)
            np.add(out, 1.0, out=out)
            np.divide(x, out, out=out)
            np.multiply(out, other, out=out)

        def sampling() -> Array:
            order = np.argsort(-x, axis=1)
            ordered = np.take_along_axis(x, order, axis=1)
            weights = np.exp(ordered - ordered[:, :1])
            chances = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
            return order[np.arange(rows), (chances > TOP_P).argmax(axis=1)]

        if term == "embedding":
            ids = self._draw.integers(0, rows, rows)
            return lambda: np.take(other, ids, axis=0, out=out)
        known: dict[str, Callable[[], Any]] = {
            "norm": norm, "qk_norm": norm, "rotary": rotary, "activation": activation, "sampling": sampling,
            "residual": lambda: np.add(x, other, out=out),
        }
        return known[term]

    def _attention(self, point: dict[str, Any]) -> Operator:
        parts = []
        if point["term"] != "decode":
            prompts = point["batch"] if point["term"] == "prefill" else 1
            parts.append((prompts, point["new"], point.get("past", 0) + point["new"], point.get("past", 0) > 0))
        if point["term"] != "prefill":
            parts.append((point["batch"], 1, point["context"], True))
        sides = [self._calls(point, *part) for part in parts]
        longest = max(len(side) for side in sides)

        def both(index: int) -> Callable[[], Any]:
            calls = [side[index % len(side)] for side in sides]
            return lambda: [call() for call in calls]

        notes = {"launch": "apart"} if len(sides) > 1 else {}
        return Operator([both(index) for index in range(longest)], notes)

    def _calls(self, point: dict[str, Any], seqs: int, new: int, tokens: int, cold: bool) -> list[Callable[[], Any]]:
        shape = (seqs, point["kv_heads"], tokens, point["head_dim"])
        q = self._random(seqs, new, point["heads"], point["head_dim"])

        def call(k: Array, v: Array) -> Callable[[], Any]:
            return lambda: attention(q, k, v)

        copies = copies_of(2 * VALUE_BYTES * float(np.prod(shape)), self._walk) if cold else 1
        return [call(self._random(*shape), self._random(*shape)) for _ in range(copies)]
