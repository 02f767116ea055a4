"""Study `telerag`: what is fitted, and how one point is simulated."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.overlap import fit_bias, fit_strength, lognormal_sizes, make_family, overlap_within
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.simulation import Simulation
from hermes.studies.base import Context
from hermes.studies.figures import point_figures
from hermes.telerag import PIPELINE_NAMES

__all__ = [
    "BUDGET_GB", "FAMILIES", "PAPER_256", "PAPER_OVERLAP", "PROBED", "Fit", "Point", "Rates", "budget_table", "fitted",
    "simulate_point", "tokens_in",
]

CLUSTERS, TOTAL, SIGMA, NPROBE = 4096, 61 * 10**9, 0.52, 256
PROBED = 16.3e6     # bytes of a probed cluster, from Self-RAG's overlap
DRAWN = 48          # queries for a mean overlap
PAPER_256 = {"HyDE": 73.1, "SubQ": 63.2, "Iter": 91.5, "IRG": 83.8, "FLARE": 79.1}
BUDGET_GB = {"HyDE": 7.0, "SubQ": 7.0, "Iter": 3.0, "IRG": 2.5, "FLARE": 3.0, "Self-RAG": 1.25}
PAPER_OVERLAP = {"HyDE": 87.42, "SubQ": 76.38, "Iter": 84.59, "IRG": 50.34, "FLARE": 56.67, "Self-RAG": 29.96}
# in the order of their errors on the measured index (hw_profiles/overlap/generated-2m.yaml), each with its best shape
FAMILIES: dict[str, dict[str, float]] = {
    "gaussian": {}, "moved": {"dimensions": 32}, "noise": {}, "redraw": {},
}
DESKTOP_LINK, SERVER_LINK = 24e9, 51e9
BUFFER = {"desktop": 10e9, "server": 16e9}
PROMPT = 64
READ = {"IRG": 300}      # tokens of passages that a window's generation reads as well


class Fit(NamedTuple):
    """A family fitted to the figures at 256 clusters. strengths: per pipeline (Self-RAG rewrites nothing: 0)."""

    family: str
    shape: dict[str, float]
    bias: float
    strengths: dict[str, float]


class Rates(NamedTuple):
    """Bytes scanned a second."""

    desktop_cpu: float
    server_cpu: float


class Point(NamedTuple):
    """Means over the requests of one simulation."""

    e2e_s: float
    generate_s: float
    retrieve_s: float
    scanned_bytes: float        # by the CPU, per request
    probed_bytes: float
    union_bytes: float
    copied_bytes: float
    lookups: float
    overlap: float
    window_s: float
    makespan_s: float
    peak_buffer: int
    figures: dict[str, Any]


@cache
def _sizes() -> Any:
    return lognormal_sizes(CLUSTERS, TOTAL, SIGMA, np.random.default_rng([0, 17]))   # those of the scenario's index


@cache
def fitted(name: str) -> Fit:
    """Bias from Self-RAG's probed bytes, one strength per pipeline from its figure at 256 clusters."""
    shape, sizes = FAMILIES[name], _sizes()
    family = make_family(name, **shape)
    bias = fit_bias(family, sizes, PROBED, NPROBE, queries=DRAWN)
    strengths = {"Self-RAG": 0.0}
    for pipeline, overlap in PAPER_256.items():
        strengths[pipeline] = fit_strength(family, overlap / 100, bias, sizes, NPROBE, NPROBE, queries=DRAWN)
    return Fit(name, shape, bias, strengths)


def budget_table() -> list[dict[str, Any]]:
    """Overlap at the paper's budgets, as each family predicts it."""
    rows = []
    for pipeline, budget in BUDGET_GB.items():
        row: dict[str, Any] = {"pipeline": pipeline, "budget GB": budget, "paper %": PAPER_OVERLAP[pipeline]}
        for name in FAMILIES:
            fit = fitted(name)
            share, _, held = overlap_within(
                make_family(name, **fit.shape), fit.strengths[pipeline], fit.bias, _sizes(), int(budget * 1e9), NPROBE,
                queries=DRAWN)
            row[f"{name} %"] = 100 * share
            row[f"{name} error"] = 100 * share - PAPER_OVERLAP[pipeline]
            row.setdefault("clusters held", held)
        row["ceiling %"] = min(100.0, 100 * row["clusters held"] / NPROBE)
        rows.append(row)
    return rows


@cache
def tokens_in(pipeline: str) -> int:
    """Tokens that Llama-3.2-3B writes on the RTX 4090 while the link moves the pipeline's budget."""
    hardware = load_scenario("studies/telerag/desktop").clients[-1].hardware.build()
    prompt = PROMPT + READ.get(pipeline, 0)
    window_ns = BUDGET_GB[pipeline] * 1e9 / DESKTOP_LINK * 1e9
    spent = hardware.step_ns(StepStats(prefill_seqs=1, prefill_tokens=prompt,
                                       prefill_attn=prompt * (prompt + 1) // 2, sampled=1))
    tokens = 1
    while spent < window_ns and tokens < 10_000:
        context = prompt + tokens - 1
        spent += hardware.step_ns(StepStats(decode_seqs=1, decode_ctx=context, decode_ctx_max=context, sampled=1))
        tokens += 1
    return max(1, tokens - 1)


def simulate_point(
    context: Context, system: str, pipeline: str, retrieval: str, rates: Rates, *, family: str = "gaussian",
    batch: int = 1, answer: int = 32, requests: int = 16, budget: float | None = None, nprobe: int = NPROBE,
    changes: dict[str, Any] | None = None, seed: int = 0,
) -> Point:
    """One simulation of desktop.yaml or server.yaml. changes: `clients.3.model`-like keys -> values."""
    fit = fitted(family)
    if budget is None:
        budget = BUDGET_GB[pipeline] * 1e9
    keys: dict[str, Any] = {
        "seed": seed, "workload.requests": requests, "workload.lengths.output": answer,
        "workload.pipeline": {
            "name": PIPELINE_NAMES[pipeline], "retrieval": retrieval, "window": tokens_in(pipeline), "batch": batch,
            "strength": fit.strengths[pipeline], "budget": int(budget), "nprobe": nprobe,
        },
        "clients.0.index.family": family, "clients.0.index.spread": fit.shape.get("spread", 0.0),
        "clients.0.index.probed_mean": None, "clients.0.index.size_bias": fit.bias, "clients.0.seed": seed,
        "clients.1.serves.cpu_search.rate": rates.desktop_cpu if system == "desktop" else rates.server_cpu,
        **(changes or {}),
    }
    content = load_scenario(context.file(f"{system}.yaml")).model_dump()
    for key, value in keys.items():
        _set(content, key.split("."), value)
    checked = load_scenario(content)
    simulation = Simulation(checked, checked.source.base_dir)
    record = simulation.run()
    return _point(simulation, Results(record, {"name": checked.name}, checked.slo), requests)


def _set(content: Any, path: list[str], value: Any) -> None:
    for part in path[:-1]:
        content = content[int(part)] if isinstance(content, list) else content[part]
        if path[0] == "workload" and isinstance(content, list) and not path[1].isdigit():
            content = content[0]
    content[path[-1]] = value


def _point(simulation: Simulation, results: Results, requests: int) -> Point:
    if results.summary["requests"]["completed"] < requests:
        raise InputError("requests that all complete", results.summary["requests"]["rejected"], field="telerag")
    stages, index = results.stages, simulation.clients[0]
    alone = stages.assign(s=stages["end_s"] - stages["start_s"])
    # generations of a batch run side by side: what counts is the time in which any runs
    busy = sum(_union(group) for _, group in alone[alone["kind"] == "generate"].groupby("request", observed=True))
    e2e = float(results.requests["e2e_s"].mean())
    looked = index.lookups
    ahead = [lookup.overlap for lookup in looked if lookup.planned]
    windows = [lookup.window_ns for lookup in looked if lookup.window_ns]
    return Point(
        e2e, busy / requests, e2e - busy / requests, sum(x.miss_bytes for x in looked) / requests,
        sum(x.miss_bytes + x.hit_bytes for x in looked) / requests, sum(x.union_miss_bytes for x in looked) / requests,
        sum(x.prefetched_bytes for x in looked) / requests, len(looked) / requests,
        float(np.mean(ahead)) if ahead else 0.0, float(np.mean(windows)) / 1e9 if windows else 0.0,
        float(results.summary["makespan_s"]), index.peak_bytes, point_figures(results),
    )


def _union(group: Any) -> float:
    """Seconds in which at least one of these stages runs."""
    total = end = 0.0
    for begin, stop in sorted(zip(group["start_s"], group["end_s"], strict=True)):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total
