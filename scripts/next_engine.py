"""Find which rules moved in a version of vLLM that HERMES does not know yet: record it, replay it, compare sources.

    python scripts/next_engine.py PYTHON [--against PYTHON] [--mixtures 60] [--seed 1] [--out DIR] [--lines]

PYTHON is an interpreter that has the new version. Its own scheduler serves (1) the cases of
scripts/vllm-schedules/versions.json, (2) the requests of every other committed recording, (3) random mixtures of
settings, of drafts with adapters and intervals of prefills, of conversations with drafts, and of all that together, as
many synchronous as asynchronous. Each is replayed with the rules of that version, or of the newest known.
The command prints, for each feature, how many replays are identical, and for each recording that is not the first step
that differs: what the engine scheduled, and what HERMES would have. Then it lists fields of the engine's configurations
that have no answer (hermes/schedulers/vllm_fields.py).

`--against` names an interpreter (or a folder of the package) with a version whose rules are known: where the functions
that the rules come from differ between the two is printed as `file:line` (scripts/engine_sources.py; `--lines` shows
the lines). `--out` writes the mixtures as recordings. Exit code 1 if a replay differs, or a field has no answer.
docs/reference/engines.md says what to do then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine_matrix import CASES, asked, recording
from engine_sources import package, report
from record_vllm_schedules import read_cases
from schedule_mixtures import DRAFTED, joined, mixtures, talks

from evidence.schedules.vllm_replay import RecordedSchedule, find_files, replay
from hermes.clients.schedule_rows import compared
from hermes.deploy.engine_conform import ask
from hermes.errors import HermesError
from hermes.hardware.descriptions.engines import NEWEST_ENGINE, EngineDescription, load_engine
from hermes.schedulers.vllm_fields import ANSWERS

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "data" / "vllm-schedules"
OTHERS = ("given", "recorded", "recorded-options", "async", "fields", "aborts")   # besides those of versions.json
DRAWN = ("mixtures", "drafted", "talks", "joined")   # features that are drawn at random
KEPT = ("case", "seed", "counts", "empty_steps", "engine", "engine_version", "steps")   # no settings


def plans(count: int, seed: int) -> list[tuple[str, Row]]:
    """Return (feature, recording without steps) of all that the engine is asked. count: Mixtures of each kind."""
    features = {case["case"]: case["feature"] for case in json.loads(CASES.read_text())}
    found = [(features[plan["case"]], plan) for plan in read_cases(CASES, "*")]
    for folder in OTHERS:
        for path in find_files([RECORDED / folder]):
            data = json.loads(path.read_text(encoding="utf-8"))
            settings = {name: value for name, value in data.items() if name not in KEPT}
            found.append((folder, {"case": f"{folder}/{path.stem}", "seed": "", **settings}))
    found += [("mixtures", plan) for asynchronous in (False, True)
              for plan in mixtures(count, seed, asynchronous=asynchronous)]
    found += [("drafted", plan) for asynchronous in (False, True)
              for plan in mixtures(count // 3, seed, asynchronous=asynchronous, parts=DRAFTED)]
    found += [("talks", plan) for asynchronous in (False, True)
              for plan in talks(count // 3, seed, asynchronous=asynchronous)]
    found += [("joined", plan) for asynchronous in (False, True)
              for plan in joined(count // 3, seed, asynchronous=asynchronous, host=False)]
    return found


def rules_of(version: str) -> EngineDescription:
    """Return the description of a version, or of the newest known one if there is none."""
    try:
        return load_engine(f"vllm-{version}")
    except HermesError:
        return load_engine(NEWEST_ENGINE)


def name_of(plan: Row) -> str:
    return f"{plan['case']}-{plan['seed']}" if plan["seed"] != "" else plan["case"]


def differences(plan: Row, engine: EngineDescription, steps: list[Row]) -> list[Row | None]:
    """Return the first step that differs of the replay in runs and of the one step by step, None for identical ones."""
    recorded = RecordedSchedule.model_validate(recording(plan, [engine.version], steps))
    return [compared(steps, replay(recorded, engine, every_step=every_step), "engine")[1]
            for every_step in (False, True)]


def replayed(asked_for: Iterable[tuple[str, Row]], answers: Iterable[Row], engine: EngineDescription) -> bool:
    """Print the table of features and the recordings that differ; return whether all are identical."""
    cells: dict[str, list[bool]] = {}
    wrong: list[str] = []
    for (feature, plan), answer in zip(asked_for, answers, strict=True):
        cell = cells.setdefault(feature, [])
        if "steps" not in answer:
            cell.append(False)
            wrong.append(f"{feature}: {name_of(plan)}: the engine answers: {answer['error']}")
            continue
        found = differences(plan, engine, answer["steps"])
        cell += [difference is None for difference in found]
        first = next((difference for difference in found if difference is not None), None)
        if first is not None:
            wrong.append(f"{feature}: {name_of(plan)}: step {first['step']}\n"
                         f"    engine: {json.dumps(first['engine'])}\n    hermes: {json.dumps(first['hermes'])}")
    for feature, cell in cells.items():
        print(f"{feature:20}{sum(cell):6} of {len(cell)}")
    print("\n".join(wrong))
    return not wrong


def new_fields(python: str) -> list[str]:
    """Return the fields of the engine's configurations that have no answer."""
    script = Path(__file__).with_name("vllm_config_fields.py")
    printed = subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout
    fields = json.loads(printed.splitlines()[-1])
    return [f"{kind}.{name}" for kind, answers in ANSWERS.items() for name in fields[kind] if name not in answers]


def write(asked_for: Iterable[tuple[str, Row]], answers: Iterable[Row], version: str, folder: Path) -> None:
    """Write what was drawn at random as recordings."""
    folder.mkdir(parents=True, exist_ok=True)
    for (feature, plan), answer in zip(asked_for, answers, strict=True):
        if feature in DRAWN and "steps" in answer:
            text = json.dumps(recording(plan, [version], answer["steps"]), separators=(",", ":"))
            (folder / f"{name_of(plan)}@{version}.json").write_text(text + "\n", encoding="utf-8")


def main(*args: str) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--against")
    parser.add_argument("--mixtures", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lines", action="store_true")
    given = parser.parse_args(args)
    asked_for = plans(given.mixtures, given.seed)
    version, answers = ask(given.python, [asked(plan) for _feature, plan in asked_for])
    engine = rules_of(version)
    print(f"vllm {version}, replayed with the rules of {engine.name}")
    same = replayed(asked_for, answers, engine)
    missing = new_fields(given.python)
    print("\n".join(f"no answer for {name}" for name in missing))
    if given.out is not None:
        write(asked_for, answers, version, given.out)
    if given.against is not None:
        print("\n".join(report(package(given.against), package(given.python), lines=given.lines)))
    return 0 if same and not missing else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
