"""What routers know by default of their clients' loads and prefix caches, against knowing both as of now.

Only routers with a key `view` or `caches` that takes `exact` have such an alternative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes.routing.caches import ApproximateView, EventsView
from hermes.routing.views import ScrapedView
from hermes.scenario.assumption import Assumption
from hermes.scenario.schema import Scenario

__all__ = ["of_routers"]

_PRECISE = {"router.scorers.prefix": 0.0, "router.caches": "exact"}


def of_routers(scenario: Scenario) -> Iterator[Assumption]:
    """Yield the views that the scenario leaves at their defaults, where the router has several LLM clients."""
    router, source = scenario.router, scenario.source
    if sum(client.count for client in scenario.clients if client.serves_llm) < 2:
        return
    view, caches = (getattr(router, key, None) for key in ("view", "caches"))
    if router.kind == "llm_d":
        weights = router.scorers
        if not (weights.queue or weights.kv or weights.load_aware):
            view = None
        if not weights.precise_prefix:
            caches = None
            if weights.prefix and not source.chosen("router.scorers"):
                yield _caches("what it sent", _PRECISE | {"router.scorers.precise_prefix": weights.prefix})
    if isinstance(view, ScrapedView) and not source.chosen("router.view"):
        yield Assumption("router's view of loads", f"as scraped every {view.period * 1e3:g} ms", "exact",
                         {"router.view": "exact"}, hits=True)
    if isinstance(caches, EventsView | ApproximateView) and not source.chosen("router.caches"):
        yield _caches(_known(caches), {"router.caches": "exact"})


def _caches(default: str, settings: dict[str, Any]) -> Assumption:
    return Assumption("router's view of caches", default, "exact", settings, decides="prefix caches", hits=True)


def _known(view: EventsView | ApproximateView) -> str:
    """Return in words what the router knows."""
    if isinstance(view, EventsView):
        return f"their events {view.delay * 1e3:g} ms later"
    return "what it sent" if view.ttl is None else f"what it sent in {view.ttl:g} s"
