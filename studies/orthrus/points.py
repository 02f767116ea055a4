"""Systems of the study, points of each experiment, and the figures kept of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.results import Results
from hermes.scenario.loading import load_document
from hermes.study import Point
from hermes.study.figures import point_figures

__all__ = [
    "BIN_S", "CLIENTS", "IBS", "MIXES", "PHASES_S", "QUANTILES", "SPLIT", "SYSTEMS", "burst", "extract", "mix",
    "phases", "single",
]

IBS, SPLIT = "Orthrus IBS", "SplitGPU 1:3"
# label -> (scenario of the system, GPUs for embeddings of the split ones)
SYSTEMS: dict[str, tuple[str, int]] = {
    SPLIT: ("split", 1), "SplitGPU 2:2": ("split", 2), "SplitGPU 3:1": ("split", 3),
    "SameGPU FCFS, drain": ("same-gpu-drain", 0), "SameGPU FCFS, alternate": ("same-gpu-alternate", 0),
    "Orthrus FCFS": ("fcfs", 0), IBS: ("mix", 0),
}
MIXES = (0, 10, 25, 50, 75, 90, 100)          # percent embeddings
CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUANTILES = np.linspace(0, 1, 51)
PHASES_S, BIN_S = 200, 5                      # of the three-phase workload's time series


def clients(folder: Path, system: str, *, mode: str = "serial", model: str = "", rank: int = 0, step_overhead: str = "",
            **scheduler: Any) -> list[dict[str, Any]]:
    """Return a system's clients.

    Args:
        mode: Of the overhead.
        model, rank: Another model than Mistral-7B, and its adapter's rank.
        step_overhead: Of the engine.
        scheduler: Further options of the schedulers.
    """
    name, embed_gpus = SYSTEMS[system]
    found: list[dict[str, Any]] = load_document(folder / f"{name}.yaml").plain()["clients"]
    for client in found:
        if embed_gpus:
            client["count"] = embed_gpus if client["name"] == "embed" else 4 - embed_gpus
        client["request_overhead"]["mode"] = mode
        client["scheduler"] |= scheduler
        if step_overhead:
            client["hardware"]["step_overhead"] = step_overhead
        if model:
            client["model"] = model
            merged = "embed_lora_rank" not in client["hardware"]
            client["hardware"] = {"kind": "roofline", "model": model, "device": "a100-40gb",
                                  "embed_lora_rank": 0 if merged else rank}
        elif rank and "embed_lora_rank" in client["hardware"]:
            client["hardware"]["embed_lora_rank"] = rank
    return found


def pipelines(percent: int) -> Any:
    """Return the pipelines of a workload with this share of embeddings."""
    if percent in (0, 100):
        return "embedding" if percent else "plain"
    return [{"name": "embedding", "weight": percent}, {"name": "plain", "weight": 100 - percent}]


def mix(folder: Path, system: str, percent: int, *, label: str = "", **options: Any) -> Point:
    """A closed loop of 512 clients on four GPUs, `percent` of the requests embeddings."""
    return Point(label or f"mix {system} {percent} {options.get('mode', 'serial')}", {
        "clients": clients(folder, system, **options), "workload.pipeline": pipelines(percent),
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
        "workload.arrivals.users": users, "horizon": "150 s", "measure.start": "60 s",
    })


def burst(folder: Path, system: str, **options: Any) -> Point:
    """1,000 generations, then 1,000 embeddings, all at time 0."""
    return _other(folder, "burst", system, options)


def phases(folder: Path, system: str, **options: Any) -> Point:
    """Three phases of 60 s, 1,000 requests each: 10, 50 and 90% embeddings."""
    return _other(folder, "phases", system, options)


def _other(folder: Path, name: str, system: str, options: dict[str, Any]) -> Point:
    document = load_document(folder / f"{name}.yaml").plain()
    return Point(f"{name} {system}", {
        "clients": clients(folder, system, **options), "workload": document["workload"],
        "horizon": None, "measure.start": "0 s",
    })


def extract(results: Results) -> dict[str, Any]:
    """Return figures beyond the summary: those of every study; for runs that end by themselves (burst, phases)
    quantiles of the latency by kind, and accelerators busy over time, all and by group."""
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
        busy = np.mean([one["hardware_busy"] for one in series], axis=0)
        figures |= {f"busy.{group}.{i:03d}": float(v) for i, v in enumerate(busy)}
    return figures
