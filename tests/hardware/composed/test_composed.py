"""Hardware model `composed`: named terms, their sources, and what adds up."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.hardware import StepStats, load_model
from hermes.hardware.base import BATCH_STATS
from hermes.hardware.composed import Composed
from hermes.hardware.composed.kernel_tables import load_kernels, shipped_kernels
from hermes.hardware.descriptions.files import names_in
from hermes.testing.hardware import HardwareModelContract, MonotoneHardwareModelContract, check_added_work, check_growth

LARGEST = {"tokens": 16_384, "past": 65_536, "seqs": 1_024, "context": 65_536}
MODELS = ["llama-3.1-8b", "llama-2-7b", "qwen3-14b", "qwen3-32b", "llama-3.1-70b", "codellama-34b", "mistral-7b"]
CARDS = ["h100-sxm", "h200", "b200", "a100-80gb", "l40s", "rtx-pro-6000", "rtx-4090"]


def prompt(tokens: int, past: int = 0, **more: int) -> StepStats:
    return StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_past=past,
                     prefill_attn=tokens * past + tokens * (tokens + 1) // 2, prefill_max=tokens, **more)


def decodes(seqs: int, context: int) -> StepStats:
    return StepStats(decode_seqs=seqs, decode_ctx=seqs * context, decode_ctx_max=context, sampled=seqs)


class TestOnOneCard(MonotoneHardwareModelContract):
    def make(self):
        return Composed(model="qwen3-14b", device="h100-sxm").build()


class TestOnFourCards(MonotoneHardwareModelContract):
    def make(self):
        return Composed(model="llama-3.1-70b", device="h100-sxm", tp=4).build()


class TestWithoutTablesInStepWithTheHost(HardwareModelContract):
    def make(self):
        return Composed(model="llama-3.1-8b", device="rtx-4090", asynchronous=False).build()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from(CARDS), st.sampled_from([1, 2, 4]), st.integers(0, 10**6))
def test_added_work_is_never_cheaper(model, card, tp, seed):
    check_added_work(Composed(model=model, device=card, tp=tp).build(), LARGEST, 3, seed=seed)


@pytest.mark.parametrize("card", CARDS)
def test_four_times_the_prompts_take_three_to_five_times_as_long(card):
    for tokens in (2048, 32_768, 131_072):
        check_growth(Composed(model="llama-3.1-8b", device=card).build(), tokens, measured=0.0)


@pytest.mark.feature("Hardware", "Named terms with sources: `composed`, `hermes explain`")
def test_a_step_is_the_sum_of_its_terms():
    model = Composed(model="qwen3-14b", device="h100-sxm").build()
    for stats in (decodes(7, 900), prompt(986), prompt(500, 700, decode_seqs=9, decode_ctx=4000, decode_ctx_max=900,
                                                       sampled=10)):
        terms = model.terms_ns(stats)
        assert min(terms.values()) >= 0.0
        assert model.step_ns(stats) == pytest.approx(sum(terms.values()), abs=1)
        assert {"qkv", "o_proj", "gate_up", "down", "elementwise", "engine"} <= set(terms)


@pytest.mark.feature("Hardware", "Tensor parallelism: `parallel`, links")
def test_all_reduces_by_hand():
    """Two a layer, of one 16-bit row of the hidden size for each token: 64 layers of 5,120 values."""
    one = Composed(model="qwen3-32b", device="rtx-pro-6000").build()
    two = Composed(model="qwen3-32b", device="rtx-pro-6000", tp=2,
                   link={"latency": 32e-6, "bandwidth": 15e9}).build()
    stats = prompt(1000)
    assert "all_reduce" not in one.terms_ns(stats)
    by_hand = 2 * 64 * (32e-6 + 1000 * 5120 * 2 / 15e9) * 1e9
    assert two.terms_ns(stats)["all_reduce"] == pytest.approx(by_hand, rel=1e-9)
    captured = decodes(9, 100)   # runs padded to 16, the next captured size
    assert two.terms_ns(captured)["all_reduce"] == pytest.approx(2 * 64 * (32e-6 + 16 * 5120 * 2 / 15e9) * 1e9)


def test_cards_without_nvlink_go_through_host_memory():
    """32 us and a quarter of the slot's rate for two; a ring of four moves 1.5 times the bytes, 5 us later."""
    def reduced(tp, card="l40s"):
        terms = Composed(model="qwen3-32b", device=card, tp=tp).build().terms_ns(prompt(1000))
        return terms["all_reduce"] / (2 * 64)

    size, gen4 = 1000 * 5120 * 2, 16e9 * 128 / 130 * 2
    assert reduced(2) == pytest.approx(1e9 * (32e-6 + size / (0.25 * gen4)))
    assert reduced(4) == pytest.approx(1e9 * (37e-6 + 1.5 * size / (0.25 * gen4)))
    assert reduced(2, "h100-sxm") < reduced(2) / 10


def test_tensor_parallelism_halves_what_is_shared_out():
    """By hand, where no table and no launch counts: weights and KV of half the heads on each of two cards."""
    one, two = (Composed(model="llama-2-7b", device="rtx-4090", tp=tp, top_p=False,
                         link={"latency": 0.0, "bandwidth": 1e18}, step={}).build() for tp in (1, 2))
    stats = decodes(64, 8000)
    ours, shared = one.terms_ns(stats), two.terms_ns(stats)
    assert shared["attention_of_decodes"] / ours["attention_of_decodes"] == pytest.approx(0.5, rel=0.02)


def test_sampling_sorts_the_vocabulary_where_the_model_says_so():
    def sampling(**options):
        return Composed(device="h100-sxm", **options).build().terms_ns(decodes(10, 100))["sampling"]

    qwen, llama = sampling(model="qwen3-14b"), sampling(model="llama-3.1-8b")
    assert qwen / llama == pytest.approx(load_model("qwen3-14b").vocab_size / load_model("llama-3.1-8b").vocab_size)
    assert qwen == pytest.approx(10 * 15_200, rel=0.01)
    assert sampling(model="codellama-34b") == sampling(model="qwen3-14b", top_p=False) == 0.0
    assert sampling(model="codellama-34b", top_p=True) > 0.0


def test_packed_decodes_cost_tiles_of_the_prompts_kernel():
    """Five query heads share a KV head: a decode's tile of 128 rows is worth 25.6 tokens of a prompt."""
    model = Composed(model="qwen3-14b", device="h100-sxm").build()
    alone = model.terms_ns(decodes(20, 1000))["attention_of_decodes"]
    uneven = 20 * 1001   # all contexts are equal
    stats = prompt(3000, decode_seqs=20, decode_ctx=20_000, decode_ctx_max=1000, sampled=21)
    terms, pairs = model.terms_ns(stats), 3000 * 3001 // 2 + round(25.6 * uneven)
    longer = StepStats(prefill_seqs=1, prefill_tokens=3000, prefill_attn=pairs, prefill_max=3000, sampled=1)
    both = model.terms_ns(longer)["attention_of_prompts"]
    tiles = 20 * 14 * 40 * 40   # ns of each decode, query head and layer
    assert terms["attention_of_prompts"] + terms["decodes_beside_prompt"] == pytest.approx(both + tiles, rel=1e-6)
    far = model.terms_ns(prompt(25, decode_seqs=200, decode_ctx=800_000, decode_ctx_max=4000, sampled=201))
    assert far["attention_of_prompts"] + far["decodes_beside_prompt"] >= (
        model.terms_ns(decodes(200, 4000))["attention_of_decodes"]), "the KV is read all the same"

    def beside(tokens, card="h100-sxm"):
        stats = prompt(tokens, decode_seqs=20, decode_ctx=20_000, decode_ctx_max=1000, sampled=21)
        return Composed(model="qwen3-14b", device=card).build().terms_ns(stats)["decodes_beside_prompt"]

    assert beside(25) < 1.5 * alone, "the KV is read once all the same"
    assert beside(4000) < 2 * alone, "however long the prompt, a decode is one tile"
    assert beside(4000, "b200") == pytest.approx(beside(1, "b200")), "launches of their own"
    other = Composed(model="qwen3-14b", device="rtx-pro-6000").build().terms_ns(decodes(20, 1000))
    assert beside(25, "rtx-pro-6000") > 1.5 * other["attention_of_decodes"], "each query head reads the KV again"


def test_the_host_hides_behind_the_device_or_adds_up():
    step = {"exposed": 1e-3, "host": 0.5, "host_per_seq": 1e-3}
    stats = decodes(10, 100)
    device = Composed(model="llama-3.1-8b", device="h100-sxm", step={"exposed": 1e-3}).build().step_ns(stats)
    hidden = Composed(model="llama-3.1-8b", device="h100-sxm", step=step).build().step_ns(stats)
    added = Composed(model="llama-3.1-8b", device="h100-sxm", step=step, asynchronous=False).build().step_ns(stats)
    assert hidden == 510_000_000
    assert added == device + 510_000_000


MIXED = {"decode_seqs": 9, "decode_ctx": 4000, "decode_ctx_max": 900, "sampled": 10}


@pytest.mark.parametrize(("name", "rows", "stats"), [
    ("gate_up", 509, prompt(500, 700, **MIXED)), ("lm_head", 10, prompt(500, 700, **MIXED)),
    ("attention_of_prompts", 500, prompt(500, 700, **MIXED)), ("decodes_beside_prompt", 9, prompt(500, 700, **MIXED)),
    ("attention_of_decodes", 16, decodes(16, 900)), ("all_reduce", 16, decodes(16, 900)),
    ("engine", 16, decodes(16, 900)),
])
def test_a_scenario_changes_one_term_alone(name, rows, stats):
    options = {"model": "qwen3-14b", "device": "h100-sxm", "tp": 2}
    before = Composed(**options).build()
    after = Composed(**options, terms={name: {"scale": 1.5, "fixed": 20e-6, "per_row": 3e-6}}).build()
    ours, theirs = before.terms_ns(stats), after.terms_ns(stats)
    assert theirs[name] == pytest.approx(1.5 * ours[name] + 20_000 + 3_000 * (512 if name == "gate_up" else rows))
    assert all(theirs[key] == ns for key, ns in ours.items() if key != name)
    assert after.step_ns(stats) == pytest.approx(sum(theirs.values()), abs=1)
    assert after.run_ns(stats, 3)[0] == after.step_ns(stats)
    assert "times 1.5" in after.sources_of()[name]


def test_an_unknown_term_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"a term of this model: all_reduce, .* sampling"):
        Composed(model="qwen3-14b", device="h100-sxm", terms={"head": {"scale": 2}}).build()


def test_steps_beyond_the_tables_are_counted():
    model = Composed(model="qwen3-14b", device="h100-sxm").build()
    last = model.ranges()
    runs = [decodes(4, 100), decodes(int(last["decode_ctx"]) // 1000, 990), prompt(int(last["tokens"])),
            prompt(int(last["tokens"]) + 1), prompt(2048, int(last["prefill_attn"]) // 2048)]
    columns = {name: np.array([getattr(stats, name) for stats in runs]) for name in BATCH_STATS}
    outside = model.out_of_range(columns, np.array([100, 100, 1, 1, 1]))
    assert outside[0] == 0
    assert 80 < outside[1] < 95, "its contexts outgrow the tables on the way"
    assert list(outside[2:]) == [1, 1, 1], "the pairs of a prompt of 32,768 tokens are outside already"
    roofline = Composed(model="llama-3.1-8b", device="rtx-4090").build()
    assert not roofline.out_of_range(columns, np.array([100, 100, 1, 1, 1])).any()


def test_every_kernel_table_is_of_a_shipped_device():
    for name in shipped_kernels():
        file = load_kernels(name).file
        engine = file.engine.split()[0]
        assert file.device in names_in("devices")
        assert name == (file.device if engine == "vllm" else f"{file.device}-{engine}")


def test_a_run_of_steps_crosses_from_the_launch_to_the_reading():
    model = Composed(model="qwen3-14b", device="h100-sxm").build()
    run = model.run_ns(decodes(4, 1), 4000)
    assert (np.diff(run) >= 0).all()
    assert run[0] == run[1] < run[-1]


def test_kernel_tables_by_path(tmp_path):
    """A client's own tables, those beside a device file, and the shipped ones of another card."""
    shipped = resource_dir("hw_profiles") / "kernels"
    for suffix in (".yaml", ".npz"):
        shutil.copy(shipped / f"h100-sxm{suffix}", tmp_path / f"mine{suffix}")
    stats = prompt(1000)
    theirs = Composed(model="qwen3-14b", device="rtx-4090").build()
    own = Composed(model="qwen3-14b", device="rtx-4090", kernels="./mine.yaml").build(tmp_path)
    assert own.terms_ns(stats)["qkv"] != theirs.terms_ns(stats)["qkv"]
    assert "h100-sxm" in own.sources_of()["qkv"]
    named = Composed(model="qwen3-14b", device="rtx-4090", kernels="h100-sxm").build()
    assert named.terms_ns(stats) == own.terms_ns(stats)

    card = (shipped.parent / "devices" / "rtx-4090.yaml").read_text()
    (tmp_path / "card.yaml").write_text(card + "kernels: mine.yaml\n")
    (tmp_path / "elsewhere").mkdir()
    beside = Composed(model="qwen3-14b", device="../card.yaml").build(tmp_path / "elsewhere")
    assert beside.terms_ns(stats) == own.terms_ns(stats)
    with pytest.raises(InputError, match=r"kernels: expected kernel tables: an existing file"):
        Composed(model="qwen3-14b", device="rtx-4090", kernels="./nothing.yaml").build(tmp_path)


def test_measured_all_reduces_of_given_tables_go_before_assumed_ones():
    """An RTX 4090 has no NVLink: what is assumed of PCIe gives way to tables that its user names."""
    def reduced(**options):
        model = Composed(model="qwen3-14b", device="rtx-4090", tp=2, **options).build()
        return model.terms_ns(prompt(1000))["all_reduce"]

    assert reduced(kernels="h100-sxm") < reduced() / 10


@pytest.mark.parametrize(("tp", "message"), [(3, "8 key-value heads"), (7, "48 attention heads")])
def test_heads_that_cannot_be_split(tp, message):
    """48 query heads over 8 key-value heads."""
    model = load_model("llama-3.1-8b").model_copy(update={"num_heads": 48})
    with pytest.raises(InputError, match=message):
        model.check_tp(tp)
    model.check_tp(4)
    model.check_tp(16)


@pytest.mark.parametrize(("card", "key"), [("h100-sxm", "read"), ("b200", "per_seq")])
def test_figures_that_do_not_count_on_a_card_are_refused(card, key):
    with pytest.raises(InputError, match=rf"beside\.{key}.*does not count for {card}"):
        Composed(model="qwen3-14b", device=card, beside={key: 1e-9}).build()
