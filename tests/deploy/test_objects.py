"""Objects of clusters as parts of a scenario, and back. The objects are made after the documentation of llm-d, the
Gateway API, Kubernetes and KEDA."""

from pathlib import Path

import pytest

from hermes.config.yaml_writer import to_yaml
from hermes.deploy.objects import objects_of, with_parts
from hermes.deploy.objects_read import read_objects
from hermes.deploy.objects_route import HTTPRoute
from hermes.deploy.objects_scale import HorizontalPodAutoscaler, ScaledObject
from hermes.deploy.picker_config import EndpointPickerConfig
from hermes.errors import InputError, InputWarning
from hermes.fleet.hpa import Hpa
from hermes.fleet.keda import Keda
from hermes.gateway.config import GatewayConfig
from hermes.gateway.flow_config import FlowControlConfig
from hermes.routing.llm_d import LlmDConfig
from hermes.scenario import load_scenario

DATA = Path(__file__).parents[1] / "data/objects"


def parts_of(text: str, file: str | None) -> dict:
    return read_objects(text, file).parts


def read(name: str) -> dict:
    return parts_of((DATA / name).read_text(), name)


@pytest.mark.feature("Results, sweeps, studies", "`hermes import objects`, `hermes export objects`")
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


def test_plugins_lie_beside_the_scenario_that_gets_the_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the scenario that is written elsewhere finds them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plug").mkdir()
    (tmp_path / "plug/mine.py").write_text("from pathlib import Path\nPath('ran').write_text('')\n")
    (tmp_path / "plug/s.yaml").write_text("extends: operations/hour\nplugins: [mine.py]\n")
    parts = {"autoscaler": Hpa(metrics=[{"metric": "running", "target": 5}]).model_dump(mode="json")}
    document = with_parts("plug/s.yaml", parts, Path("out/of.yaml"))
    assert (tmp_path / "ran").exists()
    assert document["plugins"] == ["../plug/mine.py"]


def test_the_scenarios_keys_that_the_objects_exclude_are_left_out_with_a_note() -> None:
    """operations/hour has a queue of its own; flow control takes its place."""
    with pytest.warns(InputWarning, match="gateway.queue: left out of the scenario, since the objects' flow_control"):
        document = with_parts("operations/hour", read("flow.yaml"), None)
    gateway = load_scenario(document).gateway
    assert gateway is not None
    assert (gateway.queue, gateway.retries) == (None, 2)
    assert gateway.flow_control is not None


def test_an_autoscaler_needs_a_fleet() -> None:
    with pytest.raises(InputError, match="fleet: an autoscaler needs `fleet`"):
        with_parts("quickstart", read("hpa.yaml"), None)


@pytest.mark.parametrize("name", ["epp.yaml", "pd.yaml", "flow.yaml"])
def test_a_router_comes_back(name: str) -> None:
    router = LlmDConfig.model_validate(read(name)["router"])
    again = parts_of(to_yaml(EndpointPickerConfig.of(router).written()), None)["router"]
    assert LlmDConfig.model_validate(again) == router


@pytest.mark.parametrize("keys", [
    {"picker": "random"}, {"picker": "weighted_random", "scorers": {"queue": 1, "kv": 0, "prefix": 0}},
    {"scorers": {"active_request": 1.5}, "idle_requests": 2, "busy_score": 0.5},
    {"scorers": {"no_hit_lru": 1, "precise_prefix": 0}, "no_hit_by": "caches"},
    {"scorers": {"no_hit_lru": 1, "precise_prefix": 2}, "no_hit_by": "caches", "precise_block": 32},
    {"scorers": {"session": 1}, "session_algorithm": "encoded_endpoint_header"},
    {"scorers": {"session": 1}, "session_ttl": 60}, {"session_pins": ["decode"], "session_ttl": 60},
    {"session_pins": ["prefill", "decode"], "disaggregation": {"uncached": 8}},
    {"prefix_index": {"block": 96, "capacity": 300, "most_tokens": None}}, {"prefix_index": {"most_tokens": 640}},
    {"disaggregation": {"uncached": 0, "always": True, "prefill": {"queue": 5}}},
])
def test_a_router_with_other_keys_comes_back(keys: dict) -> None:
    router = LlmDConfig.model_validate({"kind": "llm_d", **keys})
    again = LlmDConfig.model_validate(parts_of(to_yaml(EndpointPickerConfig.of(router).written()), None)["router"])
    assert again == (router if "precise_block" in keys or "no_hit_by" not in keys else router.model_copy(
        update={"precise_block": again.precise_block}))


def test_an_index_with_half_of_a_switch_has_no_picker() -> None:
    with pytest.raises(InputError, match=r"router\.prefix_index: `block` and `capacity` are one switch"):
        EndpointPickerConfig.of(LlmDConfig.model_validate({"kind": "llm_d", "prefix_index": {"block": 96}}))


@pytest.mark.parametrize("keys", [
    {}, {"timeout": 0.25}, {"per_try": 61.5, "timeout": 90}, {"retries": 3},
    {"retries": 1, "backoff": 1, "max_backoff": 10}])
def test_a_gateway_comes_back(keys: dict) -> None:
    gateway = GatewayConfig.model_validate(keys)
    assert GatewayConfig.model_validate(parts_of(to_yaml(HTTPRoute.of(gateway).written()), None)["gateway"]) == gateway


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


@pytest.mark.parametrize(("given", "index"), [
    ("autoTune: false", {"block": 64}), ("autoTune: false, blockSize: 65", {"block": 65}),
    ("autoTune: false, lruCapacityPerServer: 41000", {"block": 64, "capacity": 41000}),
    ("maxPrefixTokensToMatch: 16384", {"most_tokens": 16384}), ("maxPrefixBlocksToMatch: 256", None),
    ("maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 0", {"most_tokens": None}),
])
def test_the_index_of_sent_prompts(given: str, index: dict | None) -> None:
    text = (DATA / "pd.yaml").read_text().replace("autoTune: true", given)
    router = parts_of(text, None)["router"]
    assert router.get("prefix_index") == index
    written = not index or ("block" in index) == ("capacity" in index)
    again = parts_of(to_yaml(EndpointPickerConfig.of(LlmDConfig.model_validate(router)).written()), None)[
        "router"] if written else router
    assert again == {**router, "scorers": again["scorers"]}


def test_a_service_can_be_described() -> None:
    text = (DATA / "hpa.yaml").read_text().replace(
        "type: Pods\n      pods:\n", "type: Object\n      object:\n        describedObject: {kind: Service, name: a}\n")
    metric = parts_of(text, None)["autoscaler"]["metrics"][0]
    assert (metric["type"], metric["average"], metric["target"]) == ("object", True, 40)


def test_a_decider_without_tokens_never_splits() -> None:
    text = (DATA / "pd.yaml").read_text().replace(", parameters: {nonCachedTokens: 512}", "")
    assert parts_of(text, None)["router"]["disaggregation"] == {"uncached": 0}


# -- flow control ------------------------------------------------------------------------------------------------------

def test_flow_control() -> None:
    """The form of llm-d's guide: limits of the whole queue and of each band, a detector, fairness and order."""
    gateway = read("flow.yaml")["gateway"]
    flow = FlowControlConfig.model_validate(gateway["flow_control"])
    assert gateway["admission"] is None
    assert (flow.detector.kind, flow.detector.limit) == ("concurrency", 132)
    assert (flow.total, flow.total_bytes, flow.ttl, flow.max, flow.max_bytes) == (1000, 10 * 2**30, 90, 5000, 10**9)
    assert (flow.revoke.most, flow.revoke.below, flow.revoke.grace) == (2, 0, 0.01)
    found = {p: flow.rules_of(p) for p in (100, 0, -10, 7)}
    assert {p: rules.max for p, rules in found.items()} == {100: 500, 0: 200, -10: 5000, 7: 5000}
    assert {p: rules.ordering for p, rules in found.items()} == {100: "fcfs", 0: "edf", -10: "fcfs", 7: "fcfs"}
    assert [rules.fairness.kind for rules in found.values()] == [
        "round_robin", "global_strict", "least_attained_service", "global_strict"]
    assert found[-10].fairness.half_life == 30
    assert found[0].max_bytes == 64 * 2**20


GATED = "featureGates: [prepareDataPlugins, flowControl]"
DETECTOR = "{type: utilization-detector, parameters: {queueDepthThreshold: 9, metricsStalenessThreshold: 0.5s}}"


@pytest.mark.parametrize(("old", "new", "found"), [
    ("featureGates: [prepareDataPlugins]", GATED, {"detector": {"kind": "utilization"}}),
    ("featureGates: [prepareDataPlugins]", f"{GATED}\nsaturationDetector: {{kvCacheUtilThreshold: 0.7}}",
     {"detector": {"kind": "utilization", "kv": 0.7}}),
    ("featureGates: [prepareDataPlugins]\nplugins:\n",
     f"{GATED}\nsaturationDetector: {{pluginRef: utilization-detector}}\nplugins:\n  - {DETECTOR}\n",
     {"detector": {"kind": "utilization", "queue": 9, "stale": 0.5}}),
    ("featureGates: [prepareDataPlugins]", f"{GATED}\nflowControl: {{defaultPriorityBand: {{maxRequests: 0}}}}",
     {"detector": {"kind": "utilization"}, "max": 5000}),
])
def test_what_is_left_out_is_as_in_llm_d(old: str, new: str, found: dict) -> None:
    text = (DATA / "pd.yaml").read_text()
    assert old in text
    gateway = parts_of(text.replace(old, new), None)["gateway"]
    assert FlowControlConfig.model_validate(gateway["flow_control"]) == FlowControlConfig.model_validate(found)


def test_without_the_gate_a_detector_refuses() -> None:
    """llm-d refuses negative priorities where the pool is full, and asks the detector of `flowControl`."""
    text = (DATA / "flow.yaml").read_text()
    text = text[:text.index("flowControl:\n")].replace("[flowControl]", "[flowControl=false]")
    assert "gateway" not in parts_of(text, None)
    text += "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}\n"
    assert parts_of(text, None)["gateway"] == {
        "flow_control": None, "admission": {"detector": {"kind": "concurrency", "limit": 132}}}


@pytest.mark.parametrize("threshold", [1, 0.9])
def test_ceilings_are_of_the_scenario(threshold: float) -> None:
    text = (DATA / "flow.yaml").read_text()
    text = text.replace("  enableEviction", "  usageLimitPolicyPluginRef: fix\n  enableEviction").replace(
        "  - type: edf",
        f"  - {{type: static-usage-limit-policy, name: fix, parameters: {{threshold: {threshold}}}}}\n  - type: edf")
    if threshold == 1:
        assert parts_of(text, None) == read("flow.yaml")
        return
    with pytest.raises(InputError, match=r"plugins\.3\.parameters\.threshold: a ceiling other than 1 is a key"):
        parts_of(text, None)


def test_a_producer_of_the_load_is_the_other_detectors() -> None:
    text = (DATA / "flow.yaml").read_text().replace("  - type: edf", "  - type: inflight-load-producer\n  - type: edf")
    assert parts_of(text, None) == read("flow.yaml")
    with pytest.raises(InputError, match=r":8:\d+: plugins.3: inflight-load-producer corrects utilization-detector"):
        parts_of(text.replace("  saturationDetector: {pluginRef: concurrency-detector}\n", ""), "f")


TENANTS = {"name": "t", "workload": {
    "requests": 8, "arrivals": {"kind": "poisson", "rate": 5}, "lengths": {"kind": "fixed", "prompt": 64, "output": 8},
    "classes": {"values": ["gold", "batch"]}}, "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "count": 2}],
    "router": {"kind": "llm_d"}}
CLASSES = {"gold": {"priority": 100}, "batch": {"priority": -10, "ttft": 3}}


@pytest.mark.parametrize("rules", [
    {"flow_control": {}}, {"admission": {"detector": {"kind": "utilization", "queue": 3, "kv": 0.9, "stale": 1.5}}},
    {"flow_control": {"detector": {"kind": "concurrency", "limit": 7}, "revoke": {"grace": 0.01}, "total": 90,
                      "total_bytes": 12345678, "ttl": 0.123456789, "ordering": "slo_deadline"}},
    {"flow_control": {"fairness": {"kind": "least_attained_service", "service_weight": 0.5, "half_life": 7.5},
                      "revoke": {}, "bands": [{"priority": 100, "max": 4, "ordering": "edf"},
                                              {"priority": 3, "fairness": {"kind": "round_robin"}}]}}])
def test_flow_control_comes_back(rules: dict) -> None:
    scenario = load_scenario({**TENANTS, "gateway": {**rules, "classes": CLASSES}})
    objects, notes = objects_of(scenario)
    assert [one["kind"] for one in objects] == ["EndpointPickerConfig"]
    assert notes == ["gateway.classes.gold: its requests name an InferenceObjective of priority 100",
                     "gateway.classes.batch: its requests name an InferenceObjective of priority -10, and have a "
                     "header with the TTFT, 3000 ms"]
    again = parts_of(to_yaml(objects[0]), None)["gateway"]
    back = GatewayConfig.model_validate({**again, "classes": CLASSES})
    if back.flow_control is not None:
        assert [back.flow_control.rules_of(p) for p in (100, 3, 0, -10)] == [
            scenario.gateway.flow_control.rules_of(p) for p in (100, 3, 0, -10)]
    assert back.model_copy(update={"flow_control": None}) == scenario.gateway.model_copy(update={"flow_control": None})
    if back.flow_control is not None:
        assert back.flow_control.model_copy(update={"bands": []}) == scenario.gateway.flow_control.model_copy(
            update={"bands": []})


@pytest.mark.parametrize(("gateway", "told"), [
    ({"flow_control": {"cycle": 0.002}}, "gateway.flow_control.cycle: has no field"),
    ({"flow_control": {"detector": {"kind": "utilization", "queue": 2.5}}}, "detector.queue: expected a whole number"),
    ({"flow_control": {"detector": {"kind": "utilization", "scrape": 0.1}}}, "detector.scrape: has no field"),
    ({"flow_control": {"fairness": {"kind": "deficit_round_robin"}}}, "fairness.kind: expected one of global_strict"),
    ({"flow_control": {"revoke": {"most": 3}}}, "gateway.flow_control.revoke: has no fields"),
    ({"flow_control": {}, "classes": {**CLASSES, "gold": {"ttl": 3}}}, "gateway.classes.gold.ttl: has no field"),
    ({"flow_control": {}, "delay": 0.001}, "gateway.delay: has no field in an HTTPRoute"),
])
def test_what_a_picker_cannot_say_is_named(gateway: dict, told: str) -> None:
    scenario = load_scenario({**TENANTS, "gateway": {"classes": CLASSES, **gateway}})
    with pytest.raises(InputError) as caught:
        objects_of(scenario)
    assert told in str(caught.value)


def test_an_import_replaces_what_decides(tmp_path: Path) -> None:
    """Flow control takes the place of admission; a picker without the gate that of flow control."""
    path = tmp_path / "t.yaml"
    path.write_text(to_yaml({**TENANTS, "gateway": {"admission": {}, "classes": CLASSES}}))
    flow = with_parts(str(path), read("flow.yaml"), None)["gateway"]
    assert flow["flow_control"]["total"] == 1000
    assert flow["admission"] is None
    assert [*flow["classes"]] == ["gold", "batch"]
    path.write_text(to_yaml({**TENANTS, "gateway": {"flow_control": {"max": 3}, "classes": CLASSES}}))
    off = load_scenario(with_parts(str(path), {"router": read("pd.yaml")["router"] | {"disaggregation": None}}, None))
    assert off.gateway.flow_control is None
    assert off.gateway.admission.detector.queue == 5


# -- autoscalers back --------------------------------------------------------------------------------------------------

def scaled(autoscaler: dict) -> dict:
    """A scenario whose group of four has an autoscaler."""
    clients = [{"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm", "count": 4, "fleet": {
        "start": 1, "start_up": {"total": 30}, "autoscaler": autoscaler}}]
    return {**TENANTS, "workload": {**TENANTS["workload"], "classes": None}, "router": {"kind": "round_robin"},
            "clients": clients, "gateway": {"queue": {}}}


@pytest.mark.parametrize("autoscaler", [
    {"kind": "hpa", "metrics": [{"metric": "running", "target": 40}]},
    {"kind": "hpa", "metrics": [{"metric": "running", "target": 40}], "scale_up": {}},   # a behavior of defaults
    {"kind": "hpa", "metrics": [{"metric": "kv_use", "target": 0.725, "type": "external", "average": False},
                                {"metric": "waiting", "target": 2.5, "type": "object"}], "min": 2, "max": 3,
     "scale_up": {"pods": 2, "period": 60, "window": 30}, "scale_down": {"percent": 10, "window": 600}},
    {"kind": "keda", "triggers": [{"metric": "waiting", "target": 5}]},
    {"kind": "keda", "triggers": [{"metric": "queue", "target": 0.5}, {"metric": "kv_use", "target": 0.8,
                                                                        "activation": 0.125}],
     "min": 1, "max": 2, "idle": 0, "polling": 15, "cooldown": 60, "initial_cooldown": 20,
     "scale_down": {"pods": 1, "percent": 50, "period": 90}},
])
def test_an_autoscaler_comes_back(autoscaler: dict) -> None:
    scenario = load_scenario(scaled(autoscaler))
    config, writes = {"hpa": (Hpa, HorizontalPodAutoscaler), "keda": (Keda, ScaledObject)}[autoscaler["kind"]]
    made, notes = writes.of(scenario.clients[0].fleet.autoscaler, "t-llm", 4, "fleet.autoscaler")
    written = made.written()
    again = parts_of(to_yaml(written), None)["autoscaler"]
    assert config.model_validate(again) == config.model_validate({"max": 4, **autoscaler})
    config_of = written["spec"] if config is Hpa else written["spec"].get("advanced", {}).get(
        "horizontalPodAutoscalerConfig", {})
    assert ("behavior" in config_of) == ("scale_up" in autoscaler or "scale_down" in autoscaler)
    assert written["spec"]["scaleTargetRef"]["name"] == "t-llm"
    services = [each for each in autoscaler.get("metrics", ()) if each.get("type") == "object"]
    assert notes == (["fleet.autoscaler: serverAddress of the triggers is yours to write"] if config is Keda else [
        "fleet.autoscaler: the Service of metrics of type Object is yours to name"] * len(services))


def test_a_scenario_writes_its_autoscaler() -> None:
    document = scaled({"kind": "hpa", "metrics": [{"metric": "running", "target": 40}], "scrape": 5})
    del document["gateway"]
    objects, notes = objects_of(load_scenario(document))
    assert [one["kind"] for one in objects] == ["HorizontalPodAutoscaler"]
    assert objects[0]["metadata"] == {"name": "t-llm"}
    assert objects[0]["spec"]["maxReplicas"] == 4
    assert notes == ["clients.0.fleet.autoscaler.scrape: 5 is set elsewhere: the scrape interval of Prometheus"]
    other = scaled({"kind": "kpa", "metric": "running", "target": 3})
    del other["gateway"]
    other["router"] = {"kind": "llm_d"}
    objects, notes = objects_of(load_scenario(other))
    assert [one["kind"] for one in objects] == ["EndpointPickerConfig"]
    assert notes == ["clients.0.fleet.autoscaler: kpa has no object here"]


@pytest.mark.parametrize(("autoscaler", "told"), [
    ({"kind": "hpa", "metrics": [{"metric": "running", "target": 0.12345}]}, "metrics.0.target: expected whole thous"),
    ({"kind": "hpa", "metrics": [{"metric": "running", "target": 1}], "scale_up": {"window": 0.5}},
     "scale_up.window: expected a whole number"),
    ({"kind": "keda", "triggers": [{"metric": "waiting", "target": 1}], "min": 1, "polling": 7.5},
     "autoscaler.polling: expected a whole number"),
])
def test_what_an_autoscaler_cannot_say_is_named(autoscaler: dict, told: str) -> None:
    document = scaled(autoscaler)
    del document["gateway"]
    with pytest.raises(InputError) as caught:
        objects_of(load_scenario(document))
    assert told in str(caught.value)


@pytest.mark.parametrize(("name", "old", "new", "told"), [
    ("epp.yaml", "plugins:\n  - type: queue", "flowControl: {maxBytes: 1}\nplugins:\n  - type: queue",
     "epp.yaml:3:15: flowControl.maxBytes: counts with the feature gate alone; add flowControl to featureGates"),
    ("pd.yaml", "[prepareDataPlugins]", "[tokenizer]", "featureGates: expected prepareDataPlugins, dataLayer"),
    ("epp.yaml", "plugins:\n  - type", "status:\n  - type",
     "schedulingProfiles.0.plugins.0.pluginRef: expected one of those that there are, none"),
    ("flow.yaml", "maxBytes: 10Gi", "maxQueues: 3", "flow.yaml:18:3: flowControl.maxQueues: is not modelled"),
    ("flow.yaml", "maxRequests: 1k", "maxRequests: 1.5", "flowControl.maxRequests: expected a whole number up to"),
    ("flow.yaml", "maxRequests: 1k", "maxRequests: 1K", "flowControl.maxRequests: expected a quantity such as 10"),
    ("flow.yaml", "1m30s", "0s", "flowControl.defaultRequestTTL: 0s is no limit, which is not modelled"),
    ("flow.yaml", "1m30s", "90", "flowControl.defaultRequestTTL: expected a duration such as 60s"),
    ("flow.yaml", "1m30s", "1m30s\n  noEndpointRequestTTL: 5m",
     "flowControl.noEndpointRequestTTL: expected 90 s, as defaultRequestTTL"),
    ("flow.yaml", "enableEviction: true", "enableEviction: 1", "flowControl.enableEviction: expected true or false"),
    ("flow.yaml", "priority: 0", "priority: 100", "flowControl.priorityBands.1.priority: a second band"),
    ("flow.yaml", "priority: 0", "priority: low", "flowControl.priorityBands.1.priority: expected a whole number"),
    ("flow.yaml", "priority: 0,", "priority: 0, defaultRequestTTL: 3s,",
     "flowControl.priorityBands.1.defaultRequestTTL: is not modelled"),
    ("flow.yaml", "Ref: edf-ordering-policy", "Ref: edf",
     "flowControl.priorityBands.1.orderingPolicyRef: no plugin 'edf'; add it to `plugins`"),
    ("flow.yaml", "fairnessPolicyRef: round-robin-fairness-policy", "fairnessPolicyRef: queue-scorer",
     "priorityBands.0.fairnessPolicyRef: expected a plugin of the types global-strict-fairness-policy"),
    ("flow.yaml", "type: round-robin-fairness-policy", "type: vtc-fairness-policy",
     "plugins.2.type: 'vtc-fairness-policy' is not modelled"),
    ("flow.yaml", "strategy: las", "strategy: drr", "plugins.4.parameters.strategy: expected one of las"),
    ("flow.yaml", "lasHalfLifeSeconds: 30", "lasHalfLifeSeconds: 0",
     "plugins.4.parameters.lasHalfLifeSeconds: 0 takes lasDecayFactor"),
    ("flow.yaml", "lasHalfLifeSeconds: 30", "evictionTtlSeconds: 60",
     "plugins.4.parameters.evictionTtlSeconds: expected 3600 or more"),
    ("flow.yaml", "Mode: requests", "Mode: tokens", "plugins.5.parameters.concurrencyMode: expected one of requests"),
    ("flow.yaml", "maxConcurrency: 132", "maxConcurrency: 0", "plugins.5.parameters.maxConcurrency: expected a whole"),
    ("flow.yaml", "{pluginRef: queue-scorer, weight: 2}", "{pluginRef: concurrency-detector}",
     "schedulingProfiles.0.plugins.0.pluginRef: concurrency-detector as a filter of endpoints is not modelled"),
    ("flow.yaml", "  priorityBands:", "  defaultNegativePriorityBand: {maxRequests: 5}\n  priorityBands:",
     "flowControl.defaultNegativePriorityBand: differs from defaultPriorityBand"),
    ("flow.yaml", "  enableEviction: true", "  usageLimitPolicyPluginRef: least",
     "flowControl.usageLimitPolicyPluginRef: expected a plugin of the types static-usage-limit-policy"),
    ("flow.yaml", "saturationDetector: {pluginRef: concurrency-detector}", "saturationDetector: {pluginRef: gone}",
     "flowControl.saturationDetector.pluginRef: no plugin 'gone'"),
    ("epp.yaml", "plugins:\n",
     "saturationDetector: {queueDepthThreshold: 4, pluginRef: utilization-detector}\nplugins:\n",
     "saturationDetector.pluginRef: excludes thresholds"),
    ("flow.yaml", "  saturationDetector: {p", "  saturationDetector: {queueDepthThreshold: 4, p",
     "flowControl.saturationDetector.queueDepthThreshold: is not modelled"),
    ("epp.yaml", "type: queue-scorer", "type: token-load-scorer",
     "plugins.0.type: 'token-load-scorer' is not modelled"),
    ("epp.yaml", "pluginRef: queue-scorer", "pluginRef: queue", "schedulingProfiles.0.plugins.0.pluginRef"),
    ("epp.yaml", "weight: 3", "weight: -3", "a number from 0 on"),
    ("epp.yaml", "1m30s", "90 s", "a duration such as 10s"),
    ("epp.yaml", "attempts: 2, ", "", "spec.rules.0.retry.attempts: is missing"),
    ("hpa.yaml", "autoscaling/v2", "autoscaling/v1", "hpa.yaml:1:13: apiVersion: expected one of autoscaling/v2"),
    ("keda.yaml", "apiVersion: keda.sh/v1alpha1\n", "", "apiVersion: is missing"),
    ("epp.yaml", "kind: HTTPRoute", "kind: InferenceObjective", "expected one of EndpointPickerConfig"),
    ("hpa.yaml", "kind: HorizontalPodAutoscaler", "kind: Service", "expected one of EndpointPickerConfig"),
    ("pd.yaml", "autoTune: true", "autoTune: 1", "plugins.0.parameters.autoTune: expected true or false"),
    ("pd.yaml", "autoTune: true", "maxPrefixTokensToMatch: 1.5", "parameters.maxPrefixTokensToMatch: expected a whole"),
    ("pd.yaml", "autoTune: true", "prefixLengthWeight: 0.3", "parameters.prefixLengthWeight: a weight of the matched"),
    ("pd.yaml", "autoTune: true", "prefixMatchInfoProducerName: load",
     "parameters.prefixMatchInfoProducerName: expected the name of a plugin approx-prefix-cache-producer or"),
    ("pd.yaml", "{pluginRef: load}, {pluginRef: prefix-cache-scorer, weight: 2}]\n  - name", "]\n  - name",
     "schedulingProfiles: prefill or decode has no scorer"),
    ("pd.yaml", "autoTune: true", "matchLengthWeight: 0.3", "parameters.matchLengthWeight: is not modelled"),
    ("pd.yaml", "{pluginRef: prefill-filter}, ", "",
     "schedulingProfiles.0.plugins: expected the plugin prefill-filter"),
    ("pd.yaml", "{pluginRef: decode-filter}", "{pluginRef: prefill-filter}",
     "schedulingProfiles.1.plugins: expected the plugin decode-filter"),
    ("pd.yaml", "type: max-score-picker", "type: single-profile-handler", "plugins: expected one profile handler"),
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


@pytest.mark.parametrize(("plugin", "told"), [
    ("{type: load-aware-scorer, parameters: {threshold: 0}}",
     "f:4:53: plugins.0.parameters.threshold: expected a number of at least 1, found 0"),
    ("{type: active-request-scorer, parameters: {idleThreshold: 1.5}}",
     "plugins.0.parameters.idleThreshold: expected a whole number, found 1.5"),
    ("{type: precise-prefix-cache-scorer, parameters: {tokenProcessorConfig: {blockSize: 0}}}",
     "f:4:86: plugins.0.parameters.tokenProcessorConfig.blockSize: expected a number of at least 1, found 0"),
    ("{type: session-affinity-scorer, parameters: {strategy: session_id, evictionTtlSeconds: 0}}",
     "plugins.0.parameters.evictionTtlSeconds: expected a number greater than 0"),
    ("{type: queue-scorer}\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: 5000000}]}]",
     "f:5:42: schedulingProfiles.0.plugins.0: expected a number of at most 1e+06"),
])
def test_a_value_that_the_router_does_not_take_is_named_by_the_file(plugin: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parts_of(f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- {plugin}\n", "f")
    assert told in str(caught.value)


def test_a_scenario_without_a_router_keeps_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("workload: {requests: 4, arrivals: {kind: poisson, rate: 1 /s}, "
                    "lengths: {kind: fixed, prompt: 9, output: 2}}\n"
                    "clients: [{model: llama-3.1-70b, device: h100-sxm, parallel: {tp: 4}}]\n")
    document = with_parts(str(path), read("epp.yaml"), None)
    assert document["workload"]["requests"] == 4
    assert document["router"]["kind"] == "llm_d"
