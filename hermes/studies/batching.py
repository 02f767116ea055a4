"""Which batching serves online traffic best: throughput and energy of the systems that meet all six SLOs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hermes.studies import batching_report as report
from hermes.studies.base import STUDIES, Context
from hermes.studies.figures import speed_note
from hermes.studies.report import Report
from hermes.studies.systems import arrange, routers, run_points

__all__ = ["Batching"]

SYSTEMS = {
    "small": (4, ("continuous", "chunked", "1P/3D", "2P/2D", "3P/1D")),
    "large": (32, ("continuous", "chunked", "12P/20D", "16P/16D", "20P/12D")),
}
PIPELINES = {"plain": 6.5, "rag": 3.5, "kv-retrieval": 6.5}   # highest rate, requests/s and client
LENGTHS = ("azure-conv-2023", "azure-code-2023")
WINDOWS_S, QUICK_WINDOW_S = {"small": 300, "large": 120}, 40   # small systems are watched longer
EXTRACT = "hermes.studies.llm_figures:llm_figures"

# What one H100 has for KV with bf16 weights, as (label, memory): three accounts of the same two cards.
BF16_WEIGHTS = 141_104_775_168
BF16: dict[str, dict[str, Any]] = {
    "79.11 GiB, room for 8,192 tokens a step": {"weights": BF16_WEIGHTS, "activations": 4_989_124_608,
                                                "engine_reserve": 0},
    "80 GiB, room for 8,192 tokens a step": {
        "capacity": "80 GiB", "weights": BF16_WEIGHTS, "activations": 4_989_124_608},
    "79.11 GiB, room for 2,048 tokens a step": {"num_blocks": 1633},
}

# What is assumed, and what it could be instead, on the small system: (label, further overrides, keys of the scheduler).
VARIATIONS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("as assumed", {}, {}),
    ("another seed", {"seed": 2}, {}),
    ("round robin", {"router": {"kind": "round_robin"}, "routers": {}}, {}),
    ("KV moves after the prefill", {"kv_transfer": "full"}, {}),
    ("steps of up to 512 prompt tokens", {}, {"max_num_batched_tokens": 512}),
    ("steps of up to 8,192 prompt tokens", {}, {"max_num_batched_tokens": 8192}),
    ("a window four times as long", {"workload.duration": f"{4 * WINDOWS_S['small']} s"}, {}),
)


@STUDIES.register("batching")
class Batching:
    title = "Batching in online serving: throughput and tokens per joule under six SLOs"

    def run(self, context: Context) -> Report:
        grid = self._grid(context)
        weights = self._weights(context)
        varied = None if context.quick else self._variations(context)
        window = None if context.quick else self._window(context)
        note = speed_note(float(grid["device_hours"].sum()), float(grid["core_s"].sum()))
        return report.build(self.title, grid, weights, varied, window, note,
                            {system: _window(context, system) for system in SYSTEMS})

    def _grid(self, context: Context) -> pd.DataFrame:
        frames = []
        for system, (count, strategies) in SYSTEMS.items():
            for pipeline, highest in PIPELINES.items():
                rates = [0.5, 2, 3.5, 5] if context.quick else [step / 2 for step in range(1, 14)]
                rates = [rate for rate in rates if rate <= highest]
                base = context.file(f"{pipeline}.yaml")
                sweep = _sweep(base, count, strategies, rates, _window(context, system))
                frame = run_points(context, f"{system}-{pipeline}", sweep)
                frames.append(_labelled(frame, count, system=system, pipeline=pipeline))
        return pd.concat(frames, ignore_index=True).copy()   # defragmented

    def _weights(self, context: Context) -> pd.DataFrame:
        """bf16 weights leave little KV: what that does, for three accounts of the memory."""
        count, strategies = SYSTEMS["small"]
        frames = []
        for label, memory in BF16.items():
            sweep = _sweep(
                context.file("plain.yaml"), count, (*strategies[:2], strategies[3]), [0.25, 0.5, 1, 2],
                _window(context, "small"), {}, {}, {
                    "memory": {"utilization": 0.9, "prefix_caching": False, **memory}, "hardware": {
                    "kind": "polynomial", "profile": "llama-3.1-70b-h100-tp2-bf16"}},
            )
            name = "bf16-" + str(list(BF16).index(label))
            frames.append(_labelled(run_points(context, name, sweep), count, memory=label))
        return pd.concat(frames, ignore_index=True)

    def _variations(self, context: Context) -> pd.DataFrame:
        count, strategies = SYSTEMS["small"]
        rates, window = [step / 2 for step in range(6, 11)], _window(context, "small")
        frames = []
        for i, (label, overrides, scheduler) in enumerate(VARIATIONS):
            sweep = _sweep(context.file("plain.yaml"), count, strategies, rates, window, overrides, scheduler,
                           lengths=LENGTHS[:1])
            frames.append(_labelled(run_points(context, f"assumption-{i}", sweep), count, variation=label))
        return pd.concat(frames, ignore_index=True)

    def _window(self, context: Context) -> pd.DataFrame:
        """The large system, where rates are near their limits, over other windows."""
        count, strategies = SYSTEMS["large"]
        frames = []
        for window in (WINDOWS_S["large"] // 4, 4 * WINDOWS_S["large"]):
            sweep = _sweep(context.file("plain.yaml"), count, strategies, [3.5, 4, 4.5, 5], window, lengths=LENGTHS[:1])
            frames.append(_labelled(run_points(context, f"window-{window}", sweep), count, window=window))
        return pd.concat(frames, ignore_index=True)


def _window(context: Context, system: str) -> int:
    return QUICK_WINDOW_S if context.quick else WINDOWS_S[system]


def _sweep(
    base: Path, count: int, strategies: tuple[str, ...], rates: list[float], window_s: float,
    overrides: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None,
    client: dict[str, Any] | None = None, lengths: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A sweep over strategies, rates per client and lengths of one system and pipeline."""
    from hermes.scenario.loading import load_document

    scenario: Any = load_document(base).plain()
    overrides = dict(overrides or {})
    seed = overrides.pop("seed", None)
    clients = [c | (client or {}) if c.get("kind", "llm") == "llm" else c for c in scenario["clients"]]
    cases = []
    for strategy in strategies:
        chosen: dict[str, Any] = {
            "clients": _sized(arrange(clients, strategy, count, **(scheduler or {})), count),
            "routers": routers(strategy, scenario["router"]), "workload.duration": f"{window_s:g} s",
        }
        cases.append({"label": strategy, "set": chosen | overrides})
    return {
        "scenario": str(base), "cases": cases, "extract": EXTRACT, "seeds": None if seed is None else [seed],
        "grid": {"workload.lengths.profile": list(lengths or LENGTHS),
                 "workload.arrivals.rate": [f"{rate * count:g} /s" for rate in rates]},
        "columns": {"workload.lengths.profile": "lengths", "workload.arrivals.rate": "rate"},
    }


def _sized(clients: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Machines for retrieval as the scenarios have them: one CPU for two LLM clients, one KV store for each."""
    share = {"rag": 2, "kv_retrieval": 1}
    return [
        client | {"count": max(1, count // share[client["kind"]])} if client.get("kind") in share else client
        for client in clients
    ]


def _labelled(frame: pd.DataFrame, count: int, **labels: Any) -> pd.DataFrame:
    """Readable columns: strategy, lengths (conv, code), rate per client."""
    rate = frame["rate"].str.removesuffix(" /s").astype(float) / count
    lengths = frame["lengths"].str.split("-").str[1]
    return frame.assign(rate=rate, lengths=lengths, strategy=frame["case"], **labels)
