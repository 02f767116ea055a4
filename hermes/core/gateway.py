"""The gateway: attempts at what engines serve, where clients can be lost, requests time out, or no client is ready.

Each generation or embedding of a request on an engine, and each stage at a service whose clients come and go, is a
*call*. The gateway makes one *attempt* after the other at it, each at the client that the router chooses. An attempt is
over when it is completed, when its client went down or could not be reached (failed), when the gateway waits no longer
(timed out), or when nobody waits for the request (cancelled). The next attempt starts anew, after a back-off; what the
one before had computed is wasted. Two places decide about it (`hermes.core.retries`): the router, and when its retries
are used up the gateway, whose each try has all of the router's. A call whose attempts are exhausted ends its request,
unless its client offers the request again (`hermes.core.client_retries`).

A call that finds no ready client waits in the queue, first come first served, or is answered with an error. The
coordinator has no gateway where none of this can happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hermes.arrays import IntArray
from hermes.core.block_hashes import AdapterText, ConversationText, PromptContent
from hermes.core.branches import SharedPrompt, branch_into
from hermes.core.breakers import Breakers
from hermes.core.client import Client
from hermes.core.clock import ARRIVAL, DISPATCH, EXPIRY, Clock, Tick
from hermes.core.dispatch_parts import DispatchPart
from hermes.core.generation import Generation
from hermes.core.hop import Hop
from hermes.core.record import ATTEMPT_FIELDS, CALL_FIELDS, FATES, GATEWAY_WAIT, QUEUED_FIELDS
from hermes.core.request import Request
from hermes.core.retries import RetryBudget, RetryPolicy
from hermes.core.rows import Table
from hermes.core.stage import ServiceStage, Stage
from hermes.core.statuses import FULL_ENGINE, STATUS_OF_FATE, status_of
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.core.flow_control import FlowControl  # most gateways have none

__all__ = ["Call", "Draw", "Gateway", "GatewayPolicy", "content_again"]

RUNNING, COMPLETED, FAILED, TIMED_OUT, CANCELLED, REVOKED = range(6)   # `ATTEMPT_OUTCOMES`
Draw = Callable[[int], float]


@dataclass(frozen=True)
class GatewayPolicy:
    """What a gateway does. Times in nanoseconds.

    Attributes:
        retry: Its own retries.
        router: Those of the router behind it; None for none.
        timeout_ns: Longest time of a call with all its attempts, waiting included; None for no limit.
        cancel_ns: Time until a client learns that nobody waits for an attempt.
        queue_ns: Longest wait for a ready client; None: the gateway does not wait.
        queue_most: Most calls that wait.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    router: RetryPolicy | None = None
    timeout_ns: int | None = None
    cancel_ns: int = 0
    queue_ns: int | None = None
    queue_most: int = 1 << 62

    @property
    def places(self) -> tuple[RetryPolicy, ...]:
        """Where it is decided about the next attempt, the innermost place first."""
        return (self.retry,) if self.router is None else (self.router, self.retry)


class Call:
    """A generation or embedding of a request, its latest attempt, and the sequence of the first one at a client.

    Attributes:
        asked_ns: When it was first asked for.
        used: Retries at each place, of the router in this try of the gateway.
        timed: By place, retries used there and further out when the time-out of its latest try was set.
        retrying: The place whose retry is under way, or waited for; None for none.
        turn: Counts decisions about it: a retry of an earlier one comes to nothing.
        begun: Whether its user has had a token.
        members: The ready clients that may serve it, a list that changes.
    """

    __slots__ = ("asked_ns", "attempt", "begun", "first", "members", "number", "over", "passed", "queued", "request",
                 "retrying", "stage", "timed", "tries", "turn", "used", "waits")

    def __init__(self, request: Request, stage: Stage, number: int, places: int, asked_ns: int) -> None:
        self.request, self.stage, self.number, self.asked_ns = request, stage, number, asked_ns
        self.tries = self.turn = 0
        self.used, self.begun = [0] * places, False
        self.members: list[Client] = []
        self.timed: list[tuple[int, ...]] = [()] * places
        self.retrying: int | None = None
        self.attempt: _Attempt | None = None
        self.first: Generation | None = None
        self.over = self.waits = self.passed = False   # passed: the hop
        self.queued = -1   # its row in the table of waits


class _Attempt:
    """An attempt that a client may still work on, or send. `first`, `seq`: its sequence at its first and present
    client; `computed`: whether only the front end has it."""

    __slots__ = ("call", "client", "computed", "first", "id", "seq")

    def __init__(self, call: Call, number: int, seq: Stage, client: Client) -> None:
        self.call, self.id, self.client = call, number, client
        self.first = self.seq = seq
        self.computed = False


class Gateway(DispatchPart):
    """See the module's docstring.

    Args:
        draw: Returns numbers from 0 to 1 of a stream of each request, by the request's number.
        hop: What calls meet before the router; None for nothing.
        breakers: Clients that get no requests for a while; None for none.

    Attributes:
        covered: Indices of clients without an engine at which it makes attempts: those that may crash.
        down: Indices of clients that cannot be reached.
        fates: Request -> index into `FATES`, of requests that it answered with an error.
        waits_ns: Request -> time that its calls waited for the capacity of gateways.
        offered_ns: Request -> when its client offered it again, for the last time.
    """

    def __init__(self, env: Clock, policy: GatewayPolicy, draw: Draw, hop: Hop | None = None,
                 breakers: Breakers | None = None) -> None:
        self.env, self.policy, self._draw, self.hop, self.breakers = env, policy, draw, hop, breakers
        self._places = policy.places
        gateways = 1 if hop is None else hop.policy.replicas
        self._budgets = [[RetryBudget(place.budget) for place in self._places] for _ in range(gateways)]
        self.covered: set[int] = set()
        self.down: set[int] = set()
        self.fates: dict[int, int] = {}
        self.waits_ns: dict[int, int] = {}
        self.offered_ns: dict[int, int] = {}
        self.attempts, self.calls, self._waits = Table(ATTEMPT_FIELDS), Table(CALL_FIELDS), Table(QUEUED_FIELDS)
        self._outcomes, self._ends = self.attempts.columns["outcome"], self.attempts.columns["end_ns"]
        self._calls: dict[Stage, Call] = {}       # that are not over
        self._live: dict[int, _Attempt] = {}       # that a client has, also those that nobody waits for
        self._of: dict[Request, list[Call]] = {}  # calls that are not over
        self._queue: dict[Call, list[Client]] = {}   # calls that wait, and the clients that may serve them
        self._dispatching = False
        self.flow: FlowControl | None = None   # holds calls until the pool has room; set when a simulation is built

    # -- requests on their way to a client -------------------------------------------------------------------------

    def holds(self, request: Request, stage: Stage, members: list[Client]) -> bool:
        """Return whether a stage is not dispatched now, since none of the clients that serve it is ready."""
        if members and members[0].role == "service" and members[0].index not in self.covered:
            return False
        call = self._call(request, stage)
        call.members = members
        if not call.passed and self._enters(call):
            return True
        if call.waits:       # it comes from the queue
            self._leaves(call)
            return False
        if self.flow is not None and self.flow.takes(call, members):
            return True
        if members and all(queue is not members for queue in self._queue.values()):
            return self.breakers is not None and self._cut_off(call, members, self.breakers)
        policy = self.policy
        if policy.queue_ns is None:
            call.tries += 1
            self._note(call, -1, FAILED)
            self._again(call, f"no replica is ready for {stage.kind!r}", "unavailable", begun=False)
        elif len(self._queue) >= policy.queue_most:
            self.refuse(call, f"the gateway's queue is full ({policy.queue_most} requests)", "unavailable")
        else:
            call.waits, call.queued = True, self._waits.add(call.number, self.env._now, -1)
            self._queue[call] = members
            self.env.tick_at(self.env._now + policy.queue_ns, EXPIRY, partial(self._expire, call, call.tries))
            if members:
                self.members_changed()
        return True

    def _leaves(self, call: Call) -> None:
        """Note that a call waits no longer for a client."""
        call.waits = False
        self._queue.pop(call, None)   # it may be on its way out
        if self.flow is not None:
            self.flow.drop(call)
        if call.queued >= 0:
            self._waits.columns["left_ns"][call.queued], call.queued = self.env._now, -1

    def _enters(self, call: Call) -> bool:
        """Send a call through the hop; return whether that takes time, or ends the call."""
        call.passed = True
        passage = None if self.hop is None else self.hop.enter(self.env._now)
        call.stage.gateway = 0 if passage is None else passage.gateway
        for budget in self._budgets[call.stage.gateway]:
            budget.active += 1
        if self.hop is None or passage is None:
            return False
        if self.hop.policy.replicas > 1:
            call.request.note("gateway", passage.gateway, self.hop.names)
        self._hopped(call.request, passage.wait_ns)
        passed_ns, way = passage.passed_ns, self.calls.columns
        way["gateway"][call.number] = passage.gateway
        way["served_ns"][call.number] = -1 if passed_ns is None else self.env._now + passage.wait_ns
        way["passed_ns"][call.number] = -1 if passed_ns is None else passed_ns
        if passage.passed_ns is None:
            self.refuse(call, f"{self.hop.policy.backlog} requests wait for the gateway", "limited")
            return True
        if passage.passed_ns == self.env._now:
            return False
        self.env.tick_at(passage.passed_ns, ARRIVAL, partial(self._retry, call, call.turn))
        return True

    def _cut_off(self, call: Call, members: list[Client], breakers: Breakers) -> bool:
        """Return whether the circuits of all clients of a call are open, which fails an attempt."""
        if not all(breakers.is_open(call.stage.gateway, client.index) for client in members):
            return False
        call.tries += 1
        self._note(call, -1, FAILED)
        self._again(call, "the circuits of all replicas are open", "unavailable", begun=False)
        return True

    def takes(self, stage: Stage, client: Client) -> bool:
        """Whether a client may get an attempt that another one has refused."""
        return self.breakers is None or not self.breakers.is_open((stage.original or stage).gateway, client.index)

    def refused(self, stage: Stage, client: Client, reason: str) -> bool:
        """Return whether an attempt counts that no engine takes. It does if the engines are full, which is tried again
        or counts as a failure."""
        retried = any(place.retries and FULL_ENGINE in place.retry_on for place in self._places)
        if status_of(reason) != FULL_ENGINE or not (retried or self.breakers is not None):
            return False
        call = self._call(stage.request, stage.original or stage)
        call.tries += 1
        self._note(call, client.index, FAILED)
        self._blame(call, client, FULL_ENGINE)
        self._again(call, reason, "overloaded", begun=False)
        return True

    def blame(self, stage: Stage, client: Client) -> None:
        """Count a failure of a client that was to take over an attempt."""
        call = self._calls.get(stage.original or stage)
        if call is not None:
            self._blame(call, client)

    def _blame(self, call: Call, client: Client, status: int = STATUS_OF_FATE["failed"]) -> None:
        """Count a failure of a client."""
        if self.breakers is not None:
            self.breakers.failed(call.stage.gateway, client.index, status, alone=len(call.members) < 2)

    def _hopped(self, request: Request, wait_ns: int) -> None:
        """Note how long the calls of a request have waited for the capacity of gateways."""
        if self.hop is not None and self.hop.policy.service_ns:
            waits = self.waits_ns
            waits[request.id] = waits.get(request.id, 0) + wait_ns
            request.note(GATEWAY_WAIT, waits[request.id] / NS_PER_S)

    def copy(self, stage: Stage) -> Stage:
        """Return the stage that an attempt dispatches: of a generation a copy, since an earlier one may still run."""
        if type(stage) is ServiceStage and stage in self._calls:
            task = ServiceStage(stage.kind, tokens=stage.tokens, items=stage.items, model=stage.model,
                                priority=stage.priority, inputs=stage.inputs, options=stage.options)
            task.content, task.detached, task.original = stage.content, stage.detached, stage
            return task
        if not isinstance(stage, Generation):
            return stage
        seq = Generation(stage.prompt_tokens, stage.output_tokens, stage.priority, content=stage.content)
        seq.model, seq.inputs, seq.detached, seq.original = stage.model, stage.inputs, stage.detached, stage
        seq.num_computed, seq.cached_tokens = stage.num_computed, stage.cached_tokens
        first = self._calls[stage].first
        if first is not None:
            seq.content = content_again(first)
        return seq if stage.branches is None else branch_into(seq, stage.branches.outputs)

    def unreachable(self, stage: Stage, client: Client) -> bool:
        """Return whether a client cannot be reached, which fails the attempt."""
        if client.index not in self.down:
            return False
        call = self._call(stage.request, stage.original or stage)
        call.tries += 1
        self._note(call, client.index, FAILED)
        self._blame(call, client)
        self._again(call, f"{client.name} cannot be reached", "failed", begun=False)
        return True

    def begins(self, seq: Stage, client: Client) -> None:
        """Note that an attempt is at a client from now on."""
        if client.role == "service" and client.index not in self.covered:
            return
        call = self._call(seq.request, seq.original or seq)
        call.tries += 1
        if call.first is None and isinstance(seq, Generation):
            call.first = seq
        seq.attempt = self._note(call, client.index, RUNNING)
        call.attempt = self._live[seq.attempt] = _Attempt(call, seq.attempt, seq, client)
        if self.flow is not None:
            self.flow.began(call, client)
        self._time_tries(call)

    def moved(self, stage: Generation, twin: Generation, target: Client) -> None:
        """Note that the KV of an attempt has arrived at another client, which goes on with it."""
        attempt = self._live.get(twin.attempt)
        if attempt is not None:
            if self.flow is not None:
                self.flow.moved(attempt.call, attempt.client, target)
            attempt.seq, attempt.client = twin, target
            self.attempts.columns["client"][attempt.id] = target.index

    def _call(self, request: Request, stage: Stage) -> Call:
        call = self._calls.get(stage)
        if call is None:
            now = self.env._now
            number = self.calls.add(request.id, 0, now, now, now, request.offered)
            call = self._calls[stage] = Call(request, stage, number, len(self._places), now)
            self._of.setdefault(request, []).append(call)
            if self.policy.timeout_ns is not None:
                self.env.tick_at(self.env._now + self.policy.timeout_ns, EXPIRY, partial(self._call_late, call))
        return call

    def _note(self, call: Call, client: int, outcome: int) -> int:
        """Begin a row of the table of attempts; return its number."""
        now = self.env._now
        return self.attempts.add(call.request.id, call.number, call.tries, client, now,
                                 -1 if outcome == RUNNING else now, outcome, 0)

    # -- ends of attempts ------------------------------------------------------------------------------------------

    def computed(self, seq: Stage) -> None:
        """Note that a client has computed an attempt, which its front end sends."""
        if seq.attempt in self._live:
            self._live[seq.attempt].computed = True

    def ended(self, seq: Stage) -> bool:
        """Note that an attempt is answered in full; return whether somebody waits for it."""
        if seq.attempt < 0:
            return True   # of a service without attempts
        attempt = self._live.pop(seq.attempt, None)
        if attempt is None:
            return False   # it was cut off while the front end sent it
        if self.flow is not None:
            self.flow.gone(attempt.call, attempt.client, _output_tokens(attempt.call.stage))
        if self._outcomes[attempt.id] != RUNNING:
            attempt.first.done = True
            self._note_computed(attempt)
            return False
        self._close(attempt, COMPLETED)
        if self.breakers is not None:
            self.breakers.succeeded(attempt.call.stage.gateway, attempt.client.index)
        asked = attempt.call.stage
        asked.start_ns, asked.cached_tokens, asked.overlap = seq.start_ns, seq.cached_tokens, seq.overlap
        self._forget(attempt.call)
        return True

    def left(self, seq: Stage) -> None:
        """Note that an attempt that is not completed has left its client."""
        attempt = self._live.pop(seq.attempt, None)
        if attempt is None:
            return
        if self.flow is not None:
            self.flow.gone(attempt.call, attempt.client)
        attempt.first.done = True
        if self._outcomes[attempt.id] == RUNNING:
            self._close(attempt, CANCELLED)
        self._note_computed(attempt)

    def _note_computed(self, attempt: _Attempt) -> None:
        """Note the prompt tokens that were computed for an attempt which came to nothing."""
        first = attempt.first
        if first.start_ns >= 0 and isinstance(first, Generation):
            computed = first.prompt_tokens if first.first_token_ns >= 0 else first.num_computed
            computed = max(min(computed, first.prompt_tokens) - first.cached_tokens, 0)
            self.attempts.columns["computed"][attempt.id] = computed

    def gave_up(self, request: Request) -> None:
        """Give up all that a request has asked for."""
        for call in list(self._of.get(request, ())):
            attempt = call.attempt
            self._forget(call)
            if attempt is not None and self._outcomes[attempt.id] == RUNNING:
                self._close(attempt, CANCELLED)
                self._send_cancel(attempt)

    def turned_away(self, stage: Generation, reason: str) -> None:
        """Note that no client takes over an attempt whose prompt was computed."""
        attempt = self._live.pop(stage.attempt)
        if self.flow is not None:
            self.flow.gone(attempt.call, attempt.client)
        attempt.first.done = True
        self._note_computed(attempt)
        if self._outcomes[attempt.id] == RUNNING:
            self._close(attempt, FAILED)
            self._again(attempt.call, reason, "failed", begun=self.coordinator.answers(stage, attempt.client))

    def _close(self, attempt: _Attempt, outcome: int) -> None:
        self._outcomes[attempt.id], self._ends[attempt.id] = outcome, self.env._now

    def _forget(self, call: Call) -> None:
        call.over, call.attempt = True, None
        if self._calls.pop(call.stage, None) is not None:
            mine = self._of[call.request]
            mine.remove(call)
            if not mine:
                del self._of[call.request]
            if call.passed:
                self._retried(call, None)
                for budget in self._budgets[call.stage.gateway]:
                    budget.active -= 1
        if call.waits:
            self._leaves(call)

    def _send_cancel(self, attempt: _Attempt) -> None:
        """Tell the client of an attempt that nobody waits for it."""
        # one after the other: each may end a step at its instant
        self.env.tick_at(self.env._now + self.policy.cancel_ns, ARRIVAL, partial(self._cancelled, attempt))

    def _cancelled(self, attempt: _Attempt, tick: Tick) -> None:
        if attempt.id not in self._live:
            return
        if attempt.computed:
            self.left(attempt.seq)
        else:
            self.coordinator.abort(attempt.client, attempt.seq)

    def _again(self, call: Call, reason: str, fate: str, *, begun: bool, since: int = 0) -> None:
        """Make another attempt at a call, or end its request. since: The innermost place that decides about it."""
        call.attempt = None
        call.turn += 1
        begun = call.begun = call.begun or begun
        if begun:
            call.request.begun = True
        self._retried(call, None)
        if call.request.over:
            self._forget(call)
            return
        why = reason
        for place in range(since, len(self._places)):
            policy, budget = self._places[place], self._budgets[call.stage.gateway][place]
            if call.used[place] >= policy.retries:
                why = reason + (f", attempt {call.tries}" if call.tries > 1 else "")
            elif begun and not policy.restarts:
                why = f"{reason} after the first token"
            elif STATUS_OF_FATE[fate] not in policy.retry_on:
                why = reason
            elif not budget.allows():
                why = f"{reason}; no more retries at a time"
            else:
                call.used[place] += 1
                call.used[:place] = [0] * place
                self._retried(call, place)
                wait_ns = 0 if policy.alone and len(call.members) > 1 else policy.wait_ns(
                    call.used[place], partial(self._draw, call.request.id))
                self.env.tick_at(self.env._now + wait_ns, ARRIVAL, partial(self._retry, call, call.turn))
                return
        self.refuse(call, why, fate)

    def _retried(self, call: Call, place: int | None) -> None:
        """Note whose retry of a call is under way."""
        budgets = self._budgets[call.stage.gateway]
        if call.retrying is not None:
            budgets[call.retrying].retrying -= 1
        if place is not None:
            budgets[place].retrying += 1
        call.retrying = place

    def _retry(self, call: Call, turn: int, tick: Tick) -> None:
        if not call.over and call.turn == turn:
            if call.request.over:
                self._forget(call)
            else:
                self.coordinator.dispatch(call.request, call.stage)

    # -- called by flow control --------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Dispatch a call that has left the queue of flow control."""
        self.coordinator.dispatch(call.request, call.stage)

    def refuse(self, call: Call, reason: str, fate: str) -> None:
        """Answer the request of a call with an error."""
        self._forget(call)
        if not call.request.over:
            self.fates[call.request.id] = FATES.index(fate)
            self.coordinator.refuse(call.request, f"{fate}: {reason}")   # its client may offer it again

    def running(self) -> list[_Attempt]:
        """Return the attempts that a client has and somebody waits for, in order of their numbers."""
        return [attempt for attempt in self._live.values() if self._outcomes[attempt.id] == RUNNING]

    def revoke(self, number: int, reason: str) -> None:
        """Cancel an attempt that runs, and answer its request with an error."""
        attempt = self._live[number]
        if self._outcomes[number] == RUNNING:   # the end of another may have ended its request
            self._close(attempt, REVOKED)
            self._send_cancel(attempt)
            self.refuse(attempt.call, reason, "revoked")

    # -- time --------------------------------------------------------------------------------------------------------

    def _time_tries(self, call: Call) -> None:
        """Limit the tries of each place that begin with this attempt."""
        for place, policy in enumerate(self._places):
            tries = tuple(call.used[place:])
            if policy.per_try_ns is not None and call.timed[place] != tries:
                call.timed[place] = tries
                self.env.tick_at(self.env._now + policy.per_try_ns, EXPIRY, partial(self._try_late, call, place, tries))

    def _try_late(self, call: Call, place: int, tries: tuple[int, ...], tick: Tick) -> None:
        if call.over or tuple(call.used[place:]) != tries:
            return
        begun = self._stop(call)
        if call.waits:
            self._leaves(call)
        limit_ns = self._places[place].per_try_ns
        assert limit_ns is not None
        self._again(call, f"no answer within {limit_ns / 1e9:g} s", "timed out", begun=begun, since=place)

    def _stop(self, call: Call) -> bool:
        """End the attempt under way as timed out; return whether its user has a token."""
        attempt = call.attempt
        if attempt is None or self._outcomes[attempt.id] != RUNNING:
            return False
        self._close(attempt, TIMED_OUT)
        self._blame(call, attempt.client, STATUS_OF_FATE["timed out"])
        self._send_cancel(attempt)
        return self.coordinator.answers(attempt.seq, attempt.client)

    def _call_late(self, call: Call, tick: Tick) -> None:
        if call.over:
            return
        if self._stop(call):
            call.request.begun = True
        assert self.policy.timeout_ns is not None
        self.refuse(call, f"no answer within {self.policy.timeout_ns / 1e9:g} s", "timed out")

    def _expire(self, call: Call, tries: int, tick: Tick) -> None:
        """End a call that has waited in the queue for too long."""
        if call.waits and call.tries == tries and not call.over:
            assert self.policy.queue_ns is not None
            self.refuse(call, f"no replica was ready within {self.policy.queue_ns / 1e9:g} s", "expired")

    # -- clients -----------------------------------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Send out what waits for clients, once all other events of this instant but step starts have passed."""
        if self.flow is not None:
            self.flow.members_changed()
        if self._queue and not self._dispatching:
            self._dispatching = True
            self.env.tick_at(self.env._now, DISPATCH, self._send_out)

    def _send_out(self, tick: Tick) -> None:
        self._dispatching = False
        queue, self._queue = self._queue, {}
        for call, members in queue.items():
            if call.over or call.request.over:
                self._forget(call)
            elif members:
                self.send(call)
            else:
                self._queue[call] = members

    def lost(self, client: Client) -> None:
        """Handle a client that goes down at this instant, with all that it has and all KV that moves from and to it."""
        self.down.add(client.index)
        if self.flow is not None:
            self.flow.seen(client)
        handoff = self.coordinator.handoff
        moving = set() if handoff is None else handoff.attempts_over(client)
        hit = [attempt for attempt in self._live.values() if attempt.client is client or attempt.id in moving]
        begun = {attempt.id: self.coordinator.answers(attempt.seq, attempt.client) for attempt in hit}
        waited = [attempt for attempt in hit if self._outcomes[attempt.id] == RUNNING]
        for attempt in waited:
            self._close(attempt, FAILED)
        if handoff is not None:
            handoff.lost(client)
        for attempt in hit:
            if attempt.computed:
                self.left(attempt.seq)
        here = [attempt.seq for attempt in hit if attempt.client is client and attempt.id in self._live]
        self.coordinator.lose(client, here)
        for attempt in sorted(waited, key=lambda attempt: attempt.call.request.id):
            if attempt.id in self._live:   # its prompt is computed elsewhere, and was to go to this client
                self._send_cancel(attempt)
            self._blame(attempt.call, client)
            self._again(attempt.call, f"{client.name} went down", "failed", begun=begun[attempt.id])

    def back(self, client: Client) -> None:
        """Note that a client can be reached again."""
        self.down.discard(client.index)
        if self.flow is not None:
            self.flow.seen(client)

    def num_waiting(self, lists: list[list[Client]]) -> int:
        """Return the calls that wait for one of these lists of clients to have a ready one."""
        held = 0 if self.flow is None else self.flow.num_waiting(lists)
        return held + sum(any(members is one for one in lists) for members in self._queue.values())

    def begun(self, request: Request) -> bool:
        """Whether the user of a request has a token, in what it asks for now."""
        return request.begun or any(map(self._has_begun, self._of.get(request, ())))

    def call_begun(self, stage: Stage) -> bool | None:
        """Whether the user has a token of a call; None for one that is over."""
        call = self._calls.get(stage)
        return None if call is None else self._has_begun(call)

    def _has_begun(self, call: Call) -> bool:
        attempt = call.attempt
        return call.begun or (attempt is not None and self.coordinator.answers(attempt.seq, attempt.client))

    def idle(self) -> bool:
        """Whether nothing is left: no call, no attempt, no wait."""
        counts = [(budget.active, budget.retrying) for places in self._budgets for budget in places]
        return not (self._calls or self._live or self._queue or self._of or any(map(any, counts))) and (
            self.flow is None or self.flow.idle())

    # -- record ------------------------------------------------------------------------------------------------------

    def queued(self) -> dict[str, IntArray]:
        """Return the columns of the table of waits for a ready client; none if none waited."""
        return self._waits.arrays() if len(self._waits) else {}

    def offers(self) -> dict[str, IntArray]:
        """Return when requests were offered again for the last time; nothing if none was."""
        rows = np.array(sorted(self.offered_ns.items()), dtype=np.int64).reshape(-1, 2)
        return {"request": rows[:, 0].copy(), "offered_ns": rows[:, 1].copy()} if len(rows) else {}


def _output_tokens(stage: Stage) -> int:
    """Return the output tokens of a call, of all its branches."""
    if not isinstance(stage, Generation):
        return 0
    return stage.output_tokens if stage.branches is None else sum(stage.branches.outputs)


def content_again(first: Generation) -> PromptContent:
    """Return the content of another attempt: prefix caches find the prompt that the first one has computed. The answer
    is a new one, but in a conversation the next turn repeats the one that was given."""
    content = first.content
    text = content.content if isinstance(content, AdapterText) else content
    if content is not None and isinstance(text, ConversationText) and text.num_tokens >= first.prompt_tokens:
        return content
    return SharedPrompt(first)
