"""KV transfer for disaggregated serving: move a request's KV cache from its prefill client to its decode client.

When the prefill client has computed the first token, the handoff chooses a decode client, takes memory there for the
prompt's KV, and then starts the transfer (as vLLM's connector and splitwise-sim do). The source keeps its blocks until
the transfer ends. Requests that find no memory wait at the destination, first come first served.

The user's first token comes from one of the two. Behind llm-d's sidecar and vLLM's proxy, the prefill request has
`max_tokens` 1, and its token is thrown away: the decode engine computes the prompt's last token again and streams all
tokens itself (`first_token: decode`). Splitwise's and DistServe's prefill client gives the first token to the user
(`prefill`).

With layer-wise transfer, KV moves while its prefill runs. The decode client is chosen, and counts the request as its
own, when the prefill starts. KV that arrives before the memory is taken waits in a buffer at the destination (as with
LMCache); the size of this buffer is not modelled. The request waits only for the bytes that are left when the prefill
has ended and the memory is taken.

A request that its client gives up frees its KV at once while it waits for memory at the destination: the decode engine
notifies the prefill engine. KV that moves arrives first, and then both ends free theirs. (vLLM's NixlConnector:
nixl/pull_scheduler.py, and finish_requests in
v1/core/sched/scheduler.py. The time of the notification is not modelled.)

Clients that do both phases can deadlock: each is full of KV that is to go to the other, and nothing runs. Such a
transfer gives its KV up, and the destination computes the prompt again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from hermes.core.client import Client, ClientEvents
from hermes.core.clock import ARRIVAL, MAX_CLIENTS, START, TRANSFER, Clock, Tick
from hermes.core.columns import RowLog
from hermes.core.generation import Generation
from hermes.core.network import Network
from hermes.dispatch.parts import DispatchPart
from hermes.network.layerwise import LayerStream
from hermes.units import s_to_ns

if TYPE_CHECKING:
    from hermes.dispatch.coordinator import Coordinator

__all__ = ["Handoff"]

_SETTLED = START + 2 * MAX_CLIENTS   # after all other events of an instant, before `clock.SETTLED`


class _Ahead(NamedTuple):
    """KV that moves while its prefill runs: its stream, destination and sequence there, and whether it counts there."""

    stream: LayerStream
    target: Client
    twin: Generation
    assigned: bool


class _Flight(NamedTuple):
    """KV that moves after its prefill: both ends, the sequence at the far one, since when, and how to stop it."""

    source: Client
    target: Client
    twin: Generation
    asked_ns: int
    stop: Callable[[], int]


class Handoff(DispatchPart):
    """Moves KV between clients. Every LLM client must have `kv_bytes_per_token` and `num_layers`.

    Args:
        granularity: "full" moves all KV after the prefill; "layerwise" begins while the prefill runs.
        prefill_gives: Tokens of the prefill client that users get, 0 or 1.
        retry_s: Seconds after which each request tries again for memory at the destination (splitwise-sim: 1.0). With
            None requests wait first come first served, and try as memory becomes free.
        local: Whether KV moves within a platform only.
    """

    def __init__(
        self, env: Clock, clients: list[Client], network: Network, transfers: RowLog,
        events: ClientEvents, granularity: Literal["full", "layerwise"] = "full", retry_s: float | None = None,
        *, prefill_gives: int = 1, local: bool = False,
    ) -> None:
        self.prefill_gives, self._local = prefill_gives, local
        self.env, self.network, self.transfers, self.granularity = env, network, transfers, granularity
        self.retry_ns = None if retry_s is None else s_to_ns(retry_s)
        self._decoders = [c for c in clients if "decode" in c.stages]
        # Per client: (source, what it has computed, its twin here) of those that wait for memory.
        self._intake: dict[int, deque[tuple[Client, Generation, Generation]]] = {
            c.index: deque() for c in self._decoders}
        if retry_s is None:
            events.room = self._room
        self._moving = {c.index: 0 for c in clients}   # transfers under way from or to a client
        self._flights: dict[Generation, _Flight] = {}  # those transfers, by the generation that moves
        self._ahead: dict[Generation, _Ahead] = {}
        if granularity == "layerwise":
            events.prefill = self._prefilling
        # Per client: sequences that wait for memory elsewhere, and where.
        self._leaving: dict[int, dict[Generation, Client]] = {c.index: {} for c in clients}
        self._turned_away: dict[Generation, str] = {}   # layer by layer: refused when its prefill began, and why
        self._twins: dict[Generation, tuple[Client, Generation]] = {}   # of generations that wait for memory, or move
        self._losing = False   # while a client goes down
        self._given_up: set[Generation] = set()   # of these twins: while the KV moves

    def attach(self, coordinator: Coordinator) -> None:
        super().attach(coordinator)
        self._reaching = coordinator.that("reaches")

    def plans(self, stage: Generation, client: Client) -> str | None:
        """Let a client that only prefills, or whose router has placed the decode elsewhere, compute the first token; a
        decode client must accept the rest."""
        target, whole = stage.decode_on, stage.output_tokens
        other = client.role == "prefill" if target is None else target is not client
        stage.hands_over = other and whole > self.prefill_gives
        if not stage.hands_over:
            return None
        first = None
        for decoder in self._decode_clients(client, stage):
            reason = decoder.unfit(stage)  # type: ignore[attr-defined]  # `TakingOver`; it is asked again then
            if reason is None:
                break
            first = first or f"decode on {decoder.name}: {reason}"
        else:
            if first is not None:
                return first   # otherwise no decode client is ready now
        stage.target_tokens = 1
        return None

    def _decode_key(self, source: Client, stage: Generation) -> tuple[str, str]:
        """Return the key of the routers of the decode clients that may take over from `source`."""
        return f"decode near {source.platform}" if self._local else "decode", stage.model or stage.request.model

    def _decode_clients(self, source: Client, stage: Generation) -> list[Client]:
        return self.coordinator.members(*self._decode_key(source, stage))

    def _route(self, source: Client, stage: Generation) -> tuple[Client, str | None]:
        """Choose the decode client that takes over a generation; or return one, and why none does."""
        clients = self._decode_clients(source, stage)
        if not clients:
            return source, "no decode replica is ready"
        target = stage.decode_on or self.coordinator.routers[self._decode_key(source, stage)].choose(stage)
        reached = not self._reaching or self._reaches(target)
        if reached and (reason := target.refusal(stage)) is not None:
            accepting = [c for c in clients if c.refusal(stage) is None]
            if not accepting:
                return target, f"decode on {target.name}: {reason}"   # all queues are at their limits
            target = min(accepting, key=lambda c: c.num_assigned)
            reached = self._reaches(target)
        if reached:
            return target, None
        for part in self.coordinator.parts:   # nobody has noticed that it is down
            part.failed(stage, target)
        return target, f"{target.name} cannot be reached"

    def _reaches(self, target: Client) -> bool:
        return all(part.reaches(target) for part in self._reaching)

    def hands_over(self, stage: Generation, client: Client) -> None:
        """Find a decode client for `stage`. If none takes it, its KV is freed."""
        source = client
        ahead = self._ahead.get(stage)
        if ahead is None:
            reason: str | None = None
            if self._turned_away:
                reason = self._turned_away.pop(stage, None)
            if reason is None:
                twin = self._twin(source, stage)
                target, reason = self._route(source, twin)
            if reason is not None:
                source.forget(stage)
                self.coordinator.turned_away(source, stage, reason)
                return
            target.expect(twin)  # type: ignore[attr-defined]  # `TakingOver`
        else:
            twin, target = ahead.twin, ahead.target
        if ahead is not None and ahead.assigned:
            twin.assigned_ns = self.env._now
        else:
            self.coordinator.assign(target, twin)
        self._leaving[source.index][twin] = target
        self._twins[stage] = target, twin
        if self.retry_ns is not None:
            self._try(source, stage, target, twin, first=True)
            return
        queue = self._intake[target.index]
        queue.append((source, stage, twin))
        if len(queue) == 1:
            self._retry(target)

    def _twin(self, source: Client, stage: Generation) -> Generation:
        """Return the sequence that another client serves for `stage`."""
        twin = Generation(
            stage.prompt_tokens, stage.output_tokens, stage.priority, stage.request, stage.arrival_order, stage.content
        )
        twin.original = stage.original or stage
        twin.model, twin.max_new_tokens, twin.attempt = stage.model, stage.max_new_tokens, stage.attempt
        twin.detached = stage.detached
        twin.transferred = True
        # The first step here computes the token that the prefill gave, or the prompt's last token once more.
        twin.given = self.prefill_gives
        twin.num_tokens = stage.prompt_tokens + self.prefill_gives
        twin.num_computed = twin.num_tokens - 1
        twin.source, twin.prefill = source, stage
        twin.decode_on = stage.decode_on
        twin.branches, twin.width = stage.branches, stage.width
        return twin

    def _prefilling(self, source: Client, prefills: list[tuple[Generation, int]], end_ns: int) -> None:
        """Handle the start of a step at `source`. Clients are chosen after all other events of this instant."""
        now = self.env._now
        for stage, n in prefills:
            if stage.hands_over:
                send = partial(self._send_ahead, source, stage, stage.num_computed - n, stage.num_computed, now, end_ns)
                self.env.tick_at(now + 1, ARRIVAL, send)

    def _send_ahead(self, source: Client, stage: Generation, before: int, after: int, start_ns: int, end_ns: int,
                    tick: Tick) -> None:
        """Send the KV of a step that takes a prompt from `before` to `after` tokens."""
        if stage.first_token_ns >= 0 or stage.done:
            return   # a step of a nanosecond
        ahead = self._ahead.get(stage)
        if ahead is None:
            if stage in self._turned_away:
                return   # its prompt is computed in vain
            twin = self._twin(source, stage)
            target, reason = self._route(source, twin)
            if reason is not None:
                self._turned_away[stage] = reason
                return
            target.expect(twin)  # type: ignore[attr-defined]  # `TakingOver`
            assigned = twin.decode_on is None   # otherwise the router that placed it has counted it
            if assigned:
                self.coordinator.assign(target, twin)
            stream = LayerStream(self.env, self.network, source.name, target.name, source.num_layers)
            ahead = self._ahead[stage] = _Ahead(stream, target, twin, assigned)
        per_token = source.kv_bytes_per_token
        ahead.stream.step(round(before * per_token), round(after * per_token), start_ns, end_ns)

    def _try(self, source: Client, stage: Generation, target: Client, twin: Generation, *, first: bool = False) -> None:
        if twin not in self._leaving[source.index]:
            return   # given up
        if target.reserve(twin):
            self._transfer(source, stage, target, twin)
        elif not first and self._stuck(target):
            self._start_over(source, stage, target, twin)
        else:
            assert self.retry_ns is not None
            self.env.tick_at(
                self.env._now + self.retry_ns, TRANSFER, lambda tick: self._try(source, stage, target, twin)
            )

    def _room(self, client: Client) -> None:
        """Handle blocks of a client that may have become free."""
        if self._intake.get(client.index) and not self._losing:
            self._retry(client)

    def _retry(self, target: Client) -> None:
        queue = self._intake[target.index]
        while queue:
            source, stage, twin = queue[0]
            if not target.reserve(twin):
                if self._stuck(target):   # so far: another event of this instant may still start work
                    self.env.tick_at(self.env._now, _SETTLED, lambda tick: self._resolve(target))
                return
            queue.popleft()
            self._transfer(source, stage, target, twin)

    def _resolve(self, target: Client) -> None:
        queue = self._intake[target.index]
        if queue and self._stuck(target):
            source, stage, twin = queue.popleft()
            self._start_over(source, stage, target, twin)
            self._retry(target)

    def _stuck(self, client: Client) -> bool:
        """Whether `client` can never get free memory: it is idle, and so is every client that its KV waits for."""
        reached = {client.index: client}
        todo = [client]
        for one in todo:
            if not one.idle or self._moving[one.index]:
                return False
            for target in self._leaving[one.index].values():
                if target.index not in reached:
                    reached[target.index] = target
                    todo.append(target)
        return True

    def _start_over(self, source: Client, stage: Generation, target: Client, twin: Generation) -> None:
        """Give a transfer up and record the bytes sent: the target computes the prompt, as after a preemption."""
        del self._leaving[source.index][twin]
        twin.num_computed = 0
        twin.preemptions = 1
        self._record(source, stage, target, self._stop_ahead(stage), self.env._now)
        self._gone(source, stage, target, twin)
        target.submit(twin)

    def _stop_ahead(self, stage: Generation, *, stop: bool = False) -> int:
        """Send no more KV of a generation before its prefill has ended; return the bytes that have left. stop: Stop
        those on the network, too."""
        ahead = self._ahead.pop(stage, None)
        if ahead is None:
            return 0
        if stop:
            return ahead.stream.cancel()
        ahead.stream.give_up()
        return ahead.stream.sent_bytes

    def withdraws(self, stage: Generation, client: Client) -> bool:
        """Give up a generation whose prompt `client` has computed; return False if its KV neither waits nor moves.

        KV that waits for memory is freed at once. KV that moves arrives first, and then both ends free theirs (vLLM's
        NixlConnector and `Scheduler.finish_requests`).
        """
        if stage not in self._twins:
            return False
        source = client
        target, twin = self._twins[stage]
        if self._leaving[source.index].pop(twin, None) is None:
            self._given_up.add(twin)
            return True
        sent = self._stop_ahead(stage)
        if sent:
            self._record(source, stage, target, sent, self.env._now)
        queue = self._intake[target.index]
        first = bool(queue) and queue[0][2] is twin
        if self.retry_ns is None:
            queue.remove((source, stage, twin))
        self._gone(source, stage, target, twin)
        self.coordinator.completions.aborted(target, twin)
        if first:
            self._retry(target)   # one behind it may find memory
        return True

    def keeps(self, client: Client) -> bool:
        """Whether KV of a client waits for memory elsewhere, or moves from or to it."""
        return bool(self._leaving[client.index] or self._moving[client.index])

    def waiting_tokens(self, client: Client) -> int:
        """Return the tokens of sequences that wait elsewhere for memory of a client."""
        return sum(twin.num_tokens for leaving in self._leaving.values() for twin, to in leaving.items()
                   if to is client)

    def attempts_over(self, client: Client) -> set[int]:
        """Return the attempts whose KV moves from or to a client, or waits to."""
        over = {twin.attempt for _source, _stage, twin in self._intake.get(client.index, ())}
        over |= {twin.attempt for twin in self._leaving[client.index]}
        over |= {twin.attempt for leaving in self._leaving.values() for twin, to in leaving.items() if to is client}
        over |= {stage.attempt for stage, flight in self._flights.items() if client in (flight.source, flight.target)}
        return over | {stage.attempt for stage, ahead in self._ahead.items() if ahead.target is client}

    def lost(self, client: Client, why: str) -> None:
        """Drop all KV that moves from or to a client which goes down, or waits to. The bytes that have left are
        recorded, and the other end's memory is free; a prefill that another client still computes is left to it."""
        self._losing = True
        for stage, flight in [item for item in self._flights.items() if client in (item[1].source, item[1].target)]:
            source, target, twin = flight.source, flight.target, flight.twin
            del self._flights[stage]
            self._record(source, stage, target, flight.stop(), flight.asked_ns)
            self._moving[source.index] -= 1
            self._moving[target.index] -= 1
            self._given_up.discard(twin)
            self._drop(client, source, stage, target, twin)
            if target is not client:
                target.release(twin)
        for stage, (to, twin) in list(self._twins.items()):   # of those that wait for memory
            source_of = twin.source
            if source_of is None or client not in (source_of, to):
                continue
            del self._leaving[source_of.index][twin]
            self._stopped(source_of, stage, to)
            if self.retry_ns is None:
                self._intake[to.index].remove((source_of, stage, twin))
            self._drop(client, source_of, stage, to, twin)
        for stage, ahead in list(self._ahead.items()):
            source_of = ahead.twin.source
            if source_of is None or client not in (source_of, ahead.target):
                continue
            self._stopped(source_of, stage, ahead.target)
            if ahead.assigned:
                self.coordinator.unassign(ahead.target, ahead.twin)
            if source_of is not client:
                self._turned_away[stage] = f"{client.name} went down"   # until the prefill is cancelled
        self._losing = False
        for target in self._decoders:
            if target is not client:
                self._room(target)   # memory of KV that does not come

    def _stopped(self, source: Client, stage: Generation, target: Client) -> None:
        """Stop KV that moves before its prefill has ended, and record what has left."""
        sent = self._stop_ahead(stage, stop=True)
        if sent:
            self._record(source, stage, target, sent, self.env._now)

    def _drop(self, dead: Client, source: Client, stage: Generation, target: Client, twin: Generation) -> None:
        """End a generation between two clients, one of which goes down."""
        del self._twins[stage]
        self.coordinator.moved(source, stage, target, twin)
        if source is not dead:
            source.release(stage)
        self.coordinator.completions.aborted(target, twin)

    def stopped(self, stage: Generation, client: Client) -> None:
        """Send no more KV of a generation that was given up before `client` had computed its prompt."""
        self._turned_away.pop(stage, None)
        ahead = self._ahead.get(stage)
        if ahead is None:
            return
        sent = self._stop_ahead(stage)
        if sent:
            self._record(client, stage, ahead.target, sent, self.env._now)
        if ahead.assigned:
            self.coordinator.unassign(ahead.target, ahead.twin)

    def _record(self, source: Client, stage: Generation, target: Client, num_bytes: int, asked: int) -> None:
        now = self.env._now
        self.transfers.add(stage.request.id, source.index, target.index, num_bytes, asked, now)

    def _gone(self, source: Client, stage: Generation, target: Client, twin: Generation) -> None:
        del self._twins[stage]
        self.coordinator.moved(source, stage, target, twin)
        source.release(stage)

    def _transfer(self, source: Client, stage: Generation, target: Client, twin: Generation) -> None:
        del self._leaving[source.index][twin]
        self._moving[source.index] += 1
        self._moving[target.index] += 1
        num_bytes = round(stage.prompt_tokens * source.kv_bytes_per_token)
        asked = self.env._now

        def arrived() -> None:
            del self._flights[stage]
            self._record(source, stage, target, num_bytes, asked)
            self._moving[source.index] -= 1
            self._moving[target.index] -= 1
            self._gone(source, stage, target, twin)
            if self._given_up and twin in self._given_up:
                self._given_up.remove(twin)
                target.release(twin)
                self.coordinator.completions.aborted(target, twin)
            else:
                target.submit(twin)

        ahead = self._ahead.pop(stage, None)
        if ahead is None:
            flow = self.network.transfer(source.name, target.name, num_bytes, arrived)
            stop: Callable[[], int] = partial(self.network.cancel, flow)
        else:
            ahead.stream.finish(num_bytes, arrived)
            stop = ahead.stream.cancel
        self._flights[stage] = _Flight(source, target, twin, asked, stop)
