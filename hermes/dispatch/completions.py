"""What a client has computed, or given up: rows of the record, loads of clients, observers, and then the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hermes.core.client import Aborting, Client, ClientEvents
from hermes.core.clock import ARRIVAL
from hermes.core.generation import Generation, token_delay_ns
from hermes.core.request import Request
from hermes.core.router import LoadCell
from hermes.core.stage import Stage

if TYPE_CHECKING:
    from hermes.dispatch.coordinator import Coordinator

__all__ = ["Completions", "LoadLedger"]


class Completions:
    """Hears of the ends of stages at clients.

    Args:
        coordinator: Delivers what is complete to its pipeline.
        events: Calls the methods here.
    """

    def __init__(self, coordinator: Coordinator, events: ClientEvents, loads: LoadLedger) -> None:
        self.env, self.rows, self.parts = coordinator.env, coordinator.rows, coordinator.parts
        self._coordinator, self._loads, self._deliver = coordinator, loads, coordinator.deliver
        self._attempts, self._prefill_gives = coordinator.attempts, coordinator.prefill_gives
        self._observers, self._that_end = coordinator.that("observed"), coordinator.that("ended")
        events.done = self._task_done
        events.ended = self._sequence_done
        events.aborted = self.aborted
        if self._observers:
            events.first_token = self._prefilled

    def _task_done(self, client: Client, stage: Stage) -> None:
        """Handle a stage that a client without an engine completed at this instant."""
        self._loads.add(client, -stage.prompt_tokens, 0, -1)
        self.rows.task(client, stage)
        stage.request.client = client
        for part in self._observers:
            part.observed("done", client, stage)
        self._served(stage.request, client, stage)

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
            kind, emitted = "prefill", self._prefill_gives
        else:
            kind = "decode" if seq.transferred else "generate"
        self.rows.sequence(client, seq, kind, emitted)
        request.client = client
        for part in self._observers:
            part.observed("prefilled" if hand_over else "done", client, observed)
        if hand_over:
            self._hand_over(client, seq)
            return
        client.forget(seq)
        if client.after_ns or client.late_log or self._that_end:
            self._served(request, client, seq)
        else:
            self._deliver(request, client, asked)

    def _branch_done(self, client: Client, stage: Generation) -> None:
        """Handle a completed branch, or the completed prompt of branches that another client decodes."""
        branches, request = stage.branches, stage.request
        assert branches is not None
        hand_over, gives = stage.hands_over, self._prefill_gives
        if hand_over:
            for index, tokens in enumerate(branches.outputs):
                self.rows.branch(client, stage, "prefill" if tokens > gives else "generate", gives, index)
            branches.open -= sum(tokens == gives for tokens in branches.outputs)
        else:
            kind = "decode" if stage.transferred else "generate"
            self.rows.branch(client, stage, kind, stage.target_tokens - stage.given, stage.branch)
            branches.leave(stage)
            client.forget(stage)
            if branches.open:
                return
        lead = stage if hand_over else branches.lead
        self._loads.add(client, -lead.prompt_tokens, -lead.assigned_outputs, -1)
        client.emitted -= lead.assigned_outputs
        request.client = client
        for part in self._observers:
            part.observed("prefilled" if hand_over else "done", client, lead)
        if hand_over:
            self._hand_over(client, lead)
        else:
            self._served(request, client, lead)

    def _hand_over(self, client: Client, stage: Generation) -> None:
        for part in self.parts:
            part.hands_over(stage, client)

    def _served(self, request: Request, client: Client, seq: Stage) -> None:
        """Deliver what a client has computed to its pipeline, after the delay of the client's front end."""
        delay_ns = token_delay_ns(client, -1)   # of its latest step
        if not delay_ns:
            if self._that_end:
                self._sent(request, client, seq)
            else:
                self._deliver(request, client, seq.original or seq)
            return
        seq.client = client
        for part in self.parts:
            part.computed(seq)
        self.env.tick_at(self.env._now + delay_ns, ARRIVAL, lambda tick: self._sent(request, client, seq))

    def _sent(self, request: Request, client: Client, seq: Stage) -> None:
        """Deliver an answer that has arrived, if somebody waits for it."""
        if all(part.ended(seq) for part in self._that_end):
            self._deliver(request, client, seq.original or seq)

    def _prefilled(self, client: Client, seq: Generation) -> None:
        """Report that a prompt has ended whose answer goes on at its client."""
        for part in self._observers:
            part.observed("prefilled", client, seq)

    def aborted(self, client: Client, stage: Stage) -> None:
        """Account for a sequence, or a task, that has left its client unfinished."""
        if not isinstance(stage, Generation):
            self._loads.add(client, -stage.prompt_tokens, 0, -1)
            self.rows.task(client, stage)
            for part in self.parts:
                part.left(stage)
            for part in self._observers:
                part.observed("done", client, stage)
            return
        branches, emitted = stage.branches, stage.num_tokens - stage.prompt_tokens - stage.given
        lead, kind = stage, "decode" if stage.transferred else stage.kind
        if branches is not None and stage.branch >= 0:
            self.rows.branch(client, stage, kind, emitted, stage.branch)
            branches.not_emitted += stage.target_tokens - stage.given - emitted
            branches.leave(stage)
            if branches.open:
                return
            lead = branches.lead
            emitted = lead.assigned_outputs - branches.not_emitted
        elif stage.hands_over:
            for part in self.parts:
                part.stopped(stage, client)
            for part in self._observers:
                part.observed("transferred", client, stage)
            gives = self._prefill_gives if emitted else 0
            if branches is None:
                self.rows.sequence(client, stage, "prefill", gives)
            else:
                emitted *= stage.width
                for index in range(stage.width):
                    self.rows.branch(client, stage, "prefill", gives, index)
        else:
            self.rows.sequence(client, stage, kind, emitted)
        for part in self.parts:
            part.left(lead)
        if not self._attempts:
            (lead.original or lead).done = True
        client.emitted -= emitted
        self._coordinator.unassign(client, lead)
        observed: Stage = lead
        if lead.kind != "generate":
            observed = lead.original or lead
            observed.arrival_order = lead.arrival_order
        for part in self._observers:
            part.observed("done", client, observed)

    def lose(self, client: Client, stages: list[Stage]) -> None:
        """End stages that a client had when it went down."""
        there = []
        for stage in stages:
            if self._coordinator.inputs.stop(stage, client):
                self.aborted(client, stage)
            else:
                there.append(stage)
        cast(Aborting, client).kill(there)


_KINDS = ("output_tokens", "input_tokens", "requests")


class LoadLedger:
    """Keeps the clients' counters, the routers' load cells and the load bounds up to date."""

    def __init__(self, cells: list[list[tuple[LoadCell, int]]]) -> None:
        """
        Args:
            cells: For each client the cells that hold its load, with its position in each.
        """
        # Views of the cells: several times faster than numpy's indexing of single elements.
        self._cells = [
            [(memoryview(cell.values), pos, _KINDS.index(cell.kind))  # type: ignore[arg-type]  # it is a buffer
             for cell, pos in mine] for mine in cells
        ]

    def add(self, client: Client, prompt_tokens: int, outputs: int, count: int) -> None:
        """Count a stage at a client from now on; with negative numbers, stop counting it."""
        client.input_tokens += prompt_tokens
        client.output_tokens += outputs
        client.num_assigned += count
        cells = self._cells[client.index]
        if cells:
            for values, pos, kind in cells:
                values[pos] += outputs if not kind else prompt_tokens if kind == 1 else count
        if client.tracks:
            for track, position in client.tracks:
                track.moved(position, client)
