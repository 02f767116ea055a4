"""Calls of a gateway, and its attempts at them."""

from __future__ import annotations

from hermes.core.block_hashes import AdapterText, ConversationText, PromptContent
from hermes.core.branches import SharedPrompt, branch_into
from hermes.core.client import Client
from hermes.core.generation import Generation
from hermes.core.request import Request
from hermes.core.stage import ServiceStage, Stage
from hermes.gateway.retries import RetryBudget

__all__ = ["Attempt", "Call", "computed_of", "content_again", "copy_of", "output_tokens"]


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
        waits: Whether a part keeps it until a client is ready, or the pool has room.
        passed: Whether it has entered the gateway.
        carried: Output tokens with which the next attempt begins; `lead`: the sequence that gave the last of them.
    """

    __slots__ = ("asked_ns", "attempt", "begun", "carried", "first", "lead", "members", "number", "over",
                 "passed", "request", "retrying", "stage", "timed", "tries", "turn", "used", "waits")

    def __init__(self, request: Request, stage: Stage, number: int, places: int, asked_ns: int) -> None:
        self.request, self.stage, self.number, self.asked_ns = request, stage, number, asked_ns
        self.tries = self.turn = 0
        self.used, self.begun = [0] * places, False
        self.members: list[Client] = []
        self.timed: list[tuple[int, ...]] = [()] * places
        self.retrying: int | None = None
        self.attempt: Attempt | None = None
        self.first: Generation | None = None
        self.lead: Generation | None = None
        self.carried = 0
        self.over = self.waits = self.passed = False

    def retried(self, budgets: list[RetryBudget], place: int | None) -> None:
        """Note whose retry is under way, None for none. budgets: Of the places, at its gateway."""
        if self.retrying is not None:
            budgets[self.retrying].retrying -= 1
        if place is not None:
            budgets[place].retrying += 1
        self.retrying = place


class Attempt:
    """An attempt that a client may still work on, or send. `first`, `seq`: its sequence at its first and present
    client; `computed`: whether only the front end has it; `sent`: the tokens that its user had when it was over, where
    a gateway migrates, and `reached`: those whose KV had been computed."""

    __slots__ = ("call", "client", "computed", "first", "id", "reached", "sent", "seq")

    def __init__(self, call: Call, number: int, seq: Stage, client: Client) -> None:
        self.call, self.id, self.client = call, number, client
        self.first = self.seq = seq
        self.computed = False
        self.sent = self.reached = 0


def copy_of(call: Call) -> Stage:
    """Return the stage that another attempt at a call dispatches: a copy, since an earlier one may still run."""
    stage = call.stage
    if type(stage) is ServiceStage:
        task = ServiceStage(stage.kind, tokens=stage.tokens, items=stage.items, model=stage.model,
                            priority=stage.priority, inputs=stage.inputs, options=stage.options)
        task.content, task.detached, task.original = stage.content, stage.detached, stage
        return task
    if not isinstance(stage, Generation):
        return stage
    past = call.carried
    seq = Generation(stage.prompt_tokens + past, stage.output_tokens - past, stage.priority, content=stage.content)
    seq.carried = past
    seq.model, seq.inputs, seq.detached, seq.original = stage.model, stage.inputs, stage.detached, stage
    seq.num_computed, seq.cached_tokens = stage.num_computed, stage.cached_tokens
    if call.lead is not None:
        seq.content = content_again(call.lead, seq.prompt_tokens - call.lead.prompt_tokens)
    elif call.first is not None:
        seq.content = content_again(call.first)
    return seq if stage.branches is None else branch_into(seq, stage.branches.outputs)


def computed_of(attempt: Attempt) -> int:
    """Return the prompt tokens that were computed for an attempt."""
    first = attempt.first
    if first.start_ns < 0 or not isinstance(first, Generation):
        return 0
    computed = first.prompt_tokens if first.first_token_ns >= 0 else first.num_computed
    return max(min(computed, first.prompt_tokens) - first.cached_tokens, 0)


def output_tokens(stage: Stage) -> int:
    """Return the output tokens of a call, of all its branches."""
    if not isinstance(stage, Generation):
        return 0
    return stage.output_tokens if stage.branches is None else sum(stage.branches.outputs)


def content_again(first: Generation, sent: int = 0) -> PromptContent:
    """Return the content of another attempt: prefix caches find the prompt that the first one has computed, and the
    tokens that it `sent`. What follows is new, but in a conversation the next turn repeats the answer that was given.
    """
    content = first.content
    text = content.content if isinstance(content, AdapterText) else content
    if content is not None and isinstance(text, ConversationText) and text.num_tokens >= first.prompt_tokens + sent:
        return content
    return SharedPrompt(first, sent)
