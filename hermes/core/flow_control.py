"""Flow control at a gateway: requests wait unplaced until the pool has room, and are routed with the view of then.

The rules are those of llm-d's router (commit ebab687). A call waits in the band of its priority, in the flow of its
tenant. A *cycle* runs when a call is queued, and at every multiple of `cycle_ns` while one waits. It goes through the
bands from the highest priority on: one whose ceiling the saturation of the pool has reached ends the cycle, and so
halts all bands below it; otherwise the band's policy picks a flow, whose first call leaves. So one call leaves in a
cycle at most. Between two scrapes the saturation does not change, and calls leave at each cycle.

No event is made for cycles in which nothing can happen: while the pool is saturated, the next one is that after the
first scrape that may show something else.

Engines that share no client have flow control of their own (`_Pool`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from hermes.arrays import IntArray
from hermes.core.client import Client
from hermes.core.clock import DISPATCH, EXPIRY, Clock, Tick
from hermes.core.fairness import Call, Fairness, Flow, Held, Service
from hermes.core.record import HELD_FIELDS
from hermes.core.saturation import Pools, Saturation, Wake
from hermes.core.scraped import NEVER

__all__ = ["Band", "Budget", "Classes", "FlowControl", "FlowPolicy", "Revoking"]

WAITING, SENT, REFUSED, EXPIRED, GIVEN_UP = range(5)   # `HELD_OUTCOMES`


@dataclass(frozen=True)
class Classes:
    """Tenants and classes of requests, by the number of the request. Those of no class have number 0.

    Attributes:
        tenant, kind: Number of the tenant and of the class of each request.
        priorities: Of each class; higher is served first.
        ceilings: Saturation at which the band of each class is halted.
        ttft_ns: Deadline of the first token from the arrival on; None for none.
        ttl_ns: Time to live of each class in the queue.
    """

    tenant: Sequence[int]
    kind: Sequence[int]
    priorities: Sequence[int]
    ceilings: Sequence[float]
    ttft_ns: Sequence[int | None]
    ttl_ns: Sequence[int]


class Budget:
    """Tokens that a tenant may use in each window of time: prompts and outputs of calls that are complete. A call that
    comes when they are used up is refused; those in flight go on, so that more may be used.

    Args:
        tokens: Of a window.
        window_ns: Length of the windows, which begin at multiples of it.
    """

    def __init__(self, tokens: int, window_ns: int) -> None:
        self.tokens, self.window_ns = tokens, window_ns
        self._window, self._used = 0, 0

    def used(self, now_ns: int, tokens: int = 0) -> int:
        """Add tokens, and return those that have been used in the present window."""
        window = now_ns // self.window_ns
        if window != self._window:
            self._window, self._used = window, 0
        self._used += tokens
        return self._used


@dataclass(frozen=True)
class Revoking:
    """Revoking of running requests of lower bands.

    Attributes:
        most: Most of them in a decision.
        below: Only requests of a lower priority than this.
        grace_ns: Time from a decision to the next.
    """

    most: int
    below: int
    grace_ns: int


@dataclass(frozen=True)
class FlowPolicy:
    """Rules of flow control.

    Attributes:
        order: Returns what the calls of a flow are ordered by, the least first.
        fairness: Makes the policy of a band.
        service: What tenants have been served; None where no policy asks.
        saturation: Makes the detector of a pool from its lists, all its clients, the attempts in flight at each client
            (by its index), and `wake`.
        holds: Whether calls wait here. Without, only `admission` applies: a call of a negative priority is refused
            while the saturation is 1 or more, and all others pass.
        budgets: Of tenants that have one, by their number.
        most, most_bytes: Limits of a band.
        token_bytes: Bytes of a prompt token.
    """

    order: Callable[[Held, Classes], int]
    fairness: Callable[[], Fairness]
    service: Service | None
    saturation: Callable[[Pools, Sequence[Client], dict[int, int], Wake], Saturation]
    holds: bool
    cycle_ns: int
    scan_ns: int
    most: int
    most_bytes: int
    token_bytes: int
    revoking: Revoking | None
    budgets: Mapping[int, Budget]


class Running(Protocol):
    """An attempt that a client has: its number, its call, and the client."""

    id: int
    client: Client

    @property
    def call(self) -> Call: ...


class Sender(Protocol):
    """Methods of the gateway that flow control calls."""

    # Any: a `Call` of the gateway's own type

    def send(self, call: Any) -> None:
        """Dispatch a call that has left the queue."""
        ...

    def refuse(self, call: Any, reason: str, fate: str) -> None:
        """Answer a request with an error."""
        ...

    def running(self) -> Sequence[Running]:
        """Return the attempts that a client has and somebody waits for, in order of their numbers."""
        ...

    def revoke(self, number: int, reason: str) -> None:
        """Cancel an attempt and answer its request with an error."""
        ...


class Band:
    """The calls of one priority."""

    def __init__(self, priority: int, ceiling: float, fairness: Fairness) -> None:
        self.priority, self.ceiling, self.fairness = priority, ceiling, fairness
        self.count = self.num_bytes = 0
        self._flows: dict[int, Flow] = {}
        self._filled: list[Flow] = []   # those that hold something, by tenant

    def add(self, held: Held, now: int) -> None:
        """Queue a call."""
        flow = self._flows.setdefault(held.tenant, Flow(held.tenant))
        first = not self.count
        self.count += 1
        self.num_bytes += held.num_bytes
        flow.add(held)
        if flow.count == 1:
            self._filled.append(flow)
            self._filled.sort(key=lambda each: each.tenant)
            self.fairness.filled(flow, now, first=first)

    def pick(self, now: int) -> Held:
        """Return the call that is to leave; some wait."""
        return self.fairness.pick(self._filled, now).head()

    def take(self, held: Held, now: int) -> None:
        """Let a call leave."""
        flow = self._flows[held.tenant]
        held.waits = False
        flow.count -= 1
        self.count -= 1
        self.num_bytes -= held.num_bytes
        if not flow.count:
            self._filled.remove(flow)
            self.fairness.emptied(flow, now)


class FlowControl:
    """See the module's docstring.

    Args:
        groups: Lists of clients, each those that serve one kind of stage of one model, which change. Those of a model's
            prefill and decode are a group.

    Attributes:
        classes: Tenants and classes of the requests.
        weights: Of tenants that have one, by name, for the record.
    """

    def __init__(self, env: Clock, sender: Sender, policy: FlowPolicy, classes: Classes,
                 groups: Iterable[list[list[Client]]]) -> None:
        self.env, self._policy, self.classes = env, policy, classes
        self.weights: dict[str, float] = {}
        self._held: dict[Call, tuple[Held, _Pool]] = {}
        self.in_flight: dict[int, int] = {}   # attempts at each client, by its index
        self._columns = {name: array("q") for name in HELD_FIELDS}
        self._pools = [_Pool(self, env, sender, policy, together) for together in _connected(groups)]
        self._pool_of = {id(one): pool for pool in self._pools for one in pool.lists}

    # -- called by the gateway -------------------------------------------------------------------------------------

    def takes(self, call: Call, members: list[Client]) -> bool:
        """Queue or refuse a call for these clients; return False if it is to be dispatched now."""
        pool = self._pool_of.get(id(members))
        if pool is None:   # services
            return False
        if self._policy.holds:
            self._hold(call, members, pool)
            return True
        reason = self._over_budget(call)
        if reason is None and pool.band_of(call.request.id).priority < 0 and (full := pool.saturation.now()) >= 1:
            reason = f"the pool is full (saturation {full:.3g})", "shed"
        if reason is not None:
            pool.sender.refuse(call, *reason)
        return reason is not None

    def _over_budget(self, call: Call) -> tuple[str, str] | None:
        """Return why a tenant may not ask for more now, and the fate of its request; None if it may."""
        budget = self._policy.budgets.get(self.classes.tenant[call.request.id])
        if budget is None or budget.used(self.env._now) < budget.tokens:
            return None
        return f"the tenant's {budget.tokens} tokens of {budget.window_ns / 1e9:g} s are used up", "shed"

    def _hold(self, call: Call, members: list[Client], pool: _Pool) -> None:
        """Queue a call, or refuse it."""
        now, classes, request = self.env._now, self.classes, call.request.id
        kind, tenant = classes.kind[request], classes.tenant[request]
        tokens = call.stage.prompt_tokens
        held = Held(call, members, len(self._columns["request"]), tenant, classes.priorities[kind], now,
                    classes.ttl_ns[kind], tokens, tokens * self._policy.token_bytes)
        held.row = held.number
        held.order = self._policy.order(held, classes)
        for column, value in zip(self._columns.values(), (request, call.number, held.priority, now, -1, WAITING),
                                 strict=True):
            column.append(value)
        reason = self._over_budget(call) or pool.full(held)
        if reason is not None:
            self._note(held, REFUSED)
            pool.sender.refuse(call, *reason)
            return
        call.waits = True   # until the gateway dispatches it
        self._held[call] = held, pool
        if self._policy.service is not None:
            self._policy.service.asks(tenant, now)
        pool.add(held)

    def drop(self, call: Call) -> None:
        """Take out a call that nobody waits for, if it is queued."""
        found = self._held.pop(call, None)
        if found is not None:
            self._left(*found, GIVEN_UP)

    def began(self, call: Call, client: Client) -> None:
        """Note that an attempt is at a client from now on."""
        self.in_flight[client.index] = self.in_flight.get(client.index, 0) + 1
        if self._policy.service is not None:
            self._policy.service.asks(self.classes.tenant[call.request.id], self.env._now)

    def gone(self, call: Call, client: Client, output_tokens: int = -1) -> None:
        """Note that an attempt has left its client. output_tokens: Of one that is complete."""
        tenant, service = self.classes.tenant[call.request.id], self._policy.service
        self._freed(client)
        if output_tokens >= 0:
            if (budget := self._policy.budgets.get(tenant)) is not None:
                budget.used(self.env._now, call.stage.prompt_tokens + output_tokens)
            if service is not None:
                service.served(tenant, call.stage.prompt_tokens, output_tokens)
            for pool in self._pools:
                if client.index in pool.indices:
                    pool.band_of(call.request.id).fairness.served(tenant, output_tokens)
        if service is not None:
            service.ends(tenant, self.env._now)

    def moved(self, source: Client, target: Client) -> None:
        """Note that an attempt goes on at another client."""
        self.in_flight[target.index] = self.in_flight.get(target.index, 0) + 1
        self._freed(source)

    def _freed(self, client: Client) -> None:
        self.in_flight[client.index] -= 1
        for pool in self._pools:
            if client.index in pool.indices and pool.saturation.counts:
                pool.wake(self.env._now)

    def members_changed(self) -> None:
        """Note that clients have joined or left."""
        for pool in self._pools:
            pool.members_changed()

    def seen(self, client: Client) -> None:
        """Note that a client went down, or can be reached again."""
        for pool in self._pools:
            pool.saturation.seen(client)

    def num_waiting(self, lists: list[list[Client]]) -> int:
        """Return the calls that wait for one of these lists of clients."""
        return sum(any(held.members is one for one in lists) for held, _pool in self._held.values())

    def idle(self) -> bool:
        """Whether nothing waits, and all bands know it."""
        bands = [band for pool in self._pools for band in pool.bands]
        return not (self._held or any(self.in_flight.values()) or any(band.count or band.num_bytes for band in bands))

    def table(self) -> dict[str, IntArray]:
        """Return the columns of the table of calls that were held; none where calls do not wait."""
        if not self._policy.holds:
            return {}
        return {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}

    # -- called by the pools ---------------------------------------------------------------------------------------

    def leaves(self, held: Held, outcome: int) -> None:
        """Note that a call is sent out, or has expired."""
        self._left(*self._held.pop(held.call), outcome)

    def _left(self, held: Held, pool: _Pool, outcome: int) -> None:
        self._note(held, outcome)
        pool.take(held)
        if self._policy.service is not None:
            self._policy.service.ends(held.tenant, self.env._now)

    def _note(self, held: Held, outcome: int) -> None:
        self._columns["left_ns"][held.row], self._columns["outcome"][held.row] = self.env._now, outcome


def _connected(groups: Iterable[list[list[Client]]]) -> list[list[list[Client]]]:
    """Return the groups of lists; those that share clients are one."""
    found: list[tuple[set[int], list[list[Client]]]] = []
    for lists in groups:
        mine, together = {client.index for one in lists for client in one}, lists
        for other in [one for one in found if one[0] & mine]:
            found.remove(other)
            mine |= other[0]
            together = other[1] + together
        found.append((mine, together))
    return [together for _, together in found]


class _Pool:
    """Flow control of engines that share clients: bands, cycles, and scans for what has expired."""

    def __init__(self, control: FlowControl, env: Clock, sender: Sender, policy: FlowPolicy,
                 lists: list[list[Client]]) -> None:
        self.control, self.env, self.sender, self._policy, self.lists = control, env, sender, policy, lists
        everyone = {client.index: client for one in lists for client in one}
        self.indices = frozenset(everyone)
        clients = [everyone[index] for index in sorted(everyone)]
        self._waiting: dict[Held, None] = {}
        self.saturation = policy.saturation(lists, clients, control.in_flight, self.wake)
        classes = control.classes
        ceilings: dict[int, float] = {}
        for priority, ceiling in zip(classes.priorities, classes.ceilings, strict=True):
            ceilings[priority] = min(ceiling, ceilings.get(priority, ceiling))
        self.bands = [Band(priority, ceilings[priority], policy.fairness()) for priority in sorted(ceilings)[::-1]]
        self._band = {band.priority: band for band in self.bands}
        self._empty = not any(lists)
        self._next_ns, self._grid_ns, self._scan_next_ns = NEVER, -1, NEVER
        self._gate_ns = 0    # from when on requests may be revoked again

    def band_of(self, request: int) -> Band:
        """Return the band of a request."""
        classes = self.control.classes
        return self._band[classes.priorities[classes.kind[request]]]

    # -- the queue ---------------------------------------------------------------------------------------------------

    def full(self, held: Held) -> tuple[str, str] | None:
        """Return why a call finds no place in its band, and the fate of its request; None if it does."""
        band, policy = self._band[held.priority], self._policy
        if band.count >= policy.most:
            text = f"band {band.priority} holds {policy.most} requests"
        elif band.num_bytes + held.num_bytes > policy.most_bytes:
            text = f"band {band.priority} holds {policy.most_bytes} bytes"
        else:
            return None
        return (f"{text}, and no replica is ready", "unavailable") if self._empty else (text, "shed")

    def add(self, held: Held) -> None:
        """Queue a call, for which a cycle runs at once."""
        self._band[held.priority].add(held, self.env._now)
        self._waiting[held] = None
        self.env.tick_at(self.env._now, DISPATCH, self._queued)
        self._scan_at(held.clock_ns + held.ttl_ns)

    def take(self, held: Held) -> None:
        """Let a call leave."""
        del self._waiting[held]
        self._band[held.priority].take(held, self.env._now)

    # -- cycles ------------------------------------------------------------------------------------------------------

    def wake(self, time_ns: int) -> None:
        """Let a cycle run at the first tick from a time on, if something waits."""
        if self._waiting:
            self._cycle_at(time_ns)

    def _cycle_at(self, time_ns: int) -> None:
        each = self._policy.cycle_ns
        tick_ns = max(-(-max(time_ns, self.env._now) // each) * each, self._grid_ns + each if self._grid_ns >= 0 else 0)
        if tick_ns < self._next_ns:
            self._next_ns = tick_ns
            self.env.tick_at(tick_ns, DISPATCH, partial(self._ticks, tick_ns))

    def _queued(self, tick: Tick) -> None:
        self._cycle()

    def _ticks(self, time_ns: int, tick: Tick) -> None:
        if time_ns != self._next_ns:
            return   # an earlier one has taken its place
        self._next_ns, self._grid_ns = NEVER, time_ns
        self._cycle()

    def _cycle(self) -> None:
        """Let one call leave, if the pool has room; plan the next cycle."""
        if not self._waiting:
            return
        saturation, halted = self.saturation.now(), False
        for place, band in enumerate(self.bands):
            if saturation >= band.ceiling:
                halted = True
                self._revoke(saturation, place)
                break
            if band.count:
                held = band.pick(self.env._now)
                self.control.leaves(held, SENT)
                self.sender.send(held.call)
                break
        if not self._waiting:
            return
        if not halted:
            self._cycle_at(self.env._now)
            return
        later = self.saturation.next_ns()
        if self._policy.revoking is not None and self._gate_ns > self.env._now:
            later = min(later, self._gate_ns)
        if later < NEVER:
            self._cycle_at(later)

    def _revoke(self, saturation: float, halted: int) -> None:
        """Revoke running requests of lower bands for one that is halted, if some waits there."""
        rule, now = self._policy.revoking, self.env._now
        if rule is None or now < self._gate_ns:
            return
        demand = next((band for band in self.bands[halted:] if band.count and saturation >= band.ceiling), None)
        if demand is None:
            return
        mine = [(self.band_of(attempt.call.request.id).priority, -attempt.id) for attempt in self.sender.running()
                if attempt.client.index in self.indices]
        victims = sorted(one for one in mine if one[0] < min(rule.below, demand.priority))   # the newest first
        if not victims:
            return
        each = saturation / len(mine)   # the mean share of a running request
        wanted = max(1, math.ceil((saturation - demand.ceiling) / each)) if each else 1
        self._gate_ns = now + rule.grace_ns
        for priority, number in victims[:min(wanted, rule.most)]:
            self.sender.revoke(-number, f"band {priority} gave way to band {demand.priority}")

    # -- time to live, and clients ---------------------------------------------------------------------------------

    def _scan_at(self, time_ns: int) -> None:
        each = self._policy.scan_ns
        scan_ns = max(-(-time_ns // each) * each, self.env._now)
        if scan_ns < self._scan_next_ns:
            self._scan_next_ns = scan_ns
            self.env.tick_at(scan_ns, EXPIRY, partial(self._scan, scan_ns))

    def _scan(self, time_ns: int, tick: Tick) -> None:
        """End the calls whose time to live is over."""
        if time_ns != self._scan_next_ns:
            return
        self._scan_next_ns = NEVER
        for held in [held for held in self._waiting if held.clock_ns + held.ttl_ns <= time_ns]:
            if held.waits:   # the end of another may have taken it out
                self.control.leaves(held, EXPIRED)
                self.sender.refuse(held.call, f"not dispatched within {held.ttl_ns / 1e9:g} s", "expired")
        if self._waiting:
            self._scan_at(min(held.clock_ns + held.ttl_ns for held in self._waiting))

    def members_changed(self) -> None:
        """Look at the clients again; if the pool has become empty or non-empty, all times to live begin anew."""
        empty = not any(self.lists)
        if empty is not self._empty:
            self._empty = empty
            for held in self._waiting:
                held.clock_ns = self.env._now
        self.wake(self.env._now)
