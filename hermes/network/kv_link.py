"""The default network: KV between prefill and decode clients takes time, everything else takes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from simpy.core import Environment

from hermes.config import Bandwidth, Duration
from hermes.core.network import Network
from hermes.network.base import FailingLinks
from hermes.network.ideal import IdealNetwork

__all__ = ["KvLink"]

PORT = 50e9   # bytes/s: a 400 Gb/s port


class KvLink(FailingLinks):
    """A network on which the KV that a prefill client hands to a decode client takes bytes / bandwidth + latency, and
    all other transfers take no time. Used where a scenario names no network."""

    kind: Literal["kv_link"] = "kv_link"
    bandwidth: Annotated[Bandwidth, Field(ge=1)] = PORT
    """Bytes/s between a prefill and a decode client; transfers between different pairs do not wait for each other. Left
    out, that of a 400 Gb/s port."""
    latency: Duration = 0.0
    """Time until the first byte arrives, e.g. `10 us`."""

    def build(self, env: Environment, nodes: Sequence[str]) -> Network:
        """Build the network of all transfers but the KV's."""
        return IdealNetwork(env, nodes)

    def build_for_kv(self, env: Environment, nodes: Sequence[str]) -> Network:
        """Build the network of the KV that moves from a prefill to a decode client."""
        from hermes.network.components import FailingLinkNetwork, LinkNetwork  # most scenarios have no roles

        cls = FailingLinkNetwork if self.failures else LinkNetwork
        return cls(env, nodes, self.bandwidth, self.latency)
