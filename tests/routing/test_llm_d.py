"""llm-d's router: tables of its own tests, derived again from its rules, and choices by hand.

Named after the tests of https://github.com/llm-d/llm-d-router (pkg/epp/framework/plugins).
"""

from __future__ import annotations

from typing import Any

import pytest
from each import each
from pods import BLOCKS, Pod, Pool, text

from hermes import simulate
from hermes.core.engine_readings import Adapters
from hermes.errors import InputError
from hermes.routing.llm_d import LlmDConfig
from hermes.routing.prefixes import Prompts, SentPrefixes
from hermes.scenario import load_scenario
from hermes.scenario.build import build

ONLY = {"queue": 0, "kv": 0, "prefix": 0}


def pool(pods: int | list[Pod], **config: Any) -> Pool:
    scorers = config.pop("scorers", None)
    return Pool(pods, "llm_d", view="exact", **({} if scorers is None else {"scorers": ONLY | scorers}), **config)


def scores(made: Pool, **keys: Any) -> list[float]:
    router, stage = made.router, made.stage(**keys)
    found = router.scores(stage, router.held(stage), router._all)
    return [round(score, 9) for score in found.tolist()]


# -- tables of the project ------------------------------------------------------------


@each("queues, expected", [   # TestQueueScorer: "Different queue sizes", "Same queue sizes", "Zero queue sizes"
    ([10, 5, 0], [0, 0.5, 1]), ([5, 5], [1, 1]), ([0, 0], [1, 1]),
])
def test_queue_scorer(queues: list[int], expected: list[float]) -> None:
    assert scores(pool([Pod(i, waiting=q) for i, q in enumerate(queues)], scorers={"queue": 1})) == expected


def test_load_based_scorer() -> None:   # TestLoadBasedScorer
    pods = [Pod(i, waiting=q) for i, q in enumerate([2, 0, 15])]
    assert scores(pool(pods, scorers={"load_aware": 1}, load_threshold=10)) == [0.4, 0.5, 0]
    assert scores(pool(pods, scorers={"load_aware": 1})) == [round(0.5 * (1 - q / 128), 9) for q in (2, 0, 15)]


@each("running, waiting, most, expected", [   # TestLoraAffinityScorer, adapter 1
    ({1}, set(), 5, 1.0), ({2}, {1}, 2, 0.6), ({2}, {3}, 2, 0.0), (set(), set(), 0, 0.0),
    ({2, 4, 5, 6}, {1}, 6, 0.8), ({2}, set(), 2, 0.8), ({3}, {1}, 2, 0.6), ({4, 5}, set(), 2, 0.0),
    ({4}, set(), None, 0.8),
])
def test_lora_affinity_scorer(running: set[int], waiting: set[int], most: int | None, expected: float) -> None:
    pods = [Pod(0, adapters=Adapters(running, waiting, most))]
    assert scores(pool(pods, scorers={"lora_affinity": 1}), adapter=1) == [expected]


def test_prefix_plugin_completion() -> None:   # TestPrefixPluginCompletion: blocks of 4, a decode and a prefill pod
    cut, index = Prompts(4, partial=True), SentPrefixes([None] * 3, lambda: 0)
    made = pool(3)
    first, third = (cut.hashed(made.stage(text(words))) for words in ("aaaaaa", "aaaabbbb"))
    assert first.blocks == 2, "aaaa, and the partial block aa"
    index.sent(0, first)
    index.sent(2, first)
    assert third.blocks == 2
    assert index.matches_with_gaps(third) == {0: 1, 2: 1}


def test_prefix_plugin_score() -> None:   # TestPrefixPluginScore: 5 and 2 of 10 blocks
    made, words = pool(2, scorers={"prefix": 1}), list(range(640))
    for place, blocks in ((0, 5), (1, 2)):
        made.router.prefixes.sent(place, made.router.prompts.hashed(made.stage(text(words[:64 * blocks]))))
    assert scores(made, content=text(words)) == [0.5, 0.2]


def test_indexer_add_and_get() -> None:   # TestIndexer_AddAndGet: a server of two blocks
    made, index = pool(1), SentPrefixes([2], lambda: 0)
    hashed = [Prompts(1).hashed(made.stage(text([number]))) for number in (1, 2, 3, 4)]
    for prompt, size in zip(hashed[:3], (1, 2, 2), strict=True):
        index.sent(0, prompt)
        assert index.blocks(0) == size
    assert [index.matches(prompt) for prompt in hashed] == [{}, {0: 1}, {0: 1}, {}]


def test_pick_max_score_picker() -> None:   # TestPickMaxScorePicker: "Single max score", "Multiple max scores"
    single = pool([Pod(i, waiting=q) for i, q in enumerate([15, 0, 10])], scorers={"queue": 1})
    assert {single.send() for _ in range(20)} == {1}
    several = pool([Pod(i, waiting=q) for i, q in enumerate([0, 0, 20])], scorers={"queue": 1})
    counts = [[several.send() for _ in range(400)].count(i) for i in range(3)]
    assert counts[2] == 0
    assert abs(counts[0] - 200) < 50


def in_flight(made: Pool, *counts: int) -> None:
    """Set the router's requests in flight at each pod."""
    made.router._active._decode.in_flight[:] = counts


@each("counts, config, expected", [   # TestActiveRequestScorer_Score, TestActiveRequest_IdleThresholdAndMaxBusyScore
    ([0, 0, 0], {}, [1, 1, 1]), ([3, 0, 6], {}, [0.5, 1, 0]), ([4, 0, 1], {}, [0, 1, 0.75]),
    ([1, 0], {"busy_score": 0}, [0, 1]), ([1, 2, 0], {"idle_requests": 1, "busy_score": 0.5}, [1, 0, 1]),
    ([3, 11], {}, [round(8 / 11, 9), 0]),   # TestActiveRequest_DefaultParamsProduceContinuousScores
])
def test_active_request_scorer(counts: list[int], config: dict[str, Any], expected: list[float]) -> None:
    made = pool(len(counts), scorers={"active_request": 1}, **config)
    in_flight(made, *counts)
    assert scores(made) == expected


def test_active_request_scorer_uses_the_load_of_a_request() -> None:   # ..._UsesInFlightLoadProducerLifecycle
    made = pool(2, scorers={"active_request": 1})
    stage = made.stage()
    pod = made.router.choose(stage)
    assert scores(made) == [float(pod.index != index) for index in (0, 1)]
    made.router.observe("done", pod, stage)
    assert scores(made) == [1, 1]


def test_no_hit_lru_scorer() -> None:   # TestNoHitLRUScorer, TestNoHitLRUPreferLeastRecentlyUsedAfterColdRequests
    made = pool(3, scorers={"no_hit_lru": 1})
    assert scores(made) == [1, 0.5, 0], "none has had a cold prompt"
    assert scores(pool(1, scorers={"no_hit_lru": 1})) == [1]
    assert made.send(text([1] * 64)) == 0
    assert scores(made, content=text([2] * 64)) == [0, 1, 0.5], "the used one last, the others in their order"
    assert scores(made, content=text([1] * 64)) == [0.5] * 3, "pod 0 holds it"
    made.send(text([1] * 64))
    assert scores(made, content=text([2] * 64)) == [0, 1, 0.5], "a warm prompt leaves the order"
    assert [made.send(text([number] * 64)) for number in (3, 4, 5)] == [1, 2, 0], "and then the longest unused"


def test_no_hit_lru_of_both_phases() -> None:   # TestNoHitLRUPrefillDecodeTracking
    pods = [Pod(0, role="prefill"), Pod(1, role="prefill"), Pod(2), Pod(3)]
    made = pool(pods, scorers={"no_hit_lru": 1}, disaggregation={"always": True})
    for number, (prefill, decode) in enumerate([(0, 2), (1, 3), (0, 2)]):
        stage = made.stage(text([number] * 64))
        assert (made.router.choose(stage).index, stage.decode_on.index) == (prefill, decode)   # type: ignore[attr-defined]


def test_random_pickers() -> None:   # TestPickWeightedRandomPicker: in proportion to the scores; never a score of 0
    pods = [Pod(i, waiting=q) for i, q in enumerate([0, 15, 20])]   # queue: 1, 0.25, 0
    weighted = pool(pods, scorers={"queue": 1}, picker="weighted_random")
    counts = [[weighted.send() for _ in range(1000)].count(i) for i in range(3)]
    assert counts[2] == 0
    assert abs(counts[0] - 800) < 50
    uniform = pool(pods, scorers={"queue": 1}, picker="random")
    assert all(abs([uniform.send() for _ in range(900)].count(i) - 300) < 60 for i in range(3))
    nothing = pool(2, scorers={"prefix": 1}, picker="weighted_random")
    assert {nothing.send() for _ in range(20)} == {0, 1}, "all scores are 0: any"


# -- by hand ------------------------------------------------------------


@pytest.mark.feature("Routing and networks", (
    "Routers that know prefixes: `llm_d`, `dynamo_kv`, `sglang_cache_aware`, `aibrix_prefix`, "
    "`production_stack`"))
def test_the_highest_weighted_sum_wins() -> None:
    """Queue 2, KV 2, prefix 3: (2 x 1 + 2 x 0.5, 2 x 0 + 2 x 0.9 + 3 x share of the prompt)."""
    pods = [Pod(0, waiting=0, use=0.5), Pod(1, waiting=4, use=0.1)]
    made, words = pool(pods), list(range(640))
    assert scores(made, content=text(words)) == [3.0, 1.8]
    made.router.prefixes.sent(1, made.router.prompts.hashed(made.stage(text(words[:320]))))
    assert scores(made, content=text(words)) == [3.0, 1.8 + 1.5]
    assert made.send(text(words)) == 1
    assert made.believed == [320]
    made.members(0)
    assert scores(made, content=text(words)) == [3.0], "one of one: its queue is the shortest"
    assert made.send(text(words)) == 0


@each("engine, block", [(16, 64), (128, 128)])
def test_a_block_has_at_least_64_tokens(engine: int, block: int) -> None:
    pod = Pod(0)
    pod.view = lambda: Pod.view(pod)._replace(block_tokens=engine)   # type: ignore[method-assign]
    assert pool([pod]).router.prompts.block_tokens == block


def test_the_index_of_sent_prompts_has_limits() -> None:
    made = pool(1, prefix_index={"most_tokens": 192, "block": 96, "capacity": 3})
    assert made.router.prompts.hashed(made.stage(text([1] * 400))).blocks == 2, "192 / 96"
    for number in range(4):
        made.send(text([number] * 96))
    assert made.router.prefixes.blocks(0) == 3
    every = pool(1, prefix_index={"most_tokens": None})
    assert every.router.prompts.hashed(every.stage(tokens=640_000)).blocks == 10_000


def test_precise_blocks_need_not_be_the_engines() -> None:
    made = pool([Pod(0, cached=100), Pod(1, cached=40)], caches="exact", precise_block=32,
                scorers={"precise_prefix": 1})
    assert scores(made, content=text([1] * 128)) == [0.75, 0.25], "3 and 1 of 4 blocks of 32"


def test_sessions_by_the_callers_token() -> None:
    """llm-d's default: a new session has no preference, and one goes to the client of its latest request, always."""
    made = pool(3, scorers={"session": 1}, session_algorithm="encoded_endpoint_header")
    homes = [made.send(session=number) for number in range(40)]
    assert set(homes) == {0, 1, 2}
    assert scores(made, session=99) == [0, 0, 0]
    made.now_ns = 10**15
    assert [made.send(session=number) for number in range(40)] == homes, "a token does not expire"
    made.members(1, 2)
    away = homes.index(0)
    moved = made.send(session=away)
    made.members(0, 1, 2)
    assert made.send(session=away) == moved, "bound to the client of the latest request"


def test_a_pinned_session_stays_whatever_the_scores() -> None:
    """llm-d's session-affinity-filter: the client of the latest request alone; a new session is scored."""
    pods = [Pod(0), Pod(1, waiting=1)]
    made = pool(pods, scorers={"queue": 1}, session_pins=["decode"])
    assert made.send(session=7) == 0
    pods[0].waiting = 9
    assert [made.send(session=7), made.send(session=8), made.send()] == [0, 1, 1]
    made.members(1)
    assert made.send(session=7) == 1
    made.members(0, 1)
    pods[0].waiting = 0
    assert made.send(session=7) == 1, "it follows the client of its latest request"
    made.now_ns = 301 * 10**9
    assert made.send(session=7) == 0, "session_id: forgotten after 300 s"


def test_both_phases_of_a_session_are_pinned() -> None:
    pods = [Pod(0, role="prefill"), Pod(1, role="prefill"), Pod(2), Pod(3)]
    made = pool(pods, picker="random", disaggregation={"always": True}, session_pins=["prefill", "decode"])
    places = set()
    for session in (1, 2, 3, 1, 2, 3, 1, 2, 3):
        stage = made.stage(text([1] * 64), session=session)
        places.add((session, made.router.choose(stage).index, stage.decode_on.index))   # type: ignore[attr-defined]
    assert len(places) == 3


def test_every_prompt_is_computed_elsewhere_with_other_weights() -> None:
    """Decode by the queue, prefill by the KV in use."""
    pods = [Pod(0, role="prefill", use=0.9), Pod(1, role="prefill", waiting=9), Pod(2, waiting=5), Pod(3)]
    weights = {"queue": 0, "kv": 1, "prefix": 0}
    made = pool(pods, scorers={"queue": 1}, disaggregation={"uncached": 0, "always": True, "prefill": weights})
    stage = made.stage(text([1] * 64))
    assert made.router.choose(stage).index == 1
    assert stage.decode_on is pods[3]


def test_it_believes_up_to_four_times_the_real_cache() -> None:
    made = pool(1)
    for number in range(3 * BLOCKS):
        made.send(tokens=64, content=text([number] * 64))
    assert made.router.prefixes.blocks(0) == BLOCKS, "entries of 64 tokens, as many as the GPU has blocks of 16"


def test_blocks_count_up_to_the_first_that_no_client_holds() -> None:
    """A client that has lost the first block still scores, as long as another holds it."""
    made, words = pool(2, scorers={"prefix": 1}), list(range(192))
    whole, head = (made.router.prompts.hashed(made.stage(text(words[:n]))) for n in (192, 64))
    made.router.prefixes.sent(0, whole)
    held = made.router.prefixes._held[0]
    made.router.prefixes._shrink(held, 0, 1)
    assert scores(made, content=text(words)) == [0, 0], "nobody holds the first block"
    made.router.prefixes.sent(1, head)
    assert scores(made, content=text(words)) == [round(2 / 3, 9), round(1 / 3, 9)]


def test_an_engine_that_restarts_between_two_sweeps_keeps_its_believed_cache() -> None:
    made, words = pool(2, scorers={"prefix": 1}), list(range(64))
    second = 10**9
    first = made.send(text(words))
    made.now_ns = 30 * second
    made.members(1 - first)
    made.now_ns = 90 * second
    made.members(0, 1)
    assert made.send(text(words)) == first, "back before the sweep at 120 s"
    made.now_ns = 200 * second
    made.members(1 - first)
    made.now_ns = 250 * second
    made.members(0, 1)
    assert scores(made, content=text(words)) == [0, 0], "swept at 240 s"


def test_sessions_are_bound_for_300_s_and_move_when_their_client_leaves() -> None:
    made = pool(3, scorers={"session": 1})
    second = 10**9
    homes = [made.send(session=number) for number in range(3)]
    assert homes == [0, 1, 2], "each to the client with the fewest sessions"
    assert [made.send(session=number) for number in (2, 0, 1)] == [2, 0, 1]
    assert {made.send() for _ in range(30)} == {0, 1, 2}, "no session: the scorer abstains, ties at random"
    made.members(0, 2)
    assert made.send(session=1) == 0
    made.members(0, 1, 2)
    assert made.send(session=1) == 0, "bound anew"
    assert made.router._sessions._counts == [2, 0, 1]
    made.now_ns = 301 * second
    assert made.send(session=1) == 0
    assert made.router._sessions._counts == [1, 0, 0], "all bindings had expired"


@each("uncached, prompt, cached, tokens, elsewhere", [
    (16, 0, 0, 640, True), (0, 0, 0, 640, False), (16, 0, 640, 640, False), (16, 0, 640, 655, False),
    (16, 0, 640, 656, True), (16, 1000, 0, 640, False), (641, 0, 0, 640, False),
])
def test_decode_first_and_prefill_elsewhere_for_uncached_prompts(
        uncached: int, prompt: int, cached: int, tokens: int, *, elsewhere: bool) -> None:
    pods = [Pod(0, role="prefill"), Pod(1, role="prefill", waiting=3), Pod(2), Pod(3, waiting=9)]
    made = pool(pods, disaggregation={"uncached": uncached, "prompt": prompt})
    words = list(range(700))
    if cached:
        made.router.prefixes.sent(2, made.router.prompts.hashed(made.stage(text(words[:cached]))))
    stage = made.stage(text(words[:tokens]))
    assert made.router.choose(stage).index == (0 if elsewhere else 2)
    assert stage.decode_on is pods[2]
    holding = [place for place in range(4) if made.router.prefixes.blocks(place)]
    assert holding == ([0, 2] if elsewhere else [2]), "entries for both clients"


def test_decode_clients_that_cannot_prefill_and_generations_that_go_on() -> None:
    pods = [Pod(0, role="prefill"), Pod(1, role="decode"), Pod(2, role="decode", waiting=1)]
    made = pool(pods, disaggregation={"uncached": 0})
    stage = made.stage(text([1] * 20))
    assert made.router.choose(stage).index == 0
    assert stage.decode_on is pods[1]
    stage.source = pods[0]   # type: ignore[assignment]
    made.members(0, 2)
    assert made.router.choose(stage).index == 2
    made.members(0)
    assert made.send() == 0


def test_draws_ahead_are_dropped_when_the_members_change() -> None:
    first, second = pool(4), pool(4)
    assert [first.send() for _ in range(20)] == [second.send() for _ in range(20)]
    second.router.changed(second.pods)
    assert not second.router._draws._ahead
    assert [first.send() for _ in range(20)] != [second.send() for _ in range(20)]


# -- in simulations ------------------------------------------------------------


def scenario(**keys: Any) -> dict[str, Any]:
    return {
        "workload": {"requests": 120, "arrivals": {"kind": "poisson", "rate": 60},
                     "prefixes": {"groups": 5, "tokens": 512},
                     "lengths": {"kind": "fixed", "prompt": 640, "output": 16}},
        "clients": [{"name": "llm", "count": 3, "model": "llama-3.1-8b", "device": "h100-sxm"}],
        "router": {"kind": "llm_d"} | keys.pop("router", {})} | keys


def test_prefill_and_decode_clients_are_placed_together() -> None:
    clients = [{"name": "p", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm", "role": "prefill"},
               {"name": "d", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm"}]
    network = {"kind": "link", "bandwidth": "50 GB/s"}
    stages = simulate(scenario(router={"disaggregation": {"uncached": 16}}, clients=clients, network=network)).stages
    assert set(stages["kind"]) == {"prefill", "decode"}
    assert set(stages.loc[stages["kind"] == "decode", "client"].str[0]) == {"d"}
    assert set(stages.loc[stages["kind"] == "prefill", "client"].str[0]) == {"p"}
    never = simulate(scenario(router={"disaggregation": {"uncached": 0}}, clients=clients, network=network)).stages
    assert set(never["client"].str[0]) == {"d"}
    assert set(never["kind"]) == {"generate"}


def test_requests_in_flight_spread_over_the_clients_of_both_phases() -> None:
    """By the router's own books: prefill until the KV has left, decode until the end."""
    clients = [{"name": "p", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm", "role": "prefill"},
               {"name": "d", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm"}]
    router = {"scorers": ONLY | {"active_request": 1}, "disaggregation": {"uncached": 0, "always": True}}
    results = simulate(scenario(router=router, clients=clients, network={"kind": "link", "bandwidth": "50 GB/s"}))
    assert (results.record.status == 1).all()
    stages = results.stages
    assert set(stages["kind"]) == {"prefill", "decode"}
    for kind in ("prefill", "decode"):
        counts = stages.loc[stages["kind"] == kind, "client"].astype(str).value_counts()
        assert len(counts) == 2
        assert counts.min() > 40, "of 120"


def test_pins_hold_in_a_simulation() -> None:
    made = scenario(router={"session_pins": ["decode"], "picker": "random"})
    made["workload"] |= {"sessions": {"count": 9}}
    results = simulate(made)
    places = {(session, client) for session, client in zip(
        results.record.session[results.stages["request"]].tolist(), results.stages["client"], strict=True)}
    assert len(places) == 9 < len({client for _, client in places}) * 9


def test_fleets_change_its_members_of_both_phases() -> None:
    fleet = {"start": 1, "start_up": {"total": 0.2}, "autoscaler": {
        "kind": "schedule", "changes": [{"at": 0.5, "replicas": 2}, {"at": 1.5, "replicas": 1}]}}
    engine = {"model": "llama-3.1-8b", "device": "h100-sxm", "count": 2, "fleet": fleet}
    made = scenario(router={"disaggregation": {}, "scorers": {"prefix": 0, "kv": 0}},   # equal queues: at random
                    clients=[{"name": "p", "role": "prefill", **engine}, {"name": "d", **engine}],
                    network={"kind": "link", "bandwidth": "50 GB/s"})
    results = simulate(made)
    assert (results.record.status == 1).all()
    assert set(results.stages["client"]) == {"p-0", "p-1", "d-0", "d-1"}


@each("router, words", [
    ({"scorers": {"queue": 0, "kv": 0, "prefix": 0}}, "router.scorers: all weights are 0"),
    ({"scorers": {"queues": 1}}, "did you mean 'queue'"), ({"view": "own"}, "router.view"),
    ({"disaggregation": {"uncached": -1}}, "router.disaggregation.uncached"),
])
def test_mistakes_are_refused_by_name(router: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        build(load_scenario(scenario(router=router)))
    assert words in str(caught.value)


def test_services_have_no_metrics_of_engines() -> None:
    service = {"kind": "processing", "name": "m", "cores": 1, "serves": {"a": {"kind": "per_item", "per_token": 0.001}}}
    made = scenario(pipelines={"g": {"stages": {"a": {"kind": "a"}}}}, clients=[service])
    made["workload"]["pipeline"] = "g"
    with pytest.raises(InputError, match="m is no LLM engine and cannot be scraped"):
        build(load_scenario(made))
    assert LlmDConfig().places_both_phases is False
