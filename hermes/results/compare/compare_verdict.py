"""What separates two runs: SLO, rates and dollars of both, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.results.figures.catalogue import FIGURES, figure_at, limit_name
from hermes.results.layout import format_s

__all__ = ["COMPARED", "SLO_TEXT", "TotalRow", "figure", "named", "slo_rows", "totals", "verdict"]

COMPARED = (
    "headline.offered_per_s", "headline.served_per_s", "headline.goodput_per_s", "headline.goodput_share",
    "headline.output_tokens_per_s", "notes.f1.mean", "notes.chunks.mean", "cost.dollars_per_hour",
    "headline.per_million_answer_tokens_dollars", "headline.per_million_output_tokens_dollars",
    "headline.per_output_token_j", "believed.false_share", "energy.total_j", "cost.total_dollars",
)
"""Figures of two runs, in the order of their table."""
_OF_CLIENTS = {"fleet": ("ready_mean", "held_device_hours"), "believed.balance": ("max_over_mean", "jain")}
"""The same of a group whose replicas come and go, and of clients that share a router that knows caches."""
SLO_TEXT = {True: "met", False: "MISSED", None: "-"}
SMALL = 1e-9   # relative difference that is none


@dataclass(frozen=True)
class TotalRow:
    """One figure of the summaries of two runs, named as there (`headline.served_per_s`); `error` is relative.

    noise: Half-width of the 95% interval of the difference; 0 for prices, None where it is unknown.
    """

    name: str
    ours: float | None
    reference: float | None
    error: float | None
    noise: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours less the reference."""
        return None if self.ours is None or self.reference is None else self.ours - self.reference


def totals(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[TotalRow]:
    """Return figures of two summaries, without those that neither has."""
    rows = []
    for key in COMPARED:
        a, b = (figure(side, key) for side in (ours, theirs))
        if a is not None or b is not None:
            error = (a - b) / b if a is not None and b else None
            noise = 0.0 if key == "cost.dollars_per_hour" else None
            if key == "headline.served_per_s":
                noise = _rate_noise(ours, theirs)
            rows.append(TotalRow(key, a, b, error, noise))
    for place, figures in _OF_CLIENTS.items():
        found = [_table(side, place) for side in (ours, theirs)]
        for name in {**found[0], **found[1]}:
            for key in figures:
                a, b = (figure(side, f"{place}.{name}.{key}") for side in (ours, theirs))
                rows.append(TotalRow(f"{place}.{name}.{key}", a, b, (a - b) / b if a is not None and b else None))
    return rows


def _table(summary: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return a table of a summary by its place; empty where there is none."""
    value: Any = summary
    for key in path.split("."):
        value = value.get(key, {})
    found: Mapping[str, Any] = value
    return found


def named(row: str) -> tuple[str, int]:
    """Return the name of a `TotalRow`'s figure, and whether more is better (1), less (-1) or neither (0)."""
    found, group = figure_at(row)
    return f"{group}: {found.label}" if group else found.label, found.better


def figure(summary: Mapping[str, Any], path: str) -> float | None:
    """Return a number of a summary by its place, such as `headline.served_per_s`; None where there is none."""
    found, group = figure_at(path)
    value: Any = summary
    for key in found.path.split("."):
        value = value.get(group if key == "*" else key) if isinstance(value, Mapping) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _rate_noise(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    """Return the noise of the difference of the served rates, from the interval of each."""
    halves = []
    for side in (ours, theirs):
        head = side.get("headline") or {}
        if head.get("served_low_per_s") is None:
            return None
        halves.append((head["served_high_per_s"] - head["served_low_per_s"]) / 2)
    return math.hypot(*halves)


def slo_rows(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row per limit of either run: its name, and value, limit and verdict of both; empty without limits."""
    sides = [_limits(side) for side in (ours, theirs)]
    names = list(dict.fromkeys(name for side in sides for name in side))
    rows = [(name, *(side.get(name, "-") for side in sides)) for name in names]
    if rows:
        rows.append(("SLO", *(SLO_TEXT[side["slo"]["pass"]] for side in (ours, theirs))))
    return [(name, first, second) for name, first, second in rows]


def _limits(summary: Mapping[str, Any]) -> dict[str, str]:
    out = {}
    for group, table in {"": summary["slo"], **summary.get("slo_of", {})}.items():
        for name, row in table.items():
            if name == "pass":
                continue
            label = limit_name(name, row.get("percentile"))
            text = f"{format_s(row['value_s'])} of {format_s(row['limit_s'])}, {SLO_TEXT[row['pass']]}"
            out[f"{group}: {label}" if group else label] = text
    return out


def verdict(rows: Sequence[Any], figures: Sequence[TotalRow], passed: tuple[bool | None, bool | None],
            names: tuple[str, str]) -> str:
    """Return in one sentence on what the first run is better or worse than the second, beyond noise.

    Args:
        rows: `CompareRow`s of the latencies.
        passed: Whether each run meets its SLO; None without one.
    """
    found: dict[str, list[str]] = {"better": [], "worse": [], "within noise": [], "equal": [], "of unknown noise": []}
    for row in rows:
        latency = FIGURES[f"latency.{row.metric}_s.{row.stat}"]
        if latency.judged and row.difference_s is not None:
            _judge(found, latency.label, latency.better * row.difference_s, row.noise_s, row.error)
    for one in figures:
        total, _ = figure_at(one.name)
        if total.judged and one.difference is not None:
            _judge(found, total.label, total.better * one.difference, one.noise, one.error)
    words = [f"{what} on {', '.join(items)}" if what in ("better", "worse") else f"{what}: {', '.join(items)}"
             for what, items in found.items() if items]
    first, second = passed
    if first is not None or second is not None:
        text = {True: "meets the SLO", False: "misses the SLO", None: "has no verdict on an SLO"}
        both = "both meet the SLO" if first else "both miss the SLO"
        words.append(both if first == second else f"{text[first]}, {names[1]} {text[second]}")
    return f"{names[0]} against {names[1]}: {'; '.join(words) or 'nothing to compare'}"


def _judge(found: dict[str, list[str]], label: str, gain: float, noise: float | None, error: float | None) -> None:
    """Add a figure to the class of its difference. gain: How much better the first run is, in the figure's unit."""
    size = "" if error is None else f" ({error:+.1%})"
    if error is not None and abs(error) <= SMALL:
        found["equal"].append(label)
    elif noise is None:
        found["of unknown noise"].append(label + size)
    elif abs(gain) <= noise:
        found["within noise"].append(label + size)
    else:
        found["better" if gain > 0 else "worse"].append(label + size)
