"""Strict YAML reader: plain data only, and every value knows its file, line and column.

It differs from a general loader so that mistakes are found and not guessed at: no tags, no objects, no duplicate keys,
no second document, bounded size and depth; aliases may not be cyclic or expand a small file to a huge one. Scalars
follow YAML 1.2 (`yes`, `on` and `1_000` are text; `1e5` is a number). A number with leading zeros is text, since some
loaders read it as octal and others as decimal.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from yaml import events as ev

from hermes.config.files import MAX_BYTES, half_character, read_text
from hermes.errors import InputError, InputWarning, Verbatim

__all__ = ["MAX_BYTES", "Mark", "Node", "Text", "as_node", "is_index", "load_yaml", "parse_documents", "parse_yaml",
           "read_text"]

MAX_DEPTH = 60        # well below Python's recursion limit, for every recursive walk over a document
MAX_NODES = 500_000   # after aliases are expanded
MAX_DIGITS = 300      # the largest float has 309; int() of a text takes quadratic time

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+|0o[0-7]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,9})?\Z")
_SPECIAL: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + text: float(sign + "inf") for sign in ("", "+", "-") for text in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """Position in a file; line and column count from 1, and are None without a file."""

    file: str | None = None
    line: int | None = None
    column: int | None = None

    def error(self, expected: str, found: object = ..., **rest: Any) -> InputError:
        return InputError(expected, found, file=self.file, line=self.line, column=self.column, **rest)

    def warn(self, text: str) -> None:
        """Issue an `InputWarning` about this position, which points at the caller's caller."""
        where = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        warnings.warn(f"{where}: {text}" if where else text, InputWarning, stacklevel=3)


class Text(str):
    """A string from a file that remembers the file: paths are relative to it."""

    __slots__ = ("file",)
    file: str | None


@dataclass(slots=True)
class Node:
    """A value (scalar, mapping of nodes or list of nodes) and its position; `key` is the position of its key."""

    value: Any
    mark: Mark
    key: Mark | None = None

    def plain(self) -> Any:
        """Return the value as ordinary Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        if isinstance(self.value, str):
            text = Text(self.value)
            text.file = self.mark.file
            return text
        return self.value

    def child(self, key: object) -> Node | None:
        """Return the node under a key or list index, or None."""
        if isinstance(self.value, dict) and isinstance(key, str):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            return self.value[key]  # type: ignore[no-any-return]
        return None

    def nearest(self, path: str | None) -> tuple[Node, str | None]:
        """Return the node at a dotted path, or the last existing one on the way; and the path as the file writes it.

        If a single item stands for a list of one, its index is not part of the path in the file.
        """
        node, written, missing = self, [], False
        for part in path.split(".") if path else ():
            child = None if missing else node.child(int(part) if is_index(part) else part)
            if child is not None:
                node = child
            elif not missing and part == "0" and isinstance(node.value, dict):
                continue
            else:
                missing = True
            written.append(part)
        return node, ".".join(written) or None


def is_index(key: str) -> bool:
    """Whether a part of a dotted path is an index into a list."""
    return key.isascii() and key.isdecimal() and len(key) < 10


def as_node(data: Any, mark: Mark | None = None, depth: int = 0) -> Node:
    """Wrap ordinary data (a dict given in Python) so that it can be merged and validated like a file."""
    mark = mark or Mark()
    if depth > MAX_DEPTH:
        raise mark.error(f"at most {MAX_DEPTH} levels", Verbatim("more"))
    if isinstance(data, dict):
        return Node({str(key): as_node(value, mark, depth + 1) for key, value in data.items()}, mark, mark)
    if isinstance(data, list | tuple):
        return Node([as_node(value, mark, depth + 1) for value in data], mark)
    return Node(data, mark)


def load_yaml(path: str | Path) -> Node:
    """Load the single YAML document of a file."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, file: str | None = None) -> Node:
    """Parse the single YAML document in `text`; `file` names it in errors. An empty document is null."""
    return _Composer(text, file).compose()


def parse_documents(text: str, file: str | None = None) -> list[Node]:
    """Parse all YAML documents in `text`, as manifests have them; empty ones are left out. The bounds are those of one
    document."""
    return _Composer(text, file).compose_all()


def resolve_scalar(text: str, mark: Mark, field: str | None = None) -> object:
    """Return the value of a plain (unquoted) scalar."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.match(text):
        if len(text) > MAX_DIGITS:
            raise mark.error(f"a number of at most {MAX_DIGITS} digits", Verbatim(f"{len(text)}"), field=field)
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text


class _Composer:
    """Builder of nodes from PyYAML's events, which need no recursion and construct no objects."""

    def __init__(self, text: str, file: str | None) -> None:
        self.file, self.text = file, text
        self.anchors: dict[str, tuple[Node, int, int] | None] = {}  # node, nodes in it, its height; None: unfinished
        self.path: list[str] = []
        self.nodes = 0

    def compose(self) -> Node:
        self.events = self._events()
        next(self.events)  # stream start
        if isinstance(next(self.events), ev.StreamEndEvent):
            return Node(None, Mark(self.file, 1, 1))
        node, _, _ = self._node(next(self.events), 0)
        next(self.events)  # document end
        extra = next(self.events)
        if not isinstance(extra, ev.StreamEndEvent):
            raise self._mark(extra).error("one YAML document", Verbatim("a second one"))
        return node

    def compose_all(self) -> list[Node]:
        self.events = self._events()
        next(self.events)  # stream start
        found = []
        while not isinstance(next(self.events), ev.StreamEndEvent):
            self.anchors.clear()
            node, _, _ = self._node(next(self.events), 0)
            next(self.events)  # document end
            if node.value is not None:
                found.append(node)
        return found

    def _events(self) -> Iterator[Any]:
        try:
            yield from yaml.parse(self.text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            at = Mark(self.file, mark.line + 1, mark.column + 1) if mark else Mark(self.file)
            raise at.error("valid YAML", Verbatim(self._problem(error, mark))) from None
        except yaml.YAMLError as error:
            raise Mark(self.file).error("valid YAML", Verbatim(str(error))) from None

    def _problem(self, error: yaml.MarkedYAMLError, mark: Any) -> str:
        """Return the problem in words that fit after "found"."""
        if mark is not None and self.text[mark.index : mark.index + 1] == "\t":
            return "a tab (indent with spaces)"
        said = error.problem or error.context or "something else"
        return said.removeprefix("found ").replace("did not find expected ", "no ")

    def _mark(self, event: Any) -> Mark:
        return Mark(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _field(self) -> str | None:
        return ".".join(self.path) or None

    def _node(self, event: Any, depth: int) -> tuple[Node, int, int]:
        """Return the node that starts with `event`, the number of nodes in it, and its height."""
        mark = self._mark(event)
        if isinstance(event, ev.AliasEvent):
            return self._alias(event, mark, depth)
        if event.tag is not None:
            raise mark.error("a plain value", Verbatim(f"the tag {event.tag}"), field=self._field())
        if depth > MAX_DEPTH:
            raise mark.error(f"at most {MAX_DEPTH} levels", Verbatim("more"))
        if event.anchor:
            self.anchors[event.anchor] = None
        self._count(1, mark)
        if isinstance(event, ev.ScalarEvent):
            value = resolve_scalar(event.value, mark, self._field()) if event.implicit[0] else event.value
            self._whole(event.value, mark)
            built = Node(value, mark), 1, 0
        elif isinstance(event, ev.SequenceStartEvent):
            built = self._sequence(mark, depth)
        else:
            built = self._mapping(mark, depth)
        if event.anchor:
            self.anchors[event.anchor] = built
        return built

    def _whole(self, text: str, mark: Mark) -> None:
        r"""Refuse half a character such as `"\ud800"`, which no file can hold."""
        half = half_character(text)
        if half is not None:
            raise mark.error("whole characters", half, field=self._field())

    def _count(self, nodes: int, mark: Mark) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise mark.error(f"at most {MAX_NODES} values", Verbatim("more (counting what aliases stand for)"))

    def _alias(self, event: Any, mark: Mark, depth: int) -> tuple[Node, int, int]:
        name = event.anchor
        target = self.anchors.get(name)
        if target is None:
            problem = "an alias inside itself" if name in self.anchors else "an alias to nothing"
            raise mark.error("an anchor defined above", Verbatim(f"{problem}: *{name}"), field=self._field())
        node, nodes, height = target
        self._count(nodes, mark)
        if depth + height > MAX_DEPTH:
            raise mark.error(f"at most {MAX_DEPTH} levels", Verbatim("more"))
        return replace(node, mark=mark), nodes, height

    def _sequence(self, mark: Mark, depth: int) -> tuple[Node, int, int]:
        items: list[Node] = []
        total, height = 1, 0
        while not isinstance(event := next(self.events), ev.SequenceEndEvent):
            self.path.append(str(len(items)))
            node, nodes, high = self._node(event, depth + 1)
            self.path.pop()
            items.append(node)
            total, height = total + nodes, max(height, high + 1)
        return Node(items, mark), total, height

    def _mapping(self, mark: Mark, depth: int) -> tuple[Node, int, int]:
        items: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        total, height = 1, 0
        while not isinstance(event := next(self.events), ev.MappingEndEvent):
            at = self._mark(event)
            if not isinstance(event, ev.ScalarEvent) or event.tag is not None or not event.value:
                raise at.error("a key that is a word", Verbatim("something else"), field=self._field())
            key = event.value
            self._whole(key, at)
            if key in items:
                raise at.error("each key once", Verbatim(f"{key!r} again"), field=".".join([*self.path, key]))
            self.path.append(key)
            node, nodes, high = self._node(next(self.events), depth + 1)
            if key == "<<" and event.implicit[0]:
                self._merge(node, merged)
            else:
                items[key] = replace(node, key=at)
            self.path.pop()
            total, height = total + nodes, max(height, high + 1)
        return Node({**merged, **items}, mark), total, height

    def _merge(self, node: Node, merged: dict[str, Node]) -> None:
        """Apply a merge key: the mapping's own keys win, then the first of several merged mappings."""
        for part in node.value if isinstance(node.value, list) else [node]:
            if not isinstance(part.value, dict):
                raise node.mark.error("an alias to a mapping", part.plain(), field=self._field())
            for key, value in part.value.items():
                merged.setdefault(key, value)
