"""Reference sets of vLLM 0.19.0 on RTX cards, recorded by the authors of LLMServingSim (`data/vllm-runs`).

The engine was driven directly: no front end, and no sampling by top-p. The runs are replayed with composed terms, and
the two of one card with the operator tables of their own card (`layerwise`) as well. The two cards of a run are joined
by PCIe: their own link is `rtx-pro-6000-pair`; what a user gets who names none stands beside it ("default link").
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes.api import simulate
from hermes.calibration.accuracy.replay import trust_of_steps
from hermes.calibration.accuracy.row import STATISTICS, Case, Row
from hermes.results.compare import compare
from hermes.workload.importers import import_trace
from hermes.workload.traces import write_trace

__all__ = ["recorded_runs"]

SEQUENCES, BUDGET = 128, 2048
BLOCKS = {"rtx4090-llama-3.1-8b": 2588, "rtxpro6000-llama-3.1-8b": 30_000, "rtxpro6000-qwen3-32b-tp2": 30_000,
          "rtxpro6000-qwen3-30b-a3b-dp2-ep2": 30_000}
OWN_LINK = "rtx-pro-6000-pair"
PARALLEL = {"tp2": {"tp": 2}, "dp2-ep2": {"dp": 2, "ep": 2}}


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
                                    "workload": {"arrivals": replayed, "lengths": replayed, "ends": "max_new_tokens"}})
                case = Case(f"RTX, {how}", name, "vllm-0.19", card, model, trust_of_steps(results))
                for row in compare(results, folder / "requests.jsonl", "vllm-run").rows:
                    if row.metric in ("ttft", "tpot", "e2e") and row.stat in STATISTICS and row.reference_s:
                        yield Row(case, row.metric, row.stat, row.reference_s, float(row.ours_s or 0.0))
