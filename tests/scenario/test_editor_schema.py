"""The JSON Schema that editors use accepts what hermes accepts, and marks what it refuses."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hermes.config.data_files import resource_dir
from hermes.config.yaml_document import load_yaml, parse_yaml
from hermes.explore import sweep_schema
from hermes.scenario import builtin_scenarios, builtin_sweeps, load_scenario, resolved_yaml
from hermes.scenario.editor_schema import json_schema


@pytest.fixture(scope="module")
def of_scenarios():
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def of_sweeps():
    schema = sweep_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.feature("Scenarios and commands", "JSON Schema for editors: `hermes schema`")
@pytest.mark.long
def test_every_shipped_file_is_accepted(of_scenarios, of_sweeps):
    """Also those that are only there to be extended."""
    sweeps = set(builtin_sweeps().values())
    files = sorted(resource_dir("scenarios").rglob("*.yaml"))
    assert len(files) >= len(builtin_scenarios()) + len(sweeps)
    refused = {path.name: error.message[:200] for path in files
               for error in (of_sweeps if path in sweeps else of_scenarios).iter_errors(load_yaml(path).plain())}
    assert not refused


@pytest.mark.parametrize("name", ["quickstart", "pipelines/fleet", "network/multi-rack"])
def test_a_resolved_scenario_is_accepted(of_scenarios, name):
    assert not list(of_scenarios.iter_errors(parse_yaml(resolved_yaml(load_scenario(name))).plain()))


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    data = json.loads(json.dumps(data))
    *keys, last = path.split(".")
    inner: Any = data
    for key in keys:
        inner = inner[int(key) if key.isdecimal() else key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(("path", "value"), [
    ("seeed", 3), ("workload", ...), ("workload.arrivals", ...), ("clients.0.hardware", "roofline"),
    ("workload.arrivals.rate", "4 furlongs"), ("workload.arrivals.rate", "4 GB"), ("router", {"load": "tokens_left"}),
    ("router.kind", "least_load"), ("network.bandwidth", "32 gb/s"), ("clients.0.kind", "ilm"),
    ("clients.0.hardware", {"profile": "splitwise-2023-llama-2-70b-h100-tp8"}), ("slo.ttft", "500 m"),
    ("slo.tfft", "500 ms"),
])
def test_a_mistake_is_marked(of_scenarios, small_data, path, value):
    assert not list(of_scenarios.iter_errors(small_data))
    assert list(of_scenarios.iter_errors(changed(small_data, path, value)))


@pytest.mark.parametrize(("over", "valid"), [
    ({"seed": 3}, True), ({"workload": {"requests": 9}}, True), ({"workload": {"arrivals": {"rate": "9 rps"}}}, True),
    ({"router": {"load": "kv_tokens"}}, True), ({"network": {"kind": "link", "latency": "2 us"}}, True),
    ({"seeed": 3}, False), ({"workload": {"request": 9}}, False), ({"workload": {"arrivals": {"rate": "x"}}}, False),
    ({"router": {"lod": "kv_tokens"}}, False), ({"router": {"kind": "least_loadd"}}, False),
])
def test_a_file_that_extends_another_may_leave_out_what_that_says(of_scenarios, over, valid):
    assert (not list(of_scenarios.iter_errors({"extends": "other.yaml", **over}))) is valid


@pytest.mark.parametrize(("sweep", "valid"), [
    ({"scenario": "quickstart", "grid": {"seed": [1, 2]}}, True), ({"scenario": {"extends": "quickstart"}}, True),
    ({"scenario": "quickstart", "zip": {"seed": [1, 2]}, "seeds": 3}, True), ({"grid": {"seed": [1]}}, False),
    ({"scenario": {"extends": "quickstart", "seeed": 3}}, False), ({"scenario": "quickstart", "grit": {}}, False),
])
def test_sweeps(of_sweeps, sweep, valid):
    assert (not list(of_sweeps.iter_errors(sweep))) is valid
