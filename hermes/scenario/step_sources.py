"""Sources of a run's step times, their class, and the range in which they are expected."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hermes.hardware.config import sources_of
from hermes.hardware.descriptions.engines import load_engine
from hermes.hardware.result_ranges import FAMILIES, MOST, result_range
from hermes.hardware.term_trust import WHOLE, class_of, deciding, described, in_total, of_other_engine, trust_of
from hermes.hardware.trust import Trust, worst
from hermes.scenario.repricing import Repricing
from hermes.sums import float_sum
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.clients.config import LLMClientConfig
    from hermes.core.record import RunRecord
    from hermes.results.results import Results
    from hermes.scenario.kv_range import KvEnds
    from hermes.scenario.schema import Scenario

__all__ = ["step_sources"]

AS_IT_IS = 1.0, 1.0   # factors that widen nothing
BUSY = 0.9   # share of the time from which on API servers are what decides


def step_sources(scenario: Scenario, results: Results, kv: KvEnds | None = None) -> list[dict[str, Any]]:
    """Return an entry for each client group whose hardware is priced by steps: `group`, `class`, `low` and `high`
    (factors of its step times), `because` (the terms that make the range as wide as it is), `parts`, the share of each
    source in the time of its steps, largest first, and `results`, the same class and factors of results by kind
    (`hermes.hardware.result_ranges`).

    kv: What the error of KV memory moves. Where it binds, `kv_range` says whether ranges of results hold it.
    """
    run, found = Repricing(scenario, results), []
    for group, config in enumerate(scenario.clients):
        seconds, model = run.term_seconds(group)
        total = float_sum(seconds.values())
        if total <= 0.0:
            continue
        ranged = trust_of(model)
        sources = dict(sources_of(model) or {WHOLE: described(model)})
        times_of, engine = _stand_in(config, sources.get("engine", ""))
        if engine:
            ranged = of_other_engine(ranged)
            sources["engine"] = f"host times of {times_of} used for {engine}"
        trust = in_total(seconds, ranged)
        parts: dict[str, float] = {}
        for name, each in seconds.items():
            source = _short(sources.get(name, ""))
            parts[source] = parts.get(source, 0.0) + each / total
        servers = _of_servers(config, results.record)
        of_kv = None if kv is None else kv.factors(results, group)
        found.append({
            "group": config.name, "class": trust.kind, "low": trust.low, "high": trust.high,
            "because": deciding(seconds, ranged),
            "parts": [{"source": source, "share": share}
                      for source, share in sorted(parts.items(), key=lambda part: -part[1])],
            "results": {family: _entry(result_range(trust, family), servers, (of_kv or {}).get(family, AS_IT_IS))
                        for family in FAMILIES},
            **({} if of_kv is None else {"kv_range": bool(of_kv)})})
    return found


def _of_servers(config: LLMClientConfig, record: RunRecord) -> tuple[float, float]:
    """Return by which factors times may differ because API servers are slower or faster on other hosts: where they were
    busy throughout, or would be on the slowest of those hosts."""
    servers = config.api_servers
    if servers is None:
        return 1.0, 1.0
    engine = config.engine or config.scheduler.engine
    low, high = load_engine(engine).frontend.spread
    clients = [number for number, info in enumerate(record.clients) if info.name in config.names]
    stages, runs = record.stages, record.runs
    served, given = np.isin(stages["client"], clients), np.isin(runs["client"], clients)
    span = max((int(record.user_ends(number).max()) for number in clients if len(record.step_ends[number])), default=0)
    span -= int(stages["assigned_ns"][served].min()) if served.any() else 0
    request, token = servers.figures(engine)
    work = request * int(served.sum()) + token * float((runs["sampled"] * runs["num_steps"])[given].sum())
    sets = -(-len(clients) // (servers.engines * config.parallel.dp * config.parallel.pp))
    busy = work * NS_PER_S / (servers.count * sets * span) if span > 0 else 0.0
    return low if busy >= BUSY else 1.0, high if busy >= BUSY / high else 1.0


def _entry(trust: Trust, *wider: tuple[float, float]) -> dict[str, object]:
    """Return the class and the range of a result, with factors by which other causes make it wider."""
    low, high = (end * math.prod(others) for end, others in zip(trust[1:], zip(*wider, strict=True), strict=True))
    kind = trust.kind if (low, high) == trust[1:] else worst((trust.kind, class_of(low, high, MOST)))
    return {"class": kind, "low": low, "high": high}


def _stand_in(config: Any, source: str) -> tuple[str, str]:   # Any: a client of any kind
    """Return (engine whose host times are used, engine that they are used for); ("", "") where both are the same.

    source: of the host times, "" without any.
    """
    named = source.removeprefix("engine ")
    if not source:
        return "", ""
    if config.scheduler.kind == "sglang":
        return ("", "") if named.startswith("sglang") else (named, "sglang")
    stands_in = load_engine(named.split(",")[0]).stands_in if named != source else ""
    return stands_in, named if stands_in else ""


def _short(source: str) -> str:
    """Return the beginning of a source, without the details that `explain` prints."""
    return source.split(" (")[0].split(":")[0]
