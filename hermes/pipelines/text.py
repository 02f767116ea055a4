"""A graph in the characters of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hermes.pipelines.graph import Graph
from hermes.pipelines.layout import Block, Describe, Drawing, Style, describe, lay_out

__all__ = ["draw_text"]

_STYLE = Style(char=1, line=1, pad_x=2, pad_y=1, gap_x=4, gap_y=1, title=0, whole=True, track=1)
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = " │││─┘┐┤─└┌├─┴┬┼"   # by the directions in which a line leaves a character


class _Canvas:
    def __init__(self) -> None:
        self.lines: dict[tuple[int, int], int] = {}
        self.text: dict[tuple[int, int], str] = {}

    def across(self, y: int, start: int, stop: int) -> None:
        """A horizontal line from column `start` to `stop`, ends included."""
        for x in range(min(start, stop), max(start, stop)):
            self.lines[x, y] = self.lines.get((x, y), 0) | _RIGHT
            self.lines[x + 1, y] = self.lines.get((x + 1, y), 0) | _LEFT

    def down(self, x: int, start: int, stop: int) -> None:
        for y in range(min(start, stop), max(start, stop)):
            self.lines[x, y] = self.lines.get((x, y), 0) | _DOWN
            self.lines[x, y + 1] = self.lines.get((x, y + 1), 0) | _UP

    def frame(self, left: int, top: int, right: int, bottom: int) -> None:
        for y in (top, bottom):
            self.across(y, left, right)
        for x in (left, right):
            self.down(x, top, bottom)

    def write(self, x: int, y: int, text: str) -> None:
        for i, character in enumerate(text):
            self.text[x + i, y] = character

    def rows(self) -> Iterator[str]:
        used = [*self.lines, *self.text]
        for y in range(max(y for _, y in used) + 1):
            width = max((x for x, row in used if row == y), default=-1) + 1
            yield "".join(self.text.get((x, y)) or _LINES[self.lines.get((x, y), 0)] for x in range(width)).rstrip()


def draw_text(graph: Graph, say: Describe = describe) -> str:
    """The graph as lines of text, with a newline at the end."""
    canvas = _Canvas()
    _draw(canvas, lay_out(graph, _STYLE, say), 0, 0)
    return "".join(f"{row}\n" for row in canvas.rows())


def _draw(canvas: _Canvas, drawing: Drawing, x0: int, y0: int) -> None:
    for block in (block for layer in drawing.layers for block in layer if block.lines):
        left, top, right, bottom = _box(block, x0, y0)
        canvas.frame(left, top, right, bottom)
        if block.inner is None:
            for i, line in enumerate(block.lines):
                canvas.write(left + 2, top + 1 + i, line)
        else:
            canvas.write(left + 2, top, f" {block.lines[0]} ")
            inner = block.inner
            _draw(canvas, inner, left + int((block.width - inner.width) / 2), top + 2)
    tracks: dict[int, int] = {}
    for chain in drawing.edges:
        for before, after in pairwise(chain):
            _edge(canvas, before, after, x0, y0, drawing, tracks)


def _box(block: Block, x0: int, y0: int) -> tuple[int, int, int, int]:
    left, top = x0 + int(block.left), y0 + int(block.top)
    return left, top, left + int(block.width) - 1, top + int(block.height) - 1


def _edge(
    canvas: _Canvas, before: Block, after: Block, x0: int, y0: int, drawing: Drawing, tracks: dict[int, int],
) -> None:
    """From one block over the gutter to one in the next layer, going up or down on a track of its own."""
    depth = next(i for i, layer in enumerate(drawing.layers) if any(b is before for b in layer))
    end = max(_right(b, x0) for b in drawing.layers[depth])
    y, to_y = (y0 + int(b.top) + int(b.height) // 2 for b in (before, after))
    start, stop = _right(before, x0), x0 + int(after.left) - 1
    if y == to_y:
        canvas.across(y, start, stop)
    else:
        tracks[depth] = tracks.get(depth, 0) + 1
        column = end + tracks[depth]
        canvas.across(y, start, column)
        canvas.down(column, y, to_y)
        canvas.across(to_y, column, stop)
    if after.lines:
        canvas.write(stop, to_y, ">")
    else:
        canvas.across(to_y, stop, _right(after, x0))


def _right(block: Block, x0: int) -> int:
    """The first column beside a block."""
    return x0 + int(block.left) + int(block.width)
