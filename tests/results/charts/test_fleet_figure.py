"""The fleet figure: when routers chose a dead replica, the gateway's queue by tenant; a queue's maximum on a page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hermes.api import simulate
from hermes.cli import main
from hermes.config.yaml_document import parse_yaml
from hermes.results.charts import panel_spec
from hermes.results.charts.fleet_charts import CHOSEN, fleet_panels
from hermes.results.charts.gateway_charts import gateway_panels
from hermes.results.charts.report_page import runs_page
from hermes.results.charts.run_charts import _verdict, chart
from hermes.results.charts.time_charts import over_time
from hermes.results.plots import image
from hermes.results.results import Results

SCENARIO = """
workload:
  requests: 600
  arrivals: {kind: poisson, rate: 10}
  lengths: {kind: fixed, prompt: 200, output: 60}
  tenants: {values: [a, b], weights: [3, 1]}
clients:
  - name: llm
    count: 2
    memory: {num_blocks: 4000}
    hardware: {kind: polynomial, profile: llama-3.1-8b-h100-tp1-bf16}
    fleet: {start: 2, start_up: {total: 25 s}, crashes: [{at: 20 s, replica: 1}]}
gateway: {retries: 1, flow_control: {detector: {kind: concurrency, limit: 4}, ttl: 1 h}}
router: {kind: least_loaded, load: requests}
slo: {ttft: 1 s}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crash")
    (folder / "two-replicas.yaml").write_text(SCENARIO)
    return folder


@pytest.fixture(scope="module")
def crashed(folder: Path) -> Results:
    return simulate(folder / "two-replicas.yaml")


def test_the_time_in_which_a_dead_replica_is_chosen(crashed: Results) -> None:
    """From the crash at 20 s to the last attempt that failed there at once: less than the probes' 31 s later."""
    attempts = crashed.record.attempts
    at_once = (attempts["client"] == 1) & (attempts["start_ns"] >= 20e9) & (attempts["start_ns"] == attempts["end_ns"])
    last = attempts["start_ns"][at_once].max() / 1e9
    assert 20 < last <= 51
    for panel in fleet_panels([("crash", crashed)]):
        (span,) = [layer.frame for layer in panel.layers if layer.mark == "span"]
        assert span.to_numpy().tolist() == [[20.0, last, CHOSEN]]
        assert CHOSEN in panel.palette()
        spec = next(one for one in panel_spec(panel)["layer"] if one["mark"]["type"] == "rect")
        assert spec["mark"]["opacity"] == 0.3


def test_the_shade_is_as_long_as_what_the_summary_says_though_the_restart_has_phases() -> None:
    phases = "{process: 1, tokenizer: 1, weights: 50, compile: 1, profiling: 1, capture: 1}"
    text = SCENARIO.replace("{total: 25 s}", phases).replace("requests: 600", "requests: 300")
    made = simulate(parse_yaml(text.replace("at: 20", "at: 4").replace("retries: 1", "retries: 0")).plain())
    panel = fleet_panels([("crash", made)])[0]
    (shade,) = [layer.frame for layer in panel.layers if layer.mark == "span"]
    assert shade["x2"].max() - 4.0 == pytest.approx(made.summary["binds"]["dead"]["detection_s"])
    assert shade["x2"].max() > 6.0   # past the first phase


def test_without_a_crash_nothing_is_shaded() -> None:
    calm = SCENARIO.replace(", crashes: [{at: 20 s, replica: 1}]", "").replace("requests: 600", "requests: 60")
    made = fleet_panels([("calm", simulate(parse_yaml(calm).plain()))])
    assert not [layer for panel in made for layer in panel.layers if layer.mark == "span"]


def test_the_gateways_queue_is_in_the_fleet_figure_by_tenant(crashed: Results) -> None:
    made = chart([("crash", crashed)], "fleet")
    (queue,) = [panel for panel in made.panels if panel.title.startswith("Held by flow control: at most ")]
    assert queue.title == gateway_panels([("crash", crashed)], more=False)[0].title
    assert queue.x.domain == made.panels[0].x.domain
    names = [layer.frame["series"].iloc[0] for layer in queue.layers if layer.mark == "stack"]
    assert names == ["tenant a", "tenant b"]
    assert image(made, "png").startswith(b"\x89PNG")
    assert not [panel for panel in fleet_panels([("crash", crashed)]) if "Held" in panel.title]   # the page has it once


def test_a_queue_has_one_maximum_on_a_page(crashed: Results) -> None:
    page = runs_page([("crash", crashed)])
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    waits = [title for title in titles if re.search("wait at (clients|replicas)", title)]
    assert len(waits) == 1
    most = re.search(r"at most ([\d,]+) of llm", waits[0])
    assert most is not None
    assert f"<td>{most[1]} at " in page   # the table's longest queue
    (panel,) = over_time([("crash", crashed)], ["waiting"])
    line = next(layer.frame for layer in panel.layers if layer.mark == "line")
    assert line["y"].max() == int(most[1])   # the line has the instant of its maximum


def test_lines_are_never_below_0() -> None:
    """Requests that gave up, were shed, or still run at the horizon."""
    from hermes.config.yaml_document import parse_yaml

    cut = parse_yaml(SCENARIO.replace("requests: 600", "requests: 400\n  patience: {first_token: 0.2 s}")
                     + "horizon: 25 s\n").plain()
    found = simulate(cut)
    for panel in over_time([("cut", found)], ["system", "waiting", "replicas"]):
        for layer in panel.layers:
            if layer.mark == "line":
                assert np.asarray(layer.frame["y"]).min() >= 0


def test_a_scenario_without_a_name_has_that_of_its_file(crashed: Results, folder: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    assert crashed.meta["name"] == "two-replicas"
    call = ["run", str(folder / "two-replicas.yaml"), "--set", "workload.requests=20", "-q"]
    assert main(call) == 0
    assert "20 of two-replicas: all completed" in capsys.readouterr().out
    assert main([*call, "--set", "name=mine"]) == 0
    assert "20 of mine: all completed" in capsys.readouterr().out


def test_a_limit_that_the_answered_keep_is_missed_by_those_without_an_answer() -> None:
    assert [_verdict(*case) for case in ((True, False), (None, True), (False, True), (False, False))] == [
        "met", "met", "MISSED", "MISSED (no answer)"]
