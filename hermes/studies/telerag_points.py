"""Study `telerag`: the overlap at the paper's budgets, and how one point is simulated.

Fitted numbers come from a profile (`hw_profiles/lookahead`), the paper's from `telerag_paper`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from hermes.config.streams import stream
from hermes.core.simulation import Simulation
from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.hardware.devices import load_device
from hermes.plugins.telerag import PIPELINE_NAMES, IvfIndexClient, LookaheadProfile, load_lookahead
from hermes.plugins.telerag.overlap import lognormal_sizes, make_family, overlap_within
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.studies import telerag_paper as paper
from hermes.studies.base import Context
from hermes.studies.figures import point_figures

__all__ = [
    "CPU", "DEFAULT_MODEL", "GPU", "PROFILE", "Point", "budget_table", "gpu_rate", "model_of", "profile",
    "simulate_point", "sizes_of", "sizes_rng", "tokens_in",
]

PROFILE = "telerag-nq"
CPU = {"desktop": "threadripper-5975wx", "server": "epyc-9554"}
GPU = {"desktop": "rtx-4090", "server": "h100-sxm"}
DEFAULT_MODEL = {"desktop": "llama-3.2-3b", "server": "llama-3-8b"}
ENCODER_BYTES = 10**9    # Contriever on the GPU


class Point(NamedTuple):
    """Means over the requests of one simulation."""

    e2e_s: float
    generate_s: float
    retrieve_s: float
    scanned_bytes: float        # by the CPU, per request
    probed_bytes: float
    union_bytes: float          # of what was missed, each cluster once
    copied_bytes: float
    lookups: float
    overlap: float
    window_s: float             # mean of one
    windows_s: float            # of all of a request
    makespan_s: float
    peak_buffer: int
    figures: dict[str, Any]


@cache
def profile() -> LookaheadProfile:
    """The fitted numbers."""
    return load_lookahead(PROFILE)


def sizes_of(found: LookaheadProfile) -> Any:
    """Bytes of the clusters, those of the scenarios' index."""
    return lognormal_sizes(found.index.clusters, found.index.total, found.index.size_sigma, sizes_rng())


def sizes_rng() -> np.random.Generator:
    """What the `ivf_index` client of the scenarios draws its sizes with, at seed 0."""
    return stream(0, "ivf sizes/index")


def gpu_rate(system: str) -> float:
    """Bytes that a system's GPU scans in a second."""
    fitted, device = profile().scans[GPU[system]], load_device(GPU[system])
    return fitted.rate or (fitted.share_of_bandwidth or 1.0) * device.memory_bandwidth


def model_of(pipeline: str, model: str) -> str:
    """What a pipeline runs on where the others run on `model`."""
    return paper.SELF_RAG_MODEL[model] if pipeline == "Self-RAG" else model


def budget_table(queries: int = 256) -> list[dict[str, Any]]:
    """Overlap at the paper's budgets, as each family predicts it."""
    found = profile()
    sizes = sizes_of(found)
    rows = []
    for pipeline, budget in paper.BUDGET_GB.items():
        row: dict[str, Any] = {"pipeline": pipeline, "budget GB": budget,
                               "paper %": paper.OVERLAP_AT_BUDGET[pipeline]}
        for fit in found.families:
            share, _, held = overlap_within(
                make_family(fit.family, **fit.shape), fit.strengths[PIPELINE_NAMES[pipeline]], fit.bias, sizes,
                int(budget * 1e9), found.index.nprobe, queries=queries)
            row[f"{fit.name} %"] = 100 * share
            row[f"{fit.name} error"] = 100 * share - paper.OVERLAP_AT_BUDGET[pipeline]
            row.setdefault("clusters held", held)
        row["ceiling %"] = min(100.0, 100 * row["clusters held"] / found.index.nprobe)
        rows.append(row)
    return rows


@cache
def tokens_in(pipeline: str) -> int:
    """Tokens that the pipeline's model writes on the RTX 4090 while the link moves its budget: Llama-3.2-3B, or
    Self-RAG's own."""
    scenario = load_scenario("studies/telerag/desktop")
    config = scenario.clients[3].hardware.model_copy(
        update={"model": model_of(pipeline, DEFAULT_MODEL["desktop"])})
    hardware = config.build()
    prompt = scenario.workload[0].lengths.prompt + (_passages(pipeline) if pipeline == "IRG" else 0)
    window_ns = paper.BUDGET_GB[pipeline] * 1e9 / paper.SETUPS["desktop"].link * 1e9
    spent = hardware.step_ns(StepStats(prefill_seqs=1, prefill_tokens=prompt,
                                       prefill_attn=prompt * (prompt + 1) // 2, sampled=1))
    tokens = 1
    while spent < window_ns and tokens < 10_000:
        context = prompt + tokens - 1
        spent += hardware.step_ns(StepStats(decode_seqs=1, decode_ctx=context, decode_ctx_max=context, sampled=1))
        tokens += 1
    return max(1, tokens - 1)


def _passages(pipeline: str) -> int:
    """Tokens of what one search finds, which Iter-RetGen's generations read before they write."""
    from hermes.pipelines import PIPELINES

    config = PIPELINES.get(PIPELINE_NAMES[pipeline])()
    return int(config.top_k * config.passage_tokens)


def simulate_point(
    context: Context, system: str, pipeline: str, retrieval: str, *, family: str = "", model: str = "",
    batch: int = 1, answer: int = 32, requests: int = 16, budget: float | str | None = None, nprobe: int | None = None,
    cpu_rate: float | None = None, changes: dict[str, Any] | None = None, seed: int = 0,
) -> Point:
    """One simulation of desktop.yaml or server.yaml. family: the profile's first if ""; model: the system's own if "";
    budget: the paper's if None, or "profiled"; cpu_rate: the profile's if None; changes: `clients.3.model`-like keys ->
    values."""
    checked = load_scenario(_content(
        context, system, pipeline, retrieval, family, model_of(pipeline, model or DEFAULT_MODEL[system]),
        {"workload.requests": requests, "workload.lengths.output": answer, "seed": seed},
        {"batch": batch, "budget": int(paper.BUDGET_GB[pipeline] * 1e9) if budget is None else budget,
         "nprobe": nprobe or profile().index.nprobe}, cpu_rate, changes or {}))
    simulation = build(checked)
    record = simulation.run()
    return _point(simulation, Results(record, {"name": checked.name}, checked.slo), requests)


def _content(
    context: Context, system: str, pipeline: str, retrieval: str, family: str, model: str, workload: dict[str, Any],
    options: dict[str, Any], cpu_rate: float | None, changes: dict[str, Any],
) -> dict[str, Any]:
    """The scenario of a point."""
    found, setup = profile(), paper.SETUPS[system]
    fit = found.family(family)
    scans = found.scans
    if isinstance(options["budget"], float):
        options["budget"] = int(options["budget"])
    keys: dict[str, Any] = {
        **workload,
        "workload.pipeline": {
            "name": PIPELINE_NAMES[pipeline], "retrieval": retrieval, "window": tokens_in(pipeline),
            "strength": fit.strengths[PIPELINE_NAMES[pipeline]], "link": setup.link, **options,
        },
        "clients.0.index": found.cluster_model(family).model_dump(), "clients.0.buffer": int(setup.buffers[model]),
        "clients.1.serves.cpu_search.rate": cpu_rate or scans[CPU[system]].rate,
        "clients.2.serves.gpu_search.rate": gpu_rate(system),
        "clients.3.model": model, "clients.3.hardware.model": model,
        "clients.3.memory.reserved": int(setup.buffers[model]) + ENCODER_BYTES,
        **changes,
    }
    content = load_scenario(context.file(f"{system}.yaml")).model_dump()
    for key, value in keys.items():
        _set(content, key.split("."), value)
    return content


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
    assert isinstance(index, IvfIndexClient)
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
        sum(windows) / 1e9 / requests,
        float(results.summary["makespan_s"]), index.peak_bytes, point_figures(results),
    )


def _union(group: Any) -> float:
    """Seconds in which at least one of these stages runs."""
    total = end = 0.0
    for begin, stop in sorted(zip(group["start_s"], group["end_s"], strict=True)):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total
