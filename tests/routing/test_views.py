"""Routers that see their candidates as last scraped: by hand, against exact values, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes import simulate
from hermes.clients.scrapes import ClientScraper
from hermes.core.router import RouterContext
from hermes.core.scraped import Sample, scrape
from hermes.errors import InputError
from hermes.results.results import Results
from hermes.routing.load import LeastLoadedConfig
from hermes.routing.views import SCRAPED_LOADS, ScrapedLoads, ScrapedView
from hermes.scenario import load_scenario
from hermes.scenario.build import build

CLIENT: dict[str, Any] = {
    "name": "llm", "count": 3, "memory": {"num_blocks": 80},
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}


def scenario(load: str = "requests", period: float | None = 0.05, *, rate: float = 60.0, requests: int = 120,
             **keys: Any) -> dict[str, Any]:
    view = {} if period is None else {"view": {"kind": "scraped", "period": period}}
    client = CLIENT | keys.pop("client", {})
    return {
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 32}},
        "clients": [client], "router": {"kind": "least_loaded", "load": load, **view}} | keys


def chosen(results: Results) -> list[int]:
    stages = results.record.stages
    order = np.argsort(stages["request"], kind="stable")
    return stages["client"][order].tolist()


def test_all_requests_between_two_scrapes_go_to_one_client() -> None:
    """With a period longer than the run no client is scraped a second time: ties go to the first."""
    assert set(chosen(simulate(scenario(period=1000.0)))) == {0}
    assert set(chosen(simulate(scenario(period=None)))) == {0, 1, 2}


@each("load", SCRAPED_LOADS)
def test_a_choice_is_the_least_of_the_last_samples(load: str) -> None:
    """At each arrival the choice is compared with samples that are read one by one, at the same offsets."""
    simulation = build(load_scenario(scenario(load, 0.04)))
    router = next(iter(simulation.coordinator.routers.values()))
    clients = simulation.clients
    beside = [scrape(client, 0, "router", 0.04) for client in clients]
    choose, seen = router.choose, []

    def checked(stage: Any) -> Any:
        samples = [scraper.read() for scraper in beside]
        values = [0.0 if sample is None else value_of(load, sample) for sample in samples]
        client = choose(stage)
        assert client is clients[values.index(min(values))]
        seen.append(max(values))
        return client

    router.choose = checked
    simulation.run()
    assert len(seen) == 120
    assert max(seen) > 0


def value_of(load: str, sample: Sample) -> float:
    by_hand = {"requests": sample.waiting + sample.running, "kv_tokens": sample.kv_use * 80 * 16}
    return by_hand[load] if load in by_hand else getattr(sample, load)


@quick_and_full(6, 100, thorough=400, derandomize=True)
@given(data=st.data())
def test_runs_choose_as_single_steps_do(data: st.DataObject) -> None:
    made = scenario(
        data.draw(st.sampled_from(SCRAPED_LOADS)), data.draw(st.sampled_from([0.003, 0.05, 0.4])),
        rate=data.draw(st.sampled_from([10.0, 60.0, 300.0])), requests=60, seed=data.draw(st.integers(0, 5)),
        client={"count": data.draw(st.integers(1, 40)), "memory": {"num_blocks": data.draw(st.sampled_from([20, 80]))},
                "scheduler": data.draw(st.sampled_from([
                    {"kind": "chunked", "max_num_seqs": 3}, {"kind": "static", "max_num_seqs": 4},
                    {"kind": "continuous"}, {"kind": "mixed"}, {"kind": "sglang"}]))})
    first, second = (simulate(made | {"stepping": stepping}).record for stepping in ("runs", "every_step"))
    assert np.array_equal(first.stages["client"], second.stages["client"])
    assert np.array_equal(first.finish_ns, second.finish_ns)


def test_a_client_is_asked_only_when_a_scrape_may_have_changed_it() -> None:
    """Idle clients are not asked again: far fewer refreshes than clients times requests."""
    simulation = build(load_scenario(scenario(
        "requests", 0.01, rate=2.0, requests=50, client={"count": 40})))
    asked = 0
    refresh = ClientScraper.refresh

    def counted(self: ClientScraper) -> int:
        nonlocal asked
        asked += 1
        return refresh(self)

    ClientScraper.refresh = counted  # type: ignore[method-assign]
    try:
        simulation.run()
    finally:
        ClientScraper.refresh = refresh  # type: ignore[method-assign]
    assert 40 <= asked < 40 + 50 * 6   # of 2,000


def test_a_new_replica_counts_as_empty_until_it_is_scraped() -> None:
    fleet = {"start": 1, "start_up": {"total": 0.2}, "autoscaler": {
        "kind": "schedule", "changes": [{"at": 0.5, "replicas": 3}, {"at": 1.0, "replicas": 1},
                                        {"at": 1.4, "replicas": 2}]}}
    made = scenario("requests", 0.05, requests=200, client={"fleet": fleet})
    first, second = (simulate(made | {"stepping": stepping}).record for stepping in ("runs", "every_step"))
    assert (first.status == 1).all()
    assert set(first.stages["client"].tolist()) == {0, 1, 2}
    assert np.array_equal(first.stages["client"], second.stages["client"])


@each("router, words", [
    ({"load": "tokens_left"}, "router.load: a scrape does not show tokens_left; take waiting"),
    ({"load": "input_tokens"}, "router.load: a scrape does not show input_tokens"),
    ({}, "router.load: a scrape does not show tokens_left"),
    ({"load": "requests", "view": {"kind": "scraped", "period": 0}}, "router.view.period: expected a number greater"),
    ({"load": "requests", "view": {"kind": "scrapped"}}, "did you mean 'scraped'"),
    ({"load": "requests", "view": "events"}, "router.view: expected 'exact' or 'own' or a mapping"),
    ({"load": "kv_use", "view": "exact"}, "router.load: kv_use needs `view: {kind: scraped}`"),
])
def test_what_a_scrape_does_not_show_is_refused_by_name(router: dict[str, Any], words: str) -> None:
    made = scenario()
    made["router"] = {"kind": "least_loaded", "view": {"kind": "scraped"}} | router
    with pytest.raises(InputError) as caught:
        load_scenario(made)
    assert words in str(caught.value)


def test_clients_that_are_no_engines_are_refused_by_name() -> None:
    class Service:
        index, name = 0, "cpu"

    config = LeastLoadedConfig(load="requests", view=ScrapedView())
    with pytest.raises(InputError, match="cpu is no LLM engine"):
        config.build(RouterContext([Service()], np.random.default_rng(0)))   # type: ignore[list-item]
    with pytest.raises(InputError, match="does not show input_tokens"):
        ScrapedLoads(RouterContext([], np.random.default_rng(0)), "input_tokens", ScrapedView())
