"""`hermes pipeline`: list pipelines, show one as YAML, draw one or those of a scenario."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Answer, DiagramFile, DiagramFormat, command_group
from hermes.sums import float_sum

if TYPE_CHECKING:
    from hermes.cli.diagram import Diagram
    from hermes.pipelines.graph import Graph
    from hermes.pipelines.nodes import Node

Describe = Callable[[str, "Node"], list[str]]
"""The text of a node's box: (name of the node, node) -> lines."""

__all__ = ["pipeline"]

Name = Annotated[str, typer.Argument(help="A pipeline that comes with hermes or a plug-in.", show_default=False)]
Parameters = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of it; repeatable."),
]


def list_pipelines() -> Answer:
    """List the registered pipelines, which workloads may name without defining a graph."""
    from hermes.pipelines import PIPELINES
    from hermes.results.layout import Section

    rows = []
    for name in PIPELINES:
        entry = PIPELINES.get(name)
        does = " ".join((inspect.getdoc(entry) or "").split())
        parameters = {key: field.get_default(call_default_factory=True)
                      for key, field in getattr(entry, "model_fields", {}).items()}
        rows.append({"name": name, "does": does, "parameters": parameters})
    return Answer(rows, [Section("", ["name", "does", "parameters"], [
        [row["name"], row["does"], ", ".join(row["parameters"]) or "-"] for row in rows])])


def show(name: Name, parameters: Parameters = []) -> Answer:  # noqa: B006  (typer copies it)
    """Print a pipeline and its parameters as YAML for a scenario's `pipelines`."""
    from hermes.config.yaml_document import parse_yaml
    from hermes.pipelines import PIPELINES
    from hermes.pipelines.yaml_export import as_yaml, parameter_lines

    entry = PIPELINES.get(name)
    graph = _graph(name, parameters)
    text = as_yaml(name, graph)
    return Answer(parse_yaml(text).plain(), [*(f"# {line}" for line in parameter_lines(entry)), text.rstrip("\n")])


def draw(
    name: Annotated[str, typer.Argument(
        metavar="NAME|SCENARIO", help="A pipeline, or a scenario whose pipelines are drawn.", show_default=False)],
    output: DiagramFile = None,
    language: DiagramFormat = None,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter, or a key of the scenario."),
    ] = [],  # noqa: B006
) -> None:
    """Draw a pipeline in Mermaid or DOT. For a scenario, boxes also name the clients that serve each stage."""
    from hermes.cli.diagram import show_diagram
    from hermes.pipelines import PIPELINES

    def make() -> Diagram:
        if name in PIPELINES:
            return pipeline_diagram({name: _graph(name, overrides)}, {})
        return pipeline_diagram(*_of_scenario(name, overrides))

    show_diagram(make, language, output)


def pipeline_diagram(graphs: Mapping[str, Graph], says: Mapping[str, Describe]) -> Diagram:
    """Return a diagram with one frame per graph, under its name.

    Args:
        graphs: Graphs by name.
        says: Text of the boxes by name of the graph; `describe` for the others.
    """
    from hermes.cli.diagram import Box, Diagram

    return Diagram({name: Box([name], _diagram(graph, says.get(name, describe))) for name, graph in graphs.items()})


def _diagram(graph: Graph, say: Describe) -> Diagram:
    from hermes.cli.diagram import Box, Diagram, Edge

    boxes = {}
    for name in graph.order:
        node, loop = graph.nodes[name], graph.loops.get(name)
        inside = None if loop is None else _diagram(loop, say)
        boxes[name] = Box(say(name, node), inside, dashed=getattr(node, "background", False))
    return Diagram(boxes, [Edge(parent, name) for name in graph.order for parent in graph.nodes[name].after])


def describe(name: str, node: Node) -> list[str]:
    """What a box says about a node: its name, kind and model, and whatever is not as usual."""
    from hermes.pipelines.nodes import GenerateNode, LoopNode

    lines = [name]
    if isinstance(node, LoopNode):
        return [f"{name}: again with probability {node.again or 0:g}, at most {node.max_times or 1} times"]
    if node.model or name != node.kind:
        lines.append(node.kind + (f" · {node.model}" if node.model else ""))
    if isinstance(node, GenerateNode):
        lines += [f"prompt: {node.prompt}", f"output: {node.output}"]
    else:
        lines.append(f"tokens: {node.tokens}")
        lines += [f"items: {node.items}"] if node.items != 1 else []
    lines += [f"{key}: {value}" for key, value in node.options.items()]
    lines += [f"needs no prefill of {node.kv}"] if isinstance(node, GenerateNode) and node.kv else []
    lines += [f"receives {node.input_bytes} bytes"] if node.input_bytes != 0 else []
    lines += [f"{node.copies} side by side"] if node.copies != 1 else []
    lines += [f"{node.branches} branches"] if isinstance(node, GenerateNode) and node.branches != 1 else []
    lines += [f"probability {node.probability:g}"] if node.probability < 1 else []
    lines += [f"choice {node.choice}, weight {node.share:g}"] if node.choice else []
    return lines + (["in the background"] if node.background else [])


def _graph(name: str, parameters: list[str]) -> Graph:
    """Return the graph of a registered pipeline."""
    from hermes.pipelines import PIPELINES
    from hermes.pipelines.mixing import graph_of, pipeline_from

    return graph_of(pipeline_from(PIPELINES.get(name), name, dict(map(_parameter, parameters)), 0))


def _parameter(text: str) -> tuple[str, Any]:
    from hermes.config.yaml_document import parse_yaml
    from hermes.errors import InputError

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError("KEY=VALUE", text, field="--set")
    return key, parse_yaml(value, "--set").plain()


def _of_scenario(name: str, overrides: list[str]) -> tuple[dict[str, Graph], dict[str, Describe]]:
    """Return the pipelines of a scenario's workloads, and the texts of their boxes."""
    from hermes.errors import InputError
    from hermes.pipelines import PIPELINES
    from hermes.pipelines.mixing import graph_of
    from hermes.scenario import load_scenario
    from hermes.scenario.build import build_with_pipelines

    try:
        scenario = load_scenario(name, overrides)
    except InputError as error:
        if error.file is None and not name.endswith((".yaml", ".yml")):
            known = ", ".join(PIPELINES)
            raise InputError(f"a scenario, or a pipeline: one of {known}", name) from None
        raise
    simulation, entries_of_each = build_with_pipelines(scenario)
    groups = [(config.name if config.count == 1 else f"{config.name} ×{config.count}", set(config.names))
              for config in scenario.clients]
    graphs, says = {}, {}
    for config, entries in zip(scenario.workload, entries_of_each, strict=True):
        total = float_sum(entry.weight for entry in entries)
        for entry in entries:
            share = "" if len(entries) == 1 else f", {entry.weight / total:.3g} of the requests"
            several = f" ({config.name}{share})" if len(scenario.workload) > 1 or share else ""
            label = entry.label + several
            graphs[label] = graph_of(entry.pipeline)
            says[label] = _describe_with_clients(simulation, groups, entry.model)
    return graphs, says


def _describe_with_clients(simulation: Any, groups: list[tuple[str, set[str]]], model: str) -> Describe:
    """A description that adds the clients that may serve a node."""
    from hermes.pipelines.mixing import MODEL_STAGES
    from hermes.pipelines.nodes import LoopNode

    def say(name: str, node: Node) -> list[str]:
        lines = describe(name, node)
        if isinstance(node, LoopNode):
            return lines
        wanted = node.model or (model if node.kind in MODEL_STAGES else "")
        candidates = {client.name for client in simulation.coordinator.candidates(node.kind, wanted)}
        on = [group for group, names in groups if names & candidates]
        return [*lines, f"on {', '.join(on)}"]

    return say


pipeline = command_group("List, show and draw pipelines of requests.",
                         {"list": list_pipelines, "show": show, "draw": draw})
