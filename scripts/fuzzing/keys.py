"""Every key of the schema of scenarios, changed in a scenario that has its component.

`schema_keys` walks the schema that `hermes schema` prints, so that no new key is forgotten; `reached` finds the
components in shipped scenarios with few requests, and in scenarios.yaml for those that no shipped scenario has.
"""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from fuzzing.cases import Case
from fuzzing.inputs import SCENARIOS
from fuzzing.mutations import HUGE, NUMBERS_NOT, OTHERS, UNITS, Path_, at, mistyped
from fuzzing.outside import write_layers
from fuzzing.running import Ran, run_here
from hermes.config.yaml_document import parse_yaml
from hermes.scenario import load_scenario, resolved_yaml
from hermes.scenario.editor_schema import PART, json_schema

__all__ = ["UNREACHED", "KeyCase", "effect_case", "key_case", "reached", "schema_keys", "unseen"]

SHIPPED = ("pipelines/mixed", "studies/datastructures/hybrid", "studies/orthrus/fcfs", "studies/metis/base",
           "pipelines/prefix-tiers", "studies/telerag/kv-pressure", "studies/datastructures/shared-prompt",
           "validation/vllm-cpu", "studies/rag-placement/stream", "validation/vllm-0.19-rtx-pro-6000",
           "closed-loop-priority", "batching/static", "batching/mixed", "batching/continuous", "batching/disaggregated")
OWN = Path(__file__).with_name("scenarios.yaml")
UNREACHED = {
    "VllmConfig": "another interpreter with vLLM runs this scheduler; make conformance does",
    "Scenario.defaults": "written into resolved scenarios, and passed over",
}
"""Component or key that no scenario here has -> the reason."""
WORDS = ("llama-3.1-8b", "mistral-7b", "e5-base", "h100-sxm", "a100-80gb", "prompt + 10", "prompt", "8", "a", "llm",
         "answer", "azure-conv-2023", "nvlink", "nvlink-h100", "engine", "rack-{i}",
         "splitwise-2023-llama-2-70b-a100-tp8")
NUMBERS = (1, 2, 3, 0.5, 0.25, 0, 16, 100, 0.001, 1e6, 1e9)
MOST_TAKEN, MOST_TRIED = 24, 120
Key = tuple[str, str]
Schema = dict[str, Any]


@cache
def _definitions() -> dict[str, Schema]:
    return {name: what for name, what in json_schema()["$defs"].items() if not name.endswith(PART)}


@cache
def schema_keys() -> dict[Key, Schema]:
    """Return (component, key) -> its schema, except for the kinds that choose components."""
    return {(name, key): what for name, definition in _definitions().items()
            for key, what in definition.get("properties", {}).items() if "const" not in what}


@cache
def unseen() -> dict[str, str]:
    """Return the keys whose effect no result here shows -> the reason."""
    found = yaml.safe_load(Path(__file__).with_name("unseen.yaml").read_text())
    return {key: reason for reason, keys in found.items() for key in keys}


@dataclass(frozen=True, eq=False)
class Base:
    """A scenario to change, with every key written out. places: where it has which components."""

    path: Path
    tree: dict[str, Any]
    places: dict[str, list[Path_]]

    @cache  # noqa: B019  (bases live as long as the process)
    def answer(self) -> Ran:
        return run_here(_run(self.path)).without(self.path, "")


def _run(path: Path) -> list[str]:
    return ["run", str(path), "--json", "-q"]


@cache
def _bases(folder: Path) -> list[Base]:
    """Write all bases into a folder."""
    folder.mkdir()
    (folder / "layers").mkdir()
    write_layers(folder / "layers")
    made: list[Base] = []
    for place, source in enumerate([*SHIPPED, *SCENARIOS, *OWN.read_bytes().split(b"\n---\n")]):
        path = folder / f"base-{place}.yaml"
        if isinstance(source, bytes):
            path.write_bytes(source)
        scenario = load_scenario(source if isinstance(source, str) else str(path))
        fewer = [f"workload.{i}.requests=8" for i, one in enumerate(scenario.workload) if (one.requests or 0) > 20]
        scenario = load_scenario(scenario, fewer) if fewer else scenario
        path.write_text(resolved_yaml(scenario, to_dir=folder))
        places: dict[str, list[Path_]] = defaultdict(list)
        tree = json.loads(json.dumps(parse_yaml(path.read_text()).plain()))   # plain texts
        for where, component in _components(scenario, ()):
            if isinstance(_at(tree, where), dict):
                places[type(component).__name__].append(where)
        made.append(Base(path, tree, places))
    return made


def _at(tree: Any, path: Path_) -> Any:
    try:
        return at(tree, path)
    except (KeyError, IndexError, TypeError):   # not written out
        return None


def _components(value: Any, path: Path_) -> Iterator[tuple[Path_, BaseModel]]:
    if isinstance(value, BaseModel):
        yield path, value
        value = {name: getattr(value, name) for name in type(value).model_fields}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from _components(item, (*path, key))


@cache
def reached(folder: Path) -> dict[Key, list[tuple[Base, Path_]]]:
    """Return the bases and places that have each key's component; `folder` is made, and gets the bases."""
    found: dict[Key, list[tuple[Base, Path_]]] = {}
    for name, key in schema_keys():
        if not UNREACHED.keys() & {name, f"{name}.{key}"}:
            found[name, key] = [(base, place) for base in _bases(folder) for place in base.places.get(name, ())]
    return {key: places for key, places in found.items() if places}


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass
class KeyCase:
    """Other valid values of one key, of which one has to change the result.

    tries: (base, path of the key, value), in the order of the attempts
    """

    key: str
    path: Path
    tries: list[tuple[Base, Path_, Any]] = field(repr=False)
    family: str = "keys"
    mutation: str = "another"

    @property
    def unseen(self) -> str | None:
        """Why no result here shows the key."""
        return unseen().get(self.key)

    @property
    def command(self) -> list[str]:
        return _run(self.path)

    def attempts(self) -> Iterator[tuple[Ran, bool]]:
        """Yield (the answer, whether it differs from that of the unchanged scenario)."""
        taken = 0
        for base, path, value in self.tries[:MOST_TRIED]:
            _write(self.path, base, path, value)
            ran = run_here(self.command)
            yield ran, ran.without(self.path, "") != base.answer()
            taken += ran.code in (0, 1)
            if taken == (3 if self.unseen else MOST_TAKEN):
                return


def _write(file: Path, base: Base, path: Path_, value: Any, name: str | None = None) -> None:
    tree = copy.deepcopy(base.tree)
    parent = at(tree, path[:-1])
    if name is not None:
        del parent[path[-1]]
    parent[name or path[-1]] = value
    file.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def key_case(number: int, rng: random.Random, folder: Path) -> Case | KeyCase:
    """A mistake in one key, or (one in four) other values of one."""
    places = reached(folder)
    key = rng.choice(list(places))
    if rng.random() < 0.25:
        return effect_case(key, number, folder)
    base, place = rng.choice(places[key])
    path, old = (*place, key[1]), _at(base.tree, (*place, key[1]))
    file = folder / f"mistake-{number}.yaml"
    mutation, values = rng.choice([
        ("wrong_type", [value for value in OTHERS if type(value) is not type(old)]), ("null", [None]),
        ("bounds", [-1, 0, -0.5, 2, 1e12, -1e12]), ("not_a_number", NUMBERS_NOT), ("huge", HUGE), ("wrong_unit", UNITS),
        ("misspelt", [old]),
    ])
    name = mistyped(key[1], rng) if mutation == "misspelt" else None
    _write(file, base, path, rng.choice(values), name)
    return Case(
        "keys", mutation, file, ["validate", str(file), "--resolved"], (*place, name or key[1]),
        understood=lambda output: parse_yaml(output).plain(),
        written=lambda: parse_yaml(file.read_text()).plain())


def effect_case(key: Key, number: int, folder: Path) -> KeyCase:
    """Other values of a key in the first four places that have it, and in four other scenarios."""
    tries = []
    places = reached(folder)[key]
    elsewhere = {id(base): (base, place) for base, place in places[4:]}
    for base, place in [*places[:4], *list(elsewhere.values())[-4:]]:
        old = _at(base.tree, (*place, key[1]))
        values = _values(schema_keys()[key], old, folder)
        tries.append([(base, (*place, key[1]), value) for value in values if value != old])
    rows = [[one[i] for one in tries if i < len(one)] for i in range(max(map(len, tries)))]   # all places in turn
    return KeyCase(".".join(key), folder / f"another-{number}.yaml", [one for row in rows for one in row])


def _values(schema: Schema, old: Any, folder: Path) -> list[Any]:
    """Values that the schema of a key may allow."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        there = [at(base.tree, place) for base in _bases(folder) for place in base.places.get(name, ())][:3]
        return there or _values(_definitions()[name], old, folder)
    values = [value for option in ("anyOf", "oneOf", "allOf") for one in schema.get(option, ())
              for value in _values(one, old, folder)]
    values += schema.get("enum", [])
    kind = schema.get("type")
    if kind == "boolean":
        values += [True, False]
    elif kind in ("integer", "number"):
        nearby = [old * 2, old / 2, old + 1, old * 10] if isinstance(old, int | float) and old else []
        values += [round(value) if kind == "integer" else value for value in (*nearby, *NUMBERS)]
    elif kind == "string" and "enum" not in schema:
        values += WORDS
    elif kind == "array":
        items = _values(schema.get("items", {}), None, folder)[:12]
        values += [[], *([item] for item in items)]
        if isinstance(old, list) and old:
            inner = [[*old[:-1], value] for value in _values(schema.get("items", {}), old[-1], folder)[:12]]
            values += [old[:-1], [*old, old[-1]], [*reversed(old)], *inner]
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        inside = schema["additionalProperties"]
        values += [{name: value} for name in (old or {"a": 0}) for value in _values(inside, None, folder)[:12]]
        values.append({})
    elif kind == "null":
        values.append(None)
    return values
