"""Dynamo's planner: its own cases, a decision of each target by hand, and simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each

from hermes import simulate
from hermes.config import validate
from hermes.core.record import DRAINING, READY, STARTING
from hermes.core.scraped import EngineLimits, EngineState, ForwardPass
from hermes.errors import InputError
from hermes.fleet.autoscalers import Traffic
from hermes.fleet.dynamo_models import AggModel, Constant, DecodeModel, Kalman, MovingAverage, PrefillModel, Regression
from hermes.fleet.dynamo_planner import DynamoPlanner, Planner
from hermes.fleet.dynamo_rules import (
    Sla,
    agg_load,
    budgeted,
    budgeted_pair,
    by_threshold,
    decode_load,
    guarded_pair,
    prefill_load,
    uses,
)
from hermes.results.results import Results
from hermes.testing.fleet import AutoscalerContract

S = 1_000_000_000
CONTEXT, KV = 4096, 100_000


def engine(prefill: int = 0, decode: int = 0, queued: int = 0, queued_kv: int = 0, seqs: int = 1,
           seconds: float = 0.01) -> EngineState:
    return EngineState(ForwardPass(round(seconds * S), 1 if prefill else 0, prefill, seqs if decode else 0, decode),
                       queued, queued_kv)


# -- Dynamo's own cases: tests/unit/test_easy_scaling.py --------------------------------------------------------------


@pytest.mark.feature("Plug-ins of research", "Autoscaler `dynamo_planner`")
@each("name, role, target, engines, expected", [
    ("TestPrefillThroughputEasy.scale_up_at_context_length", "prefill", "throughput", [engine(queued=CONTEXT)], 2),
    ("TestPrefillThroughputEasy.no_change_between_thresholds", "prefill", "throughput",
     [engine(queued=CONTEXT // 2)] * 2, None),
    ("TestPrefillThroughputEasy.scale_down_below_tenth", "prefill", "throughput", [engine(queued=CONTEXT // 20)] * 2,
     1),
    ("TestPrefillThroughputEasy.no_scale_down_at_min", "prefill", "throughput", [engine()], None),
    ("TestPrefillLatencyEasy.scale_up_at_tenth", "prefill", "latency", [engine(queued=CONTEXT // 10 + 1)], 2),
    ("TestPrefillLatencyEasy.scale_down_at_zero", "prefill", "latency", [engine()] * 2, 1),
    ("TestPrefillLatencyEasy.no_scale_down_with_any_queued", "prefill", "latency", [engine(queued=10)] * 2, None),
    ("TestDecodeThroughputEasy.scale_up_above_100_pct", "decode", "throughput",
     [engine(decode=80_000, queued_kv=30_000)], 2),
    ("TestDecodeThroughputEasy.scale_down_below_60_pct", "decode", "throughput", [engine(decode=40_000)] * 2, 1),
    ("TestDecodeThroughputEasy.no_change_between_thresholds", "decode", "throughput", [engine(decode=70_000)] * 2,
     None),
    ("TestDecodeLatencyEasy.scale_up_above_40_pct", "decode", "latency", [engine(decode=45_000)], 2),
    ("TestDecodeLatencyEasy.scale_down_below_10_pct", "decode", "latency", [engine(decode=5_000)] * 2, 1),
    ("TestAnyUpAllDown.any_engine_above_triggers_scale_up", "decode", "throughput",
     [engine(decode=50_000), engine(decode=80_000, queued_kv=30_000)], 3),
    ("TestAnyUpAllDown.mixed_no_scale_down", "decode", "throughput", [engine(decode=20_000), engine(decode=70_000)],
     None),
    ("TestAnyUpAllDown.all_below_triggers_scale_down", "decode", "throughput",
     [engine(decode=20_000), engine(decode=30_000)], 1),
    ("agg counts the queue's prompts too", "both", "throughput", [engine(decode=80_000, queued=30_000)], 2),
    ("exactly full is not above", "decode", "throughput", [engine(decode=100_000)], None),
    ("no engine reports", "decode", "throughput", [], None),
])
def test_cases_of_the_thresholds(name: str, role: str, target: str, engines: list[EngineState],
                                 expected: int | None) -> None:
    assert by_threshold(role, target, uses(role, engines, CONTEXT, KV), len(engines), 1) == expected


# -- the regressions: tests/unit/test_load_based_scaling.py -----------------------------------------------------------


def trained_prefill(milliseconds: float = 1.0) -> PrefillModel:
    """Steps of 1 ms a token and 2 ms more."""
    model = PrefillModel(50, 5, 16)
    for tokens in (500, 1000, 1500, 2000, 2500):
        model.observe(ForwardPass(round((milliseconds * tokens + 2) * 1e6), 1, tokens))
    return model


def trained_decode() -> DecodeModel:
    """Steps of 0.01 ms a token and 1 ms more, sequences of 1000 tokens."""
    model = DecodeModel(50, 5, 16)
    for n in (5, 10, 20, 30, 40):
        model.observe(ForwardPass(round((0.01 * 1000 * n + 1) * 1e6), 0, 0, n, 1000 * n))
    return model


def test_basic_regression_and_ttft_estimate() -> None:
    """By hand: the mean prompt has 1500 tokens. Alone it takes 1.502 s; behind 3000 tokens two steps of 2048 and one of
    404, so 4.5 s and three times 2 ms."""
    model = trained_prefill()
    assert model.prompt.value == 1500
    assert model.ttft_s(0, 2048) == pytest.approx(1.502)
    assert model.ttft_s(3000, 2048) == pytest.approx(4.506)
    assert PrefillModel(50, 5, 16).ttft_s(0, 2048) is None


def test_heartbeats_are_skipped() -> None:
    model = PrefillModel(50, 3, 16)
    model.observe(ForwardPass(0, 1, 100))
    assert model.regression.num_steps == 0


def test_find_best_engine_prefill_rps() -> None:
    rate, ttft = trained_prefill().rate(1000.0, 8192) or (0.0, 0.0)
    assert (rate, ttft) == (pytest.approx(1 / 1.002), pytest.approx(1.002))
    assert trained_prefill().rate(0.0, 8192) is None
    # in chunks of 400: 2 x 402 ms and 202 ms
    assert (trained_prefill().rate(1000.0, 400) or (0, 0))[1] == pytest.approx(1.006)


def test_find_best_engine_decode_rps_by_hand() -> None:
    """At 1000 tokens n sequences take 10 n + 1 ms: 4 within 50 ms, 4 / (150 x 0.041) requests a second."""
    model = trained_decode()
    assert model.length.value == 1000
    assert model.rate(1000, 150, 0.05, 10**6, 256) == pytest.approx(4 / (150 * 0.041))
    assert model.rate(1000, 150, 0.05, 2500, 256) == pytest.approx(2 / (150 * 0.021))   # 2 fit in memory
    assert model.rate(1000, 150, 0.005, 10**6, 256) == pytest.approx(1 / (150 * 0.011))   # none within the limit
    assert model.rate(0, 150, 0.05, 10**6, 256) is None


def test_avg_decode_length_tracking() -> None:
    model = DecodeModel(50, 3, 16)
    for tokens in (1000, 2000, 3000):
        model.observe(ForwardPass(10**7, 0, 0, 10, tokens))
    assert model.length.value == 200.0


def test_total_capped_at_max_and_the_fullest_bucket_loses_its_oldest() -> None:
    model = Regression(1, 6, 1, 4)
    for tokens in (10, 11, 12, 1000, 1100, 1200, 15):
        model.add((float(tokens),), 0.001 * tokens)
    assert model.num_steps == 6
    kept = sorted(one[0][0] for bucket in model._buckets.values() for one in bucket)
    assert kept == [11, 12, 15, 1000, 1100, 1200]
    for tokens in range(20):
        model.add((float(tokens),), 1.0)
    assert model.num_steps == 6


def test_a_negative_slope_is_not_used_unless_it_counts_as_nothing() -> None:
    falling = Regression(1, 50, 3, 16)
    for tokens in (1, 2, 3):
        falling.add((float(tokens),), 1.0 - 0.1 * tokens)
    assert not falling.ready()
    clipped = Regression(2, 50, 3, 16, clipped=(0,))
    for n, tokens in ((1, 10), (3, 10), (1, 30), (3, 30)):
        clipped.add((float(n), float(tokens)), 0.1 * tokens - 0.01 * n)
    assert clipped.ready()
    assert clipped.seconds(1, 20) == clipped.seconds(3, 20)


def test_averages_skip_leading_zeros() -> None:
    average = MovingAverage(3)
    for value in (0, 0, 6, 0, 3, 0):
        average.add(value)
    assert average.value == 1.0   # of 0, 3, 0


# -- the target `sla`: tests/unit/test_state_machine.py ---------------------------------------------------------------


def test_prefill_scale_up_when_all_above_sla() -> None:
    sla = Sla(ttft_s=2.0)
    model = trained_prefill()
    assert prefill_load(model, [engine(queued=10_000)], 1, 2048, sla) == 2
    assert prefill_load(model, [engine(queued=10_000), engine()], 2, 2048, sla) is None   # the second is within
    assert prefill_load(PrefillModel(50, 5, 16), [engine(queued=10_000)], 1, 2048, sla) is None   # insufficient data


@each("queued, expected", [(100, 1), (200, None)])
def test_a_prefill_worker_is_spared_by_what_queues_add(queued: int, expected: int | None) -> None:
    """A request's own time is 1.502 s of 2 s. After one of two has gone the queue is twice as long, and may add 80% of
    0.498 s: 0.398 s. 200 tokens add 0.2 s; 400 add 0.4 s."""
    assert prefill_load(trained_prefill(), [engine(queued=queued)] * 2, 2, 2048, Sla(ttft_s=2.0)) == expected


def test_no_worker_is_spared_whose_own_time_is_above_the_limit() -> None:
    assert prefill_load(trained_prefill(), [engine()] * 2, 2, 2048, Sla(ttft_s=1.5)) == 3   # all above, too


@each("name, itl_s, kv_tokens, tokens, expected", [
    ("test_post_consolidation_within_sla_permits", 0.1, 100_000, 1_500, 1),       # 1 + 0.01 x (3000 + 1000) = 41 ms
    ("test_post_consolidation_breaches_sla_refuses", 0.1, 100_000, 8_000, None),  # 171 ms of 80
    ("test_post_consolidation_exceeds_max_kv_refuses", 10.0, 100_000, 60_000, None),
    ("TestDecodeLoadScaling.scale_up_when_all_above_sla", 0.1, 100_000, 9_000, 3),   # 101 ms
])
def test_cases_of_decode(name: str, itl_s: float, kv_tokens: int, tokens: int, expected: int | None) -> None:
    assert decode_load(trained_decode(), [engine(decode=tokens)] * 2, 2, kv_tokens, Sla(itl_s=itl_s)) == expected


def test_workers_that_do_both_by_hand() -> None:
    """0.1 ms a prompt token and 0.01 ms a decoding token. A prompt has 100 tokens, a sequence 1000; 66.7 prompt
    tokens a step on average, without the first step of 0."""
    model = AggModel(50, 4, 16)
    for prompt, tokens in ((0, 1000), (100, 1000), (0, 3000), (100, 3000)):
        wall_ns = round((0.1 * prompt + 0.01 * tokens) * 1e6)
        model.observe(ForwardPass(wall_ns, int(prompt > 0), prompt, tokens // 1000, tokens))
    assert (model.prompt.value, model.length.value) == (100, 1000)
    assert model.ttft_s(300, 2048, 1000) == pytest.approx(0.05)
    assert model.itl_s(2000) == pytest.approx(200 / 3 * 0.0001 + 0.03)
    sla = Sla(ttft_s=0.1, itl_s=0.06)

    def asked(*engines: EngineState) -> int | None:
        return agg_load(model, engines, len(engines), 2048, KV, sla)

    assert asked(engine(decode=1000, queued=900)) == 2    # 100 ms + 10 ms
    assert asked(engine(decode=6000)) == 2                # 75 ms an ITL
    assert asked(engine(decode=500), engine(decode=500)) == 1
    assert asked(engine(decode=1600), engine(decode=1600)) is None   # 6.7 ms + 42 ms, of 48, after one has gone
    # n sequences of 100 + 50 tokens with an output of 100 have n prompt tokens a step: 0.1 n + 1.5 n ms
    assert model.rate(100, 100, 2048, 10.0, 0.0161, KV, 256) == pytest.approx(10 / (100 * 0.016))
    assert model.rate(100, 100, 2048, 10.0, 0.0161, KV, 4) == pytest.approx(4 / (100 * 0.0064))


# -- predictors and the budget ----------------------------------------------------------------------------------------


def test_the_constant_predictor() -> None:
    made = Constant()
    assert made.next() == 0
    made.add(7.0)
    assert (made.next(), made.next()) == (7.0, 7.0)


def test_the_kalman_predictor_by_hand() -> None:
    """A level of 10 with a variance of 1000 each: the prediction has a variance of 1000 + 1000 + 1. The gain for 20 is
    2001 / 2011 of the difference, and 1000 / 2011 of it goes to the trend."""
    made = Kalman(1.0, 0.1, 10.0)
    made.add(0.0)
    assert made.next() == 0
    made.add(10.0)
    assert (made.next(), made.next()) == (10.0, 10.0)
    made.add(20.0)
    level, trend = 10 + 10 * 2001 / 2011, 10 * 1000 / 2011
    assert made.next() == pytest.approx(level + trend)
    line = Kalman(1.0, 0.1, 10.0)
    for value in range(10, 400, 10):
        line.add(float(value))
    assert line.next() == pytest.approx(400, abs=1)


@each("workers, devices, budget, expected", [
    ((4, 4), (1, 1), 8, (4, 4)), ((5, 5), (1, 1), 8, (4, 4)), ((2, 10), (1, 1), 8, (1, 7)),
    ((10, 2), (1, 1), 8, (6, 2)), ((4, 4), (2, 4), 16, (2, 3)), ((9, 9), (1, 1), None, (9, 9)),
    ((30, 1), (1, 4), 8, (4, 1)),
])
def test_prefill_and_decode_share_a_budget(workers: tuple[int, int], devices: tuple[int, int], budget: int | None,
                                           expected: tuple[int, int]) -> None:
    """Prefill shrinks by budget / total, rounded down, and leaves one decode worker; decode has what is left."""
    assert budgeted_pair(*workers, devices, budget, 1) == expected


def test_a_single_group_keeps_within_the_budget() -> None:
    assert [budgeted(n, 2, 8, 1) for n in (0, 3, 4, 5)] == [1, 3, 4, 4]
    assert budgeted(9, 2, None, 1) == 9


# -- the planner ------------------------------------------------------------------------------------------------------


class Group:
    """A view of a group without a simulation."""

    def __init__(self, role: str, engines: list[EngineState], wanted: int | None = None, devices: int = 1) -> None:
        self.role, self._engines, self.devices, self.name = role, engines, devices, role
        self.ready, self.wanted = len(engines), len(engines) if wanted is None else wanted
        self.limits = EngineLimits(KV, CONTEXT, 2048, 256)
        self.scaled: list[tuple[int, str]] = []
        self.served = Traffic(0, 0, 0)

    def engines(self) -> list[EngineState]:
        return self._engines

    def traffic(self) -> Traffic:
        return self.served

    def scale(self, workers: int, reason: str) -> None:
        self.scaled.append((workers, reason))


def planner(groups: list[Group], **keys: Any) -> Planner:
    return Planner(validate(DynamoPlanner, {"kind": "dynamo_planner", **keys}), groups)  # type: ignore[arg-type]


@each("rules, kv, decode", [("0c6da1ec", 55_000, [(1, "load loop")]), ("1.6.1", 55_000, []), ("1.6.1", 50_000, []),
                           ("1.6.1", 49_000, [(1, "load loop")])])
def test_a_decision_of_throughput_by_hand(rules: str, kv: int, decode: list[tuple[int, str]]) -> None:
    """A queue of one context, and decode memory of which 55% is used: one prefill worker more, and one decode worker
    less by the older rules. By those of 1.6.1 it stays: the other would have 2 x 55%, and from 100% on ask for it
    again; 2 x 49% is below."""
    groups = [Group("prefill", [engine(queued=CONTEXT)]), Group("decode", [engine(decode=kv)] * 2)]
    planner(groups, rules=rules).tick(load=True, traffic=False)
    assert [group.scaled for group in groups] == [[(2, "load loop")], decode]


def test_a_decision_of_latency_by_hand() -> None:
    """The same group is busy for `latency`: 55% is above 40%."""
    groups = [Group("prefill", [engine(queued=CONTEXT)]), Group("decode", [engine(decode=55_000)] * 2)]
    planner(groups, target="latency").tick(load=True, traffic=False)
    assert [group.scaled for group in groups] == [[(2, "load loop")], [(3, "load loop")]]


@each("prefill, decode", [
    (Group("prefill", [engine(queued=CONTEXT)], wanted=2), Group("decode", [engine()])),
    (Group("prefill", [engine(queued=CONTEXT)]), Group("decode", [engine()], wanted=0)),
])
def test_nothing_is_decided_while_workers_start_or_drain(prefill: Group, decode: Group) -> None:
    """By the older rules; those of 1.6.1 decide for nobody to start more meanwhile, which is the same here."""
    for rules in ("0c6da1ec", "1.6.1"):
        made = planner([prefill, decode], rules=rules)
        for _ in range(3):
            made.tick(load=True, traffic=False)
        assert not prefill.scaled
        assert not decode.scaled


@each("kv, wanted", [
    (5_000, 1),     # all below 60%, and one can go: (5 + 5)% for the other
    (55_000, 2),    # all below, but one cannot go: the start alone is given up
    (70_000, None),   # between the thresholds: it goes on
    (110_000, None),   # more are asked for: none while one starts
])
def test_a_start_is_given_up_by_the_second_look_that_asks_for_it(kv: int, wanted: int | None) -> None:
    """1.6.1, test_pending_startup_scaling.py: two workers are ready, and a third starts."""
    group = Group("decode", [engine(decode=kv)] * 2, wanted=3)
    made = planner([group])
    made.tick(load=True, traffic=False)
    assert not group.scaled
    made.tick(load=True, traffic=False)
    assert group.scaled == ([] if wanted is None else [(wanted, "load loop")])


def test_a_start_is_not_given_up_if_the_workers_change_between_two_looks() -> None:
    group = Group("decode", [engine(decode=5_000)] * 2, wanted=3)
    made = planner([group])
    made.tick(load=True, traffic=False)
    group.wanted = 4
    made.tick(load=True, traffic=False)
    assert not group.scaled
    made.tick(load=True, traffic=False)
    assert group.scaled == [(1, "load loop")]
    old = Group("decode", [engine(decode=5_000)] * 2, wanted=3)
    older = planner([old], rules="0c6da1ec")
    for _ in range(3):
        older.tick(load=True, traffic=False)
    assert not old.scaled


@each("current, wanted, devices, budget, expected", [
    ((4, 4), (5, 4), (1, 1), 8, (4, 4)),   # no budget is left, and decode is not asked to give one
    ((4, 4), (5, 3), (1, 1), 8, (5, 3)),
    ((3, 4), (4, 5), (1, 1), 8, (3, 5)),   # 9 of 8: prefill floor(4 x 8 / 9) = 3, which leaves decode 5
    ((2, 2), (3, 1), (4, 1), 10, (2, 2)),  # the decode worker that goes leaves one device of four
    ((2, 8), (4, 2), (2, 1), 12, (4, 2)),
    ((5, 5), (5, 5), (1, 1), 8, (4, 4)),   # above the budget: back to it
])
def test_the_budget_turns_no_direction_round(current: tuple[int, int], wanted: tuple[int, int],
                                             devices: tuple[int, int], budget: int, expected: tuple[int, int]) -> None:
    """1.6.1, test_load_budget_guard.py."""
    assert guarded_pair(current, wanted, devices, budget, 1) == expected


def test_nothing_is_decided_while_a_draining_engine_reports() -> None:
    group = Group("decode", [engine(decode=5_000)] * 3)
    group.ready = group.wanted = 2
    planner([group]).tick(load=True, traffic=False)
    assert not group.scaled


@each("rules, prefill", [("0c6da1ec", [(2, "throughput loop")]), ("1.6.1", [])])
def test_a_decision_of_sla_by_hand(rules: str, prefill: list[tuple[int, str]]) -> None:
    """180 requests of 1000 prompt and 100 output tokens in 180 s are one a second. A prefill worker takes 0.502 s for a
    prompt: 1.99 a second, one worker; 0.502 s is above the limit of 0.5 s, so that the older rules want two. A decode
    worker has 4 sequences of 1050 tokens within 50 ms (1 + 10.5 n ms): 4 / (100 x 0.043) = 0.93 a second, so two."""
    groups = [Group("prefill", [engine(seconds=0)]), Group("decode", [engine(seconds=0)])]
    made = planner(groups, target="sla", rules=rules)
    for tokens in (500, 1000, 1500, 2000, 2500):
        made.prefill.observe(ForwardPass(round((0.5 * tokens + 2) * 1e6), 1, tokens))
    for n in (5, 10, 20, 30, 40):
        made.decode.observe(ForwardPass(round((0.01 * 1000 * n + 1) * 1e6), 0, 0, n, 1000 * n))
    groups[1].served = Traffic(180, 180_000, 18_000)
    made.tick(load=True, traffic=True)
    assert [group.scaled for group in groups] == [prefill, [(2, "throughput loop")]]
    # the same traffic for two devices: the budget leaves one of each
    less = [Group("prefill", [engine(seconds=0)]), Group("decode", [engine(seconds=0)])]
    tight = planner(less, target="sla", max_gpu_budget=2, rules=rules)
    tight.prefill, tight.decode = made.prefill, made.decode
    less[1].served = Traffic(180, 180_000, 18_000)
    tight.tick(load=False, traffic=True)
    assert [group.scaled for group in less] == [[], []]


def test_with_both_loops_the_traffic_gives_the_fewest() -> None:
    """The load loop would spare one of three decode workers; the traffic needs three."""
    group = Group("decode", [engine(decode=100, seconds=0.002)] * 3)
    made = planner([group], target="sla", load_scaling=True)
    for n in (5, 10, 20, 30, 40):
        made.decode.observe(ForwardPass(round((0.01 * 1000 * n + 1) * 1e6), 0, 0, n, 1000 * n))
    group.served = Traffic(450, 450_000, 45_000)   # 2.5 a second of 0.93 each
    made.tick(load=False, traffic=True)
    assert not group.scaled
    made.tick(load=True, traffic=False)
    assert not group.scaled
    group.served = Traffic(455, 455_000, 45_500)   # 5 in 180 s
    made.tick(load=False, traffic=True)
    made.tick(load=True, traffic=False)
    assert group.scaled == [(2, "load loop")]


# -- simulations -----------------------------------------------------------------------------------------------------


def group(name: str, role: str, count: int, start: int, **keys: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "count": count, "memory": {"num_blocks": 300},
            "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
            "fleet": {"start": start, "start_up": {"total": 3}}} | keys


def run(planner: dict[str, Any], groups: list[dict[str, Any]], **keys: Any) -> Results:
    return simulate({
        "workload": {"requests": 800, "arrivals": {"kind": "mmpp", "rates": [60, 2], "dwells": [10, 15]},
                     "lengths": {"kind": "fixed", "prompt": 1000, "output": 60}},
        "clients": groups, "autoscalers": [{"groups": [one["name"] for one in groups], "autoscaler": {
            "kind": "dynamo_planner", "load_interval": 1, "throughput_interval": 10, **planner}}], **keys})


SPLIT = [group("p", "prefill", 4, 1), group("d", "decode", 4, 1)]
ALONE = [group("llm", "both", 5, 1)]


@pytest.mark.long
@each("keys, groups", [
    ({"target": "throughput"}, SPLIT), ({"target": "latency"}, SPLIT), ({"target": "throughput"}, ALONE),
    ({"target": "sla", "load_scaling": True, "ttft": 0.06}, SPLIT),
    ({"target": "sla", "predictor": "kalman", "ttft": 0.01, "rules": "0c6da1ec"}, SPLIT),
    ({"target": "sla", "load_scaling": True, "itl": 0.008, "ttft": 0.1}, ALONE),
])
def test_runs_decide_as_single_steps_do(keys: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    first, second = (run(keys, groups, stepping=stepping).record for stepping in ("runs", "every_step"))
    assert (first.status == 1).all()
    assert np.array_equal(first.membership, second.membership)
    assert first.membership_reasons == second.membership_reasons
    assert np.array_equal(first.finish_ns, second.finish_ns)
    assert (first.membership[:, 3] == STARTING).any()


def test_two_groups_keep_within_their_budget() -> None:
    """Eight slots, and a budget of five devices: no more are wanted at any time."""
    results = run({"target": "latency", "max_gpu_budget": 5}, SPLIT)
    wanted, most = dict.fromkeys(range(8), False), 0
    for client, _, _, state in results.record.membership.tolist():
        wanted[client] = state in (STARTING, READY)
        most = max(most, sum(wanted.values()))
    assert most == 5
    assert (results.record.membership[:, 3] == DRAINING).any()


@each("keys, groups, words, field", [
    ({}, [group("a", "both", 2, 1), group("b", "both", 2, 1)], "one group that prefills and one that decodes", "kind"),
    ({"max_gpu_budget": 1}, SPLIT, "at least 2, for 1 of each group", "max_gpu_budget"),
    ({"min_endpoint": 5}, SPLIT, "at most 4 replicas", "min_endpoint"),
    ({"predictor": "arima"}, SPLIT, "needs pmdarima", "predictor"),
    ({"target": "latency", "load_scaling": False}, SPLIT, "has the load loop alone", "load_scaling"),
    ({"target": "sla", "throughput_scaling": False}, SPLIT, "neither loop decides", "throughput_scaling"),
    ({"target": "sla", "throughput_interval": 1}, SPLIT, "the load_interval", "throughput_interval"),
    ({"buckets": 15}, SPLIT, "a square number", "buckets"),
])
def test_wrong_planners_are_refused_by_name(keys: dict[str, Any], groups: list[dict[str, Any]], words: str,
                                            field: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        run(keys, groups)
    assert found.value.field == f"autoscalers.0.autoscaler.{field}"


class TestDynamoPlanner(AutoscalerContract):
    def make(self) -> DynamoPlanner:
        return validate(DynamoPlanner, {"kind": "dynamo_planner", "target": "latency", "load_interval": 0.3})


class TestDynamoPlannerForSla(AutoscalerContract):
    def make(self) -> DynamoPlanner:
        return validate(DynamoPlanner, {"kind": "dynamo_planner", "target": "sla", "load_scaling": True, "ttft": 0.02,
                                        "itl": 0.01, "load_interval": 0.2, "throughput_interval": 1.0})
