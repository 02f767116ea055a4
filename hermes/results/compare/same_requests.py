"""Check that both sides of a comparison served the same requests: ids, arrivals, lengths.

Errors of latencies are meaningful only if both sides had the same work. A reference recorded at 1.5 requests a second
with a run at 3 shows a difference of 45% that comes from the load, not from the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.config.yaml_document import parse_yaml
from hermes.core.record import STATUS_COMPLETED
from hermes.results.files.stored import StoredResults
from hermes.results.results import Results
from hermes.units import NS_PER_S

__all__ = ["ARRIVAL_TOLERANCE_S", "ServedRequests", "check_same", "served_requests"]

ARRIVAL_TOLERANCE_S = 0.1
"""Largest difference of arrivals, counted from the first one: a load driver submits some milliseconds late."""

_WORDS = {"arrival_s": "arrivals", "prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}


@dataclass(frozen=True)
class ServedRequests:
    """The requests of one side.

    Attributes:
        ids: Numbers of the requests, shape (requests,), or None if unknown.
        arrival_s, prompt_tokens, output_tokens: Shape (requests,), NaN if unknown; None if all are unknown.
        completed: Shape (requests,).
    """

    ids: IntArray | None
    arrival_s: FloatArray | None
    prompt_tokens: FloatArray | None
    output_tokens: FloatArray | None
    completed: BoolArray

    def __len__(self) -> int:
        return len(self.completed)

    def rows(self, chosen: IntArray | BoolArray) -> ServedRequests:
        """Return some of the requests, in the order of `chosen`."""
        columns = {name: None if (column := getattr(self, name)) is None else column[chosen]
                   for name in ("ids", *_WORDS)}
        return ServedRequests(completed=self.completed[chosen], **columns)


def served_requests(results: Results) -> ServedRequests:
    """Return the requests of a run. Arrivals that follow earlier answers are left out: they are results themselves."""
    record = results.record
    arrival = np.where(record.arrival_ns >= 0, record.arrival_ns / NS_PER_S, np.nan)
    return ServedRequests(
        np.arange(len(record.status)), None if _arrivals_follow_answers(results) else arrival,
        record.prompt_tokens.astype(np.float64), record.output_tokens.astype(np.float64),
        record.status == STATUS_COMPLETED,
    )


def _arrivals_follow_answers(results: Results) -> bool:
    """Whether a workload is a closed loop, limits the requests in flight, or has conversations."""
    text = results.meta.get("scenario_text") or getattr(results, "scenario_text", None)
    file = str(results.folder / "scenario.resolved.yaml") if isinstance(results, StoredResults) else None
    data = results.meta.get("scenario") if text is None else parse_yaml(text, file).plain()
    workloads = data.get("workload") if isinstance(data, dict) else None
    for workload in workloads if isinstance(workloads, list) else [workloads]:
        parts = workload if isinstance(workload, dict) else {}
        arrivals, lengths = parts.get("arrivals"), parts.get("lengths")
        if isinstance(arrivals, dict) and (arrivals.get("kind") == "closed_loop" or arrivals.get("max_in_flight")):
            return True
        if isinstance(lengths, dict) and lengths.get("kind") == "conversations":
            return True
    return False


def check_same(ours: ServedRequests, theirs: ServedRequests, names: tuple[str, str] = ("the run", "the reference")
               ) -> tuple[str | None, list[str]]:
    """Return (the first difference in words, or None; the properties that could be compared)."""
    if theirs.ids is not None:
        found = _other_ids(ours, theirs, names)
        if found is not None:
            return found, ["ids"]
        assert ours.ids is not None
        return _by_request(ours.rows(theirs.ids), theirs, names)
    if len(theirs) not in (len(ours), int(ours.completed.sum())):
        return (f"{names[0]} has {len(ours):,} requests ({int(ours.completed.sum()):,} completed), {names[1]} "
                f"{len(theirs):,}"), ["number"]
    return _as_a_whole(ours if len(theirs) == len(ours) else ours.rows(ours.completed), theirs, names)


def _other_ids(ours: ServedRequests, theirs: ServedRequests, names: tuple[str, str]) -> str | None:
    assert theirs.ids is not None
    unknown = theirs.ids[(theirs.ids < 0) | (theirs.ids >= len(ours))]
    if len(unknown):
        return f"request {unknown[0]} of {names[1]} does not exist in {names[0]} (0 to {len(ours) - 1})"
    there = np.zeros(len(ours), dtype=bool)
    there[theirs.ids] = True
    missing = np.flatnonzero(ours.completed & ~there)
    return f"request {missing[0]} of {names[0]} is not in {names[1]}" if len(missing) else None


def _known(ours: ServedRequests, theirs: ServedRequests) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return the columns that both sides have."""
    pairs = {name: (getattr(ours, name), getattr(theirs, name)) for name in _WORDS}
    return {name: pair for name, pair in pairs.items()
            if pair[0] is not None and pair[1] is not None and not (np.isnan(pair[0]) | np.isnan(pair[1])).all()}


def _by_request(ours: ServedRequests, theirs: ServedRequests, names: tuple[str, str]) -> tuple[str | None, list[str]]:
    """Compare request by request; `ours` has the rows of `theirs`."""
    assert ours.ids is not None
    known = _known(ours, theirs)
    wrong: list[tuple[int, str]] = []
    for name, (a, b) in known.items():
        if name == "arrival_s":
            a, b = _from_the_first(a, b)
        off = np.flatnonzero(np.abs(a - b) > (ARRIVAL_TOLERANCE_S if name == "arrival_s" else 0))
        if len(off):
            row = off[np.argmin(ours.ids[off])]
            wrong.append((int(ours.ids[row]), _said(f"request {ours.ids[row]}", name, a[row], b[row], names)))
    said = min(wrong, key=lambda pair: pair[0])[1] if wrong else None
    return said, ["ids", *(_WORDS[name] for name in known)]


def _from_the_first(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return both counted from the first request that both have: clocks start anywhere."""
    first = np.nanargmin(np.where(np.isnan(b), np.nan, a))
    return a - a[first], b - b[first]


def _as_a_whole(ours: ServedRequests, theirs: ServedRequests, names: tuple[str, str]) -> tuple[str | None, list[str]]:
    """Compare without ids: arrivals in order, lengths sorted."""
    known = _known(ours, theirs)
    checked = ["number", *(_WORDS[name] for name in known)]
    for name, pair in known.items():
        a, b = (np.sort(column[~np.isnan(column)]) for column in pair)
        if len(a) != len(b):
            return f"{names[0]} has {len(a):,} {_WORDS[name]}, {names[1]} {len(b):,}", checked
        if name == "arrival_s":
            a, b = a - a[0], b - b[0]
        off = np.flatnonzero(np.abs(a - b) > (ARRIVAL_TOLERANCE_S if name == "arrival_s" else 0))
        if len(off):
            order = "" if name == "arrival_s" else f" by {_WORDS[name]}"
            return _said(f"request {off[0]} in order{order}", name, a[off[0]], b[off[0]], names), checked
    return None, checked


def _said(what: str, name: str, ours: float, theirs: float, names: tuple[str, str]) -> str:
    if name == "arrival_s":
        return f"{what} arrives {ours:.4g} s after the first in {names[0]}, {theirs:.4g} s after it in {names[1]}"
    return f"{what} has {ours:,.10g} {_WORDS[name]} in {names[0]}, {theirs:,.10g} in {names[1]}"
