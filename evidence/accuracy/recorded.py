"""Reference sets of engines that were recorded run by run: vLLM's schedules, on a CPU, on RTX cards; splitwise-sim's
answers.

schedules (`data/vllm-schedules`): the share of steps that the schedulers decide alike.

cpu (`data/vllm-cpu`): every online run of vLLM 0.32.0 on one CPU thread. The profile was fitted on the single steps of
other workloads of the same engine. A run may have any rate: its requests and the engine's limits are columns of its
file.

rtx (`data/vllm-runs`): vLLM 0.19.0 on RTX cards, recorded by the authors of LLMServingSim. The engine was driven
directly: no front end, and no sampling by top-p. The runs are replayed with composed terms, and the two of one card
with the operator tables of their own card (`layerwise`) as well. The two cards of a run are joined by PCIe: their own
link is `rtx-pro-6000-pair`; the set "default link" has what a user gets without naming a link.

splitwise (`reference/splitwise`, beside the data or in it): the folder holds, for a scenario
`scenarios/validation/splitwise-MODEL-WORKLOAD-RATE.yaml`, splitwise-sim's input trace (rr_WORKLOAD_RATE_2min.csv) and
its results, one request a row (mixed_pool_MODEL_WORKLOAD_RATErps.csv). The trace replaces the scenario's own workload;
nothing else is changed. `studies/splitwise` compares placement as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evidence.accuracy.served import (
    LATENCIES,
    Case,
    Row,
    compared,
    latencies,
    read_rows,
    replay,
    rows_of,
    statistics,
    trust_of_steps,
)
from evidence.schedules.vllm_replay import conform_file, find_files
from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.errors import InputError, suggest
from hermes.results import Results
from hermes.workload.importers import import_trace
from hermes.workload.traces import write_trace

__all__ = [
    "SplitwiseCase", "cpu_runs", "recorded_runs", "replayed", "scenarios", "schedules", "splitwise",
    "splitwise_cases",
]

CPU_PROFILE, CPU_BLOCK_SIZE, CPU_BLOCKS = "vllm-cpu-small-llama", 128, 1360
SEQUENCES, BUDGET = 128, 2048
BLOCKS = {"rtx4090-llama-3.1-8b": 2588, "rtxpro6000-llama-3.1-8b": 30_000, "rtxpro6000-qwen3-32b-tp2": 30_000,
          "rtxpro6000-qwen3-30b-a3b-dp2-ep2": 30_000}
OWN_LINK = "rtx-pro-6000-pair"
PARALLEL = {"tp2": {"tp": 2}, "dp2-ep2": {"dp": 2, "ep": 2}}

METRICS = ("ttft", "tbt", "e2e")
NAMES = {"llama-2-70b": "llama2-70b"}   # splitwise-sim's, where they differ


def schedules(data: Path) -> Iterator[Row]:
    """Recorded schedules of vLLM 0.32.0, step by step."""
    for path in find_files([data / "vllm-schedules"]):
        result = conform_file(path, every_step=False)
        case = Case("vLLM schedules", path.stem, "vllm-0.32", "-", "-")
        yield Row(case, "identical steps", "count", float(result.steps), float(result.identical))


def cpu_runs(data: Path) -> Iterator[Row]:
    """Each online run, on the clock that it was timed with."""
    folder = data / "vllm-cpu"
    paths = sorted(folder.glob("online-*.csv"))
    if not paths:
        raise InputError("an online run of the engine, online-NAME.csv", "none", file=str(folder))
    for path in paths:
        yield from _run(path)


def _run(path: Path) -> Iterator[Row]:
    run = read_rows(path, ("prompt_len", "output_len", "mnbt", "mns"), ("arrival_s", "first_token_s", "finish_s"))
    run = run.sort_values("arrival_s", kind="stable", ignore_index=True)
    requests = pd.DataFrame({
        "arrival_s": run.arrival_s, "prompt_tokens": run.prompt_len, "output_tokens": run.output_len})
    client = {
        "hardware": {"kind": "polynomial", "profile": CPU_PROFILE},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": int(run.mnbt[0]), "max_num_seqs": int(run.mns[0]),
                      "async_scheduling": False},
        "memory": {"block_size": CPU_BLOCK_SIZE, "num_blocks": CPU_BLOCKS, "prefix_caching": False},
    }
    results = replay(client, requests)
    several = run.output_len > 1
    measured = statistics({
        "ttft": run.first_token_s - run.arrival_s, "e2e": run.finish_s - run.arrival_s,
        "tpot": ((run.finish_s - run.first_token_s) / (run.output_len - 1).clip(lower=1))[several],
    })
    case = Case("vLLM on a CPU", path.stem.removeprefix("online-"), "vllm-0.32", "cpu", "small-llama",
                trust_of_steps(results))
    yield from rows_of(case, measured, latencies(results.requests))


def _hardware(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (what prices the steps, model, hardware)."""
    plain = {"kind": "composed", "top_p": False}
    if "qwen3" in folder.name:
        model = "qwen3-32b" if "32b" in folder.name else "qwen3-30b-a3b"
        yield "composed", model, {**plain, "link": OWN_LINK}
        yield "composed, default link", model, plain
        return
    yield "layerwise", "llama-3.1-8b", {
        "kind": "layerwise", "path": str(folder / "profile"), "model": "llama-3.1-8b"}
    yield "composed", "llama-3.1-8b", plain


def recorded_runs(data: Path, only: str = "", link: Mapping[str, Any] | str | None = None) -> Iterator[Row]:
    """Recorded runs of 300 requests that arrive within half a minute.

    Args:
        only: The folder of one run, instead of all.
        link: What joins the devices, instead of their own link.
    """
    for name, blocks in BLOCKS.items():
        if only not in ("", name):
            continue
        folder = data / "vllm-runs" / name
        card = "rtx-4090" if "4090" in name else "rtx-pro-6000"
        with tempfile.TemporaryDirectory() as temporary:
            trace = Path(temporary) / "trace.parquet"
            write_trace(import_trace("vllm-run", folder / "requests.jsonl"), trace, source=name, hash_block_tokens=16)
            replayed = {"kind": "trace", "path": str(trace)}
            for how, model, hardware in _hardware(folder):
                if link is not None and "link" not in hardware:
                    continue   # one card, or the default, which was asked for without a link
                hardware = {**hardware, "link": link} if link is not None else hardware
                sequences = 256 if "4090" in name else SEQUENCES
                client = {
                    "model": model, "device": card, "engine": "vllm-0.19", "hardware": hardware,
                    "parallel": next((value for end, value in PARALLEL.items() if name.endswith(end)), {}),
                    "scheduler": {"kind": "chunked", "max_num_seqs": sequences, "max_num_batched_tokens": BUDGET,
                                  "async_scheduling": True},
                    "memory": {"num_blocks": blocks, "block_size": 16}, "frontend": {},
                }
                results = simulate({"name": name, "seed": 1, "clients": [client],
                                    "router": {"kind": "least_loaded", "load": "requests"},
                                    "workload": {"arrivals": replayed, "lengths": replayed, "ends": "max_new_tokens"}},
                                   whole=True)
                case = Case(f"RTX, {how}", name, "vllm-0.19", card, model, trust_of_steps(results))
                yield from compared(case, results, folder / "requests.jsonl", "vllm-run", LATENCIES)


@dataclass
class SplitwiseCase:
    """A scenario, and splitwise-sim's trace and results for it."""

    name: str
    scenario: Path
    trace: Path
    answers: Path
    model: str
    workload: str


def splitwise(root: Path) -> Iterator[Row]:
    """Statistics of each case."""
    for case in splitwise_cases(root / "reference" / "splitwise"):
        about = Case("splitwise-sim", case.name, "-", "h100-sxm tp8", case.model)
        yield from compared(about, replayed(case), case.answers, "splitwise", METRICS)


def scenarios() -> list[Path]:
    """Return the scenarios of the cases with results of splitwise-sim."""
    return sorted((resource_dir("scenarios") / "validation").glob("splitwise-*-*-*.yaml"))


def splitwise_cases(reference: Path, wanted: Sequence[str] = ()) -> list[SplitwiseCase]:
    """Return the cases with scenarios, in order of their names; raises `InputError` for an unknown one."""
    found = []
    for path in scenarios():
        model, workload, rate = path.stem.removeprefix("splitwise-").rsplit("-", 2)
        answers = f"mixed_pool_{NAMES.get(model, model)}_{workload}_{rate}rps.csv"
        trace = f"rr_{workload}_{rate}_2min.csv"
        found.append(SplitwiseCase(path.stem, path, reference / trace, reference / answers, model, workload))
    known = [case.name for case in found]
    for name in wanted:
        if name not in known:
            raise InputError(f"one of {', '.join(known)}", name, field="case", suggestion=suggest(name, known))
    chosen = [case for case in found if not wanted or case.name in wanted]
    for case in chosen:
        for path in (case.trace, case.answers):
            if not path.is_file():
                raise InputError("a file with splitwise-sim's trace or answers", str(path), field="--data")
    return chosen


def replayed(case: SplitwiseCase, stepping: str = "runs", extra: Sequence[str] = ()) -> Results:
    """Simulate a case on splitwise-sim's trace. extra: more changes to the scenario, as for --set."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.parquet"
        columns = {"arrival": "arrival_timestamp", "prompt": "prompt_size", "output": "token_size"}
        write_trace(import_trace("csv", case.trace, **columns), trace, source=case.trace.name)
        replay = f"{{kind: trace, path: '{trace}'}}"
        overrides = ["workload.duration=null", f"workload.arrivals={replay}", f"workload.lengths={replay}", *extra]
        return simulate(case.scenario, overrides=overrides, stepping=stepping, whole=True)
