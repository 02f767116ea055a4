"""Inputs of stages: what earlier stages left on other clients moves to the client of a stage before that starts."""

from __future__ import annotations

from functools import partial

from hermes.core.client import Client
from hermes.core.clock import Clock
from hermes.core.columns import RowLog
from hermes.core.network import Network, nothing
from hermes.core.stage import Stage
from hermes.network.layerwise import exposed_bytes

__all__ = ["Inputs"]

Moving = tuple[Client, int, object]   # from where, since when, and what the network returned


class Inputs:
    """Moves inputs over the network.

    Args:
        transfers: The table of transfers.
    """

    def __init__(self, env: Clock, network: Network, transfers: RowLog) -> None:
        self.env, self.network, self.transfers = env, network, transfers
        self._moving: dict[Stage, dict[int, Moving]] = {}   # stage -> those of its inputs that have not arrived

    def bring(self, stage: Stage, client: Client) -> None:
        """Move a stage's inputs to its client in parallel; submit the stage when all have arrived."""
        moves = [(before, num_bytes) for before, num_bytes in stage.inputs if before.client is not client]
        if not moves:
            client.submit(stage)
            return
        moving = self._moving[stage] = {}
        for number, (before, num_bytes) in enumerate(moves):
            source = before.client
            assert source is not None   # of a completed stage
            waited = self._exposed(before, source, client, num_bytes)
            done = partial(self._arrived, stage, client, number, num_bytes, num_bytes - waited)
            flow = self.network.transfer(source.name, client.name, waited, done)
            moving[number] = source, self.env._now, flow

    def _arrived(self, stage: Stage, client: Client, number: int, num_bytes: int, rest: int) -> None:
        moving = self._moving[stage]
        source, asked_ns, _ = moving.pop(number)
        if rest:   # arrives during the prefill
            self.network.transfer(source.name, client.name, rest, nothing)
        self.transfers.add(stage.request.id, source.index, client.index, num_bytes, asked_ns, self.env._now)
        if not moving:
            del self._moving[stage]
            client.submit(stage)

    def stop(self, stage: Stage, client: Client) -> bool:
        """Stop the inputs of a stage, and record what has left; return False if none moves."""
        moving = self._moving.pop(stage, None)
        if moving is None:
            return False
        for source, asked_ns, flow in moving.values():
            sent = self.network.cancel(flow)
            self.transfers.add(stage.request.id, source.index, client.index, sent, asked_ns, self.env._now)
        return True

    def _exposed(self, before: Stage, source: Client, client: Client, num_bytes: int) -> int:
        """Return the bytes of an input that must arrive before the stage starts: all, or less if KV comes by layer."""
        overlap = before.overlap
        if overlap is None:
            return num_bytes
        layers, hidden_s = overlap
        seconds = self.network.estimate_ns(source.name, client.name, num_bytes) / 1e9
        return exposed_bytes(num_bytes, layers, hidden_s, num_bytes / seconds) if seconds else num_bytes

    def idle(self) -> bool:
        """Whether nothing moves."""
        return not self._moving
