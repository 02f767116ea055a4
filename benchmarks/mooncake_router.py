"""Mooncake's trace over 8 clients behind a KV router: requests/s of CPU, hits and TTFT, beside another simulator's.

    python benchmarks/mooncake_router.py [--data FOLDER] [--repeats N] [--other PYTHON]

PYTHON: An interpreter with `ai-dynamo` 1.6 (`dynamo.replay`), which replays the same trace with as many blocks of the
same size, its own step times and its own KV router. Runs of both take turns; figures are medians. CPU seconds include
reading the trace and, here, the results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))   # the build that PYTHONPATH names comes first

from benchmarks.core import write_mooncake
from hermes import simulate

BLOCKS, BLOCK, SEQS, TOKENS = 20_000, 64, 256, 8192   # of each client; tokens of a block
ROUTERS: dict[str, dict[str, Any]] = {
    "round_robin": {"kind": "round_robin"},
    "least_loaded": {"kind": "least_loaded"},
    "dynamo_kv": {"kind": "dynamo_kv"},
    "dynamo_kv, events": {"kind": "dynamo_kv", "caches": {"kind": "events"}},
    "dynamo_kv, exact": {"kind": "dynamo_kv", "caches": "exact"},
    "llm_d": {"kind": "llm_d"},
}
OTHER = f"""
import json, sys, time
from dynamo.replay.api import run_trace_replay
engine = {{"num_gpu_blocks": {BLOCKS}, "block_size": {BLOCK}, "max_num_seqs": {SEQS},
          "max_num_batched_tokens": {TOKENS}, "enable_prefix_caching": True}}
begun = time.process_time()
found = run_trace_replay(sys.argv[1], num_workers=8, router_mode=sys.argv[2], trace_block_size=512,
                         extra_engine_args={{"num_gpu_blocks_is_explicit": True, "engine": engine}}).summary
print(json.dumps([time.process_time() - begun, found["prefix_cache_reused_ratio"], found["mean_ttft_ms"] / 1e3,
                  found["completed_requests"]]))
"""
Figures = tuple[float, float, float, int]   # CPU seconds, hits, mean TTFT in s, requests


def ours(trace: Path, router: dict[str, Any]) -> Figures:
    """Simulate the trace with a router."""
    source = {"kind": "trace", "path": str(trace)}
    memory = {"num_blocks": BLOCKS, "block_size": BLOCK, "prefix_caching": True}
    scheduler = {"kind": "chunked", "max_num_seqs": SEQS, "max_num_batched_tokens": TOKENS}
    client = {"name": "llm", "count": 8, "model": "llama-3.1-8b", "device": "h100-sxm", "scheduler": scheduler,
              "memory": memory}
    begun = time.process_time()
    summary = simulate({"seed": 1, "workload": {"arrivals": source, "lengths": source}, "clients": [client],
                        "router": router}).summary
    cpu = time.process_time() - begun
    return cpu, summary["cache"]["hit_rate"], summary["latency"]["ttft_s"]["mean"], summary["requests"]["completed"]


def theirs(python: str, trace: Path, mode: str) -> Figures:
    """Let the other simulator replay the trace."""
    done = subprocess.run([python, "-c", OTHER, str(trace), mode], capture_output=True, text=True, check=True)
    cpu, hits, ttft, requests = json.loads(done.stdout.splitlines()[-1])
    return cpu, hits, ttft, requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--other", metavar="PYTHON")
    asked = parser.parse_args()
    source = asked.data / "mooncake" / "conversation_trace.jsonl"
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.parquet"
        write_mooncake(source, trace)
        for _ in range(asked.repeats):
            for mode in ("round_robin", "kv_router") if asked.other else ():
                found.setdefault(f"other, {mode}", []).append(theirs(asked.other, source, mode))
            for name, router in ROUTERS.items():
                found.setdefault(name, []).append(ours(trace, router))
    print(f"{'router':20} {'requests':>9} {'CPU s':>6} {'req/s':>7} {'hits':>6} {'mean TTFT':>10}")
    for name, runs in found.items():
        cpu = statistics.median(run[0] for run in runs)
        _, hits, ttft, requests = runs[0]
        print(f"{name:20} {requests:9,} {cpu:6.2f} {requests / cpu:7,.0f} {hits:6.1%} {ttft:8.3f} s")


if __name__ == "__main__":
    main()
