"""Diagrams show every node and edge, whatever their names; graphs written out are read back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.cli import main
from hermes.cli.diagram import Box, Diagram, Edge
from hermes.cli.pipelines import pipeline_diagram
from hermes.pipelines import PIPELINES, Generate
from hermes.pipelines.graph import Graph
from hermes.pipelines.nodes import GraphNodes
from hermes.pipelines.tracing import trace
from hermes.pipelines.yaml_export import as_data


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes: dict[str, Any] = {}
    for i in range(draw(st.integers(1, 9))):
        parents = draw(st.lists(st.sampled_from(list(nodes)), unique=True, max_size=4)) if nodes else []
        node: dict[str, Any] = {"kind": draw(st.sampled_from(["generate", "embed"])), "after": parents}
        if draw(st.integers(0, 4)) == 0:
            inner = {f"n{i}a": {"kind": "x"}, f"n{i}b": {"kind": "y", "after": f"n{i}a"}}
            node = {"kind": "loop", "after": parents, "stages": inner, "max_times": 2, "again": 0.5}
        nodes[f"n{i}"] = node
    return Graph(GraphNodes.model_validate({"stages": nodes}).stages)


def names(graph: Graph) -> list[str]:
    return [*graph.nodes, *(name for loop in graph.loops.values() for name in names(loop))]


def labels(text: str) -> list[str]:
    return [label.split("<br>")[0].split("\\l")[0] for label in re.findall(r'"([^"]*)"', text)]


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_mermaid_and_dot_show_everything(graph):
    diagram = pipeline_diagram({"all": graph}, {})
    mermaid, dot = diagram.mermaid(), diagram.dot()
    edges = sum(len(g.net.edges) for g in (graph, *graph.loops.values()))
    for text, arrow in ((mermaid, "-->"), (dot, "->")):
        assert sorted(label.partition(":")[0] for label in labels(text)) == sorted(["all", *names(graph)])
        joined = re.findall(rf"(\w+) {arrow} (\w+)", text)
        assert len(joined) == edges
        assert all(re.search(rf"\b{end}[ \[]", text) for pair in joined for end in pair)
    assert mermaid.count("subgraph ") == mermaid.count("  end\n") == 1 + len(graph.loops)
    assert dot.count("{") == dot.count("}")
    assert (mermaid, dot) == (diagram.mermaid(), diagram.dot())


@given(st.text())
def test_any_text_stands_in_a_box(text):
    diagram = Diagram({"odd": Box([text])}, [Edge("odd", "odd", (text,))])
    mermaid, dot = diagram.mermaid(), diagram.dot()
    assert mermaid.count("\n") == 3
    assert mermaid.count('"') == 4
    assert dot.count("\n") == 5
    assert len(re.findall(r'(?<!\\)(?:\\\\)*"', dot)) == 4, "no quote inside is left as it is"


@settings(max_examples=40, deadline=None)
@given(graph=graphs())
def test_a_graph_written_out_is_read_back(graph):
    again = Graph(GraphNodes.model_validate({"stages": as_data(graph)}).stages)
    assert again.nodes == graph.nodes


def test_a_hand_written_pipeline_is_traced():
    def pipeline(request: Any) -> Any:
        side = request.start(Generate(1, 1))
        both = yield Generate(2, 1), Generate(3, 1)
        yield Generate(sum(stage.prompt_tokens for stage in both), 1)
        yield side
        yield Generate(9, 1)

    graph = trace(pipeline)
    after = {node.prompt: [graph.nodes[parent].prompt for parent in node.after] for node in graph.nodes.values()}
    assert after == {1: [], 2: [], 3: [], 5: [2, 3], 9: [1, 5]}


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(["pipeline", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.feature("Pipelines and services", "`hermes pipeline list`, `hermes pipeline show`, `hermes pipeline draw`")
def test_commands(capsys, tmp_path):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(name in out for name in PIPELINES)
    code, out, _ = run(capsys, "show", "rag", "--set", "documents=7")
    assert code == 0
    assert "prompt: prompt + 7 * 512" in out
    code, out, _ = run(capsys, "draw", "plain")
    assert (code, "generate" in out) == (0, True)
    assert out.startswith("flowchart LR\n")
    assert run(capsys, "draw", "plain", "--format", "dot")[1].startswith("digraph {")
    code, out, _ = run(capsys, "draw", "pipelines/mixed")
    assert code == 0
    assert "rag (main, 0.2 of the requests)" in out
    assert "on large-prefill" in out
    assert "on search ×2" in out
    target = tmp_path / "x.dot"
    code, _, _ = run(capsys, "draw", "pipelines/mixed", "-o", str(target))
    assert code == 0
    assert "on guard" in target.read_text()
    assert "subgraph cluster_n0 " in target.read_text()


@pytest.mark.parametrize("name", list(PIPELINES))
def test_every_pipeline_can_be_shown_and_drawn(capsys, name):
    """Those of plug-ins too, whose stages have options that are not numbers or words."""
    assert run(capsys, "show", name)[0] == 0
    assert run(capsys, "draw", name)[0] == 0


@pytest.mark.parametrize(("arguments", "says"), [
    (("draw", "rga"), "expected a scenario, or a pipeline"), (("show", "rga"), "did you mean 'rag'"),
    (("draw", "rag", "-o", "x.gif"), "expected a file that ends in .mmd"),
    (("show", "rag", "--set", "documents=-1"), "documents: expected a number of at least 1"),
    (("show", "rag", "--set", "documents"), "expected KEY=VALUE"),
    (("show", "plain", "--set", "documents=1"), "expected no parameters"),
    (("draw", "missing.yaml"), "missing.yaml"),
])
def test_refused_in_one_line(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not list(Path().iterdir())
