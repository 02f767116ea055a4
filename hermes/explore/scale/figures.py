"""Figures of a run by which `hermes size --scale` compares fleets, besides those of the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hermes.arrays import BoolArray
from hermes.core.reasons import GAVE_UP
from hermes.core.record import FATES, STATUS_COMPLETED, STATUS_UNFINISHED, RunRecord
from hermes.explore.sweep.figures import Scalar
from hermes.results import Results
from hermes.results.figures.membership import fleet_groups, replicas_of
from hermes.results.figures.replica_states import decisions, group_dollars, spans
from hermes.results.figures.usage import paid_ns
from hermes.results.slo import slo_groups, within_slo, without_limit
from hermes.units import NS_PER_S

__all__ = ["LOST", "PREFIX", "scale_figures"]

PREFIX = "scale."
LOST = f"{PREFIX}lost."
_DAY_NS = 86_400 * NS_PER_S
_NOT_DECIDED = (" crashed", " restart")   # reasons of changes that no autoscaler made


def scale_figures(results: Results) -> dict[str, Scalar]:
    """Return further figures of a run, their names beginning with `scale.`.

    Of each group that comes and goes:

    - dollars.GROUP: Dollars of the group while its devices are held; None without a price.
    - events.GROUP: Instants per day at which its autoscaler starts replicas or lets some drain.
    - starts.GROUP, start_s.GROUP: Starts that came to an end, and their mean time from the decision until routers know.
    - cold.GROUP: Requests that miss their limits and arrived while a replica of the group was starting.

    Of the run: lost.CAUSE, requests without an answer, by cause (`failed`, `timed out`, `expired`, `unavailable`,
    `gave up`, `rejected`, `unfinished`); causes without a request are left out.
    """
    record = results.record
    start, end = paid_ns(record)
    bad = _missed(results)
    found: dict[str, Scalar] = {}
    for name, members in fleet_groups(record).items():
        dollars = group_dollars(record, members, start, end)
        made = {one.time_ns for one in decisions(record, members) if not one.text.endswith(_NOT_DECIDED)}
        first = replicas_of(record, members)   # the clients of a replica start together
        lasted = _starts_ns(record, first)
        found |= {
            f"{PREFIX}dollars.{name}": None if dollars is None else dollars[0],
            f"{PREFIX}events.{name}": len(made) * _DAY_NS / max(end - start, 1),
            f"{PREFIX}starts.{name}": len(lasted),
            f"{PREFIX}start_s.{name}": sum(lasted) / len(lasted) / NS_PER_S if lasted else None,
            f"{PREFIX}cold.{name}": int((bad & _while_starting(record, members)).sum()),
        }
    return found | {f"{LOST}{cause}": count for cause, count in _lost(record).items()}


def _missed(results: Results) -> BoolArray:
    """Return which requests have limits and are not within them, shape (requests,)."""
    record = results.record
    groups, completed = slo_groups(results.slo, record), record.status == STATUS_COMPLETED
    judged = (record.arrival_ns >= 0) & ~without_limit(groups, results.metrics, completed)
    missed: BoolArray = judged & ~within_slo(groups, results.metrics, completed)
    return missed


def _while_starting(record: RunRecord, members: Sequence[int]) -> BoolArray:
    """Return which requests arrived while one of these clients was starting, shape (requests,)."""
    mine = set(members)
    starting = [one for one in spans(record) if one.client in mine and one.state == "starting"]
    begins = np.sort([one.start_ns for one in starting])
    ends = np.sort([one.end_ns for one in starting])
    # at an arrival as many are starting as have begun, less those that have ended
    at = record.arrival_ns
    number = np.searchsorted(begins, at, side="right") - np.searchsorted(ends, at, side="right")
    return np.asarray(number > 0)


def _starts_ns(record: RunRecord, members: Sequence[int]) -> list[int]:
    """Return how long each start took that came to an end; one that was ready when the run began has none."""
    mine, begun, found = set(members), dict[tuple[int, int], int](), []
    for one in spans(record):
        key = one.client, one.incarnation
        if one.client not in mine:
            continue
        if one.state == "starting":
            begun.setdefault(key, one.start_ns)
        elif one.state == "ready" and key in begun:
            found.append(one.start_ns - begun.pop(key))
    return found


def _lost(record: RunRecord) -> dict[str, int]:
    """Return the requests that arrived and got no answer, by cause."""
    fates = {int(row): FATES[code] for row, code in record.fates.tolist()}
    found = Counter(fates.get(row) or ("gave up" if text.startswith(GAVE_UP) else "rejected")
                    for row, text in record.reject_reasons.items())
    found["unfinished"] = int(((record.status == STATUS_UNFINISHED) & (record.arrival_ns >= 0)).sum())
    return {cause: count for cause, count in sorted(found.items()) if count}
