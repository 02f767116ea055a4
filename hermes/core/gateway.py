"""The gateway: attempts at what engines serve, where clients can be lost, requests time out, or no client is ready.

Each generation or embedding of a request on an engine, and each stage at a service whose clients come and go, is a
*call*. The gateway makes one *attempt* after the other at it, each at the client that the router chooses. An attempt is
over when it is completed, when its client went down or could not be reached (failed), when the gateway waits no longer
(timed out), or when nobody waits for the request (cancelled). The next attempt starts anew, after a back-off; what the
one before had computed is wasted. A call whose attempts are exhausted ends its request.

A call that finds no ready client waits in the queue, first come first served, or is answered with an error. The
coordinator has no gateway where none of this can happen.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from hermes.arrays import IntArray
from hermes.core.block_hashes import AdapterText, ConversationText, PromptContent
from hermes.core.branches import SharedPrompt, branch_into
from hermes.core.client import Client
from hermes.core.clock import ARRIVAL, DISPATCH, EXPIRY, Clock, Tick
from hermes.core.generation import Generation
from hermes.core.record import ATTEMPT_FIELDS, FATES
from hermes.core.request import Request
from hermes.core.stage import ServiceStage, Stage

if TYPE_CHECKING:
    from hermes.core.flow_control import FlowControl  # most gateways have none
    from hermes.core.kv_transfer import Handoff

__all__ = ["Gateway", "GatewayPolicy"]

RUNNING, COMPLETED, FAILED, TIMED_OUT, CANCELLED, REVOKED = range(6)   # `ATTEMPT_OUTCOMES`
Draw = Callable[[int], float]


@dataclass(frozen=True)
class GatewayPolicy:
    """What a gateway does. Times in nanoseconds.

    Attributes:
        retries: Attempts after the first one of a call.
        backoff_ns, most_backoff_ns: Before retry n it waits uniformly between 0 and (2^n - 1) x `backoff_ns`, at most
            `most_backoff_ns` (Envoy's rule).
        timeout_ns: Longest time of a call with all its attempts, waiting included; None for no limit.
        per_try_ns: Longest time of an attempt; None for no limit.
        cancel_ns: Time until a client learns that nobody waits for an attempt.
        restarts: Whether an attempt whose first token its user has is made again, too.
        queue_ns: Longest wait for a ready client; None: the gateway does not wait.
        queue_most: Most calls that wait.
    """

    retries: int = 0
    backoff_ns: int = 25_000_000
    most_backoff_ns: int = 250_000_000
    timeout_ns: int | None = None
    per_try_ns: int | None = None
    cancel_ns: int = 0
    restarts: bool = False
    queue_ns: int | None = None
    queue_most: int = 1 << 62


class Dispatching(Protocol):
    """Methods of the coordinator that the gateway calls."""

    handoff: Handoff | None

    def dispatch(self, request: Request, stage: Stage) -> None:
        """Choose a client for a stage and submit the stage to it."""
        ...

    def refuse(self, request: Request, reason: str) -> None:
        """End a request that cannot be served."""
        ...

    def answers(self, stage: Stage) -> bool:
        """Whether the user has the first token of a generation."""
        ...

    def abort(self, client: Client, stage: Stage) -> None:
        """Cancel a stage that a client has, or that moves to another."""
        ...

    def lose(self, client: Client, stages: list[Stage]) -> None:
        """End stages that a client had when it went down."""
        ...


class _Call:
    """A generation or embedding of a request, its latest attempt, and the sequence of the first one at a client."""

    __slots__ = ("asked_ns", "attempt", "first", "number", "over", "request", "stage", "tries", "waits")

    def __init__(self, request: Request, stage: Stage, number: int, asked_ns: int) -> None:
        self.request, self.stage, self.number, self.asked_ns = request, stage, number, asked_ns
        self.tries = 0
        self.attempt: _Attempt | None = None
        self.first: Generation | None = None
        self.over = self.waits = False


class _Attempt:
    """An attempt that a client may still work on. `first`, `seq`: its sequence at its first and present client."""

    __slots__ = ("call", "client", "first", "id", "seq")

    def __init__(self, call: _Call, number: int, seq: Stage, client: Client) -> None:
        self.call, self.id, self.client = call, number, client
        self.first = self.seq = seq


class Gateway:
    """See the module's docstring.

    Args:
        draw: Returns numbers from 0 to 1 of a stream of each request, by the request's number.

    Attributes:
        book: The coordinator, which sets it.
        stage_attempts: The attempt of each row of the table of stages; -1 for stages without.
        covered: Indices of clients without an engine at which it makes attempts: those that may crash.
        down: Indices of clients that cannot be reached.
        fates: Request -> index into `FATES`, of requests that it answered with an error.
    """

    def __init__(self, env: Clock, policy: GatewayPolicy, draw: Draw) -> None:
        self.env, self.policy, self._draw = env, policy, draw
        self.book = cast(Dispatching, None)   # the coordinator sets it
        self.stage_attempts = array("q")
        self.covered: set[int] = set()
        self.down: set[int] = set()
        self.fates: dict[int, int] = {}
        self._columns = {name: array("q") for name in ATTEMPT_FIELDS}
        self._outcomes, self._ends = self._columns["outcome"], self._columns["end_ns"]
        self._calls: dict[Stage, _Call] = {}       # that are not over
        self._live: dict[int, _Attempt] = {}       # that a client has, also those that nobody waits for
        self._num_calls = 0
        self._of: dict[Request, list[_Call]] = {}  # calls that are not over
        self._queue: dict[_Call, list[Client]] = {}   # calls that wait, and the clients that may serve them
        self._dispatching = False
        self.flow: FlowControl | None = None   # holds calls until the pool has room; set when a simulation is built

    # -- requests on their way to a client -------------------------------------------------------------------------

    def holds(self, request: Request, stage: Stage, members: list[Client]) -> bool:
        """Return whether a stage is not dispatched now, since none of the clients that serve it is ready."""
        if members and members[0].role == "service" and members[0].index not in self.covered:
            return False
        call = self._call(request, stage)
        if call.waits:       # it comes from the queue
            call.waits = False
            return False
        if self.flow is not None and self.flow.takes(call, members):
            return True
        if members and all(queue is not members for queue in self._queue.values()):
            return False
        policy = self.policy
        if policy.queue_ns is None:
            call.tries += 1
            self._note(call, -1, FAILED)
            self._again(call, f"no replica is ready for {stage.kind!r}", "unavailable", begun=False)
        elif len(self._queue) >= policy.queue_most:
            self._end(call, f"the gateway's queue is full ({policy.queue_most} requests)", "unavailable")
        else:
            call.waits = True
            self._queue[call] = members
            self.env.tick_at(self.env._now + policy.queue_ns, EXPIRY, partial(self._expire, call, call.tries))
            if members:
                self.members_changed()
        return True

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
            seq.content = _content_again(first)
        return seq if stage.branches is None else branch_into(seq, stage.branches.outputs)

    def unreachable(self, stage: Stage, client: Client) -> bool:
        """Return whether a client cannot be reached, which fails the attempt."""
        if client.index not in self.down:
            return False
        call = self._call(stage.request, stage.original or stage)
        call.tries += 1
        self._note(call, client.index, FAILED)
        self._again(call, f"{client.name} cannot be reached", "failed", begun=False)
        return True

    def begins(self, seq: Stage, client: Client) -> None:
        """Note that an attempt is at a client from now on."""
        call = self._call(seq.request, seq.original or seq)
        call.tries += 1
        if call.first is None and isinstance(seq, Generation):
            call.first = seq
        seq.attempt = self._note(call, client.index, RUNNING)
        attempt = call.attempt = self._live[seq.attempt] = _Attempt(call, seq.attempt, seq, client)
        if self.flow is not None:
            self.flow.began(call, client)
        if self.policy.per_try_ns is not None:
            self.env.tick_at(self.env._now + self.policy.per_try_ns, EXPIRY, partial(self._attempt_late, attempt))

    def moved(self, twin: Generation, target: Client) -> None:
        """Note that the KV of an attempt has arrived at another client, which goes on with it."""
        attempt = self._live.get(twin.attempt)
        if attempt is not None:
            if self.flow is not None:
                self.flow.moved(attempt.client, target)
            attempt.seq, attempt.client = twin, target
            self._columns["client"][attempt.id] = target.index

    def _call(self, request: Request, stage: Stage) -> _Call:
        call = self._calls.get(stage)
        if call is None:
            call = self._calls[stage] = _Call(request, stage, self._num_calls, self.env._now)
            self._of.setdefault(request, []).append(call)
            self._num_calls += 1
            if self.policy.timeout_ns is not None:
                self.env.tick_at(self.env._now + self.policy.timeout_ns, EXPIRY, partial(self._call_late, call))
        return call

    def _note(self, call: _Call, client: int, outcome: int) -> int:
        """Begin a row of the table of attempts; return its number."""
        now = self.env._now
        row = (call.request.id, call.number, call.tries, client, now, -1 if outcome == RUNNING else now, outcome, 0)
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        return len(self._outcomes) - 1

    # -- ends of attempts ------------------------------------------------------------------------------------------

    def ended(self, seq: Stage) -> bool:
        """Note that a client has completed an attempt; return whether somebody waits for it."""
        if seq.attempt < 0:
            return True   # of a service without attempts
        attempt = self._live.pop(seq.attempt)
        if self.flow is not None:
            self.flow.gone(attempt.call, attempt.client, _output_tokens(attempt.call.stage))
        if self._outcomes[attempt.id] != RUNNING:
            attempt.first.done = True
            self._note_computed(attempt)
            return False
        self._close(attempt, COMPLETED)
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
            self._columns["computed"][attempt.id] = max(min(computed, first.prompt_tokens) - first.cached_tokens, 0)

    def cancel(self, request: Request) -> None:
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
            self._again(attempt.call, reason, "failed", begun=self.book.answers(stage))

    def _close(self, attempt: _Attempt, outcome: int) -> None:
        self._outcomes[attempt.id], self._ends[attempt.id] = outcome, self.env._now

    def _forget(self, call: _Call) -> None:
        call.over, call.attempt = True, None
        if self._calls.pop(call.stage, None) is not None:
            mine = self._of[call.request]
            mine.remove(call)
            if not mine:
                del self._of[call.request]
        if call.waits:
            call.waits = False
            self._queue.pop(call, None)   # it may be on its way out
            if self.flow is not None:
                self.flow.drop(call)

    def _send_cancel(self, attempt: _Attempt) -> None:
        """Tell the client of an attempt that nobody waits for it."""
        # one after the other: each may end a step at its instant
        self.env.tick_at(self.env._now + self.policy.cancel_ns, ARRIVAL, partial(self._cancelled, attempt))

    def _cancelled(self, attempt: _Attempt, tick: Tick) -> None:
        if attempt.id in self._live:
            self.book.abort(attempt.client, attempt.seq)

    def _again(self, call: _Call, reason: str, fate: str, *, begun: bool) -> None:
        """Make another attempt at a call, or end its request."""
        call.attempt = None
        if call.request.over:
            self._forget(call)
        elif call.tries > self.policy.retries:
            self._end(call, reason + (f", attempt {call.tries}" if call.tries > 1 else ""), fate)
        elif begun and not self.policy.restarts:
            self._end(call, f"{reason} after the first token", fate)
        else:
            most = min((2 ** min(call.tries, 60) - 1) * self.policy.backoff_ns, self.policy.most_backoff_ns)
            wait_ns = int(most * self._draw(call.request.id)) if most else 0
            self.env.tick_at(self.env._now + wait_ns, ARRIVAL, partial(self._retry, call))

    def _retry(self, call: _Call, tick: Tick) -> None:
        if not call.over:
            if call.request.over:
                self._forget(call)
            else:
                self.book.dispatch(call.request, call.stage)

    def _end(self, call: _Call, reason: str, fate: str) -> None:
        """Answer a request with an error."""
        self._forget(call)
        if not call.request.over:
            self.fates[call.request.id] = FATES.index(fate)
            self.book.refuse(call.request, f"{fate}: {reason}")

    # -- called by flow control --------------------------------------------------------------------------------------

    def send(self, call: _Call) -> None:
        """Dispatch a call that has left the queue of flow control."""
        self.book.dispatch(call.request, call.stage)

    def refuse(self, call: _Call, reason: str, fate: str) -> None:
        """Answer a request with an error, of which a call would wait or has waited."""
        self._end(call, reason, fate)

    def running(self) -> list[_Attempt]:
        """Return the attempts that a client has and somebody waits for, in order of their numbers."""
        return [attempt for attempt in self._live.values() if self._outcomes[attempt.id] == RUNNING]

    def revoke(self, number: int, reason: str) -> None:
        """Cancel an attempt that runs, and answer its request with an error."""
        attempt = self._live[number]
        if self._outcomes[number] == RUNNING:   # the end of another may have ended its request
            self._close(attempt, REVOKED)
            self._send_cancel(attempt)
            self._end(attempt.call, reason, "revoked")

    # -- time --------------------------------------------------------------------------------------------------------

    def _attempt_late(self, attempt: _Attempt, tick: Tick) -> None:
        if attempt.id not in self._live or self._outcomes[attempt.id] != RUNNING:
            return
        self._close(attempt, TIMED_OUT)
        self._send_cancel(attempt)
        assert self.policy.per_try_ns is not None
        self._again(attempt.call, f"no answer within {self.policy.per_try_ns / 1e9:g} s", "timed out",
                    begun=self.book.answers(attempt.seq))

    def _call_late(self, call: _Call, tick: Tick) -> None:
        if call.over:
            return
        attempt = call.attempt
        if attempt is not None and self._outcomes[attempt.id] == RUNNING:
            self._close(attempt, TIMED_OUT)
            self._send_cancel(attempt)
        assert self.policy.timeout_ns is not None
        self._end(call, f"no answer within {self.policy.timeout_ns / 1e9:g} s", "timed out")

    def _expire(self, call: _Call, tries: int, tick: Tick) -> None:
        """End a call that has waited in the queue for too long."""
        if call.waits and call.tries == tries and not call.over:
            assert self.policy.queue_ns is not None
            self._end(call, f"no replica was ready within {self.policy.queue_ns / 1e9:g} s", "expired")

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
                self.book.dispatch(call.request, call.stage)
            else:
                self._queue[call] = members

    def lost(self, client: Client) -> None:
        """Handle a client that goes down at this instant, with all that it has and all KV that moves from and to it."""
        self.down.add(client.index)
        if self.flow is not None:
            self.flow.seen(client)
        handoff = self.book.handoff
        moving = set() if handoff is None else handoff.attempts_over(client)
        hit = [attempt for attempt in self._live.values() if attempt.client is client or attempt.id in moving]
        begun = {attempt.id: self.book.answers(attempt.seq) for attempt in hit}
        waited = [attempt for attempt in hit if self._outcomes[attempt.id] == RUNNING]
        for attempt in waited:
            self._close(attempt, FAILED)
        if handoff is not None:
            handoff.lost(client)
        here = [attempt.seq for attempt in hit if attempt.client is client and attempt.id in self._live]
        self.book.lose(client, here)
        for attempt in sorted(waited, key=lambda attempt: attempt.call.request.id):
            if attempt.id in self._live:   # its prompt is computed elsewhere, and was to go to this client
                self._send_cancel(attempt)
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

    def idle(self) -> bool:
        """Whether nothing is left: no call, no attempt, no wait."""
        return not (self._calls or self._live or self._queue or self._of) and (self.flow is None or self.flow.idle())

    # -- record ------------------------------------------------------------------------------------------------------

    def table(self) -> dict[str, IntArray]:
        """Return the columns of the table of attempts."""
        return {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}


def _output_tokens(stage: Stage) -> int:
    """Return the output tokens of a call, of all its branches."""
    if not isinstance(stage, Generation):
        return 0
    return stage.output_tokens if stage.branches is None else sum(stage.branches.outputs)


def _content_again(first: Generation) -> PromptContent:
    """Return the content of another attempt: prefix caches find the prompt that the first one has computed. The answer
    is a new one, but in a conversation the next turn repeats the one that was given."""
    content = first.content
    text = content.content if isinstance(content, AdapterText) else content
    if content is not None and isinstance(text, ConversationText) and text.num_tokens >= first.prompt_tokens:
        return content
    return SharedPrompt(first)
