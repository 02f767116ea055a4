"""Fairness between the tenants of a band: from whose queue a gateway's flow control takes the next request.

A `Flow` holds the waiting calls of one tenant in one band, in the order of the band. A policy picks one of the flows
that hold something. Each band has a policy of its own; `Service` (what tenants have been served) is one for all bands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

from hermes.core.client import Client

if TYPE_CHECKING:
    from hermes.gateway.calls import Call

__all__ = ["DeficitRoundRobin", "Fairness", "Flow", "GlobalStrict", "Held", "LeastService", "RoundRobin", "Service"]

NS_PER_MS = 1_000_000


class Held:
    """A call that waits unplaced.

    Attributes:
        call, members: The call, and the clients that may serve it, a list that changes.
        number: Position among all calls that were ever held.
        tenant, priority: Of its request.
        asked_ns: When it was queued.
        clock_ns: When its time to live began; later than `asked_ns` if the pool has become empty or non-empty since.
        ttl_ns: Its time to live.
        order: What its flow is ordered by; the number decides between equal ones.
        tokens: Prompt tokens.
        num_bytes: What it counts for the limit of its band.
        row: In the record.
        waits: Whether it is still queued.
    """

    __slots__ = ("asked_ns", "call", "clock_ns", "members", "num_bytes", "number", "order", "priority", "row", "tenant",
                 "tokens", "ttl_ns", "waits")

    def __init__(self, call: Call, members: list[Client], number: int, tenant: int, priority: int, asked_ns: int,
                 ttl_ns: int, tokens: int, num_bytes: int) -> None:
        self.call, self.members, self.number = call, members, number
        self.tenant, self.priority = tenant, priority
        self.asked_ns = self.clock_ns = asked_ns
        self.ttl_ns, self.tokens, self.num_bytes = ttl_ns, tokens, num_bytes
        self.order = 0
        self.row = -1
        self.waits = True


class Flow:
    """The waiting calls of a tenant in a band."""

    __slots__ = ("_heap", "count", "tenant")

    def __init__(self, tenant: int) -> None:
        self.tenant, self.count = tenant, 0
        self._heap: list[tuple[int, int, Held]] = []

    def add(self, held: Held) -> None:
        """Queue a call by its order."""
        heappush(self._heap, (held.order, held.number, held))
        self.count += 1

    def left(self) -> None:
        """One of its calls does not wait any more; others leave by the end of the queue, and would stay in the heap."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + 16:
            self._heap = [each for each in self._heap if each[2].waits]
            heapify(self._heap)

    def head(self) -> Held:
        """Return the first call that still waits; there is one."""
        heap = self._heap
        while not heap[0][2].waits:
            heappop(heap)
        return heap[0][2]


class Fairness(Protocol):
    """Picks the flow of a band from which the next call leaves. Called with flows that hold something, by tenant."""

    def pick(self, flows: Sequence[Flow], now_ns: int) -> Flow:
        """Return one of the flows; its head leaves at once."""
        ...

    def filled(self, flow: Flow, now_ns: int, *, first: bool) -> None:
        """A flow holds something again. first: No other flow of the band does."""
        ...

    def emptied(self, flow: Flow, now_ns: int) -> None:
        """A flow holds nothing any more."""
        ...

    def served(self, tenant: int, output_tokens: int) -> None:
        """A call of a tenant is complete."""
        ...


class _Plain:
    """A policy that remembers nothing."""

    def filled(self, flow: Flow, now_ns: int, *, first: bool) -> None:
        """See `Fairness`."""

    def emptied(self, flow: Flow, now_ns: int) -> None:
        """See `Fairness`."""

    def served(self, tenant: int, output_tokens: int) -> None:
        """See `Fairness`."""


class GlobalStrict(_Plain):
    """The best head over all flows, as if the band had one queue."""

    def pick(self, flows: Sequence[Flow], now_ns: int) -> Flow:
        """See `Fairness`."""
        return min(flows, key=lambda flow: (flow.head().order, flow.head().number))


class RoundRobin(_Plain):
    """The tenants in turn, by name. The turn begins anew when a tick of the gateway finds the band empty."""

    def __init__(self, cycle_ns: int) -> None:
        self._cycle_ns, self._last, self._emptied_ns = cycle_ns, -1, 0

    def pick(self, flows: Sequence[Flow], now_ns: int) -> Flow:
        """See `Fairness`."""
        found = next((flow for flow in flows if flow.tenant > self._last), flows[0])
        self._last = found.tenant
        return found

    def filled(self, flow: Flow, now_ns: int, *, first: bool) -> None:
        """See `Fairness`."""
        if first and now_ns // self._cycle_ns > self._emptied_ns // self._cycle_ns:
            self._last = -1

    def emptied(self, flow: Flow, now_ns: int) -> None:
        """See `Fairness`."""
        self._emptied_ns = now_ns


@dataclass
class Service:
    """What each tenant has been served, in weighted tokens that halve in `half_life_ns`, whatever the tenant asks for.

    Attributes:
        output_weight: Tokens of a prompt that an output token counts for.
        tokens, since_ns: Of each tenant, and when they were so many.
    """

    half_life_ns: int
    output_weight: float
    tokens: dict[int, float] = field(default_factory=dict)
    since_ns: dict[int, int] = field(default_factory=dict)

    def of(self, tenant: int, now_ns: int) -> float:
        """Return what is left of a tenant's service."""
        age_ns = now_ns - self.since_ns.get(tenant, 0)
        return self.tokens.get(tenant, 0.0) * float(0.5 ** (age_ns / self.half_life_ns))

    def served(self, tenant: int, prompt_tokens: int, output_tokens: int, now_ns: int) -> None:
        """Add a call that is complete."""
        self.tokens[tenant] = self.of(tenant, now_ns) + prompt_tokens + self.output_weight * output_tokens
        self.since_ns[tenant] = now_ns


class LeastService(_Plain):
    """llm-d's least attained service: the highest sum of two scores, each from 0 to 1 over the flows: little service,
    and a head that has waited for long (in whole milliseconds). Ties go to the first tenant by name."""

    def __init__(self, service: Service, service_weight: float, wait_weight: float) -> None:
        self._service, self._service_weight, self._wait_weight = service, service_weight, wait_weight

    def pick(self, flows: Sequence[Flow], now_ns: int) -> Flow:
        """See `Fairness`."""
        served = _scaled([self._service.of(flow.tenant, now_ns) for flow in flows])
        waited = _scaled([float((now_ns - flow.head().asked_ns) // NS_PER_MS) for flow in flows])
        scores = [self._service_weight * (1.0 - have) + self._wait_weight * wait
                  for have, wait in zip(served, waited, strict=True)]
        return flows[scores.index(max(scores))]


def _scaled(values: Sequence[float]) -> list[float]:
    """Return values as shares of their range; zeros if they are equal."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


class DeficitRoundRobin:
    """Deficit round robin (Shreedhar and Varghese, 1995) over weighted tokens.

    The flows take turns in the order in which they began to wait. A turn gives a flow its quantum, the policy's times
    the tenant's weight, and lasts while the flow's credit covers the prompt at its head. A prompt is paid when it
    leaves, its output when it is complete: until then nobody knows its length. A flow that is empty keeps debts and no
    credit.
    """

    def __init__(self, quantum: int, output_weight: float, weights: Sequence[float]) -> None:
        self._quantum = [quantum * weight for weight in weights]
        self._output_weight = output_weight
        self._credit = [0.0] * len(weights)
        self._turns: deque[Flow] = deque()
        self._granted = False

    def pick(self, flows: Sequence[Flow], now_ns: int) -> Flow:
        """See `Fairness`."""
        turns, credit, passed = self._turns, self._credit, 0
        while True:
            flow = turns[0]
            tenant, cost = flow.tenant, flow.head().tokens
            if not self._granted:
                credit[tenant] += self._quantum[tenant]
                self._granted = True
            if credit[tenant] >= cost:
                credit[tenant] -= cost
                return flow
            turns.rotate(-1)
            self._granted = False
            passed += 1
            if passed == len(turns):   # nobody could pay in a whole round: go on to the last round before someone can
                rounds = min(self._rounds_left(turns))
                for each in turns:
                    credit[each.tenant] += rounds * self._quantum[each.tenant]
                passed = 0

    def _rounds_left(self, turns: Iterable[Flow]) -> list[int]:
        return [max(int(-(-(flow.head().tokens - self._credit[flow.tenant]) // self._quantum[flow.tenant])) - 1, 0)
                for flow in turns]

    def filled(self, flow: Flow, now_ns: int, *, first: bool) -> None:
        """See `Fairness`."""
        self._turns.append(flow)

    def emptied(self, flow: Flow, now_ns: int) -> None:
        """See `Fairness`."""
        if self._turns[0] is flow:
            self._granted = False
        self._turns.remove(flow)
        self._credit[flow.tenant] = min(self._credit[flow.tenant], 0.0)

    def served(self, tenant: int, output_tokens: int) -> None:
        """See `Fairness`."""
        self._credit[tenant] -= self._output_weight * output_tokens
