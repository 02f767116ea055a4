"""Where the nodes of a graph stand in a drawing: in layers from left to right, few crossings, loops as frames.

Layers are the longest paths from the beginning (Sugiyama, Tagawa and Toda 1981, with the barycentre rule for the order
within a layer). An edge over several layers passes each of them at a place of its own. Units are the style's: inches
for a figure, characters for a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from hermes.pipelines.graph import Graph, Node

__all__ = ["Block", "Drawing", "Style", "describe", "lay_out"]

Describe = Callable[[str, Node], list[str]]
_SWEEPS = 8


@dataclass(frozen=True)
class Style:
    """Sizes: of a character and a line, around a text, between layers and between neighbours, of a frame's title."""

    char: float
    line: float
    pad_x: float
    pad_y: float
    gap_x: float
    gap_y: float
    title: float
    whole: bool = False
    """Whether places are whole numbers."""
    track: float = 0.0
    """What each edge between two layers adds to their distance."""


@dataclass(eq=False)
class Block:
    """A node, a loop's frame or (without lines) a place where an edge passes a layer. `left`, `top`: its corner."""

    name: str
    lines: list[str]
    width: float
    height: float
    node: Node | None = None
    inner: Drawing | None = None
    left: float = 0.0
    top: float = 0.0

    @property
    def middle(self) -> float:
        """Height at which edges come in and go out."""
        return self.top + self.height / 2


@dataclass(eq=False)
class Drawing:
    """Blocks with their places, and edges as chains of blocks that follow each other in neighbouring layers."""

    width: float = 0.0
    height: float = 0.0
    layers: list[list[Block]] = field(default_factory=list)
    edges: list[tuple[Block, ...]] = field(default_factory=list)


def describe(name: str, node: Node) -> list[str]:
    """What a drawing says about a node: its name, kind and model, and whatever is not as usual."""
    lines = [name]
    if node.kind == "loop":
        return [f"{name}: again with probability {node.again or 0:g}, at most {node.max_times or 1} times"]
    if node.model or name != node.kind:
        lines.append(node.kind + (f" · {node.model}" if node.model else ""))
    if node.kind == "generate":
        lines += [f"{key}: {getattr(node, key)}" for key in ("prompt", "output")]
    else:
        lines.append(f"tokens: {node.tokens}")
        lines += [f"items: {node.items}"] if node.items != 1 else []
    lines += [f"{key}: {value}" for key, value in node.options.items()]
    lines += [f"needs no prefill of {node.kv}"] if node.kv else []
    lines += [f"receives {node.input_bytes} bytes"] if node.input_bytes != 0 else []
    lines += [f"{node.copies} side by side"] if node.copies != 1 else []
    lines += [f"{node.branches} branches"] if node.branches != 1 else []
    lines += [f"probability {node.probability:g}"] if node.probability < 1 else []
    lines += [f"choice {node.choice}, weight {node.share:g}"] if node.choice else []
    return lines + (["in the background"] if node.background else [])


def lay_out(graph: Graph, style: Style, say: Describe = describe) -> Drawing:
    """The drawing of a checked graph."""
    import networkx as nx

    blocks = {name: _block(name, graph, style, say) for name in graph.order}
    rank = {name: depth for depth, names in enumerate(nx.topological_generations(graph.net)) for name in names}
    drawing = Drawing(layers=[[] for _ in range(1 + max(rank.values()))])
    for name in graph.order:
        drawing.layers[rank[name]].append(blocks[name])
    for name in graph.order:
        for child in graph.net.successors(name):
            chain = [blocks[name]]
            for depth in range(rank[name] + 1, rank[child]):
                passing = Block("", [], 0.0, style.line)
                drawing.layers[depth].append(passing)
                chain.append(passing)
            drawing.edges.append((*chain, blocks[child]))
    _order(drawing)
    _place(drawing, style)
    return drawing


def _block(name: str, graph: Graph, style: Style, say: Describe) -> Block:
    node, lines = graph.nodes[name], say(name, graph.nodes[name])
    text = max(map(len, lines)) * style.char
    if node.kind != "loop":
        return Block(name, lines, text + 2 * style.pad_x, len(lines) * style.line + 2 * style.pad_y, node)
    inner = lay_out(graph.loops[name], style, say)
    width = max(inner.width, text) + 4 * style.pad_x
    return Block(name, lines, width, inner.height + style.title + 3 * style.pad_y, node, inner)


def _order(drawing: Drawing) -> None:
    """Sort each layer by the mean place of the neighbours, forwards and backwards."""
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        neighbours: dict[int, list[Block]] = {}
        for chain in drawing.edges:
            for before, after in pairwise(chain):
                own, other = (after, before) if forwards else (before, after)
                neighbours.setdefault(id(own), []).append(other)
        for layer in drawing.layers if forwards else reversed(drawing.layers):
            places = {id(block): i for other in drawing.layers for i, block in enumerate(other)}
            near = [[places[id(other)] for other in neighbours.get(id(block), [block])] for block in layer]
            means = {id(block): sum(theirs) / len(theirs) for block, theirs in zip(layer, near, strict=True)}
            layer.sort(key=lambda block, means=means: means[id(block)])   # type: ignore[misc]


def _place(drawing: Drawing, style: Style) -> None:
    left = 0.0
    heights = [sum(b.height for b in layer) + style.gap_y * (len(layer) - 1) for layer in drawing.layers]
    drawing.height = max(heights)
    for depth, (layer, height) in enumerate(zip(drawing.layers, heights, strict=True)):
        width, top = max(block.width for block in layer), (drawing.height - height) / 2
        top = int(drawing.height) // 2 - int(height) // 2 if style.whole else top
        for block in layer:
            block.width = block.width or width   # an edge passes the whole layer
            block.left, block.top = left + (width - block.width) / 2, top
            top += block.height + style.gap_y
        crossing = sum(block in chain[:-1] for chain in drawing.edges for block in layer)
        last = depth == len(drawing.layers) - 1
        left += width + (0 if last else style.gap_x + style.track * crossing)
    drawing.width = left
