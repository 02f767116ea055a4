"""Cases about files that HERMES wrote and reads back, or that others wrote: folders of runs and sweeps, references,
golden files, schedules, measured steps, journals.

Each family has a template, made once by HERMES itself; a case is a copy with one file changed, and a command.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fuzzing.contents import changed_place, mutate
from fuzzing.downloads import address, write_reply
from fuzzing.outside import (
    DRIVER_FILES,
    import_command,
    state_hash,
    write_driver_files,
    write_dumps,
    write_kernels,
    write_layers,
    write_log,
    write_manifests,
    write_objects,
    write_planners,
    write_rag,
    write_ranks,
    write_samples,
)
from fuzzing.running import Ran, run_here
from fuzzing.templates import write_bars, write_observed, write_shown, write_space
from hermes.cli.plot import FIGURES

__all__ = ["FAMILIES", "FolderCase", "folder_case", "template"]

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = """\
name: small
seed: 3
workload: {requests: 12, arrivals: {kind: poisson, rate: 20 /s}, lengths: {kind: fixed, prompt: 60, output: 8}}
clients:
  - {name: fast, count: 2, hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8},
     memory: {num_blocks: 400}}
slo: {ttft: 100 ms, tpot: 50 ms}
"""
SWEEP = """\
name: sizes
scenario: small.yaml
grid: {clients.0.count: [1, 2], workload.requests: [5, 7]}
keep: requests
"""


@dataclass(frozen=True)
class Family:
    """A kind of files.

    make: writes the template into a folder
    files: patterns of those that are changed
    commands: arguments for a changed file, with HERE for the case's folder
    shows: a file that the command writes, part of its answer
    signed: writes what has to fit a change again, such as a stored hash
    """

    make: Callable[[Path], None]
    files: tuple[str, ...]
    commands: Callable[[str, random.Random], list[str]]
    shows: str = ""
    signed: Callable[[Path], None] | None = None


@dataclass
class FolderCase:
    """A changed copy of a template. place: where it differs from the template; None: it means the same."""

    family: str
    mutation: str
    path: Path
    command: list[str]
    baseline: Ran
    place: str | None
    wrote: Path = field(repr=False)

    def shown(self, ran: Ran) -> Ran:
        """The answer, with what differs from run to run taken out, and what was written put in."""
        return _answer(self.family, ran, self.wrote)

    @property
    def name(self) -> str:
        """As the reviewed list names it."""
        return f"{self.family}/{self.path.name}: {self.place}"


def _hermes(*arguments: str) -> None:
    ran = run_here(list(arguments))
    assert ran.code in (0, 1), (arguments, ran)


def _run(folder: Path) -> None:
    (folder / "small.yaml").write_text(SCENARIO)
    _hermes("run", str(folder / "small.yaml"), "-o", str(folder / "run"), "-q")
    shutil.copytree(folder / "run", folder / "same")


def _sweep(folder: Path) -> None:
    (folder / "small.yaml").write_text(SCENARIO)
    (folder / "sweep.yaml").write_text(SWEEP)
    _hermes("sweep", str(folder / "sweep.yaml"), "-o", str(folder / "out"), "--workers", "0", "-q")


def _reference(folder: Path) -> None:
    import pandas as pd

    _run(folder)
    rows = pd.read_parquet(folder / "run" / "requests.parquet")
    table = pd.DataFrame({
        "request": rows["request"], "arrival_s": rows["arrival_s"], "ttft_ms": rows["ttft_s"] * 1000,
        "e2e_s": rows["e2e_s"], "prompt_tokens": rows["prompt_tokens"], "output_tokens": rows["output_tokens"]})
    table.to_csv(folder / "reference.csv", index=False)
    table.to_parquet(folder / "reference.parquet")
    (folder / "reference.jsonl").write_text(table.to_json(orient="records", lines=True))


def _observed(folder: Path) -> None:
    _run(folder)
    write_observed(folder)


def _golden(folder: Path) -> None:
    (folder / "small.yaml").write_text(SCENARIO)
    for name in ("golden.yaml", "golden.json"):
        _hermes("regress", "record", str(folder / "small.yaml"), "-f", str(folder / name), "--tolerance",
                "energy.*=1e-9")


def _driver(folder: Path) -> None:
    (folder / "small.yaml").write_text(SCENARIO.replace("requests: 12", "requests: 4"))
    _hermes("run", str(folder / "small.yaml"), "-o", str(folder / "run"), "-q")
    write_driver_files(folder)


def _schedule(folder: Path) -> None:
    for name, recorded in (("schedule", "vllm-schedules"), ("sglang", "sglang-schedules"),
                           ("offload", "vllm-schedules-offload")):
        source = min((ROOT / "tests/data" / recorded).rglob("*.json"), key=lambda path: (path.stat().st_size, path))
        (folder / f"{name}.json").write_bytes(source.read_bytes())


def _steps(folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests/calibration"))
    try:
        from machines import cpu_steps
    finally:
        sys.path.pop(0)
    from hermes.calibration.steps import save_steps

    save_steps(cpu_steps(configurations=6, steps=5), folder / "steps.yaml")


def _journal(folder: Path) -> None:
    model = ROOT / "scenarios/validation/small-llama.json"
    _hermes("calibrate", "plan", "llm", "-o", str(folder / "plan.yaml"), "--set", f"model={model}", "--set", "points=4")
    _hermes("calibrate", "run", str(folder / "plan.yaml"), "--points", str(folder / "points.json"))
    plan = json.loads((folder / "points.json").read_text())
    row = {"prefill_seqs": 0, "prefill_tokens": 0, "prefill_past": 0, "prefill_attn": 0, "decode_seqs": 1,
           "decode_ctx": 10, "decode_ctx_max": 10, "sampled": 1, "time_s": 0.01, "cpu_time_s": 0.005, "repetition": 0}
    environment = {"device": "a device", "date": "2026-11-21", "engine_version": "1"}
    records = [{"kind": "header", "format": "hermes-journal/1", "plan": plan, "environment": environment}]
    records += [{"kind": "point", "point": point["name"], "seconds": 0.1, "at_s": 1.0 + i,
                 "rows": [row, row | {"time_s": 0.011, "repetition": 1}]} for i, point in enumerate(plan["points"])]
    (folder / "journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def _starts(folder: Path) -> None:
    """Write a plan of starts, a journal as its collector would, and the measured file."""
    models = [str(ROOT / "scenarios/validation/small-llama.json"), "qwen2.5-0.5b", "qwen2.5-1.5b"]
    _hermes("calibrate", "plan", "start-up", "-o", str(folder / "plan.yaml"), "--set", f"models={json.dumps(models)}",
            "--set", "repetitions=1")
    _hermes("calibrate", "run", str(folder / "plan.yaml"), "--points", str(folder / "points.json"))
    plan = json.loads((folder / "points.json").read_text())
    environment = {"cores": 2, "date": "2026-11-28"}
    records = [{"kind": "header", "format": "hermes-journal/1", "plan": plan, "environment": environment}]
    records += [{"kind": "point", "point": point["name"], "seconds": 61.0, "library": "vLLM 0.32.0",
                 "work": {"sizes": [1, 2, 4], "compiled": point["cache"] == "cold"},
                 "rows": [{"repetition": 0, "time_s": 60.0 + i, "process_s": 40.0 + i, "weights_s": 1.0,
                           "compile_s": 12.0, "profiling_s": 3.0, "capture_s": 4.0, "trace_s": 5.0,
                           "first_request_s": 0.5,
                           "cpu_time_s": 70.0, "others_s": 9.0}]} for i, point in enumerate(plan["points"])]
    (folder / "starts.journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    _hermes("calibrate", "pack", str(folder / "starts.journal.jsonl"), "-o", str(folder / "starts.yaml"))


STUDY = """\
title: what two and two is
assumptions:
  two: {value: 2, range: [0, 10], meaning: the second number, source: assumed, turns: 4 is 5}
  mode: {value: plus, options: [plus, times], meaning: what is done, source: assumed}
"""
REPORT = """\
from hermes.study import Report


def run(context):
    return Report([], findings=[f"{context['two']} {context['mode']}"])
"""


def _study(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "study.yaml").write_text(STUDY)
    (folder / "mine" / "report.py").write_text(REPORT)


def _of_run(file: str, rng: random.Random) -> list[str]:
    if rng.random() < 0.9 or file == "scenario.resolved.yaml":
        return ["compare", "HERE/run", "HERE/same", "--allow-different-requests", "--json"]
    kinds = [kind for kind in FIGURES if kind != "breakdown" or file != "record.parquet"]   # which it does not read
    return ["plot", "HERE/run", "-o", "HERE/figure.svg", "--kind", rng.choice(kinds)]


def _of_sweep(file: str, rng: random.Random) -> list[str]:
    if file == "results.parquet" or rng.random() < 0.3:
        return ["sweep", "HERE/sweep.yaml", "-o", "HERE/out", "--workers", "0", "-q", "--json"]
    return ["sweep", "HERE/out", "--json"]


DESCRIBED = """\
name: described
seed: 3
workload: {requests: 8, arrivals: {kind: poisson, rate: 20 /s}, lengths: {kind: trace, path: lengths.csv},
  pipeline: mine}
pipelines:
  mine:
    stages:
      embed: {kind: embed}
      retrieve: {kind: retrieve, after: embed, options: {top_k: 2}}
      answer: {kind: generate, after: retrieve, prompt: prompt + 2 * 20}
clients:
  - kind: rag
    name: cpu
    device: cpu-large
    cores: 8
    serves:
      embed: {kind: encoder, hardware: {kind: roofline, model: e5-base, device: cpu-large, dtype: fp32}}
      retrieve: {kind: measured, profile: retrieval.yaml, index: {kind: hnsw, vectors: 100000, dim: 128, hnsw_m: 16}}
  - name: llm
    model: config.json
    request_overhead: {mode: serial, profile: overhead.yaml}
    hardware: {kind: roofline, model: config.json, device: device.yaml, efficiency: efficiency.yaml}
    memory: {num_blocks: 4000}
"""


def _described(folder: Path) -> None:
    from hermes.calibration.measurements.model import config_of
    from hermes.hardware.descriptions.models import load_model

    shipped = ROOT / "hw_profiles"
    for name, source in (("retrieval", "retrieval/amd-epyc-zen5"), ("overhead", "overhead/mistral-7b-a100-40gb"),
                         ("device", "devices/h100-sxm"), ("efficiency", "efficiency/h100-sxm")):
        shutil.copyfile(shipped / f"{source}.yaml", folder / f"{name}.yaml")
    (folder / "config.json").write_text(json.dumps(config_of(load_model("llama-3.1-8b"))))
    rows = [f"{i * 0.25},{100 + 10 * i},{5 + i}" for i in range(8)]
    (folder / "lengths.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    (folder / "described.yaml").write_text(DESCRIBED)


FAMILIES: dict[str, Family] = {
    "described": Family(_described, ("*.yaml", "*.json", "*.csv"), lambda file, rng: [
        "run", "HERE/described.yaml", "--json", "-q"]),
    "run": Family(_run, ("run/*.json", "run/record.parquet", "run/scenario.resolved.yaml"), _of_run),
    "store": Family(_sweep, ("out/*.sqlite", "out/*.parquet"), _of_sweep),
    "reference": Family(_reference, ("reference.*",), lambda file, rng: [
        "compare", "HERE/run", f"HERE/{file}", "--allow-different-requests", "--json"]),
    "golden": Family(_golden, ("golden.*",), lambda file, rng: [
        "regress", "check", "-f", f"HERE/{file}", "--seeds", "0", "--json"]),
    "schedule": Family(_schedule, ("*.json",), lambda file, rng: [
        "conform", f"HERE/{file}", "--stepping", rng.choice(("runs", "every_step")), "--json"]),
    "import": Family(write_samples, ("*.*",), import_command, "out.parquet"),
    "driver": Family(_driver, tuple(DRIVER_FILES.values()), lambda file, rng: [
        "compare", "HERE/run", f"HERE/{file}", "--allow-different-requests", "--json"]),
    "kernels": Family(write_kernels, ("kernels.*",), lambda file, rng: ["run", "HERE/served.yaml", "--json", "-q"],
                      signed=state_hash),
    "layers": Family(write_layers, ("*.csv",), lambda file, rng: ["run", "HERE/served.yaml", "--json", "-q"]),
    "rag": Family(write_rag, ("mine.yaml", "*.csv"), lambda file, rng: [
        "run", "HERE/served.yaml", "-o", "HERE/out", "-q"], "out/requests.parquet"),
    "ranks": Family(write_ranks, ("ranks.jsonl", "sizes.csv"), lambda file, rng: [
        "run", "HERE/served.yaml", "--json", "-q"]),
    "manifest": Family(write_manifests, ("*.yaml",), lambda file, rng: [
        "import", "vllm", f"HERE/{file}", "--device", "h100-sxm", "--rate", "1"]),
    "object": Family(write_objects, ("*.yaml",), lambda file, rng: [
        "import", "objects", f"HERE/{file}", "--into", "quickstart" if file == "flow.yaml" else "operations/hour"]),
    "planner": Family(write_planners, ("sla.yaml", "easy.json"), lambda file, rng: [
        "import", "planner", f"HERE/{file}", "--into", "HERE/planned.yaml"]),
    "log": Family(write_log, ("start.log",), lambda file, rng: [
        "compare", "quickstart", "--log", f"HERE/{file}", "--json"]),
    "dump": Family(write_dumps, ("dump.*", "hpa.yaml"), lambda file, rng: [
        "advise", "HERE/dump.csv" if file == "hpa.yaml" else f"HERE/{file}", "--autoscaler", "HERE/hpa.yaml",
        "--json"]),
    "steps": Family(_steps, ("steps.*",), lambda file, rng: [
        "calibrate", "check", "HERE/steps.yaml", "splitwise-2023-llama-2-70b-h100-tp8", "--json"], signed=state_hash),
    "bars": Family(write_bars, ("*.yaml", "*.json"), lambda file, rng: [
        "accuracy", "--data", "HERE/data", "--bars", "HERE/bars.yaml", "--against", "HERE/old.json", "-v"]),
    "shown": Family(write_shown, ("*.yaml",), lambda file, rng: ["profile", "show", f"HERE/{file}", "--json"]),
    "space": Family(lambda folder: write_space(folder, SCENARIO), ("space.yaml",), lambda file, rng: [
        "optimize", "HERE/space.yaml", "-o", "HERE/out", "--workers", "0", "-q", "--json"]),
    "observed": Family(_observed, ("observed/observed.*", "observed/observed-3.parquet"), lambda file, rng: [
        "compare", "HERE/run", "HERE/observed", "--allow-different-requests", "--json"]),
    "download": Family(write_reply, ("*.http",), lambda file, rng: [
        "trace", "get", "burstgpt", "-o", "HERE/out.parquet", "--json", "--url", f"{address()}HERE/{file}"]),
    "study": Family(_study, ("mine/study.yaml",), lambda file, rng: [
        "study", "HERE/mine", "-o", "HERE/out"], "out/report.md"),
    "plan": Family(_journal, ("plan.yaml",), lambda file, rng: [
        "calibrate", "run", "HERE/plan.yaml", "--dry-run", "--json"]),
    "journal": Family(_journal, ("journal.jsonl",), lambda file, rng: [
        "calibrate", "pack", "HERE/journal.jsonl", "-o", "HERE/packed.yaml", "--json"], "packed.parquet"),
    "starts": Family(_starts, ("starts.yaml", "starts.journal.jsonl"), lambda file, rng: [
        "fit", "HERE/starts.yaml", "-o", "HERE/mine.yaml", "--json"] if file == "starts.yaml" else [
        "calibrate", "pack", "HERE/starts.journal.jsonl", "-o", "HERE/packed.yaml", "--json"]),
}


@cache
def template(family: str, root: Path) -> Path:
    """The folder below `root` that the cases of a family are copies of, made when it is first asked for."""
    folder = root / f"template-{family}"
    folder.mkdir(parents=True)
    FAMILIES[family].make(folder)
    return folder


@cache
def _baseline(family: str, command: tuple[str, ...], root: Path) -> Ran:
    """What the command answers on an unchanged copy."""
    here = root / f"baseline-{family}"
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(template(family, root), here)
    ran = run_here([part.replace("HERE", str(here)) for part in command])
    return _answer(family, ran, here)


def _answer(family: str, ran: Ran, here: Path) -> Ran:
    file = FAMILIES[family].shows
    written = (here / file).read_bytes().hex() if file and (here / file).is_file() else ""
    return ran.without(here, written)


def folder_case(family: str, number: int, rng: random.Random, root: Path) -> FolderCase:
    """A case of one of `FAMILIES`, in a folder below `root`."""
    what, original = FAMILIES[family], template(family, root)
    files = sorted(path for pattern in what.files for path in original.glob(pattern))
    source = rng.choice(files)
    file = source.relative_to(original)
    command = what.commands(file.name, rng)
    baseline = _baseline(family, tuple(command), root)
    here = root / f"{family}-{number}"
    shutil.copytree(original, here)
    mutation, changed = mutate(source.read_bytes(), source.suffix, rng)
    (here / file).write_bytes(changed)
    if what.signed is not None and rng.random() < 0.8:
        what.signed(here / file)
    return FolderCase(
        family, mutation, here / file, [part.replace("HERE", str(here)) for part in command], baseline,
        changed_place(source.read_bytes(), changed, source.suffix), here,
    )
