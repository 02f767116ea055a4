"""Network components: the configuration protocol, and what all networks share.

A network component (`kind:` in YAML) is a pydantic model registered in `NETWORKS`. Its `build(env, nodes)` makes the
`Network` of one run. Nodes are client names. Each implementation computes times in its own way:
`hermes.network.components` has the simple ones, `hermes.network.topology` the graph of shared links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from simpy.core import Environment

from hermes.config.registry import Registry
from hermes.core.clock import TRANSFER, bind_at
from hermes.core.network import LinkUse, Network
from hermes.errors import InputError, suggest

__all__ = ["NETWORKS", "BaseNetwork", "NetworkComponent", "Site", "bandwidth_of", "build_network"]

NETWORKS: Registry[Any] = Registry("network", "a network", {
    "hgx_box": "hermes.network.cluster:HgxBox",
    "ideal": "hermes.network.ideal:Ideal",
    "kv_link": "hermes.network.kv_link:KvLink",
    "link": "hermes.network.components:Link",
    "multi_rack": "hermes.network.cluster:MultiRack",
    "rack": "hermes.network.cluster:Rack",
    "topology": "hermes.network.topology:Topology",
})


class Site(NamedTuple):
    """A client as a network places it. platform: its box or rack, "" for any; gpus: 0 for a CPU machine."""

    name: str
    platform: str = ""
    gpus: int = 1


class NetworkComponent(Protocol):
    """A network in YAML: a frozen pydantic model with a literal `kind`.

    A component that places the clients itself also has `build_at(env, sites)`, which is called instead of `build`.
    """

    kind: str

    def build(self, env: Environment, nodes: Sequence[str]) -> Network:
        """Build the network of one run between these nodes. `InputError` if the description does not fit them."""
        ...


def build_network(config: NetworkComponent, env: Environment, sites: Callable[[], Sequence[Site]]) -> Network:
    """Build a network between clients; a component that places them itself gets their sites."""
    placed: Callable[[Environment, Sequence[Site]], Network] | None = getattr(config, "build_at", None)
    if placed is not None:
        return placed(env, sites())
    return config.build(env, [site.name for site in sites()])


def bandwidth_of(config: NetworkComponent) -> float | None:
    """Return the bytes/s between two clients, for a network that has one figure for all; None for others."""
    found: float | None = getattr(config, "bandwidth", None)
    return found


class BaseNetwork:
    """Base of networks: node names, byte counters and completion."""

    def __init__(self, env: Environment, nodes: Sequence[str]) -> None:
        self.env, self._at = env, bind_at(env)
        self.nodes = frozenset(nodes)
        self.bytes_sent = 0
        self.bytes_received = 0

    def known(self, node: str) -> str:
        """Return the node, or raise `InputError` for an unknown one."""
        if node not in self.nodes:
            raise InputError("a node of the network", node, suggestion=suggest(node, sorted(self.nodes)))
        return node

    def check(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.known(node)

    def links(self) -> list[LinkUse]:
        return []

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> None:
        """See `Network`."""
        raise NotImplementedError

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> None:
        """Send all bytes at once but end the stream on time: correct if other transfers do not slow these down."""
        missing = 2

        def one(_: Any = None) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                out()

        self.transfer(src, dst, num_bytes, one)
        self._at(int(self.env._now) + over_ns, TRANSFER, one)

    def deliver(self, delay_ns: int, num_bytes: int, done: Callable[[], None]) -> None:
        """Deliver `num_bytes` after `delay_ns` nanoseconds, in all cases."""

        def arrive(_: Any) -> None:
            self.bytes_received += num_bytes
            done()

        self._at(int(self.env._now) + delay_ns, TRANSFER, arrive)
