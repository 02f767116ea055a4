"""The overlap at the paper's budgets, the points of the study, and the figures kept of each.

Fitted parameters come from a profile (`hw_profiles/lookahead`), the paper's figures from `paper.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.config import stream
from hermes.errors import InputError
from hermes.hardware import StepStats
from hermes.plugins.telerag import PIPELINE_NAMES, LookaheadProfile, load_lookahead
from hermes.plugins.telerag.overlap import lognormal_sizes, make_family, overlap_within
from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.study import Point
from hermes.study.figures import point_figures
from hermes.sums import float_sum

from . import paper

__all__ = [
    "CPU", "DEFAULT_MODEL", "GPU", "PROFILE", "Ask", "Means", "Rates", "ask", "budget_table", "extract", "model_of",
    "profile", "sizes_of", "sizes_rng", "tokens_in",
]

PROFILE = "telerag"
CPU = {"desktop": "threadripper-5975wx", "server": "epyc-9554"}
GPU = {"desktop": "rtx-4090", "server": "h100-sxm"}
DEFAULT_MODEL = {"desktop": "llama-3.2-3b", "server": "llama-3-8b"}
ENCODER_BYTES = 10**9    # Contriever on the GPU


class Rates(NamedTuple):
    """Bytes that one machine's searches scan per second.

    baseline: Faiss's search on the CPU, one query. side_by_side: queries that it scans at that rate at once.
    miss: TeleRAG's search of missed clusters on the CPU. gpu: the GPU's search.
    """

    baseline: float
    miss: float
    gpu: float
    side_by_side: int = 1

    def settings(self) -> dict[str, float]:
        """Return settings of the scenarios."""
        return {
            "clients.1.serves.cpu_search.rate": self.side_by_side * self.baseline,
            "clients.1.serves.cpu_search.query_rate": self.baseline, "clients.1.serves.miss_search.rate": self.miss,
            "clients.2.serves.gpu_search.rate": self.gpu,
        }


class Means(NamedTuple):
    """Means over the requests of one point."""

    e2e_s: float
    generate_s: float
    retrieve_s: float
    cpu_s: float                # in `cpu_search`, per request
    probed_bytes: float         # hits and misses, per request
    union_bytes: float          # of what was missed, each cluster once
    copied_bytes: float
    lookups: float
    overlap: float
    window_s: float             # mean of one
    windows_s: float            # of all of a request
    peak_buffer: int
    kv_capacity_tokens: int
    kv_peak_share: float
    rejected: int
    searches: str               # "bytes of hits:bytes of misses" of each retrieval, between spaces
    requests: int

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Means:
        return cls(**{name: row[f"mean.{name}"] for name in cls._fields})


@cache
def profile() -> LookaheadProfile:
    """The fitted numbers."""
    return load_lookahead(PROFILE)


def sizes_of(found: LookaheadProfile) -> Any:
    """Bytes of the clusters, those of the scenarios' index."""
    return lognormal_sizes(found.index.clusters, found.index.total, found.index.size_sigma, sizes_rng())


def sizes_rng() -> np.random.Generator:
    """Return the generator of the cluster sizes in the scenarios' `ivf_index` client, at seed 0."""
    return stream(0, "ivf sizes/index")


def model_of(pipeline: str, model: str) -> str:
    """Return the model of a pipeline on a system where the others run on `model`."""
    return paper.SELF_RAG_MODEL[model] if pipeline == "Self-RAG" else model


def budget_table(budgets: Mapping[str, float] = paper.BUDGET_GB, said: Mapping[str, float] = paper.OVERLAP_AT_BUDGET,
                 queries: int = 256) -> list[dict[str, Any]]:
    """Overlap at the paper's budgets, as each family predicts it.

    Args:
        budgets: GB by pipeline.
        said: The paper's overlap, in percent, by pipeline.
    """
    found = profile()
    sizes = sizes_of(found)
    rows = []
    for pipeline, budget in budgets.items():
        row: dict[str, Any] = {"pipeline": pipeline, "budget GB": budget,
                               "paper %": said[pipeline]}
        for fit in found.families:
            share, _, held = overlap_within(
                make_family(fit.family, **fit.shape), fit.strengths["NQ"][PIPELINE_NAMES[pipeline]], fit.bias, sizes,
                int(budget * 1e9), found.index.nprobe, queries=queries)
            row[f"{fit.name} %"] = 100 * share
            row[f"{fit.name} error"] = 100 * share - said[pipeline]
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
    """Return the tokens of one search's passages, which Iter-RetGen's generations read before they write."""
    from hermes.pipelines import PIPELINES

    config = PIPELINES.get(PIPELINE_NAMES[pipeline])()
    return int(config.top_k * config.passage_tokens)


@dataclass(frozen=True)
class Ask:
    """A simulation of desktop.yaml or server.yaml that the study asks for; see `ask`."""

    system: str
    pipeline: str
    retrieval: str
    requests: int
    answer: int
    family: str
    model: str
    batch: int
    budget: float | str | None
    nprobe: int | None
    dataset: str
    rates: Rates
    seed: int
    changes: tuple[tuple[str, Any], ...]

    def point(self) -> Point:
        """The point that simulates it."""
        found, setup = profile(), paper.SETUPS[self.system]
        fit = found.family(self.family)
        model = model_of(self.pipeline, self.model)
        budget = paper.BUDGET_GB[self.pipeline] * 1e9 if self.budget is None else self.budget
        settings: dict[str, Any] = {
            "plugins": [str(Path(__file__).with_name("observed.py"))], "clients.0.kind": "observed_ivf_index",
            "workload.requests": self.requests, "workload.lengths.output": self.answer,
            "workload.pipeline": {
                "name": PIPELINE_NAMES[self.pipeline], "retrieval": self.retrieval, "window": tokens_in(self.pipeline),
                "strength": fit.strengths[self.dataset][PIPELINE_NAMES[self.pipeline]], "link": setup.link,
                "batch": self.batch, "budget": budget if isinstance(budget, str) else int(budget),
                "nprobe": self.nprobe or found.index.nprobe,
            },
            "clients.0.index": found.cluster_model(self.family).model_dump(),
            "clients.0.buffer": int(setup.buffers[model]),
            **self.rates.settings(),
            "clients.3.model": model, "clients.3.hardware.model": model,
            "clients.3.memory.reserved": int(setup.buffers[model]) + ENCODER_BYTES,
            **dict(self.changes),
        }
        more = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in self.changes)
        label = (f"{self.system} {self.pipeline} {self.retrieval} {model} {self.family} {self.requests} x {self.batch} "
                 f"answer {self.answer} budget {self.budget} nprobe {self.nprobe} {self.dataset} "
                 f"rates {' '.join(f'{rate:g}' for rate in self.rates)} {more}")
        return Point(label, settings, seed=self.seed)


def ask(
    system: str, pipeline: str, retrieval: str, requests: int, answer: int, rates: Rates, *, family: str = "",
    model: str = "", batch: int = 1, budget: float | str | None = None, nprobe: int | None = None,
    dataset: str = "NQ", seed: int = 0, changes: Mapping[str, Any] | None = None,
) -> Ask:
    """Return a simulation.

    Args:
        system: desktop or server.
        retrieval: Mode of the pipeline.
        answer: Tokens.
        rates: Of the machine's scans.
        family: Of perturbations; the profile's first if "".
        model: The system's own if "".
        budget: Bytes, the paper's if None, or "profiled".
        dataset: Whose strengths the rewrites have.
        seed: Of queries, rounds and cluster sizes.
        changes: More settings of the scenario, by dotted path.
    """
    return Ask(system, pipeline, retrieval, requests, answer, family, model or DEFAULT_MODEL[system], batch, budget,
               nprobe, dataset, rates, seed, tuple((changes or {}).items()))


def extract(results: Results) -> dict[str, Any]:
    """The fields of `Means`."""
    requests = len(results.record.arrival_ns)
    if results.summary["requests"]["completed"] < requests:
        raise InputError("requests that all complete", results.summary["requests"]["rejected"], field="telerag")
    stages = results.stages
    alone = stages.assign(s=stages["end_s"] - stages["start_s"])
    # generations of a batch run side by side: count the time in which any runs
    busy = float_sum(_union(group) for _, group in alone[alone["kind"] == "generate"].groupby("request", observed=True))
    e2e = float(results.requests["e2e_s"].mean())
    looked = _lookups(results)
    ahead = [lookup["overlap"] for lookup in looked if lookup["planned"]]
    windows = [int(lookup["window_ns"]) for lookup in looked if lookup["window_ns"]]

    def total(*names: str) -> int:
        return sum(int(lookup[name]) for lookup in looked for name in names)

    figures = point_figures(results)
    peak = results.record.notes.get("peak_bytes", np.zeros(1))
    means = Means(
        e2e, busy / requests, e2e - busy / requests,
        float(alone.loc[alone["kind"] == "cpu_search", "s"].sum()) / requests,
        total("miss_bytes", "hit_bytes") / requests, total("union_miss_bytes") / requests,
        total("prefetched_bytes") / requests, len(looked) / requests, float(np.mean(ahead)) if ahead else 0.0,
        float(np.mean(windows)) / 1e9 if windows else 0.0, sum(windows) / 1e9 / requests, int(np.nanmax(peak)),
        figures["kv_capacity_tokens"], figures["kv_peak_share"], figures["rejected"],
        " ".join(f"{lookup['hit_bytes']:.0f}:{lookup['miss_bytes']:.0f}" for lookup in looked), requests,
    )
    return {f"mean.{name}": value for name, value in means._asdict().items()}


def _lookups(results: Results) -> list[dict[str, float]]:
    """Return the outcome of each retrieval, request after request."""
    notes = {name: values for name, values in results.record.notes.items() if name.startswith("lookup")}
    numbers = sorted({int(name.partition(".")[0].removeprefix("lookup")) for name in notes})
    found = []
    for request in range(len(results.record.arrival_ns)):
        for number in numbers:
            mine = {name.partition(".")[2]: float(values[request]) for name, values in notes.items()
                    if name.startswith(f"lookup{number}.")}
            if not np.isnan(mine["planned"]):
                found.append(mine)
    return found


def _union(group: Any) -> float:
    """Return the seconds in which at least one of these stages runs."""
    total = end = 0.0
    for begin, stop in sorted(zip(group["start_s"], group["end_s"], strict=True)):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total
