"""Simulate the scenarios of a JSON file and print a hash of each record: run by a test in processes of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import scenario_parts
from outcomes import digest, run


def digests(scenarios: list[dict[str, object]]) -> list[str]:
    return [digest(run(scenario).record) for scenario in scenarios]


if __name__ == "__main__":
    with scenario_parts.registered():
        print(json.dumps(digests(json.loads(Path(sys.argv[1]).read_text()))))
