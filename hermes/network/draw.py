"""A picture and a list of a topology, short enough to read: what is alike is shown once, with how often it is there.

Clients with equal links to the same nodes are one node of the picture; then, seen from the middle of the network, equal
parts that hang on the same node (the boxes of a rack, the racks of a spine) are drawn once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hermes.network.topology import TopologyLink, TopologyNetwork

__all__ = ["LinkRow", "draw", "link_rows", "simplified"]

CLIENT, INNER = "#dbe9f6", "#f3e3c3"


class LinkRow(NamedTuple):
    """Links that are alike: an example, how many there are, bytes/s of each, seconds, `full` or `half` duplex."""

    a: str
    b: str
    links: int
    bandwidth: float
    latency_s: float
    duplex: str


def link_rows(network: TopologyNetwork, *, each: bool = False) -> list[LinkRow]:
    """The links of a network; those that differ in numbers of their ends only on one row, unless `each` is wanted."""
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
    """(graph, its middle): nodes have `label`, `client` and `times`, how many parts of the network they stand for."""
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
    """Clients with equal links to the same nodes become one."""
    first: dict[Any, str] = {}
    for node in [n for n, data in graph.nodes(data=True) if data["client"] and not data["sits"]]:
        key = (_stem(node), tuple(sorted((near, edge["kind"]) for near, edge in graph.adj[node].items())))
        if key[1] and key in first:
            graph.nodes[first[key]]["members"] += graph.nodes[node]["members"]
            graph.remove_node(node)
        else:
            first[key] = node


def _middle(graph: Any) -> str:
    """The node nearest to all others; of several, the one with most neighbours, then by name."""
    import networkx as nx

    middle: str = min(nx.center(graph), key=lambda node: (-graph.degree[node], node))
    return middle


def _join_alike(graph: Any, node: str, before: str | None) -> None:
    """Equal parts behind `node`, as seen from `before`, become one."""
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
    """Bytes/s with a decimal unit."""
    for factor, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B/s"


def format_latency(value: float) -> str:
    """Seconds with a suitable unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if value * factor >= 1:
            return f"{value * factor:g} {unit}"
    return "0 s"


def draw(network: TopologyNetwork, path: Path, title: str = "") -> None:
    """Write a picture of the network (format by the file's suffix)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    graph, middle = simplified(network)
    place, depth = _layout(graph, middle)
    columns = max((x for x, _ in place.values()), default=0) + 1
    figure = Figure(figsize=(min(40, max(6.0, 1.9 * columns)), 1.5 * depth + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.axis("off")
    for a, b, data in graph.edges(data=True):
        (x1, y1), (x2, y2), link = place[a], place[b], data["link"]
        axis.plot([x1, x2], [y1, y2], color="#888888", linewidth=1.2, zorder=1)
        share = 0.5 if abs(y1 - y2) <= 1 else 0.35
        text = f"{format_bandwidth(link.bandwidth)}\n{format_latency(link.latency)}"
        text += "\nhalf duplex" if link.duplex == "half" else ""
        axis.text(x1 + share * (x2 - x1), y1 + share * (y2 - y1), text, fontsize=7, ha="center", va="center", zorder=2,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    for node, (x, y) in place.items():
        data = graph.nodes[node]
        axis.text(x, y, data["label"], fontsize=8, ha="center", va="center", zorder=3, bbox={
            "boxstyle": "round,pad=0.4", "facecolor": CLIENT if data["client"] else INNER, "edgecolor": "#555555"})
    axis.set(xlim=(-0.6, columns - 0.4), ylim=(-depth + 0.6, 0.4))
    if title:
        axis.set_title(title, fontsize=10)
    figure.savefig(path, dpi=120)


def _layout(graph: Any, middle: str | None) -> tuple[dict[str, tuple[float, float]], int]:
    """Positions: rows by links from the middle, each node above the middle of what was reached through it."""
    import networkx as nx

    place: dict[str, tuple[float, float]] = {}
    left, depth = 0.0, 1
    starts: Iterable[str] = [middle] if middle is not None else []
    for start in [*starts, *(_middle(graph.subgraph(p)) for p in nx.connected_components(graph) if middle not in p)]:
        tree = nx.bfs_tree(graph, start)
        rows = nx.single_source_shortest_path_length(graph, start)
        for node in nx.dfs_postorder_nodes(tree, start):
            below = [place[child][0] for child in tree.successors(node)]
            x = sum(below) / len(below) if below else left
            left += not below
            place[node] = (x, -float(rows[node]))
        depth = max(depth, 1 + max(rows.values()))
    return place, depth
