"""What goes wrong within the engine of an LLM client that does not end it: it hangs, or its steps take longer."""

from __future__ import annotations

from hermes.clients.llm import LLMClient
from hermes.clients.lockstep import Lockstep
from hermes.clients.parts import StepPart
from hermes.clients.pipeline import Stages
from hermes.schedulers.plan import Plan

__all__ = ["LLMEngines"]


class LLMEngines:
    """Lets the engines of a group fail. See `hermes.fleet.failures.Engines`."""

    def __init__(self, clients: list[LLMClient]) -> None:
        self._runs = {client.index: client._max_run for client in clients}

    def hang(self, client: LLMClient) -> None:
        """Let no step start any more: the place of the event that starts one is taken until the client is killed."""
        pace = client.step_parts.pace
        if isinstance(pace, Lockstep):
            pace.hang()
            return
        if client._flight.plan is not None and client._flight.planned > 1:
            client.cut()
        if client._start is not None:
            client._start.callbacks.clear()
        client._start = client.env.pending()

    def go_on(self, client: LLMClient) -> None:
        """Let steps start again."""
        pace = client.step_parts.pace
        if isinstance(pace, Lockstep):
            pace.go_on()
            return
        client._start = None
        if client._flight.plan is None:
            client.wake()

    def slow(self, client: LLMClient, factor: float) -> None:
        """Let the steps that start from now on take `factor` times as long."""
        parts, flight = client.step_parts, client._flight
        common = parts.stages or parts.pace   # of all clients of one engine
        if isinstance(common, Stages | Lockstep):
            common.slower = factor
            if flight.plan is not None and flight.planned > 1:
                client.cut()
            return
        parts.loads = tuple(part for part in parts.loads if not isinstance(part, _Slow))
        client._max_run = self._runs[client.index]
        if factor > 1.0:
            client._max_run = 1   # only single steps have loads
            _Slow(factor).attach(client)
        if flight.plan is not None and flight.planned > 1:
            client.cut()


class _Slow(StepPart):
    """Makes steps longer by a share of their time on the device."""

    def __init__(self, factor: float) -> None:
        self._more = factor - 1.0

    def attach(self, client: LLMClient) -> None:
        """See `ClientPart`."""
        client.step_parts.loads += (self,)

    def load_ns(self, client: LLMClient, plan: Plan) -> int:
        """See `StepPart`."""
        drafter = client.step_parts.drafter
        return round(self._more * (client.hardware.step_ns(plan) if drafter is None else drafter.step_ns(plan)))
