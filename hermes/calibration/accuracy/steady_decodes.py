"""Reference set of steady decoding by batch (`data/h100/ml-energy`): time between tokens, watts and joules per token of
ML.ENERGY's leaderboard.

A batch stays full: as many users as sequences, each asking again at once. Not stated there: prompt lengths (200 tokens
assumed), the spread of the answers' lengths, and the engine's version; the time that grows with the batch says that it
scheduled in step with the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.accuracy.replay import replay
from hermes.calibration.accuracy.row import Case, Row
from hermes.clients.resources import power_model
from hermes.hardware.composed import Composed
from hermes.hardware.info import hardware_info
from hermes.results import Results
from hermes.units import NS_PER_S

__all__ = ["steady_decodes"]

PROMPT = 200          # tokens
SHAPE = 2.0           # of the gamma distribution of the answers' lengths
WAVES = 3             # requests of each user, and as many beside them as fill a small batch's statistics
MORE = 200
MODELS = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "Qwen/Qwen3-32B": "qwen3-32b"}
CARDS = {"H100": "h100-sxm", "B200": "b200"}


def steady_decodes(data: Path) -> Iterator[Row]:
    """Median time between tokens, watts of the devices and joules per output token, by batch."""
    table = pd.read_csv(data / "h100" / "ml-energy" / "measured.csv")
    for row in table.to_dict("records"):
        model, card, tp = MODELS[row["model_id"]], CARDS[row["gpu_model"]], int(row["tensor_parallel"])
        seqs = int(row["max_num_seqs"])
        found = _served(model, card, tp, seqs, float(row["avg_output_len"]))
        case = Case("ML.ENERGY", f"{seqs} sequences", "not stated", card, model)
        itl, watts, joules = _steady(found, model, card, tp, seqs)
        yield Row(case, "itl", "p50", row["median_itl_ms"] / 1e3, itl)
        yield Row(case, "watts", "mean", row["avg_power_watts"], watts)
        yield Row(case, "joules per token", "mean", row["energy_per_token_joules"], joules)


def _served(model: str, card: str, tp: int, seqs: int, output: float) -> Results:
    count = WAVES * seqs + MORE
    lengths = np.random.default_rng(1).gamma(SHAPE, output / SHAPE, count)
    requests = pd.DataFrame({"arrival_s": 0.0, "prompt_tokens": np.full(count, PROMPT),
                             "output_tokens": np.maximum(np.rint(lengths), 1).astype(int)})
    client: dict[str, Any] = {
        "model": model, "device": card, "parallel": {"tp": tp}, "engine": "vllm-0.15",
        "memory": {"prefix_caching": False},
        "scheduler": {"kind": "chunked", "max_num_seqs": seqs, "async_scheduling": False},
    }
    return replay(client, requests, {"kind": "closed_loop", "users": seqs})


def _steady(found: Results, model: str, card: str, tp: int, seqs: int) -> tuple[float, float, float]:
    """(median seconds between tokens, watts, joules per token) while every user waits: from the end of the first
    answers, as many as users, to the last question."""
    finished = np.sort(found.requests["finish_s"])
    first, last = finished[min(seqs, len(finished) // 4)], found.requests["arrival_s"].max()
    runs = found.runs[(found.runs["start_s"] >= first) & (found.runs["end_s"] <= last)]
    steps = runs["num_steps"].to_numpy()
    seconds = (runs["end_s"] - runs["start_s"]).to_numpy()
    order = np.argsort(seconds / steps)
    tokens = np.cumsum((steps * runs["decode_seqs"].to_numpy())[order])
    itl = (seconds / steps)[order][np.searchsorted(tokens, tokens[-1] / 2)]
    hardware = Composed(model=model, device=card, tp=tp, asynchronous=False).build()
    info = hardware_info(hardware)
    power = power_model(None, info, info.device, model, tp, None)
    columns = {name: runs[name].to_numpy() for name in (
        "num_steps", "prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx",
        "sampled")}
    columns |= {"start_ns": np.zeros(len(runs), dtype=np.int64), "end_ns": np.rint(seconds * NS_PER_S).astype(np.int64)}
    joules = tp * float((power.run_w(columns) * seconds).sum())
    span = float(runs["end_s"].max() - runs["start_s"].min())
    return float(itl), joules / span, joules / float((steps * runs["sampled"].to_numpy()).sum())
