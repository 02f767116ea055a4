"""Service-level objectives: limits per request, and limits as slowdowns over a baseline.

An SLO has two forms, and both may be used. `ttft`, `tpot` and `e2e` are limits per request: goodput counts the requests
within all of them, and the run passes if each limit holds at a percentile (default: the 99th). `baseline_ttft` and
`baseline_tpot` allow a slowdown over the times of an unloaded system at p50, p90 and p99 (the six limits of the paper);
the run passes if all hold. Without an SLO there is no verdict and no goodput.

Pipelines and workloads may have their own limits, since a baseline with retrieval differs from one without. Each such
group then has its own table, and every request is compared with the limits of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import BoolArray, IntArray
from hermes.config import ConfigModel, Duration
from hermes.core.record import RunRecord
from hermes.errors import InputError, Verbatim, suggest
from hermes.results.distribution import Distribution
from hermes.results.metrics import RequestMetrics
from hermes.units import NS_PER_S

__all__ = ["OwnSlo", "SloConfig", "SloGroup", "Slowdowns", "own_limits_missed", "slo_given", "slo_groups",
           "slo_summary", "slo_table", "within_slo", "without_limit"]


Percentile = Annotated[float, Field(ge=0, le=100)]


class Slowdowns(ConfigModel):
    """Allowed multiples of the baseline by percentile."""

    p50: float = Field(gt=0)
    """Of the median."""
    p90: float = Field(gt=0)
    """Of the 90th percentile."""
    p99: float = Field(gt=0)
    """Of the 99th percentile."""


# slowdowns of the paper, for TTFT and TPOT
TTFT_SLOWDOWN, TPOT_SLOWDOWN = Slowdowns(p50=2.0, p90=3.0, p99=6.0), Slowdowns(p50=1.25, p90=1.5, p99=5.0)
METRICS = ("ttft", "tpot", "e2e")


class OwnSlo(ConfigModel):
    """Limits of one pipeline or workload. Left out, those of the run."""

    baseline_ttft: Duration | None = None
    """Time to first token of an unloaded system."""

    baseline_tpot: Duration | None = None
    """Time per output token of an unloaded system."""

    ttft_slowdown: Slowdowns | None = None
    """Allowed TTFT, in baselines."""

    tpot_slowdown: Slowdowns | None = None
    """Allowed TPOT, in baselines."""

    ttft: Duration | None = None
    """Longest TTFT of a request."""

    tpot: Duration | None = None
    """Longest TPOT of a request."""

    e2e: Duration | None = None
    """Longest end-to-end latency of a request."""

    percentile: Percentile | None = None
    """Percentile at which `ttft`, `tpot` and `e2e` must hold."""


class SloConfig(ConfigModel):
    """Service-level objectives. Without any, there is no verdict and no goodput."""

    ttft: Duration | None = None
    """Longest TTFT of a request."""

    tpot: Duration | None = None
    """Longest TPOT of a request (requests with a single token have none)."""

    e2e: Duration | None = None
    """Longest end-to-end latency of a request."""

    percentile: Percentile = 99.0
    """Percentile at which `ttft`, `tpot` and `e2e` must hold for the run to pass. Goodput compares each request with
    them."""

    baseline_ttft: Duration | None = None
    """Time to first token of an unloaded system, for limits as slowdowns (the paper: 250 ms, 1 s with retrieval)."""

    baseline_tpot: Duration | None = None
    """Time per output token of an unloaded system, for limits as slowdowns (the paper: 25 ms)."""

    ttft_slowdown: Slowdowns | None = None
    """Allowed TTFT, in baselines. Left out, 2, 3 and 6 (p50, p90, p99)."""

    tpot_slowdown: Slowdowns | None = None
    """Allowed TPOT, in baselines. Left out, 1.25, 1.5 and 5 (p50, p90, p99)."""

    pipelines: dict[str, OwnSlo] = Field(default_factory=dict)
    """Limits of single pipelines, by their name in results (`rag`, or `rag (documents=5)` if there are several)."""

    workloads: dict[str, OwnSlo] = Field(default_factory=dict)
    """Limits of single workloads, by name; they take precedence over the pipeline's."""

    def check_names(self, pipelines: Iterable[str], workloads: Iterable[str]) -> None:
        """Raise `InputError` for limits of a pipeline or workload that the scenario does not have."""
        for kind, given, there in (("pipeline", self.pipelines, pipelines), ("workload", self.workloads, workloads)):
            known = list(dict.fromkeys(there))
            for name in given:
                if name not in known:
                    raise InputError(f"a {kind} of the scenario: one of {', '.join(known)}", name,
                                     field=f"slo.{kind}s.{name}", suggestion=suggest(name, known))

    def of(self, pipeline: str, workload: str) -> SloConfig:
        """Return the limits for the requests of a workload that take a pipeline."""
        update: dict[str, Any] = {"pipelines": {}, "workloads": {}}
        for own in (self.pipelines.get(pipeline), self.workloads.get(workload)):
            update |= {name: value for name, value in own or () if value is not None}
        return self.model_copy(update=update)

    @property
    def given(self) -> bool:
        """Whether requests without limits of their own have any limit."""
        return any(getattr(self, name) is not None for name in (*METRICS, "baseline_ttft", "baseline_tpot"))

    def slowdowns(self, metric: str) -> dict[str, float]:
        """Return limits in seconds by percentile (`p50`, ...), from the baseline of "ttft" or "tpot"; empty without it.
        """
        baseline: float | None = getattr(self, f"baseline_{metric}")
        if baseline is None:
            return {}
        usual = {"ttft": TTFT_SLOWDOWN, "tpot": TPOT_SLOWDOWN}[metric]
        factors: Slowdowns = getattr(self, f"{metric}_slowdown") or usual
        return {name: baseline * factor for name, factor in factors.model_dump().items()}

    def thresholds(self) -> dict[str, float | None]:
        """Return the per-request limits in seconds; without any, the p99 limits over the baselines."""
        if self.ttft is None and self.tpot is None and self.e2e is None:
            return {**{f"{name}_s": self.slowdowns(name).get("p99") for name in ("ttft", "tpot")}, "e2e_s": None}
        return {"ttft_s": self.ttft, "tpot_s": self.tpot, "e2e_s": self.e2e}

    @model_validator(mode="after")
    def _with_baselines(self) -> Self:
        own = [*self.pipelines.values(), *self.workloads.values()]
        for metric in ("ttft", "tpot"):
            slowdown, baseline = f"{metric}_slowdown", f"baseline_{metric}"
            if getattr(self, slowdown) is not None and all(getattr(one, baseline) is None for one in (self, *own)):
                raise InputError(Verbatim(f"a slowdown needs its baseline; give {baseline}"), field=slowdown)
        return self


def slo_table(slo: SloConfig, samples: dict[str, Distribution], rejected: int = 0) -> dict[str, Any]:
    """Return `{ttft: {percentile, limit_s, value_s, share, pass}, ttft_p50: {limit_s, value_s, pass}, ..., pass}`, a
    row per given limit. samples: Of "ttft", "tpot" and "e2e", of completed requests.

    A rejected request misses every per-request limit, so that value_s is None if the percentile falls on one. Limits
    over baselines are of completed requests alone. share: Of both, those within the limit. `pass` is None where a limit
    applies to no completed request: without any, and for limits of tokens where no request has some. TPOT limits hold
    trivially if every answer is a single token.
    """
    out: dict[str, Any] = {}
    for metric in METRICS:
        limit: float | None = getattr(slo, metric)
        if limit is not None:
            row = _request_row(samples, metric, slo.percentile, limit, rejected)
            out[metric] = {"percentile": slo.percentile, **row}
    for metric in ("ttft", "tpot"):
        for name, limit in slo.slowdowns(metric).items():
            sample = samples[metric]
            value = float(sample.percentiles((float(name.removeprefix("p")),))[0]) if sample.count else None
            passed = None if not samples["ttft"].count else value is None or value <= limit
            out[f"{metric}_{name}"] = {"limit_s": limit, "value_s": value, "pass": passed}
    verdicts = [row["pass"] for row in out.values() if row["pass"] is not None]
    out["pass"] = all(verdicts) if verdicts else None
    return out


def _request_row(samples: dict[str, Distribution], metric: str, percentile: float, limit: float, rejected: int
                 ) -> dict[str, Any]:
    sample, count = samples[metric], samples[metric].count
    if not samples["e2e"].count:
        return {"limit_s": limit, "value_s": None, "share": None, "pass": None}
    if not count:   # no answer has a second token, or a first
        return {"limit_s": limit, "value_s": None, "share": None, "pass": True if samples["ttft"].count else None}
    rank = percentile / 100 * (count + rejected - 1)   # with rejected requests at the end of the sample
    missed = rank > count - 1 + 1e-9
    value = None if missed else float(sample.percentiles((min(rank / max(count - 1, 1), 1.0) * 100,))[0])
    share = sample.share_up_to(limit) * count / (count + rejected)
    return {"limit_s": limit, "value_s": value, "share": share, "pass": value is not None and value <= limit}


class SloGroup(NamedTuple):
    """Requests with the same limits. name: `pipeline NAME`, `workload NAME` or both, "" for those with only the run's
    limits; rows: mask of the requests, shape (requests,)."""

    name: str
    slo: SloConfig
    rows: BoolArray


def slo_groups(slo: SloConfig, record: RunRecord) -> list[SloGroup]:
    """Return all requests by their limits: first those with only the run's limits, then groups by name."""
    codes: dict[str, IntArray] = {}
    names: dict[str, list[str]] = {}
    for label, own in (("pipeline", slo.pipelines), ("workload", slo.workloads)):
        found, known = record.labels.get(label, (np.zeros(len(record.status), dtype=np.int64), [""]))
        # 0 for requests without limits of their own
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


def slo_summary(groups: list[SloGroup], metrics: RequestMetrics, completed: BoolArray, rejected: BoolArray
                ) -> dict[str, Any]:
    """Return `slo` of the summary (the table of the requests without limits of their own, and `pass` for all) and, if
    there are groups, `slo_of` (the tables of the others)."""
    tables, silent = {}, set()
    for group in groups:
        done = completed & group.rows
        answered = done & (metrics.ttft_ns >= 0)
        if done.any() and not answered.any() and group.slo.e2e is None:   # no limit applies to any of them
            silent.add(group.name)
        tables[group.name] = slo_table(group.slo, {
            "ttft": Distribution(metrics.ttft_ns[answered], divisor=NS_PER_S),
            "tpot": Distribution(metrics.tpot_s[done]),
            "e2e": Distribution(metrics.e2e_ns[done], divisor=NS_PER_S),
        }, int((rejected & group.rows).sum()))
    own = tables.pop("")
    if not tables:
        return {"slo": own}
    limited = [table for name, table in tables.items() if len(table) > 1 and name not in silent]
    verdicts = [table["pass"] for table in limited]
    if groups[0].rows.any() and len(own) > 1 and "" not in silent:
        verdicts.append(own["pass"])
    passed = False if False in verdicts else None if None in verdicts or not verdicts else True
    return {"slo": own | {"pass": passed}, "slo_of": tables}


def own_limits_missed(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return each limit that a pipeline or workload with limits of its own misses, with its value and the limit.

    tables: `slo_of` of the summary.
    """
    from hermes.results.figures.catalogue import limit_name
    from hermes.results.layout import format_s  # a run that prints nothing needs no layout

    out = []
    for group, table in tables.items():
        for name, row in table.items():
            if name != "pass" and row["pass"] is False:
                value = "is a rejected request" if row["value_s"] is None else format_s(row["value_s"])
                out.append(f"{group}: {limit_name(name, row.get('percentile'))} {value}, "
                           f"limit {format_s(row['limit_s'])}")
    return out


def slo_given(groups: list[SloGroup]) -> bool:
    """Whether there is any limit."""
    return any(group.slo.given for group in groups)


def within_slo(groups: list[SloGroup], metrics: RequestMetrics, completed: BoolArray) -> BoolArray:
    """Return which requests completed within the per-request thresholds of their group, shape (requests,). A request to
    which none applies is not among them (`without_limit`)."""
    ok = np.zeros(len(completed), dtype=bool)
    for group in groups:
        ok |= group.rows & _within(group.slo.thresholds(), metrics)
    return ok & completed & ~without_limit(groups, metrics, completed)


def without_limit(groups: list[SloGroup], metrics: RequestMetrics, completed: BoolArray) -> BoolArray:
    """Return which completed requests have no token, and only limits of tokens (an embedding under `slo.ttft`), shape
    (requests,). Goodput counts them apart."""
    out = np.zeros(len(completed), dtype=bool)
    for group in groups:
        limits = group.slo.thresholds()
        if limits["e2e_s"] is None and any(limit is not None for limit in limits.values()):
            out |= group.rows
    return out & completed & (metrics.ttft_ns < 0)


def _within(limits: dict[str, float | None], metrics: RequestMetrics) -> BoolArray:
    ok = np.ones(len(metrics.tpot_s), dtype=bool)
    if limits["ttft_s"] is not None:
        ok &= metrics.ttft_ns / NS_PER_S <= limits["ttft_s"]   # a request without a token has a limit of `e2e`
    if limits["tpot_s"] is not None:
        ok &= ~(metrics.tpot_s > limits["tpot_s"])
    if limits["e2e_s"] is not None:
        ok &= metrics.e2e_ns / NS_PER_S <= limits["e2e_s"]
    return ok
