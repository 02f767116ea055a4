"""Requests in flight and their arrival: make `Request`s from request tables as the clock reaches them.

In an open loop the table gives the time of each arrival. In a closed loop a user takes the next request when the
previous one is answered, thinks, and submits it. In both, later turns of a conversation follow the answer before. A
workload may have a *gate*: a limit of requests in flight, at which others that are due wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from hermes.arrays import IntArray
from hermes.core.block_hashes import (
    AdapterText,
    ConversationText,
    GroupPrefix,
    HashedPieces,
    HashedPrompt,
    PromptContent,
)
from hermes.core.client import Client, ClientView
from hermes.core.clock import ARRIVAL, Call, Clock
from hermes.core.generation import Generation
from hermes.core.request_table import RequestTable
from hermes.core.stage import Stage
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.core.record import Notes

__all__ = ["Arrivals", "Pipeline", "Request", "Stream"]

_BLOCK = 4096   # requests turned from columns into Python numbers at a time


Pipeline = Generator[Any, Any, None]   # Any: what it receives depends on what it yielded
"""A pipeline under way. It yields a stage, a tuple of stages or an `AnyOf`, and receives what was served."""
S = TypeVar("S", bound=Stage)


class Dispatcher(Protocol):
    """Methods of the coordinator that requests call."""

    env: Clock
    notes: Notes

    def start_stage(self, request: Request, stage: Stage) -> None:
        """Dispatch a stage while the request's pipeline continues."""
        ...

    def advance(self, request: Request, result: None) -> None:
        """Start the pipeline that a request has."""
        ...

    def views(self, kind: str, model: str) -> tuple[ClientView, ...]:
        """Return the present state of the clients that may serve a kind of stage of a model."""
        ...


class Request:
    """A request in flight, as its pipeline sees it. `client` served its latest stage."""

    __slots__ = (   # what each request is asked for
        "__dict__", "arrival_ns", "background", "branch_outputs", "client", "content", "continued", "following", "id",
        "max_new_tokens", "model", "output_tokens", "over", "pending", "pipeline", "priority", "prompt_tokens",
        "session", "stream",
    )

    past_tokens = 0      # tokens of the past context that it needs, and that context's key: (population, number)
    context: tuple[str, int] | None = None
    fetches = 0          # fetches of its KV that drew whether they hit; numbers their random streams
    answered: Callable[[], None] | None = None   # tells the user who waits for its end (answered or rejected)
    reads = False        # whether its user has a token of an offer before
    begun = False        # with a gateway: whether its user has a token of an attempt that is over
    tried: Generation | None = None   # its first sequence at an engine, if its client may offer it again
    offered = 1          # how often its client has offered it
    successor: Request | None = None   # as it was offered again

    def __init__(
        self, stream: Stream, request_id: int, arrival_ns: int, prompt_tokens: int, output_tokens: int, priority: int,
        session: int, content: PromptContent | None,
    ) -> None:
        self.stream = stream
        self.id = request_id
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.session = session
        self.content = content
        self.model = stream.model
        self.client: Client | None = None
        # [what the pipeline waits for, number of its stages not done]; a list, because the count changes
        self.pending: list[Any] | None = None   # Any: its two items are of different types
        # A generator; Any, since the coordinator asks it for `gi_running`. None before the arrival, and for a pipeline
        # of one stage (`Stream.only_stage`).
        self.pipeline: Any = None
        self.branch_outputs: tuple[int, ...] = ()   # output tokens of each answer, if it asks for several
        self.max_new_tokens = 0    # output tokens that its generations ask for; 0 if they ask for what they get
        self.over = False          # its pipeline must not continue: completed or rejected; in the background: given up
        self.background = False    # whether this is a pipeline that a request runs in the background
        self.following: list[Request] | None = None   # later turns of its conversation, the last one first
        self.continued = 0   # tokens of its answer that the next turn repeats, until a generation gives that answer

    @property
    def now(self) -> float:
        """The simulated time in seconds."""
        return self.stream.coordinator.env._now / NS_PER_S

    def start(self, stage: S) -> S:
        """Dispatch `stage` now and continue. `yield stage` later waits for it."""
        self.stream.coordinator.start_stage(self, stage)
        return stage

    def beside(self, pipeline: Pipeline) -> None:
        """Run another pipeline in the background. Its stages carry this request's number, and the request completes
        without it. If no client accepts one of its stages, that pipeline ends, and the request continues."""
        other = copy(self)
        other.pipeline, other.background, other.pending, other.over = pipeline, True, None, False
        other.continued = 0
        self.stream.coordinator.advance(other, None)

    def again(self) -> Request:
        """Return this request as its client offers it again: its pipeline has not begun."""
        other = copy(self)
        other.pipeline = other.pending = other.client = None
        other.over = other.begun = False
        other.offered += 1
        self.successor = other
        if self.stream.table.turn is not None:
            other.continued = self.branch_outputs[0] if self.branch_outputs else self.output_tokens
        return other

    def content_of(self, stage: Generation) -> PromptContent | None:
        """Return what a generation's tokens share with others.

        In a conversation, the first generation that answers the prompt as it is includes the answer, since the next
        turn repeats it. If a pipeline extends the prompt, or asks for another answer first, the content is the prompt
        without an answer.
        """
        tokens, content = self.continued, self.content
        if not tokens or stage.prompt_tokens != self.prompt_tokens or (
                stage.branches is None and stage.output_tokens != self.output_tokens):
            return content
        self.continued = 0
        # only a conversation has answers that later turns repeat
        assert isinstance(content, ConversationText | AdapterText)
        return content.up_to(self.prompt_tokens + tokens, awaited=self.stream.awaited)

    def view(self, kind: str, model: str = "") -> tuple[ClientView, ...]:
        """Return the present state of the clients that may serve a stage of a model ("" for the request's own)."""
        return self.stream.coordinator.views(kind, model or self.model)

    def note(self, name: str, value: float, names: Sequence[str] = ()) -> None:
        """Record a number about this request: column `name` of the table of requests, NaN for requests without one. A
        second value replaces the first. With `names` the number is the position of one of them: results then show the
        share of the requests that have each."""
        self.stream.coordinator.notes.note(self.id, name, float(value), names)


class Stream:
    """One workload entry: its requests, their pipeline and their model."""

    def __init__(self, name: str, table: RequestTable, pipeline: Callable[[Request], Pipeline], model: str,
                 first_id: int) -> None:
        self.name, self.table, self.pipeline, self.model, self.first_id = name, table, pipeline, model, first_id
        # A pipeline that yields a single stage may give it as `only_stage(request)`: a generator costs more than that.
        self.only_stage: Callable[[Request], Stage] | None = getattr(pipeline, "only_stage", None)
        self.closed = table.users is not None
        # Whether the end of one request may start another.
        self.follows_up = self.closed or table.turn is not None or table.max_in_flight is not None
        # Whether the answer of a turn is over, at its engine too, before another request reads it.
        self.awaited = False
        self.coordinator = cast(Dispatcher, None)   # the coordinator sets it

    def requests(self) -> Iterator[Request]:
        """Yield its requests in order, made from the columns of its table a block at a time.

        They have no pipeline yet. Those of a closed loop arrive when the loop submits them (`arrival_ns` is 0 here).
        """
        table, first = self.table, self.first_id
        times = table.arrival_ns if table.arrival_ns is not None else np.zeros(len(table), dtype=np.int64)
        for low in range(0, len(table), _BLOCK):
            part = slice(low, low + _BLOCK)
            columns = zip(
                range(first + low, first + len(table)), times[part].tolist(), table.prompt_tokens[part].tolist(),
                table.output_tokens[part].tolist(), table.priority[part].tolist(), table.session[part].tolist(),
                _contents(table, part), _contexts(table, part),
                repeat(0) if table.max_new_tokens is None else table.max_new_tokens[part].tolist(), strict=False,
            )
            for request_id, arrival, prompt, output, priority, session, content, context, asked in columns:
                request = Request(self, request_id, arrival, prompt, output, priority, session, content)
                if asked:
                    request.max_new_tokens = asked
                if context is not None:
                    request.context, request.past_tokens = context
                if table.branch_tokens is not None:
                    request.branch_outputs = tuple(table.branch_tokens[request_id - first].tolist())
                if table.turn is not None:
                    request.continued = request.branch_outputs[0] if request.branch_outputs else output
                yield request

    def beginnings(self) -> Iterator[Request]:
        """Return the requests that wait for no other: all, or the first turns of conversations with the turns that
        follow them."""
        return self.requests() if self.table.turn is None else self._conversations(self.table.turn)

    def _conversations(self, turns: IntArray) -> Iterator[Request]:
        first = self.first_id
        talk: list[Request] = []
        for request in self.requests():
            if not turns[request.id - first] and talk:
                yield _first_of(talk)
                talk = []
            talk.append(request)
        if talk:
            yield _first_of(talk)


def _first_of(talk: list[Request]) -> Request:
    first, *rest = talk
    first.following = rest[::-1]
    return first


def _contents(table: RequestTable, part: slice) -> list[PromptContent | None]:
    """Return what the prompts of these rows share with others, None for nothing."""
    texts = _texts(table, part)
    if table.adapter is None:
        return texts
    return [AdapterText(number, text) if number else text
            for number, text in zip(table.adapter[part].tolist(), texts, strict=True)]


def _texts(table: RequestTable, part: slice) -> list[PromptContent | None]:
    """Return what the prompts of these rows share with others that have the same adapter."""
    if table.joined is not None:
        return table.joined.contents(table, part)
    if table.hash_ids is not None:
        tokens = table.prompt_tokens[part].tolist()
        if table.hash_tokens is not None:
            made: dict[tuple[tuple[int, ...], tuple[int, ...], int], HashedPieces] = {}
            # equal prompts close together share a content
            return [made.get(row) or made.setdefault(row, HashedPieces(row[0], tuple(accumulate(row[1])), row[2]))
                    for row in zip(table.hash_ids[part], table.hash_tokens[part], tokens, strict=True)]
        return [HashedPrompt(ids, table.hash_block_tokens, n)
                for ids, n in zip(table.hash_ids[part], tokens, strict=True)]
    groups = table.prefix_group[part]
    if table.turn is not None:
        columns = (table.session[part], groups, table.prefix_tokens[part], table.prompt_tokens[part])
        return [ConversationText(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    if not (groups >= 0).any():
        return [None] * len(groups)
    tokens = table.prefix_tokens[part].tolist()
    return [None if g < 0 else GroupPrefix(g, t) for g, t in zip(groups.tolist(), tokens, strict=True)]


def _contexts(table: RequestTable, part: slice) -> list[tuple[tuple[str, int], int] | None]:
    """Return the past contexts of these rows as ((population, key), tokens), None for none."""
    keys, population = table.context[part], table.population
    if population is None:
        return [None] * len(keys)
    tokens = population.tokens[np.maximum(keys, 0)].tolist()
    return [None if key < 0 else ((population.name, key), n) for key, n in zip(keys.tolist(), tokens, strict=True)]


class _Gate:
    """Limit of a workload's requests in flight; requests above it wait, first come first served."""

    def __init__(self, limit: int) -> None:
        self.free = limit
        self.waiting: deque[Request] = deque()


class _User:
    """Submits the turns of a conversation, each when its user has thought about the answer before. In a closed loop the
    user then takes the next request or conversation.

    Args:
        waiting: The beginnings that users of a closed loop take; None in an open loop.
    """

    __slots__ = ("_arrivals", "_ended", "_left", "_sends", "_waiting")

    def __init__(self, arrivals: Arrivals, waiting: Iterator[Request] | None = None) -> None:
        self._arrivals, self._waiting = arrivals, waiting
        self._left: list[Request] | None = None   # later turns, the last one first
        self._sends = self._ended = False

    def submit(self, request: Request) -> None:
        """Submit the first turn of a conversation, or a later one."""
        if request.following is not None:
            self._left = request.following
        request.answered = self._answered
        self._sends, self._ended = True, False
        self._arrivals.due(request)
        self._sends = False
        if self._ended:   # it was rejected at once
            self.go_on()

    def _answered(self) -> None:
        if self._sends:
            self._ended = True
        else:
            self.go_on()

    def go_on(self) -> None:
        """Think about what comes next, if anything does."""
        request = self._left.pop() if self._left else None if self._waiting is None else next(self._waiting, None)
        if request is not None:
            self._arrivals.think(request, lambda call: self.submit(request))
        elif self._waiting is not None:
            self._arrivals.left()


class Arrivals:
    """Calls `begin(request)` for each request when it arrives.

    Attributes:
        times_ns: Arrival of each request of all streams, shape (n,), by number; -1 until known. A request that waited
            at a gate arrives when it is sent, and notes when it was due (`scheduled_s`).
        out_of_requests_ns: When a user of a closed loop first found no request left; -1 until then.
    """

    def __init__(self, env: Clock, streams: list[Stream], begin: Callable[[Request], None]) -> None:
        self._env, self._streams, self._begin = env, streams, begin
        self.out_of_requests_ns = -1
        self.times_ns: IntArray = np.full(sum(len(s.table) for s in streams), -1, dtype=np.int64)
        self._waiting = {stream: stream.beginnings() for stream in streams if stream.closed}
        self._gates = {stream: _Gate(stream.table.max_in_flight) for stream in streams
                       if stream.table.max_in_flight is not None}

    def start(self) -> None:
        """Schedule the first arrivals."""
        for stream in self._streams:
            if stream.table.users is None:
                self._open_loop(stream)
            else:
                for _ in range(min(stream.table.users, len(stream.table))):
                    _User(self, self._waiting[stream]).go_on()

    def think(self, request: Request, submit: Callable[[Call], None]) -> None:
        """Call `submit` when the user has thought, and submits a request."""
        stream, due = request.stream, self._env._now
        think_ns = stream.table.think_ns
        if think_ns is not None:
            due += int(think_ns[request.id - stream.first_id])
        if stream not in self._gates:
            request.arrival_ns = self.times_ns[request.id] = due
        self._env.call_at(due, ARRIVAL, submit)

    def left(self) -> None:
        """Note that a user of a closed loop found no request left."""
        if self.out_of_requests_ns < 0:
            self.out_of_requests_ns = self._env._now

    def _open_loop(self, stream: Stream) -> None:
        requests = stream.beginnings()
        upcoming = next(requests, None)
        env, begin = self._env, self._begin
        gated = stream in self._gates

        def arrive(call: Call) -> None:
            # Schedule the next arrival first, so that code which looks for events at this instant sees it.
            nonlocal upcoming
            request = upcoming
            upcoming = next(requests, None)
            if upcoming is not None:
                env.call_at(upcoming.arrival_ns, ARRIVAL, arrive)
            if request is not None:
                if request.following:
                    _User(self).submit(request)
                    return
                if gated:
                    self.due(request)
                    return
                begin(request)

        if upcoming is not None:
            env.call_at(upcoming.arrival_ns, ARRIVAL, arrive)
        assert stream.table.arrival_ns is not None
        if not gated:
            self.times_ns[stream.first_id : stream.first_id + len(stream.table)] = stream.table.arrival_ns

    def answered(self, request: Request) -> None:
        """Handle the end of a request of a stream that `follows_up`: completed or rejected at this instant."""
        stream, now = request.stream, self._env._now
        gate = self._gates.get(stream)
        if gate is not None:
            if gate.waiting:   # the place is taken at once: requests due at this instant queue behind
                waited = gate.waiting.popleft()
                self._env.tick_at(now, ARRIVAL, lambda tick: self._send(waited))
            else:
                gate.free += 1
        if request.answered is not None:
            request.answered()

    def due(self, request: Request) -> None:
        """Send a request that is due now, unless its workload's gate holds it back."""
        gate = self._gates.get(request.stream)
        if gate is not None:
            request.note("scheduled_s", self._env._now / NS_PER_S)
            if not gate.free:
                gate.waiting.append(request)
                return
            gate.free -= 1
        self._send(request)

    def _send(self, request: Request) -> None:
        request.arrival_ns = self.times_ns[request.id] = self._env._now
        self._begin(request)
