"""The roofline: figures of a real engine's kernels, arithmetic by hand, and how it reacts to its parameters."""

import pytest
from pydantic import ValidationError

from hermes.errors import InputError
from hermes.hardware import HARDWARE
from hermes.testing.hardware import batch


def roofline(**options):
    data = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm", **options}
    return HARDWARE.get("roofline").model_validate(data).build()


def decodes(seqs, context):
    return batch([], [context] * seqs)


# aiconfigurator-core 0.12.0, H100 SXM, vLLM 0.24.0, bf16; milliseconds. The defaults were set on these figures.
REFERENCE = [
    ("llama-3.1-8b", 1, batch([(512, 0)], []), 12.0),
    ("llama-3.1-8b", 1, batch([(2048, 0)], []), 43.5),
    ("llama-3.1-8b", 1, batch([(8192, 0)], []), 199.7),
    ("llama-3.1-8b", 1, decodes(1, 1024), 6.18),
    ("llama-3.1-8b", 1, decodes(8, 1024), 6.60),
    ("llama-3.1-8b", 1, decodes(32, 1024), 8.33),
    ("llama-3.1-8b", 1, decodes(128, 1024), 12.8),
    ("llama-3.1-70b", 2, decodes(1, 1024), 27.5),
    ("llama-3.1-70b", 4, decodes(1, 1024), 14.9),
    ("llama-3.1-70b", 8, decodes(1, 1024), 10.1),
    ("llama-3.1-70b", 4, decodes(32, 1024), 16.9),
    ("llama-3.1-70b", 4, batch([(2048, 512)], []), 131.0),
]


@pytest.mark.parametrize(("model", "tp", "stats", "milliseconds"), REFERENCE)
def test_defaults_agree_with_measured_kernels(model, tp, stats, milliseconds):
    assert roofline(model=model, tp=tp).step_ns(stats) / 1e6 == pytest.approx(milliseconds, rel=0.08)


IDEAL = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "step_overhead": 0.0, "hop_latency": 0.0}


def test_one_decode_reads_all_weights_and_its_context_once():
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    activations = 32 * (4096 + 6144 + 4096 + 4096 + 2 * 4096 + 3 * 14336)
    kv = 2 * 32 * 8 * 128 * (1000 + 1)
    head = 4096 * 128_256
    expected = 2 * (layers + activations + kv + head) / 3.35e12
    assert roofline(**IDEAL).step_ns(decodes(1, 1000)) == pytest.approx(expected * 1e9, abs=1)


def test_a_long_prefill_does_its_multiplications():
    n = 20_000
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    flops = 2 * layers * n + 4 * 32 * 32 * 128 * n * (n + 1) / 2
    head = 2 * 4096 * 128_256 / 3.35e12  # one sampled row: reading the weights takes longer than multiplying
    assert roofline(**IDEAL).step_ns(batch([(n, 0)], [])) == pytest.approx((flops / 989.4e12 + head) * 1e9, rel=1e-9)


def test_past_tokens_cost_attention_only():
    model = roofline(**IDEAL)
    extra = model.step_ns(batch([(2000, 8000)], [])) - model.step_ns(batch([(2000, 0)], []))
    assert extra == pytest.approx(4 * 32 * 32 * 128 * 2000 * 8000 / 989.4e12 * 1e9, abs=2)


def test_one_prompt_token_with_a_long_past_reads_its_cache():
    model = roofline(**IDEAL)
    extra = model.step_ns(batch([(1, 100_000)], [])) - model.step_ns(batch([(1, 50_000)], []))
    assert extra == pytest.approx(2 * 2 * 32 * 8 * 128 * 50_000 / 3.35e12 * 1e9, abs=2)


def test_encoders_attend_in_both_directions_and_have_no_head():
    options = {"model": "e5-base", "device": "a100-80gb", **IDEAL}
    operators = roofline(**options).operators_ns(batch([(512, 0)] * 40, []))
    assert operators["prefill_attention"] == pytest.approx(40 * 4 * 12 * 12 * 64 * 512**2 / 312e12 * 1e9, rel=1e-9)
    assert operators["lm_head"] == 0


def test_tensor_parallelism_divides_work_and_adds_all_reduces():
    one, eight = (roofline(model="llama-3.1-70b", tp=tp, **IDEAL, link_efficiency=1.0) for tp in (1, 8))
    stats = batch([(4096, 0)], [100] * 10)
    whole, part = one.operators_ns(stats), eight.operators_ns(stats)
    assert part["all_reduce"] == pytest.approx(160 * 2 * 7 / 8 * 4106 * 8192 * 2 / 450e9 * 1e9)
    for name in ("qkv", "o_proj", "ffn", "prefill_attention", "lm_head"):
        assert part[name] == pytest.approx(whole[name] / 8), name
    latency = roofline(model="llama-3.1-70b", tp=8, **IDEAL | {"hop_latency": 1e-6}, link_efficiency=1.0)
    assert latency.step_ns(stats) - eight.step_ns(stats) == 160 * 14 * 1000


def test_more_devices_than_key_value_heads_read_whole_heads():
    stats = [batch([], [n] * 8) for n in (1000, 2000)]
    slopes = []
    for tp in (8, 16):
        model = roofline(model="llama-3.1-70b", tp=tp, **IDEAL)
        slopes.append(model.step_ns(stats[1]) - model.step_ns(stats[0]))
    assert slopes[0] == pytest.approx(slopes[1], abs=1)  # 8 heads on 16 devices: no less to read on each


@pytest.mark.parametrize(
    ("dtype", "bytes_per_weight"), [("bf16", 2), ("fp8", 1), ("int8", 1), ("int4-awq", 0.51953125), ("fp32", 4)]
)
def test_weight_types_change_what_a_decode_reads(dtype, bytes_per_weight):
    operators = roofline(**IDEAL, dtype=dtype).operators_ns(decodes(1, 1))
    weights = 32 * 3 * 4096 * 14336 * bytes_per_weight
    activations = 32 * (2 * 4096 + 3 * 14336) * (4 if dtype == "fp32" else 2)
    assert operators["ffn"] == pytest.approx((weights + activations) / 3.35e12 * 1e9)
    assert operators["lm_head"] == pytest.approx(4096 * 128_256 * (4 if dtype == "fp32" else 2) / 3.35e12 * 1e9)


def test_an_fp8_cache_halves_the_cost_of_context():
    slopes = []
    for kv_dtype in ("auto", "bf16", "fp8"):
        model = roofline(**IDEAL, kv_dtype=kv_dtype)
        slopes.append(model.step_ns(decodes(64, 20_000)) - model.step_ns(decodes(64, 10_000)))
    assert slopes[0] == slopes[1] == pytest.approx(2 * slopes[2], abs=2)


def test_fp8_multiplies_faster_only_where_the_device_can():
    for device, ratio in (("h100-sxm", 2.0), ("a100-80gb", 1.0)):
        stats = batch([(20_000, 0)], [])
        full, half = (roofline(**IDEAL, device=device, dtype=dtype).operators_ns(stats) for dtype in ("bf16", "fp8"))
        assert full["ffn"] / half["ffn"] == pytest.approx(ratio, rel=1e-3)


def test_experts_are_read_as_far_as_tokens_choose_them():
    model = roofline(model="mixtral-8x7b", **IDEAL)
    per_expert = 32 * 3 * 4096 * 14336 * 2 / 3.35e12 * 1e9
    activations = 32 * 2 * (2 * 4096 + 3 * 14336) * 2 / 3.35e12 * 1e9
    one = model.operators_ns(decodes(1, 1))["ffn"]
    assert one == pytest.approx(2 * per_expert + activations)
    assert model.operators_ns(decodes(60, 1))["ffn"] == pytest.approx(8 * per_expert + 60 * activations, rel=1e-6)
    busy = model.operators_ns(batch([(10_000, 0)], []))["ffn"]
    assert busy == pytest.approx(10_000 * 2 * 2 * 32 * 3 * 4096 * 14336 / 989.4e12 * 1e9)


def test_parts_add_up():
    model = roofline(tp=2)
    stats = batch([(300, 50)], [800, 900])
    context = (800 + 900 + 2) * 2 * 32 * 4 * 128 * 2 / (3.35e12 * 0.77) * 1e9
    assert model.step_ns(stats) == pytest.approx(sum(model.operators_ns(stats).values()) + context, abs=1)


def test_better_hardware_is_faster():
    order = ["a40", "l40s", "a100-40gb", "a100-80gb", "h100-sxm", "h200", "b200"]
    times = [roofline(device=device).step_ns(decodes(4, 500)) for device in order]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "lama-3.1-8b"}, "did you mean 'llama-3.1-8b'"),
        ({"device": "h100"}, "a device description: one of"),
        ({"tp": 3}, "tp: expected a divisor of the 32 attention heads of llama-3.1-8b, found 3"),
    ],
)
def test_references_that_do_not_resolve(options, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        roofline(**options)


@pytest.mark.parametrize(
    "options", [{"tp": 0}, {"compute_efficiency": 1.5}, {"memory_efficiency": 0.0}, {"dtype": "int3"}, {"typo": 1}]
)
def test_values_out_of_bounds_are_refused(options):
    with pytest.raises(ValidationError):
        roofline(**options)


def test_descriptions_come_from_files_beside_the_scenario(tmp_path):
    (tmp_path / "chip.yaml").write_text(
        "name: chip\nflops: {bf16: 1e15}\nmemory_bandwidth: 1 TB/s\nmemory: 64 GB\n"
        "link_bandwidth: 100 GB/s\nhost_bandwidth: 10 GB/s\nsources: [made up]\n"
    )
    component = HARDWARE.get("roofline").model_validate(
        {"kind": "roofline", "model": "llama-2-7b", "device": "chip.yaml", "step_overhead": "1 ms"}
    )
    model = component.build(tmp_path)
    assert model.name == "llama-2-7b-chip-tp1-bf16"
    assert model.operators_ns(decodes(1, 1))["overhead"] == pytest.approx(1e6)
