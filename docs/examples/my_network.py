from collections.abc import Callable, Sequence
from typing import Literal

from simpy import Environment

from hermes.config import Bandwidth, ConfigModel, Duration
from hermes.network import NETWORKS, BaseNetwork
from hermes.units import s_to_ns


@NETWORKS.register("sites")
class Sites(ConfigModel):
    """Clients in different places: every transfer waits for a connection, then has a line of its own."""
    kind: Literal["sites"] = "sites"
    connect: Duration = 0.05
    """Time until the first byte leaves."""
    bandwidth: Bandwidth = 1e9
    """Bytes/s of a line."""

    def build(self, env: Environment, nodes: Sequence[str]) -> "SitesNetwork":
        return SitesNetwork(env, nodes, self)


class SitesNetwork(BaseNetwork):
    cancels = True
    def __init__(self, env: Environment, nodes: Sequence[str], config: Sites) -> None:
        super().__init__(env, nodes)
        self.config = config

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        delay = self.estimate_ns(src, dst, num_bytes)   # checks the names
        self.bytes_sent += num_bytes
        return self.deliver(delay, num_bytes, done, s_to_ns(self.config.connect), delay)

    def estimate_ns(self, src: str, dst: str, num_bytes: int) -> int:
        return self.hops(src, dst) * s_to_ns(self.config.connect + num_bytes / self.config.bandwidth)

    def hops(self, src: str, dst: str) -> int:
        return int(self.known(src) != self.known(dst))
