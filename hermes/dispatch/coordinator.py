"""The global coordinator: starts requests, dispatches their stages to clients, takes completions back.

One clock, one event queue (SimPy). A request is its pipeline, a generator: the coordinator sends it the stage that was
served and dispatches the stage that it yields next. The coordinator drives the generators directly, not as SimPy
processes, which saves the start, resume and end events of a process per request; everything that takes time is still an
event.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from hermes.core.client import Aborting, Client, ClientEvents, ClientView
from hermes.core.clock import Clock
from hermes.core.generation import Embedding, Generation
from hermes.core.record import Notes
from hermes.core.request import Arrivals, Request, Stream
from hermes.core.router import LoadCell, Router
from hermes.core.stage import AnyOf, Stage
from hermes.dispatch.completions import Completions, LoadLedger
from hermes.dispatch.inputs import Inputs
from hermes.dispatch.rows import StageRows
from hermes.errors import InputError, Verbatim

if TYPE_CHECKING:
    from hermes.dispatch.parts import DispatchPart

__all__ = ["Coordinator"]

Waited: TypeAlias = "Stage | tuple[Stage, ...] | None"   # sent to a pipeline when its wait is over; None at the start

DONE, REJECTED = 1, 2


class Coordinator:
    """Routes stages to clients until every request is completed or rejected.

    Fills columns of the record as the simulation proceeds: `arrivals`, `status`, `rows`, `reject_reasons`, `fates`.

    Args:
        routers: (stage kind, model) -> router.
        candidates: (stage kind, model) -> clients that serve it.
        cells: For each client index the load cells to keep up to date.
        prefill_gives: Tokens that users get from the client of a prompt which another decodes, 0 or 1.
        parts: Their hooks are called in this order.

    Attributes:
        fates: Request -> index into `FATES`, of those that ended with an error.
        attempts: Whether a part makes attempts at stages.
    """

    __slots__ = (
        "_candidates", "_everyone", "_loads", "_observers", "_stage_count", "_that_copy", "_that_hear_arrivals",
        "_that_hear_begins", "_that_hear_ends", "_that_hold", "_that_move", "_that_plan", "_that_reach", "arrivals",
        "attempts", "clients", "completions", "env", "fates", "finish_ns", "inputs", "notes", "parts", "prefill_gives",
        "reject_reasons", "routers", "rows", "status", "streams", "unfinished",
    )

    def __init__(
        self, env: Clock, clients: list[Client], events: ClientEvents, routers: dict[tuple[str, str], Router],
        candidates: dict[tuple[str, str], list[Client]], cells: list[list[tuple[LoadCell, int]]], streams: list[Stream],
        rows: StageRows, notes: Notes, inputs: Inputs, *, prefill_gives: int = 1, parts: Sequence[DispatchPart] = (),
    ) -> None:
        self.env, self.clients, self.streams = env, clients, streams
        self.rows, self.notes, self.inputs = rows, notes, inputs
        self.routers = routers
        self._candidates = candidates
        self._everyone = {key: list(clients) for key, clients in candidates.items()}
        self._loads = LoadLedger(cells)
        total = sum(len(s.table) for s in streams)
        self.status = bytearray(total)
        self.finish_ns = array("q", [-1]) * total
        self.reject_reasons: dict[int, str] = {}
        self.fates: dict[int, int] = {}
        self.unfinished = total
        for stream in streams:
            stream.coordinator = self
        self._stage_count = 0
        self.parts, self.prefill_gives = tuple(parts), prefill_gives
        self.attempts = any(part.attempts for part in self.parts)
        self._that_hear_arrivals = self.that("arrived")
        self.arrivals = Arrivals(env, streams, self.begin if self._that_hear_arrivals else self.offer)
        self._that_hold, self._that_copy, self._that_plan = self.that("holds"), self.that("copy"), self.that("plans")
        self._that_reach = self.that("unreachable")
        self._that_hear_begins = self.that("begins")
        self._that_move = self.that("moved")
        self._that_hear_ends = self.that("finished")
        self._observers = self.that("observed")
        events.left = lambda: self.unfinished
        for part in self.parts:
            part.attach(self)
        self.completions = Completions(self, events, self._loads)

    def that(self, hook: str) -> tuple[DispatchPart, ...]:
        """Return the parts that have a hook, in order."""
        return tuple(part for part in self.parts if part.has(hook))

    # -- pipelines -----------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Start the pipeline of a request that arrives now."""
        for part in self._that_hear_arrivals:
            part.arrived(request)
        self.offer(request)

    def offer(self, request: Request) -> None:
        """Start the pipeline of a request, once more if its client offers it again."""
        stream = request.stream
        if stream.only_stage is not None:
            self.dispatch(request, stream.only_stage(request))
        else:
            request.pipeline = stream.pipeline(request)
            self.advance(request, None)

    def advance(self, request: Request, result: Waited) -> None:
        """Send a pipeline the completions that it waited for, and dispatch the stages that it yields next."""
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
                    result.background = False
                    if result.done:
                        break
                else:
                    request.pending = [wanted, 1]
                    return
                continue
            elif not wanted.detached:
                self.dispatch(request, wanted)
                return
            else:
                wanted.background = False
                if wanted.done:
                    result = wanted
                    continue
                request.pending = [wanted, 1]
                return
            for stage in waited:
                stage.background = False
            missing = [stage for stage in waited if not stage.done]
            if not missing:
                result = wanted
                continue
            request.pending = [wanted, len(missing)]
            for stage in missing:
                if not stage.detached and not request.over:
                    self.dispatch(request, stage)
            return

    def deliver(self, request: Request, client: Client, stage: Stage) -> None:
        """Continue a pipeline if this stage is the one it waits for."""
        stage.client, stage.done = client, True
        pending = request.pending
        if pending is None:
            if request.pipeline is None:
                if not request.over:
                    self._finish(request, DONE)
            elif not stage.detached:
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

    def start_stage(self, request: Request, stage: Stage) -> None:
        """Dispatch a stage while the request's pipeline continues."""
        stage.detached = stage.background = True
        if not request.over:
            self.dispatch(request, stage)

    def candidates(self, kind: str, model: str) -> list[Client]:
        """Return the clients that may serve a kind of stage of a model ("" for any); all while none is ready."""
        return self.members(kind, model) or self._everyone.get((kind, model)) or self._everyone.get((kind, ""), [])

    def members(self, kind: str, model: str) -> list[Client]:
        """Return the clients that take stages of a kind now: a list that changes."""
        found = self._candidates.get((kind, model))
        return self._candidates.get((kind, ""), []) if found is None else found

    def views(self, kind: str, model: str) -> tuple[ClientView, ...]:
        """Return the present state of the clients that may serve a kind of stage of a model."""
        return tuple(client.view() for client in self.candidates(kind, model))

    def _finish(self, request: Request, status: int) -> None:
        request.over = True
        self.status[request.id] = status
        self.finish_ns[request.id] = self.env._now
        self.unfinished -= 1
        for part in self._that_hear_ends:
            part.finished(request)
        if request.stream.follows_up:
            self.arrivals.answered(request)

    def refuse(self, request: Request, reason: str) -> None:
        """End a request that cannot be served, unless its client offers it again."""
        if not request.background and any(part.offers_again(request, reason) for part in self.parts):
            return
        pipeline = request.pipeline
        if request.background:
            request.over, request.pipeline = True, None
        else:
            self.reject_reasons[request.id] = reason
        # A running pipeline is starting a stage, and is closed when it yields.
        if pipeline is not None and not pipeline.gi_running:
            pipeline.close()
        if not request.background:
            self._finish(request, REJECTED)
        for part in self.parts:
            part.gave_up(request)

    def drop(self, request: Request, fresh: Request) -> None:
        """Give up all that a request has asked for, since its client offers it again as `fresh`."""
        request.over = True   # a pipeline that is starting a stage is closed when it yields
        if request.pipeline is not None and not request.pipeline.gi_running:
            request.pipeline.close()
        for part in self.parts:
            part.dropped(request, fresh)
        for part in self.parts:
            part.gave_up(request)

    def abort(self, client: Client, stage: Stage) -> None:
        """Cancel a stage that a client has, or that moves to another."""
        if isinstance(stage, Generation) and any(part.withdraws(stage, client) for part in self.parts):
            return
        cast(Aborting, client).abort(stage)   # the scenario was checked for it

    def answers(self, stage: Stage, client: Client | None) -> bool:
        """Whether the user has the first token of a generation at a client, whose front end sends it."""
        return isinstance(stage, Generation) and stage.is_read_by(self.env._now, client, self.prefill_gives)

    def dispatch(self, request: Request, stage: Stage) -> None:
        """Choose a client for a stage and submit the stage to it."""
        stage.request = request
        if self._that_hold and self._held(request, stage):
            return
        if self._that_copy:
            for part in self._that_copy:
                stage = part.copy(stage)
            stage.request = request
        self._stage_count = stage.arrival_order = self._stage_count + 1
        seq = stage if isinstance(stage, Generation) else None
        if seq is not None:
            if request.max_new_tokens:
                seq.max_new_tokens = request.max_new_tokens - seq.carried
            if seq.width > 1:
                self._stage_count += seq.width - 1   # each branch has a number of its own
        if stage.content is None:
            stage.content = request.content_of(seq) if request.continued and seq is not None else request.content
        model = stage.model or request.model
        router = self.routers.get((stage.kind, model)) or self.routers.get((stage.kind, ""))
        if router is None:
            raise InputError(Verbatim(f"no client serves stage {stage.kind!r} of model {model!r}; add one"),
                             field="clients")
        client = router.choose(stage)
        if self._that_reach and self._unreachable(stage, client):
            for part in self._observers:
                part.observed("refused", client, stage)
            return
        if seq is None:
            self._dispatch_task(request, client, stage)
            return
        if self._that_plan:
            reason = self._refusal(client, seq)
        else:   # the same, without the calls
            seq.hands_over, seq.target_tokens = False, seq.output_tokens
            if (reason := client.refusal(seq)) is not None:
                reason = f"{client.name}: {reason}"
        if reason is not None:
            for part in self._observers:
                part.observed("refused", client, seq)
            seq.decode_on = None
            other = self._first_accepting(seq)
            if other is None:
                if not any(part.refused(seq, client, reason) for part in self.parts):
                    self.refuse(request, reason)
                return
            client = other
            if self._unreachable(stage, client):
                return
        self.assign(client, seq)
        for part in self._that_hear_begins:
            part.begins(seq, client)
        if seq.inputs:
            self.inputs.bring(seq, client)
        else:
            client.submit(seq)

    def _held(self, request: Request, stage: Stage) -> bool:
        members = self.members(stage.kind, stage.model or request.model)
        return any(part.holds(request, stage, members) for part in self._that_hold)

    def _unreachable(self, stage: Stage, client: Client) -> bool:
        return any(part.unreachable(stage, client) for part in self._that_reach)

    def _dispatch_task(self, request: Request, client: Client, stage: Stage) -> None:
        """Submit a stage that is no generation. An engine serves it as a sequence that ends with its prompt."""
        task = stage if client.role == "service" else Embedding(stage)
        reason = client.refusal(task)
        if reason is not None:
            for part in self._observers:
                part.observed("refused", client, stage)
            for other in self._least_assigned(stage):
                task = stage if other.role == "service" else Embedding(stage)
                if other.refusal(task) is None:
                    break
            else:
                self.refuse(request, f"{client.name}: {reason}")
                return
            client = other
            if self._unreachable(stage, client):
                return
        task.assigned_ns = self.env._now
        self._loads.add(client, stage.prompt_tokens, 0, 1)
        for part in self._that_hear_begins:
            part.begins(task, client)
        if stage.inputs:
            self.inputs.bring(task, client)
        else:
            client.submit(task)

    def _refusal(self, client: Client, stage: Generation) -> str | None:
        """Return why `client` cannot serve a generation, or None. Sets the tokens that it is to emit there."""
        stage.hands_over, stage.target_tokens = False, stage.output_tokens
        for part in self._that_plan:
            if (reason := part.plans(stage, client)) is not None:
                return reason
        reason = client.refusal(stage)
        return None if reason is None else f"{client.name}: {reason}"

    def _first_accepting(self, stage: Generation) -> Client | None:
        """Return the least assigned client that accepts a generation which the router's choice refused, or None."""
        for client in self._least_assigned(stage):
            if all(part.takes(stage, client) for part in self.parts) and self._refusal(client, stage) is None:
                return client
        return None

    def _least_assigned(self, stage: Stage) -> list[Client]:
        """Return the clients that may serve a stage, those with the fewest stages first."""
        return sorted(self.members(stage.kind, stage.model or stage.request.model), key=lambda c: c.num_assigned)

    def turned_away(self, source: Client, stage: Generation, reason: str) -> None:
        """No client continues a generation whose prompt `source` has computed: reject its request."""
        for part in self._observers:
            part.observed("refused", source, stage)
        if not any(part.turned_away(stage, source, reason) for part in self.parts) and not stage.request.over:
            self.refuse(stage.request, reason)

    def moved(self, source: Client, stage: Generation, target: Client, twin: Generation) -> None:
        """The KV of a generation has left `source`; `target` serves it as `twin`."""
        for part in self._that_move:
            part.moved(stage, twin, target)
        for part in self._observers:
            part.observed("transferred", source, stage)

    def assign(self, client: Client, stage: Generation) -> None:
        """Count a generation at a client from now on."""
        stage.assigned_ns = self.env._now
        outputs = stage.target_tokens - stage.given if stage.branches is None else stage.branches.assign(stage)
        self._loads.add(client, stage.prompt_tokens, outputs, 1)

    def unassign(self, client: Client, stage: Generation) -> None:
        """Stop counting a generation that was given up; its client may have lowered its target."""
        outputs = stage.assigned_outputs
        if stage.branches is None:
            outputs = (1 if stage.hands_over else stage.output_tokens) - stage.given
        self._loads.add(client, -stage.prompt_tokens, -outputs, -1)
