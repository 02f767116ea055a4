"""Systems, data sets, rates and memory of the study, its points, and the figures kept of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from hermes.core.record import STATUS_COMPLETED
from hermes.plugins.metis.choosers import HOW
from hermes.plugins.metis.datasets import dataset as data_set
from hermes.plugins.metis.decision import METHODS, Configuration
from hermes.plugins.metis.pipeline import Metis
from hermes.plugins.metis.quality import FORMULAS
from hermes.results import Results
from hermes.study import Context, Point, run_points
from hermes.study.figures import point_figures

__all__ = [
    "API_IN", "API_OUT", "FIXED", "LARGE", "SETS", "SPEC_RATE", "SYSTEMS", "Batch", "Run", "extract", "fixed",
    "fixed_run", "run_of", "seeded", "sustained",
]

SETS = {"2n": "", "3n": "-3n"}
"""Sets of the four data sets by the assumption `datasets` -> end of the data sets' names."""
SPEC_RATE = 2.0
"""The paper's queries a second."""
RATES = {"squad": 2.0, "musique": 0.4, "finsec": 0.15, "qmsum": 0.12}
"""Queries a second that one A40 sustains with METIS, with the median, and with the AdaptiveRAG* that takes the quickest
within 1% of the best F1 (2 a second, only those of squad)."""
LARGE_RATES = {"squad": 0.3, "musique": 0.06, "finsec": 0.025, "qmsum": 0.02}
"""The same of Llama-3.1-70B on two."""
LARGE = "llama-3.1-70b"
API_IN, API_OUT = 2.5e-6, 10e-6
"""Dollars per token in and out of the profiler's API: the list price of a large model (GPT-4o, 2024 to 2025)."""

SYSTEMS: dict[str, dict[str, Any]] = {
    "METIS": {"system": "metis", "co_schedule": True},
    "AdaptiveRAG*": {"system": "adaptive_rag"},
    "profile + median": {"system": "median"},
    "+ batching": {"system": "median", "co_schedule": True},
    "hindsight": {"system": "hindsight"},
}
FIXED = [
    *(Configuration("map_rerank", k) for k in (1, 2, 4, 8, 16)),
    *(Configuration("stuff", k) for k in (1, 2, 4, 7, 10, 16)),
    *(Configuration("map_reduce", k, w) for k in (2, 5, 9, 14) for w in (30, 90)),
]
"""The grid of fixed configurations."""

_PIPELINE = Metis.model_fields
# Llama-3.1-70B on two A40
_LARGE = {"model": LARGE, "device": "a40",
          "hardware": {"kind": "roofline", "model": LARGE, "device": "a40", "tp": 2, "dtype": "int4-awq"}}


@dataclass(frozen=True)
class Run:
    """What a point simulates. rate None: one query at a time; blocks None: all the KV memory there is;
    more: further parameters of the pipeline."""

    dataset: str
    system: str
    params: tuple[tuple[str, Any], ...]
    rate: float | None
    requests: int = 200
    blocks: int | None = None
    serving: str = "mistral-7b"
    seed: int = 1

    @property
    def label(self) -> str:
        """Unique among all points, but for the seed."""
        params = " ".join(f"{name}={value}" for name, value in self.params)
        return json.dumps([self.dataset, self.system, params, self.rate, self.requests, self.blocks, self.serving])

    def with_(self, called: str, **params: Any) -> Run:
        """The same under another name, with other parameters of its pipeline."""
        return replace(self, system=called, params=tuple(sorted((dict(self.params) | params).items())))

    def point(self) -> Point:
        """The point that simulates it."""
        one, params = data_set(self.dataset), dict(self.params)
        arrivals = {"kind": "closed_loop", "users": 1, "think": 0.0} if self.rate is None else {
            "kind": "poisson", "rate": self.rate}
        (q_low, q_high), (o_low, o_high) = one.question_tokens, one.output_tokens
        policy = "priority" if params.get("co_schedule") else "fcfs"
        changed: dict[str, Any] = {
            "workload.requests": self.requests, "workload.arrivals": arrivals, "workload.model": self.serving,
            "workload.pipeline": {"name": "metis", "dataset": self.dataset} | params,
            "workload.lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": q_low, "max": q_high},
                                 "output": {"kind": "uniform", "min": o_low, "max": o_high}},
            "clients.0.scheduler.policy": policy,
        }
        if self.serving != "mistral-7b":
            changed |= {f"clients.0.{key}": value for key, value in (_LARGE | {"devices": 2}).items()}
        if self.blocks is not None:
            changed["clients.0.memory"] = {"num_blocks": self.blocks, "kv_bits": 16, "prefix_caching": False}
        columns = {"dataset": self.dataset, "system": self.system, "rate": self.rate}
        return Point(self.label, changed, columns, self.seed)


def fixed(config: Configuration) -> dict[str, Any]:
    """Parameters of a fixed configuration."""
    words = config.summary_words or 60
    return {"system": "fixed", "method": config.method, "chunks": config.num_chunks, "words": words}


def run_of(dataset: str, system: str, rate: float | None, **more: Any) -> Run:
    """A system by name. more: fields of `Run`."""
    return Run(dataset, system, tuple(sorted(SYSTEMS[system].items())), rate, **more)


def fixed_run(dataset: str, config: Configuration, rate: float | None, *, parrot: bool = False, **more: Any) -> Run:
    """vLLM with one configuration for all, or the same with a query's calls co-scheduled."""
    params = fixed(config) | ({"co_schedule": True} if parrot else {})
    return Run(dataset, "Parrot*" if parrot else "vLLM fixed", tuple(sorted(params.items())), rate, **more)


def seeded(points: Iterable[Run], seeds: int) -> list[Run]:
    """Each point with so many seeds."""
    return [replace(one, seed=seed) for one in points for seed in range(1, seeds + 1)]


def sustained(dataset: str, *, large: bool = False) -> float:
    """Return the queries a second that the A40 (large: two, with Llama-3.1-70B) sustains of a data set.

    Those of the second set have as many tokens of needed chunks a second as those of the first, at most the paper's
    rate.
    """
    first = dataset.removesuffix(SETS["3n"])
    rate = (LARGE_RATES if large else RATES)[first]
    if dataset == first:
        return rate
    tokens = [one.mean_pieces * one.chunk_tokens for one in map(data_set, (first, dataset))]
    return float(f"{min(SPEC_RATE, rate * tokens[0] / tokens[1]):.2g}")


class Batch:
    """Points of several sections, simulated together.

    A section's frame has a row per point, in order; column `run` has what it simulates, `f1` is by the quality model of
    the study's assumptions.
    """

    def __init__(self, context: Context, name: str, sections: dict[str, list[Run]]) -> None:
        wanted = list(dict.fromkeys(one for section in sections.values() for one in section))
        seeds: dict[str, set[int]] = defaultdict(set)
        for one in wanted:
            seeds[one.label].add(one.seed)
        # a folder for each number of seeds, so that other assumptions find the points that they do not change
        groups: dict[int, list[Run]] = defaultdict(list)
        for one in wanted:
            groups[len(seeds[one.label])].append(one)
        frames = [_simulated(context, f"{name}-{count}", group) for count, group in sorted(groups.items())]
        frame = pd.concat(frames, ignore_index=True).copy()   # one block: assigning to many is slow, and warned of
        self._frame = frame.assign(f1=frame[f"f1_{context['quality']}"])
        self._place = {one: place for place, one in enumerate(self._frame["run"])}
        self._sections = sections

    def __getitem__(self, section: str) -> pd.DataFrame:
        wanted = list(dict.fromkeys(self._sections[section]))
        return self._frame.iloc[[self._place[one] for one in wanted]].reset_index(drop=True)


def _simulated(context: Context, name: str, wanted: list[Run]) -> pd.DataFrame:
    points = [assumed(one, context.values).point() for one in wanted]
    frame = run_points(context, name, points, scenario="base.yaml", extract=extract)
    return frame.assign(run=pd.Series(wanted, dtype=object)).copy()


def assumed(one: Run, values: Mapping[str, Any]) -> Run:
    """Return a run under the study's assumptions that concern its system; those that the run sets itself stay. Values
    that are the pipeline's own are left out, so that equal runs have equal labels."""
    params = dict(one.params)
    concerned = {"adaptive_rag": ("noise", "grid", "tolerance", "quality"), "hindsight": ("quality",),
                 # a given number of blocks says nothing about the device
                 "metis": ("reading",) if one.blocks is None else ()}.get(params["system"], ())
    for name in concerned:
        if params.setdefault(name, values[name]) == _PIPELINE[name].default:
            del params[name]
    blocks = one.blocks
    if values["kv_tokens"] and one.serving == "mistral-7b" and blocks is None:
        blocks = values["kv_tokens"] // 16
    return replace(one, params=tuple(sorted(params.items())), blocks=blocks)


def _tokens(results: Results, client: str) -> tuple[int, int]:
    record = results.record
    mine = record.stages["client"] == [info.name for info in record.clients].index(client)
    return int(record.stages["prompt_tokens"][mine].sum()), int(record.stages["output_tokens"][mine].sum())


def _or_nan(function: Callable[[np.ndarray], Any], values: np.ndarray) -> float:
    """Return a figure of the queries that were answered; NaN if all were rejected."""
    return float(function(values)) if values.size else float("nan")


def extract(results: Results) -> dict[str, Any]:
    """Figures of a point: delay, F1 by every quality model, choices, memory at decisions, tokens and dollars."""
    record, notes = results.record, results.record.notes
    names = [info.name for info in record.clients]
    answered = record.status == STATUS_COMPLETED
    e2e = results.metrics.e2e_ns[answered] / 1e9
    count = len(answered)
    out: dict[str, Any] = {f"point.{name}": value for name, value in point_figures(results).items()}
    out |= {"delay_s": _or_nan(np.mean, e2e), "delay_p90_s": _or_nan(lambda x: np.quantile(x, 0.9), e2e)}
    for name in FORMULAS:
        noted = notes.get(f"f1_{name}", notes["f1"])   # that of the pipeline's own model is `f1`
        out[f"f1_{name}"] = float(np.mean(noted * answered))   # no answer, no F1
    out |= {"chunks": float(np.mean(notes["chunks"])), "kv_used": float(np.mean(notes["kv_used"]))}
    for index, name in enumerate(METHODS):
        out[f"method.{name}"] = float(np.mean(notes["method"] == index))
    if "how" in notes:
        out["constrained"] = float(np.nanmean(notes["constrained"]))
        out["free_tokens"] = float(np.nanmean(notes["free_tokens"]))
        out |= {f"how.{name}": float(np.mean(notes["how"] == index)) for index, name in enumerate(HOW)}
    profiling = np.zeros(count)
    of_api = record.stages["client"] == names.index("api")
    took = (record.stages["end_ns"] - record.stages["assigned_ns"])[of_api] / 1e9
    profiling[record.stages["request"][of_api]] = took
    profiling = profiling[answered]
    out |= {"profiler_s": _or_nan(np.mean, profiling), "profiler_share": _or_nan(np.mean, profiling / e2e),
            "profiler_share_max": _or_nan(np.max, profiling / e2e)}
    zero = np.zeros(count)
    counted = ("profile_in", "profile_out", "golden_in", "golden_out")
    sums = {key: float(np.nansum(notes.get(key, zero))) for key in counted}
    out |= sums | {"golden_runs": float(np.sum(~np.isnan(notes.get("golden_in", zero * np.nan))))}
    llm_in, llm_out = _tokens(results, "llm")
    out |= {"llm_in": llm_in, "llm_out": llm_out, "profiler_stage_in": _tokens(results, "api")[0]}
    search = record.stages["client"] == names.index("search")
    out["retrieval_s"] = float((record.stages["end_ns"] - record.stages["assigned_ns"])[search].sum()) / 1e9 / count
    llm = record.clients[names.index("llm")]
    of_llm = record.runs["client"] == names.index("llm")
    busy_s = float((record.runs["end_ns"] - record.runs["start_ns"])[of_llm].sum()) / 1e9
    api = sums["profile_in"] * API_IN + sums["profile_out"] * API_OUT
    out |= {"busy": busy_s / (record.end_ns / 1e9), "dollars_llm": llm.price_per_hour * busy_s / 3600 / count,
            "dollars_profiler": api / count}
    return out
