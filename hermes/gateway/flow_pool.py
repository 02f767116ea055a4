"""The queue of a pool of engines in a gateway's flow control: bands, cycles, and scans for what has expired."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from hermes.core.client import Client
from hermes.core.clock import DISPATCH, EXPIRY, Clock, Tick
from hermes.core.scraped import NEVER
from hermes.gateway.fairness import Fairness, Flow, Held
from hermes.gateway.flow_policy import FlowPolicy
from hermes.gateway.saturation import CEILING, CYCLE

if TYPE_CHECKING:
    from hermes.gateway.calls import Call
    from hermes.gateway.flow_control import FlowControl
    from hermes.gateway.gateway import Gateway

__all__ = ["EXPIRED", "GIVEN_UP", "REFUSED", "SENT", "WAITING", "Pool"]

WAITING, SENT, REFUSED, EXPIRED, GIVEN_UP = range(5)   # `HELD_OUTCOMES`


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
        flow.left()
        self.count -= 1
        self.num_bytes -= held.num_bytes
        if not flow.count:
            self._filled.remove(flow)
            self.fairness.emptied(flow, now)


class Pool:
    """Flow control of engines that share clients, at one gateway: bands, cycles, and scans for what has expired.

    Attributes:
        indices: Of its clients.
        in_flight: Attempts of the gateway at each client, by its index.
    """

    def __init__(self, control: FlowControl, env: Clock, sender: Gateway, policy: FlowPolicy, lists: list[list[Client]],
                 gateway: int) -> None:
        self.gateway, self.in_flight, self.service = gateway, dict[int, int](), policy.service()
        self.control, self.env, self.sender, self._policy, self.lists = control, env, sender, policy, lists
        everyone = {client.index: client for one in lists for client in one}
        self.indices = frozenset(everyone)
        clients = [everyone[index] for index in sorted(everyone)]
        self._waiting: dict[Held, None] = {}
        self.saturation = policy.saturation(lists, clients, self.in_flight, self.wake,
                                            f"router-{gateway}" if gateway else "router")
        classes = control.classes
        ceilings: dict[int, float] = {}
        for priority, ceiling in zip(classes.priorities, classes.ceilings, strict=True):
            ceilings[priority] = min(ceiling, ceilings.get(priority, ceiling))
        self.bands = [Band(priority, ceilings[priority], policy.fairness(priority, self.service))
                      for priority in sorted(ceilings)[::-1]]
        self._band = {band.priority: band for band in self.bands}
        self._empty = not any(lists)
        self._next_ns, self._grid_ns, self._scan_next_ns = NEVER, -1, NEVER
        self._gate_ns = 0    # from when on requests may be revoked again
        self._halts: list[tuple[int, int, int, int, int]] = []   # that are over
        self._halt: tuple[int, int, int, int] | None = None      # client, band, limit and begin of the present one

    def band_of(self, request: int) -> Band:
        """Return the band of a request."""
        classes = self.control.classes
        return self._band[classes.priorities[classes.kind[request]]]

    # -- attempts ----------------------------------------------------------------------------------------------------

    def began(self, call: Call, client: Client) -> None:
        """Note that an attempt is at a client from now on."""
        self.in_flight[client.index] = self.in_flight.get(client.index, 0) + 1

    def gone(self, call: Call, client: Client, output_tokens: int) -> None:
        """Note that an attempt has left its client. output_tokens: Of one that is complete, otherwise negative."""
        tenant = self.control.classes.tenant[call.request.id]
        self.freed(client)
        if output_tokens >= 0:
            if self.service is not None:
                self.service.served(tenant, call.stage.prompt_tokens, output_tokens, self.env._now)
            self.band_of(call.request.id).fairness.served(tenant, output_tokens)

    def moved(self, source: Client, target: Client) -> None:
        """Note that an attempt goes on at another client."""
        self.in_flight[target.index] = self.in_flight.get(target.index, 0) + 1
        self.freed(source)

    def freed(self, client: Client) -> None:
        """Count an attempt at a client no longer."""
        self.in_flight[client.index] -= 1
        if self.saturation.counts:
            self.wake(self.env._now)

    # -- the queue ---------------------------------------------------------------------------------------------------

    def full(self, held: Held) -> tuple[str, str] | None:
        """Return why a call finds no place in its band, or in all, and the fate of its request; None if it does."""
        band, policy = self._band[held.priority], self._policy
        most, most_bytes = policy.limits[held.priority]
        if band.count >= most:
            text = f"band {band.priority} holds {most} requests"
        elif band.num_bytes + held.num_bytes > most_bytes:
            text = f"band {band.priority} holds {most_bytes} bytes"
        elif policy.total is not None and len(self._waiting) >= policy.total:
            text = f"the queue holds {policy.total} requests"
        elif policy.total_bytes is not None \
                and sum(each.num_bytes for each in self.bands) + held.num_bytes > policy.total_bytes:
            text = f"the queue holds {policy.total_bytes} bytes"
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
        if not self._waiting:
            self._halted_by(None)
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
        self._note_halt(saturation)
        if not halted:
            self._cycle_at(self.env._now)
            return
        later = self.saturation.next_ns()
        if self._policy.revoking is not None and self._gate_ns > self.env._now:
            later = min(later, self._gate_ns)
        if later < NEVER:
            self._cycle_at(later)

    def _note_halt(self, saturation: float) -> None:
        """Note what keeps calls waiting from now on. saturation: That of this cycle."""
        if self.saturation.counts:   # the call that has left counts at once
            saturation = self.saturation.now()
        band = next((band for band in self.bands if saturation >= band.ceiling), None)
        limit, client = self.saturation.limit()
        if client < 0:
            client = min(self.indices)
        if band is None:
            limit, band = CYCLE, next(band for band in self.bands if band.count)
        elif saturation < 1:
            limit = CEILING
        self._halted_by((client, band.priority, limit))

    def _halted_by(self, halt: tuple[int, int, int] | None) -> None:
        if self._halt is not None:
            if self._halt[:3] == halt:
                return
            if self.env._now > self._halt[3]:
                self._halts.append((*self._halt, self.env._now))
        self._halt = None if halt is None else (*halt, self.env._now)

    def halts(self) -> list[tuple[int, ...]]:
        """Return what kept calls waiting, as rows of `HALT_FIELDS`."""
        last = [] if self._halt is None else [(*self._halt, -1)]
        return [(self.gateway, *row) for row in [*self._halts, *last]]

    def _revoke(self, saturation: float, halted: int) -> None:
        """Revoke running requests of lower bands for one that is halted, if some waits there."""
        rule, now = self._policy.revoking, self.env._now
        if rule is None or now < self._gate_ns:
            return
        demand = next((band for band in self.bands[halted:] if band.count and saturation >= band.ceiling), None)
        if demand is None:
            return
        mine = [(self.band_of(attempt.call.request.id).priority, -attempt.id) for attempt in self.sender.running()
                if attempt.client.index in self.indices and attempt.call.stage.gateway == self.gateway]
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
