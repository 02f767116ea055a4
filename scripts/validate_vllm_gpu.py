"""Compare with recorded vLLM 0.19.0 runs on two GPUs: the cases in scenarios/validation/vllm-0.19-*.yaml.

    python scripts/validate_vllm_gpu.py [FOLDER] [--case NAME]... [--causes] [--residuals] [--json]

FOLDER holds, per case, a recorded run (requests.jsonl, prompt_blocks.jsonl) with the operator tables of the same card
(profile/). The scenario's workload becomes the recorded one, its hardware the tables; nothing is fitted to the runs.
`--causes` repeats every case without one cause at a time: what each is worth. `--residuals` compares single steps:
between two recorded instants the engine ran a known batch for a few steps. Exit code 1 if a mean is further off than
2%, or a percentile than 4%; 2 if the simulated requests are not the recorded ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.api import simulate
from hermes.errors import HermesError, InputError, suggest
from hermes.hardware import StepStats
from hermes.hardware.fitted.layerwise import Layerwise, LayerwiseModel
from hermes.results.compare import compare
from hermes.workload.importers import import_trace
from hermes.workload.traces import write_trace

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "scenarios" / "validation"
REFERENCE = ROOT.parent / "shared" / "data" / "vllm-runs"
CASES = {
    "vllm-0.19-rtx-4090": "rtx4090-llama-3.1-8b",
    "vllm-0.19-rtx-pro-6000": "rtxpro6000-llama-3.1-8b",
}
METRICS, STATS = ("ttft", "tpot", "e2e"), ("mean", "p50", "p90", "p99")
ALLOWED = {"mean": 0.02, "p50": 0.04, "p90": 0.04, "p99": 0.04}
CAUSES: dict[str, list[str]] = {
    "everything": [],
    "no prefix hits": ["clients.0.memory.prefix_caching=false"],
    "equal decode contexts": ["clients.0.hardware.skew=none"],
    "alpha per batch, not one per card": ["clients.0.hardware.skew=by_batch"],
    "alpha per batch, and all times 3% shorter": ["clients.0.hardware.skew=by_batch", "clients.0.hardware.scale=0.97"],
    "lines between the points of matrix products": ["clients.0.hardware.products=lines"],
    "scheduling in step with the device": ["clients.0.scheduler.async_scheduling=false"],
    "1 ms of the engine's time a step, hidden": ["clients.0.hardware.overhead=1 ms"],
    "1 ms of the engine's time a step, not hidden": [
        "clients.0.hardware.overhead=1 ms", "clients.0.hardware.asynchronous=false",
    ],
    "0.32.0's order of freed blocks": ["clients.0.engine=vllm-0.32"],
}


@dataclass
class Row:
    """One statistic of one metric, in seconds; error = (ours - engine) / engine."""

    metric: str
    stat: str
    ours_s: float
    engine_s: float
    error: float

    @property
    def ok(self) -> bool:
        return abs(self.error) <= ALLOWED[self.stat]


@dataclass
class Outcome:
    """A case, with everything or without one cause."""

    case: str
    cause: str
    rows: list[Row]
    preemptions: int
    cached_tokens: int

    def error(self, metric: str, stat: str) -> float:
        return next(row.error for row in self.rows if (row.metric, row.stat) == (metric, stat))


def hardware_of(folder: Path) -> str:
    return f"{{kind: layerwise, model: llama-3.1-8b, path: '{folder / 'profile'}'}}"


def run(case: str, folder: Path, cause: str = "everything") -> Outcome:
    """Simulate a case on the recorded workload, and compare."""
    changes = CAUSES[cause]
    with tempfile.TemporaryDirectory() as temporary:
        trace = Path(temporary) / "trace.parquet"
        frame = import_trace("vllm-run", folder / "requests.jsonl")
        write_trace(frame, trace, source=folder.name, hash_block_tokens=16)
        replay = f"{{kind: trace, path: '{trace}'}}"
        overrides = [
            "workload.requests=null", f"workload.arrivals={replay}", f"workload.lengths={replay}",
            f"clients.0.hardware={hardware_of(folder)}", *changes,
        ]
        results = simulate(SCENARIOS / f"{case}.yaml", overrides=overrides)
    rows = [
        Row(row.metric, row.stat, float(row.ours_s or 0), float(row.reference_s or 0), float(row.error or 0))
        for row in compare(results, folder / "requests.jsonl", "vllm-run").rows
        if row.metric in METRICS and row.stat in STATS
    ]
    requests = results.requests
    return Outcome(case, cause, rows, int(requests["preemptions"].sum()), int(requests["cached_tokens"].sum()))


# -- single steps ----------------------------------------------------------------------------------------------------

Floats = npt.NDArray[np.float64]


@dataclass
class Recorded:
    """Columns of requests.jsonl (instants of one clock, seconds) and the tokens of each prompt that were cached."""

    scheduled: Floats
    first: Floats
    last: Floats
    prompt: Floats
    output: Floats
    cached: Floats

    @property
    def instants(self) -> Floats:
        """Return all recorded ends of steps."""
        return np.unique(np.concatenate([self.first, self.last]))

    def decoding(self, start: float, end: float) -> npt.NDArray[np.bool_]:
        """Return requests that decode from `start` to `end` (those preempted meanwhile cannot be told apart)."""
        return (self.first <= start + 1e-6) & (self.last >= end - 1e-6)

    def contexts(self, who: npt.NDArray[np.bool_], at: float) -> Floats:
        """Return their cached tokens at an instant, with tokens evenly spaced in time."""
        share = (at - self.first[who]) / (self.last[who] - self.first[who])
        return np.asarray(self.prompt[who] + share * (self.output[who] - 1))


def recorded(folder: Path) -> Recorded:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    seen: set[int] = set()
    cached = []
    for line, row in zip((folder / "prompt_blocks.jsonl").read_text().splitlines(), rows, strict=True):
        blocks = json.loads(line)["hash_ids"]
        hits = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        cached.append(min(hits, (row["input_toks"] - 1) // 16) * 16)
        seen.update(blocks)
    names = ("scheduled_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
    columns = [np.array([row[name] for row in rows], dtype=np.float64) for name in names]
    return Recorded(*columns, np.array(cached, dtype=np.float64))


def _decodes(contexts: Floats) -> StepStats:
    n = len(contexts)
    return StepStats(decode_seqs=n, decode_ctx=round(contexts.sum()), decode_ctx_max=round(contexts.max()), sampled=n)


def decode_windows(run: Recorded, model: LayerwiseModel) -> Iterator[tuple[int, float, float]]:
    """(decodes, measured, predicted seconds a step) of windows of at most 8 steps without any prefill."""
    instants = run.instants
    for start, end in pairwise(instants):
        if ((run.scheduled < end - 1e-3) & (run.first > start + 1e-6)).any():
            continue   # a prompt is in progress
        who = run.decoding(start, end)
        if not who.any():
            continue
        stats = _decodes(run.contexts(who, start))
        steps = max(1, round((end - start) / (model.step_ns(stats) / 1e9)))
        predicted = float(model.run_ns(stats, steps).sum()) / 1e9
        if steps <= 8 and 0.8 < (end - start) / predicted < 1.25:   # beyond: requests were preempted in it
            yield stats.decode_seqs, (end - start) / steps, predicted / steps


def prefill_windows(run: Recorded, model: LayerwiseModel) -> Iterator[tuple[int, float, float]]:
    """(new tokens, measured, predicted seconds) of a decode step and the step with one whole prompt after it: what
    follows the end of a request under asynchronous scheduling."""
    ends, instants = np.unique(run.last), run.instants
    for i in np.argsort(run.scheduled):
        j = int(np.searchsorted(ends, run.scheduled[i])) - 1
        if j < 0 or run.scheduled[i] - ends[j] > 1e-3:
            continue
        start, end = float(ends[j]), float(run.first[i])
        others = (run.scheduled < end - 1e-4) & (run.first > start + 1e-6)
        new, past = int(run.prompt[i] - run.cached[i]), int(run.cached[i])
        who = run.decoding(start, end)
        inside = (instants > start + 1e-6) & (instants < end - 1e-6)
        if others.sum() > 1 or inside.any() or not who.any() or new > 2048 - who.sum():
            continue
        stats = _decodes(run.contexts(who, start))
        mixed = StepStats(
            prefill_seqs=1, prefill_tokens=new, prefill_past=past, prefill_attn=new * past + new * (new + 1) // 2,
            decode_seqs=stats.decode_seqs, decode_ctx=stats.decode_ctx + stats.decode_seqs,
            decode_ctx_max=stats.decode_ctx_max + 1, sampled=stats.sampled + 1,
        )
        predicted = (model.step_ns(stats) + model.step_ns(mixed)) / 1e9
        if 0.8 < (end - start) / predicted < 1.25:
            yield new, end - start, predicted


def residuals(folder: Path) -> list[tuple[str, int, float, float, float]]:
    """(windows, how many, median, 10% and 90% quantile of measured / predicted - 1) by kind and size."""
    run = recorded(folder)
    out = []
    for skew in ("single", "by_batch", "none"):
        config = Layerwise(path=str(folder / "profile"), model="llama-3.1-8b", skew=skew)  # type: ignore[arg-type]
        model = config.build()
        kinds = (
            ("decode steps", "decodes", decode_windows, (1, 16, 32, 64, 112, 128, 257)),
            ("a decode and a prefill step", "new tokens", prefill_windows, (1, 400, 600, 800, 1100, 2049)),
        )
        for kind, unit, windows, edges in kinds:
            found = np.array(list(windows(run, model))).reshape(-1, 3)
            for low, high in pairwise(edges):
                part = found[(found[:, 0] >= low) & (found[:, 0] < high)]
                if len(part) >= 3:
                    errors = part[:, 1] / part[:, 2] - 1
                    label = f"skew {skew}: {kind}, {low}-{high - 1} {unit}"
                    out.append((label, len(part), *map(float, np.percentile(errors, (50, 10, 90)))))
    return out


# -- printing --------------------------------------------------------------------------------------------------------


def show(outcome: Outcome) -> None:
    print(f"{outcome.case}: {outcome.preemptions} preemptions, {outcome.cached_tokens:,} prompt tokens cached")
    print(f"  {'metric':6} {'stat':5} {'hermes':>10} {'engine':>10} {'error':>8}")
    for row in outcome.rows:
        print(f"  {row.metric.upper():6} {row.stat:5} {row.ours_s:9.4f}s {row.engine_s:9.4f}s {row.error:+8.2%}"
              f"{'' if row.ok else '   MISSED'}")
    print()


def show_causes(outcomes: Sequence[Outcome]) -> None:
    print(f"{outcomes[0].case}: errors of the means (and of TTFT's p50) without one cause at a time")
    columns = [(metric, "mean") for metric in METRICS] + [("ttft", "p50")]
    print(f"  {'':48}" + "".join(f"{metric.upper() + ' ' + stat:>11}" for metric, stat in columns))
    for outcome in outcomes:
        cells = "".join(f"{outcome.error(metric, stat):+11.1%}" for metric, stat in columns)
        print(f"  {outcome.cause:48}{cells}")
    print()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare with recorded vLLM 0.19.0 runs on two GPUs.")
    parser.add_argument("folder", type=Path, nargs="?", default=REFERENCE, help="folder of the recorded runs")
    parser.add_argument("--case", action="append", help="name of a case; may be given often (all by default)")
    parser.add_argument("--causes", action="store_true", help="also without one cause at a time")
    parser.add_argument("--residuals", action="store_true", help="also single steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    data: list[dict[str, Any]] = []
    ok = True
    try:
        for case in options.case or CASES:
            if case not in CASES:
                raise InputError(f"one of {', '.join(CASES)}", case, field="--case", suggestion=suggest(case, CASES))
            folder = options.folder / CASES[case]
            if not (folder / "requests.jsonl").is_file():
                raise InputError("a folder with recorded runs", str(options.folder), field="FOLDER")
            outcomes = [run(case, folder, cause) for cause in (CAUSES if options.causes else ["everything"])]
            steps = residuals(folder) if options.residuals else []
            ok &= all(row.ok for row in outcomes[0].rows)
            data.append({"outcomes": [asdict(outcome) for outcome in outcomes], "residuals": steps})
            if options.json:
                continue
            show(outcomes[0])
            if options.causes:
                show_causes(outcomes)
            for label, count, median, low, high in steps:
                print(f"  {label:70} {count:4} windows: {median:+6.1%} ({low:+.1%} to {high:+.1%})")
    except HermesError as error:
        print(f"validate_vllm_gpu: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(data, indent=2))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
