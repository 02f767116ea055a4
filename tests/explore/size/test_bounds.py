"""Closed-form bounds: Little's law against simulations, for answers of 50 to 20,000 tokens."""

from __future__ import annotations

import pytest

import hermes
from hermes.explore.size import size
from hermes.explore.size.bounds import demand_of, equilibrium, fewest_clients
from hermes.scenario import load_scenario

BLOCK = 16


def spec(output: int, in_flight: int, clients: int = 1) -> dict:
    """About so many answers in flight at each client, at 8 ms a token."""
    rate = clients * in_flight / (output * 0.008)
    longest = output * 0.008 * 8
    return {"workload": {"requests": max(1000, int(rate * longest)), "arrivals": {"kind": "poisson", "rate": rate},
                         "lengths": {"kind": "fixed", "prompt": 200, "output": output}},
            "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "count": clients}], "slo": {"tpot": "1 s"}}


@pytest.mark.drawn
@pytest.mark.parametrize(("output", "in_flight"), [(50, 20), (500, 30), (4000, 30), (20_000, 6)])
def test_in_flight_is_rate_times_latency(output: int, in_flight: int) -> None:
    """Of the steady state: requests in the system = rate x E2E, tokens of KV = rate x the time integral of a context;
    both as the closed form says from the price of one step."""
    scenario = spec(output, in_flight)
    results = hermes.simulate(scenario)
    summary, demand = results.summary, demand_of(load_scenario(scenario))
    assert summary["settling"]["settled"], summary["settling"]
    assert demand is not None
    state = equilibrium(demand, 1)
    assert state is not None
    start, end = (summary["headline"][name] for name in ("start_s", "until_s"))
    frame = results.requests
    stay = (frame.finish_s.clip(start, end) - frame.arrival_s.clip(start, end)).sum()
    held = stay / (end - start)
    mine = frame[(frame.arrival_s > start) & (frame.arrival_s <= end)]
    assert held == pytest.approx(summary["headline"]["offered_per_s"] * mine.e2e_s.mean(), rel=0.06)
    assert 0.85 * held < state.batch < 1.02 * held        # a lower bound: steps with prompts take longer
    assert 0.85 < state.token_s / mine.tpot_s.mean() < 1.02
    runs = results.runs
    inside = runs[(runs.start_s >= start) & (runs.end_s <= end)]
    blocks = (inside.used_blocks * (inside.end_s - inside.start_s)).sum() / (inside.end_s - inside.start_s).sum()
    assert blocks * BLOCK == pytest.approx(held * (demand.context + BLOCK / 2), rel=0.1)


@pytest.mark.thorough
def test_size_answers_no_less_than_bandwidth_and_littles_law_allow() -> None:
    """By hand: B = rate x output x step in flight at an engine, and a step reads the weights and B contexts once.

    One L40S: B = 6750 (16.1 GB + B x 800 x 131,072 bytes) / 864 GB/s, so B = 694: 73 GB of KV on a card of 48 GB.
    """
    scenario = {
        "workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 4.5},
                     "lengths": {"kind": "fixed", "prompt": 50, "output": 1500}},
        "clients": [{"model": "llama-3.1-8b", "device": "l40s"}], "slo": {"ttft": "1 s", "tpot": "60 ms"}}
    weights, a_token, bandwidth, rate, output, context = 16.06e9, 131_072, 864e9, 4.5, 1500, 50 + 1500 / 2
    for_weights, for_kv = (rate * output * read / bandwidth for read in (weights, a_token * context))
    in_flight = for_weights / (1 - for_kv)
    assert in_flight * context * a_token > 1.5 * 48e9
    found = size(scenario, devices=["l40s"], tps=[1], layouts=["mixed"], max_devices=8, workers=0)
    assert found.ranked[0].devices >= 2


def test_the_bound_counts_long_answers_by_their_length() -> None:
    """The mean context in flight is E[a (p + a / 2)] / E[a], not p + E[a] / 2."""
    scenario = spec(500, 10)
    scenario["workload"]["lengths"] = {"kind": "independent", "prompt": 100,
                                       "output": {"kind": "uniform", "min": 100, "max": 1900}}
    demand = demand_of(load_scenario(scenario))
    assert demand is not None
    mean, square = 1000.0, 1000.0**2 + 1800.0**2 / 12
    assert demand.context == pytest.approx(100 + square / mean / 2, rel=0.03)


def test_kv_decides_where_answers_are_long() -> None:
    """By hand: 5/s x 4,835 tokens x 27 ms = 650 in flight x a context of 4,000 tokens: more KV than of six engines."""
    scenario = {
        "workload": {"requests": 4000, "arrivals": {"kind": "poisson", "rate": 5},
                     "lengths": {"kind": "independent", "prompt": 35,
                                 "output": {"kind": "lognormal", "median": 3900, "sigma": 0.7, "max": 20_000}}},
        "clients": [{"model": "qwen3-32b", "device": "h100-sxm", "parallel": {"tp": 2}}],
        "slo": {"ttft": "2 s", "tpot": "40 ms"}}
    demand = demand_of(load_scenario(scenario))
    assert demand is not None
    assert equilibrium(demand, 6) is None
    found = fewest_clients(demand)
    assert found is not None
    clients, state = found
    assert clients > 6
    assert demand.kv_tokens is not None
    assert state.batch * demand.context <= demand.kv_tokens
    by_hand = demand.rate * demand.output * state.token_s * demand.context / demand.kv_tokens
    assert clients >= by_hand
