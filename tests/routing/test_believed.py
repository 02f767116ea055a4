"""What routers believe to be cached, beside what is: by hand, in the summary, and only where a router says so."""

from __future__ import annotations

from typing import Any

import pytest
from each import each

from hermes import simulate
from hermes.core.record import BELIEVED
from hermes.results.brief import brief
from hermes.results.charts.report_page import runs_page
from hermes.results.compare import compare
from hermes.results.layout import to_text
from hermes.results.render import sections
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


def test_false_beliefs_and_balance_by_hand() -> None:
    """A prefix is found whole or not at all, so that a belief is right, or off by 2,048 tokens; but for blocks that the
    engine evicted between the choice and its own lookup."""
    results = run({"kind": "llm_d"})
    found = results.summary["believed"]
    stages = results.stages.sort_values("request")
    off = results.record.notes[BELIEVED] - stages["cached_tokens"].to_numpy()
    assert found["block_tokens"] == 64
    assert found["false_high"] == int((off > 64).sum()) > 0
    assert found["false_low"] == int((off < -64).sum())
    assert found["false_share"] == (found["false_high"] + found["false_low"]) / REQUESTS
    shares = [(results.record.stages["client"] == client).sum() for client in (0, 1)]   # prompts are all alike
    pool = found["balance"]["llm"]
    assert (pool["clients"], pool["tokens"]) == (2, REQUESTS * (2304 + 64))
    assert pool["max_over_mean"] == max(shares) / (REQUESTS / 2)
    assert abs(pool["jain"] - REQUESTS**2 / (2 * sum(int(n)**2 for n in shares))) < 1e-12


def test_a_client_that_served_nothing_counts() -> None:
    """One group, two clients: the router that keeps groups together uses one of them."""
    data = scenario({"kind": "sglang_cache_aware"}, blocks=12_000)
    data["workload"] |= {"requests": 20, "prefixes": {"groups": 1, "tokens": 2048},
                         "arrivals": {"kind": "poisson", "rate": 0.5}}
    pool = simulate(data).summary["believed"]["balance"]["llm"]
    assert (pool["max_over_mean"], pool["jain"]) == (2.0, 0.5)


def test_balance_is_shown_only_where_clients_share_a_router() -> None:
    data = scenario({"kind": "llm_d"})
    data["clients"][0]["count"] = 1
    alone, shared = simulate(data), run({"kind": "llm_d"})
    assert set(alone.summary["believed"]).isdisjoint({"false_share", "balance"})
    assert "routers and caches" not in [one.title for one in sections(alone.summary, {})]
    table = next(one for one in sections(shared.summary, {}) if one.title == "routers and caches")
    found = shared.summary["believed"]
    assert table.rows[0] == ("requests on a false belief", f"{found['false_share']:.1%} of 600")


def test_two_routers_are_compared() -> None:
    first, second = run({"kind": "dynamo_kv"}), run({"kind": "dynamo_kv", "caches": "exact"})
    table = compare(first, second, names=("sent", "exact"))
    rows = {row.name: row for row in table.totals}
    for row, side in (("ours", first), ("reference", second)):
        found = side.summary["believed"]
        assert getattr(rows["believed.false_share"], row) == found["false_share"]
        assert getattr(rows["believed.balance.llm.jain"], row) == found["balance"]["llm"]["jain"]
    assert (rows["believed.false_share"].difference or 0) > 0
    assert "llm: Jain's index of tokens of clients" in to_text(table.sections())
    page = runs_page([("sent", first), ("exact", second)])
    assert "false beliefs, share of requests" in page
    assert "llm: Jain&#x27;s index of tokens of clients" in page


@pytest.mark.long
def test_clients_of_each_role_and_names_with_dots() -> None:
    """Of split roles each pool is a row; the decode clients count 64 output tokens of each request."""
    data = scenario({"kind": "dynamo_kv"})
    client = data["clients"][0]
    data["clients"] = [{**client, "name": "p", "role": "prefill", "count": 1},
                       *({**client, "name": name, "role": "decode", "count": 1} for name in ("d.1", "d.2"))]
    run = simulate(data)
    pools = run.summary["believed"]["balance"]
    assert set(pools) == {"d.1 + d.2"}
    assert (pools["d.1 + d.2"]["clients"], pools["d.1 + d.2"]["tokens"]) == (2, REQUESTS * 64)
    rows = {row.name: row for row in compare(run, run, names=("one", "same")).totals}
    assert rows["believed.balance.d.1 + d.2.jain"].ours == pools["d.1 + d.2"]["jain"]
    assert "d.1 + d.2: Jain&#x27;s index of tokens of clients" in runs_page([("one", run), ("same", run)])
