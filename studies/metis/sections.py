"""Sections of the study: the points of each table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hermes.plugins.metis.baselines import GRIDS
from hermes.plugins.metis.quality import FORMULAS

from .points import FIXED, LARGE, SETS, SPEC_RATE, Run, fixed_run, run_of, seeded, sustained

__all__ = ["BUDGETS", "COMPARATORS", "DILUTED", "HOLDERS", "LOADS", "READINGS", "VARIANTS", "Reading", "Size",
           "compared_first", "compared_second", "first", "memory_points", "reading_points", "second"]

DATASETS = ("squad", "musique", "finsec", "qmsum")
COMPARATORS = ("highest F1", "closest F1", "like delay")
"""Rules that select the fixed configuration that METIS is compared with."""
MULTIPLES = (0.25, 0.5, 1.0, 1.5, 2.5)
"""Of the sustained rates."""
LOADS = (1.0, 0.5, 1.5)
"""The same, where memory is short; the first is that of the paper's figures."""
BUDGETS = (48_000, 24_000, 12_000)
"""KV tokens where memory is short; the whole card has some 290,000."""
HOLDERS = (200, 400, 600, 800, 1000)
"""Output tokens of the query that holds the memory in the trace."""
VARIANTS: dict[str, dict[str, Any]] = {
    "uncommitted": {"reading": "uncommitted"}, "whole only": {"partial": 1.0}, "queues in range": {"full": "space"},
}
"""METIS with other answers to the paper's open questions: free memory, part of the mappers, queued configuration."""


@dataclass(frozen=True)
class Reading:
    """One reading of what the paper leaves open, each field as the assumption of its name: the data sets, F1, and what
    AdaptiveRAG* measures."""

    datasets: str = "2n"
    quality: str = "default"
    grid: str = "full"
    noise: float = 0.3
    tolerance: float = 0.0


DILUTED = Reading("3n", "diluted-mappers")
"""The reading that the main table shows besides the study's own."""
READINGS = [
    *(Reading(of, quality, grid, noise) for of, quality in (("2n", "default"), ("3n", "default"), (
        "3n", "diluted-mappers")) for grid in GRIDS for noise in (0.3, 0.0, 0.45)),
    *(Reading(of, noise=0.0, tolerance=0.01) for of in SETS),
    *(Reading(of, quality) for of in SETS for quality in FORMULAS if quality != "default" and (of, quality) != (
        "3n", "diluted-mappers")),
]
"""The readings that are tried, one query at a time."""


@dataclass(frozen=True)
class Size:
    """Size of the study.

    Args:
        datasets: Names.
        requests, lone: Requests of a point, and of one without queues.
        seeds_alone: Seeds of points without queues.
        seeds: Of the systems at the study's rates.
        few: Seeds of the lesser tables.
        given_rate: Queries a second of every data set; 0 for the sustained rates.
    """

    datasets: tuple[str, ...]
    requests: int
    lone: int
    seeds_alone: int
    seeds: int
    few: int
    given_rate: float
    quick: bool

    @classmethod
    def of(cls, datasets: str, *, quick: bool, rate: float = 0.0) -> Size:
        """Return the quick study, or the whole, of a set of data sets (`SETS`). Points without queues are the same."""
        names = tuple(name + SETS[datasets] for name in DATASETS)
        return cls(names, 60, 40, 8, 1, 1, rate, quick) if quick else cls(names, 200, 40, 8, 8, 3, rate, quick)

    def base(self, dataset: str) -> float:
        """Return the queries a second of a data set."""
        return self.given_rate or sustained(dataset)

    @property
    def multiples(self) -> tuple[float, ...]:
        return MULTIPLES[::2] if self.quick else MULTIPLES

    def rate(self, dataset: str, multiple: float) -> float:
        """A multiple of the study's rate, four digits."""
        return float(f"{multiple * self.base(dataset):.4g}")

    def alone(self, datasets: tuple[str, ...], *systems: str, **more: Any) -> list[Run]:
        """Return systems with one query at a time. more: fields of `Run`."""
        return seeded([run_of(d, s, None, requests=self.lone, **more) for d in datasets for s in systems],
                      self.seeds_alone)


def compared_first(size: Size) -> dict[str, list[Run]]:
    """Return the points of the paper's figures that are known before any run."""
    n: dict[str, Any] = {"requests": size.requests}
    return {
        "alone": size.alone(size.datasets, "METIS", "AdaptiveRAG*"),
        "diluted": reading_points(size, DILUTED),
        "large": size.alone(size.datasets, "METIS", "AdaptiveRAG*", serving=LARGE),
        "grid": [fixed_run(d, c, size.base(d), **n) for d in size.datasets
                 for c in (FIXED[::2] if size.quick else FIXED)],
        "systems": seeded([run_of(d, s, size.base(d), **n) for d in size.datasets
                           for s in ("METIS", "profile + median", "+ batching")], size.seeds),
        "hindsight": [run_of(d, "hindsight", size.base(d), **n) for d in size.datasets],
        "rates": seeded([run_of(d, s, size.rate(d, m), **n) for d in size.datasets for m in size.multiples
                         for s in ("METIS", "AdaptiveRAG*") if s == "METIS" or m <= 1], size.few),
        "memory": memory_points(size, LOADS[0]),
        "feedback": seeded([
            run_of(d, "METIS", size.base(d), requests=90 if size.quick else 350).with_(
                f"feedback {name}", feedback_every=every)
            for d in size.datasets if d.startswith(("qmsum", "finsec")) for name, every in (("off", 0), ("on", 30))
        ], size.seeds),
        "paper's rate": seeded([run_of(d, "METIS", SPEC_RATE, **n) for d in size.datasets], size.few),
    }


def compared_second(size: Size, fixed: dict[str, dict[str, Run]]) -> dict[str, list[Run]]:
    """Return the points of the paper's figures with fixed configurations.

    Args:
        fixed: Data set -> one of `COMPARATORS` -> the fixed configuration that it selects, at the study's rate.
    """
    named = [one.with_(f"fixed of {name}") for of_set in fixed.values() for name, one in of_set.items()]
    return {
        "fixed": seeded(named, size.seeds),
        "fixed rates": seeded([replace(one, rate=size.rate(one.dataset, m)) for one in named for m in size.multiples],
                              size.few),
        "fixed alone": seeded([replace(one, rate=None, requests=size.lone) for one in named], size.seeds_alone),
        "dollars": seeded([replace(of_set["like delay"], rate=None, requests=size.lone, serving=LARGE)
                           for of_set in fixed.values()], size.seeds_alone),
    }


def first(size: Size) -> dict[str, list[Run]]:
    """Return points that are known before any run."""
    readings = [DILUTED] if size.quick else READINGS
    own = [run_of(d, "METIS", size.base(d), requests=size.requests) for d in size.datasets]
    return compared_first(size) | {
        "readings": [one for reading in readings for one in reading_points(size, reading)],
        "grid alone": [fixed_run(d, c, None, requests=size.lone) for d in size.datasets
                       for c in (FIXED[::2] if size.quick else FIXED)],
        "others alone": size.alone(size.datasets, "profile + median", "hindsight"),
        "no golden runs": seeded([one.with_("METIS, no golden runs", feedback_every=0) for one in own], size.few),
        "more memory": [one for load in (() if size.quick else LOADS[1:]) for one in memory_points(size, load)],
        "variants": [] if size.quick else seeded([
            replace(one.with_(f"METIS, {name}", **params), blocks=tokens // 16)
            for one in own for tokens in BUDGETS[1:] for name, params in VARIANTS.items()], size.few),
    }


def reading_points(size: Size, reading: Reading) -> list[Run]:
    """Return METIS and AdaptiveRAG* under a reading, one query at a time."""
    names = tuple(d.removesuffix(SETS["3n"]) + SETS[reading.datasets] for d in size.datasets)
    return [*size.alone(names, "METIS"),
            *(one.with_("AdaptiveRAG*", quality=reading.quality, grid=reading.grid, noise=reading.noise,
                        tolerance=reading.tolerance) for one in size.alone(names, "AdaptiveRAG*"))]


def memory_points(size: Size, load: float) -> list[Run]:
    """Return METIS and the median with less memory, at a multiple of the study's rates."""
    return seeded([run_of(d, s, size.rate(d, load), requests=size.requests, blocks=tokens // 16)
                   for d in size.datasets for tokens in (BUDGETS[1:2] if size.quick else BUDGETS)
                   for s in ("METIS", "+ batching")], size.seeds if load == LOADS[0] else size.few)


def second(size: Size, fixed: dict[str, dict[str, Run]]) -> dict[str, list[Run]]:
    """Return points with fixed configurations. fixed: as of `compared_second`."""
    return compared_second(size, fixed) | {
        "parrot": seeded([of_set["like delay"].with_("Parrot*", co_schedule=True) for of_set in fixed.values()],
                         size.few),
    }
