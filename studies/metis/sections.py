"""Sections of the study: the points of each table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hermes.plugins.metis.quality import QUALITY

from .points import FIXED, LARGE, LARGE_RATES, RATES, Run, fixed_run, run_of, seeded

__all__ = ["BUDGETS", "HOLDERS", "READINGS", "SPEC_RATE", "VARIANTS", "Size", "first", "pressure_points",
           "second"]

SPEC_RATE = 2.0
READINGS = ("AdaptiveRAG*", "AdaptiveRAG*, 0.1%", "AdaptiveRAG*, best")
"""AdaptiveRAG* by its tolerance of F1: 1%, 0.1%, none."""
MULTIPLES = (0.25, 0.5, 1.0, 1.5, 2.5)
"""Of the sustained rates."""
LOADS = (0.5, 1.0, 1.5)
"""The same, where memory is short."""
BUDGETS = {"squad": (24_000, 12_000, 6_000), "musique": (24_000, 12_000, 8_000), "finsec": (48_000, 24_000, 12_000),
           "qmsum": (48_000, 24_000, 12_000)}
"""KV tokens where memory is short; the whole card has some 290,000."""
HOLDERS = (200, 400, 600, 800, 1000)
"""Output tokens of the query that holds the memory in the trace."""
VARIANTS: dict[str, dict[str, Any]] = {
    "uncommitted": {"reading": "uncommitted"}, "whole only": {"partial": 1.0}, "queues in range": {"full": "space"},
}
"""METIS with other answers to the paper's open questions: free memory, part of the mappers, queued configuration."""
PROFILERS: dict[str, dict[str, Any]] = {
    "large model, API": {}, "never wrong, API": {"profiler": "perfect"},
    "Llama-3.1-70B on two A40": {"profiler": "small", "profiler_model": LARGE},
}


@dataclass(frozen=True)
class Size:
    """Size of the study.

    Args:
        datasets: Names.
        requests, seeds: Of a point.
        few: Seeds of the lesser tables.
    """

    datasets: tuple[str, ...]
    requests: int
    seeds: int
    few: int
    quick: bool

    @classmethod
    def of(cls, *, quick: bool) -> Size:
        """Return the quick study, or the whole."""
        return cls(("musique", "qmsum"), 60, 2, 1, quick) if quick else cls(tuple(RATES), 200, 10, 3, quick)

    @property
    def pairs(self) -> list[tuple[str, float]]:
        """(data set, rate): the sustained one, and that of the paper."""
        return [(d, r) for d in self.datasets for r in dict.fromkeys((RATES[d], SPEC_RATE))]

    @property
    def multiples(self) -> tuple[float, ...]:
        return MULTIPLES[::2] if self.quick else MULTIPLES

    @property
    def large_pairs(self) -> list[tuple[str, float]]:
        """The same for the large model: sustained by it, and the paper's."""
        own = self.datasets[:1] if self.quick else self.datasets
        return [(d, r) for d in own for r in (LARGE_RATES[d], SPEC_RATE)]

    def rate(self, dataset: str, multiple: float) -> float:
        """A multiple of the sustained rate, four digits."""
        return float(f"{multiple * RATES[dataset]:.4g}")


def first(size: Size) -> dict[str, list[Run]]:
    """Return points that are known before any run."""
    n: dict[str, Any] = {"requests": size.requests}
    whole = {(d, r): not size.quick and r == RATES[d] for d, r in size.pairs}
    lone = ("METIS", "profile + median", "AdaptiveRAG*", "hindsight")
    return {
        "grid": [fixed_run(d, c, r, **n) for d, r in size.pairs for c in (FIXED if whole[d, r] else FIXED[::2])],
        "systems": seeded([run_of(d, s, r, **n) for d, r in size.pairs for s in ("METIS", "AdaptiveRAG*")], size.seeds),
        "readings": seeded([run_of(d, s, RATES[d], **n) for d in size.datasets for s in READINGS], size.seeds),
        "rungs": _rungs(size),
        "shapes": [run_of(d, s, RATES[d], **n).with_(f"{s} {name}", quality=name)
                   for d in size.datasets for name in QUALITY for s in ("AdaptiveRAG*", "hindsight")],
        "rates": [run_of(d, s, size.rate(d, m), **n) for d in size.datasets for m in size.multiples
                  for s in ("METIS", "+ batching", "AdaptiveRAG*")],
        "pressure": list(pressure_points(size)),
        "profilers": [run_of(d, "METIS", RATES[d], **n).with_(name, **params) for d in size.datasets
                      for name, params in PROFILERS.items()],
        "feedback": feedback_points(*((90, 1) if size.quick else (350, 3))),
        "lone": [run_of(d, s, None, requests=20 if size.quick else 40) for d in size.datasets for s in lone],
        "large grid": [fixed_run(d, c, r, serving=LARGE, **n) for d, r in size.large_pairs if r != SPEC_RATE
                       for c in FIXED[::4 if size.quick else 2]],
        "large": seeded([run_of(d, s, r, serving=LARGE, **n) for d, r in size.large_pairs
                         for s in ("METIS", "AdaptiveRAG*", "+ batching", "hindsight")], size.few),
    }


def _rungs(size: Size) -> list[Run]:
    """Steps of the ladder that are neither METIS nor a baseline."""
    points = []
    for d, r in size.pairs:
        own, rag = (run_of(d, s, r, requests=size.requests) for s in ("METIS", "AdaptiveRAG*"))
        steps = [run_of(d, s, r, requests=size.requests) for s in ("profile + median", "+ batching", "hindsight")]
        steps.append(own.with_("METIS, no golden runs", feedback_every=0))
        if r == RATES[d]:
            steps += [own.with_("METIS, golden runs last", golden_last=True),
                      rag.with_("AdaptiveRAG*, no golden runs", feedback_every=0)]
        if r == SPEC_RATE:
            steps.append(own.with_("METIS, queues in range", full="space"))
        points += seeded(steps, size.few if r == RATES[d] else 1)
    return points


def pressure_points(size: Size) -> dict[Run, tuple[int, float]]:
    """Points with less memory, at several loads: (KV tokens, multiple of the sustained rate)."""
    points: dict[Run, tuple[int, float]] = {}
    for dataset in size.datasets[-1:] if size.quick else size.datasets:
        for tokens in BUDGETS[dataset][::2] if size.quick else BUDGETS[dataset]:
            for load in LOADS[1:2] if size.quick else LOADS:
                base = run_of(dataset, "METIS", size.rate(dataset, load), requests=size.requests, blocks=tokens // 16)
                rag = replace(run_of(dataset, "AdaptiveRAG*", base.rate), requests=base.requests, blocks=base.blocks)
                many = seeded([base, base.with_("+ batching", system="median"), rag], size.few)
                once = [base.with_(f"METIS, {name}", **params) for name, params in VARIANTS.items()]
                points |= dict.fromkeys([*many, *(once if load == 1.0 else [])], (tokens, load))
    return points


def second(size: Size, like: dict[tuple[str, float], Run], large: dict[str, Run]) -> dict[str, list[Run]]:
    """Points with the fixed configuration of like delay: of each pair, and of the large model."""
    base = {d: like[d, RATES[d]] for d in size.datasets}
    dollars = []
    for d in size.datasets:
        for serving in ("mistral-7b", LARGE):
            more: dict[str, Any] = {"requests": size.requests // 2, "serving": serving}
            dollars += [run_of(d, "METIS", LARGE_RATES[d], **more), run_of(d, "AdaptiveRAG*", LARGE_RATES[d], **more),
                        Run(d, "vLLM fixed", base[d].params, LARGE_RATES[d], **more)]
    return {
        "fixed": seeded(list(like.values()), size.seeds) + [
            p.with_("Parrot*", co_schedule=True) for p in like.values()],
        "rates": [replace(base[d], rate=size.rate(d, m)) for d in size.datasets for m in size.multiples],
        "lone": [replace(base[d], rate=None, requests=20 if size.quick else 40) for d in size.datasets],
        "knobs": [one for d in size.datasets for one in knob_points(base[d])],
        "dollars": dollars,
        "large fixed": seeded(list(large.values()), size.few),
    }


def feedback_points(requests: int, seeds: int) -> list[Run]:
    """Golden runs on and off, with profilers that have fewer and more mistakes to correct."""
    return seeded([
        run_of(d, "METIS", RATES[d], requests=requests).with_(f"{profiler} profiler, {name}", feedback_every=every,
                                                             profiler=profiler)
        for d in ("qmsum", "finsec") for profiler in ("large", "small", "poor")
        for name, every in (("off", 0), ("on", 30))
    ], seeds)


def knob_points(like: Run) -> list[Run]:
    """A fixed configuration, with knobs set per query one after the other."""
    base = run_of(like.dataset, "METIS", like.rate, requests=like.requests)
    own = {key: value for key, value in like.params if key in ("method", "chunks", "words")}
    return [like.with_("none (vLLM fixed)"), base.with_("num_chunks", co_schedule=False, adapts="chunks", **own),
            base.with_("+ synthesis_method", co_schedule=False, adapts="chunks+method", **own),
            base.with_("+ intermediate_length", co_schedule=False), base.with_("+ co-scheduled calls")]
