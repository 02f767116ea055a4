"""Variance classes of repeated measurements, and the cost of the indexed heap and of an eviction."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from hermes.config.data_files import resource_dir
from hermes.core.noise import spread, tally
from hermes.memory.indexed_heap import IndexedHeap
from hermes.memory.size_aware import Tamm
from hermes.plugins.retrieval.searches import load_searches
from hermes.study import Table

from .memory import RECENCIES

__all__ = ["classes", "eviction_costs", "heap_costs"]

OPERATIONS = 2000


def classes() -> Table:
    """Variance classes of the shipped searches, which the retrieval profile was fitted to."""
    folder, rows = resource_dir("traces") / "hardware", []
    for path in sorted(folder.glob("retrieval-*.yaml")):
        frame = load_searches(path).rows
        points = frame.drop_duplicates(["configuration", "batch", "threads", "top_k"])
        rows.append({"measured": path.stem, "repetitions": len(frame), "points": len(points),
                     "classes": tally(points["noise"].astype(str))})
    return Table("svab", "6. Variance classes of the shipped searches (hermes.core.noise)", pd.DataFrame(rows),
                 "CV below 10% excellent, 20% good, 50% flaky, else rejected. `hermes calibrate`, `python -m "
                 "benchmarks` and `hermes regress` print the same classes.")


def _seconds(act: Callable[[], Any]) -> float:
    started = time.process_time()
    act()
    return (time.process_time() - started) / OPERATIONS


class _Counted(float):
    """A key that counts its comparisons: the heap asks once each time whether two keys are equal."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__


def heap_comparisons(sizes: tuple[int, ...] = (1000, 100_000)) -> Table:
    """Comparisons of a pop with a push: the same on every machine."""
    rows = []
    for order in ("min", "max"):
        each = []
        for size in sizes:
            keys = [_Counted(key) for key in np.random.default_rng(14).random(size)]
            heap: IndexedHeap[int] = IndexedHeap(max_first=order == "max")
            for item, key in enumerate(keys):
                heap.push(item, key)
            _Counted.compared = 0
            for _ in range(OPERATIONS):
                item = heap.pop()
                heap.push(item, keys[item])
            each.append(_Counted.compared / OPERATIONS)
        rows.append({"order": order, "at 10^3": each[0], "at 10^5": each[1], "times as many": each[1] / each[0]})
    return Table("comparisons", "7. Indexed heap: comparisons of a pop with a push", pd.DataFrame(rows),
                 f"Counted over {OPERATIONS:,} operations; log2(10^5) / log2(10^3) is 1.67.",
                 {"at 10^3": 1, "at 10^5": 1, "times as many": 2})


def heap_costs(repetitions: int, sizes: tuple[int, ...] = (1000, 100_000)) -> Table:
    """CPU time of an operation at 10^3 and 10^5 entries, beside a sorted list and lazily updated `heapq`."""
    rng = np.random.default_rng(14)
    samples: dict[tuple[str, str], dict[int, list[float]]] = {}
    for size in sizes:
        for _ in range(repetitions):
            keys = rng.random(size).tolist()
            changed = rng.choice(size, min(size, OPERATIONS), replace=False).tolist()
            changed = (changed * (OPERATIONS // len(changed) + 1))[:OPERATIONS]
            for order in ("min", "max"):
                for what, seconds in _heap_times(keys, changed, order).items():
                    samples.setdefault((f"indexed heap, {order}", what), {}).setdefault(size, []).append(seconds)
            for structure, measure in (("sorted list", _list_time), ("heapq, old entry left behind", _lazy_time)):
                samples.setdefault((structure, "change a key"), {}).setdefault(size, []).append(measure(keys, changed))
    rows = []
    for (structure, what), by_size in samples.items():
        small, large = (spread(by_size[size]) for size in sizes)
        rows.append({"structure": structure, "operation": what, "us at 10^3": 1e6 * small.mean,
                     "us at 10^5": 1e6 * large.mean, "+/-": 1e6 * large.ci95, "class": large.verdict,
                     "times as much": large.mean / small.mean})
    return Table("heap", "7. Indexed heap: time of one operation", pd.DataFrame(rows),
                 f"CPU time, {OPERATIONS:,} operations, {repetitions} repetitions; log2(10^5) / log2(10^3) is 1.67.",
                 {"us at 10^3": 2, "us at 10^5": 2, "+/-": 2, "times as much": 2})


def eviction_costs(repetitions: int, sizes: tuple[int, ...] = (1000, 100_000)) -> Table:
    """CPU time of a read and of a replaced entry under TAMM, by the reading of recency and the number of entries."""
    rows = []
    for recency in RECENCIES:
        for size in sizes:
            rng = np.random.default_rng(15)
            tokens = np.clip(rng.lognormal(6.6, 1.0, size), 16, 32_768).astype(int).tolist()
            policy = Tamm(recency)
            for key, each in enumerate(tokens):
                policy.added(key, each)
            reads, misses = zip(*(_eviction_times(policy, tokens, rng) for _ in range(repetitions)), strict=True)
            read, miss = spread(reads), spread(misses)
            rows.append({"recency": recency, "entries": size, "us a read": 1e6 * read.mean,
                         "us an eviction": 1e6 * miss.mean, "+/-": 1e6 * miss.ci95, "class": miss.verdict})
    return Table("eviction_costs", "2. Token-aware LRU: time of a read and of an eviction", pd.DataFrame(rows),
                 f"CPU time, {OPERATIONS:,} operations, {repetitions} repetitions. Eviction: search, removal, and the "
                 "entry that comes in, after a read of another one.",
                 {"us a read": 1, "us an eviction": 1, "+/-": 1})


def _eviction_times(policy: Tamm, tokens: list[int], rng: np.random.Generator) -> tuple[float, float]:
    """Seconds of a read, and of an eviction with its new entry less the read before it. The keys stay the same."""
    keys = rng.integers(0, len(tokens), OPERATIONS).tolist()

    def read() -> None:
        for key in keys:
            policy.read(key)

    def turn_over() -> None:
        for key in keys:
            policy.read(key)
            victim: Any = policy.victim()
            policy.removed(victim)
            policy.added(victim, tokens[victim])

    took = _seconds(read)
    return took, _seconds(turn_over) - took


def _heap_times(keys: list[float], changed: list[int], order: str) -> dict[str, float]:
    heap: IndexedHeap[int] = IndexedHeap(max_first=order == "max")
    for item, key in enumerate(keys):
        heap.push(item, key)

    def decrease() -> None:
        for item in changed:
            heap.decrease_key(item, heap.key(item) * 0.5)

    def increase() -> None:
        for item in changed:
            heap.increase_key(item, heap.key(item) * 3)

    def turn_over() -> None:
        for _ in range(OPERATIONS):
            item = heap.pop()
            heap.push(item, keys[item])

    return {"decrease_key": _seconds(decrease), "increase_key": _seconds(increase), "pop and push": _seconds(turn_over)}


def _list_time(keys: list[float], changed: list[int]) -> float:
    now = list(keys)
    entries = sorted((key, item) for item, key in enumerate(now))

    def act() -> None:
        for item in changed:
            del entries[bisect_left(entries, (now[item], item))]
            now[item] *= 0.5
            insort(entries, (now[item], item))

    return _seconds(act)


def _lazy_time(keys: list[float], changed: list[int]) -> float:
    now = list(keys)
    entries = [(key, item) for item, key in enumerate(now)]
    heapq.heapify(entries)

    def act() -> None:
        for item in changed:
            now[item] *= 0.5
            heapq.heappush(entries, (now[item], item))

    return _seconds(act)
