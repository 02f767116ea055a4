"""The early end of a simulation that certainly misses its SLO.

A limit at the 99th percentile of N requests is missed once more than 1% of all N are late, however the others fare. A
request that waits is late as soon as it has waited longer than the limit, and one that decodes as soon as its tokens
cannot be on time any more. So the verdict of the whole run is known.

A search may lengthen a run that has not settled (`hermes.explore.lengthening`), unless requests of the second half of
its arrivals miss a limit for certain. So the simulation goes on until that holds too, of the arrivals so far. Only then
is it ended, and its figures are those of a part. A search that ends such runs does not learn from them how long
arrivals must be for others to settle: those begin shorter, and are lengthened where they have not settled.

Judged are requests of one generation each, without what offers them again or ends the run early (`certain_miss`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hermes.core.client import Client
from hermes.core.clock import SETTLED, Tick
from hermes.core.generation import Generation, token_delay_ns
from hermes.core.record import STATUS_REJECTED
from hermes.core.request import Request
from hermes.core.stage import Stage
from hermes.dispatch.coordinator import Coordinator
from hermes.dispatch.parts import DispatchPart
from hermes.explore.sweep.figures import Scalar
from hermes.results.figures.settling import share_beyond
from hermes.results.slo import METRICS
from hermes.scenario import Scenario
from hermes.units import NS_PER_S

__all__ = ["BY_FAR", "CERTAIN", "CertainMiss", "certain_miss"]

CERTAIN, BY_FAR = 1.0, 3.0   # times the share that may be beyond a limit, which the low end of its interval passes
CHECKS = 200    # of a whole run
UNKNOWN, ON_TIME, LATE = 0, 1, 2


def certain_miss(scenario: Scenario, times: float) -> CertainMiss | None:
    """Return the part that ends a scenario's simulation; None where a verdict is not known before its end.

    times: See `CertainMiss`; 0 for none.
    """
    if not times:
        return None
    slo = scenario.slo
    limits = {metric: limit for metric in METRICS if (limit := getattr(slo, metric)) is not None}
    plain = all(one.pipeline == "plain" and one.branches == 1 and one.retry is None for one in scenario.workload)
    fixed = all(client.value_of("fleet") is None for client in scenario.clients)
    if not limits or slo.pipelines or slo.workloads or not plain or not fixed:
        return None
    if scenario.horizon is not None or scenario.gateway is not None or scenario.measure is not None:
        return None
    return CertainMiss(limits, slo.percentile, times)


class _Open:
    """A request under way, the generation that serves it, the client that has it, and when it may be late at first."""

    __slots__ = ("client", "due_ns", "request", "seq")

    def __init__(self, request: Request, due_ns: float) -> None:
        self.request, self.due_ns = request, due_ns
        self.seq: Generation | None = None
        self.client: Client | None = None


class CertainMiss(DispatchPart):
    """See the module's docstring.

    Args:
        limits: Metric (`ttft`, `tpot`, `e2e`) -> seconds.
        percentile: At which they hold.
        times: By how much the second half of the arrivals must miss a limit: `CERTAIN`, or `BY_FAR`, by more than other
            seeds could change.

    Attributes:
        found: Metric that is missed, once that is certain.
        late: Requests that missed it by then.
        by_far: Whether it was missed `BY_FAR`.
        at_ns: When.
    """

    def __init__(self, limits: Mapping[str, float], percentile: float, times: float) -> None:
        self.limits, self.percentile, self.times = dict(limits), percentile, times
        self.found, self.late, self.at_ns, self.by_far = "", 0, -1, False
        self._open: dict[int, _Open] = {}
        self._until_check = 0

    def attach(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.total = coordinator.unfinished
        # in a sample of n, the percentile lies on a late request if all but `floor(q * (n - 1))` are late; n is at most
        # `total`, and one request more is asked for, in place of an analysis of rounding
        self.need = self.total - math.floor(self.percentile / 100 * (self.total - 1)) + 1
        self._every = self._until_check = max(self.total // CHECKS, 1)
        self._state = {metric: bytearray(self.total) for metric in self.limits}
        self._judged = [(metric, limit, self._state[metric]) for metric, limit in self.limits.items()]
        self._whole_ns = NS_PER_S * min((self.limits[name] for name in self.limits if name != "tpot"), default=math.inf)
        self._token_ns = NS_PER_S * self.limits.get("tpot", math.inf)
        self._count = dict.fromkeys(self.limits, 0)
        self._ask_again = dict.fromkeys(self.limits, self.need)

    def figures(self) -> dict[str, Scalar]:
        """Return the figures of a run that was ended, in place of those that a part of it has; none of a whole run.

        A row with `stopped.at_s` is of a part: no latency or rate in it is one of the scenario.
        """
        if not self.found:
            return {}
        return {"requests.total": self.total, "slo.pass": False, "settling.settled": None,
                "settling.late_misses": True, "stopped.at_s": self.at_ns / NS_PER_S,
                "stopped.by_far": self.by_far, "stopped.metric": self.found,
                "stopped.percentile": self.percentile, "stopped.limit_s": self.limits[self.found],
                "stopped.late": self.late, "stopped.of": self.total}

    # -- hooks -------------------------------------------------------------------------------------------------------

    def arrived(self, request: Request) -> None:
        tokens, due_ns = request.output_tokens, self._whole_ns
        decoded_ns = self._token_ns * (tokens - 1 if tokens > 2 else 1)
        self._open[request.id] = _Open(request, request.arrival_ns + (decoded_ns if decoded_ns < due_ns else due_ns))
        self._until_check -= 1
        if not self._until_check:
            self._check()

    def begins(self, stage: Stage, client: Client) -> None:
        if isinstance(stage, Generation):
            one = self._open[stage.request.id]
            one.seq, one.client = stage, client

    def moved(self, stage: Generation, twin: Generation, target: Client) -> None:
        one = self._open[stage.request.id]
        one.seq, one.client = twin, target

    def finished(self, request: Request) -> None:
        one, coordinator = self._open.pop(request.id), self.coordinator
        if coordinator.status[request.id] == STATUS_REJECTED:
            for metric, _, states in self._judged:
                if states[request.id] == UNKNOWN:
                    states[request.id] = LATE
                    self._count[metric] += 1
        else:
            self._look(one, coordinator.env._now, over=True)
        self._until_check -= 1
        if not self._until_check:
            self._check()

    # -- lateness ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.found:
            return
        self._until_check, now = self._every, self.coordinator.env._now
        for one in self._open.values():
            if one.due_ns <= now:
                self._look(one, now, over=False)
        for metric, count in self._count.items():
            if count >= self._ask_again[metric]:
                for one in self._open.values():   # those on time as well
                    self._look(one, now, over=False)
                beyond = self._lasting(metric, now)
                if beyond > self.times:
                    self.by_far = beyond > BY_FAR
                    self.found, self.late, self.at_ns = metric, count, now
                    self.coordinator.env.tick_at(now, SETTLED, self._end)
                    return
                self._ask_again[metric] = count + count // 4 + 1

    def _end(self, tick: Tick) -> None:
        self.coordinator.env.halt()

    def _look(self, one: _Open, now: int, *, over: bool) -> None:
        """Note what is known of a request. over: Whether it is completed now, when its user has the last token."""
        since, number, seq = one.request.arrival_ns, one.request.id, one.seq
        first, due_ns = self._first_ns(seq, one.client), math.inf
        for metric, limit, states in self._judged:
            if states[number]:
                continue
            begins, spans, known = since, 1, over
            if metric == "tpot":
                begins, beyond = now if first is None else first, False
                if seq is not None and seq.output_tokens > 1:
                    spans = seq.output_tokens - 1
                    beyond = (now - begins) / spans / NS_PER_S > limit   # 0 before the first token
            elif metric == "ttft":
                known = first is not None
                beyond = ((now if first is None else first) - since) / NS_PER_S > limit
            else:
                beyond = (now - since) / NS_PER_S > limit
            if beyond:
                states[number] = LATE
                self._count[metric] += 1
            elif known:
                states[number] = ON_TIME
            else:
                late_ns = begins + spans * limit * NS_PER_S
                due_ns = late_ns if late_ns < due_ns else due_ns
        one.due_ns = due_ns

    def _first_ns(self, seq: Generation | None, client: Client | None) -> int | None:
        """Return when the user has the first token of a generation; None before its client has computed it."""
        if seq is not None and seq.given:   # by the client that computed its prompt
            client, seq = seq.source, seq.prefill
        if seq is None or client is None or seq.first_token_ns < 0 or (
                seq.hands_over and not self.coordinator.prefill_gives):
            return None
        return seq.first_token_ns + token_delay_ns(client, seq.first_step)

    def _lasting(self, metric: str, now: int) -> float:
        """Return how many times the allowed share of the requests of the second half of the arrivals so far is beyond a
        limit for certain. Those that are still open have no verdict yet: the half ends before the first of them."""
        arrival = self.coordinator.arrivals.times_ns
        state = np.frombuffer(self._state[metric], dtype=np.int8)
        came = (arrival >= 0) & (arrival <= now)
        undecided = came & (state == UNKNOWN)
        first = int(arrival[came].min())
        end = int(arrival[undecided].min()) - 1 if undecided.any() else int(arrival[came].max())
        middle = (first + end) // 2
        inside = came & (arrival > middle) & (arrival <= end)
        if not inside.any():
            return 0.0
        allowed = 1.0 - self.percentile / 100
        found = share_beyond(state[inside] == LATE, arrival[inside], middle, end, allowed)
        return found.low / max(found.allowed, 1e-12)   # none may be beyond a limit of the 100th percentile
