"""What the shipped profiles from kernel tables answer, held against physics, each other and their source's figures."""

import re

import pandas as pd
import pytest
from each import each
from outside import OUTSIDE

from hermes.config.data_files import resource_dir
from hermes.hardware import load_device, load_model
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.fitted.polynomial import PolynomialModel
from hermes.hardware.fitted.profile import load_profile
from hermes.hardware.fitted.table import load_table
from hermes.testing.hardware import batch

PERF_MODEL = OUTSIDE / "data" / "splitwise" / "perf_model.csv"
DEVICES = {"h100": "h100-sxm", "h200": "h200", "a100": "a100-80gb", "b200": "b200", "l40s": "l40s",
           "rtx-pro-6000": "rtx-pro-6000"}
PATTERN = re.compile(r"(llama-3\.1-8b|llama-3\.1-70b|qwen3-32b)-(.+)-tp(\d)-(bf16|fp8)\Z")
NAMES = [name for name in names_in("") if PATTERN.match(name)]


def prefill(new, past, decodes=0, context=0):
    return batch([(new, past)], [context] * decodes)


def decode(seqs, context):
    return batch([], [context] * seqs)


def ms(name, step):
    return PolynomialModel(load_profile(name)).step_ns(step) / 1e6


def test_the_promised_profiles_ship():
    promised = {f"llama-3.1-8b-{card}-tp1-{dtype}" for card in ("h100", "h200", "b200", "l40s") for dtype in
                ("bf16", "fp8")}
    promised |= {f"llama-3.1-70b-{card}-tp{tp}-{dtype}" for card in ("h100", "h200", "b200") for tp in (2, 4, 8)
                 for dtype in ("bf16", "fp8")}
    promised |= {f"llama-3.1-70b-a100-tp{tp}-bf16" for tp in (2, 4, 8)} | {"llama-3.1-8b-a100-tp1-bf16"}
    promised |= {"llama-3.1-70b-l40s-tp4-bf16", "llama-3.1-70b-l40s-tp4-fp8", "llama-3.1-8b-rtx-pro-6000-tp1-bf16"}
    promised |= {"qwen3-32b-l40s-tp2-bf16", "qwen3-32b-rtx-pro-6000-tp2-bf16"}
    assert promised <= set(names_in(""))


@each("name", NAMES)
def test_weights_over_bandwidth_is_a_floor_for_decode(name):
    model, card, tp, dtype = PATTERN.match(name).groups()
    device, description = load_device(DEVICES[card]), load_model(model)
    floor_ms = description.weight_bytes(dtype, int(tp)) / device.memory_bandwidth * 1e3
    alone = ms(name, decode(1, 512))
    # embeddings are not read whole in a step: a little below the bytes of all weights is possible
    assert alone > 0.9 * floor_ms
    # and all-reduce, launches and small kernels do not make it many times that, up to TP4
    if int(tp) <= 4:
        assert alone < 4 * floor_ms


@each("name", NAMES)
def test_arithmetic_is_a_floor_for_prefill(name):
    model, card, tp, dtype = PATTERN.match(name).groups()
    device, description = load_device(DEVICES[card]), load_model(model)
    flops = 2 * description.num_layers * description.layer_matrix_params * 4096
    assert ms(name, prefill(4096, 0)) > flops / (int(tp) * device.peak(dtype)) * 1e3


@each("name", NAMES)
def test_files_are_small_and_say_what_they_hold(name):
    path = resource_dir("hw_profiles") / f"{name}.yaml"
    assert path.stat().st_size < 15 * 1024
    model, _, tp, dtype = PATTERN.match(name).groups()
    profile = load_profile(name)
    assert profile.name == name
    assert (profile.provenance.model, profile.provenance.tensor_parallel) == (model, int(tp))
    assert profile.provenance.dtype == dtype
    assert "aiconfigurator-core 0.12.0" in profile.provenance.source
    assert profile.phases.mixed is not None
    assert profile.memory.weights_bytes == pytest.approx(load_model(model).weight_bytes(dtype, int(tp)), rel=0.05)


@each("name", [name for name in NAMES if name.endswith("bf16")])
def test_held_out_errors_stay_below_the_targets(name):
    phases = load_profile(name).phases
    assert phases.prefill.error.mape <= 0.025
    assert phases.decode.error.mape <= 0.02


@pytest.mark.parametrize("card", ["h100", "h200", "b200", "a100"])
def test_more_devices_are_faster(card):
    for step in (prefill(2048, 0), decode(32, 2048)):
        times = [ms(f"llama-3.1-70b-{card}-tp{tp}-bf16", step) for tp in (2, 4, 8)]
        assert times == sorted(times, reverse=True)


def test_the_source_s_own_figures_come_back():
    """aiconfigurator-core 0.12.0, vLLM tables, H100, bf16."""
    name = "llama-3.1-8b-h100-tp1-bf16"
    assert [ms(name, prefill(n, 0)) for n in (512, 2048, 8192)] == pytest.approx([12.0, 43.5, 199.7], rel=0.04)
    assert [ms(name, decode(b, 1024)) for b in (1, 8, 32, 128)] == pytest.approx([6.18, 6.60, 8.33, 12.8], rel=0.04)
    alone = [ms(f"llama-3.1-70b-h100-tp{tp}-bf16", decode(1, 1024)) for tp in (2, 4, 8)]
    # TP8: a batch of one is dearer than one of two in the tables, and a profile never falls
    assert alone == pytest.approx([27.5, 14.9, 10.1], rel=0.05)


@pytest.mark.outside("data/splitwise/perf_model.csv")
def test_the_tables_of_splitwise_are_medians_of_its_file():
    """Whoever interpolates them must get splitwise-sim's own answers: the file's medians, nothing fitted."""
    rows = pd.read_csv(PERF_MODEL)
    for name in names_in("tables"):
        model, card, degree = re.fullmatch(r"splitwise-2023-(.+)-([ah]100)-tp(\d)", name).groups()
        keep = (rows.model == model.replace("llama-2", "llama2")) & (rows.hardware == f"{card}-80gb")
        part = rows[keep & (rows.tensor_parallel == int(degree))]
        if (model, degree) == ("llama-2-70b", "2"):
            part = part[part.batch_size < 64]   # corrupt
        tables = load_table(name)
        for column, table in (("prompt_time", tables.prefill), ("token_time", tables.decode)):
            expected = part[column].groupby(part.prompt_size * part.batch_size).median() / 1e3
            assert [x for x, _ in table.points] == list(expected.index)
            assert [y for _, y in table.points] == pytest.approx(list(expected), rel=1e-8)
