"""The "assumes" block: defaults of a scenario that decide its answer, with what their alternatives would change.

`run`, `size`, `report` and summary.json all take it from here. A default decides if its stated alternative moves a
headline by 5% or turns the verdict on the SLO. `hermes.scenario.assumptions` lists the defaults of a scenario,
`hermes.scenario.repricing` and `hermes.scenario.alternatives` find what an alternative changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.results.figures.catalogue import FIGURES
from hermes.site import page_url

__all__ = ["HEADLINES", "LISTED", "MOST", "NOT_MODELLED", "RATES", "Assumed", "assumed_lines", "changes_between",
           "changes_of_runs", "decides", "headlines", "ordered"]

LISTED = 0.05   # relative change of a headline from which on a default is listed
MOST = 6        # lines without -v
SHOWN = 2       # changes in one line
NOT_MODELLED = f"what is not modelled at all: {page_url('background/not-modelled')}"
HEADLINES = {
    "ttft_p99": "latency.ttft_s.p99", "tpot_p99": "latency.tpot_s.p99", "e2e_p99": "latency.e2e_s.p99",
    "served_per_s": "headline.served_per_s", "goodput_per_s": "headline.goodput_per_s",
    "dollars_per_million": "headline.per_million_answer_tokens_dollars",
    "tokens_per_j": "headline.output_tokens_per_j",
    "hits": "believed.cached_tokens",   # only where a router goes by them
}
"""Headlines that an alternative may move, with their places in the summary."""
RATES = ("served_per_s", "goodput_per_s", "dollars_per_million", "tokens_per_j")
"""Headlines that are counted in a window of the run: its steady state, or the whole run with warm-up and drain."""


@dataclass(frozen=True)
class Assumed:
    """A default, and what its alternative would change.

    Attributes:
        effect: Relative change of each headline that the alternative moves.
        turns_verdict: Whether the alternative turns the verdict on the SLO.
        method: `first order` (this run's batches priced again), `rough` (the same near a limit, where queues change
            more than it), `simulated`, `exact`, `batches` (spread of the run's own parts, either way), or `not
            simulated` (only a simulation tells).
        within_noise: Headlines whose simulated change chance may explain, or of the opposite sign to first order. They
            do not decide.
    """

    name: str
    default: str
    alternative: str
    effect: dict[str, float] = field(default_factory=dict)
    turns_verdict: bool = False
    method: str = "first order"
    within_noise: tuple[str, ...] = ()
    listed: bool = False
    """Whether it is listed whatever its alternative changes."""

    @property
    def largest(self) -> float:
        """The largest relative change of a headline, beyond noise."""
        return _largest(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        return {"name": self.name, "default": self.default, "alternative": self.alternative,
                "effect": dict(self.effect), "turns_verdict": self.turns_verdict, "method": self.method,
                **({"within_noise": list(self.within_noise)} if self.within_noise else {}),
                **({"listed": True} if self.listed else {})}


def headlines(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the headlines of a summary, or of a row of a sweep, whose keys are joined by dots."""
    found: dict[str, float | None] = {}
    for name, path in HEADLINES.items():
        value: Any = row.get(path)
        if value is None:
            value = row
            for key in path.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
        found[name] = None if value is None else float(value)
    return found


def changes_between(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> dict[str, float]:
    """Return the relative change of each headline that both have; those that stay are left out."""
    out = {}
    for name in HEADLINES:
        old, new = before.get(name), after.get(name)
        if old and new is not None and abs(change := new / old - 1.0) >= 1e-4:
            out[name] = change
    return out


def changes_of_runs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return the relative change of each headline between two simulations, from their summaries.

    Rates, dollars and joules per token are left out if one is of the steady state and the other of the whole run.
    """
    changes = changes_between(headlines(before), headlines(after))
    windows = [(row.get("headline") or {}).get("window") for row in (before, after)]
    if windows[0] == windows[1]:
        return changes
    return {name: change for name, change in changes.items() if name not in RATES}


def decides(entry: Mapping[str, Any]) -> bool:
    """Whether a default belongs into the block."""
    return bool(entry["turns_verdict"] or entry.get("listed")) or _largest(entry) >= LISTED


def ordered(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries with the largest effect first; those that turn the verdict before all others."""
    return sorted(entries, key=lambda entry: (not entry["turns_verdict"], -_largest(entry), entry["name"]))


def assumed_lines(entries: Sequence[Mapping[str, Any]], *, verbose: bool = False) -> list[str]:
    """Return a line for each default that decides, at most six; with `verbose`, one for each default.

    entries: As in summary.json.
    """
    found = ordered(entries)
    if not verbose:
        found = [entry for entry in found if decides(entry)]
    out = [f"{entry['name']}: {entry['default']}; {entry['alternative']} {_effect_text(entry)}"
           for entry in (found if verbose else found[:MOST])]
    if not verbose and len(found) > MOST:
        out.append(f"and {len(found) - MOST} more (-v)")
    return out


def _beyond_noise(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the changes that are more than noise."""
    return {name: change for name, change in entry["effect"].items() if name not in entry.get("within_noise", ())}


def _largest(entry: Mapping[str, Any]) -> float:
    return max((abs(change) for change in _beyond_noise(entry).values()), default=0.0)


def _effect_text(entry: Mapping[str, Any]) -> str:
    changes = sorted(_beyond_noise(entry).items(), key=lambda item: (-abs(item[1]), item[0]))
    shown = [change for change in changes if abs(change[1]) >= 0.0005][:SHOWN]
    method = entry.get("method")
    if method == "not simulated":
        return "was not simulated"
    word = {"batches": "by ", "first order": "about ", "rough": "about "}.get(str(method), "")
    parts = [f"{FIGURES[HEADLINES[name]].words} {word}{_signed(change, either=method == 'batches')}"
             for name, change in shown]
    text = ("may move " if method == "batches" else "would make ") + " and ".join(parts)
    text += {"simulated": " (simulated)", "rough": " before queues change"}.get(str(method), "")
    if not parts:
        text = "moves no headline"
    if not entry["turns_verdict"]:
        return text
    if method not in ("simulated", "exact"):
        return f"{text}, and may turn the SLO verdict" if parts else "may turn the SLO verdict"
    return f"{text}, and turn the SLO verdict" if parts else "turns the SLO verdict"


def _signed(change: float, *, either: bool) -> str:
    if not either and change >= 2.0:
        return f"{change + 1.0:.3g} times"
    text = f"{abs(change):.0%}" if abs(change) >= 0.0995 else f"{abs(change):.1%}"
    return text if either else f"{'-' if change < 0 else '+'}{text}"
