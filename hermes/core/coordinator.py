"""The global coordinator: starts requests, dispatches their stages to clients, takes completions back.

One clock, one event queue (SimPy). A request is its pipeline, a generator: the coordinator sends it the stage that was
served and dispatches the stage that it yields next. The coordinator drives the generators directly, not as SimPy
processes, which saves the start, resume and end events of a process per request; everything that takes time is still an
event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from hermes.core.client import Aborting, Client, ClientEvents, ClientView
from hermes.core.clock import ARRIVAL, Clock, Tick
from hermes.core.columns import RowLog
from hermes.core.generation import Embedding, Generation, Segments
from hermes.core.layerwise import exposed_bytes
from hermes.core.load_ledger import LoadLedger
from hermes.core.network import Network
from hermes.core.reasons import GAVE_UP
from hermes.core.record import BELIEVED, FATES
from hermes.core.request import Arrivals, Request, Stream
from hermes.core.router import LoadCell, Router
from hermes.core.stage import AnyOf, Stage
from hermes.errors import InputError, Verbatim

if TYPE_CHECKING:
    from hermes.core.gateway import Gateway  # needed only where attempts can fail
    from hermes.core.kv_transfer import Handoff  # needed only where prefill and decode are apart

__all__ = ["Coordinator"]

Waited: TypeAlias = "Stage | tuple[Stage, ...] | None"   # sent to a pipeline when its wait is over; None at the start

DONE, REJECTED = 1, 2


class _Moving(NamedTuple):
    """An input that moves to the client of its stage: from where, since when, and how to stop it."""

    source: Client
    asked_ns: int
    stop: Callable[[], int]


class Coordinator:
    """Routes stages to clients until every request is completed or rejected.

    Fills columns of the record as the simulation proceeds: `arrivals`, `status`, `stages`, `gaps`, `reject_reasons`.

    Args:
        routers: (stage kind, model) -> router.
        candidates: (stage kind, model) -> clients that serve it.
        cells: For each client index the load cells to keep up to date.
        local_handoff: Whether KV moves within a platform only.
        fleet: Called as routers' `observe` is, where clients come and go.
        gateway: Makes attempts at what engines serve; None where none of them can fail.
    """

    def __init__(
        self, env: Clock, clients: list[Client], events: ClientEvents, routers: dict[tuple[str, str], Router],
        candidates: dict[tuple[str, str], list[Client]], cells: list[list[tuple[LoadCell, int]]], streams: list[Stream],
        stages: RowLog, stage_kinds: list[str], network: Network, transfers: RowLog,
        handoff: Handoff | None = None, *, local_handoff: bool = False,
        fleet: Callable[[str, Client, Stage], None] | None = None, gateway: Gateway | None = None,
    ) -> None:
        self.local_handoff = local_handoff
        self.network, self.transfers = network, transfers
        self.env, self.clients, self.streams, self.stages, self.handoff = env, clients, streams, stages, handoff
        self._routers = routers
        self._candidates = candidates
        self._everyone = {key: list(clients) for key, clients in candidates.items()}
        self._kinds = {kind: i for i, kind in enumerate(stage_kinds)}
        self._loads = LoadLedger(cells)
        total = sum(len(s.table) for s in streams)
        self._arriving = Arrivals(env, streams, self.begin)
        self.arrivals = self._arriving.times_ns
        self.status = bytearray(total)
        self.finish_ns = [-1] * total
        self.reject_reasons: dict[int, str] = {}
        self.notes: dict[str, dict[int, float]] = {}   # numbers that pipelines noted about requests
        self.note_names: dict[str, list[str]] = {}     # names of those that are positions
        self.gaps: dict[int, Segments] = {}   # stage row -> segments (see `Generation`)
        self.unawaited: dict[int, Stage] = {}   # stage row -> stage that its pipeline had not waited for by its end
        # Of requests whose client may give up: stages, each with the client that has it (None: it has left).
        self._serving: dict[Request, dict[Stage, Client | None]] = {}
        self.unfinished = total
        for stream in streams:
            stream.coordinator = self
        self._stage_count = 0
        distinct = {id(router): router for router in routers.values()}.values()
        observers: list[Callable[[str, Client, Stage], None]] = [r.observe for r in distinct if hasattr(r, "observe")]
        self._observers = observers
        if fleet is not None:
            observers.append(fleet)
        self.prefill_gives = 1 if handoff is None else handoff.prefill_gives   # tokens that users get from a prefill
        events.done = self._task_done
        events.ended = self._sequence_done
        events.aborted = self._aborted
        events.left = lambda: self.unfinished
        if observers:
            events.first_token = self._first_token
        if handoff is not None:
            handoff.book = self
        self.gateway = gateway
        self._bringing: dict[Stage, dict[Stage, _Moving]] = {}   # with a gateway: inputs of stages that move
        if gateway is not None:
            gateway.book = self

    @property
    def out_of_requests_ns(self) -> int:
        """When a user of a closed loop first found no request left; -1 if that did not happen."""
        return self._arriving.out_of_requests_ns

    # -- pipelines -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the first arrivals."""
        self._arriving.start()

    def begin(self, request: Request) -> None:
        """Start the pipeline of a request that arrives now."""
        stream = request.stream
        if stream.patience_ns is not None:
            self._limit(request, stream.patience_ns)
        if stream.retry is not None:
            stream.retry.began(request)
        self._offer(request)

    def _offer(self, request: Request) -> None:
        """Start the pipeline of a request, once more if its client offers it again."""
        stream = request.stream
        if stream.only_stage is not None:
            self._dispatch(request, stream.only_stage(request))
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
                self._dispatch(request, wanted)
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
                    self._dispatch(request, stage)
            return

    def start_stage(self, request: Request, stage: Stage) -> None:
        """Dispatch a stage while the request's pipeline continues."""
        stage.detached = stage.background = True
        if not request.over:
            self._dispatch(request, stage)

    def believed(self, stage: Stage, tokens: int) -> None:
        """Add to the tokens of a request's prompts that a router believes to be cached."""
        noted = self.notes.setdefault(BELIEVED, {})
        noted[stage.request.id] = noted.get(stage.request.id, 0.0) + tokens

    def note(self, request: Request, name: str, value: float, names: Sequence[str] = ()) -> None:
        """Record a number about a request, or with `names` one of them by its position."""
        self.notes.setdefault(name, {})[request.id] = value
        if names and name not in self.note_names:
            self.note_names[name] = list(names)

    @property
    def now(self) -> int:
        """The simulated time in nanoseconds."""
        return self.env._now

    def candidates(self, kind: str, model: str) -> list[Client]:
        """Return the clients that may serve a kind of stage of a model ("" for any); all while none is ready."""
        key = (kind, model) if (kind, model) in self._candidates else (kind, "")
        return self._candidates.get(key) or self._everyone.get(key, [])

    def views(self, kind: str, model: str) -> tuple[ClientView, ...]:
        """Return the present state of the clients that may serve a kind of stage of a model."""
        return tuple(client.view() for client in self.candidates(kind, model))

    def _finish(self, request: Request, status: int) -> None:
        request.over = True
        self.status[request.id] = status
        self.finish_ns[request.id] = self.env._now
        self.unfinished -= 1
        if self._serving:
            self._serving.pop(request, None)
        if request.stream.retry is not None:
            request.stream.retry.ended(request)
        if request.stream.follows_up:
            self._arriving.answered(request)

    def _reject(self, request: Request, reason: str) -> None:
        retries, gateway = request.stream.retry, self.gateway
        if retries is not None and gateway is not None and not request.background:
            again = retries.again(request, reason, begun=gateway.begun(request))
            if again is not None:
                self._drop(request)
                wait_ns, fresh = again
                self.env.tick_at(self.env._now + wait_ns, ARRIVAL, partial(self._offer_again, fresh))
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
        if self.gateway is not None:
            self.gateway.cancel(request)

    def _drop(self, request: Request) -> None:
        """Give up all that a request has asked for, since its client offers it again."""
        request.over = True   # a pipeline that is starting a stage is closed when it yields
        if request.pipeline is not None and not request.pipeline.gi_running:
            request.pipeline.close()
        self._serving.pop(request, None)
        if self.gateway is not None:
            self.gateway.fates.pop(request.id, None)
            self.gateway.cancel(request)

    def _offer_again(self, request: Request, tick: Tick) -> None:
        if not request.over:
            request.note("client_tries", request.offered)
            if self.gateway is not None:
                self.gateway.offered_ns[request.id] = self.env._now
            if request.stream.retry is not None:
                request.stream.retry.offered(request)
            self._offer(request)

    def give_up_try(self, request: Request, reason: str) -> None:
        """End an attempt of a client that takes too long."""
        if not request.over:
            if self.gateway is not None:
                self.gateway.fates[request.id] = FATES.index("timed out")
            self._reject(request, reason)

    def _limit(self, request: Request, patience_ns: tuple[int | None, int | None]) -> None:
        """Let the client of a request give it up after so long without a first token, and without the end."""
        for number, (after, what) in enumerate(zip(patience_ns, ("no first token", "not answered"), strict=True)):
            if after is not None:
                reason = f"{GAVE_UP}{what} within {after / 1e9:g} s"
                self.env.tick_at(self.env._now + after, ARRIVAL, partial(self._give_up, request, number, reason))

    def _give_up(self, request: Request, number: int, reason: str, tick: Tick) -> None:
        """Cancel a request if its client's patience is at an end. number: 0 for that with the first token."""
        while request.successor is not None:
            request = request.successor
        if request.over:
            return
        serving = self._serving.get(request, {})
        if number == 0:
            latest = next((seq for seq in reversed(serving) if seq.kind == "generate"), None)
            asked = latest and (latest.original or latest)   # an attempt before may have given the token
            if any(self.answers(seq) for seq in serving if (seq.original or seq) is asked):
                return
        self._reject(request, reason)
        if serving and self.gateway is None:
            self._serving[request] = serving
            self._cancel(request)

    def _cancel(self, request: Request, tick: Tick | None = None) -> None:
        """Cancel the stages of a request one after the other: each may end a step at this instant."""
        serving = self._serving[request]
        stage = next(iter(serving))
        client = serving.pop(stage)
        if client is not None and not (stage.original or stage).done:
            self.abort(client, stage)
        if serving:
            self.env.tick_at(self.env._now, ARRIVAL, partial(self._cancel, request))
        else:
            del self._serving[request]

    def abort(self, client: Client, stage: Stage) -> None:
        """Cancel a stage that a client has, or that moves to another."""
        if self.handoff is None or not isinstance(stage, Generation) or not self.handoff.give_up(client, stage):
            cast(Aborting, client).abort(stage)   # the scenario was checked for it

    def lose(self, client: Client, stages: list[Stage]) -> None:
        """End stages that a client had when it went down."""
        there = []
        for stage in stages:
            moves = self._bringing.pop(stage, None)
            if moves is None:
                there.append(stage)
                continue
            for move in moves.values():
                self.transfers.add(stage.request.id, move.source.index, client.index, move.stop(), move.asked_ns,
                                   self.now)
            self._aborted(client, stage)
        cast(Aborting, client).kill(there)

    def answers(self, stage: Stage) -> bool:
        """Whether the user has the first token of a generation."""
        if not isinstance(stage, Generation):
            return False
        if stage.hands_over and not self.prefill_gives:
            return False
        return stage.given > 0 or stage.first_token_ns >= 0

    def _aborted(self, client: Client, stage: Stage) -> None:
        """Account for a sequence, or a task, that has left its client unfinished."""
        if not isinstance(stage, Generation):
            self._task_left(client, stage)
            return
        branches, emitted = stage.branches, stage.num_tokens - stage.prompt_tokens - stage.given
        lead, kind = stage, "decode" if stage.transferred else stage.kind
        if branches is not None and stage.branch >= 0:
            self._add_branch(client, stage, kind, emitted, stage.branch)
            branches.not_emitted += stage.target_tokens - stage.given - emitted
            branches.leave(stage)
            if branches.open:
                return
            lead = branches.lead
            emitted = lead.assigned_outputs - branches.not_emitted
        elif stage.hands_over:
            assert self.handoff is not None
            self.handoff.left(client, stage)
            if self._observers:
                self._observe("transferred", client, stage)
            gives = self.prefill_gives if emitted else 0
            if branches is None:
                self._write_row(client, stage, "prefill", gives, stage.preemptions, stage.cached_tokens, -1, -1)
            else:
                emitted *= stage.width
                for index in range(stage.width):
                    self._add_branch(client, stage, "prefill", gives, index)
        else:
            self._write_row(client, stage, kind, emitted, stage.preemptions, stage.cached_tokens, -1, -1)
        if self.gateway is None:
            (lead.original or lead).done = True
        else:
            self.gateway.left(lead)
        client.emitted -= emitted
        self.unassign(client, lead)
        if self._observers:
            observed: Stage = lead
            if lead.kind != "generate":
                observed = lead.original or lead
                observed.arrival_order = lead.arrival_order
            self._observe("done", client, observed)

    def given_up(self, client: Client, stage: Generation) -> None:
        """A generation that was given up leaves the client that was to take it over."""
        self._aborted(client, stage)

    def dispatch(self, request: Request, stage: Stage) -> None:
        """Choose a client for a stage and submit the stage to it, once more."""
        self._dispatch(request, stage)

    def refuse(self, request: Request, reason: str) -> None:
        """End a request that cannot be served."""
        self._reject(request, reason)

    def _dispatch(self, request: Request, stage: Stage) -> None:
        """Choose a client for a stage and submit the stage to it."""
        gateway = self.gateway
        if gateway is not None:
            if gateway.holds(request, stage, self._members(request, stage)):
                return
            stage.request = request
            stage = gateway.copy(stage)
        stage.request = request
        self._stage_count = stage.arrival_order = self._stage_count + 1
        seq = stage if isinstance(stage, Generation) else None
        if seq is not None:
            if request.max_new_tokens:
                seq.max_new_tokens = request.max_new_tokens
            if seq.width > 1:
                self._stage_count += seq.width - 1   # each branch has a number of its own
        if stage.content is None:
            stage.content = request.content_of(seq) if request.continued and seq is not None else request.content
        model = stage.model or request.model
        router = self._routers.get((stage.kind, model)) or self._routers.get((stage.kind, ""))
        if router is None:
            raise InputError(Verbatim(f"no client serves stage {stage.kind!r} of model {model!r}; add one"),
                             field="clients")
        client = router.choose(stage)
        if gateway is not None and gateway.unreachable(stage, client):
            if self._observers:
                self._observe("refused", client, stage)
            return
        if seq is None:
            self._dispatch_task(request, client, stage)
            return
        reason = self._refusal(client, seq)
        if reason is not None:
            if self._observers:
                self._observe("refused", client, seq)
            seq.decode_on = None
            other = self._first_accepting(seq)
            if other is None:
                if gateway is None or not gateway.refused(seq, client, reason):
                    self._reject(request, reason)
                return
            client = other
            if gateway is not None and gateway.unreachable(stage, client):
                return
        self.assign(client, seq)
        if gateway is not None:
            gateway.begins(seq, client)
        if request.stream.patience_ns is not None:
            self._serving.setdefault(request, {})[seq] = client
        if seq.inputs:
            self._bring(seq, client)
        else:
            client.submit(seq)

    def _dispatch_task(self, request: Request, client: Client, stage: Stage) -> None:
        """Submit a stage that is no generation. An engine serves it as a sequence that ends with its prompt."""
        task = stage if client.role == "service" else Embedding(stage)
        reason = client.refusal(task)
        if reason is not None:
            if self._observers:
                self._observe("refused", client, stage)
            for other in self._least_assigned(stage):
                task = stage if other.role == "service" else Embedding(stage)
                if other.refusal(task) is None:
                    break
            else:
                self._reject(request, f"{client.name}: {reason}")
                return
            client = other
            if self.gateway is not None and self.gateway.unreachable(stage, client):
                return
        task.assigned_ns = self.env._now
        self._loads.add(client, stage.prompt_tokens, 0, 1)
        if request.stream.patience_ns is not None:
            self._serving.setdefault(request, {})[task] = client
        if self.gateway is not None and (isinstance(task, Embedding) or client.index in self.gateway.covered):
            self.gateway.begins(task, client)
        if stage.inputs:
            self._bring(task, client)
        else:
            client.submit(task)

    def _bring(self, stage: Stage, client: Client) -> None:
        """Move a stage's inputs to its client in parallel; submit the stage when all have arrived."""
        moves = [(before, num_bytes) for before, num_bytes in stage.inputs if before.client is not client]
        left = len(moves)
        if not left:
            client.submit(stage)
            return
        asked, request, gateway = self.env._now, stage.request, self.gateway

        def arrived(source: Client, num_bytes: int, rest: int, before: Stage) -> None:
            nonlocal left
            if gateway is not None:
                del self._bringing[stage][before]
            if rest:   # arrives during the prefill
                self.network.transfer(source.name, client.name, rest, _nothing)
            self.transfers.add(request.id, source.index, client.index, num_bytes, asked, self.env._now)
            left -= 1
            if not left:
                if gateway is not None:
                    del self._bringing[stage]
                client.submit(stage)

        for before, num_bytes in moves:
            source, waited = _place_of(before), self._exposed(before, client, num_bytes)
            done = partial(arrived, source, num_bytes, num_bytes - waited, before)
            flow = self.network.transfer(source.name, client.name, waited, done)
            if gateway is not None:
                moving = _Moving(source, asked, partial(self.network.cancel, flow))
                self._bringing.setdefault(stage, {})[before] = moving

    def _exposed(self, before: Stage, client: Client, num_bytes: int) -> int:
        """Return the bytes of an input that must arrive before the stage starts: all, or less if KV comes by layer."""
        overlap = before.overlap
        if overlap is None:
            return num_bytes
        layers, hidden_s = overlap
        seconds = self.network.estimate_ns(_place_of(before).name, client.name, num_bytes) / 1e9
        return exposed_bytes(num_bytes, layers, hidden_s, num_bytes / seconds) if seconds else num_bytes

    def _refusal(self, client: Client, stage: Generation) -> str | None:
        """Return why `client` cannot serve a generation, or None. Sets the tokens that it is to emit there."""
        target, whole = stage.decode_on, stage.output_tokens
        other = client.role == "prefill" if target is None else target is not client
        stage.hands_over = other and whole > self.prefill_gives
        if not stage.hands_over:
            stage.target_tokens = whole
            reason: str | None = client.refusal(stage)
            return None if reason is None else f"{client.name}: {reason}"
        # Another client decodes the stage: this one computes the first token, and a decode client must accept the rest.
        stage.target_tokens = whole
        first = None
        for decoder in self._candidates[self._decode_key(client, stage.model or stage.request.model)]:
            reason = decoder.unfit(stage)  # type: ignore[attr-defined]  # `TakingOver`; it is asked again then
            if reason is None:
                break
            first = first or f"decode on {decoder.name}: {reason}"
        else:
            if first is not None:
                return first   # otherwise no decode client is ready now
        stage.target_tokens = 1
        reason = client.refusal(stage)
        return None if reason is None else f"{client.name}: {reason}"

    def _first_accepting(self, stage: Generation) -> Client | None:
        """Return the least assigned client that accepts a generation which the router's choice refused, or None."""
        for client in self._least_assigned(stage):
            if (self.gateway is None or self.gateway.takes(stage, client)) and self._refusal(client, stage) is None:
                return client
        return None

    def _least_assigned(self, stage: Stage) -> list[Client]:
        """Return the clients that may serve a stage, those with the fewest stages first."""
        model = stage.model or stage.request.model
        candidates = self._candidates.get((stage.kind, model)) or self._candidates[stage.kind, ""]
        return sorted(candidates, key=lambda c: c.num_assigned)

    def _members(self, request: Request, stage: Stage) -> list[Client]:
        """Return the clients that take stages like this one now."""
        model = stage.model or request.model
        key = (stage.kind, model) if (stage.kind, model) in self._routers else (stage.kind, "")
        return self._candidates.get(key, [])

    def _decode_key(self, source: Client, model: str) -> tuple[str, str]:
        """Return the candidates' key of the decode clients that may take over from `source`."""
        return (f"decode near {source.platform}" if self.local_handoff else "decode"), model

    def route(self, stage: Generation) -> tuple[Client, str | None]:
        """Choose the decode client that takes over a generation; or return one, and why none does."""
        assert stage.source is not None
        key = self._decode_key(stage.source, stage.model or stage.request.model)
        if not self._candidates[key]:
            return stage.source, "no decode replica is ready"
        target = stage.decode_on or self._routers[key].choose(stage)
        down = set() if self.gateway is None else self.gateway.down
        if target.index in down:
            return target, self._unreached(stage, target)
        reason = target.refusal(stage)
        if reason is None:
            return target, None
        accepting = [c for c in self._candidates[key] if c.refusal(stage) is None]
        if accepting:
            target = min(accepting, key=lambda c: c.num_assigned)
            return target, self._unreached(stage, target) if target.index in down else None
        return target, f"decode on {target.name}: {reason}"   # all queues are at their limits

    def _unreached(self, stage: Generation, target: Client) -> str:
        """Return why a decode client does not take over: it is down, which nobody has noticed."""
        if self.gateway is not None:
            self.gateway.blame(stage, target)
        return f"{target.name} cannot be reached"

    def turned_away(self, source: Client, stage: Generation, reason: str) -> None:
        """No client continues a generation whose prompt `source` has computed: reject its request."""
        if self._observers:
            self._observe("refused", source, stage)
        if self.gateway is not None:
            self.gateway.turned_away(stage, reason)
        elif not stage.request.over:
            self._reject(stage.request, reason)

    def moved(self, source: Client, stage: Generation, target: Client, twin: Generation) -> None:
        """The KV of a generation has left `source`; `target` serves it as `twin`."""
        if self._serving:
            serving = self._serving.get(stage.request)
            if serving is not None and stage in serving:
                del serving[stage]
                serving[twin] = target
        if self.gateway is not None:
            self.gateway.moved(twin, target)
        self._observe("transferred", source, stage)

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

    # -- completions ---------------------------------------------------------------------------------------------

    def _task_done(self, client: Client, stage: Stage) -> None:
        """Handle a stage that a client without an engine completed at this instant."""
        self._task_over(client, stage)
        request = stage.request
        request.client = client
        if self._observers:
            self._observe("done", client, stage)
        if self.gateway is not None:
            if not self.gateway.ended(stage):
                return
            stage = stage.original or stage
        if client.after_ns:
            self._served(request, client, stage)
        else:
            self._deliver(request, client, stage)

    def _task_left(self, client: Client, stage: Stage) -> None:
        """Account for a task that has left its client unfinished."""
        self._task_over(client, stage)
        if self.gateway is not None:
            self.gateway.left(stage)
        if self._observers:
            self._observe("done", client, stage)

    def _task_over(self, client: Client, stage: Stage) -> None:
        """Count a task at its client no longer, and write its row."""
        self._loads.add(client, -stage.prompt_tokens, 0, -1)
        request, log, asked = stage.request, self.stages, stage.original or stage
        if asked.background or request.background:
            self.unawaited[len(log)] = asked
        if self.gateway is not None:
            self.gateway.stage_attempts.append(stage.attempt)
        log.write(
            log.buffer, log.pos, request.id, self._kinds[stage.kind], client.index, stage.assigned_ns, stage.start_ns,
            -1, self.env._now, stage.prompt_tokens, 0, -1, -1, 0, stage.cached_tokens, -1, -1,
        )
        log.pos += log.size
        if log.pos == log.limit:
            log.flush()

    def _sequence_done(self, client: Client, seq: Generation) -> None:
        """Handle a sequence that an engine completed at this instant."""
        if seq.branches is not None:
            self._branch_done(client, seq)
            return
        request, hand_over, asked = seq.request, seq.hands_over, seq.original or seq
        emitted = seq.target_tokens - seq.given
        self._loads.add(client, -seq.prompt_tokens, -emitted, -1)
        client.emitted -= emitted
        observed: Stage = seq
        if seq.kind != "generate":   # an `Embedding`: what its pipeline and the routers know is the stage
            kind, observed = seq.kind, asked
            asked.start_ns, asked.cached_tokens = seq.start_ns, seq.cached_tokens
            asked.arrival_order = seq.arrival_order   # by which routers know an attempt of a gateway
        elif hand_over:
            kind, emitted = "prefill", self.prefill_gives
        else:
            kind = "decode" if seq.transferred else "generate"
        self._write_row(client, seq, kind, emitted, seq.preemptions, seq.cached_tokens, -1, -1)
        request.client = client
        if self._observers:
            self._observe("prefilled" if hand_over else "done", client, observed)
        if hand_over:
            assert self.handoff is not None
            self.handoff.start(client, seq)
            return
        client.forget(seq)
        if self.gateway is not None and not self.gateway.ended(seq):
            return
        if client.after_ns:
            self._served(request, client, asked)
        else:
            self._deliver(request, client, asked)

    def _branch_done(self, client: Client, stage: Generation) -> None:
        """Handle a completed branch, or the completed prompt of branches that another client decodes."""
        branches, request = stage.branches, stage.request
        assert branches is not None
        hand_over, gives = stage.hands_over, self.prefill_gives
        if hand_over:
            for index, tokens in enumerate(branches.outputs):
                self._add_branch(client, stage, "prefill" if tokens > gives else "generate", gives, index)
            branches.open -= sum(tokens == gives for tokens in branches.outputs)
        else:
            kind = "decode" if stage.transferred else "generate"
            self._add_branch(client, stage, kind, stage.target_tokens - stage.given, stage.branch)
            branches.leave(stage)
            client.forget(stage)
            if branches.open:
                return
        lead = stage if hand_over else branches.lead
        self._loads.add(client, -lead.prompt_tokens, -lead.assigned_outputs, -1)
        client.emitted -= lead.assigned_outputs
        request.client = client
        if self._observers:
            self._observe("prefilled" if hand_over else "done", client, lead)
        if hand_over:
            assert self.handoff is not None
            self.handoff.start(client, lead)
        elif self.gateway is None or self.gateway.ended(lead):
            self._served(request, client, lead.original or lead)

    def _write_row(self, client: Client, stage: Generation, kind: str, emitted: int, preemptions: int,
                   cached_tokens: int, group: int, branch: int) -> None:
        """Write the row of a sequence, or of one branch of generation `group`."""
        log, first_step, last_step = self.stages, -1, -1
        lead = stage if stage.branches is None else stage.branches.lead
        asked = lead.original or lead
        if asked.background or stage.request.background:
            self.unawaited[len(log)] = asked
        if self.gateway is not None:
            self.gateway.stage_attempts.append(stage.attempt)
        if emitted:
            first_step = stage.first_step
            if stage.segments is not None:
                stage.segments.append((stage.emit_step, stage.join_tick, client.decode_clock()))
                self.gaps[len(log)] = stage.segments
            together = client.returns_together
            last_step = first_step + emitted - 1 if together else client.num_steps - 1
        log.write(
            log.buffer, log.pos, stage.request.id, self._kinds[kind], client.index, stage.assigned_ns, stage.start_ns,
            stage.first_token_ns, self.env._now, stage.prompt_tokens, emitted, first_step, last_step,
            preemptions, cached_tokens, group, branch,
        )
        log.pos += log.size
        if log.pos == log.limit:
            log.flush()

    def _add_branch(self, client: Client, stage: Generation, kind: str, emitted: int, index: int) -> None:
        """Write the row of a branch. Cached tokens and preemptions during the prompt count at the lead."""
        mine = kind != "prefill" or index == 0
        assert stage.branches is not None
        self._write_row(client, stage, kind, emitted, stage.preemptions if mine else 0,
                        stage.cached_tokens if mine else 0, stage.branches.lead.arrival_order, index)

    def _served(self, request: Request, client: Client, stage: Stage) -> None:
        """Deliver a completed stage to its pipeline, after the delay of the client's front end."""
        if client.after_ns:
            serving = self._serving.get(request, {})
            for seq in serving:
                if (seq.original or seq) is stage:
                    serving[seq] = None
            done_ns = self.env._now + client.after_ns
            self.env.tick_at(done_ns, ARRIVAL, lambda tick: self._deliver(request, client, stage))
        else:
            self._deliver(request, client, stage)

    def _deliver(self, request: Request, client: Client, stage: Stage) -> None:
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

    def _observe(self, event: str, client: Client, stage: Stage) -> None:
        """Report an event to the routers that observe: "prefilled", "transferred", "done" or "refused"."""
        for observer in self._observers:
            observer(event, client, stage)

    def _first_token(self, client: Client, stage: Generation) -> None:
        self._observe("prefilled", client, stage)


def _place_of(stage: Stage) -> Client:
    """Return the client that served a completed stage."""
    assert stage.client is not None
    return stage.client


def _nothing() -> None:
    pass
