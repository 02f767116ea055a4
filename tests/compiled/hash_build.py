"""Simulate the scenarios of a JSON file and print which build ran and a hash of each record, in a process of its own.

Each item is [scenario as a dict, or name of a built-in one; overrides].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "core"))

import scenario_parts
from outcomes import digest

from hermes.compiled import is_compiled
from hermes.dispatch.coordinator import Coordinator
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def hashes(jobs: list[tuple[dict[str, Any] | str, list[str]]]) -> list[str]:
    return [digest(build(load_scenario(scenario, overrides=overrides)).run()) for scenario, overrides in jobs]


if __name__ == "__main__":
    with scenario_parts.registered():
        print(json.dumps([is_compiled(Coordinator), hashes(json.loads(Path(sys.argv[1]).read_text()))]))
