"""CPU and memory beside another simulator's, on the same traces and clusters, in turn, on a quiet machine.

    python benchmarks/duel.py --other PYTHON [--compiled FOLDER] [--repeats 3] [--only CASE ...] [--anyway]

PYTHON: An interpreter with `ai-dynamo` 1.6 (`dynamo.replay`: its simulator's core is written in Rust).
FOLDER: A compiled build, as `make compiled` leaves it in build/compiled.

Each run is a process of its own, from the trace to the files: CPU seconds and memory are the process's, imports with
them; the first one writes the bytecode of modules, which an installation has. The trace is the other's own format; ours
reads the table that it imports, once. Blocks are of 16 tokens, 80,000 a client, 256 sequences and 8,192 tokens a step.
Each of the two prices steps in its own way, so requests, tokens and hits are compared, and what differs is said. A
machine that is not quiet is refused: the same piece of work, timed twelve times, may vary by 4%, and may wait for a
core for a twentieth of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))   # the build that PYTHONPATH names comes first

DATA = ROOT.parent / "shared" / "data"
SEQS, TOKENS, BLOCK, BLOCKS = 256, 8192, 16, 80_000
LOUD, WAITS = 0.04, 0.05

OTHER = f"""
import json, sys
from dynamo.replay.api import run_synthetic_trace_replay, run_trace_replay
kind, arguments, options, report = json.loads(sys.argv[1])
engine = {{"num_gpu_blocks": {BLOCKS}, "block_size": {BLOCK}, "max_num_seqs": {SEQS},
          "max_num_batched_tokens": {TOKENS}, "enable_prefix_caching": True}}
run = run_trace_replay if kind == "trace" else run_synthetic_trace_replay
found = run(*arguments, extra_engine_args={{"num_gpu_blocks_is_explicit": True, "engine": engine}},
            capture_per_request=True, **options)
json.dump([found.summary, found.per_request], open(report, "w"), default=str)
one = found.summary
print(json.dumps([one["completed_requests"], one["total_input_tokens"], one["total_output_tokens"],
                  one["prefix_cache_reused_ratio"]]))
"""
OURS = """
import json, sys
from hermes import simulate
from hermes.results.files.export import write_results
found = simulate(json.loads(sys.argv[1]))
write_results(found, sys.argv[2])
one = found.summary
print(json.dumps([one["requests"]["completed"], one["tokens"]["prompt"], one["tokens"]["output"],
                  one["cache"]["hit_rate"]]))
"""


@dataclass(frozen=True)
class Case:
    """One question to both.

    Args:
        title: What is replayed, on what.
        clients: Their number.
        workload: Ours, given the folder of traces; it has written what it names.
        arguments: Theirs: kind of replay, arguments and options, given that folder.
        router: Ours.
    """

    title: str
    clients: int
    workload: Callable[[Path], dict[str, Any]]
    arguments: Callable[[Path], list[Any]]
    router: str = "round_robin"


@dataclass(frozen=True)
class Run:
    """CPU seconds, bytes at most, and requests, tokens of prompts and answers, and the share of hits."""

    cpu_s: float
    rss_bytes: int
    counts: tuple[int, int, int]
    hits: float


def mooncake(copies: int, scale: float) -> Callable[[Path], dict[str, Any]]:
    """Return what writes copies of Mooncake's conversations, with contents of their own, and names them."""

    def write(folder: Path) -> dict[str, Any]:
        from hermes.workload.importers import import_trace
        from hermes.workload.traces import write_trace

        rows = [json.loads(line) for line in (DATA / "mooncake" / "conversation_trace.jsonl").read_text().splitlines()]
        step = 1 + max(max(row["hash_ids"]) for row in rows)
        lines = [json.dumps(row | {"hash_ids": [number + copy * step for number in row["hash_ids"]]})
                 for row in rows for copy in range(copies)]
        (folder / "trace.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_trace(import_trace("mooncake", folder / "trace.jsonl"), folder / "trace.parquet",
                    source="mooncake")
        return named(folder / "trace.parquet", scale)

    return write


def ragpulse(folder: Path) -> dict[str, Any]:
    """Write RAGPulse's day in 8 copies, whose prompts are hashed by whole blocks of 16 tokens, and name it."""
    import pandas as pd

    table = folder / "copies.parquet"
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "ragpulse_copies.py"), str(table), "--unshared",
                    "--copies", "8", "--blocks", str(BLOCK)], check=True)
    rows = pd.read_parquet(table)
    lines = [json.dumps({"timestamp": round(1000 * at), "input_length": int(prompt), "output_length": max(int(out), 1),
                         "hash_ids": [*ids.tolist(), 10**9 + row][:-(-int(prompt) // BLOCK)]})
             for row, (at, prompt, out, ids) in enumerate(zip(
                 rows["arrival_s"], rows["prompt_tokens"], rows["output_tokens"], rows["hash_ids"], strict=True))]
    (folder / "trace.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return named(table, 1.0)


def named(table: Path, scale: float) -> dict[str, Any]:
    return {"arrivals": {"kind": "trace", "path": str(table), "scale": scale},
            "lengths": {"kind": "trace", "path": str(table)}}


def poisson(_folder: Path) -> dict[str, Any]:
    return {"requests": 50_000, "arrivals": {"kind": "poisson", "rate": 80},
            "lengths": {"kind": "fixed", "prompt": 1024, "output": 128}}


def replay(clients: int, block: int = 512, speedup: float = 1.0, mode: str = "round_robin"
           ) -> Callable[[Path], list[Any]]:
    return lambda folder: ["trace", [str(folder / "trace.jsonl")], {
        "num_workers": clients, "trace_block_size": block, "arrival_speedup_ratio": speedup, "router_mode": mode}]


CASES = {
    "mooncake": Case("Mooncake's conversations at 3 times their rate, 8 clients", 8, mooncake(1, 3.0),
                     replay(8, speedup=3.0)),
    "copies": Case("8 copies of them side by side, 64 clients", 64, mooncake(8, 3.0), replay(64, speedup=3.0)),
    "poisson": Case("50,000 requests of 1,024 and 128 tokens at 80/s, 10 clients", 10, poisson, lambda _folder: [
        "synthetic", [1024, 128, 50_000], {"num_workers": 10, "request_rate": 80.0}]),
    "ragpulse": Case("RAGPulse's day in 8 copies, hashed by 16 tokens, 8 clients", 8, ragpulse, replay(8, block=16)),
    "kv_router": Case("Mooncake's conversations behind Dynamo's KV router, 8 clients", 8, mooncake(1, 1.0),
                      replay(8, mode="kv_router"), router="dynamo_kv"),
}


def scenario(case: Case, workload: dict[str, Any]) -> dict[str, Any]:
    client = {"name": "llm", "count": case.clients, "model": "llama-3.1-8b", "device": "h100-sxm",
              "scheduler": {"kind": "chunked", "max_num_seqs": SEQS, "max_num_batched_tokens": TOKENS},
              "memory": {"num_blocks": BLOCKS, "block_size": BLOCK, "prefix_caching": True}}
    return {"seed": 1, "workload": workload, "clients": [client], "router": {"kind": case.router}}


def child(command: list[str], folder: Path, **environment: str) -> Run:
    """Run a process in a folder without sources, and return what it used and printed; its log goes to a file there."""
    with tempfile.TemporaryFile("w+") as out, (folder / "log.txt").open("w") as log:
        done = subprocess.Popen(command, stdout=out, stderr=log, cwd=folder,
                                env=os.environ | {"OMP_NUM_THREADS": "1", "DYN_LOG": "error",
                                                  "PYTHONDONTWRITEBYTECODE": ""} | environment)
        _, status, used = os.wait4(done.pid, 0)
        done.returncode = os.waitstatus_to_exitcode(status)
        if done.returncode:
            raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{(folder / 'log.txt').read_text()[-2000:]}")
        out.seek(0)
        requests, prompts, answers, hits = json.loads(out.read().splitlines()[-1])
    return Run(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, (requests, prompts, answers), hits)


def drift() -> tuple[float, float]:
    """Return by how much a piece of work varies, and for which share of its time it waits for a core."""
    cpu, wall = [], []
    for _ in range(12):
        began, started = time.process_time(), time.perf_counter()
        sum(range(6_000_000))
        cpu.append(time.process_time() - began)
        wall.append(time.perf_counter() - started)
    return statistics.pstdev(cpu) / statistics.mean(cpu), max(1 - statistics.mean(cpu) / statistics.mean(wall), 0.0)


def written(name: str, folder: Path) -> tuple[dict[str, Any], float]:
    """Write the traces of a case; return our workload, and the CPU seconds that it took."""
    began = time.process_time()
    return CASES[name].workload(folder), time.process_time() - began


def duel(name: str, case: Case, other: str, compiled: str | None, repeats: int) -> dict[str, Any]:
    """Let both run a case in turn, print a line of each, and return their figures."""
    sides: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with ProcessPoolExecutor(1) as process:   # its memory would count as that of each child
            workload, importing = process.submit(written, name, folder).result()
        asked = json.dumps(scenario(case, workload))
        question = json.dumps([*case.arguments(folder), str(folder / "report.json")])
        for turn in range(repeats):
            sides.setdefault("other", []).append(child([other, "-c", OTHER, question], folder))
            ours = [sys.executable, "-c", OURS, asked]
            sides.setdefault("pure", []).append(child([*ours, str(folder / f"{turn}")], folder, PYTHONPATH=str(ROOT)))
            if compiled:
                sides.setdefault("compiled", []).append(
                    child([*ours, str(folder / f"{turn}c")], folder, PYTHONPATH=compiled))
    print(f"{name}: {case.title}; traces written in {importing:.1f} s of CPU")
    figures: dict[str, Any] = {}
    theirs = statistics.median(run.cpu_s for run in sides["other"])
    for side, runs in sides.items():
        cpu = statistics.median(run.cpu_s for run in runs)
        requests, prompts, answers = runs[0].counts
        ratio = f"{theirs / cpu:5.2f} times" if side != "other" else " " * 11
        print(f"  {side:9} {cpu:7.2f} s {ratio} {max(run.rss_bytes for run in runs) / 1e6:7,.0f} MB  "
              f"{requests:,} requests, {prompts:,} + {answers:,} tokens, {runs[0].hits:.2%} hits", flush=True)
        figures |= {f"{name}_{side}_cpu_s": cpu, f"{name}_{side}_rss_bytes": max(run.rss_bytes for run in runs)}
    if len({runs[0].hits for runs in sides.values()}) > 1:
        print("  hits differ")
    if len({runs[0].counts for runs in sides.values()}) > 1:
        print("  counts differ")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", metavar="PYTHON", required=True)
    parser.add_argument("--compiled", metavar="FOLDER", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="these cases only")
    parser.add_argument("--anyway", action="store_true", help="also on a machine that is not quiet")
    parser.add_argument("--json", metavar="FILE", help="write the figures as flat JSON")
    asked = parser.parse_args()
    compiled = None if asked.compiled is None else str(asked.compiled.resolve())
    varies, waits = drift()
    print(f"this machine: a piece of work varies by {varies:.1%} and waits for {waits:.1%} of its time")
    if (varies > LOUD or waits > WAITS) and not asked.anyway:
        raise SystemExit(f"not quiet (at most {LOUD:.0%} and {WAITS:.0%}): end other work, or use --anyway")
    figures: dict[str, Any] = {"varies": varies, "waits": waits}
    for name in asked.only:
        figures |= duel(name, CASES[name], asked.other, compiled, asked.repeats)
    if asked.json:
        Path(asked.json).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"written to {asked.json}")


if __name__ == "__main__":
    main()
