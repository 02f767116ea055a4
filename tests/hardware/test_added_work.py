"""Added work never makes a step cheaper: every kind of hardware model, every shipped profile and table, and the
operator tables beside the project, up to ten times beyond what was measured.

A few batches each; `pytest -m long` draws many.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from each import each
from outside import OUTSIDE, outside

from hermes.hardware import HARDWARE, HardwareModel
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.layerwise import STAIRS, Layerwise, LayerwiseModel
from hermes.hardware.fitted.operator_tables import ONCE, PER_LAYER, load_operator_tables
from hermes.testing.hardware import MonotoneHardwareModelContract, batch, check_added_work, check_growth

RUNS = OUTSIDE / "data" / "vllm-runs"
GIVEN = {
    "rtx4090-llama-3.1-8b/profile": "llama-3.1-8b", "rtxpro6000-llama-3.1-8b/profile": "llama-3.1-8b",
    "rtxpro6000-qwen3-32b-tp2/profile-tp1": "qwen3-32b", "rtxpro6000-qwen3-32b-tp2/profile-tp2": "qwen3-32b",
}
LARGEST = {"tokens": 20_480, "past": 163_840, "seqs": 2_560, "context": 163_840}
"""Ten times the largest batch of most profiles: 2,048 tokens, 16,384 of past and context, 256 decodes."""
PRODUCTS = sorted(STAIRS - {"lm_head"})
FEW, MANY = 3, 100


def uneven_tables(folder: Path, seed: int = 1) -> Path:
    """Operator tables with noise, falls (at the very end too), decodes that run side by side, and holes."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)

    def noise() -> float:
        return float(rng.choice([1.0, rng.uniform(0.9, 1.1), rng.uniform(1, 1.6)]))

    tokens = (1, 16, 64, 256, 512, 1024, 1536, 1984, 2032, 2048)
    rows = []
    for name in (*ONCE, *PER_LAYER):
        rows += [f"{name},{t},{(20 + 0.3 * t) * (0.97 if t == 2048 else noise() if t < 512 else 1.0)}" for t in tokens]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *rows]))
    rows = [f"{name},{s},{(100 + s) * noise()}" for name in ("lm_head", "sampler") for s in (1, 4, 16, 64)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *rows]))
    rows = []
    axes = ((0, 16, 128, 2048), (0, 64, 1024, 16_384), (0, 1, 2, 8, 64), (0, 16, 1024, 16_384))
    for chunk, past, decodes, context in itertools.product(*axes):
        if (chunk or not past) and (chunk or decodes) and bool(decodes) == bool(context):
            if past == 1024 and decodes == 8 and rng.random() < 0.5:
                continue   # a hole, filled from its neighbours
            us = 8 + 6e-5 * chunk * (past + chunk / 2) + 0.02 * past * (chunk > 0)
            us += (3 + 4e-3 * context) * max(1, decodes / 8) * (decodes > 0)   # up to 8 decodes in the time of one
            rows.append(f"{chunk},{past},{decodes},{context},{us * noise()}")
    (folder / "attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]))
    (folder / "skew.csv").write_text("pc,n,t_mean_us,t_max_us,t_skew_us\n0,2,100,200,112\n16,8,100,200,104")
    return folder


def models() -> dict[str, Callable[[], HardwareModel]]:
    """Everything that ships, by kind and name."""
    out: dict[str, Callable[[], HardwareModel]] = {}
    for kind, folder in (("polynomial", ""), ("table", "tables"), ("roofline", "roofline")):
        for name in names_in(folder):
            @functools.cache
            def build(kind: str = kind, name: str = name) -> HardwareModel:
                model: HardwareModel = HARDWARE.get(kind).model_validate({"kind": kind, "profile": name}).build()
                return model

            out[f"{kind}:{name}"] = build
    return out


MODELS = models()
given = pytest.mark.outside("data/vllm-runs")


@functools.cache
def given_tables(name: str) -> LayerwiseModel:
    return Layerwise(path=str(RUNS / name), model=GIVEN[name]).build()


def measured_tokens(model: HardwareModel) -> float:
    """The largest step of prompts that a whole-step model was measured on."""
    profile, tables = getattr(model, "profile", None), getattr(model, "tables", None)
    if profile is not None:
        ranges = profile.phases.prefill.range
        return float((ranges.get("prefill_tokens") or ranges.get("tokens") or [0, 0])[1])
    return float(tables.prefill.points[-1][0]) if tables is not None else 0.0


class TestUnevenOperatorTables(MonotoneHardwareModelContract):
    """And everything else that the kernel relies on."""

    examples = 60

    @functools.cached_property
    def folder(self) -> Path:
        return uneven_tables(Path(tempfile.mkdtemp()))

    def make(self) -> LayerwiseModel:
        return LayerwiseModel(load_operator_tables(self.folder), 3)


def test_every_kind_is_here():
    assert set(HARDWARE.names()) == {name.split(":")[0] for name in MODELS} | {"layerwise", "composed"}


@pytest.mark.feature("Hardware", "More work is never cheaper")
@each("name", MODELS)
def test_added_work_is_never_cheaper(name):
    check_added_work(MODELS[name](), LARGEST, FEW, seed=zlib.crc32(name.encode()))


def test_added_work_is_never_cheaper_by_uneven_operator_tables(tmp_path):
    model = LayerwiseModel(load_operator_tables(uneven_tables(tmp_path / "t")), 3)
    check_added_work(model, LARGEST, 25)
    check_added_work(model, {"tokens": 2048, "past": 16_384, "seqs": 64, "context": 16_384}, 25)


@given
@pytest.mark.parametrize("name", GIVEN)
def test_added_work_is_never_cheaper_by_given_operator_tables(name):
    model = given_tables(name)
    check_added_work(model, LARGEST, 6)
    check_added_work(model, {"tokens": 2048, "past": 16_384, "seqs": 256, "context": 16_384}, 12)


@each("name", MODELS)
def test_four_times_the_prompts_take_three_to_five_times_as_long(name):
    model = MODELS[name]()
    for tokens in (2048, 32_768, 131_072):
        check_growth(model, tokens, measured=measured_tokens(model))


def test_matrix_products_of_operator_tables_grow_with_the_tokens(tmp_path):
    """A last piece that falls was extended for ever: 363 ms at 2,048 tokens, 58 at 4,096, nothing at 8,192."""
    model = LayerwiseModel(load_operator_tables(uneven_tables(tmp_path / "t")), 3)
    for tokens in (2048, 4096, 20_480):
        check_growth(model, tokens, PRODUCTS)


@given
@pytest.mark.parametrize("name", GIVEN)
def test_matrix_products_of_given_operator_tables_grow_with_the_tokens(name):
    for tokens in (2048, 3000, 8192, 20_480):
        check_growth(given_tables(name), tokens, PRODUCTS)


@pytest.mark.parametrize("device", ["rtx-4090", "a100-80gb", "h100-sxm", "b200"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-32b", "gemma-2-2b"])
def test_matrix_products_of_a_roofline_grow_with_the_tokens(model, device):
    built = HARDWARE.get("roofline").model_validate({"kind": "roofline", "model": model, "device": device}).build()
    for tokens in (2048, 8192):
        check_growth(built, tokens, ["qkv", "o_proj", "ffn"])


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["uneven", *GIVEN])
def test_operators_grow_beyond_their_tables_as_fast_as_their_rooflines(name, tmp_path):
    """The slope of time over work beyond the last point is at least that of a roofline with the efficiency of the
    operator there."""
    if name == "uneven":
        model = LayerwiseModel(load_operator_tables(uneven_tables(tmp_path / "t")), 3)
    else:
        outside("data/vllm-runs")
        model = given_tables(name)
    tables = model.tables
    for tokens in (2049, 4096, 30_000):
        before = model.operators_ns(batch([(2048, 0)], []))
        after = model.operators_ns(batch([(tokens, 0)], []))
        for operator in tables.dense:
            slope = (after[operator] - before[operator]) / (tokens - 2048)
            assert slope >= before[operator] / 2048 * (1 - 1e-9), operator
        # attention: pairs of tokens, at the rate of the largest prefill that was measured
        largest = model.operators_ns(batch([(2048, 16_384)], []))["attention"] / (2048 * 16_384 + 2048 * 2049 / 2)
        pairs = tokens * (tokens + 1) / 2 - 2048 * 2049 / 2
        assert after["attention"] - before["attention"] >= pairs * largest * (1 - 1e-9)
    seqs = int(tables.attention.axes[2][-1])
    decodes = {n: model.attention_ns(batch([], [16_384] * n))[0] for n in (seqs, 3 * seqs)}
    assert decodes[3 * seqs] >= 3 * decodes[seqs] * (1 - 1e-9)
    longer = model.attention_ns(batch([], [3 * 16_384] * seqs))[0]
    assert longer >= 3 * decodes[seqs] * (1 - 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", [*MODELS, *GIVEN, "uneven"])
def test_added_work_is_never_cheaper_among_many_batches(name, tmp_path):
    if name in GIVEN:
        outside("data/vllm-runs")
    for seed in range(2):
        if name == "uneven":
            model: HardwareModel = LayerwiseModel(load_operator_tables(uneven_tables(tmp_path / f"{seed}", seed)), 3)
        else:
            model = given_tables(name) if name in GIVEN else MODELS[name]()
        check_added_work(model, LARGEST, MANY, seed)
        check_added_work(model, {key: most / 10 for key, most in LARGEST.items()}, MANY, seed)
