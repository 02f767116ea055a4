"""The global coordinator: requests enter, stages go to clients, completions come back.

One clock, one event queue (SimPy). A request is its pipeline, a generator: the coordinator sends it the stage that was
served and dispatches the stage it yields next. Driving generators directly rather than as SimPy processes saves a
process's start, resume and end events for each request; everything that takes time is still an event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from hermes.core.client import Client, ClientEvents, ClientView
from hermes.core.clock import ARRIVAL, Clock
from hermes.core.columns import RowLog
from hermes.core.kv_transfer import Handoff
from hermes.core.layerwise import exposed_bytes
from hermes.core.load_ledger import LoadLedger
from hermes.core.network import Network
from hermes.core.request import Arrivals, Request, Stream
from hermes.core.router import LoadCell, Router
from hermes.core.stage import AnyOf, Segments, Stage
from hermes.errors import InputError

__all__ = ["Coordinator"]

Waited: TypeAlias = "Stage | tuple[Stage, ...] | None"   # what a pipeline gets back; None to begin with

DONE, REJECTED = 1, 2


class Coordinator:
    """Routes stages to clients until every request is completed or rejected.

    routers, candidates: (stage kind, model) -> the router, and the clients that serve it; cells: per client index the
    load cells to keep up to date; local_handoff: KV moves within a platform only. Columns of the record (`arrivals`,
    `status`, `stages`, `gaps`, `reject_reasons`) are filled in as the simulation goes.
    """

    def __init__(
        self, env: Clock, clients: list[Client], events: ClientEvents, routers: dict[tuple[str, str], Router],
        candidates: dict[tuple[str, str], list[Client]], cells: list[list[tuple[LoadCell, int]]], streams: list[Stream],
        stages: RowLog, stage_kinds: list[str], network: Network, transfers: RowLog,
        handoff: Handoff | None = None, *, local_handoff: bool = False,
    ) -> None:
        self.local_handoff = local_handoff
        self.network, self.transfers = network, transfers
        self.env, self.clients, self.streams, self.stages, self.handoff = env, clients, streams, stages, handoff
        self._routers = routers
        self._candidates = candidates
        self._kinds = {kind: i for i, kind in enumerate(stage_kinds)}
        self._loads = LoadLedger(cells)
        total = sum(len(s.table) for s in streams)
        self._arriving = Arrivals(env, streams, self.advance)
        self.arrivals = self._arriving.times_ns
        self.status = bytearray(total)
        self.finish_ns = [-1] * total
        self.reject_reasons: dict[int, str] = {}
        self.notes: dict[str, dict[int, float]] = {}   # what pipelines keep of their requests
        self.gaps: dict[int, Segments] = {}   # stage row -> segments (see `Sequence`)
        self.unfinished = total
        for stream in streams:
            stream.coordinator = self
        self._stage_count = 0
        self._after_ns: list[int] = [client.after_ns for client in clients]
        distinct = {id(router): router for router in routers.values()}.values()
        observers: list[Callable[[str, Client, Stage], None]] = [r.observe for r in distinct if hasattr(r, "observe")]
        self._observers = observers
        events.done = self._stage_done
        if observers:
            events.first_token = self._first_token
        if handoff is not None:
            handoff.book = self

    @property
    def out_of_requests_ns(self) -> int:
        """When a user of a closed loop first found no request left; -1 if there was none such."""
        return self._arriving.out_of_requests_ns

    # -- pipelines -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the first arrivals."""
        self._arriving.start()

    def advance(self, request: Request, result: Waited) -> None:
        """Send a pipeline what it waited for, and dispatch what it yields next."""
        while True:
            try:
                wanted = request.pipeline.send(result)
            except StopIteration:
                if not request.over and not request.background:
                    self._finish(request, DONE)
                return
            if request.over:   # a stage it started was refused
                request.pipeline.close()
                return
            if type(wanted) is tuple:
                waited = wanted
            elif type(wanted) is AnyOf:
                for result in wanted.stages:
                    if result.done:
                        break
                else:
                    request.pending = [wanted, 1]
                    return
                continue
            elif not wanted.detached:
                self._dispatch(request, wanted)
                return
            elif wanted.done:
                result = wanted
                continue
            else:
                request.pending = [wanted, 1]
                return
            missing = [stage for stage in waited if not stage.done]
            if not missing:
                result = wanted
                continue
            request.pending = [wanted, len(missing)]
            for stage in missing:
                if not stage.detached and not request.over:
                    self._dispatch(request, stage)
            return

    def start_stage(self, request: Request, stage: Stage) -> None:
        """Dispatch a stage beside whatever the request's pipeline asks for next."""
        stage.detached = True
        if not request.over:
            self._dispatch(request, stage)

    def note(self, request: Request, name: str, value: float) -> None:
        """Keep a number about a request."""
        self.notes.setdefault(name, {})[request.id] = value

    @property
    def now(self) -> int:
        """The clock, nanoseconds."""
        return self.env._now

    def candidates(self, kind: str, model: str) -> list[Client]:
        """The clients that may serve a kind of stage of a model ("" for any)."""
        return self._candidates.get((kind, model)) or self._candidates.get((kind, ""), [])

    def views(self, kind: str, model: str) -> tuple[ClientView, ...]:
        """The clients that may serve a kind of stage of a model, as of now."""
        return tuple(client.view() for client in self.candidates(kind, model))

    def _finish(self, request: Request, status: int) -> None:
        request.over = True
        self.status[request.id] = status
        self.finish_ns[request.id] = self.env._now
        self.unfinished -= 1
        if request.stream.follows_up:
            self._arriving.answered(request)

    def _reject(self, request: Request, reason: str) -> None:
        pipeline = request.pipeline
        if request.background:
            request.over, request.pipeline = True, None
        else:
            self.reject_reasons[request.id] = reason
        if not pipeline.gi_running:   # else it is starting a stage just now, and closed when it yields
            pipeline.close()
        if not request.background:
            self._finish(request, REJECTED)

    def _dispatch(self, request: Request, stage: Stage) -> None:
        """Choose a client for a stage and hand it over."""
        stage.request = request
        self._stage_count = stage.arrival_order = self._stage_count + 1
        if stage.width > 1:
            self._stage_count += stage.width - 1   # its branches have numbers of their own
        if stage.content is None:
            stage.content = request.content_of(stage) if request.continued else request.content
        model = stage.model or request.model
        router = self._routers.get((stage.kind, model)) or self._routers.get((stage.kind, ""))
        if router is None:
            raise InputError(f"a client that serves stage {stage.kind!r} of model {model!r}", field="clients")
        client = router.choose(stage)
        reason = self._refusal(client, stage)
        if reason is not None:
            if self._observers:
                self._observe("refused", client, stage)
            stage.decode_on = None
            other = self._first_accepting(stage)
            if other is None:
                self._reject(request, reason)
                return
            client = other
        self.assign(client, stage)
        if stage.inputs:
            self._bring(stage, client)
        else:
            client.submit(stage)

    def _bring(self, stage: Stage, client: Client) -> None:
        """Move a stage's inputs to its client, side by side, and hand it over when all are there."""
        moves = [(before, num_bytes) for before, num_bytes in stage.inputs if before.client is not client]
        left = len(moves)
        if not left:
            client.submit(stage)
            return
        asked, request = self.env._now, stage.request

        def arrived(source: Client, num_bytes: int, rest: int) -> None:
            nonlocal left
            if rest:   # comes beside the prefill
                self.network.transfer(source.name, client.name, rest, _nothing)
            self.transfers.add(request.id, source.index, client.index, num_bytes, asked, self.env._now)
            left -= 1
            if not left:
                client.submit(stage)

        for before, num_bytes in moves:
            source, waited = _place_of(before), self._exposed(before, client, num_bytes)
            done = partial(arrived, source, num_bytes, num_bytes - waited)
            self.network.transfer(source.name, client.name, waited, done)

    def _exposed(self, before: Stage, client: Client, num_bytes: int) -> int:
        """Bytes of an input that have to be there before a stage starts: all, but for KV that comes layer by layer."""
        overlap = getattr(before, "overlap", None)
        if overlap is None:
            return num_bytes
        layers, hidden_s = overlap
        seconds = self.network.estimate_ns(_place_of(before).name, client.name, num_bytes) / 1e9
        return exposed_bytes(num_bytes, layers, hidden_s, num_bytes / seconds) if seconds else num_bytes

    def _refusal(self, client: Client, stage: Stage) -> str | None:
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

    def _first_accepting(self, stage: Stage) -> Client | None:
        """Of the clients that could serve a stage its router's choice refused, the one with the fewest assigned."""
        model = stage.model or stage.request.model
        candidates = self._candidates.get((stage.kind, model)) or self._candidates[stage.kind, ""]
        for client in sorted(candidates, key=lambda c: c.num_assigned):
            if self._refusal(client, stage) is None:
                return client
        return None

    def _decode_key(self, source: Client, model: str) -> tuple[str, str]:
        """Which decode clients may take over from `source`."""
        return (f"decode near {source.platform}" if self.local_handoff else "decode"), model

    def route(self, stage: Stage) -> Client:
        """The decode client that takes over a generation."""
        assert stage.source is not None
        key = self._decode_key(stage.source, stage.model or stage.request.model)
        target = stage.decode_on or self._routers[key].choose(stage)
        if target.refusal(stage) is None:
            return target
        accepting = [c for c in self._candidates[key] if c.refusal(stage) is None]
        return min(accepting, key=lambda c: c.num_assigned)   # there is one: `_dispatch` has asked

    def moved(self, source: Client, stage: Stage) -> None:
        """The KV of a generation has left `source`."""
        self._observe("transferred", source, stage)

    def assign(self, client: Client, stage: Stage) -> None:
        """A stage counts at a client from now on."""
        stage.assigned_ns = self.env._now
        self._loads.assigned(client, stage)

    # -- completions ---------------------------------------------------------------------------------------------

    def _stage_done(self, client: Client, stage: Stage) -> None:
        """A client has completed a stage at this instant."""
        if stage.branches is not None:
            self._branch_done(client, stage)
            return
        self._loads.done(client, stage)
        request = stage.request
        if stage.kind == "generate":
            emitted = stage.target_tokens - stage.transferred
            client.emitted -= emitted
            hand_over = stage.target_tokens < stage.output_tokens
            kind = "prefill" if hand_over else "decode" if stage.transferred else "generate"
        else:
            kind, hand_over, emitted = stage.kind, False, 0
        self._write_row(client, stage, kind, emitted, stage.preemptions, stage.cached_tokens, -1, -1)
        request.client = client
        if self._observers:
            self._observe("prefilled" if hand_over else "done", client, stage)
        if hand_over:
            assert self.handoff is not None
            self.handoff.start(client, stage)
            return
        if stage.kind == "generate" or stage.num_blocks:
            client.forget(stage)
        self._served(request, client, stage)

    def _branch_done(self, client: Client, stage: Stage) -> None:
        """A client has completed one branch of a generation, or the prompt of all that another client decodes."""
        branches, request = stage.branches, stage.request
        assert branches is not None
        hand_over = stage.target_tokens < stage.output_tokens
        if hand_over:
            for index, tokens in enumerate(branches.outputs):
                self._add_branch(client, stage, "prefill" if tokens > 1 else "generate", 1, index)
            branches.open -= branches.outputs.count(1)
        else:
            kind = "decode" if stage.transferred else "generate"
            self._add_branch(client, stage, kind, stage.target_tokens - stage.transferred, stage.branch)
            branches.open -= 1
            client.forget(stage)
            if branches.open:
                return
        lead = stage if hand_over else branches.lead
        self._loads.done(client, lead)
        client.emitted -= lead.assigned_outputs
        request.client = client
        if self._observers:
            self._observe("prefilled" if hand_over else "done", client, lead)
        if hand_over:
            assert self.handoff is not None
            self.handoff.start(client, lead)
        else:
            self._served(request, client, lead)

    def _write_row(self, client: Client, stage: Stage, kind: str, emitted: int, preemptions: int, cached_tokens: int,
                   group: int, branch: int) -> None:
        """The row of a stage, or of one branch of the generation with number `group`."""
        log, last_step = self.stages, -1
        if emitted:
            if stage.segments is not None:
                stage.segments.append((stage.emit_step, stage.join_tick, client.decode_clock()))
                self.gaps[len(log)] = stage.segments
            together = client.returns_together
            last_step = stage.first_step + emitted - 1 if together else client.num_steps - 1
        log.write(
            log.buffer, log.pos, stage.request.id, self._kinds[kind], client.index, stage.assigned_ns, stage.start_ns,
            stage.first_token_ns, self.env._now, stage.prompt_tokens, emitted, stage.first_step, last_step,
            preemptions, cached_tokens, group, branch,
        )
        log.pos += log.size
        if log.pos == log.limit:
            log.flush()

    def _add_branch(self, client: Client, stage: Stage, kind: str, emitted: int, index: int) -> None:
        """The row of a branch. What a prompt took (cached tokens, preemptions before it was computed) is the lead's."""
        mine = kind != "prefill" or index == 0
        assert stage.branches is not None
        self._write_row(client, stage, kind, emitted, stage.preemptions if mine else 0,
                        stage.cached_tokens if mine else 0, stage.branches.lead.arrival_order, index)

    def _served(self, request: Request, client: Client, stage: Stage) -> None:
        """A stage is done; its user, or its pipeline, hears of it when the client's front end is done with it."""
        after = self._after_ns[client.index]
        if after:
            self.env.tick_at(self.env._now + after, ARRIVAL, lambda tick: self._deliver(request, client, stage))
        else:
            self._deliver(request, client, stage)

    def _deliver(self, request: Request, client: Client, stage: Stage) -> None:
        """Go on with a pipeline if this stage is what it waits for."""
        stage = stage.original or stage
        stage.client, stage.done = client, True
        pending = request.pending
        if pending is None:
            if not stage.detached:
                self.advance(request, stage)
            return
        wanted = pending[0]
        if wanted is not stage:
            group = wanted.stages if type(wanted) is AnyOf else wanted if type(wanted) is tuple else ()
            if stage not in group:
                return
        if request.over:
            return
        pending[1] -= 1
        if not pending[1]:
            request.pending = None
            self.advance(request, stage if type(wanted) is AnyOf else wanted)

    def _observe(self, event: str, client: Client, stage: Stage) -> None:
        """Tell the routers that keep books: "prefilled", "transferred", "done" or "refused"."""
        for observer in self._observers:
            observer(event, client, stage)

    def _first_token(self, client: Client, stage: Stage) -> None:
        self._observe("prefilled", client, stage)


def _place_of(stage: Stage) -> Client:
    """Where a stage that is done was served."""
    assert stage.client is not None
    return stage.client


def _nothing() -> None:
    pass
