"""The defaults behind the answers of `hermes size` and `hermes sweep`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hermes
from hermes.cli import main
from hermes.config.yaml_writer import to_yaml
from hermes.explore import assumed, run_sweep
from hermes.explore.assumed import assumes_of_best, assumes_of_first_point
from hermes.explore.size import size
from hermes.results.assumes import LISTED, assumed_lines, changes_between, decides, headlines
from hermes.scenario import load_scenario
from hermes.scenario.assumptions import assumptions

QUESTION = {
    "seed": 1, "slo": {"ttft": "1 s", "tpot": "50 ms"}, "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}],
    "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 5.0},
                 "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
}


@pytest.mark.long
def test_alternatives_of_the_best_layout_are_simulated() -> None:
    sizing = size(QUESTION, devices=["h100-sxm"], tps=[1], layouts=["mixed"], workers=0)
    entries = {entry["name"]: entry for entry in assumes_of_best(sizing)}
    assert entries["engine time"]["method"] == "simulated"
    assert max(map(abs, entries["engine time"]["effect"].values())) >= LISTED
    document = sizing.settings(sizing.meets[0])
    before = hermes.simulate(document)
    one = next(one for one in assumptions(load_scenario(document)) if one.name == "engine time")
    assert sizing.run is not None
    assert headlines(sizing.run[1].summary) == headlines(before.summary)
    after = hermes.simulate(document, overrides=dict(one.settings))
    assert entries["engine time"]["effect"] == changes_between(headlines(before.summary), headlines(after.summary))


@pytest.mark.parametrize(("each", "most"), [(500, 240), (20_000, 6), (50_000, 3), (900_000, 3)])
def test_three_alternatives_are_simulated_at_least(each: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """120,000 rows of stages and runs of steps, or those of three simulations. `assumes_of` divides them, up to six."""
    given: list[float] = []
    monkeypatch.setattr(assumed, "assumes_of", lambda *_, rows: given.append(rows) or [])
    record = SimpleNamespace(runs={"client": range(each // 2)}, stages={"client": range(each - each // 2)})
    sizing = SimpleNamespace(run=(None, SimpleNamespace(record=record)))
    assert assumes_of_best(sizing) == []  # type: ignore[arg-type]  # a stand-in
    assert given[0] // each == most


@pytest.mark.thorough
def test_several_groups_print_the_block_of_all_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def load(name: str, model: str, rate: float) -> dict[str, Any]:
        return {"name": name, "model": model, "requests": 200, "arrivals": {"kind": "poisson", "rate": rate},
                "lengths": {"kind": "independent", "prompt": 500, "output": 60}}

    document = {"seed": 1, "slo": {"ttft": "1 s", "tpot": "60 ms"},
                "workload": [load("small", "llama-3.1-8b", 24), load("large", "qwen3-32b", 12)],
                "clients": [{"name": "router", "model": "llama-3.1-8b", "device": "h100-sxm"},
                            {"name": "main", "model": "qwen3-32b", "device": "h100-sxm", "parallel": {"tp": 2}}]}
    (tmp_path / "s.yaml").write_text(to_yaml(document))
    command = ["size", str(tmp_path / "s.yaml"), "--device", "h100-sxm", "--tp", "1,2", "--layout", "mixed",
               "--workers", "0", "--max-devices", "8"]
    assert main(command) == 0
    assert "\nassumes   " in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["assumes"]
    assert {entry["name"] for entry in entries} >= {"arrivals", "front end", "engine time"}
    assert any(entry["method"] == "simulated" and decides(entry) for entry in entries)


def test_a_sweep_prints_the_defaults_behind_its_first_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(to_yaml({
        "scenario": QUESTION, "grid": {"workload.arrivals.rate": [6.0, 8.0]}}))
    command = ["sweep", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "out"), "--workers", "0", "-q"]
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    first = hermes.simulate(QUESTION, overrides={"workload.arrivals.rate": 6.0}).summary["assumes"]
    lines = assumed_lines(first) or ["no default moves a headline by 5%"]
    assert all(f"assumes first point (workload.arrivals.rate=6.0): {line}" in said for line in lines)
    assert main([*command[:-1], "--dry-run", "-q"]) == 0
    assert "assumes" not in capsys.readouterr().out


def test_a_long_first_point_has_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"scenario": QUESTION, "grid": {"workload.requests": [50, 60]}}
    results = run_sweep(source, tmp_path / "out", workers=0)
    assert assumes_of_first_point(source, (), results)
    monkeypatch.setattr(assumed, "LARGEST", 0)
    assert assumes_of_first_point(source, (), results) == []
