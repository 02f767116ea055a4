"""PlannerConfig of Dynamo as the autoscaler `dynamo_planner`. The files are made after Dynamo's documentation."""

from pathlib import Path
from typing import Any

import pytest

from hermes.config.yaml_writer import to_yaml
from hermes.deploy.objects import with_planner
from hermes.deploy.planner import planner_of
from hermes.errors import InputError
from hermes.fleet.dynamo_planner import DynamoPlanner
from hermes.scenario import load_scenario

DATA = Path(__file__).parents[1] / "data/planner"
GROUP = {"count": 2, "model": "llama-3.1-8b", "device": "h100-sxm", "fleet": {"start": 1, "start_up": {"total": 20}}}


def scenario(tmp_path: Path, *groups: dict[str, Any]) -> str:
    path = tmp_path / "planned.yaml"
    path.write_text(to_yaml({
        "workload": {"requests": 4, "arrivals": {"kind": "poisson", "rate": 5},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 8}}, "clients": list(groups)}))
    return str(path)


def read(name: str) -> Any:
    return planner_of((DATA / name).read_text(), name)


@pytest.mark.feature("Results, sweeps, studies", "`hermes import planner`: the configuration of Dynamo's planner")
def test_fields() -> None:
    found = read("sla.yaml")
    assert found.roles == ("prefill", "decode")
    assert DynamoPlanner.model_validate(found.autoscaler) == DynamoPlanner(
        target="sla", ttft=0.3, itl=0.0405, load_scaling=True, throughput_scaling=True, load_interval=10,
        throughput_interval=120, predictor="kalman", kalman_level=2, max_gpu_budget=6, sensitivity=70)
    assert found.notes == ["regressions trained before the deployment (pre_deployment_sweeping_mode) are not modelled: "
                           "they begin empty"]
    easy = read("easy.json")
    assert easy.roles == ("both",)
    assert DynamoPlanner.model_validate(easy.autoscaler) == DynamoPlanner(
        target="latency", max_gpu_budget=None, load_interval=7)


def test_what_is_left_out_is_as_in_dynamo() -> None:
    assert DynamoPlanner.model_validate(planner_of("{}", None).autoscaler) == DynamoPlanner()
    sla = DynamoPlanner.model_validate(
        planner_of('{"optimization_target": "sla", "load_predictor": "constant"}', None).autoscaler)
    assert (sla.ttft, sla.itl, sla.by_load, sla.by_traffic, sla.throughput_interval) == (0.5, 0.05, False, True, 180)


def test_two_groups_share_it(tmp_path: Path) -> None:
    groups = [GROUP | {"name": "p", "role": "prefill"}, GROUP | {"name": "d", "role": "decode"}]
    groups[1] = {**groups[1], "fleet": {**GROUP["fleet"], "autoscaler": {
        "kind": "hpa", "metrics": [{"metric": "running", "target": 4}]}}}
    built = load_scenario(with_planner(scenario(tmp_path, *groups), read("sla.yaml"), None))
    assert built.autoscalers[0].groups == ["p", "d"]
    assert built.autoscalers[0].autoscaler.max_gpu_budget == 6
    assert [group.fleet.autoscaler.kind for group in built.clients] == ["static", "static"]


def test_one_group_has_it(tmp_path: Path) -> None:
    built = load_scenario(with_planner(scenario(tmp_path, GROUP), read("easy.json"), None))
    assert built.clients[0].fleet.autoscaler.target == "latency"
    assert built.autoscalers == []


@pytest.mark.parametrize(("name", "groups", "told"), [
    ("sla.yaml", [GROUP], "one group of clients with `role: prefill`"),
    ("easy.json", [GROUP | {"name": "a"}, GROUP | {"name": "b"}], "one group of clients with `role: both`"),
    ("easy.json", [GROUP | {"fleet": None}], "dynamo_planner|fleet"),
    ("easy.json", [{key: value for key, value in GROUP.items() if key != "fleet"}],
     "clients.0.fleet: an autoscaler needs `fleet`"),
    ("easy.json", [GROUP | {"parallel": {"tp": 2}}], "decode_engine_num_gpu: expected 2, the devices of 'llm'"),
])
def test_groups_that_do_not_fit(name: str, groups: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        with_planner(scenario(tmp_path, *groups), read(name), None)
    assert any(text in str(caught.value) for text in told.split("|"))


@pytest.mark.parametrize(("name", "old", "new", "told"), [
    ("sla.yaml", "load_predictor: kalman\n", "", "load_predictor: arima, the default, is not modelled"),
    ("sla.yaml", "load_predictor: kalman", "load_predictor: prophet",
     "sla.yaml:10:17: load_predictor: expected one of constant, kalman"),
    ("sla.yaml", "ttft: 300", "ttft: 300\nttft_ms: 200", "ttft_ms: is a second name of a field"),
    ("sla.yaml", "ttft: 300", "ttft: fast", "ttft: expected a number"),
    ("sla.yaml", "ttft: 300", "advisory: true", "advisory: expected false, as simulated"),
    ("sla.yaml", "ttft: 300", "min_gpu_budget: 4", "min_gpu_budget: expected -1, as simulated"),
    ("sla.yaml", "ttft: 300", "environment: global-planner", "environment: expected kubernetes or virtual"),
    ("sla.yaml", "ttft: 300", "kalman_min_points: 3", "kalman_min_points: expected 5, as simulated"),
    ("sla.yaml", "ttft: 300", "load_predictor_log1p: true", "load_predictor_log1p: expected false"),
    ("sla.yaml", "ttft: 300", "load_predictor_warmup_trace: t.jsonl", "load_predictor_warmup_trace: expected null"),
    ("sla.yaml", "ttft: 300", "prefill_min_endpoint: 2", "sla.yaml:4:1: prefill_min_endpoint: is not modelled"),
    ("sla.yaml", "mode: disagg", "mode: both", "mode: expected one of disagg, prefill, decode, agg"),
    ("sla.yaml", "target: sla", "target: load", "optimization_target: expected one of throughput, latency, sla"),
    ("sla.yaml", "enable_load_scaling: true", "enable_load_scaling: 1", "enable_load_scaling: expected true or false"),
    ("sla.yaml", "max_gpu_budget: 6", "max_gpu_budget: all", "max_gpu_budget: expected a whole number"),
    ("sla.yaml", "min_endpoint: 1", "min_endpoint: 1.5", "min_endpoint: expected a whole number"),
    ("easy.json", '"mode"', '"no_such"', "no_such: is not modelled"),
])
def test_what_is_refused(name: str, old: str, new: str, told: str) -> None:
    text = (DATA / name).read_text()
    assert old in text
    with pytest.raises(InputError) as caught:
        planner_of(text.replace(old, new, 1), name)
    assert told in str(caught.value)
    assert name in str(caught.value)


def test_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="a PlannerConfig"):
        planner_of("- 1", "f.yaml")
