"""Cases: a mutated file, the command that reads it, and a check that the command understood the file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fuzzing import traces
from fuzzing.contents import read_yaml
from fuzzing.inputs import SCENARIOS, SWEEP, profile_inputs
from fuzzing.mutations import ELSEWHERE, TEXT_MUTATIONS, TREE_MUTATIONS, Path_
from hermes.config.yaml_document import parse_yaml
from hermes.explore import load_sweep
from hermes.units import parse_bandwidth, parse_bytes, parse_duration, parse_rate

__all__ = ["Case", "difference", "generate"]

SHARES = {"scenario": 0.46, "sweep": 0.1, "trace": 0.22, "profile": 0.22}


@dataclass
class Case:
    """A mutated file.

    Args:
        path: The file.
        field: The changed field, if the mutation changed one.
        understood: Returns the content as hermes understood it.
    """

    family: str
    mutation: str
    path: Path
    command: list[str]
    field: Path_ | None
    understood: Callable[[str], Any] = field(repr=False)
    written: Callable[[], Any] = field(repr=False)

    def named_in(self, line: str) -> bool:
        """Whether an error names the file, and the changed field or the one around it."""
        if ELSEWHERE in line:  # the mutation made it refer to another file, which has the mistake
            return True
        if self.mutation == "missing" and "user-" in line:   # the user of the file notices what is not there
            return True
        if self.mutation == "missing" and self.path.name in line:   # what referred to it is to blame now
            return True
        if self.family == "sweep" and ": point " in line:   # the scenario of a point, which the keys are set in
            return self.path.name in line
        if "allow_mismatch" in line:   # another model or card than the hardware was measured with
            return self.path.name in line
        keys = [str(key) for key in self.field or () if isinstance(key, str)][-2:]
        if "user-" in line and any(key in line for key in keys):   # a name in the file that its user cannot find
            return True
        keys += [key.partition(".")[0] for key in keys]   # a sweep key is a path: the mistake may be in its first part
        return self.path.name in line and (not keys or any(key in line for key in keys))

    def ignored(self, output: str) -> str | None:
        """Return the written values that hermes did not understand, or None."""
        return difference(self.written(), self.understood(output))


def difference(written: Any, shown: Any, place: str = "") -> str | None:
    """Return the first item of `written` that is missing in `shown`; items only in `shown` are defaults."""
    if isinstance(written, dict) and isinstance(shown, list) and len(shown) == 1:
        shown = shown[0]  # one workload in place of a list of them
    if isinstance(written, dict) and isinstance(shown, dict):
        for key, value in written.items():
            if key not in shown:
                return f"{place}.{key} is not there"
            if found := difference(value, shown[key], f"{place}.{key}"):
                return found
        return None
    if isinstance(written, list) and isinstance(shown, list | tuple):
        if len(written) != len(shown):
            return f"{place}: {len(written)} items became {len(shown)}"
        return next(filter(None, (difference(*pair, f"{place}.{i}") for i, pair in
                                  enumerate(zip(written, shown, strict=True)))), None)
    return None if _equal(written, shown) else f"{place}: {written!r} became {shown!r}"


def _equal(written: Any, shown: Any) -> bool:
    if isinstance(shown, int | float) and not isinstance(shown, bool):
        values = [written] if isinstance(written, int | float) and not isinstance(written, bool) else []
        if isinstance(written, str):
            for parse in (parse_duration, parse_bytes, parse_bandwidth, parse_rate):
                try:
                    values.append(parse(written))
                except ValueError:
                    continue
        return any(math.isclose(value, shown, rel_tol=1e-12) for value in values)
    return (type(written) is type(shown) and bool(written == shown)) or str(written) == shown


def generate(number: int, rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yield `number` cases in the order of their families, equal for equal generators."""
    makers = {"scenario": _scenario, "sweep": _sweep, "trace": traces_case, "profile": _profile}
    made = 0
    for family, share in SHARES.items():
        last = family == list(SHARES)[-1]
        for _ in range(number - made if last else round(share * number)):
            made += 1
            yield makers[family](made, rng, folder)


def _mutated(source: bytes, rng: random.Random) -> tuple[str, bytes, Path_ | None]:
    """(mutation, new text, field) of a YAML document."""
    if rng.random() < 0.7:
        mutation = rng.choice(TREE_MUTATIONS)
        tree, changed = mutation(read_yaml(source), rng)
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode()
        return mutation.__name__, text, changed
    damage = rng.choice(TEXT_MUTATIONS)
    return damage.__name__, damage(source, rng), None


def _yaml(path: Path) -> Any:
    tree = parse_yaml(path.read_text(encoding="utf-8-sig")).plain()
    tree.pop("extends", None)
    return tree


def _scenario(number: int, rng: random.Random, folder: Path) -> Case:
    path = folder / f"scenario-{number}.yaml"
    if rng.random() < 0.06:
        mutation, text, changed = "cyclic_extends", _extends(path, rng), None
    else:
        mutation, text, changed = _mutated(rng.choice(SCENARIOS), rng)
    path.write_bytes(text)
    return Case(
        "scenario", mutation, path, ["validate", str(path), "--resolved"], changed,
        understood=lambda output: parse_yaml(output).plain(), written=lambda: _yaml(path),
    )


def _sweep(number: int, rng: random.Random, folder: Path) -> Case:
    path = folder / f"sweep-{number}.yaml"
    mutation, text, changed = _mutated(SWEEP, rng)
    path.write_bytes(text)
    return Case(
        "sweep", mutation, path, ["sweep", str(path), "--dry-run", "--workers", "0"], changed,
        understood=lambda output: load_sweep(path).config.model_dump(), written=lambda: _yaml(path),
    )


def _extends(path: Path, rng: random.Random) -> bytes:
    """A scenario that extends itself, another that extends it, or a missing one."""
    other = path.with_suffix(".base.yaml")
    other.write_text(f"extends: {path.name}\n")
    target = rng.choice([path.name, other.name, "missing.yaml", "[a, b]", "7", ".", ELSEWHERE, "''"])
    return f"extends: {target}\n".encode() + rng.choice(SCENARIOS)


def _profile(number: int, rng: random.Random, folder: Path) -> Case:
    profile = rng.choice(profile_inputs())
    path = folder / f"{profile.name}-{number}.yaml"
    mutation, text, changed = _mutated(profile.text, rng)
    path.write_bytes(text)
    user = folder / f"user-{number}.yaml"
    user.write_text(profile.scenario(path.name))
    return Case(
        "profile", mutation, path, ["validate", str(user), "--resolved"], changed,
        understood=lambda output: profile.load(path).model_dump(mode="json"), written=lambda: _yaml(path),
    )


def traces_case(number: int, rng: random.Random, folder: Path) -> Case:
    trace = traces.mutated(number, rng, folder)
    return Case(
        "trace", trace.mutation, trace.path, trace.command, None,
        understood=lambda output: trace.understood(), written=trace.written,
    )
