"""What requests wait for at a gateway: its capacity, or the limits of flow control, and what to do about it.

Flow control keeps requests until the pool has room. If the engines have work waiting meanwhile, or could hardly do
more, their resource binds, wherever the requests wait; if they could, what binds is the limit that flow control goes
by (`HALT_LIMITS`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.reasons import CAPACITY, EARLY, FLOW_CONTROL, NO_REPLICA
from hermes.core.record import HALT_LIMITS, RunRecord
from hermes.results.figures.waiting import Place, merged, overlaps
from hermes.sums import float_sum

__all__ = ["LATER", "WHAT_TO_DO", "Held", "advice", "capacity_wait", "held_of", "turns_away"]

_DETECTOR = "gateway.flow_control.detector"
WHAT_TO_DO = {
    "cycle": "shorten gateway.flow_control.cycle", "in flight": f"raise {_DETECTOR}.limit",
    "queue depth": f"raise {_DETECTOR}.queue, or shorten its scrape",
    "KV use": f"raise {_DETECTOR}.kv", "stale": f"raise {_DETECTOR}.stale",
    "no replica": "have a replica ready earlier", "ceiling": "raise the ceiling of its class in gateway.classes",
}
"""By the limit that holds requests while the engines have room."""
LATER = "bind late: gateway.flow_control holds requests until a replica has room"
# what begins the reasons of requests that a gateway turns away -> what binds, and what to do
_AWAY = (
    ("shed: band ", "queue limit", "raise max or max_bytes of gateway.flow_control or of its band, or add replicas"),
    ("shed: the queue holds ", "queue limit", "raise gateway.flow_control.total or total_bytes, or add replicas"),
    ("shed: the tenant's ", "tenant budget", "raise the budget in gateway.tenants"),
    ("shed: the pool is full", "admission", "raise the limits of gateway.admission.detector, or add replicas"),
    ("limited: ", CAPACITY, "raise gateway.capacity, replicas or backlog"),
    ("expired: not dispatched", "time to live", "raise gateway.flow_control.ttl, or add replicas"),
    ("expired: no replica was ready", NO_REPLICA, "have a replica ready earlier, or raise gateway.queue.ttl"),
    ("unavailable: ", NO_REPLICA, "have a replica ready earlier, or let the gateway wait for one (gateway.queue)"),
)


@dataclass(frozen=True)
class Held:
    """Nanoseconds of a window in which flow control kept requests from a group of clients.

    Attributes:
        by_limit: By `HALT_LIMITS`.
        total: Of all of them.
        used: Shares of slots, of blocks and of tokens that the steps used, and requests held for each running one.
    """

    by_limit: FloatArray
    total: float
    used: FloatArray

    @property
    def limit(self) -> str:
        """The limit that kept requests for the longest time."""
        return HALT_LIMITS[int(self.by_limit.argmax())]

    @property
    def alone(self) -> float:
        """Of it, the time in which no replica was ready: none can be full then."""
        return float(self.by_limit[HALT_LIMITS.index("no replica")])

    @property
    def name(self) -> str:
        """What binds if the limit does."""
        return NO_REPLICA if self.limit == "no replica" else FLOW_CONTROL


def held_of(record: RunRecord, groups: dict[str, list[int]], places: list[Place], start: int, end: int
            ) -> dict[str, Held]:
    """Return what a gateway held from each group of clients; without the groups from which it held nothing. Of several
    gateways the mean. Without flow control, what waited for a ready replica."""
    waits = [place for place in places if place.kind == "held"]
    if not waits:
        return {}
    gateways = len(np.unique(record.calls["gateway"]))
    out = {}
    for name, members in groups.items():
        calls = [place for place in waits if place.group == name]
        begin, until, limit = _halts(record, members, calls)
        begin, until = np.clip(begin, start, end), np.clip(until, start, end)
        if not (until > begin).any():
            continue
        by_limit = np.bincount(limit, weights=until - begin, minlength=len(HALT_LIMITS)) / gateways
        out[name] = Held(by_limit, float(by_limit.sum()), _used(record, members, merged(begin, until), calls))
    return out


def _halts(record: RunRecord, members: list[int], calls: list[Place]) -> tuple[IntArray, IntArray, IntArray]:
    """Return spans in which something was held from a group, and for which limit."""
    if record.halts:
        mine = np.isin(record.halts["client"], members)
        begin, end, limit = (record.halts[name][mine] for name in ("begin_ns", "end_ns", "limit"))
        return begin, np.where(end < 0, record.end_ns, end), limit
    if not calls:
        return (np.zeros(0, dtype=np.int64),) * 3
    begin, end = merged(np.concatenate([place.begin for place in calls]),
                        np.concatenate([np.minimum(place.end, record.end_ns) for place in calls]))
    return begin, end, np.full(len(begin), HALT_LIMITS.index("no replica"))


def _used(record: RunRecord, members: list[int], spans: tuple[IntArray, IntArray], calls: list[Place]) -> FloatArray:
    """Return the shares of their limits that the steps of a group used in some spans, and how many requests were held
    for each running one."""
    runs, infos = record.runs, record.clients
    mine = np.flatnonzero(np.isin(runs["client"], members))
    spent = overlaps(runs["start_ns"][mine], runs["end_ns"][mine], spans)
    whole = max(float(spent.sum()), 1.0)
    out = []
    tokens = runs["prefill_tokens"][mine] + runs["decode_seqs"][mine]
    for values, limit in ((runs["running"][mine], "max_num_seqs"), (runs["used_blocks"][mine], "num_blocks"),
                          (tokens, "max_num_batched_tokens")):
        most = np.array([max(getattr(info, limit), 1) for info in infos])[runs["client"][mine]]
        out.append(float((values / most * spent).sum()) / whole)
    running = float((runs["running"][mine] * spent).sum())
    held = float_sum(float(overlaps(place.begin, np.minimum(place.end, record.end_ns), spans).sum()) for place in calls)
    return np.array([*out, held / max(running, 1.0)])


def capacity_wait(record: RunRecord, start: int, end: int) -> tuple[float, float] | None:
    """Return the share of a window in which calls waited for a gateway's capacity, mean of the gateways, and how many
    did on average; None if none ever waited."""
    calls = record.calls
    if not calls or not (calls["served_ns"] > calls["asked_ns"]).any():
        return None
    begin, until = np.clip(calls["asked_ns"], start, end), np.clip(calls["served_ns"], start, end)
    until = np.maximum(begin, until)
    window: tuple[IntArray, IntArray] = np.array([start]), np.array([max(end, start + 1)])
    gateways = np.unique(calls["gateway"]).tolist()
    covered = 0.0
    for gateway in gateways:
        mine = calls["gateway"] == gateway
        covered += float(overlaps(*window, merged(begin[mine], until[mine]))[0])
    length = max(end - start, 1)
    return covered / len(gateways) / length, float((until - begin).sum()) / length


def turns_away(texts: list[str], arrived: int) -> tuple[str, str, float]:
    """Return what made a gateway turn most requests away, "gateway", and their share. texts: Reasons of rejections."""
    number, what = max(((sum(begins in text for text in texts), what) for begins, what, _do in _AWAY),
                       key=lambda one: one[0])
    return what, "gateway", number / arrived


def advice(what: str, where: str | None, held: dict[str, Held]) -> str:
    """Return what to do about what binds, where requests wait at the gateway for it; "" where they do not."""
    if what == CAPACITY:
        return "raise gateway.capacity or gateway.replicas"
    if where == "gateway":
        return next((do for _begins, name, do in _AWAY if name == what), "")
    mine = held.get(where or "")
    if what == EARLY:
        return LATER if mine is None else f"lower the limits of {_DETECTOR}"
    if mine is None:
        return ""
    if what in (FLOW_CONTROL, NO_REPLICA):
        return WHAT_TO_DO[mine.limit]
    return "the engines are full: add replicas"
