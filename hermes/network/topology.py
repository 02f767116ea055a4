"""Topology network: a graph of shared links (switches, NICs, NVLinks, PCIe, racks).

A transfer takes the path of least latency; of paths with equal latency the one with fewest links; of those the one
whose first differing link is listed first in the scenario. Each pair of nodes has one path, found at its first use. The
bytes flow at the max-min fair rate (`hermes.network.flows`) on all links of the path at once. The last byte arrives the
sum of the links' latencies after it left. Latency is paid once, after the bytes, so that the sender's links are busy
from the request on.

A *full-duplex* link is two links, one per direction; the directions of a half-duplex link share its bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field
from simpy.core import Environment

from hermes.config import ConfigModel, Duration
from hermes.core.network import LinkUse, Network
from hermes.errors import InputError, Verbatim, suggest
from hermes.network.base import FailingLinks
from hermes.network.components import LinkBandwidth, OverFlows, changed_capacity
from hermes.network.flows import WORK_PER_BYTE, FlowEngine, capacity_of, serial_ns
from hermes.units import s_to_ns

__all__ = ["Attachment", "Topology", "TopologyLink", "TopologyNetwork", "check_links"]

_HOP = 1_000_000    # a path has fewer links than this: weight = latency in ns * _HOP + links, exact and in one integer


class TopologyLink(ConfigModel):
    """A link between two nodes."""

    a: str
    """One end: a client, or one of `nodes`."""
    b: str
    """The other end."""
    bandwidth: LinkBandwidth
    """Bytes/s in each direction, or of both together if the link is half-duplex."""
    latency: Duration = 0.0
    """Time of a byte from end to end."""
    duplex: Literal["full", "half"] = "full"
    """`full`: each direction has the bandwidth to itself. `half`: the two share it."""


class Attachment(ConfigModel):
    """A link from each client of a group to a node."""

    to: str | list[str]
    """Node at the other end. Of several, each gets an equal share of the group's clients, in order."""
    bandwidth: LinkBandwidth
    """Bytes/s of each client's link, in each direction, or of both together if it is half-duplex."""
    latency: Duration = 0.0
    """Time of a byte from end to end."""
    duplex: Literal["full", "half"] = "full"
    """As for `links`."""


@dataclass(frozen=True)
class _Route:
    links: tuple[int, ...]
    latency_ns: int
    capacity: int       # of the narrowest link, in rate units


class TopologyNetwork(OverFlows):
    """A network of shared links between `nodes` (clients) and `inner` nodes.

    places: Node at which a client sits, for clients that are not nodes of the graph. Transfers between clients at the
    same node take no time.
    """

    cancels = True

    def __init__(
        self, env: Environment, nodes: Sequence[str], inner: Sequence[str], links: Sequence[TopologyLink],
        places: Mapping[str, str] | None = None,
    ) -> None:
        import networkx as nx  # takes 0.1 s to import: only with a topology

        super().__init__(env, nodes)
        self._places = {node: node for node in nodes} | dict(places or {})
        self._graph = nx.Graph()
        self._graph.add_nodes_from(inner)
        self._graph.add_nodes_from(self._places[node] for node in nodes)
        self._names: list[str] = []
        self._bandwidths: list[float] = []
        self._direction: dict[tuple[str, str], int] = {}     # ends, in the direction of travel -> link index
        for link in links:
            self._graph.add_edge(link.a, link.b, weight=s_to_ns(link.latency) * _HOP + 1, link=link)
            self._direction[link.a, link.b] = self._add(f"{link.a} -> {link.b}", link.bandwidth)
            if link.duplex == "half":
                self._names[-1] = f"{link.a} -- {link.b}"
                self._direction[link.b, link.a] = self._direction[link.a, link.b]
            else:
                self._direction[link.b, link.a] = self._add(f"{link.b} -> {link.a}", link.bandwidth)
        self._distances: dict[str, dict[str, int]] = {}
        self._routes: dict[tuple[str, str], _Route] = {}
        self.engine = FlowEngine(env, self._bandwidths)

    def _add(self, name: str, bandwidth: float) -> int:
        self._names.append(name)
        self._bandwidths.append(bandwidth)
        return len(self._names) - 1

    def transfer(self, src: str, dst: str, num_bytes: int, done: Callable[[], None]) -> object:
        route = self._route(src, dst)
        self.bytes_sent += num_bytes
        if num_bytes and route.links:
            return self.engine.start(route.links, num_bytes, partial(self.deliver, route.latency_ns, num_bytes, done))
        return self.deliver(route.latency_ns, num_bytes, done)

    def stream(self, src: str, dst: str, num_bytes: int, over_ns: int, out: Callable[[], None]) -> object:
        route = self._route(src, dst)
        if not (num_bytes and route.links):
            return super().stream(src, dst, num_bytes, over_ns, out)
        return self.send_stream(route.links, route.latency_ns, num_bytes, over_ns, out)

    def estimate_ns(self, src: str, dst: str, num_bytes: int) -> int:
        route = self._route(src, dst)
        return route.latency_ns + (serial_ns(num_bytes * WORK_PER_BYTE, route.capacity) if route.links else 0)

    def hops(self, src: str, dst: str) -> int:
        return len(self._route(src, dst).links)

    def check(self, nodes: Iterable[str]) -> None:
        import networkx as nx

        names = [self.known(node) for node in nodes]
        if names:
            reached = nx.node_connected_component(self._graph, self._places[names[0]])
            for name in names:
                if self._places[name] not in reached:
                    raise InputError(Verbatim(f"no path between {names[0]!r} and {name!r}; add links to connect them"))

    def links(self) -> list[LinkUse]:
        return self.engine.uses(self._names, self._bandwidths)

    def set_link(self, between: tuple[str, str] | None, factor: float) -> None:
        ends = between and (self._ends(between), self._ends(between[::-1]))
        for link in dict.fromkeys(self._direction[pair] for pair in ends or self._direction):
            self.engine.resize(link, changed_capacity(self._bandwidths[link], factor))

    def _ends(self, between: tuple[str, ...]) -> tuple[str, str]:
        """Return the nodes of the graph at these ends, which may be clients that sit there."""
        a, b = (self._places.get(end, end) for end in between)
        return a, b

    def check_link(self, between: tuple[str, str] | None) -> None:
        if between is not None and self._ends(between) not in self._direction:
            near = {f"{a} - {b}" for a, b in self._direction if a in between or b in between}
            raise InputError("the ends of a link" + (f", such as {', '.join(sorted(near)[:4])}" if near else ""),
                             f"{between[0]} - {between[1]}", suggestion=None)

    @property
    def graph(self) -> Any:
        """The networkx graph; its edges have their `TopologyLink` as `link`."""
        return self._graph

    @property
    def places(self) -> dict[str, str]:
        """Node at which each client sits; most clients are nodes themselves."""
        return dict(self._places)

    def path(self, src: str, dst: str) -> list[str]:
        """Return the nodes that a transfer passes, both ends included."""
        here, end = self._places[self.known(src)], self._places[self.known(dst)]
        nodes, tail = [here], []
        if here != end and self._graph.degree[end] == 1:
            # most clients are behind one switch: one search from the switch serves all of them
            tail, (end,) = [end], self._graph.adj[end]
        distance = self._distance(end)
        if here not in distance:
            raise InputError(Verbatim(f"no path between {src!r} and {dst!r}; add links to connect them"))
        while here != end:
            left = distance[here]
            here = next(
                near for near, edge in self._graph.adj[here].items() if distance.get(near, -1) == left - edge["weight"]
            )
            nodes.append(here)
        return nodes + tail

    def _distance(self, end: str) -> dict[str, int]:
        """Return the weight of the best path from each node to `end`."""
        import networkx as nx

        if end not in self._distances:
            self._distances[end] = nx.single_source_dijkstra_path_length(self._graph, end)
        return self._distances[end]

    def _route(self, src: str, dst: str) -> _Route:
        route = self._routes.get((src, dst))
        if route is None:
            nodes = self.path(src, dst)
            links = tuple(self._direction[pair] for pair in pairwise(nodes))
            weight = sum(self._graph.edges[pair]["weight"] for pair in pairwise(nodes))
            capacity = min((capacity_of(self._bandwidths[link]) for link in links), default=0)
            route = self._routes[src, dst] = _Route(links, weight // _HOP, capacity)
        return route


class Topology(FailingLinks):
    """A graph of links with latency and bandwidth, which transfers share max-min fairly."""

    kind: Literal["topology"] = "topology"
    nodes: list[str] = Field(default_factory=list)
    """Names of switches and other nodes that are not clients."""
    links: list[TopologyLink] = Field(default_factory=list)
    """Links between nodes. Clients are nodes: with `count`, each of them (`decode-0`, `decode-1`, ...)."""
    attach: dict[str, str | Attachment] = Field(default_factory=dict)
    """Places of the clients. The key is a client or a group of clients (`decode` for `decode-0`, `decode-1`, ...; the
    most exact key applies). The value is a node at which they sit, or a link that each of them has to a node."""

    def build(self, env: Environment, nodes: Sequence[str]) -> Network:
        known = dict.fromkeys([*self.nodes, *nodes])
        links = list(self.links)
        for index, link in enumerate(links):
            for end in ("a", "b"):
                _expect_node(getattr(link, end), known, f"links.{index}.{end}")
        linked = {end for link in links for end in (link.a, link.b)}
        places: dict[str, str] = {}
        for key, clients in self._groups(nodes).items():
            target = self.attach[key]
            if isinstance(target, str):
                _expect_node(target, known, f"attach.{key}")
                for client in clients:
                    if client in linked:
                        raise InputError(Verbatim(f"client {client!r} has links of its own; remove them or this entry"),
                                         field=f"attach.{key}")
                    places[client] = target
            else:
                links += _own_links(key, target, clients, known)
        check_links(links, len(self.links))
        return TopologyNetwork(env, nodes, [*self.nodes, *places.values()], links, places)

    def _groups(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Return the clients of each key of `attach`."""
        groups: dict[str, list[str]] = {key: [] for key in self.attach}
        for node in nodes:
            group = re.sub(r"-\d+\Z", "", node)
            key = node if node in groups else group
            if key in groups:
                groups[key].append(node)
        for key, clients in groups.items():
            if not clients:
                names = dict.fromkeys([*nodes, *(re.sub(r"-\d+\Z", "", node) for node in nodes)])
                raise InputError(
                    "a client or a group of clients without an attachment of its own", key, field=f"attach.{key}",
                    suggestion=suggest(key, [name for name in names if name not in self.attach]),
                )
        return groups


def _expect_node(name: str, known: Mapping[str, Any], field: str) -> None:
    if name not in known:
        raise InputError("a client or one of `nodes`", name, field=field, suggestion=suggest(name, known))


def _own_links(key: str, target: Attachment, clients: Sequence[str], known: Mapping[str, Any]) -> list[TopologyLink]:
    ends = [target.to] if isinstance(target.to, str) else target.to
    if not ends:
        raise InputError("at least one node", [], field=f"attach.{key}.to")
    for end in ends:
        _expect_node(end, known, f"attach.{key}.to")
    return [
        TopologyLink(
            a=client, b=ends[index * len(ends) // len(clients)], bandwidth=target.bandwidth, latency=target.latency,
            duplex=target.duplex,
        )
        for index, client in enumerate(clients)
    ]


def check_links(links: Sequence[TopologyLink], num_listed: int = 0) -> None:
    """Raise `InputError` for a link from a node to itself, or a second one between the same two nodes."""
    seen = set()
    for index, link in enumerate(links):
        field = f"links.{index}" if index < num_listed else "attach"
        if link.a == link.b:
            raise InputError(Verbatim(f"the link connects {link.a!r} with itself; name two nodes"), field=field)
        if frozenset((link.a, link.b)) in seen:
            raise InputError(Verbatim(f"a second link between {link.a!r} and {link.b!r}; write one with the sum of the "
                                      "bandwidths"), field=field)
        seen.add(frozenset((link.a, link.b)))
