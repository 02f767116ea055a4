"""`hermes network`: list and draw a scenario's links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Answer, DiagramFile, DiagramFormat, Overrides, Scenario, command_group

if TYPE_CHECKING:
    from hermes.cli.diagram import Diagram
    from hermes.network.topology import TopologyNetwork

__all__ = ["network"]


def _network(scenario: str, overrides: list[str]) -> TopologyNetwork:
    """Return the scenario's network. Raises `InputError` for a network without links."""
    from hermes.errors import InputError
    from hermes.network.topology import TopologyNetwork
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build

    checked = load_scenario(scenario, overrides)
    network = build(checked).network
    if not isinstance(network, TopologyNetwork):
        raise checked.source.located(InputError(
            "a network with links: topology, hgx_box, rack or multi_rack", checked.network.kind, field="network.kind"))
    return network


def links(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    each: Annotated[bool, typer.Option("--all", help="Print each link on its own line.")] = False,
) -> Answer:
    """List the links of a scenario's network. Equal links share a line."""
    from hermes.network.summary import format_bandwidth, format_latency, link_rows
    from hermes.results.layout import Section

    rows = link_rows(_network(scenario, overrides), each=each)
    return Answer([row._asdict() for row in rows], [
        Section("", ["link", "and", "links", "bandwidth", "latency", "duplex"], [
            [row.a, row.b, row.links, format_bandwidth(row.bandwidth), format_latency(row.latency_s), row.duplex]
            for row in rows])])


def draw(
    scenario: Scenario,
    output: DiagramFile = None,
    language: DiagramFormat = None,
    overrides: Overrides = [],  # noqa: B006
) -> None:
    """Draw a scenario's network in Mermaid or DOT. Equal parts are drawn once, with their number."""
    from hermes.cli.diagram import show_diagram

    show_diagram(lambda: _diagram(_network(scenario, overrides)), language, output)


def _diagram(network: TopologyNetwork) -> Diagram:
    """Return the simplified network as a diagram; links lead away from its middle."""
    import networkx as nx

    from hermes.cli.diagram import Box, Diagram, Edge
    from hermes.network.summary import format_bandwidth, format_latency, simplified

    graph, middle = simplified(network)
    depth = nx.single_source_shortest_path_length(graph, middle) if middle is not None else {}
    edges = []
    for a, b, data in graph.edges(data=True):
        link = data["link"]
        start, end = sorted((a, b), key=lambda node: depth.get(node, 0))
        label = (format_bandwidth(link.bandwidth), format_latency(link.latency))
        edges.append(Edge(start, end, (*label, "half duplex") if link.duplex == "half" else label))
    boxes = {node: Box(data["label"].split("\n"), dashed=not data["client"]) for node, data in graph.nodes(data=True)}
    return Diagram(boxes, edges, arrows=False)


network = command_group("List and draw the links of a scenario.", {"links": links, "draw": draw})
