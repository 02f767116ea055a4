"""Study of batching in online serving: throughput, energy and TTFT of the systems that meet all six SLOs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from hermes.scenario.loading import load_document
from hermes.study import Compared, Context, Point, Report, run_points
from hermes.study.figures import speed_note

from ..common.climb import climb
from ..common.llm_figures import llm_figures
from ..common.seeds import over_seeds
from ..common.systems import BUDGETS, System, arrange, routers
from . import tables
from .paper import compared, effort, part_of_peak, table_3

__all__ = ["compare", "points", "run"]


SYSTEMS = (System("small", 4, ("1P/3D", "2P/2D", "3P/1D")), System("large", 32, ("12P/20D", "16P/16D", "20P/12D")))
LOWEST = 0.5                  # requests/s and client
PIPELINES = {"plain": 6.5, "rag": 3.5, "kv-retrieval": 6.5}   # the highest rates
LENGTHS = ("azure-conv-2023", "azure-code-2023")
QUICK_WINDOW_S, QUICK_BUDGETS = 30, (256, 512)

# KV memory of one H100 with bf16 weights, as (label, memory): three accounts of the same two cards.
BF16_WEIGHTS = 141_104_775_168
BF16: dict[str, dict[str, Any]] = {
    "79.11 GiB, room for 8,192 tokens a step": {"weights": BF16_WEIGHTS, "activations": 4_989_124_608,
                                                "engine_reserve": 0},
    "80 GiB, room for 8,192 tokens a step": {
        "capacity": "80 GiB", "weights": BF16_WEIGHTS, "activations": 4_989_124_608},
    "79.11 GiB, room for 2,048 tokens a step": {"num_blocks": 1633},
}


def run(context: Context) -> Report:
    grids = [tables.normalised(_grid(one)) for one in _seeds(context)]
    grid, chosen = grids[0], [tables.choose_budget(one) for one in grids]
    points = pd.concat(grids)
    note = speed_note(float(points["device_hours"].sum()), float(points["core_s"].sum()))
    windows = {system.name: _window_s(context, system) for system in SYSTEMS if (points.system == system.name).any()}
    report = tables.build(grids, None if context.quick else _weights(context), note, windows, context.quick)
    report.tables[1:1] = [table_3(chosen, *_ranking(context)), part_of_peak(grid)]
    figures = [compared(one, *_ranking(context), context.quick) for one in chosen]
    report.compared = [*over_seeds(*figures), *effort(grids, context.quick)]
    return report


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions, with its own seed alone."""
    return compared(tables.choose_budget(tables.normalised(_grid(context))), *_ranking(context))


def _seeds(context: Context) -> list[Context]:
    """Return the context with each of two seeds; the quick version has one."""
    seeds = (context["seed"],) if context.quick else (context["seed"], context["seed"] + 1)
    return [replace(context, values={**context.values, "seed": seed}) for seed in seeds]


def _ranking(context: Context) -> tuple[str, str]:
    """Return the column of the TTFT to rank by, and that of the SLOs that those ranked by it must meet."""
    ttft = f"latency.ttft_s.{context['ttft']}" if context["first_token"] == "prefill" else f"kv_ttft_{context['ttft']}"
    return ttft, {"all six": "slo.pass", "those of the TTFT": "ttft_met"}[context["ranked"]]


def _grid(context: Context) -> pd.DataFrame:
    """Simulate every system at rising rates, until it misses the SLOs of `climb`; any SLO in the quick version.

    Systems that are ranked among those that meet all six need no point beyond these: the cells are the same.
    """
    frames = []
    for pipeline, highest in PIPELINES.items():
        systems = [(system, lengths, strategy) for system in (SYSTEMS[-1:] if context.quick else SYSTEMS)
                   if context["part"] in ("all", f"{system.name} {pipeline}")
                   for lengths in LENGTHS for strategy in _strategies(context, system)]
        step = tables.RATE_STEPS[pipeline]
        rates = [step * number for number in range(int(LOWEST / step), int(highest / step) + 1)]
        if systems:
            frames.append(climb(systems, rates, partial(_at_rate, context, pipeline),
                                "slo.pass" if context.quick or context["climb"] == "all six" else "ttft_met"))
    found = pd.concat(frames, ignore_index=True).copy()   # defragmented
    order = {system.name: place for place, system in enumerate(SYSTEMS)}
    return found.sort_values("system", key=lambda names: names.map(order), kind="stable", ignore_index=True)


def _at_rate(
    context: Context, pipeline: str, rate: float, alive: Sequence[tuple[System, str, str]],
) -> pd.DataFrame:
    wanted = [point for system, lengths, strategy in alive
              for point in points(context, pipeline, system, [strategy], [rate], [lengths])]
    frame = _simulate(context, f"{pipeline}-{rate:g}", pipeline, wanted)
    met = frame[[f"slo.ttft_{p}.pass" for p in ("p50", "p90", "p99")]].astype(bool).all(axis=1)
    return frame.assign(ttft_met=met)


def _strategies(context: Context, system: System) -> list[str]:
    budgets: Iterable[int] = (context["chunk"],)
    if context["chunk"] == "best":
        budgets = QUICK_BUDGETS if context.quick else BUDGETS
    return ["continuous", *(f"chunked {budget}" for budget in budgets), *system.splits]


def _weights(context: Context) -> pd.DataFrame:
    """bf16 weights leave little KV: their effect, for three accounts of the memory."""
    system = SYSTEMS[0]
    frames = []
    for number, (label, memory) in enumerate(BF16.items()):
        wanted = points(
            context, "plain", system, ["continuous", "chunked 512", system.splits[1]], [0.25, 0.5, 1, 2], LENGTHS,
            client={"memory": {"utilization": 0.9, "prefix_caching": False, **memory},
                    "hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h100-tp2-bf16"}})
        frames.append(_simulate(context, f"bf16-{number}", "plain", wanted).assign(memory=label))
    return pd.concat(frames, ignore_index=True)


def _window_s(context: Context, system: System) -> int:
    """Seconds of arrivals. Small systems are watched longer."""
    window: int = context[f"window_{system.name}_s"]
    return min(QUICK_WINDOW_S, window) if context.quick else window


def _simulate(context: Context, name: str, pipeline: str, wanted: list[Point]) -> pd.DataFrame:
    return run_points(context, name, wanted, scenario=f"{pipeline}.yaml", extract=llm_figures)


def points(
    context: Context, pipeline: str, system: System, strategies: Sequence[str], rates: Sequence[float],
    lengths: Sequence[str] = LENGTHS, client: dict[str, Any] | None = None,
) -> list[Point]:
    """Return the points of a system: strategies x lengths x rates (requests/s and client).

    client: further keys of every LLM client.
    """
    scenario: Any = load_document(context.file(f"{pipeline}.yaml")).plain()
    clients = [c | (client or {}) if c.get("kind", "llm") == "llm" else c for c in scenario["clients"]]
    router = scenario["router"] if context["router"] == "tokens_left" else {"kind": context["router"]}
    found = []
    for strategy in strategies:
        chosen: dict[str, Any] = {
            "clients": _sized(arrange(clients, strategy, system.clients), system.clients), "router": router,
            "routers": routers(strategy, router), "kv_transfer": context["kv_transfer"],
            "workload.duration": f"{_window_s(context, system):g} s",
        }
        for profile in lengths:
            kind = profile.split("-")[1]
            found += [Point(
                f"{system.name}, {strategy}, {kind}, {rate:g}",
                chosen | {"workload.lengths.profile": profile,
                          "workload.arrivals.rate": f"{rate * system.clients:g} /s"},
                {"system": system.name, "pipeline": pipeline, "strategy": strategy, "lengths": kind,
                 "rate": float(rate)}, context["seed"]) for rate in rates]
    return found


def _sized(clients: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Machines for retrieval as the scenarios have them: one CPU for two LLM clients, one KV store for each."""
    share = {"rag": 2, "kv_retrieval": 1}
    return [
        client | {"count": max(1, count // share[client["kind"]])} if client.get("kind") in share else client
        for client in clients
    ]
