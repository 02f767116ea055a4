"""Incidents: what each failure did to capacity, SLO and requests, and how long the system took to recover.

An incident is one strike of a failure, with all replicas that it hits. Its times:

- *noticed*: the first of readiness probes, the node's heartbeats, liveness probes, a circuit breaker and a spot node's
  notice that has found it.
- *traffic left*: routers choose none of its clients any more, or all gateways' circuits of them have opened.
- *capacity back*: each of its groups has as many sound replicas again as before it, or as before the incident that it
  overlaps. Sound is ready, not hanging, not slow. What an autoscaler lets go meanwhile is not waited for.
- *recovered*: from then on every minute of arrivals keeps the SLO, as far as the incident lasts: until capacity is back
  and the requests of one whole minute after it keep the SLO. The **time to recover** is that from the strike to it: 0
  where no minute misses the SLO. A minute is [t, t + 60 s) from any t, not one of the clock.

What was lost at a client belongs to its latest incident, from the strike until the client is ready again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hermes.arrays import BoolArray, IntArray
from hermes.core.record import (
    ATTEMPT_OUTCOMES,
    AWAY,
    CUT,
    DRAINING,
    GONE,
    HEARTBEAT,
    INCIDENT_EVENTS,
    LIVENESS,
    MENDED,
    NOTICE,
    PROBE,
    READY,
    RECLAIMED,
    STATUS_COMPLETED,
    STATUS_REJECTED,
    STRUCK,
    RunRecord,
)
from hermes.results.figures.membership import clients_of, fleet_groups, replicas_of
from hermes.results.figures.slo_minutes import MINUTE_NS, share_asked, slo_minutes
from hermes.results.metrics import RequestMetrics
from hermes.results.slo import SloGroup, slo_given, within_slo, without_limit
from hermes.units import NS_PER_S

__all__ = ["FAR", "Incident", "columns_of", "incidents", "incidents_summary", "sound_from", "sound_replicas",
           "timelines"]

_NOTICES = (PROBE, HEARTBEAT, LIVENESS, NOTICE)
FAR = 1 << 62
_LOST = tuple(ATTEMPT_OUTCOMES.index(name) for name in ("failed", "timed out"))


@dataclass
class Incident:
    """One incident. Times are seconds after the strike; None: not in this run.

    Attributes:
        clients: Names of those that it hits; of an engine with ranks or stages, that of the whole engine.
        at_ns: Simulated time of the strike.
        noticed_by: A member of `INCIDENT_EVENTS`, or "breaker"; "" if nothing noticed it.
        recovered_s: Time to recover; None without an SLO, too.
        slo_minutes_out: Minutes of the clock out of limit (`hermes.results.figures.slo_minutes`) that it overlaps.
        attempts_failed: Attempts that failed or timed out at its clients.
        requests_failed: Requests whose last attempt was one of them.
        requests_refused: Other requests that arrived before capacity was back, and ended with an error.
        retried: Requests that had another attempt after one of them, in another offer of theirs, too.
        cut: Those of them that a spot node's end cut off.
        wasted_prompt_tokens, wasted_output_tokens: Computed for them.
        lost_tokens: Output tokens that the failed and the refused requests had asked for.
    """

    kind: str
    clients: list[str]
    at_ns: int
    noticed_s: float | None = None
    noticed_by: str = ""
    left_s: float | None = None
    back_s: float | None = None
    recovered_s: float | None = None
    slo_minutes_out: int = 0
    attempts_failed: int = 0
    requests_failed: int = 0
    requests_refused: int = 0
    retried: int = 0
    cut: int = 0
    wasted_prompt_tokens: int = 0
    wasted_output_tokens: int = 0
    lost_tokens: int = 0

    @property
    def row(self) -> dict[str, Any]:
        """The incident as plain data."""
        return {("at_s" if name == "at_ns" else name): value / NS_PER_S if name == "at_ns" else value
                for name, value in asdict(self).items()}

    @property
    def back_ns(self) -> int | None:
        """When capacity is back; None: not in this run."""
        return None if self.back_s is None else self.at_ns + round(self.back_s * NS_PER_S)


def incidents(record: RunRecord, metrics: RequestMetrics, groups: list[SloGroup]) -> list[Incident]:
    """Return the incidents of a run, in order of their strikes."""
    found = timelines(record)
    _requests(record, found)
    if found and slo_given(groups):
        _slo(record, metrics, groups, found)
    return found


def timelines(record: RunRecord) -> list[Incident]:
    """Return the incidents of a run, with their notice and their capacity alone."""
    table = record.incidents
    if not table:
        return []
    found, backs = [], _capacity_back(record)
    name_of = {client: name for name, mine in clients_of(record, range(len(record.clients))).items() for client in mine}
    for number, kind in enumerate(record.incident_kinds):
        mine = table["incident"] == number
        struck = mine & (table["event"] == STRUCK)
        if not struck.any():   # after the end of the run
            continue
        at = int(table["time_ns"][struck][0])
        clients = table["client"][struck].tolist()
        one = Incident(kind, [name_of[client] for client in clients], at)
        _notice(record, one, mine, clients, at)
        one.back_s = _after(backs[number], at)
        found.append(one)
    return found


def columns_of(found: list[Incident]) -> dict[str, list[Any]]:
    """Return the incidents as columns."""
    rows = [{**one.row, "clients": " ".join(one.clients)} for one in found]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else Incident("", [], 0).row)}


def _after(time_ns: int, since_ns: int) -> float | None:
    return None if time_ns >= FAR else (time_ns - since_ns) / NS_PER_S


# -- notice ------------------------------------------------------------------------------------------------------------


def _notice(record: RunRecord, one: Incident, mine: BoolArray, clients: list[int], at: int) -> None:
    """Find when what noticed an incident, and when traffic left all of its clients."""
    table, events = record.incidents, []
    for code in _NOTICES:
        times = table["time_ns"][mine & (table["event"] == code)]
        events += [(int(times.min()), INCIDENT_EVENTS[code])] if len(times) else []
    lefts = []
    for client in clients:
        until = sound_from(record, client, at)
        left = table["time_ns"][mine & (table["client"] == client) & (table["event"] == AWAY)]
        opened = _opened(record, client, at, until)
        events += [(opened[0], "breaker")] if opened else []
        gateways = max(len(np.unique(record.calls["gateway"])) if record.calls else 0, 1)
        lefts.append(min([*left[:1].tolist(), *([max(opened)] if len(opened) >= gateways else [])], default=FAR))
    if events:
        time, one.noticed_by = min(events, key=lambda event: event[0])
        one.noticed_s = (time - at) / NS_PER_S
    one.left_s = _after(max(lefts), at)


def _opened(record: RunRecord, client: int, at: int, until: int) -> list[int]:
    """Return when each gateway that opened its circuit of a client within a span did so first, in order of time."""
    table = record.circuits
    if not table:
        return []
    rows = (table["client"] == client) & (table["open"] == 1) & (table["time_ns"] >= at) & (table["time_ns"] < until)
    first = table["time_ns"][rows][np.unique(table["gateway"][rows], return_index=True)[1]]
    return [int(time) for time in np.sort(first)]


def sound_from(record: RunRecord, client: int, since_ns: int) -> int:
    """Return when a client that was hit is sound again: ready after it, or its hang or slowness is over."""
    table, members = record.incidents, record.membership
    ready = members[(members[:, 0] == client) & (members[:, 2] > since_ns) & (members[:, 3] == READY)][:, 2]
    mended = table["time_ns"][(table["client"] == client) & (table["event"] == MENDED)
                              & (table["time_ns"] > since_ns)]
    return int(min(ready.min(initial=FAR), mended.min(initial=FAR)))


# -- capacity ----------------------------------------------------------------------------------------------------------


def _capacity_back(record: RunRecord) -> dict[int, int]:
    """Return when capacity is back after each incident."""
    table, struck = record.incidents, record.incidents["event"] == STRUCK
    backs = dict.fromkeys(range(len(record.incident_kinds)), 0)
    for members in fleet_groups(record).values():
        times, sound = sound_replicas(record, members)
        gone = _let_go(record, members)
        hits = struck & np.isin(table["client"], members)
        until, target = 0, 0
        for number in np.unique(table["incident"][hits]).tolist():
            at = int(table["time_ns"][hits & (table["incident"] == number)][0])
            before = int(sound[np.searchsorted(times, at) - 1]) if (times < at).any() else int(sound[0])
            target = max(before, target) if until > at else before
            place = max(int(np.searchsorted(times, at, side="right")) - 1, 0)
            wanted = target - np.searchsorted(gone, times[place:], side="right") + np.searchsorted(gone, at, "right")
            enough = np.flatnonzero(sound[place:] >= wanted)
            until = max(int(times[place + enough[0]]), at) if len(enough) else FAR
            backs[number] = max(backs[number], until)
    return backs


def sound_replicas(record: RunRecord, members: list[int]) -> tuple[IntArray, IntArray]:
    """Return the times at which the number of sound replicas of a group changes, and that number from each on."""
    table, changes = record.incidents, Counter[int]()
    for client in replicas_of(record, members):
        rows = record.membership[record.membership[:, 0] == client]
        hits = table["time_ns"][(table["client"] == client) & (table["event"] == STRUCK)].tolist()
        for place in np.flatnonzero(rows[:, 3] == READY).tolist():
            begin = int(rows[place, 2])
            end = int(rows[place + 1, 2]) if place + 1 < len(rows) else FAR
            while begin < end:   # hangs and slow steps within the time that it is ready
                hit = next((time for time in hits if begin <= time < end), end)
                changes[begin] += 1
                changes[hit] -= 1
                begin = end if hit == end else min(sound_from(record, client, hit), end)
    times = np.array(sorted(changes), dtype=np.int64)
    return times, np.cumsum(np.array([changes[time] for time in times.tolist()], dtype=np.int64))


def _let_go(record: RunRecord, members: list[int]) -> IntArray:
    """Return when replicas of a group began to drain since fewer were wanted."""
    mine = set(replicas_of(record, members))
    return np.array([row[2] for row, reason in zip(record.membership.tolist(), record.membership_reasons, strict=True)
                     if row[3] == DRAINING and row[0] in mine and reason not in (RECLAIMED, "update")],
                    dtype=np.int64)


# -- requests ----------------------------------------------------------------------------------------------------------


def _requests(record: RunRecord, found: list[Incident]) -> None:
    """Count what each incident did to attempts, requests and tokens."""
    table = record.attempts
    if not table or not found:
        return
    owner = _owners(record, found)
    output = np.zeros(len(owner), dtype=np.int64)
    placed = record.stage_attempts >= 0
    np.add.at(output, record.stage_attempts[placed], record.stages["output_tokens"][placed])
    cuts = {(row[0], row[2]) for row, why in zip(record.membership.tolist(), record.membership_reasons, strict=True)
            if why in (CUT, RECLAIMED) and row[3] == GONE}
    last = np.full(len(record.status), -1, dtype=np.int64)
    np.maximum.at(last, table["request"], np.arange(len(owner)))
    rejected = np.flatnonzero(record.status == STATUS_REJECTED)
    final = np.where(last[rejected] >= 0, owner[last[rejected]], -1)
    for number, one in enumerate(found):
        rows = np.flatnonzero(owner == number)
        ends = zip(table["client"][rows].tolist(), table["end_ns"][rows].tolist(), strict=True)
        one.attempts_failed, one.cut = len(rows), sum(end in cuts for end in ends)
        requests = table["request"][rows]
        one.retried = len(np.unique(requests[rows < last[requests]]))
        one.wasted_prompt_tokens = int(table["computed"][rows].sum())
        one.wasted_output_tokens = int(output[rows].sum())
        failed = rejected[final == number]
        refused = rejected[_refused(record, found, rejected, final) == number]
        one.requests_failed, one.requests_refused = len(failed), len(refused)
        one.lost_tokens = int(record.output_tokens[failed].sum() + record.output_tokens[refused].sum())


def _owners(record: RunRecord, found: list[Incident]) -> IntArray:
    """Return the incident of each attempt that came to nothing at one of its clients; -1 for others."""
    table, owner = record.attempts, np.full(len(record.attempts["client"]), -1, dtype=np.int64)
    lost = np.isin(table["outcome"], _LOST)
    of_replica = clients_of(record, range(len(record.clients)))
    for number, one in enumerate(found):   # a later one takes what follows it
        at = one.at_ns
        for mine in map(of_replica.__getitem__, one.clients):
            rows = lost & np.isin(table["client"], mine) & (table["end_ns"] >= at)
            owner[rows & (table["end_ns"] <= sound_from(record, mine[0], at))] = number
    return owner


def _refused(record: RunRecord, found: list[Incident], rejected: IntArray, final: IntArray) -> IntArray:
    """Return the incident of each rejected request that failed at none of the clients; -1 for others."""
    out = np.full(len(rejected), -1, dtype=np.int64)
    arrival = record.arrival_ns[rejected]
    for number, one in enumerate(found):
        at = one.at_ns
        until = FAR if one.back_ns is None else one.back_ns
        out[(final < 0) & (arrival >= at) & (arrival < until)] = number
    return out


# -- SLO ---------------------------------------------------------------------------------------------------------------


def _slo(record: RunRecord, metrics: RequestMetrics, groups: list[SloGroup], found: list[Incident]) -> None:
    """Find when each incident had recovered, and the minutes out of limit that it overlaps."""
    completed = record.status == STATUS_COMPLETED
    good = within_slo(groups, metrics, completed)
    judged = (record.arrival_ns >= 0) & ~without_limit(groups, metrics, completed)
    parts = []
    for group in groups:
        mine = np.flatnonzero(judged & group.rows) if group.slo.given else np.empty(0, dtype=np.int64)
        if len(mine):
            mine = mine[np.argsort(record.arrival_ns[mine], kind="stable")]
            parts.append((record.arrival_ns[mine], np.cumsum(np.append(0, good[mine])), share_asked(group.slo)))
    starts = np.unique(np.concatenate([arrival for arrival, _, _ in parts] or [np.empty(0, dtype=np.int64)])) + 1
    minutes = slo_minutes(groups, metrics, record)
    for one in found:
        at = one.at_ns
        times = np.concatenate(([at], starts[starts > at]))
        misses = _misses(parts, times)
        until = record.end_ns
        if (back := one.back_ns) is not None:   # the first minute from then on that keeps the SLO
            kept = np.flatnonzero(~misses & (times >= back))
            if times[-1] < back:
                until = back
            elif len(kept):
                until = int(times[kept[0]])
        bad = np.flatnonzero(misses & (times <= until))
        over = at if not len(bad) else int(times[bad[-1] + 1]) if bad[-1] + 1 < len(times) else record.end_ns
        kept_again = one.back_s is not None or not len(bad) or not misses[-1]
        one.recovered_s = (over - at) / NS_PER_S if kept_again else None
        begins = minutes.minute * MINUTE_NS
        one.slo_minutes_out = int((minutes.out & (begins < over) & (begins + MINUTE_NS > at) & (over > at)).sum())


def _misses(parts: Iterable[tuple[IntArray, IntArray, float]], times: IntArray) -> BoolArray:
    """Return whether the requests that arrive in the minute from each time on miss the SLO."""
    out = np.zeros(len(times), dtype=bool)
    for arrival, met, share in parts:
        low, high = (np.searchsorted(arrival, times + add) for add in (0, MINUTE_NS))
        count = high - low
        out |= met[high] - met[low] < share * count - 1e-9 * count
    return out


def incidents_summary(record: RunRecord, metrics: RequestMetrics, groups: list[SloGroup]) -> dict[str, Any]:
    """Return `incidents` of the summary: how many of each kind, the longest of their times, sums, and `rows`, one of
    each incident; empty where none struck before the end."""
    found = incidents(record, metrics, groups)
    if not found:
        return {}

    def most(name: str) -> float | None:
        values = [value for one in found if (value := getattr(one, name)) is not None]
        return max(values, default=None)

    wasted = Counter[str]()
    for one in found:
        wasted[one.kind] += one.wasted_prompt_tokens + one.wasted_output_tokens
    return {"incidents": {
        "count": len(found), "kinds": dict(sorted(Counter(one.kind for one in found).items())),
        **{name: most(name) for name in ("noticed_s", "left_s", "back_s", "recovered_s")},
        **{name: sum(getattr(one, name) for one in found) for name in (
            "attempts_failed", "requests_failed", "requests_refused", "retried", "cut", "lost_tokens")},
        "wasted_tokens": wasted.total(), "wasted_tokens_of": dict(sorted(wasted.items())),
        "rows": [one.row for one in found],
    }}
