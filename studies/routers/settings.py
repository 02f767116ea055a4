"""The routers of the study, by what each knows of caches and of loads."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["KNOWN", "LOADS", "ROUTERS", "Known"]

SENT = {"kind": "approximate", "ttl": "120 s"}
EVENTS = {"kind": "events"}


class Known(NamedTuple):
    """A router with its views.

    Args:
        router: The scenario's `router`.
        caches: What it knows of prefix caches.
        loads: What it knows of loads.
    """

    router: dict[str, Any]
    caches: str
    loads: str


def scraped(period: str) -> dict[str, Any]:
    return {"kind": "scraped", "period": period}


def llm_d(caches: Any, view: Any = None) -> dict[str, Any]:
    """Return llm-d's default weights, with 3 for the prefix whatever the view of caches; `caches` None: without it."""
    prefix = {"prefix": 3 if caches == "sent" else 0}
    if caches not in (None, "sent"):
        prefix["precise_prefix"] = 3
    router: dict[str, Any] = {"kind": "llm_d", "scorers": {"queue": 2, "kv": 2, **prefix}}
    if caches not in (None, "sent"):
        router["caches"] = caches
    return router | ({} if view is None else {"view": view})


ROUTERS = {
    "round_robin": Known({"kind": "round_robin"}, "none", "none"),
    "power_of_two": Known({"kind": "power_of_two", "load": "requests"}, "none", "exact"),
    "least_loaded": Known({"kind": "least_loaded", "load": "requests"}, "none", "exact"),
    "least_loaded, prompt tokens": Known({"kind": "least_loaded", "load": "input_tokens", "view": "own"}, "none",
                                         "own"),
    "session": Known({"kind": "session"}, "none", "exact"),
    "production_stack, by prefix": Known({"kind": "production_stack", "by": "prefix"}, "approximate", "none"),
    "sglang_cache_aware": Known({"kind": "sglang_cache_aware"}, "approximate", "own"),
    "aibrix_prefix": Known({"kind": "aibrix_prefix"}, "approximate", "own"),
    "llm_d": Known({"kind": "llm_d"}, "approximate", "scraped 50 ms"),
    "llm_d, precise": Known(
        {"kind": "llm_d", "scorers": {"queue": 1, "kv": 1, "prefix": 0, "precise_prefix": 2}}, "events",
        "scraped 50 ms"),
    "llm_d, caches alone": Known(
        {"kind": "llm_d", "scorers": {"queue": 0, "kv": 0, "prefix": 0, "precise_prefix": 1}}, "events", "none"),
    "dynamo_kv": Known({"kind": "dynamo_kv"}, "approximate", "own"),
    "dynamo_kv, events": Known({"kind": "dynamo_kv", "caches": EVENTS}, "events", "own"),
    "predicted": Known({"kind": "predicted"}, "none", "scraped 50 ms"),
    "predicted, caches": Known({"kind": "predicted", "caches": SENT}, "approximate", "scraped 50 ms"),
}
"""The routers as their projects ship them, least_loaded by prompt tokens, and llm_d without loads."""

VIEWS: dict[str, dict[str, dict[str, Any]]] = {
    "llm_d": {"none": llm_d(None), "approximate": llm_d("sent"), "events": llm_d(EVENTS), "exact": llm_d("exact")},
    "dynamo_kv": {"none": {"kind": "dynamo_kv", "overlap_credit": 0}, "approximate": {"kind": "dynamo_kv"},
                  "events": {"kind": "dynamo_kv", "caches": EVENTS}, "exact": {"kind": "dynamo_kv", "caches": "exact"}},
    "predicted": {"none": {"kind": "predicted"}, "approximate": {"kind": "predicted", "caches": SENT},
                  "events": {"kind": "predicted", "caches": EVENTS}, "exact": {"kind": "predicted", "caches": "exact"}},
}
KNOWN = {
    f"{kind}, caches {view}": Known(router, view, "own" if kind == "dynamo_kv" else "scraped 50 ms")
    for kind, routers in VIEWS.items() for view, router in routers.items()
} | {f"dynamo_kv, caches events {delay} late": Known(
    {"kind": "dynamo_kv", "caches": EVENTS | {"delay": delay}}, "events", "own") for delay in ("1 s", "10 s")}
"""Three routers by their view of caches, everything else equal."""

LOADS = {
    f"{kind}, loads {view}": Known(router | {"view": seen}, caches, view)
    for kind, caches, router in (("least_loaded", "none", {"kind": "least_loaded", "load": "requests"}),
                                 ("llm_d", "approximate", {"kind": "llm_d"}),
                                 ("predicted", "none", {"kind": "predicted"}))
    for view, seen in (("exact", "exact"), ("own", "own"), ("scraped 50 ms", scraped("50 ms")),
                       ("scraped 1 s", scraped("1 s")), ("scraped 10 s", scraped("10 s")))
    if not (kind == "llm_d" and view == "own")   # which has no books of its own
}
"""Three routers by their view of loads, everything else equal."""
