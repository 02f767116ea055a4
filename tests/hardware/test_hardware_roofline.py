"""The roofline: figures of a real engine's kernels, arithmetic by hand, and how it reacts to its parameters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware import HARDWARE
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.efficiency import Efficiency, load_efficiency, uniform
from hermes.testing.hardware import batch, columns_of, random_stats


def roofline(**options):
    data = {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm", **options}
    return HARDWARE.get("roofline").model_validate(data).build()


def decodes(seqs, context):
    return batch([], [context] * seqs)


# aiconfigurator-core 0.12.0, H100 SXM, vLLM 0.24.0, bf16; milliseconds. The factors were fitted on such figures.
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


@pytest.mark.feature("Hardware", "Models and devices without measurements: `roofline`")
@pytest.mark.parametrize(("model", "tp", "stats", "milliseconds"), REFERENCE)
def test_defaults_agree_with_measured_kernels(model, tp, stats, milliseconds):
    assert roofline(model=model, tp=tp).step_ns(stats) / 1e6 == pytest.approx(milliseconds, rel=0.1)


IDEAL = {"efficiency": "ideal"}


def elementwise(tokens, model="llama-3.1-8b", device="h100-sxm", **options):
    priced = roofline(**IDEAL, model=model, device=device, **options)
    return priced.operators_ns(batch([(tokens, 0)], []))["elementwise"]


def test_one_decode_reads_all_weights_and_its_context_once():
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    activations = 32 * (4096 + 6144 + 4096 + 4096 + 2 * 4096 + 3 * 14336)
    kv = 2 * 32 * 8 * 128 * (1000 + 1)
    query = 32 * 2 * 32 * 128
    head = 4096 * 128_256 + 4096 + 128_256
    expected = 2 * (layers + activations + kv + query + head) / 3.35e12 * 1e9 + elementwise(1)
    assert roofline(**IDEAL).step_ns(decodes(1, 1000)) == pytest.approx(expected, abs=1)


def test_elementwise_operators_by_hand():
    per_layer = 2 * 4 * 4096 + 2 * (32 + 8) * 128 + 3 * 14336  # two norms with residuals, rotary, gate and product
    assert elementwise(100) == pytest.approx(100 * 2 * (32 * per_layer + 2 * 4096) / 3.35e12 * 1e9)


def test_a_long_prefill_does_its_multiplications():
    n = 20_000
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    flops = 2 * layers * n + 4 * 32 * 32 * 128 * n * (n + 1) / 2
    head = 2 * (4096 * 128_256 + 4096 + 128_256) / 3.35e12  # one sampled row: reading takes longer than multiplying
    expected = (flops / 989.4e12 + head) * 1e9 + elementwise(n)
    assert roofline(**IDEAL).step_ns(batch([(n, 0)], [])) == pytest.approx(expected, rel=1e-9)


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
    one, eight = (roofline(model="llama-3.1-70b", tp=tp, **IDEAL) for tp in (1, 8))
    stats = batch([(4096, 0)], [100] * 10)
    whole, part = one.operators_ns(stats), eight.operators_ns(stats)
    assert part["all_reduce"] == pytest.approx(160 * 2 * 7 / 8 * 4106 * 8192 * 2 / 450e9 * 1e9)
    for name in ("qkv", "o_proj", "ffn", "prefill_attention"):
        assert part[name] == pytest.approx(whole[name] / 8), name
    assert part["lm_head"] == pytest.approx(whole["lm_head"] / 8, rel=1e-2)  # every device reads all activations
    factors = load_efficiency("ideal").factors.model_dump()
    factors["all_reduce"][0]["latency"] = 1e-6
    slower = roofline(model="llama-3.1-70b", tp=8, efficiency=factors)
    assert slower.step_ns(stats) - eight.step_ns(stats) == 160 * 1000


def test_pipeline_stages_add_up_and_hand_activations_on():
    stats = batch([(4096, 0)], [100] * 10)
    one, four = (roofline(model="llama-3.1-70b", tp=2, pp=pp, **IDEAL).operators_ns(stats) for pp in (1, 4))
    hops = 3 * 4106 * 8192 * 2 / 2 / 450e9 * 1e9
    assert four.pop("all_reduce") - one.pop("all_reduce") == pytest.approx(hops)
    assert four == one
    with pytest.raises(InputError, match="1 to 80 pipeline stages"):
        roofline(model="llama-3.1-70b", pp=81)


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
    memory = (weights + activations) / 3.35e12
    widening = 2 * 32 * 3 * 4096 * 14336 / 66.9e12 if dtype == "int4-awq" else 0.0
    assert widening < memory  # hidden behind the reads
    assert operators["ffn"] == pytest.approx(memory * 1e9)
    head = 4096 * 128_256 + 4096 + 128_256
    assert operators["lm_head"] == pytest.approx(head * (4 if dtype == "fp32" else 2) / 3.35e12 * 1e9)


def test_weights_that_are_widened_multiply_slower_than_sixteen_bit_ones():
    stats = batch([(20_000, 0)], [])
    plain, widened = (roofline(**IDEAL, dtype=dtype).operators_ns(stats)["ffn"] for dtype in ("bf16", "int4-awq"))
    tiles = 20_000 / 128 + 1
    assert widened - plain == pytest.approx(2 * tiles * 32 * 3 * 4096 * 14336 / 66.9e12 * 1e9, rel=1e-6)


def test_an_fp8_cache_halves_the_cost_of_context():
    slopes = []
    for kv_dtype in ("auto", "bf16", "fp8"):
        model = roofline(**IDEAL, kv_dtype=kv_dtype)
        slopes.append(model.step_ns(decodes(64, 20_000)) - model.step_ns(decodes(64, 10_000)))
    assert slopes[0] == slopes[1] == pytest.approx(2 * slopes[2], abs=2)


def test_fp8_multiplies_faster_only_where_the_device_can():
    for device, ratio in (("h100-sxm", 2.0), ("a100-80gb", 1 / (1 + 312 / 19.5 / 128))):  # A100: widened per tile
        stats = batch([(20_000, 0)], [])
        full, half = (roofline(**IDEAL, device=device, dtype=dtype).operators_ns(stats) for dtype in ("bf16", "fp8"))
        assert full["ffn"] / half["ffn"] == pytest.approx(ratio, rel=2e-3)


def test_experts_are_read_as_far_as_tokens_choose_them():
    model = roofline(model="mixtral-8x7b", **IDEAL)
    per_expert = 32 * 3 * 4096 * 14336 * 2 / 3.35e12 * 1e9
    activations = 32 * 2 * (2 * 4096 + 3 * 14336) * 2 / 3.35e12 * 1e9
    one = model.operators_ns(decodes(1, 1))["experts"]
    assert one == pytest.approx(2 * per_expert + activations)
    assert model.operators_ns(decodes(60, 1))["experts"] == pytest.approx(8 * per_expert + 60 * activations, rel=1e-6)
    busy = model.operators_ns(batch([(10_000, 0)], []))["experts"]
    assert busy == pytest.approx(10_000 * 2 * 2 * 32 * 3 * 4096 * 14336 / 989.4e12 * 1e9)


def test_mixtures_read_all_they_may_choose_from_evenly():
    """128 experts, 8 per token: the expected number of distinct ones (Qwen3-30B-A3B)."""
    model = roofline(model="qwen3-30b-a3b", **IDEAL)
    rng = np.random.default_rng(0)
    drawn = [len({e for _ in range(16) for e in rng.choice(128, 8, replace=False)}) for _ in range(400)]
    assert model.work.experts_read(16) == pytest.approx(np.mean(drawn), rel=0.01)
    assert model.work.experts_read(1) == pytest.approx(8)


def test_parts_add_up():
    model = roofline(tp=2)
    stats = batch([(300, 50)], [800, 900])
    context = (800 + 900 + 2) * 2 * 32 * 4 * 128 * 2 / (3.35e12 * model.efficiency.decode_attention.memory) * 1e9
    expected = sum(model.operators_ns(stats).values()) + context
    assert expected < model.step_ns(stats) < 1.01 * expected  # the shorter side of the decodes' attention


def test_many_steps_at_once_are_the_single_steps():
    cases = list(random_stats(np.random.default_rng(3), 200))
    for options in ({}, {"model": "mixtral-8x7b", "tp": 2}, {"model": "e5-base"}, {"dtype": "fp8"}):
        model = roofline(**options)
        at_once = np.rint(model.seconds(columns_of(cases)) * 1e9)
        assert at_once.tolist() == pytest.approx([model.step_ns(stats) for stats in cases], abs=1)


LOADS = st.fixed_dictionaries({
    "prefills": st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 100_000)), max_size=5),
    "contexts": st.lists(st.integers(1, 200_000), max_size=300),
})


@settings(max_examples=60, deadline=None)
@given(load=LOADS, data=st.data())
def test_more_work_never_takes_less_time(load, data):
    """A token, past, context or sequence more is no cheaper, whatever the factors."""
    name = data.draw(st.sampled_from(["ideal", "cpu", "generic", "h100-sxm", "l40s", "b200"]))
    model = data.draw(st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b"]))
    dtype = data.draw(st.sampled_from(["bf16", "fp8", "int4-awq"]))
    tp = data.draw(st.sampled_from([1, 4]))
    priced = roofline(model=model, device="h100-sxm", efficiency=name, dtype=dtype, tp=tp)
    prefills, contexts = load["prefills"], load["contexts"]
    if not prefills and not contexts:
        return
    before = priced.step_ns(batch(prefills, contexts))
    grown = [batch([*prefills, (data.draw(st.integers(1, 500)), data.draw(st.integers(0, 500)))], contexts),
             batch(prefills, [*contexts, data.draw(st.integers(1, 5000))])]
    if prefills:
        (n, past), *rest = prefills
        grown += [batch([(n + 1, past), *rest], contexts), batch([(n, past + 1), *rest], contexts)]
    if contexts:
        grown.append(batch(prefills, [contexts[0] + 1, *contexts[1:]]))
    assert all(priced.step_ns(stats) >= before for stats in grown)
    assert 0 < before < 1e15


def test_no_time_beats_the_peak_rates():
    """The ideal roofline is a lower bound of every set of factors, and work / peak one of the ideal roofline."""
    cases = list(random_stats(np.random.default_rng(4), 100))
    for device in ("h100-sxm", "a100-80gb", "l40s", "cpu-large"):
        ideal, real = roofline(device=device, **IDEAL), roofline(device=device)
        for stats in cases:
            assert ideal.step_ns(stats) <= real.step_ns(stats)
            parts = ideal.work.ideal_s(stats, ideal.device.peak, ideal.device.memory_bandwidth,
                                       ideal.device.link_bandwidth)
            assert max(parts) * 1e9 <= ideal.step_ns(stats) + 1


@pytest.mark.parametrize("name", names_in("efficiency"))
def test_shipped_factors_say_where_they_come_from(name):
    file = load_efficiency(name)
    assert file.sources
    if file.device:  # fitted: models it had not seen within 10% (mean over data sets); of one model, configurations
        assert file.held_out
        assert file.mape < (0.1 if len(file.held_out) > 1 else 0.12)


def test_better_hardware_is_faster():
    order = ["a40", "l40s", "a100-40gb", "a100-80gb", "h100-sxm", "h200", "b200"]
    times = [roofline(device=device).step_ns(decodes(4, 500)) for device in order]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "lama-3.1-8b"}, "nearest: llama-3.1-8b"),
        ({"device": "a100x"}, "no device is called 'a100x'; nearest: a100"),
        ({"efficiency": "h100"}, "efficiency: expected a file of efficiency factors: one of"),
        ({"tp": 3}, "tp: expected a divisor of the 32 attention heads of llama-3.1-8b, found 3"),
    ],
)
def test_references_that_do_not_resolve(options, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        roofline(**options)


@pytest.mark.parametrize(
    "options", [{"tp": 0}, {"pp": 0}, {"efficiency": {"overlap": 2}}, {"dtype": "int3"}, {"typo": 1}]
)
def test_values_out_of_bounds_are_refused(options):
    with pytest.raises(ValidationError):
        roofline(**options)


@pytest.mark.parametrize("share", [5e-324, 1e-300, 1e-7, 0.0])
def test_an_efficiency_next_to_nothing_is_refused(share):
    """1e9 / (peak * 5e-324) is an infinity, and rounding it to nanoseconds an OverflowError in the middle of a run."""
    factors = uniform().model_dump() | {"ffn": {"compute": share, "memory": 0.5}}
    with pytest.raises(InputError, match=r"ffn\.compute: expected a number of at least 1e-06"):
        validate(Efficiency, factors)


@pytest.mark.parametrize("field", ["memory_bandwidth", "link_bandwidth", "host_bandwidth", "flops"])
def test_a_device_that_does_next_to_nothing_is_refused(field):
    device = load_device("h100-sxm").model_dump()
    with pytest.raises(InputError, match=field):
        validate(DeviceDescription, device | {field: ({"bf16": 5e-324} if field == "flops" else 5e-324)})


def test_descriptions_come_from_files_beside_the_scenario(tmp_path):
    (tmp_path / "chip.yaml").write_text(
        "name: chip\nflops: {bf16: 1e15}\nmemory_bandwidth: 1 TB/s\nmemory: 64 GB\n"
        "link_bandwidth: 100 GB/s\nhost_bandwidth: 10 GB/s\nsources: [made up]\n"
    )
    options = {"kind": "roofline", "model": "llama-2-7b", "device": "chip.yaml", "step_overhead": "1 ms"}
    with pytest.raises(InputError, match="efficiency: device chip names no efficiency factors; write `ideal`"):
        HARDWARE.get("roofline").model_validate(options).build(tmp_path)
    model = HARDWARE.get("roofline").model_validate(options | {"efficiency": "ideal"}).build(tmp_path)
    assert model.name == "llama-2-7b-chip-tp1-bf16"
    assert model.operators_ns(decodes(1, 1))["overhead"] == pytest.approx(1e6)


@pytest.mark.parametrize("name", names_in("roofline"))
def test_shipped_descriptions(name):
    model = described(profile=name)
    embedding = batch([(512, 0)] * 4, [])
    assert 1e4 < model.step_ns(embedding) < 1e11
    assert "efficiency factors" in model.description


def described(**options):
    return HARDWARE.get("roofline").model_validate({"kind": "roofline", **options}).build()


def test_a_description_gives_way_to_what_is_said_beside_it():
    stats = decodes(1, 100)
    plain = roofline(model="mistral-7b", device="a40")
    assert described(profile="mistral-7b-a40").step_ns(stats) == plain.step_ns(stats)
    beside = described(profile="mistral-7b-a40", dtype="fp8")
    assert beside.step_ns(stats) == roofline(model="mistral-7b", device="a40", dtype="fp8").step_ns(stats)
    with pytest.raises(InputError, match="device: missing: give a name or a path"):
        described(model="mistral-7b")
    with pytest.raises(InputError, match="profile: expected an analytical description: one of"):
        described(profile="mistral-7b-a41")
