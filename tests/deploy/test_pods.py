"""How pods end and are probed, as keys of a fleet, and back.

The rule of the drain is that of vLLM's pull requests 36666 (without `--shutdown-timeout` SIGTERM aborts what runs, with
it the engine goes on for so long) and 43208 (`terminationGracePeriodSeconds` >= preStop sleep + `--shutdown-timeout`).
"""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from hermes.config.yaml_document import parse_yaml
from hermes.deploy.engine_scenario import read_source
from hermes.deploy.manifests import manifest_text
from hermes.deploy.pods import Container, Life
from hermes.deploy.typed import read
from hermes.errors import InputError
from hermes.scenario import load_scenario

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "kubernetes" / "deployment-v1.json").read_text())


def life(container: str, grace: int | None = None) -> Life:
    return Life(read(Container, parse_yaml(container)), grace)


@pytest.mark.feature("Results, sweeps, studies", "Grace periods, preStop hooks and probes of manifests, and back")
@pytest.mark.parametrize(("grace", "sleep", "timeout", "aborts", "drain"), [
    (130, 15, 100, True, {"pre_stop": 15, "grace": 115}),   # the engine's own limit: 15 + 100
    (60, 15, 100, True, {"pre_stop": 15, "grace": 60}),     # SIGKILL comes first
    (130, 15, 0, True, {"pre_stop": 15, "grace": 15}),      # SIGTERM aborts what runs
    (130, None, 0, True, {"grace": 0.001}),                 # at once
    (None, None, 20, True, {"grace": 20}),
    (None, 45, 20, True, {"pre_stop": 30}),                 # Kubernetes' 30 s cut the sleep, which is Drain's default
    (0, 5, 20, True, {"grace": 0.001}),                     # no grace at all
    (130, 15, 0, False, {"pre_stop": 15, "grace": 130}),    # an engine that finishes
    (None, None, 0, True, {}),                              # nothing is said
])
def test_the_end_of_a_pod(grace: int | None, sleep: int | None, timeout: int, aborts: bool, drain: dict) -> None:
    hook = "{}" if sleep is None else f"{{lifecycle: {{preStop: {{sleep: {{seconds: {sleep}}}}}}}}}"
    assert life(hook, grace).fleet(timeout, aborts=aborts)[0] == ({"drain": drain} if drain else {})


@pytest.mark.parametrize(("command", "seconds"), [
    ("[sleep, '20']", 20), ("[/bin/sh, -c, sleep 20]", 20), ("[sh, -c, 'kill 1']", None)])
def test_a_hook_that_sleeps(command: str, seconds: int | None) -> None:
    found, notes = life(f"{{lifecycle: {{preStop: {{exec: {{command: {command}}}}}}}}}", 60).fleet(0, aborts=False)
    assert found["drain"].get("pre_stop") == seconds
    assert any("its command is not read" in note for note in notes) == (seconds is None)


def test_probes() -> None:
    text = """
    readinessProbe: {periodSeconds: 10, timeoutSeconds: 4, initialDelaySeconds: 90}
    livenessProbe: {failureThreshold: 6, terminationGracePeriodSeconds: 5}
    startupProbe: {initialDelaySeconds: 7, periodSeconds: 3, failureThreshold: 11}
    """
    found, notes = life(text).fleet(0, aborts=True)
    assert found == {"probe": {"timeout": 4}, "liveness": {"period": 10, "timeout": 1, "failures": 6, "grace": 5}}
    assert "more than 40 s is killed there" in notes[0]   # 7 + 3 x 11
    assert "within 90 s of its start" in notes[1]


LOAD = {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 1, "output": 1}}
FLEET = {"start": 2, "start_up": {"kind": "phases"}, "drain": {"pre_stop": 10, "grace": 70},
         "probe": {"period": 4, "failures": 2}, "liveness": {"period": 20, "grace": 9}}


@pytest.mark.parametrize("kind", ["llm-d", "dynamo"])
@pytest.mark.parametrize("drain", [{"pre_stop": 10, "grace": 70}, {"grace": 0.001}, {"pre_stop": 5, "grace": 5}])
def test_a_fleet_comes_back(kind: str, drain: dict) -> None:
    scenario = load_scenario({
        "workload": LOAD, "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "count": 2, "fleet": {
            **FLEET, "drain": drain}}]})
    text = manifest_text(kind, scenario)
    [client] = read_source(text, "x.yaml", device="h100-sxm", engine=None, model=None).clients
    fleet = load_scenario({"workload": scenario.workload[0].model_dump(), "clients": [client]}).clients[0].fleet
    wanted = scenario.clients[0].fleet
    assert fleet.drain == wanted.drain
    if kind == "llm-d":   # Dynamo's operator has probes of its own
        assert (fleet.probe, fleet.liveness) == (wanted.probe, wanted.liveness)
        deployment = next(yaml.safe_load_all(text))
        schema = {**SCHEMA, "$ref": "#/$defs/io.k8s.api.apps.v1.Deployment"}
        jsonschema.Draft202012Validator(schema).validate(deployment)


def test_what_a_pod_cannot_say_is_named() -> None:
    scenario = load_scenario({
        "workload": LOAD, "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "fleet": {
            **FLEET, "start": 1, "probe": {"period": 0.5}}}]})
    with pytest.raises(InputError, match=r"clients\.0\.fleet\.probe\.period: expected a whole number"):
        manifest_text("llm-d", scenario)
