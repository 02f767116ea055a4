"""The global coordinator: requests enter, stages go to clients, completions come back.

One clock, one event queue (SimPy). A request is its pipeline, a generator: the coordinator sends it the stage that was
served and dispatches the stage it yields next. Driving generators directly rather than as SimPy processes saves a
process's start, resume and end events for each request; everything that takes time is still an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from hermes.clients.base import Client
from hermes.clients.view import ClientView
from hermes.content import GroupPrefix, HashedPrompt
from hermes.errors import InputError
from hermes.handoff import Handoff
from hermes.kernel import ARRIVAL, Clock, Tick
from hermes.network import Network, exposed_bytes
from hermes.recorder import RowLog
from hermes.routing.base import LoadCell, Router
from hermes.schedulers.sequence import Sequence
from hermes.stages import AnyOf
from hermes.workload.table import RequestTable

__all__ = ["Coordinator", "Request", "Stream"]

_BLOCK = 4096   # requests turned from columns into Python numbers at a time
DONE, REJECTED = 1, 2


class Request:
    """A request in flight. Its pipeline reads these; `client` is where its latest stage was served."""

    client: Client | None = None
    pending: list[Any] | None = None   # [what the pipeline waits for, how many stages of it are not done]
    pipeline: Any = None
    past_tokens = 0      # of the past context that it brings along, and its key: (population, number)
    context: Any = None
    branch_outputs: tuple[int, ...] = ()   # output tokens of each of several answers, where it asks for several
    background = False   # whether this is what a request runs beside itself

    def __init__(
        self, stream: Stream, request_id: int, arrival_ns: int, prompt_tokens: int, output_tokens: int, priority: int,
        session: int, content: Any,
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

    def start(self, stage: Any) -> Any:
        """Have `stage` served from now on, beside whatever comes next. `yield stage` later waits for it."""
        self.stream.coordinator._start(self, stage)
        return stage

    def beside(self, pipeline: Iterator[Any]) -> None:
        """Run another pipeline from now on, on this request's account: its stages carry this request's number, and the
        request is complete without it. What no client accepts of it ends it, and not the request."""
        other = copy(self)
        other.pipeline, other.background, other.pending = pipeline, True, None
        self.stream.coordinator._advance(other, None)

    def view(self, kind: str, model: str = "") -> tuple[ClientView, ...]:
        """The clients that may serve a kind of stage of a model ("" for the request's own), as of now."""
        views: tuple[ClientView, ...] = self.stream.coordinator._views(kind, model or self.model)
        return views

    def note(self, name: str, value: float) -> None:
        """Keep a number about this request: a column `name` of the table of requests, NaN where there is none. A second
        value replaces the first."""
        self.stream.coordinator.notes.setdefault(name, {})[self.id] = float(value)


class Stream:
    """One workload entry: its requests, the pipeline they run and the model they ask for."""

    def __init__(self, name: str, table: RequestTable, pipeline: Callable[[Request], Iterator[Any]], model: str,
                 first_id: int) -> None:
        self.name, self.table, self.pipeline, self.model, self.first_id = name, table, pipeline, model, first_id
        self.issued = 0
        self.coordinator: Any = None   # set by the coordinator


class Coordinator:
    """Routes stages to clients until every request is completed or rejected.

    routers, candidates: (stage kind, model) -> the router, and the clients that serve it; cells: per client index the
    load cells to keep up to date; local_handoff: KV moves within a platform only. Columns of the record (`arrivals`,
    `status`, `stages`, `gaps`, `reject_reasons`) are filled in as the simulation goes.
    """

    def __init__(
        self, env: Clock, clients: list[Any], routers: dict[tuple[str, str], Router],
        candidates: dict[tuple[str, str], list[Any]], cells: list[list[tuple[LoadCell, int]]], streams: list[Stream],
        stages: RowLog, stage_kinds: list[str], network: Network, transfers: RowLog,
        handoff: Handoff | None = None, *, local_handoff: bool = False,
    ) -> None:
        self.local_handoff = local_handoff
        self.network, self.transfers = network, transfers
        self.env, self.clients, self.streams, self.stages, self.handoff = env, clients, streams, stages, handoff
        self._routers = routers
        self._candidates = candidates
        self._kinds = {kind: i for i, kind in enumerate(stage_kinds)}
        self._cells = [[(cell.values, pos, cell.kind == "input_tokens") for cell, pos in mine] for mine in cells]
        total = sum(len(s.table) for s in streams)
        self.arrivals = np.full(total, -1, dtype=np.int64)
        self.status = bytearray(total)
        self.finish_ns = [-1] * total
        self.reject_reasons: dict[int, str] = {}
        self.notes: dict[str, dict[int, float]] = {}   # what pipelines keep of their requests
        self.gaps: dict[int, list[tuple[int, int, int]]] = {}   # stage row -> segments (see `Sequence`)
        self.unfinished = total
        for stream in streams:
            stream.coordinator = self
        self._stage_count = 0
        distinct = {id(router): router for router in routers.values()}.values()
        observers: list[Callable[[str, Any, Any], None]] = [r.observe for r in distinct if hasattr(r, "observe")]
        self._observers = observers
        for client in clients:
            client.on_done = self._stage_done
            if observers:
                client.on_first_token = self._first_token
        if handoff is not None:
            handoff.assign = self._assign
            if observers:
                handoff.observe = self._observe
            handoff.route = self._route_decode

    # -- arrivals ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the first arrivals."""
        for stream in self.streams:
            if stream.table.users is None:
                self._open_loop(stream)
            else:
                for _ in range(min(stream.table.users, len(stream.table))):
                    self._closed_loop_next(stream)

    def _open_loop(self, stream: Stream) -> None:
        requests = self._requests(stream)
        upcoming = next(requests, None)
        env = self.env

        def arrive(tick: Tick | None) -> None:
            # The next arrival is scheduled first: whoever looks for other things at this instant sees it.
            nonlocal upcoming
            request = upcoming
            upcoming = next(requests, None)
            if upcoming is not None:
                env.tick_at(upcoming.arrival_ns, ARRIVAL, arrive)
            if request is not None:
                self._advance(request, None)

        if upcoming is not None:
            env.tick_at(upcoming.arrival_ns, ARRIVAL, arrive)
        assert stream.table.arrival_ns is not None
        self.arrivals[stream.first_id : stream.first_id + len(stream.table)] = stream.table.arrival_ns

    def _requests(self, stream: Stream) -> Iterator[Request]:
        """The stream's requests in order, made from its columns a block at a time."""
        table, first = stream.table, stream.first_id
        times = table.arrival_ns if table.arrival_ns is not None else np.zeros(len(table), dtype=np.int64)
        for low in range(0, len(table), _BLOCK):
            part = slice(low, low + _BLOCK)
            columns = zip(
                range(first + low, first + len(table)), times[part].tolist(), table.prompt_tokens[part].tolist(),
                table.output_tokens[part].tolist(), table.priority[part].tolist(), table.session[part].tolist(),
                self._contents(table, low), strict=False,
            )
            for request_id, arrival, prompt, output, priority, session, content in columns:
                request = Request(stream, request_id, arrival, prompt, output, priority, session, content)
                if table.population is not None:
                    self._give_context(request, table, request_id - first)
                if table.branch_tokens is not None:
                    request.branch_outputs = tuple(table.branch_tokens[request_id - first].tolist())
                request.pipeline = stream.pipeline(request)
                yield request

    @staticmethod
    def _contents(table: RequestTable, low: int) -> list[Any]:
        high = min(low + _BLOCK, len(table))
        if table.hash_ids is not None:
            return [HashedPrompt(ids, table.hash_block_tokens) for ids in table.hash_ids[low:high]]
        groups = table.prefix_group[low:high]
        if not (groups >= 0).any():
            return [None] * (high - low)
        tokens = table.prefix_tokens[low:high].tolist()
        return [None if g < 0 else GroupPrefix(g, t) for g, t in zip(groups.tolist(), tokens, strict=True)]

    @staticmethod
    def _give_context(request: Request, table: RequestTable, row: int) -> None:
        key = int(table.context[row])
        if key >= 0 and table.population is not None:
            request.context = table.population.name, key
            request.past_tokens = int(table.population.tokens[key])

    def _closed_loop_next(self, stream: Stream) -> None:
        """A user of a closed loop takes the next request, thinks, and submits it."""
        table, i = stream.table, stream.issued
        if i >= len(table):
            return
        stream.issued += 1
        think = int(table.think_ns[i]) if table.think_ns is not None else 0
        request = Request(
            stream, stream.first_id + i, self.env._now + think, int(table.prompt_tokens[i]),
            int(table.output_tokens[i]), int(table.priority[i]), int(table.session[i]),
            self._contents_one(table, i),
        )
        if table.population is not None:
            self._give_context(request, table, i)
        if table.branch_tokens is not None:
            request.branch_outputs = tuple(table.branch_tokens[i].tolist())
        request.pipeline = stream.pipeline(request)
        self.arrivals[request.id] = request.arrival_ns
        self.env.tick_at(request.arrival_ns, ARRIVAL, lambda tick: self._advance(request, None))

    def _contents_one(self, table: RequestTable, i: int) -> Any:
        if table.hash_ids is not None:
            return HashedPrompt(table.hash_ids[i], table.hash_block_tokens)
        group = int(table.prefix_group[i])
        return None if group < 0 else GroupPrefix(group, int(table.prefix_tokens[i]))

    # -- pipelines -----------------------------------------------------------------------------------------------

    def _advance(self, request: Request, result: Any) -> None:
        """Send a pipeline what it waited for, and dispatch what it yields next."""
        while True:
            try:
                wanted = request.pipeline.send(result)
            except StopIteration:
                if not self._over(request) and not request.background:
                    self._finish(request, DONE)
                return
            if self._over(request):   # a stage it started was refused
                request.pipeline.close()
                return
            if type(wanted) is tuple:
                waited = wanted
            elif type(wanted) is AnyOf:
                first = next((stage for stage in wanted.stages if stage.done), None)
                if first is None:
                    request.pending = [wanted, 1]
                    return
                result = first
                continue
            elif not wanted.detached:
                self._dispatch(request, wanted)
                return
            elif wanted.done:
                result = wanted
                continue
            else:
                waited = (wanted,)
            missing = [stage for stage in waited if not stage.done]
            if not missing:
                result = wanted
                continue
            request.pending = [wanted, len(missing)]
            for stage in missing:
                if not stage.detached and not self._over(request):
                    self._dispatch(request, stage)
            return

    def _start(self, request: Request, stage: Any) -> None:
        stage.detached = True
        if not self._over(request):
            self._dispatch(request, stage)

    def _over(self, request: Request) -> bool:
        """Whether a pipeline is not to go on: its request is over; one beside it, if it was given up."""
        return request.pipeline is None if request.background else bool(self.status[request.id])

    def _views(self, kind: str, model: str) -> tuple[ClientView, ...]:
        candidates = self._candidates.get((kind, model)) or self._candidates.get((kind, ""), [])
        return tuple(client.view() for client in candidates)

    def _finish(self, request: Request, status: int) -> None:
        self.status[request.id] = status
        self.finish_ns[request.id] = self.env._now
        self.unfinished -= 1
        if request.stream.table.users is not None:
            self._closed_loop_next(request.stream)

    def _reject(self, request: Request, reason: str) -> None:
        pipeline = request.pipeline
        if request.background:
            request.pipeline = None
        else:
            self.reject_reasons[request.id] = reason
        if not pipeline.gi_running:   # else it is starting a stage just now, and closed when it yields
            pipeline.close()
        if not request.background:
            self._finish(request, REJECTED)

    def _dispatch(self, request: Request, stage: Any) -> None:
        """Choose a client for a stage and hand it over."""
        stage.request = request
        self._stage_count = stage.arrival_order = self._stage_count + 1
        if stage.width > 1:
            self._stage_count += stage.width - 1   # its branches have numbers of their own
        if stage.content is None:
            stage.content = request.content
        model = stage.model or request.model
        router = self._routers.get((stage.kind, model)) or self._routers.get((stage.kind, ""))
        if router is None:
            raise InputError(f"a client that serves stage {stage.kind!r} of model {model!r}", field="clients")
        client: Any = router.choose(stage)
        reason = self._refusal(client, stage)
        if reason is not None:
            if self._observers:
                self._observe("refused", client, stage)
            stage.decode_on = None
            client = self._first_accepting(stage)
            if client is None:
                self._reject(request, reason)
                return
        self._assign(client, stage)
        if stage.inputs:
            self._bring(stage, client)
        else:
            client.submit(stage)

    def _bring(self, stage: Any, client: Any) -> None:
        """Move a stage's inputs to its client, side by side, and hand it over when all are there."""
        moves = [(before, num_bytes) for before, num_bytes in stage.inputs if before.client is not client]
        left = len(moves)
        if not left:
            client.submit(stage)
            return
        asked, request = self.env._now, stage.request

        def arrived(source: Any, num_bytes: int, rest: int) -> None:
            nonlocal left
            if rest:   # comes beside the prefill
                self.network.transfer(source.name, client.name, rest, _nothing)
            self.transfers.add(request.id, source.index, client.index, num_bytes, asked, self.env._now)
            left -= 1
            if not left:
                client.submit(stage)

        for before, num_bytes in moves:
            source, waited = before.client, self._exposed(before, client, num_bytes)
            done = partial(arrived, source, num_bytes, num_bytes - waited)
            self.network.transfer(source.name, client.name, waited, done)

    def _exposed(self, before: Any, client: Any, num_bytes: int) -> int:
        """Bytes of an input that have to be there before a stage starts: all, but for KV that comes layer by layer."""
        overlap = getattr(before, "overlap", None)
        if overlap is None:
            return num_bytes
        layers, hidden_s = overlap
        seconds = self.network.estimate_ns(before.client.name, client.name, num_bytes) / 1e9
        return exposed_bytes(num_bytes, layers, hidden_s, num_bytes / seconds) if seconds else num_bytes

    def _refusal(self, client: Any, stage: Any) -> str | None:
        """Why a stage cannot be served at `client`, or None. Sets how many tokens a generation is to emit there."""
        if stage.kind != "generate":
            refused: str | None = client.refusal(stage)
            return None if refused is None else f"{client.name}: {refused}"
        target, whole = stage.decode_on, stage.output_tokens
        if not ((client.role == "prefill" if target is None else target is not client) and whole > 1):
            stage.target_tokens = whole
            reason: str | None = client.refusal(stage)
            return None if reason is None else f"{client.name}: {reason}"
        # Another client decodes it: one token comes here, and somebody must be able to take the rest.
        stage.target_tokens = whole
        first = None
        for decoder in self._candidates[self._decode_key(client, stage.model or stage.request.model)]:
            reason = decoder.refusal(stage)
            if reason is None:
                break
            first = first or f"decode on {decoder.name}: {reason}"
        else:
            return first
        stage.target_tokens = 1
        reason = client.refusal(stage)
        return None if reason is None else f"{client.name}: {reason}"

    def _first_accepting(self, stage: Any) -> Any | None:
        """Of the clients that could serve a stage its router's choice refused, the one with the fewest assigned."""
        model = stage.model or stage.request.model
        candidates = self._candidates.get((stage.kind, model)) or self._candidates[stage.kind, ""]
        for client in sorted(candidates, key=lambda c: c.num_assigned):
            if self._refusal(client, stage) is None:
                return client
        return None

    def _decode_key(self, source: Any, model: str) -> tuple[str, str]:
        """Which decode clients may take over from `source`."""
        return (f"decode near {source.platform}" if self.local_handoff else "decode"), model

    def _route_decode(self, stage: Sequence) -> Any:
        """The decode client that takes over a generation."""
        key = self._decode_key(stage.source, stage.model or stage.request.model)
        target: Any = stage.decode_on or self._routers[key].choose(stage)
        if target.refusal(stage) is None:
            return target
        accepting = [c for c in self._candidates[key] if c.refusal(stage) is None]
        return min(accepting, key=lambda c: c.num_assigned)   # there is one: `_dispatch` has asked

    def _assign(self, client: Any, stage: Sequence) -> None:
        stage.assigned_ns = self.env._now
        # A decode client emits all but the first.
        outputs = stage.target_tokens - stage.transferred if stage.branches is None else stage.branches.assign(stage)
        client.input_tokens += stage.prompt_tokens
        client.output_tokens += outputs
        client.num_assigned += 1
        cells = self._cells[client.index]
        if cells:
            for values, pos, is_input in cells:
                values[pos] += stage.prompt_tokens if is_input else outputs
        if client.tracks:
            for track, position in client.tracks:
                track.moved(position, client)

    def _unassign(self, client: Any, stage: Sequence) -> None:
        outputs = stage.target_tokens - stage.transferred if stage.branches is None else stage.assigned_outputs
        client.input_tokens -= stage.prompt_tokens
        client.output_tokens -= outputs
        client.num_assigned -= 1
        cells = self._cells[client.index]
        if cells:
            for values, pos, is_input in cells:
                values[pos] -= stage.prompt_tokens if is_input else outputs
        if client.tracks:
            for track, position in client.tracks:
                track.moved(position, client)

    # -- completions ---------------------------------------------------------------------------------------------

    def _stage_done(self, client: Any, stage: Any) -> None:
        """A client has completed a stage at this instant."""
        if stage.branches is not None:
            self._branch_done(client, stage)
            return
        self._unassign(client, stage)
        log = self.stages
        if stage.kind == "generate":
            emitted = stage.target_tokens - stage.transferred
            client.emitted -= emitted
            request = stage.request
            hand_over = stage.target_tokens < stage.output_tokens
            kind = "prefill" if hand_over else "decode" if stage.transferred else "generate"
            if stage.segments is not None:
                stage.segments.append((stage.emit_step, stage.join_tick, client.scheduler.group.clock))
                self.gaps[len(self.stages)] = stage.segments
            together = client.scheduler.returns_together
            last_step = stage.first_step + emitted - 1 if together else client.num_steps - 1
        else:
            request, kind, hand_over, emitted, last_step = stage.request, stage.kind, False, 0, -1
        log.write(
            log.buffer, log.pos, request.id, self._kinds[kind], client.index, stage.assigned_ns, stage.start_ns,
            stage.first_token_ns, self.env._now, stage.prompt_tokens, emitted, stage.first_step, last_step,
            stage.preemptions, stage.cached_tokens, -1, -1,
        )
        log.pos += log.size
        if log.pos == log.limit:
            log.flush()
        request.client = client
        if self._observers:
            self._observe("prefilled" if hand_over else "done", client, stage)
        if hand_over:
            assert self.handoff is not None
            self.handoff.start(client, stage)
            return
        if stage.kind == "generate" or stage.num_blocks:
            client.scheduler.release(stage)
        self._served(request, client, stage)

    def _branch_done(self, client: Any, stage: Sequence) -> None:
        """A client has completed one branch of a generation, or the prompt of all that another client decodes."""
        branches, request = stage.branches, stage.request
        hand_over = stage.target_tokens < stage.output_tokens
        if hand_over:
            for index, tokens in enumerate(branches.outputs):
                self._add_branch(client, stage, "prefill" if tokens > 1 else "generate", 1, index)
            branches.open -= branches.outputs.count(1)
        else:
            kind = "decode" if stage.transferred else "generate"
            self._add_branch(client, stage, kind, stage.target_tokens - stage.transferred, stage.branch)
            branches.open -= 1
            client.scheduler.release(stage)
            if branches.open:
                return
        lead = stage if hand_over else branches.lead
        self._unassign(client, lead)
        client.emitted -= lead.assigned_outputs
        request.client = client
        if self._observers:
            self._observe("prefilled" if hand_over else "done", client, lead)
        if hand_over:
            assert self.handoff is not None
            self.handoff.start(client, lead)
        else:
            self._served(request, client, lead)

    def _add_branch(self, client: Any, stage: Sequence, kind: str, emitted: int, index: int) -> None:
        """The row of a branch. What a prompt took (cached tokens, preemptions before it was computed) is the lead's."""
        if stage.segments is not None:
            stage.segments.append((stage.emit_step, stage.join_tick, client.scheduler.group.clock))
            self.gaps[len(self.stages)] = stage.segments
        together = client.scheduler.returns_together
        last_step = stage.first_step + emitted - 1 if together else client.num_steps - 1
        mine = kind != "prefill" or index == 0
        self.stages.add(
            stage.request.id, self._kinds[kind], client.index, stage.assigned_ns, stage.start_ns, stage.first_token_ns,
            self.env._now, stage.prompt_tokens, emitted, stage.first_step, last_step,
            stage.preemptions if mine else 0, stage.cached_tokens if mine else 0, stage.branches.lead.arrival_order,
            index,
        )

    def _served(self, request: Request, client: Any, stage: Any) -> None:
        """A stage is done: go on with its pipeline if that is what it waits for."""
        stage = stage.original or stage
        stage.client, stage.done = client, True
        pending = request.pending
        if pending is None:
            if not stage.detached:
                self._advance(request, stage)
            return
        wanted = pending[0]
        if wanted is not stage:
            group = wanted.stages if type(wanted) is AnyOf else wanted if type(wanted) is tuple else ()
            if stage not in group:
                return
        if self._over(request):
            return
        pending[1] -= 1
        if not pending[1]:
            request.pending = None
            self._advance(request, stage if type(wanted) is AnyOf else wanted)

    def _observe(self, event: str, client: Any, stage: Any) -> None:
        """Tell the routers that keep books: "prefilled", "transferred", "done" or "refused"."""
        for observer in self._observers:
            observer(event, client, stage)

    def _first_token(self, client: Any, stage: Any) -> None:
        self._observe("prefilled", client, stage)


def _nothing() -> None:
    pass
