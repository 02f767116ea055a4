"""KV capacity: the sum vLLM makes, against a real run and aiconfigurator; what is missing is said in bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import outside

from hermes.clients.config import LLMClientConfig
from hermes.clients.memory import MemoryConfig
from hermes.errors import InputError
from hermes.hardware import HARDWARE
from hermes.hardware.capacity import Part, cut_blocks, stage_kv_bytes_per_token, stage_weight_bytes
from hermes.hardware.descriptions.engines import DeviceClass, load_engine
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.info import HardwareInfo, hardware_info
from hermes.schedulers.config import SchedulerOptions

SCHEDULER = SchedulerOptions(max_num_batched_tokens=2048, max_num_seqs=256)


def budget(model, device, tp=1, pp=1, dtype="bf16", memory=None, engine="vllm-0.33"):
    options = {"kind": "roofline", "model": model, "device": device, "tp": tp, "pp": pp, "dtype": dtype}
    info = hardware_info(HARDWARE.get("roofline").model_validate(options).build())
    config = MemoryConfig.model_validate(memory or {}).ruled(load_engine(engine).memory_rules)
    return config.budget(model, tp * pp, info, info.device, SCHEDULER, None)


@pytest.mark.feature("Hardware", "KV capacity as each engine and version computes it, with a range")
def test_the_real_run_whose_blocks_were_recorded():
    """RTX 4090, vLLM 0.19.0. The engine's share was set on this run, so it checks the sum, not the estimate."""
    folder = outside("data/vllm-runs/rtx4090-llama-3.1-8b")
    meta = json.loads((folder / "meta.json").read_text())
    found = budget("llama-3.1-8b", "rtx-4090", engine="vllm-0.19")
    assert found.capacity.bytes == meta["hardware"]["device_total_memory_bytes"]
    assert found.num_blocks == pytest.approx(meta["kv_cache"]["num_gpu_blocks"], rel=0.005)


def test_a_server_that_the_estimate_was_not_set_on():
    """Qwen3-14B on an H100, vLLM 0.23.0: its log says 18,038 blocks of 16."""
    scenario = {"model": "qwen3-14b", "device": "h100-sxm", "engine": "vllm-0.23",
                "scheduler": {"kind": "chunked", "max_num_seqs": 256}}
    client, hardware = LLMClientConfig.model_validate(scenario).completed(None)
    found = client.resources(hardware, None).memory
    assert found.num_blocks == pytest.approx(18_038, rel=0.01)


def test_an_engine_that_sorts_needs_more_for_sampling():
    """34 bytes instead of 14 for each of 256 rows and 128,256 words; a filtering kernel has 4 for each of 128 rows."""
    def activations(engine):
        config = MemoryConfig().completed(load_engine(engine).defaults(DeviceClass("RTX 4090", 24 * 2**30)))
        info = hardware_info(HARDWARE.get("roofline").model_validate(
            {"kind": "roofline", "model": "llama-3.1-8b", "device": "rtx-4090"}).build())
        return config.budget("llama-3.1-8b", 1, info, info.device, SCHEDULER, None).activations.bytes

    assert activations("vllm-0.15") - activations("vllm-0.19") == (20 * 256 - 4 * 128) * 128_256


# aiconfigurator-core 0.12.0, estimate_kv_cache(..., "vllm", "0.24.0", max_num_tokens=2048, max_batch_size=256,
# memory_fraction_kind="of_total", memory_fraction_value=0.9)["total_kv_size_tokens"]; its engine takes 3.5 GiB
AICONFIGURATOR = [
    ("h100-sxm", "llama-3.1-8b", 1, "bf16", 437_216), ("h100-sxm", "llama-3.1-8b", 1, "fp8", 490_464),
    ("h100-sxm", "llama-3.1-70b", 2, "fp8", 223_680), ("h100-sxm", "llama-3.1-70b", 4, "bf16", 460_160),
    ("h100-sxm", "llama-3.1-70b", 4, "fp8", 669_056), ("h100-sxm", "llama-3.1-70b", 8, "bf16", 1_350_937),
    ("h200", "llama-3.1-8b", 1, "bf16", 886_956), ("h200", "llama-3.1-70b", 2, "bf16", 374_576),
    ("h200", "llama-3.1-70b", 2, "fp8", 583_472), ("h200", "llama-3.1-70b", 8, "fp8", 2_999_004),
]


@pytest.mark.parametrize(("device", "model", "tp", "dtype", "tokens"), AICONFIGURATOR)
def test_within_six_percent_of_another_estimate(device, model, tp, dtype, tokens):
    assert budget(model, device, tp, dtype=dtype).tokens == pytest.approx(tokens, rel=0.06)


def test_where_almost_nothing_is_left_the_estimates_part():
    """70B in 16 bits on two H100: 6.4 GB of each card are left for everything, so the reserve decides."""
    assert budget("llama-3.1-70b", "h100-sxm", 2).tokens == 25_472   # aiconfigurator: 14,784


@given(
    block=st.integers(1, 64), kv=st.integers(1000, 10**6), devices=st.integers(1, 8),
    parts=st.tuples(*[st.integers(0, 10**10)] * 3), capacity=st.integers(10**9, 10**12),
    utilization=st.floats(0.1, 1.0),
)
@settings(max_examples=100)
def test_what_is_cut_fits_and_one_block_more_would_not(block, kv, devices, parts, capacity, utilization):
    weights, activations, engine = (Part(size, "x") for size in parts)
    try:
        found = cut_blocks(block, kv, devices, utilization, Part(capacity, "x"), weights, activations, engine)
    except InputError as error:
        assert " do not fit in " in str(error)
        assert devices * sum(parts) + block * kv > capacity * utilization * devices * (1 - 1e-12)
        return
    used = devices * sum(parts) + found.num_blocks * block * kv
    room = capacity * utilization * devices
    assert used <= room * (1 + 1e-12) < used + block * kv * (1 + 1e-9)


def test_pipeline_stages_share_weights_and_keep_every_token():
    model = load_model("llama-3.1-70b")
    whole = stage_weight_bytes(model, "bf16")
    parts = [stage_weight_bytes(model, "bf16", 2, pp) for pp in (1, 2, 4)]
    assert parts[0] == model.weight_bytes("bf16", 2)
    assert whole / 2 > parts[0] / 2 < parts[1] < parts[0]
    table = model.vocab_size * model.hidden_size * 2 / 2
    assert parts[1] == pytest.approx(parts[0] / 2, rel=1e-6)              # one of embedding and head on each
    assert parts[2] == pytest.approx((parts[0] - 2 * table) / 4 + table, rel=1e-6)
    assert stage_kv_bytes_per_token(model, 2.0, 2, 4) == model.kv_bytes_per_token() / 8
    assert stage_kv_bytes_per_token(model, 2.0, 1, 3) == model.kv_bytes_per_token() * 27 / 80   # 27, 27, 26 layers
    assert budget("llama-3.1-70b", "h100-sxm", 2, 2).num_blocks > budget("llama-3.1-70b", "h100-sxm", 2, 1).num_blocks


def test_sources_of_the_parts():
    found = budget("llama-3.1-8b", "h100-sxm", memory={"engine_reserve": "1 GiB", "weights": "20 GB"})
    assert found.engine == Part(2**30, "given")
    assert found.weights == Part(20 * 10**9, "given")
    assert "2,048 tokens and 256 sequences" in found.activations.source
    legacy = MemoryConfig(capacity=80 * 2**30).budget("llama-3.1-8b", 1, HardwareInfo(), None, SCHEDULER, None)
    assert (legacy.activations.bytes, legacy.engine.bytes, legacy.capacity.source) == (0, 0, "given")


@pytest.mark.parametrize(("model", "memory", "said"), [
    ("llama-3.1-8b", {"capacity": "1 MiB"},
     "the weights (16.1 GB) do not fit in 943.7 kB (gpu_memory_utilization 0.9 of 1 MiB): 16.1 GB are missing; take "
     "more devices (tp), a larger one, or fewer bits per weight"),
    ("llama-3.1-70b", {},
     "the weights (141.1 GB) do not fit in 76.4 GB (gpu_memory_utilization 0.9 of 84.9 GB, device h100-sxm): 64.7 GB "
     "are missing; "),
    ("llama-3.1-8b", {"capacity": "17 GB"},
     "the weights (16.1 GB) do not fit in 15.3 GB (gpu_memory_utilization 0.9 of 17 GB): 760.5 MB are missing; "),
    ("llama-3.1-8b", {"capacity": "17 GB", "utilization": 1, "activations": "1 GB"},
     "the weights (16.1 GB) + activations (1 GB) + a KV block (2 MiB) do not fit in 17 GB: "),
])
def test_what_does_not_fit_is_said_in_units_people_use(model, memory, said):
    with pytest.raises(InputError) as caught:
        budget(model, "h100-sxm", memory=memory)
    assert str(caught.value).startswith(f"memory.capacity: {said}")


def test_what_does_not_fit_into_tensorrt_llms_share_of_the_rest():
    """Parts are taken from the whole memory, the share from what they leave: 10 - 7 - 2 - 1.5 GB lacks 0.5, and a
    block of 0.09 takes 0.1 of a share of 0.9."""
    def said(weights):
        parts = [Part(round(size * 1e9), "given") for size in (10, weights, 2, 1.5)]
        with pytest.raises(InputError) as caught:
            cut_blocks(1, 9e7, 1, 0.9, *parts, rules=load_engine("trtllm-1.2").memory_rules)
        return str(caught.value)

    assert said(7).startswith("memory.capacity: the weights (7 GB) + activations (2 GB) + the engine (1.5 GB) + a KV "
                              "block (90 MB) do not fit in 10 GB: 600 MB are missing; take more devices")
    assert said(11).startswith("memory.capacity: the weights (11 GB) do not fit in 10 GB: 1 GB are missing; ")


def test_no_memory_at_all():
    config = LLMClientConfig.model_validate(
        {"model": "llama-2-70b", "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}}
    )
    with pytest.raises(InputError, match="give num_blocks, the capacity of a device, or the client's `device`"):
        config.resources(config.hardware.build(None), None)
    named = config.model_copy(update={"device": "h100-sxm"})
    has = named.resources(named.hardware.build(None), None)
    assert has.devices == 8   # the profile's parallelism
    assert has.memory.capacity.source == "device h100-sxm"
