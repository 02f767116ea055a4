"""Vary the assumptions about MiniMax-M2.5's closed loops one at a time, and print the errors of their latencies.

    python scripts/closed_loop_causes.py DATA_DIR

DATA_DIR holds inferencex/minimax-m2.5-fp8block-h200-vllm.csv (see `hermes accuracy`). First each run, measured and
predicted: TTFT p50 and p99 in seconds and tokens/s on a server that has served nothing, and on one that has served the
runs before it with the same prompts. Then, for each assumption, the median over the runs of the absolute errors and in
brackets that of the errors, in percent.

Steps of these servers take several times as long as predicted. So that errors of the protocol show, the assumptions
are varied again with steps as long as those of four users: decodes and prompts stretched so that TPOT p50 and TTFT p99
of their runs are met in the median. Those runs come first on their servers, and have nothing in the cache. The time of
a prompt token in a front end that takes one request at a time is what TTFT p99 leaves for each token of a wave in runs
of at least 48 users and prompts of at most 4,096 tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidence.accuracy.inferencex import OUTPUT, Run, minimax_runs, sweep
from hermes.errors import HermesError

SHOWN = {"TTFT p50": ("ttft", "p50"), "TTFT p99": ("ttft", "p99"), "TPOT p50": ("tpot", "p50"),
         "TPOT p99": ("tpot", "p99"), "E2E p50": ("e2e", "p50"), "tokens/s": OUTPUT}
FEW, MANY, SHORT = 4, 48, 4096   # users, users, prompt tokens
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "front end: one request at a time (4.5 ms)": {"request_overhead": {"mode": "overlapped", "generate": "4.5 ms"}},
    "no asynchronous scheduling": {"scheduler": {"kind": "chunked", "async_scheduling": False}},
    "steps of 2,048 tokens": {"scheduler": {"kind": "chunked", "max_num_batched_tokens": 2048}},
    "steps of 32,768 tokens": {"scheduler": {"kind": "chunked", "max_num_batched_tokens": 32768}},
    "vllm-0.16": {"engine": "vllm-0.16"},
}
Found = Mapping[tuple[str, str], float]


def predicted(run: Run, change: Mapping[str, Any], shared: bool) -> Found:
    """Return the figures of a run. shared: whether the runs before it had the same prompts."""
    return sweep({**run.client, **change}, run.prompt, run.users, run.before if shared else ())[1]


def line(what: str, runs: Sequence[Run], found: Sequence[Found]) -> str:
    """Return a row of the table of assumptions."""
    cells = []
    for key in SHOWN.values():
        errors = np.array([100 * (each[key] / run.measured[key] - 1) for run, each in zip(runs, found, strict=True)])
        cells.append(f"{np.median(np.abs(errors)):.0f} ({np.median(errors):+.0f})")
    return f"| {what} | {' | '.join(cells)} |"


def stretched(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the factors with which runs of few users meet their TPOT p50 and TTFT p99 in the median."""
    few = [run for run in runs if run.users == FEW and not run.before]
    found = [predicted(run, {}, False) for run in few]
    decodes, prompts = (float(np.median([run.measured[key] / each[key] for run, each in zip(few, found, strict=True)]))
                        for key in (("tpot", "p50"), ("ttft", "p99")))
    return {"adjust": {"prompts": round(prompts, 2), "decodes": round(decodes, 2)}}


def token_s(runs: Sequence[Run]) -> float:
    """Return the seconds of TTFT p99 for each prompt token of a wave, in the median of large waves of short prompts."""
    return float(np.median([run.measured["ttft", "p99"] / (run.users * run.prompt) for run in runs
                            if run.users >= MANY and run.prompt <= SHORT]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    try:
        report(list(minimax_runs(parser.parse_args(arguments).data)))
    except HermesError as error:
        print(f"closed_loop_causes: {error}", file=sys.stderr)
        return 2
    return 0


def report(runs: Sequence[Run]) -> None:
    alone, shared = ([predicted(run, {}, way) for run in runs] for way in (False, True))
    print("| prompt | users | TTFT p50, s | alone | shared | TTFT p99, s | alone | shared | tokens/s | alone "
          "| shared |")
    print("| ---: " * 11 + "|")
    for run, one, other in zip(runs, alone, shared, strict=True):
        wanted = ((("ttft", "p50"), 3), (("ttft", "p99"), 3), (OUTPUT, 0))
        cells = [f"{values[key]:.{digits}f}" for key, digits in wanted for values in (run.measured, one, other)]
        print(f"| {run.prompt} | {run.users} | {' | '.join(cells)} |")
    factors, each_s = stretched(runs), token_s(runs)
    print(f"\nstretched: prompts {factors['adjust']['prompts']:g} times as long, decodes "
          f"{factors['adjust']['decodes']:g}; front end {each_s * 1e6:.1f} us a prompt token")
    print(f"\n| assumption | {' | '.join(SHOWN)} |\n| --- |{' ---: |' * len(SHOWN)}")
    for steps, own in (("", {}), ("stretched, ", factors)):
        for name, change in CHANGES.items():
            for way, text in ((False, "alone"), (True, "shared")):
                found = [predicted(run, {**own, **change}, way) for run in runs]
                print(line(f"{steps}{text}: {name}", runs, found), flush=True)
    for name in ("as it is", "steps of 32,768 tokens"):
        for way, text in ((False, "alone"), (True, "shared")):
            found = [predicted(run, {**factors, **CHANGES[name], "request_overhead": {
                "mode": "overlapped", "generate": each_s * run.prompt}}, way) for run in runs]
            what = "" if name == "as it is" else f", {name}"
            print(line(f"stretched, {text}: front end, one at a time by prompt token{what}", runs, found), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
