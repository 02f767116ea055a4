"""Flow control at a gateway: requests wait unplaced until the pool has room, and are routed with the view of then.

The rules are those of llm-d's router (commit ebab687). A call waits in the band of its priority, in the flow of its
tenant. A *cycle* runs when a call is queued, and at every multiple of `cycle_ns` while one waits. It goes through the
bands from the highest priority on: one whose ceiling the saturation of the pool has reached ends the cycle, and so
halts all bands below it; otherwise the band's policy picks a flow, whose first call leaves. So one call leaves in a
cycle at most. Between two scrapes the saturation does not change, and calls leave at each cycle.

No event is made for cycles in which nothing can happen: while the pool is saturated, the next one is that after the
first scrape that may show something else.

Engines that share no client have flow control of their own (`hermes.gateway.flow_pool.Pool`), and so has each of
several gateways. Budgets of tenants are one for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.arrays import IntArray
from hermes.core.client import Client
from hermes.core.clock import Clock
from hermes.core.record import HALT_FIELDS, HELD_FIELDS
from hermes.dispatch.rows import Table
from hermes.gateway.fairness import Held
from hermes.gateway.flow_policy import Classes, FlowPolicy
from hermes.gateway.flow_pool import GIVEN_UP, REFUSED, WAITING, Pool
from hermes.gateway.parts import GatewayPart

if TYPE_CHECKING:
    from hermes.gateway.calls import Attempt, Call
    from hermes.gateway.gateway import Gateway

__all__ = ["FlowControl"]


class FlowControl(GatewayPart):
    """See the module's docstring.

    Args:
        groups: Lists of clients, each those that serve one kind of stage of one model, which change. Those of a model's
            prefill and decode are a group.
        gateways: Number of gateways, each with queues and scrapes of its own.

        weights: Of tenants that have one, by name, for the record.

    Attributes:
        classes: Tenants and classes of the requests.
    """

    def __init__(self, env: Clock, gateway: Gateway, policy: FlowPolicy, classes: Classes,
                 groups: Iterable[list[list[Client]]], gateways: int, weights: Mapping[str, float]) -> None:
        self.env, self._policy, self.classes, self._weights = env, policy, classes, weights
        self._held: dict[Call, tuple[Held, Pool]] = {}
        self._rows = Table(HELD_FIELDS)
        self._pools = [Pool(self, env, gateway, policy, together, number)
                       for together in _connected(groups) for number in range(gateways)]
        self._pool_of = {(pool.gateway, id(one)): pool for pool in self._pools for one in pool.lists}

    # -- called by the gateway -------------------------------------------------------------------------------------

    def holds(self, call: Call, members: list[Client]) -> bool:
        """Queue or refuse a call for these clients; return False if it is to be dispatched now."""
        pool = self._pool_of.get((call.stage.gateway, id(members)))
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

    def _hold(self, call: Call, members: list[Client], pool: Pool) -> None:
        """Queue a call, or refuse it."""
        now, classes, request = self.env._now, self.classes, call.request.id
        kind, tenant = classes.kind[request], classes.tenant[request]
        tokens = call.stage.prompt_tokens
        held = Held(call, members, len(self._rows), tenant, classes.priorities[kind], now,
                    classes.ttl_ns[kind], tokens, tokens * self._policy.token_bytes)
        held.row = held.number
        held.order = self._policy.order(held, classes)
        self._rows.add(request, call.number, held.priority, now, -1, WAITING)
        reason = self._over_budget(call) or pool.full(held)
        if reason is not None:
            self._note(held, REFUSED)
            pool.sender.refuse(call, *reason)
            return
        call.waits = True   # until the gateway dispatches it
        self._held[call] = held, pool
        pool.add(held)

    def released(self, call: Call) -> None:
        """Take out a call that nobody waits for, if it is queued."""
        found = self._held.pop(call, None)
        if found is not None:
            self._left(*found, GIVEN_UP)

    def began(self, call: Call, client: Client) -> None:
        """Note that an attempt is at a client from now on."""
        if (pool := self._pool_at(call, client)) is not None:
            pool.began(call, client)

    def gone(self, attempt: Attempt, output_tokens: int) -> None:
        call, client = attempt.call, attempt.client
        budget = self._policy.budgets.get(self.classes.tenant[call.request.id])
        if output_tokens >= 0 and budget is not None:
            budget.used(self.env._now, call.stage.prompt_tokens + output_tokens)
        if (pool := self._pool_at(call, client)) is not None:
            pool.gone(call, client, output_tokens)

    def moved(self, call: Call, source: Client, target: Client) -> None:
        """Note that an attempt goes on at another client."""
        if (pool := self._pool_at(call, source)) is not None:
            pool.moved(source, target)

    def _pool_at(self, call: Call, client: Client) -> Pool | None:
        """Return the pool of a client at the gateway of a call; None for services."""
        return next((pool for pool in self._pools
                     if pool.gateway == call.stage.gateway and client.index in pool.indices), None)

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
        flying = [count for pool in self._pools for count in pool.in_flight.values()]
        return not (self._held or any(flying) or any(band.count or band.num_bytes for band in bands))

    def record(self) -> dict[str, Any]:   # Any: fields of the record
        return {"held": self._rows.arrays() if self._policy.holds else {}, "halts": self._halts(),
                "weights": self._weights}

    def _halts(self) -> dict[str, IntArray]:
        """Return the columns of the table of what kept calls waiting; none where calls do not wait."""
        if not self._policy.holds:
            return {}
        rows = np.array([row for pool in self._pools for row in pool.halts()], dtype=np.int64)
        return {name: column.copy() for name, column in
                zip(HALT_FIELDS, rows.reshape(-1, len(HALT_FIELDS)).T, strict=True)}

    # -- called by the pools ---------------------------------------------------------------------------------------

    def leaves(self, held: Held, outcome: int) -> None:
        """Note that a call is sent out, or has expired."""
        self._left(*self._held.pop(held.call), outcome)

    def _left(self, held: Held, pool: Pool, outcome: int) -> None:
        self._note(held, outcome)
        pool.take(held)

    def _note(self, held: Held, outcome: int) -> None:
        columns = self._rows.columns
        columns["left_ns"][held.row], columns["outcome"][held.row] = self.env._now, outcome


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
