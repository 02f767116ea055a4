"""Load a scenario from a file, name, dict or object, and write it out resolved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.validation import validate
from hermes.config.yaml_document import Node, as_node
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, inside
from hermes.scenario.client_keys import write_out_splits
from hermes.scenario.loading import discreet, find_scenario, load_document, merge, moved_path, overridden
from hermes.scenario.schema import Scenario, Source
from hermes.units import parse_number

if TYPE_CHECKING:
    from hermes.hardware.base import HardwareModel

Overrides = Iterable[str] | Mapping[str, Any]
"""Settings of a scenario: texts such as `clients.0.count=4`, or a mapping of dotted paths to values."""

DEFAULTS = "defaults"
"""Key of a resolved scenario: the keys that hold defaults."""

__all__ = ["Overrides", "load_scenario", "resolved_yaml", "scenario_of", "warn_of_milliseconds", "with_settings"]

_LONGEST_S = {"tpot": 1.0, "ttft": 100.0}   # limits without a unit


def load_scenario(source: str | Path | Mapping[str, Any] | Scenario, overrides: Overrides = ()) -> Scenario:
    """Load and validate a scenario from a file, the name of a built-in one, a dict or a scenario.

    overrides: Changes, applied in order: `["clients.0.count=4"]`, or `{"clients.0.count": 4}`. Raises `InputError`
    with the position of the first error.
    """
    overrides = overrides if isinstance(overrides, Mapping) else list(overrides)
    if isinstance(source, Scenario):
        if not overrides:
            return source
        node, base_dir = as_node(source.model_dump()), source.source.base_dir
    elif isinstance(source, Mapping):
        node, base_dir = as_node(dict(source)), Path()
        extends = node.value.pop("extends", None)
        if extends is not None:
            node = merge(load_document(str(extends.value)), node)
            base_dir = find_scenario(str(extends.value)).parent
    else:
        node, base_dir = load_document(source), find_scenario(source).parent
    node = overridden(node, overrides, base_dir)
    scenario = scenario_of(node, base_dir)
    if not isinstance(source, Scenario):   # its numbers have lost their units
        warn_of_milliseconds(node)
    return scenario


def scenario_of(node: Node, base_dir: Path) -> Scenario:
    """Validate a document whose paths are relative to `base_dir`. Raises `InputError` as `load_scenario` does."""
    node = write_out_splits(node)
    defaults = _without_defaults(node)
    _import_plugins(node, base_dir)
    source = Source(node, base_dir, defaults)
    try:
        scenario = _completed(validate(Scenario, node), source)
    except InputError as error:
        found = source.located(error)
        raise (discreet(found, base_dir / "scenario") if _holds(node, found.file) else found) from None
    scenario._source = source
    return scenario


def with_settings(scenario: Scenario, settings: Mapping[str, Any]) -> Scenario:
    """Return the scenario that a scenario's document gives with other settings, by dotted path.

    Unlike `load_scenario` with overrides it fills in again what the document leaves out. Raises `InputError`.
    """
    source = scenario.source
    node = source.node if source.node is not None else as_node(scenario.model_dump())
    return scenario_of(overridden(node, settings, source.base_dir), source.base_dir)


def _without_defaults(node: Node) -> tuple[str, ...]:
    """Take `defaults` out of a resolved document: the keys that hold a default, not a choice."""
    found = node.value.pop(DEFAULTS, None) if isinstance(node.value, dict) else None
    if found is None:
        return ()
    paths = found.plain()
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise found.mark.error("a list of keys that hold defaults, such as [network]", paths, field=DEFAULTS)
    return tuple(paths)


def _holds(node: Node, file: str | None) -> bool:
    """Whether anything of the document is written in `file`."""
    value = node.value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return node.mark.file == file or any(_holds(item, file) for item in inner)


def _import_plugins(node: Node, base_dir: Path) -> None:
    """Import the plug-ins that the document lists. Validation reports a list that is malformed."""
    files = node.child("plugins")
    for item in files.value if files is not None and isinstance(files.value, list) else ():
        if isinstance(item.value, str) and item.value:
            from hermes.config.plugin_files import import_plugin

            import_plugin(base_dir / item.value)


def _completed(scenario: Scenario, source: Source) -> Scenario:
    """Return the scenario with the engines' defaults written into its clients.

    Groups that differ in nothing but their names share one hardware model, as the clients of a group do.
    """
    clients, sorts = [], _sorts(scenario)
    alike: dict[str, tuple[Any, HardwareModel | None]] = {}
    for i, (config, key) in enumerate(zip(scenario.clients, _keys(source.node, len(scenario.clients)), strict=True)):
        with inside(f"clients.{i}"):
            if sorts is not None:
                config = config.sampled(sorts)
            if key not in alike:
                alike[key] = config.completed(source.base_dir)
            first, hardware = alike[key]
            config = first if first.name == config.name else first.model_copy(update={"name": config.name})
        if hardware is not None:
            source.hardware[i] = hardware
        clients.append(config)
    return scenario.model_copy(update={"clients": clients})


def _keys(node: Node | None, count: int) -> list[str]:
    """Return a text for each group of clients, equal for groups that the document describes alike but for names."""
    place = None if node is None else node.child("clients")
    several = [] if place is None else place.value if isinstance(place.value, list) else [place]
    written = [one.plain() for one in several]
    if len(written) != count or not all(isinstance(one, dict) for one in written):
        return [str(number) for number in range(count)]
    return [repr({**one, "name": isinstance(one.get("name"), str)}) for one in written]


def _sorts(scenario: Scenario) -> bool | None:
    """Whether engines sort their vocabulary for the workloads' sampling; None where no workload decides it.

    vLLM sorts the whole batch if any request has a top-p.
    """
    said = {workload.sampling for workload in scenario.workload}
    if "top_p" in said:
        return True
    return False if said == {"greedy"} else None


def resolved_yaml(scenario: Scenario, header: str = "", to_dir: Path | None = None, *, defaults: bool = False) -> str:
    """Return the scenario as YAML with every default written out. It validates to the same scenario again.

    Args:
        to_dir: Folder in which the text will be stored; paths of files become relative to it.
        defaults: Name, under `defaults`, the keys that the scenario leaves out and that may decide an answer, so that
            a run of the text assumes what a run of the scenario does.
    """
    base_dir = scenario.source.base_dir

    def text(value: str) -> str:
        return value if to_dir is None else moved_path(value, base_dir, to_dir)

    found = to_yaml(scenario, header, text)
    left = [path for path in _may_decide(scenario) if not scenario.source.chosen(path)] if defaults else []
    return found + (f"{DEFAULTS}: [{', '.join(left)}]\n" if left else "")


_OF_A_GROUP = ("frontend", "adjust", "engine", "memory.utilization", "memory.prefix_caching")


def _may_decide(scenario: Scenario) -> list[str]:
    """Return the keys of `hermes.scenario.assumptions` that a resolved scenario writes out."""
    groups = [number for number, client in enumerate(scenario.clients) if client.serves_llm]
    return ["network", "router", *(f"clients.{number}.{key}" for number in groups for key in _OF_A_GROUP)]


def warn_of_milliseconds(root: Node) -> None:
    """Warn of latency limits without a unit that look like milliseconds: `slo: {tpot: 50}` is 50 seconds.

    The rule: a number above 1 for a TPOT or above 100 for a TTFT. E2E may be long, and a limit with a unit is meant as
    it stands.
    """
    slo = root.child("slo")
    for node, path, number in () if slo is None else _limits(slo, "slo"):
        node.mark.warn(f"{path} is read as {number:g} s; write `{number:g} ms` for milliseconds, or `{number:g} s`")


def _limits(node: Node, path: str) -> Iterator[tuple[Node, str, float]]:
    """Yield limits (node, dotted path, number) by that rule, those of pipelines and workloads included."""
    for key, child in node.value.items() if isinstance(node.value, dict) else ():
        longest = _LONGEST_S.get(key.removeprefix("baseline_"))
        if longest is None:
            yield from _limits(child, f"{path}.{key}")
            continue
        try:
            number = parse_number(child.value)
        except (TypeError, ValueError):   # it has a unit
            continue
        if longest < number < math.inf:
            yield child, f"{path}.{key}", number
