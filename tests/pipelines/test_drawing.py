"""Drawings show every node and edge, overlap nothing, and are the same each time; graphs written out are read back."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.cli import main
from hermes.pipelines import PIPELINES, Generate
from hermes.pipelines.draw import _STYLE as INCHES
from hermes.pipelines.draw import draw_dot, write_drawing
from hermes.pipelines.graph import Graph, Node
from hermes.pipelines.layout import Drawing, lay_out
from hermes.pipelines.text import _STYLE as CHARACTERS
from hermes.pipelines.text import draw_text
from hermes.pipelines.tracing import trace
from hermes.pipelines.written import as_data


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
    return Graph({name: Node.model_validate(node) for name, node in nodes.items()})


def names(graph: Graph) -> list[str]:
    return [*graph.nodes, *(name for loop in graph.loops.values() for name in names(loop))]


def no_overlap(drawing: Drawing, gap: float) -> None:
    blocks = [block for layer in drawing.layers for block in layer]
    for one, other in combinations(blocks, 2):
        apart = one.left + one.width <= other.left or other.left + other.width <= one.left
        above = one.top + one.height + gap <= other.top + 1e-6 or other.top + other.height + gap <= one.top + 1e-6
        assert apart or above, (one, other)
    for block in blocks:
        assert block.left >= 0
        assert block.left + block.width <= drawing.width + 1e-6
        assert block.top >= -1e-6
        assert block.top + block.height <= drawing.height + 1 + 1e-6
        if block.inner is not None:
            assert block.inner.width < block.width
            assert block.inner.height < block.height
            no_overlap(block.inner, gap)


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_a_layout_overlaps_nothing_and_goes_forward(graph):
    for style in (INCHES, CHARACTERS):
        drawing = lay_out(graph, style)
        no_overlap(drawing, style.gap_y)
        edges = {(chain[0].name, chain[-1].name) for chain in drawing.edges}
        assert edges == set(graph.net.edges)
        for chain in drawing.edges:
            for before, after in pairwise(chain):
                assert before.left + before.width < after.left


@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_text_and_dot_show_everything(graph):
    text, dot = draw_text(graph), draw_dot(graph)
    for name in names(graph):
        assert f" {name} " in text or f" {name}:" in text
        assert f"/{name}\"" in dot or f"\"{name}\"" in dot or f"cluster {name}\"" in dot
    joined = [node for g in (graph, *graph.loops.values()) for node in g.nodes.values() if node.after]
    assert text.count(">") == len(joined), "one arrow into each node that comes after others"
    assert dot.count("->") == sum(len(g.net.edges) for g in (graph, *graph.loops.values()))
    assert text == draw_text(graph)


@settings(max_examples=40, deadline=None)
@given(graph=graphs())
def test_a_graph_written_out_is_read_back(graph):
    again = Graph({name: Node.model_validate(node) for name, node in as_data(graph).items()})
    assert again.nodes == graph.nodes


@pytest.mark.parametrize("suffix", [".png", ".svg", ".dot", ".txt"])
def test_files_are_the_same_each_time(suffix, tmp_path):
    graph = PIPELINES.get("guarded")(refused=0.1).graph()
    paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        write_drawing({"one": graph, "two": graph}, path, {})
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert len(first) > 500


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


def test_commands(capsys, tmp_path):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(name in out for name in PIPELINES)
    code, out, _ = run(capsys, "show", "rag", "--set", "documents=7")
    assert code == 0
    assert "prompt: prompt + 7 * 512" in out
    code, out, _ = run(capsys, "draw", "plain")
    assert (code, "generate" in out) == (0, True)
    code, out, _ = run(capsys, "draw", "pipelines/mixed")
    assert code == 0
    assert "rag (main, 0.2 of the requests)" in out
    assert "on large-prefill" in out
    assert "on search ×2" in out
    target = tmp_path / "x.svg"
    code, _, _ = run(capsys, "draw", "pipelines/mixed", "-o", str(target))
    assert code == 0
    assert "on guard" in target.read_text()


@pytest.mark.parametrize(("arguments", "says"), [
    (("draw", "rga"), "expected a scenario, or a pipeline"), (("show", "rga"), "did you mean 'rag'"),
    (("draw", "rag", "-o", "x.gif"), "expected a file that ends in .png"),
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
