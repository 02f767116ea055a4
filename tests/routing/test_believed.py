"""What routers believe to be cached, beside what is: by hand, in the summary, and only where a router says so."""

from __future__ import annotations

from typing import Any

from each import each

from hermes import simulate
from hermes.results.brief import brief
from hermes.results.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build

REQUESTS, GROUPS = 600, 20


def scenario(router: dict[str, Any], blocks: int = 1500) -> dict[str, Any]:
    """Prompts of 2,304 tokens, of which 2,048 are their group's; a cache of 1,500 blocks holds 11 prefixes of 128."""
    return {
        "workload": {"requests": REQUESTS, "arrivals": {"kind": "poisson", "rate": 8},
                     "prefixes": {"groups": GROUPS, "tokens": 2048},
                     "lengths": {"kind": "fixed", "prompt": 2304, "output": 64}},
        "clients": [{"name": "llm", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "memory": {"num_blocks": blocks}}],
        "router": router}


def run(router: dict[str, Any], blocks: int = 1500) -> Results:
    return simulate(scenario(router, blocks))


@each("router, firsts", [({"kind": "dynamo_kv"}, 2 * GROUPS), ({"kind": "llm_d"}, GROUPS + 1)])
def test_believed_tokens_by_hand(router: dict[str, Any], firsts: int) -> None:
    """All but the first prompt of each group at each client is believed to find its prefix. llm-d's router keeps a
    group at one client, but for one that it once sent to the other."""
    results = run(router)
    found = results.summary["believed"]
    groups = build(load_scenario(scenario(router))).streams[0].table.prefix_group
    stages = results.record.stages
    assert len(set(zip(groups[stages["request"]].tolist(), stages["client"].tolist(), strict=True))) == firsts
    assert found["requests"] == REQUESTS
    assert found["prompt_tokens"] == REQUESTS * 2304
    assert found["believed_tokens"] == (REQUESTS - firsts) * 2048
    assert found["cached_tokens"] == results.summary["tokens"]["cached"] < found["believed_tokens"]
    assert found["missed_tokens"] == found["believed_tokens"] - found["cached_tokens"] + found["unexpected_tokens"]
    believed = results.record.notes["believed_cached_tokens"]
    cached = results.stages["cached_tokens"].to_numpy()[results.stages["request"].argsort()]
    assert found["missed_tokens"] == int((believed - cached).clip(min=0).sum())
    assert set(believed.tolist()) == {0, 2048}


def test_a_router_that_ignores_caches_finds_at_most_the_share_that_fits() -> None:
    found = run({"kind": "dynamo_kv"}).summary["believed"]
    assert found["cached_tokens"] <= 11 / GROUPS * REQUESTS * 2048
    exact = run({"kind": "dynamo_kv", "caches": "exact"}).summary["believed"]
    assert exact["missed_tokens"] <= exact["cached_tokens"] / 100
    assert exact["cached_tokens"] > found["cached_tokens"]


def test_where_all_fits_believed_is_found() -> None:
    found = run({"kind": "llm_d"}, blocks=12_000).summary["believed"]
    assert found["missed_tokens"] <= found["believed_tokens"] / 100


def test_it_is_shown_only_where_a_router_believes_something() -> None:
    for router, shown in (({"kind": "least_loaded"}, False), ({"kind": "production_stack"}, False),
                          ({"kind": "llm_d", "scorers": {"prefix": 0}}, False), ({"kind": "llm_d"}, True)):
        results = run(router)
        lines = dict(brief(results.summary, {}))
        assert ("believed" in results.summary) == shown
        assert ("caches" in lines) == shown
        assert ("note_believed_cached_tokens" in results.requests) == shown
    assert lines["caches"].startswith("routers believed 85.8% of the prompt tokens cached, ")
