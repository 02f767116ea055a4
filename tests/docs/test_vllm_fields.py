"""Fields of vLLM's configurations: every field has an answer, keys that answers name exist, refusals say why."""

import json

import pytest
from each import each
from markdown_blocks import ROOT

from hermes.api import load_scenario
from hermes.clients.config import LLMClientConfig
from hermes.clients.frontend import ApiServers
from hermes.clients.memory import MemoryConfig
from hermes.errors import InputError
from hermes.hardware.composed import Composed
from hermes.hardware.lora import Lora
from hermes.schedulers.chunked_config import SINCE, ChunkedConfig
from hermes.schedulers.vllm_fields import ANSWERS, BESIDE

DATA = json.loads((ROOT / "tests" / "data" / "vllm-config-fields.json").read_text(encoding="utf-8"))
PARTS = {"scheduler": ChunkedConfig, "memory": MemoryConfig, "hardware": Composed, "hardware.lora": Lora,
         "api_servers": ApiServers}
KEYS = sorted({answer.text for fields in ANSWERS.values() for answer in fields.values() if answer.how == "key"})


@each("name", ANSWERS)
def test_every_field_has_an_answer_and_no_answer_is_left_over(name):
    assert ANSWERS[name].keys() == DATA[name].keys()
    assert not BESIDE.keys() & DATA[name].keys()


@each("path", KEYS)
def test_keys_exist(path):
    part, _, key = path.rpartition(".")
    assert key in (PARTS[part] if part else LLMClientConfig).model_fields


@each("key", [key for key in SINCE if key != "speculative"])   # which is no field of these
def test_keys_are_refused_before_the_version_that_has_them(key):
    [versions] = [fields[key]["versions"] for name, fields in DATA.items() if name != "versions" and key in fields]
    first = tuple(map(int, versions[0].split(".")[:2]))
    assert first == SINCE[key] or (key in ("prefill_schedule_interval", "max_loras") and first < SINCE[key])


def refused(**client):
    document = {
        "workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                     "lengths": {"kind": "fixed", "prompt": 1, "output": 1}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", **client}],
    }
    with pytest.raises(InputError) as error:
        load_scenario(document)
    said = str(error.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(("name", "said"), [
    ("stream_interval", "here vLLM's field is the key `api_servers.stream_interval`"),
    ("scheduler_reserve_full_isl", "the key `reserve_full_isl`"),
    ("max_num_partial_prefills", "changes nothing here: the engine's V1 scheduler does not read it"),
    ("block_size", "the key `memory.block_size` of the client"),
    ("num_lookahead_tokens", "`speculative` sets it, by its method"),
    ("max_num_encoder_input_tokens", "encoder inputs of multimodal prompts are not modelled"),
    ("max_cpu_loras", "all adapters are in the host's memory"),
])
def test_a_field_of_the_scheduler_is_refused_with_the_reason(name, said):
    message = refused(scheduler={"kind": "chunked", name: 4})
    assert message.startswith(f"clients.0.scheduler.{name}: ")
    assert said in message


@pytest.mark.parametrize(("name", "said"), [
    ("gpu_memory_utilization", "the key `utilization`"), ("kv_offloading_size", "`kv_offload`"),
    ("mamba_block_size", "Mamba"), ("disable_hybrid_kv_cache_manager", "the key `hybrid` (the opposite)"),
])
def test_a_field_of_the_memory_is_refused_with_the_reason(name, said):
    message = refused(memory={name: 0.5})
    assert message.startswith(f"clients.0.memory.{name}: ")
    assert said in message


def test_other_keys_are_unknown_as_before():
    assert "expected one of the keys" in refused(scheduler={"kind": "chunked", "max_seqs": 4})
