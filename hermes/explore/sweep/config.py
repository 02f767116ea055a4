"""Sweep files: their schema, and how they are found and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from hermes.config import ConfigModel, Name
from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node, load_yaml
from hermes.errors import InputError, Verbatim, suggest
from hermes.scenario.document import Overrides
from hermes.scenario.loading import (
    SUFFIXES,
    builtin_scenarios,
    builtin_sweeps,
    extended,
    load_document,
    overridden,
)
from hermes.scenario.schema import MAX_SEED

__all__ = ["Case", "Sweep", "SweepConfig", "load_sweep"]

MAX_REPEATS = 100_000
Values = Annotated[list[Any], Field(min_length=1)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _seeds(value: object) -> object:
    def within(number: object, low: int, high: int) -> bool:
        return type(number) is int and low <= number <= high

    if value is not None and not within(value, 1, MAX_REPEATS) and not (
            isinstance(value, list) and value and all(within(seed, 0, MAX_SEED) for seed in value)):
        raise InputError("a number of repeats from 1, or a list of seeds from 0", value)
    return value


_ZIP = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
_ZIPS = WithJsonSchema({"anyOf": [_ZIP, {"type": "array", "items": _ZIP}]})


class Case(ConfigModel):
    """A configuration that differs from others in more than one value."""

    label: Name
    """Its label in the column `case`."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Values by dotted path, as in `grid`."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    """Its own seed, where the sweep has no `seeds`."""


class SweepConfig(ConfigModel):
    """Many simulations: every case with every combination of zip, grid and seeds."""

    name: Name = "sweep"
    """Name of the sweep."""
    description: str = ""
    """Purpose of the sweep."""
    scenario: str | dict[str, Any]
    """Scenario of all points: a file (relative to this one), a built-in name, or the scenario itself (which may
    `extends` another)."""
    cases: Annotated[list[Case], Field(min_length=1)] | None = None
    """Configurations that a grid cannot express."""
    zip: Annotated[list[dict[str, Values]], BeforeValidator(_as_list), _ZIPS] = Field(default_factory=list)
    """Lists of equal length, stepped through together, by dotted path. Several such groups are combined."""
    grid: dict[str, Values] = Field(default_factory=dict)
    """Lists by dotted path; every value is combined with every other."""
    seeds: Annotated[int | list[int] | None, BeforeValidator(_seeds)] = None
    """Repeats: their number (the scenario's seed and those after it), or a list of seeds. Equal seeds give equal
    workloads in every configuration."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Names of the columns in the results, by dotted path; default: the path."""
    extract: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`module:function`: called with the `Results` of each point, returns more figures as a flat dict."""
    keep: Literal["summary", "requests", "all"] = "summary"
    """What to keep of each point: its figures; also its table of requests; or all files of `hermes run -o`."""


@dataclass(frozen=True)
class Sweep:
    """A sweep file that was read.

    Args:
        base: The scenario's document, not validated (it may lack keys that every point sets).
    """

    config: SweepConfig
    node: Node
    folder: Path
    """The folder that the sweep's own paths are relative to."""
    base: Node
    base_dir: Path
    """The folder that the scenario's paths are relative to."""
    file: str | None
    until_missed: Mapping[str, float] = field(default_factory=dict)
    """Label -> `Job.until_missed` of the cases whose simulations end early; a search names them."""

    def ends_early(self, settings: Mapping[str, object]) -> float:
        """Return `Job.until_missed` of a point with these settings."""
        return self.until_missed.get(str(settings.get("case")), 0.0)


def load_sweep(source: str | Path | Mapping[str, Any] | Sweep, overrides: Overrides = ()) -> Sweep:
    """Load a sweep from a file, the name of a built-in one, or a dict. Raises `InputError` with the first mistake.

    Args:
        overrides: Settings of the scenario of all points: `["workload.requests=100"]`, or
            `{"workload.requests": 100}`.
    """
    if isinstance(source, Sweep):
        return _overridden(source, overrides)
    if isinstance(source, Mapping):
        node, path = as_node(dict(source)), None
    else:
        path = _find(source)
        node = load_yaml(path)
    if not isinstance(node.value, dict):
        raise node.mark.error("a mapping with the keys of a sweep", Verbatim("something else"))
    if "scenario" not in node.value and ("workload" in node.value or "extends" in node.value):
        raise node.mark.error(Verbatim(_scenario_text(source)))
    config = validate(SweepConfig, node)
    own = [i for i, case in enumerate(config.cases or ()) if case.seed is not None]
    if own and config.seeds is not None:
        mark = node.value["cases"].value[own[0]].value["seed"].mark
        raise mark.error("seeds of cases, or `seeds` of the sweep, not both", field=f"cases.{own[0]}.seed")
    folder = Path() if path is None else path.parent
    base, base_dir = _base(node, folder, path or Path("sweep"))
    return _overridden(Sweep(config, node, folder, base, base_dir, None if path is None else str(path)), overrides)


def _overridden(sweep: Sweep, overrides: Overrides) -> Sweep:
    config, base = sweep.config, sweep.base
    paths = {*config.grid, *(path for group in config.zip for path in group),
             *(path for case in config.cases or () for path in case.set), *(["seed"] if _listed(config.seeds) else [])}
    given = overrides if isinstance(overrides, Mapping) else list(overrides)
    for override in given:
        key = override.partition("=")[0].strip().removesuffix("+")
        lost = next((p for p in sorted(paths) if f"{p}.".startswith(f"{key}.") or f"{key}.".startswith(f"{p}.")), None)
        if lost is not None:
            raise InputError(f"a path that the sweep leaves alone (it sets {lost})", key, field="--set")
    return replace(sweep, base=overridden(base, given, sweep.base_dir))


def _listed(seeds: object) -> bool:
    return isinstance(seeds, list)


def _scenario_text(source: object) -> str:
    return (f"{source} is a scenario; `hermes run {source}` runs it, and a sweep of it is a file with "
            f"`scenario: {source}` and a `grid`")


def _find(source: str | Path) -> Path:
    path, builtin = Path(source), builtin_sweeps()
    looks_like_file = isinstance(source, Path) or path.suffix in SUFFIXES
    if str(source) in builtin and not (looks_like_file and path.is_file()):
        return builtin[str(source)]
    if not path.is_file() and str(source) in builtin_scenarios():
        raise InputError(Verbatim(_scenario_text(source)))
    if not looks_like_file and not path.is_file():
        expected = f"a sweep's file or the name of a built-in one: {', '.join(builtin)}"
        raise InputError(expected, str(source), suggestion=suggest(source, builtin))
    return path


def _base(node: Node, folder: Path, path: Path) -> tuple[Node, Path]:
    """Return the document of the scenario of all points, and the folder of its paths."""
    said = node.value["scenario"]
    if isinstance(said.value, dict):
        return extended(Node(dict(said.value), said.mark, said.key), path), folder
    file, builtin = folder / said.value, builtin_scenarios()
    try:
        found = file if file.is_file() else builtin.get(said.value)
    except (OSError, ValueError):   # a name that is too long, or has a null byte
        found = None
    if found is None:
        expected = "the path of a scenario, relative to the sweep, or the name of a built-in one"
        raise said.mark.error(expected, said.value, field="scenario", suggestion=suggest(said.value, builtin))
    return load_document(found), found.parent
