"""Sources of a run's step times, their class, and the range in which they are expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.hardware.config import sources_of
from hermes.hardware.result_ranges import FAMILIES, result_range
from hermes.hardware.term_trust import WHOLE, deciding, described, in_total, of_other_engine, trust_of
from hermes.hardware.trust import Trust
from hermes.scenario.repricing import Repricing
from hermes.sums import float_sum

if TYPE_CHECKING:
    from hermes.results.results import Results
    from hermes.scenario.schema import Scenario

__all__ = ["step_sources"]


def step_sources(scenario: Scenario, results: Results) -> list[dict[str, Any]]:
    """Return an entry for each client group whose hardware is priced by steps: `group`, `class`, `low` and `high`
    (factors of its step times), `because` (the terms that make the range as wide as it is), `parts`, the share of each
    source in the time of its steps, largest first, and `results`, the same class and factors of results by kind
    (`hermes.hardware.result_ranges`)."""
    run, found = Repricing(scenario, results), []
    for group, config in enumerate(scenario.clients):
        seconds, model = run.term_seconds(group)
        total = float_sum(seconds.values())
        if total <= 0.0:
            continue
        ranged = trust_of(model)
        sources = dict(sources_of(model) or {WHOLE: described(model)})
        other = _other_engine(config)
        if other and "engine" in sources:
            ranged = of_other_engine(ranged)
            sources["engine"] = f"host times of {sources['engine'].removeprefix('engine ')} used for {other}"
        trust = in_total(seconds, ranged)
        parts: dict[str, float] = {}
        for name, each in seconds.items():
            source = _short(sources.get(name, ""))
            parts[source] = parts.get(source, 0.0) + each / total
        found.append({
            "group": config.name, **_entry(trust),
            "because": deciding(seconds, ranged),
            "parts": [{"source": source, "share": share}
                      for source, share in sorted(parts.items(), key=lambda part: -part[1])],
            "results": {family: _entry(result_range(trust, family)) for family in FAMILIES}})
    return found


def _entry(trust: Trust) -> dict[str, Any]:
    return {"class": trust.kind, "low": trust.low, "high": trust.high}


def _other_engine(config: Any) -> str:   # Any: a client of any kind
    """Return the name of an engine that is not vLLM, whose host times no engine file has, or ""."""
    kind = config.scheduler.kind
    return kind if kind == "sglang" else ""


def _short(source: str) -> str:
    """Return the beginning of a source, without the details that `explain` prints."""
    for end in (" (", ":"):
        source = source.split(end)[0]
    return source
