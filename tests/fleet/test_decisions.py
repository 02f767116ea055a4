"""What real autoscalers decide: lines of their own code on drawn states, of which a part is in tests/data/decisions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from each import each
from outside import outside

from hermes.config import validate
from hermes.core.scraped import EngineLimits, EngineState, ForwardPass
from hermes.fleet.aibrix import AibrixAutoscaler
from hermes.fleet.apa import Apa
from hermes.fleet.autoscalers import Traffic
from hermes.fleet.dynamo_planner import DynamoPlanner, Planner
from hermes.fleet.dynamo_rules import by_threshold, uses
from hermes.fleet.kpa import Kpa
from hermes.fleet.wva_rules import Replica, Thresholds, Variant, analyse, targets

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "data" / "decisions"
PLANNER = os.environ.get("HERMES_DYNAMO_PYTHON")
S = 1_000_000_000
Line = dict[str, Any]


def lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def aibrix(line: Line) -> Any:
    kind: type[AibrixAutoscaler] = {"kpa": Kpa, "apa": Apa}[line["kind"]]
    decider = validate(kind, {"kind": line["kind"], "metric": "running", "target": line["target"], "min": line["min"],
                              "max": line["max"]}).decider()
    return [max(decider.asks(n * line["every_s"] * S, line["replicas"], values), 1)
            for n, values in enumerate(line["values"])]


def wva(line: Line) -> Any:
    found = analyse([Replica(one["kv"], one["queue"], one["variant"]) for one in line["replicas"]], Thresholds())
    variants = [Variant(one["name"], one["cost"], one["current"], one["desired"] or None, one["reporting"],
                        one["pending"]) for one in line["variants"]]
    return {"up": found.up, "down": found.down, "unsaturated": found.unsaturated, "targets": targets(found, variants)}


def engines(of: list[Line]) -> list[EngineState]:
    return [EngineState(ForwardPass(decode_tokens=one["decode_kv_tokens"]), one["queued_prefill_tokens"],
                        one["queued_decode_tokens"]) for one in of]


def dynamo(line: Line) -> Any:
    states = engines(line["engines"])
    return by_threshold(line["role"], line["target"], uses(line["role"], states, line["context_length"],
                                                           line["kv_tokens"]), len(states), line["min"])


class Group:
    """A view of a group without a simulation."""

    def __init__(self, line: Line, role: str) -> None:
        group = line["groups"][role]
        self.role = self.name = role
        self.devices, self._engines = group["devices"], engines(group["engines"])
        self.ready = len(self._engines)
        self.wanted = self.ready + group["starting"]
        self.limits = EngineLimits(line["kv_tokens"], line["context_length"], 2048, None)
        self.scaled: int | None = None

    def engines(self) -> list[EngineState]:
        return self._engines

    def traffic(self) -> Traffic:
        return Traffic(0, 0, 0)

    def scale(self, workers: int, reason: str) -> None:
        self.scaled = workers


def planner(line: Line) -> Any:
    """Two looks: the adapter around the planner's decisions gives starts up at the second one."""
    groups = [Group(line, role) for role in line["groups"]]
    config = validate(DynamoPlanner, {"kind": "dynamo_planner", "target": line["target"], "min_endpoint": line["min"],
                                      "max_gpu_budget": line["budget"]})
    made = Planner(config, groups)  # type: ignore[arg-type]
    for _ in range(2):
        made.tick(load=True, traffic=False)
    return {group.role: group.scaled for group in groups if group.scaled is not None}


def changes(line: Line) -> Line:
    """Return what changes by the decision of a line."""
    there = {role: len(group["engines"]) + group["starting"] for role, group in line["groups"].items()}
    return {role: workers for role, workers in (line["wanted"] or {}).items() if workers != there[role]}


WHOLE = {"aibrix": (aibrix, ("asked",)), "wva": (wva, ("up", "down", "unsaturated", "targets")),
         "dynamo-planner-1.6.1": (dynamo, ("wanted",))}


def differing(path: Path, name: str) -> list[Line]:
    decide, keys = WHOLE[name]
    wrong = []
    for line in lines(path):
        said = {key: line[key] for key in keys}
        if decide(line) != (said if len(keys) > 1 else said[keys[0]]):
            wrong.append(line)
    return wrong


@each("name, count", [("aibrix", 40), ("wva", 150), ("dynamo-planner-1.6.1", 250)])
def test_decisions_in_the_checkout(name: str, count: int) -> None:
    path = KEPT / f"{name}.jsonl"
    assert len(lines(path)) == count
    assert differing(path, name) == []


@pytest.mark.parametrize("name", WHOLE)
def test_all_decisions(name: str) -> None:
    assert differing(outside(f"data/decisions/{name}.jsonl"), name) == []


def test_decisions_of_the_planner_with_starts_budgets_and_both_roles() -> None:
    kept = lines(KEPT / "planner-starts-1.6.1.jsonl")
    assert len(kept) == 200
    assert [line for line in kept if planner(line) != changes(line)] == []


@pytest.mark.skipif(not PLANNER, reason="HERMES_DYNAMO_PYTHON names no interpreter with ai-dynamo")
def test_fresh_decisions_of_the_planner() -> None:
    script = ROOT / "scripts" / "record_planner_decisions.py"
    seed = os.environ.get("HERMES_TEST_DRAW", "1")
    said = subprocess.run([PLANNER or sys.executable, script, seed, "3000"],
                          capture_output=True, text=True, check=True)
    fresh = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(fresh) == 3000
    assert [line for line in fresh if planner(line) != changes(line)] == []
