"""Every row of the compatibility of options refuses the pair that it names, and neither option alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from each import each

from hermes.engine.compatibility import ROWS, Case, Option, Row, check
from hermes.errors import InputError
from hermes.scenario import load_scenario
from hermes.scenario.build import build

Data = dict[str, Any]

BASE: Data = {
    "workload": {"requests": 4, "arrivals": {"kind": "poisson", "rate": 5},
                 "lengths": {"kind": "fixed", "prompt": 64, "output": 8}},
    "client": {"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"num_blocks": 400},
               "scheduler": {"kind": "chunked"}},
}
WINDOWED = {"client.model": "gpt-oss-20b"}
RANKS = {"client.model": "mixtral-8x7b", "client.parallel.dp": 2}
DRAFTS = {"num_speculative_tokens": 2, "acceptance_rate": 0.6}
ROOFLINE = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}


def drafts(method: str) -> Data:
    return {"client.scheduler.speculative": {"method": method, "draft_time": "1ms", **DRAFTS}}


SETTINGS: dict[str, Data] = {
    "engine": {"client.engine": "vllm-0.33"}, "vLLM from 0.33 on": {"client.engine": "vllm-0.33"},
    "the methods medusa and mlp_speculator": {**drafts("medusa"), "client.engine": "vllm-0.32"},
    "vLLM before 0.33 and methods other than eagle, eagle3, mtp, draft_model, ngram_gpu": {
        **drafts("ngram"), "client.engine": "vllm-0.32"},
    "vLLM from 0.33 on and methods other than eagle, eagle3, mtp, draft_model, ngram_gpu, ngram": drafts("suffix"),
    "max_new_tokens": {"client.scheduler": {"kind": "sglang"}, "client.scheduler.max_new_tokens": 64},
    "ignore_eos: true": {"client.scheduler": {"kind": "sglang"}, "client.scheduler.ignore_eos": True},
    "enable_mixed_chunk: true": {"client.scheduler": {"kind": "sglang"}, "client.scheduler.enable_mixed_chunk": True},
    "chunked_prefill_size: -1": {"client.scheduler": {"kind": "sglang"}, "client.scheduler.chunked_prefill_size": -1},
    "num_blocks": {"client.memory.num_blocks": 400},
    "capacity": {"client.memory.capacity": "80GB", "client.memory.num_blocks": None},
    "reserved": {"client.memory.reserved": "1GB", "client.memory.num_blocks": None},
    "prefix_recency": {"client.memory.prefix_recency": "age", "client.memory.prefix_eviction": "tamm"},
    "another prefix_eviction than tamm": {"client.memory.prefix_eviction": "lfu"},
    "a scheduler that follows no engine": {"client.scheduler": {"kind": "static"}},
    "role: decode": {"client.role": "decode"},
    "a scheduler that takes over no KV": {"client.scheduler": {"kind": "static"}},
    "an option of the scheduler `chunked`": {"client.scheduler.watermark": 0.1},
    "another scheduler": {"client.scheduler": {"kind": "static"}},
    "pipeline stages": {"client.parallel.pp": 2},
    "data-parallel ranks": RANKS,
    "replicas that come and go": {"client.fleet": {"start": 1, "start_up": {"total": 1}}},
    "a hang without `lasts`": {"client.fleet": {
        "start": 1, "start_up": {"total": 1}, "failures": [{"kind": "hang", "at": 1}]}},
    "end": {"client.fleet": {"start": 1, "start_up": {"total": 1}}, "client.fleet.drain.end": "cancel"},
    "`grace: null`": {"client.fleet": {"start": 1, "start_up": {"total": 1}}, "client.fleet.drain": {"grace": None}},
    "the scheduler `sglang`": {"client.scheduler": {"kind": "sglang"}},
    "the scheduler `vllm`": {"client.scheduler": {"kind": "vllm"}},
    "tiers outside the engine": {
        "client.tiers": {"levels": [{"name": "host", "capacity": "8GB", "bandwidth": "50GB/s"}]}},
    "prefix_caching: true": {"client.memory.prefix_caching": True},
    "disable_radix_cache: true": {"client.scheduler": {"kind": "sglang", "disable_radix_cache": True}},
    "prefix_eviction": {"client.memory.prefix_eviction": "gdsf"},
    "hybrid: true": {"client.memory.hybrid": True},
    "layers with and without a sliding window": WINDOWED,
    "layers with a sliding window that have blocks of their own": WINDOWED,
    "a role": {"client.count": "1P1D"},
    "api_servers": {"client.api_servers": {}}, "api_servers.engines": {"client.api_servers": {"engines": 2}},
    "adapter_bytes": {"client.adapter_bytes": "50MB", "client.scheduler.max_loras": 2},
    "kv_offload": {"client.memory.kv_offload": {"cpu_bytes_to_use": "4GB"}, "client.scheduler.async_scheduling": False},
    "speculative decoding": {"client.scheduler.speculative": {"method": "ngram", **DRAFTS}},
    "max_loras": {"client.scheduler.max_loras": 2},
    "prefill_schedule_interval": {"client.scheduler.prefill_schedule_interval": 3},
    "asynchronous scheduling": {"client.scheduler.async_scheduling": True},
    "engines other than vLLM 0.32.0 and 0.33.0": {"client.engine": "vllm-0.27"},
    "a drafter without a `draft_time`": {"client.scheduler.speculative": {"method": "eagle", **DRAFTS}},
    "hardware that has no price by stage, or other stages": {"client.hardware": ROOFLINE},
    "hardware that has no price by rank, or other ranks": {
        "client.model": "mixtral-8x7b", "client.hardware": {**ROOFLINE, "model": "mixtral-8x7b"}},
    "dp of the hardware": {"client.model": "mixtral-8x7b", "client.hardware": {"kind": "composed", "dp": 2}},
    "dp: 1": {"client.parallel.dp": 1},
    "tensor parallelism": {"client.parallel.tp": 2},
    "hardware of another tensor parallelism": {"client.hardware": ROOFLINE},
    "lora": {"client.hardware": {"kind": "composed", "lora": {}}, "client.scheduler.max_loras": 2},
    "max_num_queued_reqs": {"client.scheduler.max_num_queued_reqs": 9},
    "max_num_queued_tokens": {"client.scheduler.max_num_queued_tokens": 900},
    "max_num_scheduled_tokens": {"client.scheduler.max_num_scheduled_tokens": 64},
    "max_num_active_seqs": {"client.scheduler.max_num_active_seqs": 4},
    "speculative": {"client.scheduler.speculative": {"method": "ngram", **DRAFTS}},
    "vLLM before 0.17": {"client.engine": "vllm-0.16"}, "vLLM before 0.25": {"client.engine": "vllm-0.24"},
    "vLLM before 0.29": {"client.engine": "vllm-0.28"}, "vLLM before 0.31": {"client.engine": "vllm-0.30"},
    "prefix_start: warm": {"client.memory.prefix_start": "warm", "workload.prefixes": {"groups": 2, "tokens": 32}},
    "adapters": {"workload.adapters": {"count": 3}},
    "no max_loras": {},
    "branches": {"workload.branches": 2},
    "queue": {"gateway.queue": {"ttl": "60s"}}, "admission": {"gateway.admission": {}},
    "flow_control": {"gateway.flow_control": {}}, "classes": {"gateway.classes": {"gold": {"priority": 1}}},
    "tenants": {"gateway.tenants": {"a": {"weight": 2}}}, "backlog": {"gateway.backlog": 3},
    "rules of a named system (`retry`)": {"gateway.retry": {"kind": "envoy"}}, "retries": {"gateway.retries": 2},
    "backoff": {"gateway.backoff": "1s"}, "max_backoff": {"gateway.max_backoff": "1s"},
    "per_try": {"gateway.per_try": "1s"}, "begun": {"gateway.begun": "restart"},
    "a `retry` that keeps replicas out": {"gateway.retry": {"kind": "sglang"}},
    "a `router_retry` that keeps replicas out": {"gateway.router_retry": {"kind": "litellm"}},
    "spread: random": {"gateway.spread": "random"},
    "a scheduler that serves no branches": {"client.scheduler": {"kind": "sglang"}},
}
"""Settings that give an option, by its name."""

LACKING: dict[str, Data] = {
    "`fleet.liveness`": {},
    "the scheduler `chunked`": {"client.scheduler": {"kind": "static"}},
    "prefix_caching: true": {"client.memory.prefix_caching": False},
    "prefix_eviction: lru": {"client.memory.prefix_eviction": "lfu"},
    "hardware of named terms (`composed`)": {
        "client.hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}},
    "parallel.dp": {"client.engine": "vllm-0.32"},
    "scheduler.max_loras": {"client.scheduler.max_loras": None},
    "flow_control or admission": {"gateway": {}}, "capacity": {"gateway": {}}, "several gateways": {"gateway": {}},
}
"""Settings that take away what an option needs, by its name."""

ABSENT = ("no max_loras", "dp: 1", "flow_control or admission", "capacity", "several gateways",
          "`fleet.liveness`")
"""What a scenario has by default, or lacks: the other option alone is refused."""

MORE: dict[tuple[str, str], Data] = {
    ("num_blocks", "capacity"): {"client.memory.num_blocks": 400},
    ("kv_offload", "the scheduler `chunked`"): {"client.scheduler.async_scheduling": None},
    ("prefill_schedule_interval", "vLLM before 0.25"): RANKS,
}
"""Settings that a pair needs besides, or the row of another pair would come first."""


def scenario(*parts: Data) -> Data:
    data = copy.deepcopy(BASE)
    for key, value in sorted((item for part in parts for item in part.items()), key=lambda item: item[0].count(".")):
        *folders, last = key.split(".")
        place = data
        for name in folders:
            place = place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    data["clients"] = [data.pop("client")]
    return data


def given(option: Option) -> Data:
    return SETTINGS[option.name]


def of(row: Row) -> Data:
    """Return the scenario of a row's pair."""
    other = given(row.other) if row.excludes else LACKING[row.other.name]
    return scenario(given(row.option), other, MORE.get((row.option.name, row.other.name), {}))


def named(row: Row) -> str:
    return f"{row.option.key}-{row.other.name}"


@each("row", ROWS, ids=named)
def test_a_row_refuses_its_pair(row: Row) -> None:
    with pytest.raises(InputError) as caught:
        build(load_scenario(of(row)))
    text = str(caught.value)
    assert [named(other) for other in ROWS if other.explains(text)] == [named(row)], text
    assert "\n" not in text
    assert "{" not in text


@pytest.mark.long
@each("row", ROWS, ids=named)
def test_a_row_refuses_neither_option_alone(row: Row) -> None:
    alone = [given(row.option), given(row.excludes) if row.excludes else LACKING[row.other.name]]
    for settings in alone[row.other.name in ABSENT:]:
        try:
            load_scenario(scenario(settings))
        except InputError as error:
            assert not row.explains(str(error)), str(error)


def test_a_row_is_one_kind_of_refusal() -> None:
    for row in ROWS:
        assert (row.excludes is None) != (row.needs is None), named(row)
        assert [bool(row.missing), bool(row.unrecorded), bool(row.rule)].count(True) == 1, named(row)
        assert not (row.missing or row.unrecorded) or row.excludes, named(row)


def test_messages_tell_rows_apart() -> None:
    assert len({(row.key, row.message) for row in ROWS}) == len(ROWS)
    assert len({(row.option.name, row.option.key, row.other.name) for row in ROWS}) == len(ROWS)


def test_what_is_not_known_yet_refuses_nothing() -> None:
    """The same client is looked at before its hardware is built, and before its engine's defaults are filled in."""
    for settings in (SETTINGS["prefix_eviction"], SETTINGS["kv_offload"], SETTINGS["prefix_start: warm"],
                     SETTINGS["pipeline stages"], SETTINGS["tensor parallelism"]):
        client = load_scenario(scenario(settings)).clients[0]
        check(Case(client.model_copy(update={"memory": client.memory.model_copy(update={"prefix_caching": None})})))
