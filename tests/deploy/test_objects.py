"""Objects of clusters as parts of a scenario, and back. The objects are made after the documentation of llm-d, the
Gateway API, Kubernetes and KEDA."""

from pathlib import Path

import pytest

from hermes.config.yaml_writer import to_yaml
from hermes.deploy.objects import with_parts
from hermes.deploy.objects_read import parts_of
from hermes.deploy.objects_write import picker_of, route_of
from hermes.errors import InputError
from hermes.fleet.gateway import GatewayConfig
from hermes.routing.llm_d import LlmDConfig
from hermes.scenario import load_scenario

DATA = Path(__file__).parents[1] / "data/objects"


def read(name: str) -> dict:
    return parts_of((DATA / name).read_text(), name)


def test_a_picker_and_a_route() -> None:
    parts = read("epp.yaml")
    scorers = {name: weight for name, weight in parts["router"]["scorers"].items() if weight}
    assert scorers == {"queue": 2, "kv": 2, "prefix": 3}
    assert parts["gateway"] == {"timeout": 300, "per_try": 90, "retries": 2, "backoff": 0.1, "max_backoff": 1}


def test_prefill_and_decode() -> None:
    router = read("pd.yaml")["router"]
    assert router["load_threshold"] == 100
    assert router["disaggregation"] == {"uncached": 512}
    assert (router["scorers"]["load_aware"], router["scorers"]["prefix"]) == (1, 2)


def test_autoscalers() -> None:
    hpa, keda = read("hpa.yaml")["autoscaler"], read("keda.yaml")["autoscaler"]
    assert [(m["metric"], m["type"], m["target"]) for m in hpa["metrics"]] == [
        ("running", "pods", 40), ("waiting", "external", 0.5)]
    assert hpa["scale_up"] == {"pods": 2, "period": 60}
    assert hpa["scale_down"] == {"window": 120}
    assert (hpa["min"], hpa["max"]) == (2, 4)
    assert keda["triggers"] == [{"metric": "waiting", "target": 5, "activation": 1}]
    assert (keda["min"], keda["max"], keda["polling"], keda["cooldown"]) == (1, 4, 15, 360)


@pytest.mark.parametrize(("name", "scenario"), [
    ("epp.yaml", "quickstart"), ("pd.yaml", "quickstart"), ("hpa.yaml", "operations/hour"),
    ("keda.yaml", "operations/hour")])
def test_a_scenario_with_them_is_valid(name: str, scenario: str) -> None:
    document = with_parts(scenario, read(name), None)
    assert load_scenario(document).name == scenario.split("/")[-1]


def test_an_autoscaler_needs_a_fleet() -> None:
    with pytest.raises(InputError, match="fleet: an autoscaler needs `fleet`"):
        with_parts("quickstart", read("hpa.yaml"), None)


@pytest.mark.parametrize("name", ["epp.yaml", "pd.yaml"])
def test_a_router_comes_back(name: str) -> None:
    router = LlmDConfig.model_validate(read(name)["router"])
    again = parts_of(to_yaml(picker_of(router)), None)["router"]
    assert LlmDConfig.model_validate(again) == router


@pytest.mark.parametrize("keys", [
    {}, {"timeout": 0.25}, {"per_try": 61.5, "timeout": 90}, {"retries": 3},
    {"retries": 1, "backoff": 1, "max_backoff": 10}])
def test_a_gateway_comes_back(keys: dict) -> None:
    gateway = GatewayConfig.model_validate(keys)
    assert GatewayConfig.model_validate(parts_of(to_yaml(route_of(gateway)), None)["gateway"]) == gateway


@pytest.mark.parametrize(("name", "old", "new"), [
    ("pd.yaml", "autoTune: true", "autoTune: true, blockSizeTokens: 16, lruCapacityPerServer: 31250"),
    ("pd.yaml", "autoTune: true", "maxPrefixBlocksToMatch: 2048, maxPrefixTokensToMatch: 131072, blockSize: 64"),
    ("pd.yaml", "{pluginRef: load}", "{pluginRef: load, weight: 1}"),
    ("epp.yaml", "name: chat}]\n", "name: chat, weight: 1}]\n      matches: [{path: {type: PathPrefix, value: /}}]\n"),
    ("keda.yaml", '{model_name="chat"}', '{model_name="chat", namespace="a"}'),
])
def test_what_says_what_is_simulated(name: str, old: str, new: str) -> None:
    text = (DATA / name).read_text()
    assert old in text
    assert parts_of(text.replace(old, new), name) == parts_of(text, name)


def test_a_service_can_be_described() -> None:
    text = (DATA / "hpa.yaml").read_text().replace(
        "type: Pods\n      pods:\n", "type: Object\n      object:\n        describedObject: {kind: Service, name: a}\n")
    metric = parts_of(text, None)["autoscaler"]["metrics"][0]
    assert (metric["type"], metric["average"], metric["target"]) == ("object", True, 40)


def test_a_decider_without_tokens_never_splits() -> None:
    text = (DATA / "pd.yaml").read_text().replace(", parameters: {nonCachedTokens: 512}", "")
    assert parts_of(text, None)["router"]["disaggregation"] == {"uncached": 0}


@pytest.mark.parametrize(("name", "old", "new", "told"), [
    ("epp.yaml", "plugins:\n  - type: queue", "flowControl: {maxBytes: 1}\nplugins:\n  - type: queue",
     "epp.yaml:3:1: flowControl: is not read from objects; remove it, and write gateway.flow_control"),
    ("epp.yaml", "type: queue-scorer", "type: token-load-scorer",
     "plugins.0.type: 'token-load-scorer' is not modelled"),
    ("epp.yaml", "pluginRef: queue-scorer", "pluginRef: queue", "schedulingProfiles.0.plugins.0.pluginRef"),
    ("epp.yaml", "weight: 3", "weight: -3", "a number from 0 on"),
    ("epp.yaml", "1m30s", "90 s", "a duration such as 10s"),
    ("epp.yaml", "attempts: 2, ", "", "spec.rules.0.retry.attempts: is missing"),
    ("hpa.yaml", "autoscaling/v2", "autoscaling/v1", "hpa.yaml:1:13: apiVersion: expected one of autoscaling/v2"),
    ("keda.yaml", "apiVersion: keda.sh/v1alpha1\n", "", "apiVersion: is missing"),
    ("epp.yaml", "kind: HTTPRoute", "kind: Service", "expected one of EndpointPickerConfig"),
    ("pd.yaml", "autoTune: true", "autoTune: false", "plugins.0.parameters.autoTune"),
    ("pd.yaml", "autoTune: true", "blockSize: 65", "plugins.0.parameters.blockSize: expected 1 to 64"),
    ("pd.yaml", "autoTune: true", "lruCapacityPerServer: 41000",
     "plugins.0.parameters.lruCapacityPerServer: expected 31250"),
    ("pd.yaml", "autoTune: true", "maxPrefixBlocksToMatch: 256",
     "plugins.0.parameters.maxPrefixBlocksToMatch: expected 2048"),
    ("pd.yaml", "autoTune: true", "maxPrefixTokensToMatch: 16384",
     "plugins.0.parameters.maxPrefixTokensToMatch: expected 131072"),
    ("pd.yaml", "autoTune: true", "matchLengthWeight: 0.3", "parameters.matchLengthWeight: is not modelled"),
    ("pd.yaml", "{pluginRef: prefill-filter}, ", "",
     "schedulingProfiles.0.plugins: expected the plugin prefill-filter"),
    ("pd.yaml", "{pluginRef: decode-filter}", "{pluginRef: prefill-filter}",
     "schedulingProfiles.1.plugins: expected the plugin decode-filter"),
    ("pd.yaml", "type: max-score-picker", "type: single-profile-handler", "plugins: expected one profile handler"),
    ("epp.yaml", "type: max-score-picker", "{type: decode-filter, name: max-score-picker}",
     "schedulingProfiles.0.plugins.3.pluginRef: decode-filter without a handler"),
    ("epp.yaml", "name: chat}]\n", "name: chat}, {name: other, weight: 1}]\n",
     "spec.rules.0.backendRefs.1: a second backend"),
    ("epp.yaml", "name: chat}]\n", "name: chat, weight: 0}]\n", "spec.rules.0.backendRefs.0.weight"),
    ("epp.yaml", "name: chat}]\n", "name: chat}]\n      matches: [{headers: [{name: tier, value: gold}]}]\n",
     "spec.rules.0.matches.0.headers: is not modelled"),
    ("epp.yaml", "name: chat}]\n",
     "name: chat}]\n      matches: [{path: {value: /v1}}, {path: {value: /v2}}]\n",
     "spec.rules.0.matches.1: differs from the first match"),
    ("epp.yaml", "backoff: 100ms}\n", "backoff: 100ms}\n    - timeouts: {request: 1s}\n",
     "spec.rules.1: differs from the first rule"),
    ("hpa.yaml", "{name: vllm_num_requests_waiting}", "{name: vllm_num_requests_waiting, selector: {}}",
     "spec.metrics.1.external.metric.selector: is not modelled"),
    ("hpa.yaml", "        target: {type: A", "        describedObject: {kind: Node}\n        target: {type: A",
     "spec.metrics.0.pods.describedObject: is not modelled"),
    ("hpa.yaml", "type: Pods\n      pods:\n",
     "type: Object\n      object:\n        describedObject: {kind: Deployment, name: chat}\n",
     "spec.metrics.0.object.describedObject.kind: expected one of Service, InferencePool"),
    ("hpa.yaml", 'type: AverageValue, averageValue: "40"', 'type: Value, value: "40"',
     "spec.metrics.0.pods.target.type: expected one of AverageValue"),
    ("hpa.yaml", "type: AverageValue, averageValue: 500m", "type: Value, averageValue: 500m",
     "spec.metrics.1.external.target: expected type and value"),
    ("hpa.yaml", "type: AverageValue, averageValue: 500m", "averageValue: 500m",
     "spec.metrics.1.external.target.type: is missing"),
    ("keda.yaml", '{model_name="chat"}', '{pod=~"chat-.*"}', "a sum over all replicas"),
    ("pd.yaml", "  - name: decode", "  - name: other", "profiles prefill and decode"),
    ("hpa.yaml", "selectPolicy: Max", "selectPolicy: Min", "spec.behavior.scaleDown.selectPolicy"),
    ("hpa.yaml", "vllm_num_requests_running", "cpu", "spec.metrics.0.pods.metric.name"),
    ("keda.yaml", "query: sum(", "query: avg(", "spec.triggers.0.metadata.query"),
    ("keda.yaml", "maxReplicaCount: 4", "fallback: {replicas: 2}", "spec.fallback: is not modelled"),
])
def test_what_is_refused(name: str, old: str, new: str, told: str) -> None:
    text = (DATA / name).read_text()
    assert old in text
    with pytest.raises(InputError) as caught:
        parts_of(text.replace(old, new, 1), name)
    assert told in str(caught.value)
    assert name in str(caught.value)


def test_a_scenario_without_a_router_keeps_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("workload: {requests: 4, arrivals: {kind: poisson, rate: 1 /s}, "
                    "lengths: {kind: fixed, prompt: 9, output: 2}}\n"
                    "clients: [{model: llama-3.1-70b, device: h100-sxm, parallel: {tp: 4}}]\n")
    document = with_parts(str(path), read("epp.yaml"), None)
    assert document["workload"]["requests"] == 4
    assert document["router"]["kind"] == "llm_d"
