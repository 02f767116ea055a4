"""Patience: clients give up requests that have no first token, or no end, within so long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hermes.core.client import Client
from hermes.core.clock import ARRIVAL, Clock, Tick
from hermes.core.generation import Generation
from hermes.core.reasons import GAVE_UP
from hermes.core.request import Request, Stream
from hermes.core.stage import Stage
from hermes.dispatch.parts import DispatchPart

__all__ = ["Patience"]


class Patience(DispatchPart):
    """Gives up requests of workloads with `patience`, and tells the clients that have their stages.

    Args:
        limits: For each such workload the time in ns without a first token, and without the end; None for no limit.
    """

    def __init__(self, env: Clock, limits: Mapping[Stream, tuple[int | None, int | None]]) -> None:
        self._env = env
        self._limits = {stream: [
            (number, after_ns, f"{GAVE_UP}{what} within {after_ns / 1e9:g} s")
            for number, (after_ns, what) in enumerate(zip(own, ("no first token", "not answered"), strict=True))
            if after_ns is not None] for stream, own in limits.items()}
        # Request -> its stages, each with the client that has it (None: it has left).
        self._serving: dict[Request, dict[Stage, Client | None]] = {}

    def arrived(self, request: Request) -> None:
        for number, after_ns, reason in self._limits.get(request.stream, ()):
            self._env.tick_at(self._env._now + after_ns, ARRIVAL, partial(self._give_up, request, number, reason))

    def begins(self, stage: Stage, client: Client) -> None:
        if stage.request.stream in self._limits:
            self._serving.setdefault(stage.request, {})[stage] = client

    def moved(self, stage: Generation, twin: Generation, target: Client) -> None:
        serving = self._serving.get(stage.request)
        if serving is not None and stage in serving:
            del serving[stage]
            serving[twin] = target

    def computed(self, stage: Stage) -> None:
        asked, serving = stage.original or stage, self._serving.get(stage.request, {})
        for each in serving:
            if (each.original or each) is asked:
                serving[each] = None

    def dropped(self, request: Request, fresh: Request) -> None:
        fresh.reads = self._reads(request)
        self._serving.pop(request, None)

    def finished(self, request: Request) -> None:
        self._serving.pop(request, None)

    def idle(self) -> bool:
        return not self._serving

    def _give_up(self, request: Request, number: int, reason: str, tick: Tick) -> None:
        """Cancel a request if its client's patience is at an end. number: 0 for that with the first token."""
        while request.successor is not None:
            request = request.successor
        if request.over or (number == 0 and self._reads(request)):
            return
        serving = self._serving.get(request, {})
        self.coordinator.refuse(request, reason)
        if serving and not self.coordinator.attempts:   # otherwise the part that makes them cancels them
            self._serving[request] = serving
            self._cancel(request)

    def _reads(self, request: Request) -> bool:
        """Whether the user of a request has a token of its answer, of this offer or of one before: of the generation
        that it asked for last, or of one beside it."""
        if request.reads:
            return True
        mine = [(asked, seq, client or seq.client) for seq, client in self._serving.get(request, {}).items()
                if seq.kind == "generate" and isinstance(asked := seq.original or seq, Generation)]
        mine = [one for one in mine if not one[0].background] or mine
        return any(self._has_begun(asked, seq, client) for asked, seq, client in mine
                   if (asked is mine[-1][0] or not asked.done) and asked.is_read)

    def _has_begun(self, asked: Stage, seq: Stage, client: Client | None) -> bool:
        """Whether the user has a token of a generation; `seq` is at a client, another attempt may have given it."""
        for part in self.coordinator.parts:
            if (begun := part.begun(asked)) is not None:
                return begun
        return self.coordinator.answers(seq, client)

    def _cancel(self, request: Request, tick: Tick | None = None) -> None:
        """Cancel the stages of a request one after the other: each may end a step at this instant."""
        serving = self._serving[request]
        stage = next(iter(serving))
        client = serving.pop(stage)
        if client is not None and not (stage.original or stage).done:
            self.coordinator.abort(client, stage)
        if serving:
            self._env.tick_at(self._env._now, ARRIVAL, partial(self._cancel, request))
        else:
            del self._serving[request]
