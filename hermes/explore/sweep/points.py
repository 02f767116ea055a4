"""Points of a sweep: their settings and their scenarios."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hermes.config.yaml_document import Node, parse_yaml
from hermes.config.yaml_writer import to_flow
from hermes.errors import InputError, Verbatim
from hermes.explore.sweep.config import Sweep
from hermes.scenario import Scenario, resolved_yaml, scenario_of
from hermes.scenario.document import warn_of_milliseconds
from hermes.scenario.loading import set_value

__all__ = ["MAX_POINTS", "RESERVED", "Point", "document", "located", "points", "scenario"]

MAX_POINTS = 1_000_000
RESERVED = ("point", "case", "seed", "hash", "status", "reason")

_Choice = tuple[dict[str, object], dict[str, Node]]   # values of the columns, settings


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation of a sweep.

    Args:
        settings: Values of its columns, in the order of the sweep (a value that is not a scalar as YAML on one line).
        overrides: Documents set in the scenario, by dotted path.
        seed: None for the scenario's own.
    """

    index: int
    settings: dict[str, object]
    overrides: dict[str, Node]
    seed: int | None

    @property
    def label(self) -> str:
        parts = [f"{name}={value}" for name, value in self.settings.items()]
        parts += [] if self.seed is None else [f"seed={self.seed}"]
        return ", ".join(parts) or "the scenario"


def points(sweep: Sweep) -> list[Point]:
    """Return all points: cases outermost, then zips and the grid in their order, seeds innermost.

    Raises `InputError` for lists of unequal length, duplicate values or labels, paths that are set twice, and too many
    points.
    """
    axes = list(_axes(sweep))
    seeds = _seeds(sweep)
    count = math.prod(len(axis) for axis in axes) * len(seeds)
    if count > MAX_POINTS:
        raise sweep.node.mark.error(f"at most {MAX_POINTS:,} points", count)
    _check_paths(sweep, axes)
    of_cases: dict[object, int | None] = {case.label: case.seed for case in sweep.config.cases or ()}
    found: list[Point] = []
    for combination in itertools.product(*axes):
        settings: dict[str, object] = {}
        overrides: dict[str, Node] = {}
        for shown, written in combination:
            settings |= shown
            overrides |= written
        own = of_cases.get(settings.get("case"))
        found += [Point(len(found) + i, settings, overrides, seed)
                  for i, seed in enumerate(seeds if own is None else [own])]
    return found


def scenario(sweep: Sweep, point: Point) -> Scenario:
    """Return the validated scenario of a point. `InputError`s name the sweep's file, the line and the point."""
    try:
        return scenario_of(_node(sweep, point), sweep.base_dir)
    except InputError as error:
        raise located(sweep, point, error) from None


def document(sweep: Sweep, point: Point, *, warn: bool = False) -> str:
    """Return the document of a point as JSON, not validated. `scenario_of` makes the same scenario of it.

    Raises `InputError` for a path that cannot be set. warn: whether to warn of limits that look like
    milliseconds.
    """
    try:
        node = _node(sweep, point)
        if warn and sweep.file is not None:   # numbers of a sweep made in Python may have lost their units
            warn_of_milliseconds(node)
        plain = node.plain()
    except InputError as error:
        raise located(sweep, point, error) from None
    try:
        return json.dumps(plain)
    except (TypeError, ValueError):   # a sweep given in Python may have any values that validation accepts
        return json.dumps(parse_yaml(resolved_yaml(scenario(sweep, point))).plain())


def _node(sweep: Sweep, point: Point) -> Node:
    node = sweep.base
    for path, value in point.overrides.items():
        node = set_value(node, path, value, sweep.folder, sweep.base_dir)
    if point.seed is not None:
        mark = sweep.node.value.get("seeds", sweep.node).mark
        node = set_value(node, "seed", Node(point.seed, mark, mark), sweep.folder, sweep.base_dir)
    return node


def located(sweep: Sweep, point: Point, error: InputError) -> InputError:
    """Return an error about a point's scenario with the point in front of its field (and the sweep's file, unless it is
    about another file)."""
    where = f"point {point.index} ({point.label})"
    if sweep.file is not None and error.file not in (None, sweep.file):
        where = f"{sweep.file}: {where}"
    return InputError(
        error.expected, error.found, field=": ".join(filter(None, (where, error.field))), file=error.file or sweep.file,
        line=error.line, column=error.column, suggestion=error.suggestion,
    )


def _axes(sweep: Sweep) -> Iterator[list[_Choice]]:
    node, names = sweep.node, sweep.config.columns
    cases = node.child("cases")
    if cases is not None and cases.value is not None:
        yield _cases(cases)
    zips = node.child("zip")
    if zips is not None:
        for group in zips.value if isinstance(zips.value, list) else [zips]:
            yield from [_zipped(group, names)] if group.value else []
    grid = node.child("grid")
    if grid is not None:
        for path, values in grid.value.items():
            shown = _distinct([_shown(value) for value in values.value], values, f"grid.{path}")
            yield [({names.get(path, path): show}, {path: value})
                   for show, value in zip(shown, _keyed(values), strict=True)]


def _cases(cases: Node) -> list[_Choice]:
    choices: list[_Choice] = []
    labels = _distinct([case.value["label"].value for case in cases.value], cases, "cases")
    for label, case in zip(labels, cases.value, strict=True):
        written = case.child("set")
        choices.append(({"case": label}, dict(written.value) if written is not None else {}))
    return choices


def _zipped(group: Node, names: dict[str, str]) -> list[_Choice]:
    lengths = {path: len(values.value) for path, values in group.value.items()}
    if len(set(lengths.values())) > 1:
        found = Verbatim(", ".join(f"{path}: {length}" for path, length in lengths.items()))
        raise group.mark.error("lists of equal length", found, field="zip")
    columns = [_keyed(values) for values in group.value.values()]
    choices: list[_Choice] = []
    for row in zip(*columns, strict=True):
        written: dict[str, Node] = dict(zip(group.value, row, strict=True))
        shown = {names.get(path, path): _shown(value) for path, value in written.items()}
        choices.append((shown, written))
    _distinct([str(show) for show, _ in choices], group, "zip")
    return choices


def _keyed(values: Node) -> list[Node]:
    """Return the items of a list; a mistake in the path itself is reported at the list's key."""
    return [Node(value.value, value.mark, values.key) for value in values.value]


def _distinct(shown: list[Any], node: Node, field: str) -> list[Any]:
    seen: set[tuple[type, object]] = set()
    for i, value in enumerate(shown):
        if (type(value), value) in seen:
            raise node.value[i].mark.error("every value once", value, field=field) if isinstance(node.value, list) \
                else node.mark.error("every combination once", value, field=field)
        seen.add((type(value), value))
    return shown


def _shown(value: Node) -> object:
    plain = value.plain()
    if isinstance(plain, str):
        return str(plain)
    return to_flow(plain) if isinstance(plain, dict | list) else plain


def _check_paths(sweep: Sweep, axes: list[list[_Choice]]) -> None:
    """Check that no axis overwrites a path of an earlier one, and that column names differ."""
    before: set[str] = set()
    columns = {*RESERVED, *(["case"] if sweep.config.cases else [])}
    for axis in axes:
        mine = {path: value for _, written in axis for path, value in written.items()}
        for path, value in mine.items():
            lost = next((p for p in before if p == path or p.startswith(path + ".")), None)
            if path == "seed":
                raise (value.key or value.mark).error("the seeds under `seeds`", path)
            if lost is not None:
                raise (value.key or value.mark).error(f"a path that leaves {lost}, set before, as it is", path)
        before |= mine.keys()
        names = [] if "case" in axis[0][0] else list(axis[0][0])
        for i, name in enumerate(names):
            if name in columns or name in names[:i]:
                raise sweep.node.mark.error("a different name for each column", name, field="columns")
        columns.update(names)
    unknown = next((path for path in sweep.config.columns if path not in before), None)
    if unknown is not None:
        mark = sweep.node.value["columns"].value[unknown].mark
        raise mark.error(f"a path of the sweep: one of {', '.join(sorted(before))}", unknown, field="columns")


def _seeds(sweep: Sweep) -> list[int | None]:
    seeds = sweep.config.seeds
    if seeds is None:
        return [None]
    if isinstance(seeds, list):
        _distinct(seeds, sweep.node.value["seeds"], "seeds")
        return list(seeds)
    own = sweep.base.child("seed")
    first = own.value if own is not None and type(own.value) is int else 0
    return list(range(first, first + seeds))
