"""Systems of the study, points of each experiment, and the figures kept of each.

A label ends with the reading of the overhead (`serial`, `overlapped` or `none`), except for `single`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hermes.clients.overhead import load_overhead
from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results import Results
from hermes.scenario.loading import load_document
from hermes.study import Point
from hermes.study.figures import point_figures

__all__ = [
    "ARRIVALS", "BIN_S", "CLIENTS", "FCFS", "IBS", "MISTRAL", "MIXES", "MODELS", "MODES", "PHASES_S", "PHASE_S",
    "PROFILE", "QUANTILES", "SAME_GPU", "SPLIT", "SPLITS", "SYSTEMS", "USERS", "burst", "extract", "mix", "model_mix",
    "phases", "single",
]

PROFILE = "mistral-7b-a100-40gb"   # of the hardware model and of the fitted overheads
MODES = ("serial", "overlapped")   # readings of the serving stack's time per request
IBS, FCFS = "Orthrus IBS", "Orthrus FCFS"
SPLITS = ("SplitGPU 1:3", "SplitGPU 2:2", "SplitGPU 3:1")
SPLIT = SPLITS[0]
SAME_GPU = ("SameGPU FCFS, drain", "SameGPU FCFS, alternate", "SameGPU FCFS, oldest")
# label -> (scenario of the system, GPUs for embeddings of the split ones)
SYSTEMS: dict[str, tuple[str, int]] = {
    **{split: ("split", embed_gpus) for embed_gpus, split in enumerate(SPLITS, 1)},
    "SameGPU FCFS, drain": ("same-gpu-drain", 0), "SameGPU FCFS, alternate": ("same-gpu-alternate", 0),
    "SameGPU FCFS, oldest": ("same-gpu-oldest", 0), FCFS: ("fcfs", 0), IBS: ("mix", 0),
}
MISTRAL = "mistral-7b"
MODELS = {"qwen2-7b": 32, "llama-3.1-8b": 64}   # other models -> rank of their adapters
MIXES = (0, 10, 25, 40, 50, 60, 75, 90, 100)    # percent embeddings
CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
USERS = 512                                     # clients of the closed loop; they saturate one GPU
QUANTILES = np.linspace(0, 1, 51)
ARRIVALS = {"at once": "phases-at-once", "Poisson": "phases"}   # of the three phases -> scenario
PHASE_S, PHASES_S, BIN_S = 60, 200, 5         # length of a phase; length and bins of the time series of all


def clients(folder: Path, system: str, *, mode: str = "serial", factor: float = 1.0, model: str = "", rank: int = 0,
            step_overhead: str = "", **scheduler: Any) -> list[dict[str, Any]]:
    """Return a system's clients.

    Args:
        mode: Of the overhead; `none`: without any.
        factor: On the fitted overheads.
        model: Another model than Mistral-7B.
        rank: Rank of the adapter; 0: that of the scenario.
        step_overhead: Of the engine.
        scheduler: Further options of the schedulers.
    """
    name, embed_gpus = SYSTEMS[system]
    found: list[dict[str, Any]] = load_document(folder / f"{name}.yaml").plain()["clients"]
    for client in found:
        if embed_gpus:
            client["count"] = embed_gpus if client["name"] == "embed" else 4 - embed_gpus
        client["request_overhead"] = None if mode == "none" else client["request_overhead"] | {"mode": mode}
        if mode != "none" and factor != 1:
            fitted = getattr(load_overhead(PROFILE), mode)
            client["request_overhead"] = {
                "mode": mode, "embed": factor * fitted.embed, "generate": factor * fitted.generate}
        client["scheduler"] |= scheduler
        merged = "embed_lora_rank" not in client["hardware"]
        if model:
            client["model"] = model
            client["hardware"] = {"kind": "roofline", "model": model, "device": "a100-40gb",
                                  "embed_lora_rank": 0 if merged else rank}
        elif rank and not merged:
            client["hardware"]["embed_lora_rank"] = rank
        if step_overhead:
            client["hardware"]["step_overhead"] = step_overhead
    return found


def pipelines(percent: int) -> Any:
    """Return the pipelines of a workload with this share of embeddings."""
    if percent in (0, 100):
        return "embedding" if percent else "plain"
    return [{"name": "embedding", "weight": percent}, {"name": "plain", "weight": 100 - percent}]


def mix(folder: Path, system: str, percent: int, *, label: str = "", **options: Any) -> Point:
    """A closed loop of 512 clients on four GPUs, `percent` of the requests embeddings."""
    mode, factor = options.get("mode", "serial"), options.get("factor", 1.0)
    quick = mode == "none" or factor < 1
    more = {"workload.requests": 200_000} if quick else {}   # the scenario's would end before its horizon
    return Point(label or f"mix {system} {percent} {mode}", {
        "clients": clients(folder, system, **options), "workload.pipeline": pipelines(percent), **more,
    })


def single(folder: Path, kind: str, users: int, *, plain: bool = False, **options: Any) -> Point:
    """Return one GPU with `users` clients that request one kind only; plain: without adapter, and for generations with
    the chunked scheduler, as an engine without embeddings."""
    client = clients(folder, IBS, **options)[0] | {"count": 1}
    if plain:
        del client["hardware"]["embed_lora_rank"]
        if kind == "generate":
            places = {key: client["scheduler"][key] for key in ("max_num_seqs", "max_num_batched_tokens")}
            client["scheduler"] = {"kind": "chunked", "async_scheduling": False, **places}
            client["memory"] = {**client.get("memory", {}), "prefix_caching": False, "utilization": 0.9}
    return Point(f"single {kind} {users} {'plain' if plain else 'orthrus'}", {
        "clients": [client], "workload.pipeline": "embedding" if kind == "embed" else "plain",
        "workload.arrivals.users": users, "horizon": "240 s" if users == USERS else "150 s", "measure.start": "60 s",
    })


def model_mix(folder: Path, model: str, system: str, percent: int, *, mode: str, factor: float = 1.0,
              **options: Any) -> Point:
    """Return the closed loop of `mix` on another model, whose adapter has a rank of its own, or on `MISTRAL`, with a
    factor on the fitted overheads."""
    own = {} if model == MISTRAL else {"model": model, "rank": MODELS[model]}
    times = "" if factor == 1 else f" x {factor:.4g}"
    return mix(folder, system, percent, label=f"model {model} {system} {percent} {mode}{times}", mode=mode,
               factor=factor, **options | own)


def burst(folder: Path, system: str, **options: Any) -> Point:
    """1,000 generations, then 1,000 embeddings, all at time 0."""
    return _other(folder, "burst", "burst", system, options)


def phases(folder: Path, arrivals: str, system: str, **options: Any) -> Point:
    """Three phases of 60 s, 1,000 requests each: 10, 50 and 90% embeddings. arrivals: A key of `ARRIVALS`."""
    return _other(folder, ARRIVALS[arrivals], f"phases {arrivals}", system, options)


def _other(folder: Path, scenario: str, label: str, system: str, options: dict[str, Any]) -> Point:
    document = load_document(folder / f"{scenario}.yaml").plain()
    return Point(f"{label} {system} {options.get('mode', 'serial')}", {
        "clients": clients(folder, system, **options), "workload": document["workload"],
        "horizon": None, "measure.start": "0 s",
    })


def extract(results: Results) -> dict[str, Any]:
    """Return figures beyond the summary: those of every study; for runs that end by themselves (burst, phases)
    quantiles of the latency by kind, accelerators busy over time, all and by group, and `active_figures`."""
    figures = {f"point.{name}": value for name, value in point_figures(results).items()}
    record = results.record
    if (record.status != STATUS_COMPLETED).any():
        return figures
    for kind in ("embed", "generate"):
        rows = record.stages["kind"] == record.stage_kinds.index(kind)
        took = (record.stages["end_ns"] - record.stages["assigned_ns"])[rows] / 1e9
        figures |= {f"{kind}_{round(100 * q):03d}": float(v)
                    for q, v in zip(QUANTILES, np.quantile(took, QUANTILES), strict=True)}
    groups: dict[str, list[int]] = {"all": list(range(len(record.clients)))}
    for index, client in enumerate(record.clients):
        groups.setdefault(client.name.rsplit("-", 1)[0], []).append(index)
    for group, members in groups.items():
        series = [results.client_timeseries(c, PHASES_S // BIN_S, start_s=0.0, end_s=float(PHASES_S)) for c in members]
        busy = np.mean([one["hardware_stepping"] for one in series], axis=0)
        figures |= {f"busy.{group}.{i:03d}": float(v) for i, v in enumerate(busy)}
    return figures | active_figures(record)


def active_figures(record: RunRecord) -> dict[str, float]:
    """Return the use of the engines while requests are in the system, and the time of each workload.

    - active_s: Time with at least one request in the system.
    - utilisation: Mean share of it in which an accelerator runs a step, over all accelerators.
    - occupied: The same with the time in which the serving stack holds up an accelerator.
    - phase.I: Seconds from PHASE_S x I to the end of the last request of workload I.
    """
    end_ns = np.zeros(len(record.arrival_ns), dtype=np.int64)
    np.maximum.at(end_ns, record.stages["request"], record.stages["end_ns"])
    order = np.argsort(record.arrival_ns, kind="stable")
    start, until = record.arrival_ns[order], np.maximum.accumulate(end_ns[order])
    idle_ns = np.maximum(start[1:] - until[:-1], 0).sum()
    active_ns = int(until[-1] - start[0] - idle_ns)
    span_ns = record.runs["end_ns"] - record.runs["start_ns"]
    shares = {name: float(ns.sum()) / (active_ns * len(record.clients)) for name, ns in (
        ("utilisation", span_ns - record.runs["overhead_ns"]), ("occupied", span_ns))}
    codes, names = record.labels["workload"]
    phase_s = {f"phase.{i}": float(end_ns[codes == i].max()) / 1e9 - PHASE_S * i for i in range(len(names))}
    return {"active_s": active_ns / 1e9, **shares, **phase_s}
