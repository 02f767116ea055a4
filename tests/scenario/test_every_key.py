"""Every key of every component: written out in full, it is read back as the same."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from each import each
from pydantic import BaseModel, TypeAdapter, ValidationError

from hermes.api import simulate
from hermes.calibration.measurements import MEASUREMENTS
from hermes.config import Component, ConfigModel, Named
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError
from hermes.memory.eviction import EVICTION
from hermes.pipelines.base import PIPELINES
from hermes.plugins.orthrus.slots import SLOTS
from hermes.plugins.telerag.overlap.families import FAMILIES
from hermes.scenario import Scenario, load_scenario, resolved_yaml
from hermes.services import SERVICES

SCALARS: tuple[Any, ...] = ("a", 0.75, 3, 0.5, 2, 1.5, 16, 0.25, 1, 5000, 0, 1e6, True, False, "1 ms", "prompt")
"""Tried in this order where a type allows them."""
TIER = {"name": "a", "capacity": "1 GB", "bandwidth": "1 GB/s"}
NEEDED: dict[str, dict[str, Any]] = {
    "Speculation": {"num_speculative_tokens": 1, "acceptance_rate": 0.5},
    "LoopNode": {"kind": "loop", "stages": {"a": {"kind": "x"}}},
    "WorkloadConfig": {"requests": 3, "arrivals": {"kind": "poisson", "rate": 1}}, "Rerank": {"per_document": 0.001},
    "LognormalCounts": {"mean": 9, "sigma": 0.5}, "IvfFlat": {"vectors": 9000, "dim": 16, "nlist": 100},
    "IvfPq": {"vectors": 9000, "dim": 16, "nlist": 100}, "InvertedLists": {"vectors": 9000, "dim": 16, "nlist": 100},
    "Crashes": {"at": 1.0}, "Hangs": {"at": 1.0, "lasts": 1.0}, "Straggles": {"at": 1.0, "factor": 2.0},
    "Reclaimed": {"at": 1.0}, **{kind: {"at": 1.0, "repair": 5.0} for kind in ("DeviceFails", "NodeFails")},
    "ZoneFails": {"at": 1.0, "repair": 5.0, "zone": "z0"},
    "LinkFailure": {"at": 1.0, "factor": 2.0}, "KvTierConfig": {"bandwidth": "1 GB/s"},
}
"""Of models that ask for one of several keys, or for keys that fit together, what is given."""
LENGTHS = {"kind": "fixed", "prompt": 8, "output": 2}   # conversations have prefixes and sessions of their own
WITH: dict[str, dict[str, Any]] = {
    "AdmissionConfig.detector": {"detector": {"kind": "concurrency"}},
    "FlowControlConfig.detector": {"detector": {"kind": "concurrency"}},
    "FlowControlConfig.fairness": {"fairness": {"kind": "round_robin"}},
    "BandConfig.fairness": {"fairness": {"kind": "round_robin"}},
    "GatewayConfig.classes": {"classes": {"a": {"priority": 2}}, "flow_control": {}},
    "GatewayConfig.tenants": {"tenants": {"a": {"weight": 2}}, "flow_control": {}},
    "ClusterModel.family": {"family": "noise"}, "ClusterModel.dimensions": {"family": "moved"},
    "KvRetrievalClientConfig.mode": {"mode": "expected", "tiers": {"levels": [{**TIER, "hit_rate": 1.0}]}},
    "KvRetrievalClientConfig.misses": {"mode": "expected", "tiers": {"levels": [{**TIER, "hit_rate": 1.0}]}},
    "KvRetrievalClientConfig.warming": {"tiers": {"levels": [TIER, {**TIER, "name": "b"}]}},
    "MemoryConfig.prefix_eviction": {"prefix_caching": True},
    "MemoryConfig.prefix_recency": {"prefix_caching": True, "prefix_eviction": "tamm"},
    "KvTierConfig.recency": {"eviction": "tamm"},
    "MultiRack.pcie_latency": {"pcie_latency": 1.5e-6}, "Rack.pcie_latency": {"pcie_latency": 1.5e-6},
    "GatewayConfig.retry": {"retry": {"kind": "sglang"}},
    "GatewayConfig.router_retry": {"router_retry": {"kind": "envoy"}},
    "GatewayConfig.backlog": {"capacity": 10.0}, "GatewayConfig.spread": {"replicas": 2},
    "PredictedConfig.pick": {"ttft": 1.0},
    "WorkloadConfig.retry": {"retry": {"kind": "openai"}},
    "GenerateNode.branch_spread": {"branches": 3}, "GenerateNode.weight": {"choice": "a"},
    "Links.device": {"device": "cuda"}, "Metric.average": {"type": "external", "average": False},
    "Keda.idle": {"min": 2, "idle": 0},
    "LeastLoadedConfig.view": {"load": "requests", "view": {"kind": "scraped"}},
    "SessionConfig.affinity": {"slack": 3}, "SessionConfig.slack": {"affinity": "soft"},
    "SessionConfig.rebind": {"affinity": "soft", "slack": 3},
    "ServiceNode.weight": {"choice": "a"}, "LoopNode.weight": {"choice": "a"},
    "LoopNode.again": {"max_times": 3}, "LoopNode.max_times": {"again": 0.5},
    "Rerank.hardware": {"per_document": None}, "InvertedLists.pq_m": {"kind": "ivf-pq", "pq_m": 4},
    "LognormalCounts.median": {"mean": None, "median": 9},
    "WorkloadConfig.prefixes": {"lengths": LENGTHS}, "WorkloadConfig.sessions": {"lengths": LENGTHS},
    "SloConfig.ttft_slowdown": {"baseline_ttft": 1.0}, "SloConfig.tpot_slowdown": {"baseline_tpot": 1.0},
    "Speculation.acceptance_by_position": {"acceptance_rate": None}, "Speculation.accepted": {"acceptance_rate": None},
    "Speculation.draft_model": {"method": "draft_model"},
    "StartUpMeasurement.ready": {"ready": "/ping"},
    "WorkloadConfig.duration": {"requests": None}, "WorkloadConfig.branch_spread": {"branches": 3},
    "IvfFlat.coarse_groups": {"coarse": "two_level"}, "IvfFlat.coarse_probes": {"coarse": "two_level"},
    **{f"{kind}.every": {"at": None, "every": {"mean": 3600.0}}
       for kind in ("Crashes", "Hangs", "Straggles", "Reclaimed", "DeviceFails", "NodeFails", "ZoneFails")},
    "LinkFailure.every": {"at": None, "every": {"mean": 3600.0}, "lasts": 5.0},
    "FailingLinks.failures": {"failures": [{"at": 1.0, "factor": 2}]},
    "FleetConfig.failures": {"failures": [{"kind": "crash", "at": 1.0}]},
    "IvfPq.coarse_groups": {"coarse": "two_level"}, "IvfPq.coarse_probes": {"coarse": "two_level"},
}
"""Keys that mean nothing without others, or that few values fit, and what is given with them."""


def _models() -> dict[str, type[BaseModel]]:
    """Every component of every registry, and everything that can stand in a scenario, by its name."""
    registries = (EVICTION, FAMILIES, PIPELINES, SERVICES, SLOTS, MEASUREMENTS)
    pending: list[Any] = [Scenario, *(registry.get(name) for registry in registries for name in registry)]
    models: dict[str, type[BaseModel]] = {}
    while pending:
        model = pending.pop()
        if isinstance(model, type) and issubclass(model, ConfigModel) and models.get(model.__name__) is not model:
            models[model.__name__] = model
            for field in model.model_fields.values():
                pending += _inside(field.annotation, field.metadata)
    return models


def _inside(annotation: Any, metadata: Any = ()) -> Iterator[Any]:
    """The classes in a type annotation, those of registries included."""
    for part in (annotation, *metadata):
        if isinstance(part, Component):
            yield from (part.registry.get(name) for name in part.registry)
    yield annotation
    for argument in get_args(annotation):
        yield from _inside(argument)


def values(annotation: Any, metadata: Any = ()) -> Iterator[Any]:
    """Values that may fit a type."""
    for part in metadata:
        if isinstance(part, Component):
            yield from ({"kind": name, **smallest(part.registry.get(name))} for name in part.registry.names())
        elif isinstance(part, Named):
            yield from part.registry.names()
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from values(arguments[0], arguments[1:])
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from values(argument)
    elif origin is Literal:
        yield from arguments
    elif origin in (list, tuple, set, frozenset):
        items = list(values(arguments[0]))[:40]
        for count in (1, 2, 3):
            yield from ([item] * count for item in items)
    elif origin is dict:
        yield from ({key: item} for item in list(values(arguments[1]))[:40] for key in ("a", 1))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        least = smallest(annotation)
        yield least
        yield from ({**least, key: value} for key in annotation.model_fields for value in SCALARS[:4])
    elif annotation is not NoneType:
        yield from SCALARS


_smallest: dict[type[BaseModel], dict[str, Any]] = {}


def smallest(model: type[BaseModel]) -> dict[str, Any]:
    """A mapping with the keys that a model requires."""
    if model not in _smallest:
        given = dict(NEEDED.get(model.__name__, {}))
        for name, field in model.model_fields.items():
            if field.is_required() and name not in given:
                parts = (field.annotation, *field.metadata)
                adapter = TypeAdapter(Annotated[parts] if field.metadata else field.annotation)
                given[name] = next(value for value in values(field.annotation, field.metadata) if _fits(adapter, value))
        _smallest[model] = given
    return _smallest[model]


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.long
@each("name", sorted(_models()))
def test_every_key_survives_a_resolved_scenario(name):
    model = _models()[name]
    plain = model.model_validate(smallest(model))
    check(plain)
    everything = dict(smallest(model))
    for key, field in model.model_fields.items():
        if key in everything or field.exclude or key == "kind" or _is_fixed(field.annotation):
            continue
        given = {**smallest(model), **WITH.get(f"{name}.{key}", {})}
        options = [given[key]] if key in given else values(field.annotation, field.metadata)
        made = (_made(model, {**given, key: value}) for value in options)
        changed = next((it for it in made if it is not None and getattr(it, key) != getattr(plain, key)), None)
        assert changed is not None, f"no value of {name}.{key} was found: put one into WITH"
        check(changed)
        if _made(model, {**everything, key: getattr(changed, key)}):   # it may be given beside all the others
            everything[key] = getattr(changed, key)
    check(model.model_validate(everything))


def _is_fixed(annotation: Any) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def _made(model: type[BaseModel], data: dict[str, Any]) -> BaseModel | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None


def check(component: BaseModel) -> None:
    text = to_yaml(component)
    assert validate(type(component), parse_yaml(text)) == component, text
    assert type(component).model_validate(component.model_dump()) == component


# -- whole scenarios: what says the same runs the same ----------------------------------------------------------------


def scenario(**keys: Any) -> dict[str, Any]:
    return {
        "workload": {"requests": 6, "arrivals": {"kind": "poisson", "rate": 50},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 4}},
        "clients": [{"name": name, "model": "mistral-7b", "memory": {"num_blocks": 100},
                     "hardware": {"kind": "roofline", "profile": "mistral-7b-a40"}} for name in "ab"],
        **keys,
    }


def again(text: str) -> Scenario:
    return load_scenario(parse_yaml(text).plain())


def test_a_trace_at_a_rate_can_be_resolved_and_swept(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},9,3\n" for i in range(6)))
    arrivals = {"kind": "trace", "path": str(trace), "rate": 8}
    data = scenario(workload={"arrivals": arrivals, "lengths": {"kind": "trace", "path": str(trace)}})
    loaded = load_scenario(data)
    resolved = again(resolved_yaml(loaded))
    assert resolved == loaded
    faster = load_scenario(resolved, ["workload.0.arrivals.rate=16"])   # as a sweep does
    spans = [float(simulate(each).requests.arrival_s.iloc[-1]) for each in (loaded, resolved, faster)]
    assert spans == pytest.approx([5 / 8, 5 / 8, 5 / 16])
    with pytest.raises(InputError, match="scale and rate exclude each other"):
        load_scenario(loaded, ["workload.0.arrivals.scale=2"])


def test_racks_with_an_uplink_can_be_resolved_and_swept():
    loaded = load_scenario(scenario(network={"kind": "multi_rack", "uplink": "1 GB/s"}))
    assert again(resolved_yaml(loaded)) == loaded
    assert load_scenario(loaded, ["network.uplink=2 GB/s"]).network.uplink_bandwidth == 2e9
    rest = load_scenario(scenario(network={"kind": "multi_rack", "boxes_per_rack": 2, "nic": "1 GB/s"})).network
    assert rest.uplink_bandwidth == 2 * 8 * 1e9
    with pytest.raises(InputError, match="uplink and oversubscription exclude each other"):
        load_scenario(loaded, ["network.oversubscription=1"])


def test_a_graph_written_out_in_full_is_still_valid():
    stages: dict[str, Any] = {
        "a": {"kind": "generate", "choice": "which", "weight": 3}, "b": {"kind": "generate", "choice": "which"},
        "twice": {"kind": "loop", "after": ["a", "b"], "again": 0.5, "max_times": 3,
                  "stages": {"c": {"kind": "generate"}}},
    }
    data = scenario(pipelines={"g": {"stages": stages}})
    data["workload"]["pipeline"] = "g"
    loaded = load_scenario(data)
    resolved = again(resolved_yaml(loaded))
    assert resolved == loaded
    finished = simulate(loaded).record.finish_ns.tolist()
    assert simulate(resolved).record.finish_ns.tolist() == finished
    # what earlier versions wrote out
    stages["a"] |= {"max_times": 1, "again": 0.0}
    stages["twice"] |= {"weight": 1.0, "choice": ""}
    assert simulate(data).record.finish_ns.tolist() == finished


def test_a_given_option_wins_over_a_profile_even_if_it_is_the_usual_one():
    plain, wide = ({"kind": "roofline", "profile": "mistral-7b-cpu-small", **more} for more in ({}, {"dtype": "bf16"}))
    loaded = [load_scenario(scenario(clients=[{"hardware": hardware}])) for hardware in (plain, wide)]
    assert [again(resolved_yaml(each)) == each for each in loaded] == [True, True]
    assert [each.clients[0].hardware.build().name for each in loaded] == [
        "mistral-7b-cpu-small-tp1-fp32", "mistral-7b-cpu-small-tp1-bf16"]
