"""Study of batching in online serving: throughput and energy of the systems that meet all six SLOs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hermes.scenario.loading import load_document
from hermes.study import Context, Point, Report, run_points
from hermes.study.figures import speed_note

from ..common.llm_figures import llm_figures
from ..common.systems import arrange, routers
from . import tables

__all__ = ["points", "run"]

SYSTEMS = {
    "small": (4, ("continuous", "chunked", "1P/3D", "2P/2D", "3P/1D")),
    "large": (32, ("continuous", "chunked", "12P/20D", "16P/16D", "20P/12D")),
}
PIPELINES = {"plain": 6.5, "rag": 3.5, "kv-retrieval": 6.5}   # highest rate, requests/s and client
LENGTHS = ("azure-conv-2023", "azure-code-2023")
QUICK_WINDOW_S = 40

# KV memory of one H100 with bf16 weights, as (label, memory): three accounts of the same two cards.
BF16_WEIGHTS = 141_104_775_168
BF16: dict[str, dict[str, Any]] = {
    "79.11 GiB, room for 8,192 tokens a step": {"weights": BF16_WEIGHTS, "activations": 4_989_124_608,
                                                "engine_reserve": 0},
    "80 GiB, room for 8,192 tokens a step": {
        "capacity": "80 GiB", "weights": BF16_WEIGHTS, "activations": 4_989_124_608},
    "79.11 GiB, room for 2,048 tokens a step": {"num_blocks": 1633},
}

# Assumptions and alternatives, on the small system: (label, further settings, keys of the scheduler).
VARIATIONS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("as assumed", {}, {}),
    ("another seed", {"seed": 2}, {}),
    ("round robin", {"router": {"kind": "round_robin"}, "routers": {}}, {}),
    ("KV moves after the prefill", {"kv_transfer": "full"}, {}),
    ("steps of up to 512 prompt tokens", {}, {"max_num_batched_tokens": 512}),
    ("steps of up to 8,192 prompt tokens", {}, {"max_num_batched_tokens": 8192}),
)


def run(context: Context) -> Report:
    grid = _grid(context)
    weights = _weights(context)
    varied = None if context.quick else _variations(context)
    window = None if context.quick else _windows(context)
    note = speed_note(float(grid["device_hours"].sum()), float(grid["core_s"].sum()))
    return tables.build(grid, weights, varied, window, note,
                        {system: _window_s(context, system) for system in SYSTEMS})


def _grid(context: Context) -> pd.DataFrame:
    frames = []
    for system, (count, strategies) in SYSTEMS.items():
        for pipeline, highest in PIPELINES.items():
            rates = [0.5, 2, 3.5, 5] if context.quick else [step / 2 for step in range(1, 14)]
            rates = [rate for rate in rates if rate <= highest]
            wanted = points(context, pipeline, count, strategies, rates, _window_s(context, system))
            frame = _simulate(context, f"{system}-{pipeline}", pipeline, wanted)
            frames.append(frame.assign(system=system, pipeline=pipeline))
    return pd.concat(frames, ignore_index=True).copy()   # defragmented


def _weights(context: Context) -> pd.DataFrame:
    """bf16 weights leave little KV: their effect, for three accounts of the memory."""
    count, strategies = SYSTEMS["small"]
    frames = []
    for number, (label, memory) in enumerate(BF16.items()):
        wanted = points(
            context, "plain", count, (*strategies[:2], strategies[3]), [0.25, 0.5, 1, 2], _window_s(context, "small"),
            client={"memory": {"utilization": 0.9, "prefix_caching": False, **memory},
                    "hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h100-tp2-bf16"}})
        frames.append(_simulate(context, f"bf16-{number}", "plain", wanted).assign(memory=label))
    return pd.concat(frames, ignore_index=True)


def _variations(context: Context) -> pd.DataFrame:
    count, strategies = SYSTEMS["small"]
    rates, window = [step / 2 for step in range(6, 11)], _window_s(context, "small")
    longer: tuple[str, dict[str, Any], dict[str, Any]] = (
        "a window four times as long", {"workload.duration": f"{4 * window:g} s"}, {})
    frames = []
    for number, (label, settings, scheduler) in enumerate((*VARIATIONS, longer)):
        wanted = points(context, "plain", count, strategies, rates, window, settings, scheduler, lengths=LENGTHS[:1])
        frames.append(_simulate(context, f"assumption-{number}", "plain", wanted).assign(variation=label))
    return pd.concat(frames, ignore_index=True)


def _windows(context: Context) -> pd.DataFrame:
    """The large system, where rates are near their limits, over other windows."""
    count, strategies = SYSTEMS["large"]
    frames = []
    for window in (context["window_large_s"] // 4, 4 * context["window_large_s"]):
        wanted = points(context, "plain", count, strategies, [3.5, 4, 4.5, 5], window, lengths=LENGTHS[:1])
        frames.append(_simulate(context, f"window-{window:g}", "plain", wanted).assign(window=window))
    return pd.concat(frames, ignore_index=True)


def _window_s(context: Context, system: str) -> int:
    """Seconds of arrivals. Small systems are watched longer."""
    window: int = context[f"window_{system}_s"]
    return min(QUICK_WINDOW_S, window) if context.quick else window


def _simulate(context: Context, name: str, pipeline: str, wanted: list[Point]) -> pd.DataFrame:
    return run_points(context, name, wanted, scenario=f"{pipeline}.yaml", extract=llm_figures)


def points(
    context: Context, pipeline: str, count: int, strategies: tuple[str, ...], rates: list[float], window_s: float,
    settings: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None,
    client: dict[str, Any] | None = None, lengths: tuple[str, ...] = (),
) -> list[Point]:
    """Strategies, lengths and rates per client of one system and pipeline.

    settings: more of the scenario; scheduler: more keys of every scheduler; client: keys of every LLM client.
    """
    scenario: Any = load_document(context.file(f"{pipeline}.yaml")).plain()
    more = dict(settings or {})
    seed = more.pop("seed", None)
    clients = [c | (client or {}) if c.get("kind", "llm") == "llm" else c for c in scenario["clients"]]
    found = []
    for strategy in strategies:
        chunk = {"max_num_batched_tokens": context["chunk"]} if strategy == "chunked" else {}
        chosen: dict[str, Any] = {
            "clients": _sized(arrange(clients, strategy, count, **chunk | (scheduler or {})), count),
            "routers": routers(strategy, scenario["router"]), "workload.duration": f"{window_s:g} s",
        }
        for profile in lengths or LENGTHS:
            kind = profile.split("-")[1]
            found += [Point(
                f"{strategy}, {kind}, {rate:g}",
                chosen | more | {"workload.lengths.profile": profile, "workload.arrivals.rate": f"{rate * count:g} /s"},
                {"strategy": strategy, "lengths": kind, "rate": float(rate)}, seed) for rate in rates]
    return found


def _sized(clients: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Machines for retrieval as the scenarios have them: one CPU for two LLM clients, one KV store for each."""
    share = {"rag": 2, "kv_retrieval": 1}
    return [
        client | {"count": max(1, count // share[client["kind"]])} if client.get("kind") in share else client
        for client in clients
    ]
