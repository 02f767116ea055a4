"""Diagrams of boxes and arrows as text: Mermaid, which GitHub and MkDocs render, and DOT for Graphviz."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from hermes.cli.output import print_or_write
from hermes.errors import InputError

__all__ = ["Box", "Diagram", "Edge", "Format", "show_diagram"]

Format = Literal["mermaid", "dot"]
_SUFFIXES: dict[str, Format] = {".mmd": "mermaid", ".dot": "dot"}
_ENTITIES = {ord(c): f"#{ord(c)};" for c in '#"<>&`'}


class Edge(NamedTuple):
    """A line from one box of a diagram to another.

    Args:
        label: Its lines of text.
    """

    source: str
    target: str
    label: tuple[str, ...] = ()


@dataclass
class Box:
    """A box of a diagram.

    Args:
        lines: Its text.
        inside: A diagram that it frames.
        dashed: Whether its outline is dashed.
    """

    lines: list[str]
    inside: Diagram | None = None
    dashed: bool = False


@dataclass
class Diagram:
    """Boxes by name, and edges between them.

    Args:
        arrows: Whether edges have a direction.
    """

    boxes: dict[str, Box]
    edges: list[Edge] = field(default_factory=list)
    arrows: bool = True

    def mermaid(self) -> str:
        """Return the diagram as a Mermaid flowchart."""
        return "\n".join([f"flowchart {'LR' if self.arrows else 'TB'}", *_mermaid(self, "n")]) + "\n"

    def dot(self) -> str:
        """Return the diagram in the DOT language; boxes with a diagram inside are clusters."""
        kind, direction = ("digraph", "LR") if self.arrows else ("graph", "TB")
        head = f"  rankdir={direction}; compound=true; node [shape=box, fontname=monospace];"
        return "\n".join([f"{kind} {{", head, *(f"  {line}" for line in _dot(self, "n")), "}"]) + "\n"

    def _places(self, prefix: str) -> dict[str, str]:
        """Give each box an identifier: a name may hold any character, an identifier may not."""
        return {name: f"{prefix}{i}" for i, name in enumerate(self.boxes)}

    def _ends(self, prefix: str) -> dict[str, tuple[str, str]]:
        """Return the first and the last plain box inside each box: DOT edges begin and end there."""
        ends = {}
        for name, place in self._places(prefix).items():
            inside = self.boxes[name].inside
            inner = [] if inside is None else list(inside._ends(f"{place}_").values())
            ends[name] = (inner[0][0], inner[-1][1]) if inner else (place, place)
        return ends


def _mermaid(diagram: Diagram, prefix: str) -> Iterator[str]:
    places = diagram._places(prefix)
    for name, box in diagram.boxes.items():
        label = _mermaid_text(box.lines)
        if box.inside is None:
            yield f'  {places[name]}["{label}"]'
        else:
            yield f'  subgraph {places[name]}["{label}"]'
            yield from (f"  {line}" for line in _mermaid(box.inside, f"{places[name]}_"))
            yield "  end"
        if box.dashed:
            yield f"  style {places[name]} stroke-dasharray: 5"
    line = "-->" if diagram.arrows else "---"
    for edge in diagram.edges:
        label = f'|"{_mermaid_text(edge.label)}"|' if edge.label else ""
        yield f"  {places[edge.source]} {line}{label} {places[edge.target]}"


def _mermaid_text(lines: list[str] | tuple[str, ...]) -> str:
    return "<br>".join(" ".join(line.split()).translate(_ENTITIES) for line in lines)


def _dot(diagram: Diagram, prefix: str) -> Iterator[str]:
    places, ends = diagram._places(prefix), diagram._ends(prefix)
    for name, box in diagram.boxes.items():
        if box.inside is None:
            yield f"{places[name]} [label={_dot_text(box.lines)}{', style=dashed' if box.dashed else ''}];"
        else:
            yield f"subgraph cluster_{places[name]} {{ label={_dot_text(box.lines)};"
            yield from (f"  {line}" for line in _dot(box.inside, f"{places[name]}_"))
            yield "}"
    for edge in diagram.edges:
        said = [f"label={_dot_text(edge.label)}"] if edge.label else []
        said += [f"{key}=cluster_{places[end]}" for key, end in (("ltail", edge.source), ("lhead", edge.target))
                 if diagram.boxes[end].inside is not None]
        line = "->" if diagram.arrows else "--"
        yield (f"{ends[edge.source][1]} {line} {ends[edge.target][0]}" + (f" [{', '.join(said)}]" if said else "")
               + ";")


def _dot_text(lines: list[str] | tuple[str, ...]) -> str:
    text = "".join(" ".join(line.split()).replace("\\", "\\\\").replace('"', '\\"') + "\\l" for line in lines)
    return f'"{text}"'


def show_diagram(make: Callable[[], Diagram], language: Format | None, output: Path | None) -> None:
    """Print a diagram, or write it to `output`. The option, or else the suffix of `output`, gives the language.

    Raises `InputError` for another suffix, before it makes the diagram.
    """
    if output is not None and language is None and output.suffix not in _SUFFIXES:
        raise InputError("a file that ends in .mmd (Mermaid) or .dot, or --format", output.name, field="--output")
    language = language or (_SUFFIXES[output.suffix] if output is not None else "mermaid")
    diagram = make()
    print_or_write(diagram.dot() if language == "dot" else diagram.mermaid(), output)
