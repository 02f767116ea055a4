"""The gateway: attempts at what engines serve, where clients can be lost, requests time out, or no client is ready.

Each generation or embedding of a request on an engine, and each stage at a service whose clients come and go, is a
*call*. The gateway makes one *attempt* after the other at it, each at the client that the router chooses. An attempt is
over when it is completed, when its client went down or could not be reached (failed), when the gateway waits no longer
(timed out), or when nobody waits for the request (cancelled). The next attempt starts anew, after a back-off; what the
one before had computed is wasted. Two places decide about it (`hermes.gateway.retries`): the router, and when its
retries are used up the gateway, whose each try has all of the router's. Before both comes migration, at once and with
the tokens that the user has (`hermes.gateway.migration`). A call whose attempts are exhausted ends its request, unless
its client offers the request again (`hermes.gateway.client_retries`).

What else a gateway does are its parts (`hermes.gateway.parts`): the hop, time-outs, flow control, the queue of calls
that find no ready client, circuit breakers. A simulation has no gateway where none of this can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from hermes.core.client import Client
from hermes.core.clock import ARRIVAL, Clock, Tick
from hermes.core.generation import Generation
from hermes.core.record import ATTEMPT_FIELDS, CALL_FIELDS, FATES
from hermes.core.request import Request
from hermes.core.stage import Stage
from hermes.core.statuses import FULL_ENGINE, STATUS_OF_FATE, status_of
from hermes.dispatch.parts import DispatchPart
from hermes.dispatch.rows import Table
from hermes.gateway.calls import Attempt, Call, computed_of, copy_of, output_tokens
from hermes.gateway.parts import GatewayPart
from hermes.gateway.retries import RetryBudget, RetryPolicy

__all__ = ["Draw", "Gateway", "GatewayPolicy"]

RUNNING, COMPLETED, FAILED, TIMED_OUT, CANCELLED, REVOKED, MIGRATED = range(7)   # `ATTEMPT_OUTCOMES`
Draw = Callable[[int], float]


@dataclass(frozen=True)
class GatewayPolicy:
    """What a gateway does. Times in nanoseconds.

    Attributes:
        retry: Its own retries.
        router: Those of the router behind it; None for none.
        migration: Attempts that go on where the one before ended; None for none.
        cancel_ns: Time until a client learns that nobody waits for an attempt.
        replicas: Gateways, each with retries of its own.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    router: RetryPolicy | None = None
    migration: RetryPolicy | None = None
    cancel_ns: int = 0
    replicas: int = 1

    @property
    def places(self) -> tuple[RetryPolicy, ...]:
        """Where it is decided about the next attempt, the innermost place first."""
        return tuple(place for place in (self.migration, self.router, self.retry) if place is not None)


class Gateway(DispatchPart):
    """See the module's docstring.

    Args:
        draw: Returns numbers from 0 to 1 of a stream of each request, by the request's number.
        parts: Each makes a part of this gateway; their hooks are called in this order.

    Attributes:
        down: Indices of clients that cannot be reached.
    """

    attempts: ClassVar[bool] = True

    def __init__(self, env: Clock, policy: GatewayPolicy, draw: Draw,
                 parts: Sequence[Callable[[Gateway], GatewayPart]] = ()) -> None:
        self.env, self.policy, self._draw = env, policy, draw
        self._places = policy.places
        self._budgets = [[RetryBudget(place.budget) for place in self._places] for _ in range(policy.replicas)]
        self._covered: set[int] = set()   # clients without an engine at which it makes attempts: those that may crash
        self.down: set[int] = set()
        self.rows, self.calls = Table(ATTEMPT_FIELDS), Table(CALL_FIELDS)
        columns = self.rows.columns
        self._outcomes, self._ends, self._computed = columns["outcome"], columns["end_ns"], columns["computed"]
        self._calls: dict[Stage, Call] = {}       # that are not over
        self._live: dict[int, Attempt] = {}       # that a client has, also those that nobody waits for
        self._of: dict[Request, list[Call]] = {}  # calls that are not over
        self._hit: list[tuple[Attempt, bool, bool]] = []   # of a client that goes down: waited for, whether begun
        self.parts = tuple(make(self) for make in parts)
        self._that_hold, self._that_begin = self._with("holds"), self._with("began")
        self._that_go, self._that_answer = self._with("gone"), self._with("answered")
        self._that_close, self._that_forget = self._with("closes"), self._with("forgets")
        self._that_repeat = self._with("repeats")

    def _with(self, hook: str) -> tuple[GatewayPart, ...]:
        return tuple(part for part in self.parts if part.has(hook))

    # -- requests on their way to a client -------------------------------------------------------------------------

    def holds(self, request: Request, stage: Stage, members: list[Client]) -> bool:
        """Return whether a stage is not dispatched now, since none of the clients that serve it is ready."""
        if members and members[0].role == "service" and members[0].index not in self._covered:
            return False
        call = self._call(request, stage)
        call.members = members
        if not call.passed and self._enters(call):
            return True
        if call.waits:       # a part lets it go
            self.release(call)
            return False
        for part in self._that_hold:
            if part.holds(call, members):
                return True
        if members:
            return False
        self.fail(call, f"no replica is ready for {stage.kind!r}", "unavailable")
        return True

    def _enters(self, call: Call) -> bool:
        """Return whether the way of a call into the gateway takes time, or ends it."""
        call.passed, call.stage.gateway = True, 0
        for part in self.parts:
            part.picks(call)
        for budget in self._budgets[call.stage.gateway]:
            budget.active += 1
        return any(part.enters(call) for part in self.parts)

    def release(self, call: Call) -> None:
        """Note that a call waits no longer for a client."""
        call.waits = False
        for part in self.parts:
            part.released(call)

    def fail(self, call: Call, reason: str, fate: str, client: Client | None = None,
             status: int = STATUS_OF_FATE["failed"]) -> None:
        """Count an attempt that no client begins, and make another. client: The one that it was for."""
        call.tries += 1
        self._note(call, -1 if client is None else client.index, FAILED)
        if client is not None:
            self._blame(call, client, status)
        self.again(call, reason, fate, begun=False)

    def takes(self, stage: Stage, client: Client) -> bool:
        """Whether a client may get an attempt that another one has refused."""
        call = self._calls.get(stage.original or stage)
        return call is None or all(part.allows(call, client) for part in self.parts)

    def refused(self, stage: Stage, client: Client, reason: str) -> bool:
        """Return whether an attempt counts that no engine takes. It does if the engines are full, which is tried again
        or counts as a failure."""
        retried = any(place.retries and FULL_ENGINE in place.retry_on for place in self._places)
        if status_of(reason) != FULL_ENGINE or not (retried or any(part.counts_refusals for part in self.parts)):
            return False
        self.fail(self._call(stage.request, stage.original or stage), reason, "overloaded", client, FULL_ENGINE)
        return True

    def reaches(self, client: Client) -> bool:
        return client.index not in self.down

    def failed(self, stage: Generation, client: Client) -> None:
        """Count a failure of a client that was to take over an attempt."""
        call = self._calls.get(stage.original or stage)
        if call is not None:
            self._blame(call, client)

    def _blame(self, call: Call, client: Client, status: int = STATUS_OF_FATE["failed"]) -> None:
        """Count a failure of a client."""
        for part in self.parts:
            part.failed(call, client, status)

    def copy(self, stage: Stage) -> Stage:
        call = self._calls.get(stage)
        return stage if call is None else copy_of(call)

    def unreachable(self, stage: Stage, client: Client) -> bool:
        """Return whether a client cannot be reached, which fails the attempt."""
        if client.index not in self.down:
            return False
        self.fail(self._call(stage.request, stage.original or stage), f"{client.name} cannot be reached", "failed",
                  client)
        return True

    def begins(self, seq: Stage, client: Client) -> None:
        """Note that an attempt is at a client from now on."""
        if client.role == "service" and client.index not in self._covered:
            return
        call = self._call(seq.request, seq.original or seq)
        call.tries += 1
        if call.first is None and isinstance(seq, Generation):
            call.first = seq
        seq.attempt = self._note(call, client.index, RUNNING)
        call.attempt = self._live[seq.attempt] = Attempt(call, seq.attempt, seq, client)
        for part in self._that_begin:
            part.began(call, client)

    def moved(self, stage: Generation, twin: Generation, target: Client) -> None:
        """Note that the KV of an attempt has arrived at another client, which goes on with it."""
        attempt = self._live.get(twin.attempt)
        if attempt is not None:
            for part in self.parts:
                part.moved(attempt.call, attempt.client, target)
            attempt.seq, attempt.client = twin, target
            self.rows.columns["client"][attempt.id] = target.index

    def _call(self, request: Request, stage: Stage) -> Call:
        call = self._calls.get(stage)
        if call is None:
            now = self.env._now
            number = self.calls.add(request.id, 0, now, now, now, request.offered)
            call = self._calls[stage] = Call(request, stage, number, len(self._places), now)
            self._of.setdefault(request, []).append(call)
            for part in self.parts:
                part.asked(call)
        return call

    def _note(self, call: Call, client: int, outcome: int) -> int:
        """Begin a row of the table of attempts; return its number."""
        now = self.env._now
        return self.rows.add(call.request.id, call.number, call.tries, client, now,
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
        for part in self._that_go:
            part.gone(attempt, output_tokens(attempt.call.stage))
        if self._outcomes[attempt.id] != RUNNING:
            attempt.first.done = True
            self._computed[attempt.id] = computed_of(attempt)
            return False
        self._close(attempt, COMPLETED)
        for part in self._that_answer:
            part.answered(attempt.call, attempt.client)
        asked = attempt.call.stage
        asked.start_ns, asked.cached_tokens, asked.overlap = seq.start_ns, seq.cached_tokens, seq.overlap
        self.forget(attempt.call)
        return True

    def left(self, seq: Stage) -> None:
        """Note that an attempt that is not completed has left its client."""
        attempt = self._live.pop(seq.attempt, None)
        if attempt is None:
            return
        for part in self._that_go:
            part.gone(attempt, -1)
        attempt.first.done = True
        if self._outcomes[attempt.id] == RUNNING:
            self._close(attempt, CANCELLED)
        self._computed[attempt.id] = computed_of(attempt)

    def gave_up(self, request: Request) -> None:
        """Give up all that a request has asked for."""
        for call in list(self._of.get(request, ())):
            attempt = call.attempt
            self.forget(call)
            if attempt is not None and self._outcomes[attempt.id] == RUNNING:
                self._close(attempt, CANCELLED)
                self._send_cancel(attempt)

    def turned_away(self, stage: Generation, client: Client, reason: str) -> bool:
        """Make another attempt in place of one whose prompt was computed, and that no client takes over."""
        attempt = self._live.pop(stage.attempt)
        for part in self._that_go:
            part.gone(attempt, -1)
        attempt.first.done = True
        self._computed[attempt.id] = computed_of(attempt)
        if self._outcomes[attempt.id] == RUNNING:
            self._close(attempt, FAILED)
            self.again(attempt.call, reason, "failed", begun=self.coordinator.answers(stage, attempt.client))
        return True

    def _close(self, attempt: Attempt, outcome: int) -> None:
        for part in self._that_close if outcome != COMPLETED else ():
            part.closes(attempt)
        self._outcomes[attempt.id], self._ends[attempt.id] = outcome, self.env._now

    def forget(self, call: Call) -> None:
        """Drop a call that is over."""
        call.over, call.attempt = True, None
        if self._calls.pop(call.stage, None) is not None:
            mine = self._of[call.request]
            mine.remove(call)
            if not mine:
                del self._of[call.request]
            if call.passed:
                call.retried(self._budgets[call.stage.gateway], None)
                for budget in self._budgets[call.stage.gateway]:
                    budget.active -= 1
        if call.waits:
            self.release(call)
        for part in self._that_forget:
            part.forgets(call)

    def _send_cancel(self, attempt: Attempt) -> None:
        """Tell the client of an attempt that nobody waits for it."""
        # one after the other: each may end a step at its instant
        self.env.tick_at(self.env._now + self.policy.cancel_ns, ARRIVAL, partial(self._cancelled, attempt))

    def _cancelled(self, attempt: Attempt, tick: Tick) -> None:
        if attempt.id not in self._live:
            return
        if attempt.computed:
            self.left(attempt.seq)
        else:
            self.coordinator.abort(attempt.client, attempt.seq)

    def again(self, call: Call, reason: str, fate: str, *, begun: bool, since: int = 0) -> None:
        """Make another attempt at a call, or end its request. since: The innermost place that decides about it."""
        ended, call.attempt = call.attempt, None
        call.turn += 1
        begun = call.begun = call.begun or begun
        if begun:
            call.request.begun = True
        call.retried(self._budgets[call.stage.gateway], None)
        if call.request.over:
            self.forget(call)
            return
        why = reason
        for place in range(since, len(self._places)):
            policy, budget = self._places[place], self._budgets[call.stage.gateway][place]
            if policy.goes_on and not any(part.may_go_on(call, ended, reason) for part in self._that_repeat):
                why = reason
            elif call.used[place] >= policy.retries:
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
                for part in self._that_repeat:
                    part.repeats(call, ended, goes_on=policy.goes_on)
                call.retried(self._budgets[call.stage.gateway], place)
                wait_ns = 0 if policy.alone and len(call.members) > 1 else policy.wait_ns(
                    call.used[place], partial(self._draw, call.request.id))
                self.retry_at(call, self.env._now + wait_ns)
                return
        self.refuse(call, why, fate)

    def retry_at(self, call: Call, time_ns: int) -> None:
        """Dispatch a call at a time, unless something else is decided about it before."""
        self.env.tick_at(time_ns, ARRIVAL, partial(self._retry, call, call.turn))

    def _retry(self, call: Call, turn: int, tick: Tick) -> None:
        if not call.over and call.turn == turn:
            if call.request.over:
                self.forget(call)
            else:
                self.send(call)

    # -- called by parts ---------------------------------------------------------------------------------------------

    def send(self, call: Call) -> None:
        """Dispatch a call."""
        self.coordinator.dispatch(call.request, call.stage)

    def refuse(self, call: Call, reason: str, fate: str) -> None:
        """Answer the request of a call with an error."""
        self.forget(call)
        if not call.request.over:
            if not call.request.background:   # or its answer is complete
                self.coordinator.fates[call.request.id] = FATES.index(fate)
            self.coordinator.refuse(call.request, f"{fate}: {reason}")   # its client may offer it again

    def running(self) -> list[Attempt]:
        """Return the attempts that a client has and somebody waits for, in order of their numbers."""
        return [attempt for attempt in self._live.values() if self._outcomes[attempt.id] == RUNNING]

    def outcome(self, number: int) -> int:
        """Return what became of an attempt."""
        return self._outcomes[number]

    def reckon(self, number: int, outcome: int) -> None:
        """Change what became of an attempt that is over."""
        self._outcomes[number] = outcome

    def revoke(self, number: int, reason: str) -> None:
        """Cancel an attempt that runs, and answer its request with an error."""
        attempt = self._live[number]
        if self._outcomes[number] == RUNNING:   # the end of another may have ended its request
            self._close(attempt, REVOKED)
            self._send_cancel(attempt)
            self.refuse(attempt.call, reason, "revoked")

    def stop(self, call: Call) -> bool:
        """End the attempt under way as timed out; return whether its user has a token."""
        attempt = call.attempt
        if attempt is None or self._outcomes[attempt.id] != RUNNING:
            return False
        self._close(attempt, TIMED_OUT)
        self._blame(call, attempt.client, STATUS_OF_FATE["timed out"])
        self._send_cancel(attempt)
        return self.coordinator.answers(attempt.seq, attempt.client)

    # -- clients -----------------------------------------------------------------------------------------------------

    def covers(self, clients: Sequence[Client]) -> None:
        self._covered |= {client.index for client in clients}

    def members_changed(self) -> None:
        for part in self.parts:
            part.members_changed()

    def goes_down(self, client: Client) -> None:
        """Close the attempts at a client that goes down, and those whose KV moves from and to it."""
        self._seen(client, self.down.add)
        moving = {number for part in self.coordinator.parts for number in part.attempts_over(client)}
        hit = [attempt for attempt in self._live.values() if attempt.client is client or attempt.id in moving]
        self._hit = [(attempt, self._outcomes[attempt.id] == RUNNING,
                      self.coordinator.answers(attempt.seq, attempt.client)) for attempt in hit]
        for attempt, waited, _ in self._hit:
            if waited:
                self._close(attempt, FAILED)

    def lost(self, client: Client, why: str) -> None:
        """End the attempts at a client that has gone down, and make others."""
        hit, self._hit = self._hit, []
        for attempt, _, _ in hit:
            if attempt.computed:
                self.left(attempt.seq)
        self.coordinator.completions.lose(client, [attempt.seq for attempt, _, _ in hit
                                       if attempt.client is client and attempt.id in self._live])
        for attempt, waited, begun in sorted(hit, key=lambda one: one[0].call.request.id):
            if not waited:
                continue
            if attempt.id in self._live:   # its prompt is computed elsewhere, and was to go to this client
                self._send_cancel(attempt)
            self._blame(attempt.call, client)
            self.again(attempt.call, f"{client.name} {why}", "failed", begun=begun)

    def back(self, client: Client) -> None:
        self._seen(client, self.down.discard)

    def _seen(self, client: Client, note: Callable[[int], None]) -> None:
        note(client.index)
        for part in self.parts:
            part.seen(client)

    @property
    def queues(self) -> bool:
        return any(part.queues for part in self.parts)

    def num_waiting(self, lists: list[list[Client]]) -> int:
        return sum(part.num_waiting(lists) for part in self.parts)

    def reads(self, request: Request) -> bool:
        return request.begun or any(map(self._has_begun, self._of.get(request, ())))

    def begun(self, stage: Stage) -> bool | None:
        call = self._calls.get(stage)
        return None if call is None else self._has_begun(call)

    def _has_begun(self, call: Call) -> bool:
        attempt = call.attempt
        return call.begun or (attempt is not None and self.coordinator.answers(attempt.seq, attempt.client))

    def idle(self) -> bool:
        """Whether nothing is left: no call, no attempt, no wait."""
        counts = [(budget.active, budget.retrying) for places in self._budgets for budget in places]
        return not (self._calls or self._live or self._of or any(map(any, counts))) and all(
            part.idle() for part in self.parts)

    def record(self, end_ns: int) -> dict[str, Any]:   # Any: fields of the record
        found = {"attempts": self.rows.arrays(), "calls": self.calls.arrays()}
        for part in self.parts:
            found |= part.record()
        return found
