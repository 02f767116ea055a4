"""Service-level objectives: the paper's six-SLO table, and thresholds per request.

The table allows TTFT and TPOT a slowdown over a baseline at p50, p90 and p99; a system passes when all
six hold. Goodput counts the requests that each meet the per-request thresholds.

Pipelines and workloads may have limits of their own: a baseline with retrieval is another than without. Then each such
group has a table of its own, and every request is held against the limits of its group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, suggest
from hermes.results.distribution import Distribution
from hermes.results.metrics import RequestMetrics
from hermes.results.record import RunRecord
from hermes.units import NS_PER_S

__all__ = ["OwnSlo", "SloConfig", "SloGroup", "Slowdowns", "meets", "slo_groups", "slo_summary", "slo_table"]

BoolArray = npt.NDArray[np.bool_]


class Slowdowns(ConfigModel):
    """How many times the baseline a percentile may be."""

    p50: float = Field(gt=0)
    """Of the median."""
    p90: float = Field(gt=0)
    """Of the 90th percentile."""
    p99: float = Field(gt=0)
    """Of the 99th percentile."""


class OwnSlo(ConfigModel):
    """Limits of one pipeline or workload; those of the run where left out."""

    baseline_ttft: Duration | None = None
    """Time to first token of an unloaded system."""

    baseline_tpot: Duration | None = None
    """Time per output token of an unloaded system."""

    ttft_slowdown: Slowdowns | None = None
    """Allowed TTFT, in baselines."""

    tpot_slowdown: Slowdowns | None = None
    """Allowed TPOT, in baselines."""

    ttft: Duration | None = None
    """Longest TTFT of a request that counts for goodput."""

    tpot: Duration | None = None
    """Longest TPOT of a request that counts for goodput."""

    e2e: Duration | None = None
    """Longest end-to-end latency of a request that counts for goodput."""


class SloConfig(ConfigModel):
    """What counts as served well. The defaults are the paper's table for requests without retrieval."""

    baseline_ttft: Duration = 0.25
    """Time to first token of an unloaded system; the paper takes 1 s with RAG or memory retrieval."""

    baseline_tpot: Duration = 0.025
    """Time per output token of an unloaded system."""

    ttft_slowdown: Slowdowns = Slowdowns(p50=2.0, p90=3.0, p99=6.0)
    """Allowed TTFT, in baselines."""

    tpot_slowdown: Slowdowns = Slowdowns(p50=1.25, p90=1.5, p99=5.0)
    """Allowed TPOT, in baselines."""

    ttft: Duration | None = None
    """Longest TTFT of a request that counts for goodput."""

    tpot: Duration | None = None
    """Longest TPOT of a request that counts for goodput (requests with a single token have none)."""

    e2e: Duration | None = None
    """Longest end-to-end latency of a request that counts for goodput."""

    pipelines: dict[str, OwnSlo] = Field(default_factory=dict)
    """Limits of single pipelines, by the name that results give them (`rag`, or `rag (documents=5)` where there are
    several)."""

    workloads: dict[str, OwnSlo] = Field(default_factory=dict)
    """Limits of single workloads, by name; they come before those of the pipeline."""

    def check_names(self, pipelines: Iterable[str], workloads: Iterable[str]) -> None:
        """Raise `InputError` for limits of a pipeline or workload that the scenario does not have."""
        for kind, given, there in (("pipeline", self.pipelines, pipelines), ("workload", self.workloads, workloads)):
            known = list(dict.fromkeys(there))
            for name in given:
                if name not in known:
                    raise InputError(f"a {kind} of the scenario: one of {', '.join(known)}", name,
                                     field=f"slo.{kind}s.{name}", suggestion=suggest(name, known))

    def of(self, pipeline: str, workload: str) -> SloConfig:
        """What holds for the requests of a workload that take a pipeline."""
        update: dict[str, Any] = {"pipelines": {}, "workloads": {}}
        for own in (self.pipelines.get(pipeline), self.workloads.get(workload)):
            update |= {name: value for name, value in own or () if value is not None}
        return self.model_copy(update=update)

    def thresholds(self) -> dict[str, float | None]:
        """The per-request limits in seconds; where none is given, the table's p99 limits for TTFT and TPOT."""
        if self.ttft is None and self.tpot is None and self.e2e is None:
            return {
                "ttft_s": self.baseline_ttft * self.ttft_slowdown.p99,
                "tpot_s": self.baseline_tpot * self.tpot_slowdown.p99, "e2e_s": None,
            }
        return {"ttft_s": self.ttft, "tpot_s": self.tpot, "e2e_s": self.e2e}


def slo_table(slo: SloConfig, ttft: Distribution, tpot: Distribution) -> dict[str, Any]:
    """`{ttft_p50: {limit_s, value_s, pass}, ..., pass}`.

    `pass` is None without a completed request. TPOT limits hold trivially where every answer is a single token.
    """
    out: dict[str, Any] = {}
    for name, baseline, slowdown, sample in (
        ("ttft", slo.baseline_ttft, slo.ttft_slowdown, ttft), ("tpot", slo.baseline_tpot, slo.tpot_slowdown, tpot),
    ):
        values = sample.percentiles((50, 90, 99))
        for (key, factor), value in zip(slowdown.model_dump().items(), values, strict=True):
            known = sample.count > 0
            out[f"{name}_{key}"] = {
                "limit_s": baseline * factor, "value_s": float(value) if known else None,
                "pass": None if ttft.count == 0 else not known or bool(value <= baseline * factor),
            }
    out["pass"] = None if ttft.count == 0 else all(row["pass"] for row in out.values())
    return out


class SloGroup(NamedTuple):
    """Requests that the same limits hold for. name: `pipeline NAME`, `workload NAME` or both, "" for those that only
    the run's own hold for; rows: which requests, shape (requests,)."""

    name: str
    slo: SloConfig
    rows: BoolArray


def slo_groups(slo: SloConfig, record: RunRecord) -> list[SloGroup]:
    """All requests by the limits that hold for them: first those of the run's own, then groups by name."""
    codes: dict[str, npt.NDArray[np.int64]] = {}
    names: dict[str, list[str]] = {}
    for label, own in (("pipeline", slo.pipelines), ("workload", slo.workloads)):
        found, known = record.labels.get(label, (np.zeros(len(record.status), dtype=np.int64), [""]))
        # 0 where there is nothing of their own
        position = {name: i for i, name in enumerate(["", *sorted(own)])}
        codes[label] = np.array([position.get(name, 0) for name in known], dtype=np.int64)[found]
        names[label] = list(position)
    both = codes["pipeline"] * len(names["workload"]) + codes["workload"]
    groups = []
    for code in [0, *(int(c) for c in np.unique(both) if c)]:
        pipeline, workload = (names[label][i] for label, i in
                              zip(("pipeline", "workload"), divmod(code, len(names["workload"])), strict=True))
        parts = [f"{kind} {name}" for kind, name in (("pipeline", pipeline), ("workload", workload)) if name]
        groups.append(SloGroup(", ".join(parts), slo.of(pipeline, workload), both == code))
    return groups


def slo_summary(groups: list[SloGroup], metrics: RequestMetrics, completed: BoolArray) -> dict[str, Any]:
    """`slo` of the summary: the table of the requests without limits of their own, and `pass` for all; `slo_of`, where
    there are any: the tables of the others."""
    tables = {}
    for group in groups:
        done = completed & group.rows
        answered = done & (metrics.ttft_ns >= 0)
        tables[group.name] = slo_table(group.slo, Distribution(metrics.ttft_ns[answered], divisor=NS_PER_S),
                                       Distribution(metrics.tpot_s[done]))
    own = tables.pop("")
    if not tables:
        return {"slo": own}
    verdicts = [table["pass"] for table in tables.values()] + ([own["pass"]] if groups[0].rows.any() else [])
    passed = False if False in verdicts else None if None in verdicts else True
    return {"slo": own | {"pass": passed}, "slo_of": tables}


def meets(groups: list[SloGroup], metrics: RequestMetrics, completed: BoolArray) -> BoolArray:
    """Which requests completed within the per-request thresholds of their group, shape (requests,)."""
    ok = np.zeros(len(completed), dtype=bool)
    for group in groups:
        ok |= group.rows & _within(group.slo.thresholds(), metrics)
    return ok & completed


def _within(limits: dict[str, float | None], metrics: RequestMetrics) -> BoolArray:
    ok = np.ones(len(metrics.tpot_s), dtype=bool)
    if limits["ttft_s"] is not None:
        ok &= metrics.ttft_ns / NS_PER_S <= limits["ttft_s"]  # requests without a token have no first one to wait for
    if limits["tpot_s"] is not None:
        ok &= ~(metrics.tpot_s > limits["tpot_s"])
    if limits["e2e_s"] is not None:
        ok &= metrics.e2e_ns / NS_PER_S <= limits["e2e_s"]
    return ok
