"""Figures fitted to the times of requests come back as they were."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hermes.api import simulate
from hermes.calibration.fit.request_phases import phases_of
from hermes.calibration.fit.requests import NAMES, Figures, client_of, fit_requests, overrides_of
from hermes.cli import app
from hermes.errors import InputError
from hermes.results.compare.reference import Reference, guess_mapping, load_reference
from hermes.scenario import load_scenario
from hermes.scenario.build import build

HIDDEN = {"adjust": {"prompts": 1.4, "decodes": 0.8, "fixed": "2 ms"},
          "frontend": {"before": "12 ms", "after": "1.5 ms", "per_prompt_token": "5 us"}}
TRUE = Figures(0.0135, 5e-6, 0.002, 0.0, 1.4, 0.8)


def scenario(rate: float = 12.0, lengths: dict[str, Any] | None = None, **client: Any) -> dict[str, Any]:
    return {
        "name": "server", "seed": 3,
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": lengths or {"kind": "empirical", "profile": "azure-conv-2023"},
                     "ends": "max_new_tokens"},   # as load drivers ask
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", **client}],
    }


def observed(folder: Path, **more: Any) -> Reference:
    path = folder / "observed.csv"
    rows = simulate(scenario(**more, **HIDDEN)).requests
    rows[["request", "arrival_s", "ttft_s", "e2e_s", "prompt_tokens", "output_tokens"]].to_csv(path, index=False)
    return load_reference(path, guess_mapping(path))


def predicted(figures: Figures, rate: float) -> Any:
    client = client_of(load_scenario(scenario()))
    return simulate(scenario(rate), overrides=overrides_of(figures, client)).requests


@pytest.mark.feature("Measuring and fitting", "`hermes calibrate from-requests`, key `adjust` of a client")
@pytest.mark.long
@pytest.mark.parametrize("rate", [4.0, 12.0])
def test_fitted_at_one_rate_predicts_another(tmp_path: Path, rate: float) -> None:
    found = fit_requests(load_scenario(scenario(rate)), observed(tmp_path, rate=rate))
    assert found.settled
    assert found.figures.prompts == pytest.approx(1.4, rel=0.03)
    assert found.figures.front_end_s == pytest.approx(0.0135, rel=0.05)
    f = found.figures
    one, eight = (f.fixed_s + f.per_seq_s * n + f.decodes * 0.0069 for n in (1, 8))
    assert one == pytest.approx(0.002 + 0.8 * 0.0069, rel=0.05)   # of a decode; its parts are by_name less well
    assert eight == pytest.approx(0.002 + 0.8 * 0.0069, rel=0.05)
    for other in (2.0, 12.0, 20.0):
        true, ours = simulate(scenario(other, **HIDDEN)).requests, predicted(found.figures, other)
        before = simulate(scenario(other)).requests
        for column, limit in (("ttft_s", 0.06), ("tpot_s", 0.04), ("e2e_s", 0.04)):
            error = ours[column].mean() / true[column].mean() - 1.0
            assert abs(error) < limit, (other, column, error)
            assert abs(before[column].mean() / true[column].mean() - 1.0) > 0.1, "nothing was to be found"


def test_what_the_requests_do_not_tell_stays(tmp_path: Path) -> None:
    alike = {"kind": "fixed", "prompt": 500, "output": 40}   # one length: a token's time is not by_name from a prompt's
    found = fit_requests(load_scenario(scenario(4.0, alike)), observed(tmp_path, rate=4.0, lengths=alike))
    by_name = {each.name: each for each in found.ranges}
    assert not all(each.identified for each in found.ranges)
    for name, each in by_name.items():
        if not each.identified:
            assert each.value == getattr(found.start, name)


@pytest.mark.long
def test_a_factor_that_comes_out_0_is_kept_and_named(tmp_path: Path) -> None:
    """Answers that take as long whatever the server did: no figure of a step explains them."""
    seen = observed(tmp_path)
    seen = replace(seen, columns={**seen.columns, "e2e": seen.columns["ttft"] + 0.4})
    found = fit_requests(load_scenario(scenario()), seen)
    assert found.figures.prompts == found.figures.decodes == 1.0
    assert {one.name for one in found.ranges if not one.identified} >= {"prompts", "decodes"}


@pytest.mark.long
def test_steps_without_any_time_are_fitted(tmp_path: Path) -> None:
    nothing = {"adjust": {"prompts": 0.0, "decodes": 1.0}}
    found = fit_requests(load_scenario(scenario(**nothing)), observed(tmp_path))
    assert found.figures.prompts == pytest.approx(1.4, rel=0.1)


def test_the_phases_are_the_simulated_times() -> None:
    simulation = build(load_scenario(scenario(20.0, **HIDDEN)))
    record = simulation.run()
    phases = phases_of(record, simulation.clients[0].hardware, 0.012, 5e-6)   # type: ignore[attr-defined]
    assert len(phases.request) == 300
    rest, first = phases.rest @ TRUE.array(), phases.first @ TRUE.array()
    assert rest == pytest.approx(phases.rest_s, rel=1e-3)
    idle = first < phases.ttft_s * (1 - 1e-3)   # the first step of an idle engine takes 3.5 ms more
    assert (phases.ttft_s - first)[idle] == pytest.approx(0.0035, abs=0.001)
    assert first[~idle] == pytest.approx(phases.ttft_s[~idle], rel=2e-3)


@pytest.mark.long
def test_on_a_part_of_the_requests(tmp_path: Path) -> None:
    found = fit_requests(load_scenario(scenario()), observed(tmp_path), use=lambda numbers: numbers % 3 > 0)
    assert found.requests == 200
    assert found.figures.prompts == pytest.approx(1.4, rel=0.05)


def test_several_kinds_of_clients_are_refused(tmp_path: Path) -> None:
    two = scenario()
    two["clients"] = [{**two["clients"][0], "name": "a", "role": "prefill"}, {**two["clients"][0], "role": "decode"}]
    with pytest.raises(InputError, match="one kind of LLM client"):
        fit_requests(load_scenario(two), observed(tmp_path))


def test_figures_have_a_name_each() -> None:
    assert len(NAMES) == len(TRUE.array())


@pytest.mark.long
def test_the_command_writes_the_fitted_scenario(tmp_path: Path) -> None:
    observed(tmp_path)
    path, fitted = tmp_path / "server.yaml", tmp_path / "out" / "fitted.yaml"
    path.write_text(yaml.safe_dump(scenario()))
    call = ["calibrate", "from-requests", str(tmp_path / "observed.csv"), str(path), "-o", str(fitted)]
    done = CliRunner().invoke(app(), [*call, "--json"])
    assert done.exit_code == 0, done.output
    adjust = load_scenario(fitted).clients[0].adjust
    assert adjust.prompts == pytest.approx(1.4, rel=0.03)
    data = json.loads(done.output)
    assert data["held_out_requests"] == 100
    errors = [abs(row["after_s"] / row["observed_s"] - 1) for row in data["held_out"] if row["statistic"] == "mean"]
    before = [abs(row["before_s"] / row["observed_s"] - 1) for row in data["held_out"] if row["statistic"] == "mean"]
    assert max(errors) < 0.04
    assert min(before) > 0.1
    by_name = CliRunner().invoke(app(), ["explain", str(fitted), "--decodes", "4"])
    assert "adjust" in by_name.output


@pytest.mark.long
def test_the_command_prints_what_it_found(tmp_path: Path) -> None:
    observed(tmp_path)
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario()))
    done = CliRunner().invoke(app(), ["calibrate", "from-requests", str(tmp_path / "observed.csv"), str(path), "-o",
                                      str(tmp_path / "fitted.yaml")])
    assert done.exit_code == 0, done.output
    assert "100 requests held out" in done.output
    assert "each sequence of a step" in done.output


@pytest.mark.long
def test_requests_of_another_scenario_are_refused(tmp_path: Path) -> None:
    observed(tmp_path, rate=4.0)
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario()))
    call = [sys.executable, "-m", "hermes", "calibrate", "from-requests", str(tmp_path / "observed.csv"), str(path),
            "-o", str(tmp_path / "fitted.yaml")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "not the same requests" in done.stderr
    assert not (tmp_path / "fitted.yaml").exists()
