"""Commands on networks: list a scenario's links, draw them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.output import Json, Overrides, Scenario, print_json, print_table

if TYPE_CHECKING:
    from hermes.network.topology import TopologyNetwork

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    network = typer.Typer(help="The links of a scenario: list and draw them.", no_args_is_help=True)
    network.command("links")(links)
    network.command("draw")(draw)
    app.add_typer(network, name="network")


def _network(scenario: str, overrides: list[str]) -> TopologyNetwork:
    """The scenario's network, where it has links."""
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
    each: Annotated[bool, typer.Option("--all", help="Every link on a line of its own.")] = False,
    as_json: Json = False,
) -> None:
    """List the links of a scenario's network; links that are alike on one line."""
    from hermes.network.draw import format_bandwidth, format_latency, link_rows

    rows = link_rows(_network(scenario, overrides), each=each)
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    print_table("", ["link", "and", "links", "bandwidth", "latency", "duplex"], [
        [row.a, row.b, row.links, format_bandwidth(row.bandwidth), format_latency(row.latency_s), row.duplex]
        for row in rows
    ])


def draw(
    scenario: Scenario,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .png, .svg or .pdf file.")],
    overrides: Overrides = [],  # noqa: B006
) -> None:
    """Draw a scenario's network; parts that are alike are drawn once, with how often they are there."""
    from hermes.errors import InputError
    from hermes.network.draw import draw as picture

    if output.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("a .png, .svg or .pdf file", str(output), field="--output")
    picture(_network(scenario, overrides), output, scenario)
    print(f"written to {output}")
