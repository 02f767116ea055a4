"""Network components: the configuration protocol, and what all networks share.

A network component (`kind:` in YAML) is a pydantic model registered in `NETWORKS`. Its `build(env, nodes)` makes the
`Network` of one run. Nodes are client names. Each implementation computes times in its own way:
`hermes.network.components` has the simple ones, `hermes.network.topology` the graph of shared links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self

from pydantic import Field, model_validator
from simpy.core import Environment
from simpy.events import Event

from hermes.config import ConfigModel, Duration
from hermes.config.registry import Registry
from hermes.config.streams import Every
from hermes.core.clock import TRANSFER, bind_at
from hermes.core.network import LinkUse, Network
from hermes.errors import InputError, Verbatim, suggest

__all__ = ["NETWORKS", "BaseNetwork", "FailingLinks", "LinkFailure", "NetworkComponent", "Site", "bandwidth_of",
           "build_network"]

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


class LinkFailure(ConfigModel):
    """A failure of a link, both directions. Bytes that are under way go on at the link's new rate from that instant on;
    over a link that is gone they wait for it. What the network says before a transfer (`estimate_ns`, for routers) does
    not know of it."""

    between: Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]],
                       Field(min_length=2, max_length=2)] | None = None
    """Its ends: two clients, or nodes of the network. Left out, all links fail together."""
    at: Duration | None = Field(default=None, ge=0)
    """Simulated time. Left out, `every` is given."""
    every: Every | None = None
    """Random times, in hours of the link. Left out, `at` is given."""
    factor: float | None = Field(default=None, ge=1, le=1e6)
    """Time of a byte as a multiple of its usual time. Left out, the link is gone."""
    lasts: Duration | None = Field(default=None, gt=0)
    """How long it lasts. Left out, a slow link stays slow."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.at is None) == (self.every is None):
            raise InputError(Verbatim("give one of `at` and `every`"), field="at")
        if self.factor is None and self.lasts is None:
            raise InputError(Verbatim("missing: transfers wait for a link that is gone; give the time after which it "
                                      "is back, or a `factor`"), field="lasts")
        if self.every is not None and self.lasts is None:
            raise InputError(Verbatim("missing: at random times a failure has an end"), field="lasts")
        return self


class FailingLinks(ConfigModel):
    """Base of networks whose links may fail."""

    failures: list[LinkFailure] = []
    """Failures of links. Of several that a link has at a time the worst counts."""


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
    """Base of networks: node names, byte counters, completion and cancelling.

    cancels: Set it to True in a network whose `transfer` and `stream` return what `deliver` (or the base's `stream`)
        returned, or handles that its own `cancel` takes.
    """

    cancels: ClassVar[bool] = False

    def __init__(self, env: Environment, nodes: Sequence[str]) -> None:
        self.env, self._at = env, bind_at(env)
        self.nodes = frozenset(nodes)
        self.bytes_sent = 0
        self.bytes_received = 0
        self.bytes_cancelled = 0

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

    def set_link(self, between: tuple[str, str] | None, factor: float) -> None:
        """Let the bytes on a link take a multiple of their time from this instant on, both ways; with an infinite one
        nothing moves. Transfers that are under way go on at the new rate. Only networks with `failures` can.

        between: Its ends, which `check_link` has accepted; None for all links.
        """
        raise NotImplementedError

    def check_link(self, between: tuple[str, str] | None) -> None:
        """Raise `InputError` for ends of no link."""
        raise NotImplementedError

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        """See `Network`."""
        raise NotImplementedError

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> object:
        """Send all bytes at once but end the stream on time: correct if other transfers do not slow these down."""
        missing = 2

        def one(_: Any = None) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                out()

        sent = self.transfer(src, dst, num_bytes, one)
        return sent, self._at(int(self.env._now) + over_ns, TRANSFER, one), num_bytes

    def cancel(self, flow: object) -> int:
        """See `Network`. Takes what `deliver` and the base's `stream` return."""
        if isinstance(flow, Event):
            return self._cancel_delivery(flow)
        if not isinstance(flow, tuple):
            raise TypeError(f"{type(self).__name__} gave no handle for this transfer: `transfer` and `stream` must "
                            "return what `deliver` returns")
        sent, end, num_bytes = flow    # of a stream: its transfer, and the event of its end
        before, ends = self.bytes_cancelled, _call_off(end)
        left = self.cancel(sent)
        arrived = self.bytes_cancelled == before
        return int(num_bytes) if arrived and ends else left

    def _cancel_delivery(self, event: Event) -> int:
        num_bytes: int
        num_bytes, begun_ns, first_ns, last_ns = event._value
        if not _call_off(event):
            return 0
        self.bytes_cancelled += num_bytes
        elapsed = int(self.env._now) - begun_ns
        if elapsed >= last_ns:
            return num_bytes
        return num_bytes * (elapsed - first_ns) // (last_ns - first_ns) if elapsed > first_ns else 0

    def deliver(
        self, delay_ns: int, num_bytes: int, done: Callable[[], None], first_ns: int = 0, last_ns: int = 0,
    ) -> Event:
        """Deliver `num_bytes` after `delay_ns` nanoseconds, unless `cancel` gets the event that is returned.

        first_ns, last_ns: Times from now at which the first and the last byte leave the sender, evenly; `cancel`
            returns what has left by then. Left out, all bytes leave now.
        """

        def arrive(_: Any) -> None:
            self.bytes_received += num_bytes
            done()

        now = int(self.env._now)
        event: Event = self._at(now + delay_ns, TRANSFER, arrive)
        event._value = num_bytes, now, first_ns, last_ns
        return event


def _call_off(event: Event) -> bool:
    """Let an event pass without effect; return False if it has happened, or was called off before."""
    pending = bool(event.callbacks)
    if pending:
        event.callbacks = []
    return pending
