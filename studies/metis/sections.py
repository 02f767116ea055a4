"""Sections of the study: the points of each table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hermes.plugins.metis.baselines import GRIDS
from hermes.plugins.metis.quality import FORMULAS

from .points import FIXED, LARGE, SETS, SPEC_RATE, Run, fixed_run, run_of, seeded, sustained

__all__ = ["BUDGETS", "COMPARATORS", "HOLDERS", "NOISES", "READINGS", "VARIANTS", "Size", "budgets", "compared_first",
           "compared_second", "first", "measured_run", "pressure_points", "second"]

DATASETS = ("squad", "musique", "finsec", "qmsum")
READINGS = ("AdaptiveRAG*", "AdaptiveRAG*, exact", "AdaptiveRAG*, 0.1%", "AdaptiveRAG*, 1%")
"""AdaptiveRAG* by measured F1; by the quality model's own F1; and the former rules: the quickest within a tolerance."""
NOISES = (0.0, 0.1, 0.3, 0.45)
"""Standard deviations of one answer's F1, for the table of what AdaptiveRAG* measures."""
COMPARATORS = ("highest F1", "closest F1", "like delay")
"""Rules that select the fixed configuration that METIS is compared with."""
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
        requests, lone: Requests of a point, and of one without queues.
        seeds: Of the comparison with AdaptiveRAG*.
        few: Seeds of the lesser tables.
        given_rate: Queries a second of every data set; 0 for the sustained rates.
    """

    datasets: tuple[str, ...]
    requests: int
    lone: int
    seeds: int
    few: int
    given_rate: float
    quick: bool

    @classmethod
    def of(cls, datasets: str, *, quick: bool, rate: float = 0.0) -> Size:
        """Return the quick study, or the whole, of a set of data sets (`SETS`)."""
        names = tuple(name + SETS[datasets] for name in (DATASETS[1::2] if quick else DATASETS))
        return cls(names, 60, 20, 2, 1, rate, quick) if quick else cls(names, 200, 40, 10, 3, rate, quick)

    def base(self, dataset: str) -> float:
        """Return the queries a second of a data set."""
        return self.given_rate or sustained(dataset)

    @property
    def pairs(self) -> list[tuple[str, float]]:
        """(data set, rate): the study's, and that of the paper."""
        return [(d, r) for d in self.datasets for r in dict.fromkeys((self.base(d), SPEC_RATE))]

    @property
    def busy(self) -> list[tuple[str, float]]:
        """(data set, rate) where the paper's rate is not the study's."""
        return [(d, SPEC_RATE) for d in self.datasets if self.base(d) != SPEC_RATE]

    @property
    def multiples(self) -> tuple[float, ...]:
        return MULTIPLES[::2] if self.quick else MULTIPLES

    @property
    def large_pairs(self) -> list[tuple[str, float]]:
        """The same for the large model: sustained by it, and the paper's."""
        own = self.datasets[:1] if self.quick else self.datasets
        return [(d, r) for d in own for r in (sustained(d, large=True), SPEC_RATE)]

    def rate(self, dataset: str, multiple: float) -> float:
        """A multiple of the study's rate, four digits."""
        return float(f"{multiple * self.base(dataset):.4g}")


def compared_first(size: Size) -> dict[str, list[Run]]:
    """Return the points of the paper's figures that are known before any run."""
    n: dict[str, Any] = {"requests": size.requests}
    rates = {d: size.base(d) for d in size.datasets}
    return {
        "grid": [fixed_run(d, c, r, **n) for d, r in rates.items() for c in (FIXED[::2] if size.quick else FIXED)],
        "systems": seeded([run_of(d, s, r, **n) for d, r in rates.items() for s in ("METIS", "AdaptiveRAG*")],
                          size.seeds),
        "rungs": seeded([run_of(d, s, r, **n) for d, r in rates.items() for s in ("profile + median", "+ batching")],
                        size.few),
        "rates": [run_of(d, "METIS", size.rate(d, m), **n) for d in size.datasets for m in size.multiples],
        "lone": seeded([run_of(d, s, None, requests=size.lone) for d in size.datasets
                        for s in ("METIS", "AdaptiveRAG*")], size.few),
        "feedback": feedback_points(size, "large"),
    }


def compared_second(size: Size, fixed: dict[str, dict[str, Run]]) -> dict[str, list[Run]]:
    """Return the points of the paper's figures with fixed configurations.

    Args:
        fixed: Data set -> one of `COMPARATORS` -> the fixed configuration that it selects, at the study's rate.
    """
    named = [one.with_(f"fixed of {name}") for of_set in fixed.values() for name, one in of_set.items()]
    return {
        "fixed": seeded([of_set["like delay"] for of_set in fixed.values()], size.seeds),
        "fixed rungs": seeded(named, size.few),
        "fixed rates": [replace(one, rate=size.rate(one.dataset, m)) for one in named for m in size.multiples],
        "fixed lone": seeded([replace(one, rate=None, requests=size.lone) for one in named], size.few),
    }


def first(size: Size) -> dict[str, list[Run]]:
    """Return points that are known before any run."""
    n: dict[str, Any] = {"requests": size.requests}
    return compared_first(size) | {
        "busy grid": [fixed_run(d, c, r, **n) for d, r in size.busy for c in FIXED[::2]],
        "busy systems": seeded([run_of(d, s, r, **n) for d, r in size.busy for s in ("METIS", "AdaptiveRAG*")],
                               size.few),
        "readings": seeded([run_of(d, s, size.base(d), **n) for d in size.datasets for s in READINGS], size.seeds),
        "measured": measured_points(size),
        "more rungs": _rungs(size),
        "shapes": [run_of(d, s, size.base(d), **n).with_(f"{s} {name}", quality=name)
                   for d in size.datasets for name in FORMULAS for s in ("AdaptiveRAG*", "hindsight")],
        "other rates": [run_of(d, s, size.rate(d, m), **n) for d in size.datasets for m in size.multiples
                        for s in ("+ batching", "AdaptiveRAG*")],
        "pressure": list(pressure_points(size)),
        "profilers": [run_of(d, "METIS", size.base(d), **n).with_(name, **params) for d in size.datasets
                      for name, params in PROFILERS.items()],
        "other feedback": [one for profiler in ("small", "poor") for one in feedback_points(size, profiler)],
        "other lone": seeded([run_of(d, s, None, requests=size.lone) for d in size.datasets
                              for s in ("profile + median", "hindsight")], size.few),
        "large grid": [fixed_run(d, c, r, serving=LARGE, **n) for d, r in size.large_pairs if r != SPEC_RATE
                       for c in FIXED[::4 if size.quick else 2]],
        "large": seeded([run_of(d, s, r, serving=LARGE, **n) for d, r in size.large_pairs
                         for s in ("METIS", "AdaptiveRAG*", "+ batching", "hindsight")], size.few),
    }


def measured_run(dataset: str, grid: str, noise: float, rate: float | None, requests: int) -> Run:
    """Return AdaptiveRAG* with a grid and a noise of its own."""
    base = run_of(dataset, "AdaptiveRAG*", rate, requests=requests)
    return base.with_(f"AdaptiveRAG* {grid} {noise:g}", grid=grid, noise=noise, tolerance=0.0)


def measured_points(size: Size) -> list[Run]:
    """Return AdaptiveRAG* over grids and noises: of both sets of data sets without queues, and of the own set at the
    sustained rates."""
    names = dict.fromkeys(d.removesuffix(SETS["3n"]) + end for end in SETS.values() for d in size.datasets)
    noises = NOISES[::2] if size.quick else NOISES
    points = [measured_run(d, grid, noise, None, size.lone) for d in names for grid in GRIDS for noise in noises]
    points += [run_of(d, "METIS", None, requests=size.lone) for d in names]
    if not size.quick:
        points += [measured_run(d, grid, noise, size.base(d), size.requests) for d in size.datasets
                   for grid in GRIDS for noise in noises]
    return seeded(points, size.few)


def _rungs(size: Size) -> list[Run]:
    """Return steps of the ladder that are neither METIS nor a baseline, and the ladder at the paper's rate."""
    points = []
    for d, r in size.pairs:
        own = run_of(d, "METIS", r, requests=size.requests)
        steps = [run_of(d, "hindsight", r, requests=size.requests),
                 own.with_("METIS, no golden runs", feedback_every=0)]
        if r == size.base(d):
            points += seeded([*steps, own.with_("METIS, golden runs last", golden_last=True)], size.few)
        else:
            rungs = [run_of(d, s, r, requests=size.requests) for s in ("profile + median", "+ batching")]
            points += [*rungs, *steps, own.with_("METIS, queues in range", full="space")]
    return points


def budgets(dataset: str) -> tuple[int, ...]:
    """Return the KV budgets of a data set, the same for both sets."""
    return BUDGETS[dataset.removesuffix(SETS["3n"])]


def pressure_points(size: Size) -> dict[Run, tuple[int, float]]:
    """Points with less memory, at several loads: (KV tokens, multiple of the sustained rate)."""
    points: dict[Run, tuple[int, float]] = {}
    for dataset in size.datasets[-1:] if size.quick else size.datasets:
        for tokens in budgets(dataset)[::2] if size.quick else budgets(dataset):
            for load in LOADS[1:2] if size.quick else LOADS:
                base = run_of(dataset, "METIS", size.rate(dataset, load), requests=size.requests, blocks=tokens // 16)
                rags = [replace(run_of(dataset, system, base.rate), requests=base.requests, blocks=base.blocks)
                        for system in ("AdaptiveRAG*", "AdaptiveRAG*, 1%")]
                many = seeded([base, base.with_("+ batching", system="median"), *rags], size.few)
                once = [base.with_(f"METIS, {name}", **params) for name, params in VARIANTS.items()]
                points |= dict.fromkeys([*many, *(once if load == 1.0 else [])], (tokens, load))
    return points


def second(size: Size, fixed: dict[str, dict[str, Run]], busy: dict[str, Run],
           large: dict[str, Run]) -> dict[str, list[Run]]:
    """Return points with fixed configurations.

    Args:
        fixed: As of `compared_second`.
        busy: The fixed configuration of like delay at the paper's rate.
        large: The same of the large model.
    """
    like = {d: of_set["like delay"] for d, of_set in fixed.items()}
    dollars = []
    for d in size.datasets:
        rate = sustained(d, large=True)
        for serving in ("mistral-7b", LARGE):
            more: dict[str, Any] = {"requests": size.requests // 2, "serving": serving}
            dollars += [run_of(d, "METIS", rate, **more), run_of(d, "AdaptiveRAG*", rate, **more),
                        Run(d, "vLLM fixed", like[d].params, rate, **more)]
    return compared_second(size, fixed) | {
        "busy fixed": seeded(list(busy.values()), size.few),
        "parrot": [p.with_("Parrot*", co_schedule=True) for p in (*like.values(), *busy.values())],
        "knobs": [one for d in size.datasets for one in knob_points(like[d])],
        "dollars": dollars,
        "large fixed": seeded(list(large.values()), size.few),
    }


def feedback_points(size: Size, profiler: str) -> list[Run]:
    """Return golden runs on and off, with a profiler that has fewer or more mistakes to correct."""
    return seeded([
        run_of(d, "METIS", size.base(d), requests=90 if size.quick else 350).with_(
            f"{profiler} profiler, {name}", feedback_every=every, profiler=profiler)
        for d in size.datasets if d.startswith(("qmsum", "finsec")) for name, every in (("off", 0), ("on", 30))
    ], size.few)


def knob_points(like: Run) -> list[Run]:
    """A fixed configuration, with knobs set per query one after the other."""
    base = run_of(like.dataset, "METIS", like.rate, requests=like.requests)
    own = {key: value for key, value in like.params if key in ("method", "chunks", "words")}
    return [like.with_("none (vLLM fixed)"), base.with_("num_chunks", co_schedule=False, adapts="chunks", **own),
            base.with_("+ synthesis_method", co_schedule=False, adapts="chunks+method", **own),
            base.with_("+ intermediate_length", co_schedule=False), base.with_("+ co-scheduled calls")]
