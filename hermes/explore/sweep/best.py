"""The settings of a sweep over their seeds: means with 95% intervals, the best one, and what is within noise of it.

The best is, of several loads, the one with the most goodput of a device that meets the SLO with every seed; of one
load, the one with the fewest devices; without an SLO, the one with the most output tokens of a device. A setting that
did not settle, or whose queue grows, with any seed is never the best. Seeds are paired: equal seeds, equal workloads.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes.explore.objective import Row, grows, missed
from hermes.units import counted

__all__ = ["GOOD", "OFFERED", "Best", "Mean", "Setting", "best_of", "mean_of"]

GOOD, OFFERED, TOKENS = "headline.goodput_per_s", "headline.offered_per_s", "headline.output_tokens_per_s"
ONE_LOAD = 1.3   # largest over smallest offered rate below which settings have one load


class Mean(NamedTuple):
    """A mean over seeds; half: of its 95% interval, None with one seed."""

    value: float
    half: float | None


@dataclass(frozen=True)
class Setting:
    """One setting of a sweep. rows: Seed -> figures of a point with an outcome."""

    label: str
    rows: dict[int, Row] = field(default_factory=dict)

    def mean(self, column: str) -> float | None:
        found = self.figure(column)
        return None if found is None else found.value

    def figure(self, column: str) -> Mean | None:
        """Return a figure over the seeds; None if a seed has none."""
        values = [row.get(column) for row in self.rows.values()]
        numbers = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
        return mean_of(numbers) if numbers and len(numbers) == len(values) else None

    @property
    def settled(self) -> bool:
        return not any(row.get("settling.settled") is False or grows(row) for row in self.rows.values())

    @property
    def meets(self) -> bool:
        return bool(self.rows) and all(missed(row) is None for row in self.rows.values())


@dataclass(frozen=True)
class Best:
    """What a sweep shows.

    Args:
        label: Of the best setting; None if there is none. seen: The same in words.
        differences: Label -> paired difference of each other setting that may be compared with it, relative to the
            best; of settings with two common seeds or more.
    """

    label: str | None
    seen: str
    differences: dict[str, Mean] = field(default_factory=dict)

    @property
    def within_noise(self) -> list[str]:
        """The settings that may be as good: the 95% interval of the difference holds 0."""
        return [label for label, one in self.differences.items() if one.half is not None and one.value + one.half >= 0]


def mean_of(values: Iterable[float]) -> Mean:
    """Return the mean of at least one value, with the 95% interval by Student's t."""
    from hermes.core.noise import t_quantile

    found = list(values)
    half = None if len(found) < 2 else t_quantile(len(found)) * statistics.stdev(found) / math.sqrt(len(found))
    return Mean(statistics.fmean(found), half)


def best_of(settings: Sequence[Setting]) -> Best:
    """Return the best setting, with the others that are as good within noise."""
    known = [one for one in settings if one.rows]
    if not any(row.get("slo.pass") is not None for one in known for row in one.rows.values()):
        able = [one for one in known if one.settled and one.mean(TOKENS) is not None]
        if len(known) < 2 or not able:
            return Best(None, "no point settled" if known and len(known) > 1 and not any(one.settled for one in known)
                        else "latency and throughput")
        best = max(able, key=lambda one: _per_device(one, TOKENS))
        return Best(best.label, f"{best.label} gives the most output tokens of a device",
                    _differences(best, able, TOKENS))
    able = [one for one in known if one.meets and one.mean(GOOD) is not None]
    if not able:
        unsettled = sum((missed(row) or "").startswith("did not settle") for one in known for row in one.rows.values())
        of = sum(len(one.rows) for one in known)
        return Best(None, "no point meets the SLO" + (f"; {unsettled} of {of} did not settle" if unsettled else ""))
    if len(known) == 1:
        return Best(None, f"meets the SLO, {able[0].mean(GOOD):.3g}/s within it")
    offered = [rate for one in able if (rate := one.mean(OFFERED)) is not None]
    numbers = {one.mean("devices") for one in known}
    fewest = bool(offered) and max(offered) < ONE_LOAD * min(offered) and len(numbers) > 1
    if fewest:
        least = min(one.mean("devices") or 0.0 for one in able)
        able = [one for one in able if (one.mean("devices") or 0.0) == least]
    best = max(able, key=lambda one: _per_device(one, GOOD))
    seen = (f"{best.label} is the {'fewest' if fewest else 'best'} that meets the SLO "
            f"({best.mean(GOOD):.3g}/s within it on {_devices(best.mean('devices') or 0.0)})")
    return Best(best.label, seen, _differences(best, able, GOOD))


def _devices(number: float) -> str:
    """Return a number of devices; where replicas come and go it is a mean."""
    return counted(int(number), "device") if number == int(number) else f"{number:.1f} devices"


def _per_device(one: Setting, column: str) -> float:
    return (one.mean(column) or 0.0) / max(one.mean("devices") or 0.0, 1.0)


def _differences(best: Setting, able: Sequence[Setting], column: str) -> dict[str, Mean]:
    """Return the paired differences to the best, of a device, relative."""
    def of(row: Row) -> float:
        return float(row[column]) / max(float(row.get("devices") or 0.0), 1.0)

    found, base = {}, _per_device(best, column) or 1.0
    for one in able:
        common = [seed for seed in one.rows if seed in best.rows]
        if one is not best and len(common) > 1:
            found[one.label] = mean_of((of(one.rows[seed]) - of(best.rows[seed])) / base for seed in common)
    return found
