"""Binding resource: what limits throughput, per group of equal clients and for the run, from recorded causes.

Every run of steps records the `Reason` for which sequences waited, and since when. Steps at their token budget count
for it, whether another sequence waits or not. This module only adds up nanoseconds, in the headline's window; while the
queue grows, from the first arrival to the last.

The place. If nothing settles, the queue that grows furthest downstream: those before it would only feed it. Otherwise,
of the places where work waits at least half of the time, the one with the longest queue. Work that waits upstream
because KV cannot leave (no memory, or a full link) counts there.

Other places where a queue grows, or where work waits half of the time, come after it (`then`). Where a queue limit or
patience turns requests away, the queue is bounded (`bounded_by`), and a place that is full binds nevertheless.

The resource. At a service: its compute (workers), or its machine's memory bandwidth. At an LLM client the reasons
decide what would be served sooner with twice of a resource, by the times of the steps (`RunRecord.step_growth`):
twice the slots let a batch of twice the work run, as far as blocks and tokens allow; twice the compute halves the
work of a step. If a step of twice the work takes nearly twice as long, compute binds, whatever stopped admission, but
for a limit of which twice as much serves the whole offered load: that binds, as faster hardware could do no more.

Twice of a limit serves the load, where the queue grows, if the served rate rises to the offered one. Where all is
served as it comes, it does if it admits those that wait, as many for each running sequence as the batch has room for:
steps of more work do no less in the same time, so that there are never more sequences than now, and none waits. (Not
so for tokens: a prompt in a longer step is not computed sooner.)

Adapters in a step have all their requests in it, as many as arrive while they run, and longer steps turn none away.
Twice the adapter slots serve twice the rate then, up to that of the largest batch that the other limits allow.

Shares are means over the replicas that serve, while any does. Early binding (`hermes.results.figures.early_binding`)
binds where late binding would serve more than twice of the resource. Requests that time out, or are lost at a replica
that is down (`hermes.results.figures.lost`), are turned away as by patience; what the engines lacked is asked in the
time in which they were. Routers that choose a dead replica bind where the queues would be served nevertheless.

Memory that requests never fit turns them away (`turned_away`).

At a gateway (`hermes.results.figures.gateway_binds`) its capacity is a place of its own, upstream of all others. What
flow control holds waits for the engines: its limits are one more resource of a group, of which twice as much lets a
batch of twice the work run. So they bind where the engines have room for it, and the engines' resource elsewhere.

If nothing binds, `arrivals` do: the clients serve the offered load as it comes. If all requests arrive at once, nothing
binds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.columns import parts
from hermes.core.reasons import CAPACITY, DEAD, DRAINS, EARLY, LATE, NAMES, NEVER_FITS, Reason
from hermes.core.record import READY, STATUS_COMPLETED, STATUS_REJECTED, RunRecord
from hermes.results.figures.gateway_binds import Held, advice, capacity_wait, held_of, turns_away
from hermes.results.figures.membership import SERVES, spans_in
from hermes.results.figures.steady import Window
from hermes.results.figures.usage import covered_ns, window_ns
from hermes.results.figures.utilisation import THRESHOLD, resource_uses
from hermes.results.figures.waiting import Place, client_groups, merged, overlaps, waiting_places
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["BINDING_SHARE", "binding_summary", "client_groups"]

AT_ONCE = 0.05
"""Share of a run's time: requests that all come within less are a burst, which some resource holds up."""
BINDING_SHARE = 0.5
STEPPING, FULL = 0.95, 0.9
SOME = 0.1   # share of a replica's time in which work waits, from which on it is asked whether others are free
TURNED_AWAY = 0.05   # share of the requests: a limit on them binds from here on, if nothing else does
BY_LATENESS = (NAMES[Reason.PATIENCE], LATE)
DOUBLES = (Reason.SLOTS, Reason.KV_MEMORY, Reason.ADAPTERS, Reason.TOKEN_BUDGET)

Found = tuple[str, str, float]   # what, where, share of the time


class _Lack(NamedTuple):
    """What a group lacks: the share of the time, and what twice as much would serve over what is served now."""

    what: str
    share: float
    gain: float


@dataclass
class _Group:
    """Nanoseconds of a group of clients in the window, means of its members: of those that serve, while any does.

    Attributes:
        members: Those that were ever ready.
        waits: By `Reason`, in steps: work waited for it.
        stalls: By `Reason`, outside steps.
        stepping: With a step under way; of clients without steps, with a stage under way.
        used: By `Reason`: share of slots, of blocks and of tokens that the steps used, and sequences that waited for
            each running one, times the nanoseconds.
        needed: Served rate that the offered load asks for, over the present one; 1 if all is served as it comes.
    """

    members: list[int]
    waits: FloatArray = field(default_factory=lambda: np.zeros(len(Reason)))
    stalls: FloatArray = field(default_factory=lambda: np.zeros(len(Reason)))
    stepping: float = 0.0
    used: FloatArray = field(default_factory=lambda: np.zeros((len(Reason), 4)))
    needed: float = np.inf
    held: Held | None = None   # what flow control kept from it
    early: dict[str, float] | None = None   # what early binding costs it

    @property
    def waiting(self) -> float:
        """Time in which work waited, at its clients or, while it did not there, in flow control's queue."""
        return float(self.waits.sum() + self.stalls.sum()) + self.flow

    @property
    def flow(self) -> float:
        """Time in which flow control kept requests while none waited at its clients."""
        if self.held is None:
            return 0.0
        alone, at_clients = self.held.alone, float(self.waits.sum() + self.stalls.sum())
        return alone + max(self.held.total - alone - at_clients, 0.0)


def binding_summary(record: RunRecord, window: Window) -> dict[str, Any]:
    """Return `binds` of the summary: `what`, `where` and `share` of the binding resource, `all` that work waited for
    half of the time, and `groups`: for each group of clients `what` binds there, and the shares. `then`: what binds at
    another place, once the first is mended. `bounded_by`: the queue limit, patience or time-outs that keep the queue
    short, and the share of the requests that they turn away; `span_s`: the time in which they did, where it is not the
    window that the shares are of. `dead`: the replica at which requests were lost. `turned_away`: the KV memory that
    requests never fit, and the share of the requests that it rejects; it binds if nothing else does."""
    found = _found(record, window, window.start_ns, window.end_ns)
    if found["what"] in BY_LATENESS:   # the window may lie where nobody is late
        from hermes.results.figures.lost import lost_at, time_of

        span = time_of(record, [row for row, text in record.reject_reasons.items() if lost_at(text)[0] in BY_LATENESS])
        if span is not None:
            again = _found(record, replace(window, kind="lost", stable=True), *span)
            if again["what"] not in BY_LATENESS:
                return again | {"span_s": [at / NS_PER_S for at in span]}
    return found


def _found(record: RunRecord, window: Window, start: int, end: int) -> dict[str, Any]:
    """Return `binding_summary` of a span of time."""
    arrived = record.arrival_ns[record.arrival_ns >= 0]
    span_ns = int(arrived.max() - arrived.min()) if len(arrived) else 0
    burst = 0 < span_ns <= AT_ONCE * (end - start)
    if window.stable is False and span_ns and not burst:
        start, end = int(arrived.min()), int(arrived.max())
    length = max(end - start, 1)
    places = waiting_places(record)
    groups = _groups(record, start, end, places)
    held = held_of(record, client_groups(record.clients), places, start, end)
    for name, group in groups.items():
        group.held = held.get(name)
        group.needed = _needed(record, window, start, end)
        group.early = _bound_early(record, name, group, length)
    found: list[tuple[float, Found]] = []   # the queue, and what binds there
    for name, group in groups.items():
        queue = float_sum(place.mean(start, end) for place in places if place.group == name and place.kind != "link")
        if group.waiting / length >= BINDING_SHARE:
            found.append((queue, _at(record, name, groups, places, start, end)))
    for one in _of_resources(record, start, end):
        links = [place for place in places if place.kind == "link"] if one[0] == "link" else []
        queue = float_sum(place.mean(start, end) for place in links)
        if (one[0], one[1]) not in {(what, where) for _, (what, where, _) in found}:
            found.append((queue, one))
    waited = capacity_wait(record, start, end)
    if waited is not None and waited[0] >= BINDING_SHARE:
        found.append((waited[1], (CAPACITY, "gateway", waited[0])))
    found.sort(key=lambda item: -item[0])
    binds = [one for _, one in found]
    rejected = _rejections(record)
    limit = _turned_away(record, groups, *rejected)
    few = limit is not None and limit[2] < TURNED_AWAY
    growing = [place for place in places if place.grows(start, end)] if window.stable is False else []
    if growing:   # downstream first
        binds = [*(_of_place(record, place, groups, places, start, end) for place in reversed(growing)), *binds]
        binds = [one for at, one in enumerate(binds) if one[:2] not in {before[:2] for before in binds[:at]}]
    elif (window.stable is False or burst) and not binds and groups and not (
            record.calls and limit is not None and limit[1] == "gateway"):
        binds = [_longest(record, groups, places, start, end)]
    elif window.kind == "whole" and binds:   # queues that grow while requests arrive, and are short over the whole run
        span = int(arrived.min()), int(arrived.max())
        late = [_of_place(record, place, groups, places, start, end) for place in places if place.grows(*span)]
        binds += [one for one in late if one[1] not in {where for _, where, _ in binds}]
    early = groups[binds[0][1]].early if binds and binds[0][1] in groups else None
    if early is not None and early["binds"]:
        binds[0] = EARLY, binds[0][1], early["share"]
    if limit is not None and limit[0] == DEAD and not few and binds and (
            1 / max(1 - limit[2], 1e-9) > min(_gain(record, groups, binds[0]), _backlog(record))):
        binds.insert(0, limit)   # what waits is served nevertheless
    bounded = limit is not None and bool(binds) and limit[:2] != binds[0][:2]
    if limit is not None and not binds and not few:
        binds = [_behind_limit(record, limit)]
    never = _never_fits(record, groups, *rejected)
    if never is not None and not binds and len(record.stages["client"]):
        binds = [never]
    once = window.why == "all requests arrive at once" or not len(record.stages["client"])
    what, where, share = binds[0] if binds else ("nothing" if once else "arrivals", None, None)
    if limit is not None and not binds and few:
        what, where, share = limit   # it keeps up with the others
    then = next(({"what": other, "where": place, "share": part} for other, place, part in binds[1:]
                 if place.partition(":")[0] != binds[0][1].partition(":")[0]), None)
    of_groups = {}
    for name, group in groups.items():
        here = next((one[0] for one in binds if one[1] == name), None)
        if here is None and group.waiting / length >= BINDING_SHARE:
            here = _resource(record, name, group)[0]
        of_groups[name] = {
            "clients": len(group.members),
            "what": here or ("arrivals" if group.stepping > 0 and not once else "nothing"),
            "resource": _resource(record, name, group)[0] if group.waiting else None,
            "stepping_share": min(group.stepping / length, 1.0),
            "waiting": {NAMES[Reason(code)]: min(float(ns) / length, 1.0)
                        for code, ns in enumerate(group.waits + group.stalls) if ns > 0},
            **({} if group.held is None else {"held": {
                "share": min(group.held.total / length, 1.0), "limit": group.held.limit}}),
            **({} if group.early is None else {"early": group.early}),
        }
    do = advice(what, where, held)
    return {"what": what, "where": where, "share": share, **({"do": do} if do else {}),
            **({"then": then} if then else {}),
            **({"bounded_by": {"what": limit[0], "share": limit[2]}} if limit is not None and bounded else {}),
            **_dead(record, *rejected),
            **({"turned_away": dict(zip(("what", "where", "share"), never, strict=True))} if never is not None else {}),
            "all": {f"{one} {name}": part for one, name, part in binds}, "groups": of_groups}


# -- time by reason ----------------------------------------------------------------------------------------------------


def _groups(record: RunRecord, start: int, end: int, places: list[Place]) -> dict[str, _Group]:
    """Return the nanoseconds of each group."""
    n = len(record.clients)
    waits, stalls, used = np.zeros((n, len(Reason))), np.zeros((n, len(Reason))), np.zeros((n, len(Reason), 4))
    stepping = np.zeros(n)
    groups = {name: _there(record, members) for name, members in client_groups(record.clients).items()}
    moving = {index: merged(place.begin, place.end) for place in places if place.kind == "memory"
              for index in groups[place.group]}
    for runs in parts(record.runs):
        _add_steps(record, runs, start, end, moving, waits, used)
        inside = _inside(runs["start_ns"], runs["end_ns"], start, end)
        stepping += np.bincount(runs["client"], weights=inside, minlength=n)
    for client, reason, begin, until in record.stalls.tolist():
        stalls[client, reason] += max(min(until, end) - max(begin, start), 0)
    for client in _without_steps(record):
        mine = record.stages["client"] == client
        until, asked = (record.stages[name][mine] for name in ("end_ns", "assigned_ns"))
        begin = np.where(record.started[mine], record.stages["start_ns"][mine], until)
        stepping[client] = covered_ns(np.clip(begin, start, end), np.clip(until, start, end))
        if stepping[client] >= STEPPING * (end - start):
            waits[client, Reason.COMPUTE] = covered_ns(np.clip(asked, start, end), np.clip(begin, start, end))
    found = {}
    for name, members in groups.items():
        number = _serving(record, members, start, end)
        found[name] = _Group(members, waits[members].sum(axis=0) / number, stalls[members].sum(axis=0) / number,
                             float(stepping[members].sum() / number), used[members].sum(axis=0) / number)
    return found


def _there(record: RunRecord, members: list[int]) -> list[int]:
    """Return which of a group's clients were ever ready; all if none was."""
    rows = record.membership
    never = set(rows[:, 0].tolist()) - set(rows[rows[:, 3] == READY, 0].tolist())
    return [index for index in members if index not in never] or members


def _serving(record: RunRecord, members: list[int], start: int, end: int) -> float:
    """Return how many of these clients serve on average, while any does."""
    if not np.isin(members, record.membership[:, 0]).any():
        return float(len(members))
    spans = [spans_in(record, index, SERVES, start, end) for index in members]
    begin, until = (np.concatenate(edges) for edges in zip(*spans, strict=True))
    return max(float((until - begin).sum()) / max(covered_ns(begin, until), 1), 1.0)


def _inside(begin: IntArray, until: IntArray, start: int, end: int) -> IntArray:
    span: IntArray = np.maximum(np.minimum(until, end) - np.maximum(begin, start), 0)
    return span


def _without_steps(record: RunRecord) -> list[int]:
    served = np.bincount(record.stages["client"], minlength=len(record.clients))
    stepping = np.bincount(record.runs["client"], minlength=len(record.clients))
    return np.flatnonzero((served > 0) & (stepping == 0)).tolist()


def _add_steps(record: RunRecord, runs: dict[str, IntArray], start: int, end: int,
               moving: dict[int, tuple[IntArray, IntArray]], waits: FloatArray, used: FloatArray) -> None:
    """Add the time of some runs by the reason for which work waited in it."""
    client, until, reason = runs["client"], runs["end_ns"], runs["stopped"].astype(np.int64)
    whole = _inside(runs["start_ns"], until, start, end).astype(np.float64)
    wait = _inside(until - runs["stopped_ns"], until, start, end).astype(np.float64)
    of = {name: np.array([getattr(info, name) for info in record.clients], dtype=np.int64)[client]
          for name in ("max_num_seqs", "max_num_batched_tokens", "num_blocks")}
    tokens = runs["prefill_tokens"] + runs["decode_seqs"]
    full = (of["max_num_batched_tokens"] > 0) & (tokens >= of["max_num_batched_tokens"]) & (runs["preempted"] == 0)
    reason, wait = np.where(full, int(Reason.TOKEN_BUDGET), reason), np.where(full, whole, wait)
    for index, intervals in moving.items():   # KV that waits for memory here, while no other reason stops
        mine = np.flatnonzero((client == index) & (reason == 0))
        begin = np.clip(runs["start_ns"][mine], start, end)
        covered = overlaps(begin, np.clip(until[mine], start, end), intervals)
        reason[mine], wait[mine] = np.where(covered > 0, int(Reason.KV_MEMORY), 0), covered
    np.add.at(waits, (client, reason), np.where(reason > 0, wait, 0.0))
    shares = [values / np.maximum(limit, 1) for values, limit in (
        (runs["running"], of["max_num_seqs"]), (runs["used_blocks"], of["num_blocks"]),
        (tokens, of["max_num_batched_tokens"]), (runs["waiting"], runs["running"]))]
    for column, share in enumerate(shares):
        np.add.at(used[:, :, column], (client, reason), wait * share)


# -- the resource of a place -------------------------------------------------------------------------------------------


def _of_place(record: RunRecord, place: Place, groups: dict[str, _Group], places: list[Place], start: int, end: int
              ) -> Found:
    if place.kind == "link":
        return _link(record, place, start, end)
    if place.kind == "hop":
        return CAPACITY, place.group, (capacity_wait(record, start, end) or (0.0,))[0]
    return _at(record, place.group, groups, places, start, end)


def _at(record: RunRecord, name: str, groups: dict[str, _Group], places: list[Place], start: int, end: int) -> Found:
    """Return what binds at a group of clients; elsewhere, if its memory is full of KV that cannot leave."""
    group = groups[name]
    what, share, _gain = _resource(record, name, group, (end - start))
    if what == NAMES[Reason.KV_MEMORY] and record.clients[group.members[0]].role == "prefill":
        leaving = [place for place in places if place.kind in ("memory", "link") and place.mean(start, end) > 0]
        held = _held(record, group, leaving, start, end)
        if leaving and float_sum(held) > BINDING_SHARE:
            place = leaving[int(np.argmax(held))]
            return _of_place(record, place, groups, places, start, end)
    if what == NAMES[Reason.TIER]:
        mine = {record.clients[index].name for index in group.members}
        tiers = [tier for tier in record.tiers if mine.intersection(tier.clients)]
        fullest = max(tiers, key=lambda tier: tier.busy_ns, default=None)
        if fullest is not None:
            return what, f"{fullest.name} of {fullest.where}" if fullest.where else fullest.name, share
    if name not in record.step_growth:
        machine = _machine(record, group, start, end)
        if machine is not None:
            return machine
    return what, name, share


def _held(record: RunRecord, group: _Group, leaving: list[Place], start: int, end: int) -> list[float]:
    """Return the share of the group's blocks that sequences hold which wait at each of these places."""
    prompt = float(record.prompt_tokens.mean())
    infos = [record.clients[index] for index in group.members]
    room = sum(info.num_blocks * info.block_size for info in infos)
    return [place.mean(start, end) * prompt / max(room, 1) for place in leaving]


def _resource(record: RunRecord, name: str, group: _Group, length: int = 1) -> _Lack:
    """Return the resource of a group of which twice as much serves most."""
    waits, stalls = group.waits, group.stalls
    share = min(group.waiting / max(length, 1), 1.0)
    growth = record.step_growth.get(name)
    outside = int(stalls.argmax())
    flow = group.flow
    if stalls[outside] > waits.sum() + flow:   # the engine does not run, or its front end is what waits
        return _Lack(NAMES[Reason(outside)], min(float(stalls[outside]) / max(length, 1), 1.0), 2.0)
    if growth is None or not (waits.any() or flow):
        return _Lack(NAMES[Reason.COMPUTE] if group.held is None or not flow else group.held.name, share, 2.0)
    factors = np.where(np.isnan(growth), growth[Reason.NONE], growth)
    double, half = np.nan_to_num(factors[:, 0], nan=2.0), np.nan_to_num(factors[:, 1], nan=0.5)
    whole = waits.sum() + flow
    gains = {Reason.COMPUTE: whole / max(float((waits * half).sum() + flow * half[Reason.NONE]), 1.0)}
    serves: list[Reason] = []
    for reason in DOUBLES:
        ns = waits[reason]
        if ns > 0:
            k, more = _room(group.used[reason] / ns, reason), double[reason] - 1.0
            if reason is Reason.ADAPTERS:
                faster = max(min(2.0, k / (1.0 + (k - 1.0) * more)), 1.0)
            else:
                k = min(k, 2.0)
                faster = k / (1.0 + (k - 1.0) * more)
            gains[reason] = whole / (whole - ns + ns / faster)
            enough = gains[reason] >= group.needed
            if group.needed == 1.0:
                waiting = group.used[reason, 3] / ns + (0.0 if group.held is None else group.held.used[3])
                enough &= reason is not Reason.TOKEN_BUDGET and waiting <= k - 1.0
            if enough:
                serves.append(reason)
    if waits[Reason.HOST_LOAD]:
        gains[Reason.HOST_LOAD] = whole / (whole - waits[Reason.HOST_LOAD] / 2)
    longest = max(gains, key=lambda one: waits[one])
    best = longest if longest in serves else max(gains, key=lambda one: gains[one])
    lacks = share if best is Reason.COMPUTE else min(float(waits[best] + stalls[best]) / max(length, 1), 1.0)
    if group.held is None or not flow:
        return _Lack(NAMES[best], lacks, gains[best])
    return _with_flow(group, group.held, _Lack(NAMES[best], lacks, gains[best]), float(waits[longest]),
                      float(double[0]), float(whole), max(length, 1))


def _with_flow(group: _Group, held: Held, of_engine: _Lack, longest: float, double: float, whole: float, length: int
               ) -> _Lack:
    """Return the resource of a group from which flow control holds requests, and the share of the time.

    Args:
        of_engine: The resource of its engines of which twice as much serves most.
        longest: Nanoseconds for which work waits for the resource that it waits for longest.
        double: Time of a step of twice the work, over its time.
        whole: Nanoseconds in which work waits in steps or in flow control's queue.
    """
    def faster(k: float) -> float:
        return whole / (whole - group.flow + group.flow * (1.0 + (k - 1.0) * (double - 1.0)) / k)

    share = min(group.flow / length, 1.0)
    if held.limit == "no replica":
        return _Lack(held.name, share, 2.0)
    if held.limit == "KV use":   # twice the blocks halve it, as far as slots and tokens allow
        more = faster(min(_room(held.used, Reason.KV_MEMORY), 2.0))
        if more > of_engine.gain:
            of_engine = _Lack(NAMES[Reason.KV_MEMORY], share, more)
    k = min(_room(held.used, Reason.NONE), 2.0)
    own = faster(k)
    enough = own >= group.needed and (group.needed != 1.0 or held.used[3] <= k - 1.0)
    return _Lack(held.name, share, own) if own > of_engine.gain or (enough and group.flow > longest) else of_engine


def _room(used: FloatArray, reason: Reason) -> float:
    """Return by how much a batch may grow with more of a resource before another one stops it."""
    own = {Reason.SLOTS: 0, Reason.KV_MEMORY: 1, Reason.TOKEN_BUDGET: 2}.get(reason)
    others = [share for column, share in enumerate(used[:3]) if column != own and share > 0]
    return float(min((max(1.0 / share, 1.0) for share in others), default=2.0))


def _bound_early(record: RunRecord, name: str, group: _Group, length: int) -> dict[str, float] | None:
    """Return `early` of a group, where it has replicas and work waits; `binds`: It costs more than the resource."""
    if len(group.members) < 2 or group.waiting / length < SOME / len(group.members) \
            or record.clients[group.members[0]].role == "decode":
        return None
    from hermes.results.figures.early_binding import early_binding  # most runs have none

    found = early_binding(record, group.members)
    if found is None:
        return None
    return {**vars(found), "binds": bool(found.gain > _resource(record, name, group).gain)}


def _needed(record: RunRecord, window: Window, start: int, end: int) -> float:
    """Return the served rate that the offered load asks for over the present one: 1 if all is served; infinite if
    requests come at once, or if it is unknown whether the queue grows."""
    if window.stable is None:
        return float(np.inf)
    if window.stable and window.kind != "lost":
        return 1.0
    came = (record.arrival_ns >= start) & (record.arrival_ns <= end)
    served = (record.status == STATUS_COMPLETED) & (record.finish_ns >= start) & (record.finish_ns <= end)
    return max(float(came.sum()) / max(int(served.sum()), 1), 1.0)


def _gain(record: RunRecord, groups: dict[str, _Group], found: Found) -> float:
    """Return what twice of what binds would serve, over what is served now."""
    group = groups.get(found[1])
    return 2.0 if group is None else _resource(record, found[1], group).gain


def _backlog(record: RunRecord) -> float:
    """Return the requests that arrive over those that end while requests arrive: more than 1 if a queue grows."""
    arrived = record.arrival_ns >= 0
    done = record.status == STATUS_REJECTED
    done |= (record.status == STATUS_COMPLETED) & (record.finish_ns <= record.arrival_ns.max())
    return float(arrived.sum()) / max(int(done.sum()), 1)


def _longest(record: RunRecord, groups: dict[str, _Group], places: list[Place], start: int, end: int) -> Found:
    """For a growing queue without a binding resource: return what binds at the longest queue, or at the busiest
    group."""
    if places:
        place = max(places, key=lambda one: one.mean(start, end))
        return _of_place(record, place, groups, places, start, end)
    name = max(groups, key=lambda one: groups[one].stepping)
    return NAMES[Reason.COMPUTE], name, min(groups[name].stepping / max(end - start, 1), 1.0)


def _turned_away(record: RunRecord, groups: dict[str, _Group], arrived: int, texts: list[str]) -> Found | None:
    """Return the limit that turned most requests away, or the lateness or the dead replica that lost most, where, and
    the share of the requests."""
    if not any(texts):
        return None
    from hermes.results.figures.lost import lost_at  # most runs lose none

    limits = [text for text in texts if "max_num_queued_" in text]
    found: list[Found] = []
    if limits:
        found.append((NAMES[Reason.QUEUE_LIMIT], _group_in(limits[0], record, groups), len(limits) / arrived))
    found.append(turns_away(texts, arrived))
    lost = Counter(one for one in map(lost_at, texts) if one[0])
    by_what = {what: [(number, name) for (one, name), number in lost.most_common() if one == what]
               for what in (DEAD, DRAINS, LATE, NAMES[Reason.PATIENCE])}
    busiest = max(groups, key=lambda one: groups[one].stepping)
    found += [(what, _group_in(mine[0][1], record, groups) if what in (DEAD, DRAINS) else busiest,
               sum(number for number, _ in mine) / arrived) for what, mine in by_what.items() if mine]
    most = max(found, key=lambda one: one[2])
    return most if most[2] else None


def _dead(record: RunRecord, arrived: int, texts: list[str]) -> dict[str, dict[str, str | float]]:
    """Return `dead`: the replica at which most requests were lost, and the share of the requests; else nothing."""
    if not any(texts):
        return {}
    from hermes.results.figures.lost import dead_replica, lost_at

    lost = [text for text in texts if lost_at(text)[0] == DEAD]
    return {"dead": dead_replica(record, lost) | {"share": len(lost) / arrived}} if lost else {}


def _never_fits(record: RunRecord, groups: dict[str, _Group], arrived: int, texts: list[str]) -> Found | None:
    """Return the KV memory that is too small for many requests, where, and the share of the requests."""
    large = [text for text in texts if any(part in text for part in NEVER_FITS)]
    if len(large) / arrived < TURNED_AWAY:
        return None
    [(most, _)] = Counter(text.partition(":")[0] for text in large).most_common(1)
    return NAMES[Reason.KV_MEMORY], _group_in(most, record, groups), len(large) / arrived


def _rejections(record: RunRecord) -> tuple[int, list[str]]:
    """Return the number of requests that arrived, at least 1, and the reasons of the rejected ones."""
    rows = np.flatnonzero(record.status == STATUS_REJECTED)
    return max(int((record.arrival_ns >= 0).sum()), 1), [record.reject_reasons.get(int(row), "") for row in rows]


def _group_in(text: str, record: RunRecord, groups: dict[str, _Group]) -> str:
    """Return the group of the client whose name begins the reason of a rejection."""
    client = text.removeprefix("overloaded: ").partition(":")[0]
    return next((name for name, group in groups.items()
                 if client in {record.clients[index].name for index in group.members}), client)


def _behind_limit(record: RunRecord, limit: Found) -> Found:
    """Return what binds where no client is full: the limit, or the compute that a longer queue could not raise."""
    what, name, share = limit
    growth = record.step_growth.get(name)
    if what == NAMES[Reason.QUEUE_LIMIT] and growth is not None \
            and growth[Reason.NONE, 0] / 2 > growth[Reason.NONE, 1]:
        return NAMES[Reason.COMPUTE], name, share
    return limit


# -- links, tiers, machines --------------------------------------------------------------------------------------------


def _link(record: RunRecord, place: Place, start: int, end: int) -> Found:
    """Return the link that work on its way to a place waits for: the fullest one."""
    full = [one for one in _of_resources(record, start, end, at_least=0.0) if one[0] == "link"]
    if full:
        return max(full, key=lambda one: one[2])
    return "link", f"to {place.group}", min(place.mean(start, end), 1.0)


def _machine(record: RunRecord, group: _Group, start: int, end: int) -> Found | None:
    """Return the memory bandwidth of a group's machines, if they use it more than their cores."""
    length = max(window_ns(record)[1] - window_ns(record)[0], 1)
    mine = [machine for machine in record.machines if machine.client in group.members]
    bandwidth = float_sum(machine.bandwidth_ns for machine in mine) / max(len(mine), 1) / length
    if not mine or bandwidth <= THRESHOLD or bandwidth <= (
            float_sum(machine.core_ns for machine in mine) / len(mine) / length):
        return None
    return "machine", f"{record.clients[mine[0].client].name}: memory bandwidth", min(bandwidth, 1.0)


def _of_resources(record: RunRecord, start: int, end: int, at_least: float | None = None) -> list[Found]:
    """Return links and tiers that were full, and machines that were used up."""
    found: list[Found] = []
    if not (record.links or record.tiers or record.machines):
        return found
    whole = window_ns(record)
    length = max(whole[1] - whole[0], 1) / NS_PER_S
    links = {use.name: use for use in record.links} | {
        (f"{tier.name} of {tier.where}" if tier.where else tier.name): tier.link
        for tier in record.tiers if tier.link is not None}
    for use in resource_uses(record):
        if use.kind == "client":
            continue
        share = use.utilisation
        link = links.get(use.name) if use.kind in ("link", "tier") else None
        if link is not None:
            share = use.full_s / length
            if link.times_ns and end > start:
                sent = np.interp([start, end], link.times_ns, np.maximum.accumulate(link.sent_bytes))
                used = float(sent[1] - sent[0]) / (link.bandwidth * (end - start) / NS_PER_S)
                share = max(share, used if used > THRESHOLD else 0.0)
        enough = (FULL if link is not None else THRESHOLD) if at_least is None else at_least
        if share >= enough:
            found.append((use.kind, use.name, min(share, 1.0)))
    return found
