"""Migration: the next attempt at a generation goes on at another client, with the tokens that its user has.

The rule is that of Dynamo's frontend (ai-dynamo/dynamo 0135b9a, lib/llm/src/migration.rs, read, not run): a stream that
breaks, or a connection that is not made, is replaced at once by one that sends the prompt and the tokens of the broken
one, and asks for the rest; `limit` of them are made for a request. Requests for several answers migrate before their
first token only: one prompt cannot end with the tokens of several.

A gateway takes it for the innermost place that decides about the next attempt (`GatewayPolicy.places`). Where a place
further out decides, the attempt starts anew, and what the user had is wasted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from hermes.arrays import IntArray
from hermes.core.client import Client, Streaming
from hermes.core.clock import EXPIRY, Clock, Tick
from hermes.core.generation import Generation, token_delay_ns
from hermes.core.reasons import ENDED
from hermes.core.record import MIGRATION_FIELDS
from hermes.dispatch.rows import Table
from hermes.gateway.gateway import FAILED, MIGRATED, TIMED_OUT
from hermes.gateway.parts import GatewayPart

if TYPE_CHECKING:
    from hermes.gateway.calls import Attempt, Call
    from hermes.gateway.gateway import Gateway

__all__ = ["IdleTries", "Migration"]

class Migration(GatewayPart):
    """Lets calls go on, and notes from which attempts.

    Args:
        most: Longest prompt with answer so far that goes on; None for no limit.
    """

    def __init__(self, gateway: Gateway, most: int | None) -> None:
        self._gateway, self._most = gateway, most
        self._rows = Table(MIGRATION_FIELDS)
        self._gave: dict[Call, list[int]] = {}     # attempts with whose tokens a call goes on
        self._reached: dict[Call, int] = {}        # tokens whose KV attempts at a call had computed
        self._next: dict[Call, int] = {}           # the row of a call that waits for its next attempt
        self._under_way: dict[int, tuple[int, int]] = {}   # attempt -> its row, and the KV that there had been before

    def closes(self, attempt: Attempt) -> None:
        """Note what the user has of an attempt, and how much KV it had."""
        attempt.sent = tokens_of(self._gateway, attempt)[0]
        first = attempt.first
        if isinstance(first, Generation) and first.start_ns >= 0:
            begun = first.first_token_ns >= 0
            attempt.reached = first.prompt_tokens + max(attempt.sent - 1, 0) if begun else first.num_computed

    def may_go_on(self, call: Call, ended: Attempt | None, reason: str) -> bool:
        stage = call.stage
        if not isinstance(stage, Generation) or (stage.branches is not None and call.begun) or reason.endswith(ENDED):
            return False
        tokens = stage.prompt_tokens + call.carried + (0 if ended is None else ended.sent)
        return self._most is None or tokens <= self._most

    def repeats(self, call: Call, ended: Attempt | None, *, goes_on: bool) -> None:
        if not goes_on:
            self.forgets(call)
            call.lead, call.carried = None, 0
        elif ended is not None:
            self._reached[call] = max(ended.reached, self._reached.get(call, 0))
            self._next[call] = self._rows.add(
                ended.id, -1, ended.sent, int(self._gateway.outcome(ended.id) == TIMED_OUT), 0)
            if ended.sent:
                self._gateway.reckon(ended.id, MIGRATED)
                self._gave.setdefault(call, []).append(ended.id)
                call.lead, call.carried = cast(Generation, ended.first), call.carried + ended.sent

    def began(self, call: Call, client: Client) -> None:
        if isinstance(call.stage, Generation):
            cast(Streaming, client).seek_answers()   # an attempt that was given up may still run as the next one begins
        row = self._next.pop(call, None)
        if row is not None and call.attempt is not None:
            self._rows.columns["to"][row] = call.attempt.id
            self._under_way[call.attempt.id] = row, self._reached[call]

    def moved(self, call: Call, source: Client, target: Client) -> None:
        cast(Streaming, target).seek_answers()

    def gone(self, attempt: Attempt, output_tokens: int) -> None:
        """Note what an attempt that went on had to compute again."""
        row, reached = self._under_way.pop(attempt.id, (-1, 0))
        first = attempt.first
        if reached and isinstance(first, Generation) and first.start_ns >= 0:
            upto = first.prompt_tokens if first.first_token_ns >= 0 else first.num_computed
            self._rows.columns["recomputed"][row] = max(min(upto, reached) - first.cached_tokens, 0)

    def answered(self, call: Call, client: Client) -> None:
        self._gave.pop(call, None)   # with this attempt they are the answer

    def forgets(self, call: Call) -> None:
        """Let the attempts of a call that is not answered in the end have failed."""
        for number in self._gave.pop(call, ()):
            self._gateway.reckon(number, FAILED)
        self._next.pop(call, None)
        self._reached.pop(call, None)

    def record(self) -> dict[str, dict[str, IntArray]]:
        return {"migrations": self._rows.arrays()}

    def idle(self) -> bool:
        return not (self._gave or self._next or self._reached or self._under_way)


class IdleTries(GatewayPart):
    """Ends attempts that give no token for `limit_ns`."""

    def __init__(self, gateway: Gateway, env: Clock, limit_ns: int) -> None:
        self._gateway, self.env, self._limit_ns = gateway, env, limit_ns

    def began(self, call: Call, client: Client) -> None:
        if call.attempt is not None and isinstance(call.stage, Generation):
            self.env.tick_at(self.env._now + self._limit_ns, EXPIRY, partial(self._look, call.attempt, self.env._now))

    def _look(self, attempt: Attempt, since_ns: int, tick: Tick) -> None:
        call = attempt.call
        if call.over or call.attempt is not attempt:
            return
        late_ns = max(since_ns, tokens_of(self._gateway, attempt)[1]) + self._limit_ns
        if late_ns > self.env._now:
            self.env.tick_at(late_ns, EXPIRY, partial(self._look, attempt, since_ns))
            return
        begun = self._gateway.stop(call)
        self._gateway.again(call, f"no token within {self._limit_ns / 1e9:g} s", "timed out", begun=begun)


def tokens_of(gateway: Gateway, attempt: Attempt) -> tuple[int, int]:
    """Return the tokens that the user has of an attempt, fewer than all, and since when it has the last one in ns; -1
    without one."""
    seq, client = attempt.seq, attempt.client
    if not gateway.coordinator.answers(seq, client):
        return 0, -1
    assert isinstance(seq, Generation)
    if seq.branches is not None:
        return 0, -1
    first, source = (seq.prefill, seq.source) if seq.given else (seq, client)
    given, own = seq.given, 0
    if seq.hands_over:
        given = 1
    else:
        own, last_ns = cast(Streaming, client).sent_tokens(seq)
    if not own:   # the client of its prompt gave it
        assert first is not None
        assert source is not None
        last_ns = first.first_token_ns + token_delay_ns(source, first.first_step)
    return min(given + own, seq.output_tokens - 1), last_ns
