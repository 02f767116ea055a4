"""What users have and a change of the code's shape must not move: resolved scenarios, scenario keys, small summaries,
refusals between options.

    python tests/test_frozen.py     writes tests/frozen anew

A change that is meant to move an answer or a key writes the folder anew, and its commit says what moved; the diff shows
it line by line. Every number in a summary is compared as printed, to the last digit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import hermes
from hermes.errors import InputError
from hermes.scenario import Scenario, load_scenario, resolved_yaml
from hermes.scenario.build import build

ROOT = Path(__file__).resolve().parents[1]
FROZEN = ROOT / "tests" / "frozen"
MOST_REQUESTS = 300
NOT_SCENARIOS = ("sweeps",)
UNSTEADY = ("assumes",)
"""Parts of a summary in words: they say what other runs would give."""


def shipped() -> list[str]:
    folder = ROOT / "scenarios"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")
                  if path.relative_to(folder).parts[0] not in NOT_SCENARIOS)


def loaded(name: str) -> Scenario:
    return load_scenario(ROOT / "scenarios" / f"{name}.yaml")


def small(scenario: Scenario) -> bool:
    counts = [load.requests for load in scenario.workload]
    return None not in counts and sum(count or 0 for count in counts) <= MOST_REQUESTS


def resolved(name: str) -> str:
    return resolved_yaml(loaded(name)).replace(str(ROOT), "ROOT")


SCHEMA = "import json; from hermes.scenario.editor_schema import json_schema; print(json.dumps(json_schema()))"


def keys() -> str:
    """Return every key of a scenario's mappings with what it takes, a line each, without its description. Asked in a
    process of its own, without other tests' plug-ins."""
    def plain(value: Any) -> Any:   # Any: JSON
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items() if "escription" not in name}
        return [plain(part) for part in value] if isinstance(value, list) else value

    schema = subprocess.run([sys.executable, "-c", SCHEMA], capture_output=True, text=True, check=True, cwd=ROOT)
    return "".join(f"{mapping}.{key}: {json.dumps(plain(taken), sort_keys=True)}\n"
                   for mapping, definition in sorted(json.loads(schema.stdout)["$defs"].items())
                   for key, taken in sorted(definition.get("properties", {}).items()))


def summary(name: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = hermes.simulate(loaded(name)).summary
    kept = {key: value for key, value in found.items() if key not in UNSTEADY}
    return json.dumps(kept, indent=1, sort_keys=True).replace(str(ROOT), "ROOT") + "\n"


def refusals() -> str:
    """Return every pair of options of the pair test that is refused, and the refusal, a line each; it checks them."""
    if (folder := str(ROOT / "tests" / "core")) not in sys.path:
        sys.path.append(folder)
    from engine_options import scenario_with
    from test_option_pairs import PAIRS

    lines = []
    for pair in PAIRS:
        try:
            build(load_scenario(scenario_with(*pair)))
        except InputError as error:
            lines.append(f"{pair[0].name} + {pair[1].name}: {error}\n")
    return "".join(lines)


def frozen() -> dict[str, str]:
    """Return the text of each frozen file."""
    files = {"keys.txt": keys(), "refusals.txt": refusals()}
    files |= {f"resolved/{name}.yaml": resolved(name) for name in shipped()}
    return files | {f"summaries/{name}.json": summary(name) for name in shipped() if small(loaded(name))}


def committed(kind: str) -> list[str]:
    folder = FROZEN / kind
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*") if path.is_file())


def test_scenario_keys_are_as_committed() -> None:
    assert keys().splitlines() == (FROZEN / "keys.txt").read_text().splitlines()


def test_every_shipped_scenario_is_frozen() -> None:
    assert shipped() == committed("resolved")
    assert [name for name in shipped() if small(loaded(name))] == committed("summaries")


def test_resolved_scenarios_are_as_committed() -> None:
    moved = [name for name in shipped() if resolved(name) != (FROZEN / "resolved" / f"{name}.yaml").read_text()]
    assert not moved, f"`python tests/test_frozen.py`, then look at the diff of {', '.join(moved)}"


@pytest.mark.long
@pytest.mark.parametrize("name", committed("summaries"))
def test_summaries_are_as_committed(name: str) -> None:
    assert summary(name).splitlines() == (FROZEN / "summaries" / f"{name}.json").read_text().splitlines()


if __name__ == "__main__":
    for place, text in frozen().items():
        target = FROZEN / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    sys.exit(0)
