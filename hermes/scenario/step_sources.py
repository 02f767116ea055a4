"""Where the step times of a run come from, how far to trust them, and between what they are expected to lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.hardware.term_trust import WHOLE, deciding, described, in_total, trust_of
from hermes.scenario.repricing import Repricing

if TYPE_CHECKING:
    from hermes.results.results import Results
    from hermes.scenario.schema import Scenario

__all__ = ["step_sources"]


def step_sources(scenario: Scenario, results: Results) -> list[dict[str, Any]]:
    """Return an entry for each client group whose hardware is priced by steps: `group`, `class`, `low` and `high`
    (factors of its step times), `because` (the terms that make the class), and `parts`, the share of each source in
    the time of its steps, largest first."""
    run, found = Repricing(scenario, results), []
    for group, config in enumerate(scenario.clients):
        seconds, model = run.term_seconds(group)
        total = sum(seconds.values())
        if total <= 0.0:
            continue
        ranged = trust_of(model)
        trust = in_total(seconds, ranged)
        sources = model.sources_of() if hasattr(model, "sources_of") else {WHOLE: described(model)}
        parts: dict[str, float] = {}
        for name, each in seconds.items():
            source = _short(sources.get(name, ""))
            parts[source] = parts.get(source, 0.0) + each / total
        found.append({
            "group": config.name, "class": trust.kind, "low": trust.low, "high": trust.high,
            "because": deciding(seconds, ranged, trust.kind),
            "parts": [{"source": source, "share": share}
                      for source, share in sorted(parts.items(), key=lambda part: -part[1])]})
    return found


def _short(source: str) -> str:
    """Return the beginning of a source, without the details that `explain` prints."""
    for end in (" (", ":"):
        source = source.split(end)[0]
    return source
