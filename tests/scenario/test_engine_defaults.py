"""`engine:` of a client: the rules of one engine version, and its defaults on the client's device."""

import warnings

import pytest

from hermes import simulate
from hermes.config.data_files import resource_dir
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.hardware.descriptions.engines import DeviceClass, load_engine
from hermes.hardware.descriptions.files import names_in
from hermes.memory import BlockPool
from hermes.scenario import load_scenario, resolved_yaml, scenario_of
from hermes.scenario.build import build

GIB = 2**30
WORKLOAD = {"requests": 3, "arrivals": {"kind": "uniform", "rate": 1.0},
            "lengths": {"kind": "fixed", "prompt": 64, "output": 4}}


def scenario(**client):
    roofline = {"kind": "roofline", "model": "llama-3.1-8b", "device": client.pop("on", "h100-sxm")}
    return load_scenario({"workload": WORKLOAD,
                          "clients": [{"model": "llama-3.1-8b", "hardware": roofline, **client}]})


def chosen(config):
    s, m = config.scheduler, config.memory
    return (s.max_num_batched_tokens, s.max_num_seqs, s.async_scheduling, m.prefix_caching, m.block_size, m.utilization)


@pytest.mark.feature("LLM clients", "Engine versions and their defaults")
@pytest.mark.parametrize(("device", "expected"), [
    ("h100-sxm", (8192, 1024, True, True, 16, 0.92)),
    ("rtx-pro-6000", (8192, 1024, True, True, 16, 0.92)),
    ("a100-80gb", (2048, 256, True, True, 16, 0.92)),    # large, but the engine makes an exception
    ("l40s", (2048, 256, True, True, 16, 0.92)),
    ("b200", (16384, 1024, True, True, 16, 0.92)),
])
def test_a_client_that_says_nothing_runs_as_vllm_serve_does_on_its_device(device, expected):
    config = scenario(on=device).clients[0]
    assert config.engine == "vllm-0.33"
    assert chosen(config) == expected


def test_the_device_may_be_known_from_a_profile_alone():
    config = load_scenario({"workload": WORKLOAD, "clients": [
        {"hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h200-tp2-bf16"}}]}).clients[0]
    assert chosen(config)[:2] == (8192, 1024)
    config = load_scenario({"workload": WORKLOAD, "clients": [{
        "hardware": {"kind": "polynomial", "profile": "vllm-cpu-small-llama"}, "memory": {"num_blocks": 100},
    }]}).clients[0]
    assert chosen(config) == (2048, 128, False, True, 128, 0.92)


def test_where_the_device_is_not_known_the_defaults_are_those_of_a_small_gpu():
    assert load_engine("vllm-0.32").defaults(DeviceClass()).max_num_batched_tokens == 2048
    assert load_engine("vllm-0.32").defaults(DeviceClass(memory_bytes=70 * GIB)).max_num_batched_tokens == 8192


def test_an_older_version_brings_its_own_rules_and_defaults():
    config = scenario(on="b200", engine="vllm-0.19").clients[0]
    assert chosen(config) == (8192, 1024, True, True, 16, 0.9)
    assert config.scheduler.unhashed_to_front is False
    assert scenario(engine="vllm-0.32.0").clients[0].engine == "vllm-0.32"


def test_what_the_scenario_says_counts():
    config = scenario(
        scheduler={"kind": "chunked", "max_num_batched_tokens": 512, "async_scheduling": False},
        memory={"prefix_caching": False, "utilization": 0.5, "block_size": 32},
    ).clients[0]
    # the engine never runs more sequences than a step has tokens
    assert chosen(config) == (512, 512, False, False, 32, 0.5)
    client = build(scenario(memory={"num_blocks": 50})).clients[0]
    assert client.scheduler.asynchronous
    assert client.scheduler.pool.caching


def test_the_resolved_scenario_says_all_of_it_and_reads_the_same():
    first = scenario()
    text = resolved_yaml(first)
    for line in ("engine: vllm-0.33", "max_num_batched_tokens: 8192", "async_scheduling: true", "prefix_caching: true"):
        assert line in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = scenario_of(parse_yaml(text), first.source.base_dir)
    assert again == first
    assert resolved_yaml(again) == text


@pytest.mark.parametrize(("minor", "rules", "reserves"), [
    *((minor, "0.19.0", False) for minor in range(15, 19)), *((minor, "0.19.0", True) for minor in range(19, 24)),
    *((minor, "0.24.0", True) for minor in range(24, 28)), *((minor, "0.28.0", True) for minor in range(28, 31)),
    *((minor, "0.32.0", True) for minor in (31, 32)), (33, "0.33.0", True),
])
def test_rules_of_every_minor_version(minor, rules, reserves):
    """As each version's scheduler behaves that was driven alone (`make conformance`)."""
    chunked = scenario(engine=f"vllm-0.{minor}").clients[0].scheduler
    assert (chunked.engine_version, chunked.reserve_full_isl) == (rules, reserves)
    built = chunked.build(BlockPool(10, 16), every_step=False)
    assert built.spare_lone_prefill == (minor >= 31)
    assert built.whole_must_fit == reserves
    assert chunked.unhashed_to_front == (minor >= 24)
    assert built.goes_on == chunked.local_interval == chunked.counts_all_adapters == (minor >= 33)


@pytest.mark.parametrize(("given", "nearest"), [
    ("vllm-0.35", "vllm-0.33"), ("vllm-0.13.1", "vllm-0.15"), ("0.20", "vllm-0.20"),
])
def test_a_version_nobody_recorded_is_refused_with_the_nearest(given, nearest):
    with pytest.raises(InputError, match=f"clients.0.engine: expected an engine whose rules are known.*{nearest!r}"):
        scenario(engine=given)


def test_schedulers_that_follow_no_engine_take_none():
    config = scenario(scheduler={"kind": "continuous"}).clients[0]
    assert (config.engine, config.memory.prefix_caching, config.memory.utilization) == (None, False, 0.9)
    with pytest.raises(InputError, match=r"clients\.0\.engine: an engine sets the rules of .* `chunked` only"):
        scenario(scheduler={"kind": "continuous"}, engine="vllm-0.32")


@pytest.mark.parametrize("changes", [
    {"scheduler": {"kind": "chunked", "engine_version": "0.19.0"}}, {"memory": {"engine": "1 GiB"}}])
def test_keys_of_before_are_unknown(changes):
    with pytest.raises(InputError, match="expected one of the keys"):
        scenario(**changes)


def test_every_engine_file_holds_for_every_device():
    for name in names_in("engines"):
        engine = load_engine(name)
        assert engine.name == name
        for device in (DeviceClass(), DeviceClass("x", 300 * GIB), DeviceClass("cpu", GIB, is_cpu=True, num_devices=2)):
            assert engine.defaults(device).max_num_seqs >= 1


def test_the_chatbot_by_defaults_and_spelled_out_is_one_scenario_and_gives_one_answer():
    """The shipped pair: the same text but for names and description, the same figures on a part of the workload."""
    pair = [load_scenario(resource_dir("scenarios") / f"{name}.yaml", ["workload.requests=90"])
            for name in ("chatbot", "chatbot-spelled-out")]
    texts = [resolved_yaml(scenario).splitlines() for scenario in pair]
    assert len(texts[0]) > 60
    assert [line for line in texts[0] if not line.startswith(("name:", "description:"))] == [
        line for line in texts[1] if not line.startswith(("name:", "description:"))]
    first, second = (simulate(scenario).summary for scenario in pair)
    assert first["requests"]["completed"] == 90
    left, written = ({entry["name"] for entry in summary.pop("assumes")} for summary in (first, second))
    assert first == second
    assert left - written == {   # no defaults in the second
        "gpu_memory_utilization", "prefix caching", "engine version", "router"}
    assert written <= left


def test_prompts_that_are_not_cut_fit_the_default_budget():
    """As the engine does it: without chunks a prompt longer than the budget could never be served."""
    def budget(**client):
        return scenario(**client).clients[0].scheduler.max_num_batched_tokens

    whole = {"kind": "chunked", "enable_chunked_prefill": False}
    assert budget(scheduler=whole) == 131_072   # the context of Llama-3.1-8B
    assert budget(scheduler=whole, max_model_len=4096) == 8192
    assert budget(scheduler={**whole, "max_num_batched_tokens": 3000}, max_model_len=4096) == 3000
    assert budget(scheduler={"kind": "chunked"}) == 8192
