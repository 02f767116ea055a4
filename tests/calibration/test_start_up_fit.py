"""The fit of an engine's start: on made-up starts, which it finds again, and on the measured ones, each left out."""

from __future__ import annotations

import csv
import json
from statistics import median

import pytest
from outside import OUTSIDE

from hermes.calibration.fit.start_up import PHASES, errors, fit_start_up, measured_starts, other_host, start_up_text
from hermes.cli import main
from hermes.config.data_files import resource_dir
from hermes.config.validation import load
from hermes.errors import InputError
from hermes.hardware.start_up import StartUpTimes, load_start_up

DATA = OUTSIDE / "data"
WARM_BAR, COLD_BAR = 0.15, 0.20   # most that the wall time of a model that was left out may be off

measured = pytest.mark.outside("data/startup")
SHAPES = {"a": (16, 8, 1024, 4096, 50_000), "b": (24, 16, 2048, 8192, 32_000), "c": (32, 32, 4096, 11_008, 64_000),
          "d": (48, 40, 5120, 13_824, 152_064)}   # layers, heads, hidden, ffn, vocab


@pytest.fixture
def made_up(tmp_path):
    """Starts by a law: what the shipped parameters say of four models."""
    folder = tmp_path / "startup"
    folder.mkdir()
    law = load_start_up("vllm-0.10", None)
    head = ["model", "params_b", "layers", "kv_heads", "heads", "hidden", "ffn", "vocab", "tokenizer_mb", "graph_mb",
            "cache", "phase", "seconds"]
    rows = []
    for name, (layers, heads, hidden, ffn, vocab) in SHAPES.items():
        matrices = layers * (4 * hidden * hidden + 3 * hidden * ffn)
        weights = 2 * (matrices + 2 * vocab * hidden)
        trace, first = law.trace.of(layers), law.profiling_first.of(layers)
        profiling = law.profiling.of(layers)
        capture = law.capture.of(layers, 2.0 * matrices, 312e12, (1, 2, 4, *range(8, 257, 8)))
        compiled = law.compile.of(layers)
        tokenizer = law.tokenizer.fixed + law.tokenizer.per_word * vocab
        loaded = law.weights.fixed + weights / law.weights.rate
        warm = {"load_weights": loaded, "model_init": 0.2, "dynamo_transform": trace,
                "graph_load_cached": law.load_compiled.of(layers), "kv_cache_profiling": profiling,
                "graph_capturing": capture, "tokenizer_init": tokenizer}
        cold = {"load_weights": loaded * 2, "model_init": 0.2, "dynamo_transform": trace, "graph_compile": compiled,
                "kv_cache_profiling": trace + compiled + profiling + first,
                "graph_capturing": capture + law.capture_first.of(layers), "tokenizer_init": tokenizer}
        warm["init_engine"] = sum(warm[phase] for phase in (
            "dynamo_transform", "graph_load_cached", "kv_cache_profiling", "graph_capturing"))
        cold["init_engine"] = cold["kv_cache_profiling"] + cold["graph_capturing"]
        for cache, phases in (("warm", warm), ("cold", cold)):
            phases["wall"] = law.process + phases["load_weights"] + phases["init_engine"] + tokenizer
            rows += [[name, 1, layers, heads, heads, hidden, ffn, vocab, 1, 1, cache, phase, each]
                     for phase, each in phases.items()]
    for name, table in (("a100.csv", [head, *rows]), ("a100-graph-sizes.csv", [
            ["model", "largest_captured_batch", "graph_capturing_s"],
            *([one, largest, law.capture.of(SHAPES[one][0], 2.0 * SHAPES[one][0] * (
                4 * SHAPES[one][2] ** 2 + 3 * SHAPES[one][2] * SHAPES[one][3]), 312e12,
                tuple(size for size in (1, 2, 4, *range(8, largest + 1, 8)) if size <= largest))]
              for one in ("a", "d") for largest in (1, 32, 512))])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(table)
    return tmp_path


@pytest.mark.feature("Measuring and fitting", (
    "`hermes calibrate start-up`: the phases of an engine's start, each model predicted without itself"))
def test_a_law_is_found_again(made_up):
    law, found = load_start_up("vllm-0.10", None), fit_start_up(measured_starts(made_up))
    for part in ("trace", "load_compiled", "compile", "profiling", "profiling_first", "capture", "capture_first",
                 "tokenizer", "weights"):
        for key, value in getattr(law, part).model_dump().items():
            assert getattr(found, part).model_dump()[key] == pytest.approx(value, rel=1e-3, abs=1e-6), (part, key)
    assert found.process == pytest.approx(law.process)
    off = [one for one in errors(measured_starts(made_up)) if abs(one.relative) > 1e-3]
    assert {(one.cache, one.phase) for one in off} == {("cold", "weights"), ("cold", "wall")}, "disks are not fitted"


def test_a_table_without_a_phase_is_refused(made_up):
    file = made_up / "startup" / "a100.csv"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if "graph_compile" not in line))
    with pytest.raises(InputError, match=r"a100\.csv: it has no row for .*graph_compile"):
        measured_starts(made_up)


def test_the_command_prints_errors_and_writes_a_file(made_up, capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    assert main(["calibrate", "start-up", "--data", str(made_up), "-o", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["cache"], row["phase"]) for row in rows] == [(c, p) for c in ("warm", "cold") for p in PHASES]
    assert load(StartUpTimes, file).process == pytest.approx(16.54)
    assert main(["calibrate", "start-up", "--data", str(made_up), "-v"]) == 0
    assert "By model" in capsys.readouterr().out
    assert main(["calibrate", "start-up", "--data", str(tmp_path / "none")]) == 2


@measured
def test_the_shipped_times_are_this_fit():
    shipped = (resource_dir("hw_profiles") / "start_up" / "vllm-0.10.yaml").read_text()
    assert start_up_text(fit_start_up(measured_starts(DATA))) == shipped


@measured
def test_each_model_is_predicted_without_itself():
    found = errors(measured_starts(DATA))
    assert len(found) == 11 * 2 * len(PHASES)
    for cache, bar in (("warm", WARM_BAR), ("cold", COLD_BAR)):
        walls = [abs(one.relative) for one in found if one.cache == cache and one.phase == "wall"]
        assert max(walls) <= bar
        assert sum(walls) / len(walls) <= 0.05
    by_phase = {phase: [abs(one.relative) for one in found if one.phase == phase and one.cache == "warm"]
                for phase in PHASES}
    means = {phase: sum(each) / len(each) for phase, each in by_phase.items()}
    assert means == {
        "process": pytest.approx(0.075, abs=0.01), "tokenizer": pytest.approx(0.105, abs=0.01),
        "weights": pytest.approx(0.03, abs=0.01), "compile": pytest.approx(0.04, abs=0.01),
        "profiling": pytest.approx(0.215, abs=0.01), "capture": pytest.approx(0.027, abs=0.01),
        "wall": pytest.approx(0.034, abs=0.01)}


@measured
@pytest.mark.parametrize(("cache", "bar"), [("warm", WARM_BAR), ("cold", COLD_BAR)])
def test_the_factor_of_one_warm_start_predicts_the_other_models_of_a_node(cache, bar):
    found = [one for one in other_host(DATA, load_start_up("vllm-0.10", None)) if one.cache == cache]
    fitted = {one.fitted for one in found} - {""}
    assert len(fitted) == 15
    medians = [median(abs(one.predicted_s / one.measured_s - 1.0) for one in found if one.fitted == each)
               for each in fitted]
    assert median(medians) <= bar
    assert sum(each <= bar for each in medians) >= 0.8 * len(medians)
    assert sum(one.low <= one.measured_s <= one.high for one in found) >= 0.9 * len(found)


@measured
def test_without_a_factor_the_range_contains_both_nodes():
    times = load_start_up("vllm-0.10", None)
    spread = dict(zip(("cold", "warm"), times.spread(known=False), strict=True))
    here = [(one.seconds[cache, "wall"] / sum(each[cache == "warm"] for each in times.phases(one.started).values()),
             cache) for one in measured_starts(DATA) for cache in ("cold", "warm")]
    assert all(spread[cache][0] <= ratio <= spread[cache][1] for ratio, cache in here)
    assert all(one.low <= one.measured_s <= one.high for one in other_host(DATA, times) if not one.fitted)
