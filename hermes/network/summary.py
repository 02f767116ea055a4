"""Summary of a topology: a list and a drawing in which equal parts occur once, with their number.

Clients with equal links to the same nodes become one node. Then, seen from the middle of the network, equal parts at
the same node (the boxes of a rack, the racks of a spine) become one part.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from hermes.network.topology import TopologyLink, TopologyNetwork

__all__ = ["LinkRow", "format_bandwidth", "format_latency", "link_rows", "simplified"]


class LinkRow(NamedTuple):
    """Equal links: an example, their number, bytes/s of each, seconds, `full` or `half` duplex."""

    a: str
    b: str
    links: int
    bandwidth: float
    latency_s: float
    duplex: str


def link_rows(network: TopologyNetwork, *, each: bool = False) -> list[LinkRow]:
    """Return the links of a network; links that differ only in the numbers of their ends share a row, unless `each`."""
    rows: dict[Any, LinkRow] = {}
    for a, b, data in network.graph.edges(data=True):
        link: TopologyLink = data["link"]
        key = (a, b) if each else (*_kind_of_link(link),)
        old = rows.get(key)
        rows[key] = LinkRow(link.a, link.b, 1, link.bandwidth, link.latency, link.duplex) if old is None else (
            old._replace(links=old.links + 1))
    return list(rows.values())


def _kind_of_link(link: TopologyLink) -> tuple[Any, ...]:
    return _stem(link.a), _stem(link.b), link.bandwidth, link.latency, link.duplex


def _stem(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def simplified(network: TopologyNetwork) -> tuple[Any, Any]:
    """Return (graph, its middle). Nodes have `label`, `client`, and `times`: the number of parts they represent."""
    import networkx as nx

    graph = nx.Graph()
    at: dict[str, list[str]] = {}
    for client, node in network.places.items():
        at.setdefault(node, []).append(client)
    for node in network.graph:
        sits = [client for client in at.get(node, ()) if client != node]
        graph.add_node(node, members=[node], sits=sits, client=node in at, times=1)
    for a, b, data in network.graph.edges(data=True):
        graph.add_edge(a, b, kind=_kind_of_link(data["link"])[2:], link=data["link"])
    _join_twins(graph)
    parts = [_middle(graph.subgraph(part)) for part in nx.connected_components(graph)]
    for middle in parts:
        _join_alike(graph, middle, None)
    for data in graph.nodes.values():
        data["label"] = _label(data)
    return graph, parts[0] if parts else None


def _join_twins(graph: Any) -> None:
    """Join clients with equal links to the same nodes."""
    first: dict[Any, str] = {}
    for node in [n for n, data in graph.nodes(data=True) if data["client"] and not data["sits"]]:
        key = (_stem(node), tuple(sorted((near, edge["kind"]) for near, edge in graph.adj[node].items())))
        if key[1] and key in first:
            graph.nodes[first[key]]["members"] += graph.nodes[node]["members"]
            graph.remove_node(node)
        else:
            first[key] = node


def _middle(graph: Any) -> str:
    """Return the node nearest to all others; of several, the one with most neighbours, then by name."""
    import networkx as nx

    middle: str = min(nx.center(graph), key=lambda node: (-graph.degree[node], node))
    return middle


def _join_alike(graph: Any, node: str, before: str | None) -> None:
    """Join equal parts behind `node`, as seen from `before`."""
    import networkx as nx

    behind = graph.copy()
    behind.remove_node(node)
    kept: dict[Any, set[str]] = {}
    for part in sorted((sorted(p) for p in nx.connected_components(behind)), key=lambda p: p[0]):
        members = set(part)
        if before in members or not any(near in members for near in graph.adj[node]):
            continue
        sign = tuple(sorted(
            (*sorted(f"{_stem(n)} {len(graph.nodes[n]['members'])}" if n in members else "" for n in (a, b)),
             str(edge["kind"])) for a, b, edge in graph.edges(part, data=True)
        ))
        if sign in kept:
            for name in kept[sign]:
                graph.nodes[name]["times"] += graph.nodes[name].get("once", graph.nodes[name]["times"])
            graph.remove_nodes_from(members)
        else:
            kept[sign] = members
            for name in members:
                graph.nodes[name]["once"] = graph.nodes[name]["times"]
    for members in kept.values():
        for near in [n for n in graph.adj[node] if n in members]:
            if near in graph:
                _join_alike(graph, near, node)


def _label(data: dict[str, Any]) -> str:
    members = data["members"]
    text = members[0] if len(members) == 1 else f"{members[0]} … {members[-1].rsplit('-', 1)[-1]}"
    if data["sits"]:
        text += "\n" + _span(data["sits"])
    return text + (f"\n{len(members)} alike" if len(members) > 1 else "") + (
        f"\nx {data['times']}" if data["times"] > 1 else "")


def _span(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]} ({len(names)})"


def format_bandwidth(value: float) -> str:
    """Format bytes/s with a decimal unit."""
    for factor, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B/s"


def format_latency(value: float) -> str:
    """Format seconds with a suitable unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if value * factor >= 1:
            return f"{value * factor:g} {unit}"
    return "0 s"
