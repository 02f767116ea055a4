"""Single operators: plan, measure, continue, pack, kernel tables, a scenario priced by them. Here on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from hermes import simulate
from hermes.calibration.collect.terms_numpy import attention, copies_of
from hermes.calibration.fit.kernels import EngineFit, fit_engine, fit_power, fit_terms, save_kernels
from hermes.calibration.journal import Journal, read_journal
from hermes.calibration.measurements.terms import TermsMeasurement, hardware_lines
from hermes.calibration.plan import save_plan
from hermes.calibration.steps import STATS, MeasuredSteps, StepsHeader, tidy_rows
from hermes.calibration.terms import MeasuredTerms, load_terms, pack_terms
from hermes.calibration.terms_plan import GEMMS, Rank, TermsPlan
from hermes.cli import main
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.hardware.composed import Composed
from hermes.hardware.descriptions.engines import StepTime
from hermes.scenario import load_scenario

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 500,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
SETTINGS: dict[str, Any] = {
    "measure": "terms", "model": "tiny.json", "clock": "cpu", "warmup_s": 0.1, "repetitions": 3,
    "max_num_batched_tokens": 256, "max_num_seqs": 8, "max_context": 256, "cache": "1 MiB", "ranks": [1, 2],
}
DEVICE = """\
name: this-machine
type: cpu
flops: {fp32: 1.2e+11}
memory_bandwidth: 20 GB/s
memory: 16 GB
link_bandwidth: 16 GB/s
host_bandwidth: 16 GB/s
efficiency: cpu
mixed_attention: apart
kernels: kernels.yaml
sources: [made up, for a test]
"""
SCENARIO = """\
name: measured
workload:
  requests: 20
  arrivals: {kind: poisson, rate: 50 /s}
  lengths: {kind: fixed, prompt: 60, output: 9}
clients:
  - name: mine
    model: ./tiny.json
    device: ./device.yaml
    hardware: {kind: composed, dtype: fp32, kernels: ./kernels.yaml, step: {}}
    scheduler: {kind: chunked, max_num_batched_tokens: 128, max_num_seqs: 8}
"""
# of one step, over all its terms; 2% on an idle machine, whose noise the model evens out where operators never fall
TOLERANCE = 0.2


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    (tmp_path / "device.yaml").write_text(DEVICE)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path


def plan_file(**settings: Any) -> None:
    Path("plan.yaml").write_text(yaml.safe_dump(SETTINGS | settings))


def by_hand(medians: pd.DataFrame, rows: int, sampled: int, new: int, decodes: int, context: int) -> float:
    """Seconds of a step of one prompt beside decodes: measured operators times the layers that run them."""
    def one(term: str, **sizes: int) -> float:
        found = medians[(medians["term"] == term) & (medians[list(sizes)] == pd.Series(sizes)).all(axis=1)]
        assert len(found) == 1, (term, sizes)
        return float(found["time_s"].iloc[0])

    shapes = {"hidden": 64, "inner": 96, "turned": (4 + 2) * 16}
    layer = sum(one(term, rows=rows, n=n, k=k) for term, (n, k) in
                {"qkv": (128, 64), "o_proj": (64, 64), "gate_up": (192, 64), "down": (64, 96)}.items())
    layer += 2 * one("norm", rows=rows, width=shapes["hidden"]) + 2 * one("residual", rows=rows, width=shapes["hidden"])
    layer += one("rotary", rows=rows, width=shapes["turned"]) + one("activation", rows=rows, width=shapes["inner"])
    layer += one("prefill", batch=1, new=new, past=0, heads=4)
    layer += one("decode", batch=decodes, context=context, heads=4)
    once = one("embedding", rows=rows, width=64) + one("norm", rows=rows, width=64)
    return 2 * layer + once + one("lm_head", rows=sampled, n=500, k=64) + one("sampling", rows=sampled, width=500)


def everything(measured: MeasuredTerms) -> pd.DataFrame:
    """Medians of all points, those included whose repetitions a busy machine scattered too far for a fit."""
    return MeasuredTerms(measured.header, measured.rows.assign(excluded="")).medians()


STEP = StepStats(prefill_seqs=1, prefill_tokens=128, prefill_attn=128 * 129 // 2, prefill_max=128, decode_seqs=8,
                 decode_ctx=8 * 255, decode_ctx_max=255, sampled=8)


def priced(**options: Any) -> float:
    model = Composed(model="./tiny.json", device="./device.yaml", dtype="fp32", step={}, **options).build(Path())
    return sum(model.terms_ns(STEP).values()) / 1e9


# -- end to end --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Measuring and fitting", (
    "`hermes calibrate plan terms`, `hermes calibrate plan card`: every term of a card, measured, packed, "
    "made into kernel tables (`hermes fit`)"))
@pytest.mark.long
def test_from_a_plan_to_a_scenario_on_a_cpu(folder, capsys):
    """Interrupted by its budget, continued, packed, made into tables, and what is simulated takes what was measured."""
    plan_file()
    assert main(["calibrate", "run", "plan.yaml", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert set(planned["terms"]) == {*GEMMS, "norm", "residual", "embedding", "rotary", "activation", "sampling",
                                     "prefill", "decode", "beside", "power"}
    assert main(["calibrate", "run", "plan.yaml", "-q", "--budget", "1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert not first["complete"]
    assert 0 < first["measured"] < len(planned["points"])
    assert main(["calibrate", "run", "plan.yaml", "-q", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["complete"]
    records = [r for r in read_journal(Path("terms.journal.jsonl"))[1] if r["kind"] == "point"]
    counts = Counter(record["point"] for record in records)
    assert set(counts) == {point["name"] for point in planned["points"]}
    assert max(counts.values()) <= 2   # noisy points once more

    # minutes: within a factor of four, start-up of the processes aside
    assert done["estimated_s"] / 4 < done["taken_s"] < done["estimated_s"] * 4

    measured = load_terms(Path("terms.yaml"))
    header = measured.header
    assert header.source_sha256
    assert header.collected_by.startswith("hermes")
    assert header.engine.startswith("numpy")
    assert header.launch == "apart"
    assert all("not available" in line for line in header.unavailable if line.startswith("power"))
    assert sum(line.startswith("power") for line in header.unavailable) == 6
    assert not (measured.rows["term"] == "power").any()   # nothing is invented

    assert main(["fit", "terms.yaml", "-o", "kernels.yaml", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["hardware"] == ["hardware:", "  kind: composed", "  kernels: ./kernels.yaml"]
    assert {"gemm/fp32", "prefill/16/fp32", "decode/16/fp32"} <= set(made["tables"])
    # microseconds of attention scatter by a third on a busy machine; products must not
    assert {term: found["median"] for term, found in made["errors"].items()
            if abs(found["median"]) > (0.3 if term in GEMMS else 0.8)} == {}

    wanted = by_hand(everything(measured), rows=128, sampled=8, new=128, decodes=8, context=256)
    # 136 rows lie between the measured 128 and 256
    assert priced() == pytest.approx(wanted, rel=TOLERANCE)

    summary = simulate(load_scenario(Path("scenario.yaml"))).summary
    assert summary["requests"]["completed"] == 20


def test_tables_follow_what_was_measured(folder, capsys):
    """The check above can fail: operators that take ten times as long make the step that much longer."""
    steps = []
    for scale in (1.0, 10.0):
        Path("terms.journal.jsonl").unlink(missing_ok=True)
        journal = made_up(folder, lambda point, scale=scale: scale * seconds_of(point))
        assert main(["calibrate", "pack", str(journal), "-o", "terms.yaml"]) == 0
        assert main(["fit", "terms.yaml", "-o", "kernels.yaml"]) == 0
        wanted = by_hand(load_terms(Path("terms.yaml")).medians(), 128, 8, 128, 8, 256)
        steps.append(priced())
        assert steps[-1] == pytest.approx(wanted, rel=0.06)   # 136 rows for 128
    assert steps[1] == pytest.approx(10 * steps[0], rel=0.01)
    assert "kernels: composed and measured" in capsys.readouterr().out


# -- plans -------------------------------------------------------------------------------------------------------------


def test_a_plan_covers_every_term_of_a_card():
    plan = TermsMeasurement(model="qwen3-14b", device="cuda", ranks=[1, 2, 4]).plan(Path())
    assert plan == TermsMeasurement(model="qwen3-14b", device="cuda", ranks=[4, 2, 1]).plan(Path())
    found = pd.DataFrame(plan.points)
    assert set(found["term"]) == {*GEMMS, "norm", "qk_norm", "residual", "embedding", "rotary", "activation",
                                  "sampling", "prefill", "decode", "beside", "power"}
    for tp in (1, 2, 4):
        for term, (n, k) in Rank(plan.model, tp).gemms().items():
            part = found[(found["term"] == term) & (found["n"] == n) & (found["k"] == k)]
            assert (part["rows"].min(), part["rows"].max()) == (1, 256 if term == "lm_head" else 8192)
    decodes = found[found["term"] == "decode"]
    assert (decodes["context"].max(), decodes["batch"].max()) == (8192, 256)
    assert (found[found["term"] == "prefill"]["past"] > 0).sum() > 5
    assert set(found[found["term"] == "power"]["load"]) == {"idle", "memory", "arithmetic"}
    assert 1 < plan.estimate_s / 60 < 15
    coarse = found[found["level"] == 0]
    assert set(coarse["term"]) == set(found["term"])   # a budget that ends early leaves every term
    assert len(coarse) < len(found) / 3


@pytest.mark.parametrize(("settings", "message"), [
    ({"model": "mixtral-8x7b"}, "model: expected a dense decoder"),
    ({"model": "llama-3.1-8b", "dtype": "fp32", "device": "cuda"}, "dtype: expected one of bf16"),
    ({"model": "llama-3.1-8b", "dtype": "bf16"}, "dtype: expected one of fp32"),
    ({"model": "llama-3.1-8b", "ranks": [3]}, "expected a divisor"),
    ({"model": "llama-3.1-8b", "max_context": 10}, "at least 256 tokens"),
])
def test_plans_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        TermsMeasurement(**settings).plan(Path())


def test_all_plans_of_a_card_and_their_minutes(folder, capsys):
    command = ["calibrate", "plan", "card", "-o", "card", "--set", "model=llama-3.1-8b", "--set", "device=cuda"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    minutes = {line.split()[0]: float(line.split()[-1]) for line in lines if line.startswith(("card/", "sum"))}
    assert set(minutes) == {"card/plan-terms.yaml", "card/plan-engine.yaml", "card/plan-link.yaml", "sum"}
    total = minutes.pop("sum")
    assert total == pytest.approx(sum(minutes.values()), abs=0.2)
    for path in minutes:
        assert main(["calibrate", "run", path, "--dry-run", "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)
        assert planned["estimate_s"] / 60 == pytest.approx(minutes[path], abs=0.06)
    assert main([*command, "--set", "rankz=[1]"]) == 2
    assert "did you mean 'ranks'" in capsys.readouterr().err
    assert main([*command[:4], "card.yaml", *command[5:]]) == 2
    assert "a folder" in capsys.readouterr().err


# -- tables of known times ---------------------------------------------------------------------------------------------


def seconds_of(point: dict[str, Any]) -> float:
    """A card whose times are known."""
    term = point["term"]
    if term in GEMMS:
        return 4e-6 + 1e-10 * point["rows"] * point["n"] * point["k"] / 8
    if "width" in point:
        return 1e-6 + 1e-10 * point["rows"] * point["width"]
    prompts = {"prefill": point["batch"], "beside": 1}.get(term, 0)
    decodes = 0 if term == "prefill" else point["batch"]
    new, past = point.get("new", 0), point.get("past", 0)
    found = 5e-6 * (prompts > 0) + 1e-9 * prompts * new * (past + new / 2) * point["heads"]
    lanes = decodes * point["heads"]
    if term == "beside":   # 20 ns and 0.05 ns a token for each decode and query head, half the time to read its KV
        read = 2 * decodes * point["context"] * point["heads"] * point["head_dim"] * 4 / 20e9
        return found + lanes * (2e-8 + 5e-11 * new) + 0.5 * read
    return found + (decodes > 0) * 5e-6 + 1e-8 * lanes + 1e-10 * decodes * point.get("context", 0) * point["heads"]


def made_up(folder: Path, seconds, watts=None, **settings: Any) -> Path:
    """A journal of these times, and watts where given, as a collector writes it."""
    settings = SETTINGS | settings
    environment = settings.pop("environment", {"device": "a card", "date": "2026-11-21", "engine": "made up 1",
                                               "beside": "apart"})
    plan = TermsMeasurement(**{key: value for key, value in settings.items() if key != "cache"}).plan(folder)
    path = folder / "terms.journal.jsonl"
    with Journal(path, plan.model_dump(mode="json"), environment) as journal:
        for point in plan.points:
            if point["term"] == "power":
                row = watts(point) if watts else None
                more = {} if row else {"failed": "not available"}
                journal.point(point["name"], [row] if row else [], seconds=0.0, **more)
                continue
            rows = [{"repetition": n, "time_s": seconds(point), "cpu_time_s": seconds(point)} for n in range(3)]
            journal.point(point["name"], rows, seconds=0.01, cv=0.0, **{"class": "excellent"})
    return path


def test_what_decodes_add_to_a_launch_is_found(folder):
    one = {"device": "a card", "date": "2026-11-21", "engine": "made up 1", "beside": "one launch"}
    terms = pack_terms(made_up(folder, seconds_of, environment=one, max_num_batched_tokens=2048, max_context=2048,
                               max_num_seqs=64, hardware="./device.yaml"), "mine")
    found = fit_terms(terms, "mine").beside
    assert found is not None
    assert found.beside.per_seq == pytest.approx(2e-8, rel=0.05)
    assert found.beside.per_seq_token == pytest.approx(5e-11, rel=0.05)
    assert found.beside.read == pytest.approx(0.5, rel=0.05)
    assert found.errors.mape < 0.02


@pytest.mark.feature("Measuring and fitting", (
    "The engine's own time of a step, from whole steps and the terms of its kernels"))
def test_the_engines_own_time_is_found(folder):
    """Steps made of the tables' kernels, 200 us + 3 us a sequence around them, and 80 us + 7 us a sequence between."""
    terms = pack_terms(made_up(folder, seconds_of, ranks=[1]), "mine")
    made = fit_terms(terms, "mine")
    save_kernels(made.file, made.arrays, folder / "kernels.yaml")
    built = Composed(model="./tiny.json", device="./device.yaml", dtype="fp32", step={}, top_p=False).build(folder)
    rows = []
    for seqs in (1, 2, 4, 8):
        for context in (20, 200):
            for new in (0, 64):
                stats = StepStats(prefill_seqs=int(new > 0), prefill_tokens=new, prefill_attn=new * (new + 1) // 2,
                                  decode_seqs=seqs, decode_ctx=seqs * context, decode_ctx_max=context, sampled=seqs)
                overhead = 200e-6 + 3e-6 * (seqs + (new > 0))
                kernels = sum(built.terms_ns(stats).values()) / 1e9
                rows.append({name: getattr(stats, name) for name in STATS} | {
                    "overhead_s": overhead, "time_s": kernels + overhead + 80e-6 + 7e-6 * seqs,
                    "configuration": f"{seqs} {context} {new}"})
    header = StepsHeader(name="steps", hardware="a card", engine="none", model="tiny", dtype="fp32",
                         date="2026-01-01", clock="made up", source="made up")
    found = fit_engine(MeasuredSteps(header, tidy_rows(pd.DataFrame(rows), "rows")), terms, made.tables(), made.beside)
    assert found.step.host == pytest.approx(200e-6, rel=0.01)
    assert found.step.host_per_seq == pytest.approx(3e-6, rel=0.01)
    assert found.step.exposed == pytest.approx(80e-6, rel=0.05)
    assert found.step.exposed_per_seq == pytest.approx(7e-6, rel=0.05)
    assert found.errors.mape < 0.01
    other = MeasuredSteps(header.model_copy(update={"model": "llama"}), tidy_rows(pd.DataFrame(rows), "rows"))
    with pytest.raises(InputError, match=r"--steps: model: expected steps of the measured terms \(tiny\)"):
        fit_engine(other, terms, made.tables(), made.beside)


def test_watts_by_utilisation_are_found(folder, capsys):
    """120 W at work, 80 more at the memory's full rate (20 GB/s), 300 more at the arithmetic's (0.12 Tflop/s)."""
    def watts(point):
        busy = {"idle": 0.0, "memory": 0.9 * 80, "arithmetic": 0.5 * 300}[point["load"]] * point.get("share", 0.0)
        rate = {"idle": 0.0, "memory": 0.9 * 20e9, "arithmetic": 0.5 * 1.2e11}[point["load"]] * point.get("share", 0.0)
        return {"repetition": 0, "time_s": 4.0, "power_w": 40.0 if point["load"] == "idle" else 120.0 + busy,
                "rate": rate}

    made_up(folder, seconds_of, watts, hardware="./device.yaml")
    assert main(["calibrate", "pack", "terms.journal.jsonl", "-o", "terms.yaml"]) == 0
    assert main(["fit", "terms.yaml"]) == 0
    out = capsys.readouterr().out
    assert "power: {serving: 120.0, memory: 80.0, compute: 300.0, most: 270.0}" in out
    assert "idle_w: 40" in out
    assert fit_power([], 1.0, 1.0) is None


def test_the_lines_of_a_scenario_are_valid(folder):
    one = {"device": "a card", "date": "2026-11-21", "engine": "made up 1", "beside": "one launch"}
    made = fit_terms(pack_terms(made_up(folder, seconds_of, environment=one, max_num_batched_tokens=2048,
                                        max_context=2048, max_num_seqs=64), "mine"), "mine")
    step = StepTime(exposed=8e-4, exposed_per_seq=1e-6, host=5.5e-4, host_per_seq=3.2e-5, source="a test")
    engine = EngineFit(step, next(iter(made.errors.values())), 0.1)
    lines = "\n".join(hardware_lines(made, engine, Path("kernels.yaml")))
    read = validate(Composed, parse_yaml(lines).child("hardware"))
    assert read.kernels == "./kernels.yaml"
    assert made.beside is not None
    assert read.beside.per_seq_token == pytest.approx(made.beside.beside.per_seq_token, rel=1e-3)
    assert read.step is not None
    assert read.step.host_per_seq == pytest.approx(3.2e-5)


def test_mistakes_are_one_line(folder, capsys):
    journal = made_up(folder, seconds_of)
    assert main(["calibrate", "pack", str(journal), "-o", "terms.yaml"]) == 0
    capsys.readouterr()
    for command, message in [
        (["fit", "terms.yaml", "-o", "kernels.txt"], "ends in .yaml"),
        (["fit", "terms.yaml", "--plot", "r.png"], "hermes-terms/1 takes no --plot"),
        (["fit", "terms.yaml", "--steps", "nothing.yaml"], "nothing.yaml"),
        (["calibrate", "pack", str(journal), "--clock", "sun"], "clock: expected wall or cpu"),
    ]:
        assert main(command) == 2, command
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    Path("terms.yaml").write_text(Path("terms.yaml").read_text().replace("dtype: fp32", "dtyp: fp32"))
    assert main(["fit", "terms.yaml"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'dtype'" in err
    assert err.startswith("terms.yaml:") or "terms.yaml" in err


@pytest.mark.drawn
@pytest.mark.parametrize("count", [2, 9, 60, 250])
def test_a_journal_that_was_cut_off_is_fitted(folder, capsys, count):
    """With so many whole lines and a torn one. What is missing comes from the roofline."""
    journal = made_up(folder, seconds_of)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:count]) + lines[count][:40])
    assert main(["fit", str(journal), "-o", "kernels.yaml", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tables"]
    assert main(["calibrate", "pack", str(journal), "-o", "terms.yaml"]) == 0
    assert load_terms(Path("terms.yaml")).header.measured == sum(b'"rows":[{' in line for line in lines[:count])


def test_a_torn_or_foreign_journal_is_refused(folder, capsys):
    journal = made_up(folder, seconds_of)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], lines[1].replace('"time_s":', '"tim_s":')]) + "\n")
    assert main(["calibrate", "pack", str(journal), "-o", "terms.yaml"]) == 2
    err = capsys.readouterr().err
    assert "terms.journal.jsonl:2" in err
    assert err.count("\n") == 1


# -- the collector -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "tokens"), [(1, 9), (5, 5), (200, 200), (130, 300)])
def test_attention_in_numpy_is_attention(new, tokens):
    draw = np.random.default_rng(1)
    q = draw.standard_normal((2, new, 4, 8))
    k, v = (draw.standard_normal((2, 2, tokens, 8)) for _ in range(2))
    scores = np.einsum("bqhd,bhkd->bhqk", q, k.repeat(2, axis=1)) / 8**0.5
    hidden = np.arange(tokens)[None, :] > np.arange(tokens - new, tokens)[:, None]
    weights = np.exp(np.where(hidden, -np.inf, scores))
    weights /= weights.sum(axis=-1, keepdims=True)
    wanted = np.einsum("bhqk,bhkd->bqhd", weights, v.repeat(2, axis=1))
    assert attention(q, k, v) == pytest.approx(wanted)


def test_cold_operands_are_larger_than_the_cache():
    assert copies_of(10, 100) == 10
    assert copies_of(33, 100) == 4
    assert copies_of(1000, 100) == 1


def test_the_collector_needs_numpy_alone(folder):
    """Its machine has no pydantic, yaml, scipy or pandas; it measures nonetheless."""
    plan = TermsMeasurement(**{**SETTINGS, "cache": 2**20, "warmup_s": 0.0}).plan(folder)
    few = [next(p for p in plan.points if p["term"] == term) for term in ("qkv", "decode", "norm")]
    save_plan(TermsPlan.model_validate(plan.model_dump() | {"points": few, "reference": None}), folder / "plan.json")
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('pydantic', 'yaml', 'scipy', 'pandas', 'simpy', 'sklearn', 'torch'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from hermes.calibration.collect.session import main\n"
        "from hermes.calibration.collect.terms import TermsCollector\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main(TermsCollector))\n"
    )
    (folder / "blocked.py").write_text(code)
    subprocess.run([sys.executable, "blocked.py", "plan.json", "j.jsonl"], check=True, cwd=folder)
    records = [r for r in read_journal(folder / "j.jsonl")[1] if r["kind"] == "point"]
    assert {record["point"] for record in records} == {point["name"] for point in few}
    assert all(len(record["rows"]) == 3 for record in records)
    assert all(row["time_s"] > 0 for record in records for row in record["rows"])


def test_plans_in_another_folder_find_files_of_this_one(folder, capsys):
    """Paths on the command line are relative to where it runs, those in a plan to the plan."""
    assert main(["calibrate", "plan", "card", "-o", "made/card", "--set", "model=tiny.json", "--set", "device=cpu",
                 "--set", "hardware=device.yaml", "--set", "dtype=fp32"]) == 0
    assert main(["calibrate", "run", "made/card/plan-terms.yaml", "--dry-run"]) == 0
    assert main(["calibrate", "plan", "llm", "-o", "made/plan.yaml", "--set", "model=tiny.json"]) == 0
    assert yaml.safe_load(Path("made/plan.yaml").read_text())["model"] == "../tiny.json"
