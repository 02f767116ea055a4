"""The torch engine's plans, its collector and its online runs.

What needs torch runs in the interpreter that the environment variable HERMES_TORCH_PYTHON names.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hermes.calibration.collect.session import STATISTICS
from hermes.calibration.journal import read_journal
from hermes.calibration.pack import pack
from hermes.calibration.plan import Plan, config_of, load_plan, request_for, save_plan
from hermes.calibration.session import interpreter_environment, progress_of
from hermes.calibration.steps import STATS, load_steps, save_steps
from hermes.calibration.torch_plan import Batch, TorchPlanner, all_reduce_s, batch_of
from hermes.cli import main
from hermes.errors import InputError
from hermes.hardware.models import load_model

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("HERMES_TORCH_PYTHON", "")
needs_torch = pytest.mark.skipif(not PYTHON, reason="HERMES_TORCH_PYTHON names no interpreter with torch")
TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 500,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def request(model: str | Path, **more: Any):
    options = {"max_num_batched_tokens": 256, "max_num_seqs": 16, "max_context": 512, "warmup_s": 0.0} | more
    return request_for(str(model), options.pop("device", "cpu"), **options)


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(256, 16, 512), (32, 1, 64), (8192, 256, 32768), (2048, 300, 100)])
def test_plans_stay_within_their_bounds(tiny, bounds):
    tokens, seqs, context = bounds
    made = TorchPlanner().plan(request(tiny, max_num_batched_tokens=tokens, max_num_seqs=seqs, max_context=context))
    assert made == TorchPlanner().plan(
        request(tiny, max_num_batched_tokens=tokens, max_num_seqs=seqs, max_context=context))
    batches = [batch_of(point) for point in made.points]
    assert max(batch.tokens for batch in batches) <= tokens
    assert max(batch.seqs for batch in batches) <= seqs
    assert max(batch.longest for batch in batches) <= context
    assert all(n > 1 or past == 0 for batch in batches for n, past, _, _ in batch.prefills)   # else it is a decode
    assert len({batch.name() for batch in batches}) == len(batches)
    stats = [batch.stats() for batch in batches]
    kinds = Counter((s.prefill_tokens > 0, s.decode_seqs > 0) for s in stats)
    if seqs > 1:
        assert all(kinds[kind] > 30 for kind in ((True, True), (True, False), (False, True)))
    assert any(s.prefill_past for s in stats)
    assert any(s.sampled == 0 for s in stats)


def test_the_part_of_the_engine(tiny):
    """A chunk that fills the step beside 0, 1, 2, 4, ... decodes at several contexts; all batches of decodes."""
    bounds = {"max_num_batched_tokens": 256, "max_num_seqs": 64, "max_context": 2048}
    made = TorchPlanner().plan(request(tiny, parts=("engine",), **bounds))
    assert {point["part"] for point in made.points} == {"engine"}
    stats = [batch_of(point).stats() for point in made.points]
    full = [s for s in stats if s.prefill_tokens + s.decode_seqs == 256 and s.prefill_tokens]
    assert {s.decode_seqs for s in full} == {0, 1, 2, 4, 8, 16, 32, 63}
    assert {s.decode_ctx // s.decode_seqs for s in full if s.decode_seqs} == {128, 1024}
    assert {s.prefill_past for s in full} == {0, 256}
    assert {s.decode_seqs for s in stats if not s.prefill_tokens} == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}
    both = TorchPlanner().plan(request(tiny, parts=("grid", "engine"), points=50, **bounds))
    names = {point["name"] for point in made.points}
    assert sum("part" in point for point in both.points) == len(names)
    assert sum("part" not in point for point in both.points) == 50


def test_a_short_plan_is_broad(tiny):
    """The first points alone span the measured range of tokens, sequences and contexts."""
    made = TorchPlanner().plan(request(tiny, points=400))
    first = [batch_of(p).stats() for p in made.points if p["level"] == 0]
    everything = [batch_of(p).stats() for p in made.points]
    assert len(first) < 40
    for name in ("prefill_tokens", "decode_seqs", "decode_ctx", "prefill_past"):
        assert max(getattr(s, name) for s in first) >= 0.4 * max(getattr(s, name) for s in everything), name


def test_statistics_by_hand():
    batch = Batch(decodes=((100, 2), (40, 1)), prefills=((10, 5, 2, 1), (4, 0, 1, 0)))
    stats = batch.stats()
    assert {name: getattr(stats, name) for name in STATS} == {
        "prefill_seqs": 3, "prefill_tokens": 24, "prefill_past": 10, "prefill_attn": 2 * (50 + 55) + 10,
        "decode_seqs": 3, "decode_ctx": 240, "decode_ctx_max": 100, "sampled": 5,
    }


def test_memory_of_the_plan():
    """Llama-3.1-70B: one rank of eight fits into a card, the whole model does not."""
    rank = TorchPlanner().plan(request("llama-3.1-70b", device="cuda", tensor_parallel=8))
    assert rank.memory.weights_bytes == pytest.approx(70.55e9 * 2 / 8, rel=0.01)
    assert rank.memory.total_bytes < 0.9 * rank.memory.capacity_bytes
    kv = max(batch_of(point).kv_tokens for point in rank.points) * 80 * 2 * 128 * 2
    assert kv <= rank.memory.kv_bytes < 1.1 * kv
    with pytest.raises(InputError, match="are missing"):
        TorchPlanner().plan(request("llama-3.1-70b", device="cuda"))


@pytest.mark.parametrize(("model", "options", "message"), [
    ("mixtral-8x7b", {}, "model: expected a dense decoder"),
    ("llama-3.1-8b", {"dtype": "fp8"}, "dtype: expected one of bf16"),
    ("llama-3.1-8b", {"device": "cuda", "tensor_parallel": 3}, "expected a divisor"),
    ("llama-3.1-8b", {"device": "tpu"}, "device: expected cpu or cuda"),
    ("llama-3.1-8b", {"clock": "cuda-events"}, "clock: expected wall or cpu"),
    ("llama-3.1-8b", {"device": "cuda", "clock": "cpu"}, "clock: expected cuda-events"),
    ("llama-3.1-8b", {"device": "cuda", "hardware": "h100-smx"}, "nearest: h100-sxm"),
])
def test_plans_that_cannot_be(model, options, message):
    with pytest.raises(InputError, match=message):
        TorchPlanner().plan(request(model, **options))


def test_families_the_engine_does_not_compute(tmp_path):
    (tmp_path / "gemma.json").write_text(json.dumps(TINY | {"model_type": "gemma"}))
    with pytest.raises(InputError, match=r"model_type: expected one of llama, mistral, qwen2, qwen3, found 'gemma'"):
        TorchPlanner().plan(request(tmp_path / "gemma.json"))


def test_shipped_descriptions_become_configs():
    for name, kind in (("llama-3.1-8b", "llama"), ("qwen2-7b", "qwen2"), ("qwen3-32b", "qwen3")):
        config = config_of(load_model(name))
        assert config["model_type"] == kind
        assert config["num_key_value_heads"] == load_model(name).num_kv_heads


def test_all_reduces_of_a_rank_are_added_and_said(tmp_path):
    """By hand: two rings per layer."""
    plan = TorchPlanner().plan(request("llama-3.1-70b", device="cuda", tensor_parallel=8, points=3))
    link = plan.options["all_reduce"]
    step = next(point for point in plan.points if "prefills" in point or "decodes" in point)
    rows = [{name: getattr(batch_of(step).stats(), name) for name in STATS} | {"time_s": 0.01, "repetition": 0}]
    records = [
        {"kind": "header", "format": "hermes-journal/1", "plan": plan.model_dump(mode="json"),
         "environment": {"device": "card", "date": "2026-11-21"}},
        {"kind": "point", "point": step["name"], "rows": rows, "seconds": 1.0},
    ]
    (tmp_path / "j").write_text("".join(json.dumps(record) + "\n" for record in records))
    steps = pack(tmp_path / "j")
    tokens = batch_of(step).tokens
    ring = 2 * 7 / 8 * tokens * 8192 * 2 / (link["link_bandwidth"] * link["efficiency"]) + 14 * link["hop_latency_s"]
    assert steps.rows["time_s"][0] == pytest.approx(0.01 + 2 * 80 * ring)
    assert all_reduce_s(plan.model, "bf16", 8, np.array([1, tokens]), link)[1] == pytest.approx(2 * 80 * ring)
    assert any("link model" in note for note in steps.header.notes)


# -- what the collector needs ------------------------------------------------------------------------------------------


def closure(module: str, seen: dict[str, set[str]]) -> dict[str, set[str]]:
    """Modules of hermes that importing one imports, with the foreign modules each names."""
    path = ROOT / (module.replace(".", "/") + ".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    seen[module] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in ast.walk(node):
                child.skip = True  # type: ignore[attr-defined]
        if getattr(node, "skip", False) or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        for name in names:
            if name.split(".")[0] != "hermes":
                seen[module].add(name.split(".")[0])
            else:
                parents = [".".join(name.split(".")[:i]) for i in range(1, name.count(".") + 2)]
                candidates = [name] if isinstance(node, ast.Import) else [
                    *parents, *(f"{name}.{alias.name}" for alias in node.names
                                if (ROOT / name.replace(".", "/") / f"{alias.name}.py").exists())]
                for found in candidates:
                    if found not in seen and found != "hermes":
                        closure(found, seen)
    return seen


@pytest.mark.parametrize("module", ["torch_llm", "torch_online"])
def test_collectors_need_numpy_and_torch_alone(module):
    found = closure(f"hermes.calibration.collect.{module}", {})
    foreign = {name for names in found.values() for name in names} - set(sys.stdlib_module_names)
    assert foreign <= {"numpy", "torch"}
    assert "hermes.calibration.collect.torch_engine" in found
    assert not any(name.startswith(("hermes.hardware", "hermes.config")) for name in found)


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not for collectors")
BLOCKED = {"pydantic", "simpy", "pandas", "pyarrow", "yaml", "rich", "typer", "sklearn", "scipy", "matplotlib",
           "transformers", "vllm", "pynvml"}
sys.meta_path.insert(0, Blocker())
import hermes.calibration.collect.torch_llm, hermes.calibration.collect.torch_online
print(sorted(name for name in sys.modules if name.startswith("hermes.")))
"""


@needs_torch
def test_collectors_import_on_a_bare_machine():
    with interpreter_environment() as environment:
        done = subprocess.run([PYTHON, "-c", BLOCKED], env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "hermes.config" not in done.stdout


# -- the engine --------------------------------------------------------------------------------------------------------


CHECKS = (
    "attention_is_right", "a_wrong_backend_is_not_chosen", "chunks_and_batches_change_nothing",
    "static_decodes_are_the_same", "ranks_are_slices", "online_schedule", "regions_never_overlap",
    "one_launch_is_both_launches", "pages_are_those_of_the_pool", "timing_reads_every_copy",
)


@pytest.fixture(scope="module")
def check():
    """What `torch_checks` found, by name; all in one process, which imports torch once."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([PYTHON, "-m", "tests.calibration.torch_checks", *CHECKS], env=environment, cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout).__getitem__


@needs_torch
def test_attention_against_attention_written_out(check):
    for name, difference in check("attention_is_right").items():
        assert difference < (1e-5 if "float32" in name else 0.03), name
    assert check("a_wrong_backend_is_not_chosen") > 0.1


@needs_torch
def test_a_prompt_and_decodes_in_one_launch(check):
    """The terms collector's operator computes the same as two launches; so do vLLM's pages over our pools."""
    found = check("one_launch_is_both_launches")
    assert found["launches"] == ["apart", "one"]
    assert found["size"] == [43, 8, 16]
    assert found["off"] < 1e-5
    assert check("pages_are_those_of_the_pool")["off"] < 1e-5


@needs_torch
def test_timing_walks_through_all_copies(check):
    """Of five copies none is read twice before the others, and a repetition is as long as asked."""
    found = check("timing_reads_every_copy")
    assert max(found["counts"]) - min(found["counts"]) <= 1
    assert min(found["counts"]) >= 5
    assert all(1.5e-4 < seconds < 2e-3 for seconds in found["times"])
    assert found["how"].startswith("CUDA events around a graph of")


@needs_torch
def test_chunks_batches_and_recomputation_agree(check):
    for name, found in check("chunks_and_batches_change_nothing").items():
        assert found["whole"] == found["chunked"] == found["anew"], name
        assert found["together"] == found["alone"], name
        if "tie" not in name:   # tied embeddings of random weights repeat the last token
            assert len(set(found["whole"])) > 3, name


@needs_torch
def test_decodes_through_static_buffers(check):
    found = check("static_decodes_are_the_same")
    assert found["True graphs"]
    assert not found["False graphs"]
    assert found["True"] == found["False"]
    assert found["sizes"][:5] == [1, 2, 4, 8, 16]
    assert found["sizes"][-1] == 304


@needs_torch
def test_ranks_hold_their_share(check):
    found = check("ranks_are_slices")
    assert [found[tp]["kv_heads"] for tp in ("1", "2", "4")] == [2, 1, 1]
    assert found["1"]["weights"] == found["2"]["weights"] * 2
    assert all(0 <= i < found[tp]["vocab"] for tp in found for i in found[tp]["ids"])


@needs_torch
def test_the_online_engine_schedules_as_chunked_does(check, tmp_path):
    """Its schedule, replayed through our scheduler by `hermes conform`, in both steppings."""
    found = check("online_schedule")
    steps = [{"scheduled": step, "preempted": [], "free_blocks_after": None} for step in found["steps"]]
    used = _free_blocks(found["requests"], found["steps"], 512, 16)
    case = {
        "max_num_batched_tokens": 96, "max_num_seqs": 6, "num_blocks": 512, "block_size": 16, "prefix_caching": False,
        "scheduling_policy": "fcfs", "long_prefill_token_threshold": 0, "requests": found["requests"],
        "steps": [step | {"free_blocks_after": free} for step, free in zip(steps, used, strict=True)],
    }
    (tmp_path / "case-0.json").write_text(json.dumps(case))
    assert len(steps) > 100
    assert main(["conform", str(tmp_path / "case-0.json")]) == 0


def _free_blocks(requests, steps, blocks, size):
    """Free blocks after each step's scheduling, by the recorder's rule."""
    targets = {r["id"]: r["prompt_tokens"] + r["output_tokens"] - 1 for r in requests}
    held: dict[str, int] = {}
    out = []
    for step in steps:
        for name, tokens, computed in step:
            held[name] = -(-(computed + tokens) // size)
        out.append(blocks - sum(held.values()))
        for name, tokens, computed in step:
            if computed + tokens == targets[name]:
                del held[name]
    return out


@needs_torch
def test_regions_of_the_cache(check):
    found = check("regions_never_overlap")
    assert found == {"overlaps": 0, "free": [[16, 2048]]}


# -- the command -------------------------------------------------------------------------------------------------------

SETTINGS = {"max_context": 256, "max_num_seqs": 8, "max_num_batched_tokens": 128, "warmup_s": 0.0, "points": 40,
            "repetitions": 3, "clock": "cpu", "parts": ["grid"]}


def plan_file(folder: Path, **settings: Any) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"measure": "llm", **settings}))
    return path


def test_a_dry_run_measures_nothing(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = plan_file(tmp_path, model=tiny.name, max_context=256)   # paths are relative to the file
    command = ["calibrate", "run", str(path), "--dry-run", "--set", "points=50", "--set", "parts=[grid]"]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["points"] == len(printed["grid"]) == 50
    assert printed["memory"]["total_bytes"] > 0
    assert printed["estimate_s"] > printed["warmup_s"]
    assert main([*command, "--budget", "5"]) == 0
    text = capsys.readouterr().out
    assert "decode b=1 ctx=16" in text
    assert "the budget of 5 s may cut it off" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.yaml", "tiny.json"]


@needs_torch
def test_measure_on_a_cpu(tiny, tmp_path, capsys):
    output = tmp_path / "steps.yaml"
    path = plan_file(tmp_path, model=tiny.name, **SETTINGS)
    code = main(["calibrate", "run", str(path), "--python", PYTHON, "--json"])
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["complete"]
    assert printed["points"] == 40
    steps = load_steps(output)
    assert steps.header.engine == "torch"
    assert steps.header.engine_version
    assert "CPU time" in steps.header.clock
    assert steps.header.sha256
    rows = steps.rows
    assert (rows["time_s"] > 0).all()
    assert (rows["overhead_s"] < rows["time_s"].clip(lower=1e-3) * 20).all()
    plan = load_plan(output.with_suffix(".plan.json"), Plan)
    by_name = {point["name"]: batch_of(point).stats() for point in plan.points}
    for _, row in rows.iterrows():   # the collector's statistics are the plan's
        assert all(row[name] == getattr(by_name[row["configuration"]], name) for name in STATS)
    assert set(STATISTICS) == set(STATS)
    # packing alone gives the same
    again = pack(output.with_suffix(".journal.jsonl"), command=steps.header.collected_by)
    assert save_steps(again, tmp_path / "again.yaml").sha256 == steps.header.sha256


@needs_torch
def test_kill_9_while_torch_measures(tiny, tmp_path):
    made = TorchPlanner().plan(request(tiny, points=60, repetitions=4))
    save_plan(made, tmp_path / "plan.json")
    journal = tmp_path / "journal.jsonl"
    with interpreter_environment() as environment:
        environment = {**environment, "HERMES_DRIVER_PID": "0"}
        command = [PYTHON, "-m", made.collector, str(tmp_path / "plan.json"), str(journal)]
        process = subprocess.Popen(command, env=environment, cwd="/")
        until = time.monotonic() + 60
        while progress_of(made, journal).done < 5 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert 5 <= progress_of(made, journal).done < 60
        assert subprocess.run(command, env=environment, cwd="/").returncode == 0
    points = [r for r in read_journal(journal)[1] if r["kind"] == "point"]
    first = Counter(r["point"] for r in points if r["attempt"] == 0)
    assert first == Counter(point["name"] for point in made.points)
    assert all(len(r["rows"]) == 4 for r in points)


@needs_torch
def test_a_plan_for_a_gpu_is_refused_without_one(tmp_path, capfd):
    path = plan_file(tmp_path, model="llama-3.1-8b", device="cuda")
    code = main(["calibrate", "run", str(path), "--points", str(tmp_path / "plan.json")])
    assert code == 0
    with interpreter_environment() as environment:
        done = subprocess.run(
            [PYTHON, "-m", "hermes.calibration.collect.torch_llm", str(tmp_path / "plan.json"), str(tmp_path / "j")],
            env=environment | {"CUDA_VISIBLE_DEVICES": ""}, cwd="/", capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == "the plan is for a CUDA device, and torch sees none"
