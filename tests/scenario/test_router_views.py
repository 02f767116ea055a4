"""Views of routers among the defaults that may decide: what exact ones would change, and what silences them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import hermes
from hermes.results.assumes import assumed_lines, changes_of_runs
from hermes.scenario import load_scenario
from hermes.scenario.assumption import Assumption
from hermes.scenario.assumptions import assumptions
from hermes.scenario.seeds import beyond_chance

CACHES, LOADS = "router's view of caches", "router's view of loads"


def scenario(router: dict[str, Any], count: int = 2, prefixes: bool = True) -> dict[str, Any]:
    """Prompts of 2,304 tokens, of which 2,048 are their group's. The two caches hold 11 of the 20 groups each."""
    shared = {"prefixes": {"groups": 20, "tokens": 2048}} if prefixes else {}
    return {"workload": {"requests": 600, "arrivals": {"kind": "poisson", "rate": 8},
                         "lengths": {"kind": "fixed", "prompt": 2304, "output": 64}, **shared},
            "clients": [{"name": "llm", "count": count, "model": "llama-3.1-8b", "device": "h100-sxm",
                         "memory": {"num_blocks": 1500}}],
            "router": router}


def of(document: dict[str, Any]) -> dict[str, Assumption]:
    return {one.name: one for one in assumptions(load_scenario(document)) if one.name in (CACHES, LOADS)}


@cache
def assumes(kind: str, prefixes: bool) -> dict[str, dict[str, Any]]:
    results = hermes.simulate(scenario({"kind": kind}, prefixes=prefixes), alternatives=True)
    return {entry["name"]: entry for entry in results.summary["assumes"]}


@pytest.mark.parametrize(("router", "names"), [
    ({"kind": "dynamo_kv"}, {CACHES}),
    ({"kind": "dynamo_kv", "caches": {"kind": "events"}}, set()),
    ({"kind": "llm_d"}, {CACHES, LOADS}),
    ({"kind": "llm_d", "view": {"kind": "scraped"}}, {CACHES}),
    ({"kind": "llm_d", "scorers": {"prefix": 0}}, {LOADS}),
    ({"kind": "llm_d", "scorers": {"prefix": 0, "precise_prefix": 2}}, {CACHES, LOADS}),
    ({"kind": "llm_d", "scorers": {"queue": 0, "kv": 0}}, set()),
    ({"kind": "predicted"}, {LOADS}),
    ({"kind": "sglang_cache_aware"}, set()),
    ({"kind": "least_loaded"}, set()),
])
def test_views_that_the_scenario_leaves_alone(router: dict[str, Any], names: set[str]) -> None:
    assert set(of(scenario(router))) == names
    assert of(scenario(router, count=1)) == {}


def test_what_is_known_in_words() -> None:
    assert of(scenario({"kind": "dynamo_kv"}))[CACHES].default == "what it sent in 120 s"
    found = of(scenario({"kind": "llm_d"}))
    assert found[LOADS].default == "as scraped every 50 ms"
    assert found[CACHES].settings == {"router.scorers.prefix": 0.0, "router.scorers.precise_prefix": 3.0,
                                      "router.caches": "exact"}


@pytest.mark.long
def test_the_effect_is_that_of_the_exact_view() -> None:
    before = hermes.simulate(scenario({"kind": "dynamo_kv"}))
    after = hermes.simulate(scenario({"kind": "dynamo_kv", "caches": "exact"}))
    entry = assumes("dynamo_kv", prefixes=True)[CACHES]
    assert entry["method"] == "simulated"
    assert entry["effect"] == changes_of_runs(before.summary_of_run, after.summary_of_run)
    old, new = (run.summary["believed"]["cached_tokens"] for run in (before, after))
    assert entry["effect"]["hits"] == new / old - 1


def test_hits_beyond_chance_by_hand() -> None:
    before = hermes.simulate(scenario({"kind": "dynamo_kv"}))
    after = hermes.simulate(scenario({"kind": "llm_d"}))
    sums = [[int(part.sum()) for part in np.array_split(run.metrics.cached_tokens[np.argsort(
        run.record.arrival_ns, kind="stable")], 5)] for run in (before, after)]
    changes = np.log(np.array(sums[1]) / np.array(sums[0]))
    assert changes.mean() > 2.78 * changes.std(ddof=1) / 5**0.5
    assert beyond_chance(before, after)["hits"] == pytest.approx(np.exp(changes.mean()) - 1)
    same = hermes.simulate(scenario({"kind": "dynamo_kv"}))
    assert "hits" not in beyond_chance(before, same)


@pytest.mark.long
def test_hits_are_a_headline_of_views_alone() -> None:
    entries = assumes("dynamo_kv", prefixes=True)
    assert [name for name, entry in entries.items() if "hits" in entry["effect"]] == [CACHES]
    line = {**entries[CACHES], "effect": {"hits": 0.15, "ttft_p99": -0.17}, "within_noise": []}
    assert assumed_lines([line]) == [f"{CACHES}: what it sent in 120 s; exact would make TTFT p99 -17% and cached "
                                     "prompt tokens +15% (simulated)"]


def test_prompts_that_share_nothing_have_no_caches_to_see() -> None:
    assert CACHES not in assumes("dynamo_kv", prefixes=False)
