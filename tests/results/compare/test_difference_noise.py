"""Noise of a difference where requests depend on each other: queues with one server, against the spread over seeds."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from hermes.api import simulate
from hermes.core.noise import t_quantile
from hermes.results.compare import compare
from hermes.results.compare.difference_noise import noise_s
from hermes.results.figures.steady import mean_stay

FloatArray = npt.NDArray[np.float64]
SEEDS, REQUESTS = 24, 6000
STATS = ("mean", "p50", "p90", "p99")


@cache
def queue(load: float, seed: int, speed: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Return arrivals and sojourn times of an M/M/1 queue, in mean service times; `speed` scales the service alone."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / load, REQUESTS))
    service = rng.exponential(1 / speed, REQUESTS)
    free, out = 0.0, np.empty(REQUESTS)
    for row, (at, takes) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
        free = max(free, at) + takes
        out[row] = free - at
    return arrival, out


def value(values: FloatArray, stat: str) -> float:
    return float(values.mean() if stat == "mean" else np.percentile(values, float(stat[1:])))


def noise(load: float, pair: tuple[int, int], stat: str, *, speed: float = 1.0) -> float | None:
    (times, ours), (others, theirs) = queue(load, pair[0]), queue(load, pair[1], speed)
    return noise_s(ours, theirs, (times, others), stat, same=pair[0] == pair[1],
                   stays_s=(float(ours.mean()), float(theirs.mean())))


@pytest.mark.parametrize("stat", STATS)
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_noise_of_two_seeds_is_the_spread_over_seeds(load: float, stat: str) -> None:
    """The median within a factor of two, and none ten times too small."""
    found = [noise(load, (seed, seed + 1), stat) for seed in range(0, SEEDS, 2)]
    known = np.array([one for one in found if one is not None])
    spread = np.std([value(queue(load, seed)[1], stat) for seed in range(SEEDS)], ddof=1)
    ratio = known / (t_quantile(SEEDS) * np.sqrt(2) * spread)
    assert len(known) >= len(found) * 0.7
    assert 0.5 <= float(np.median(ratio)) <= 2
    assert ratio.min() > 0.15


@pytest.mark.parametrize("stat", STATS)
def test_noise_of_the_same_requests_is_the_spread_of_their_difference(stat: str) -> None:
    gaps = [value(queue(0.7, seed)[1], stat) - value(queue(0.7, seed, 1.05)[1], stat) for seed in range(SEEDS)]
    found = [noise(0.7, (seed, seed), stat, speed=1.05) for seed in range(SEEDS)]
    known = np.array([one for one in found if one is not None])
    ratio = known / (t_quantile(SEEDS) * float(np.std(gaps, ddof=1)))
    assert len(known) >= SEEDS * 0.7
    assert 0.5 <= float(np.median(ratio)) <= 2
    assert ratio.min() > 0.15


@pytest.mark.parametrize("stat", STATS)
def test_a_queue_as_long_as_the_run_has_no_known_noise(stat: str) -> None:
    """A load of 1.1: each waits behind those of the whole run, so that blocks of it say nothing."""
    assert [noise(1.1, (seed, seed + 1), stat) for seed in range(0, SEEDS, 2)] == [None] * (SEEDS // 2)


def test_a_long_stay_makes_blocks_too_few() -> None:
    """Independent values, of requests that stay for a tenth of the run."""
    times, values = np.arange(2000.0), np.random.default_rng(1).exponential(size=2000)
    assert noise_s(values, values + 1, (times, times), "p50", same=False, stays_s=(1.0, 1.0)) is not None
    assert noise_s(values, values + 1, (times, times), "p50", same=False, stays_s=(1.0, 200.0)) is None


def test_one_episode_does_not_make_a_percentile() -> None:
    """All values beyond the p99 are of one stretch of a calm run."""
    times, values = np.arange(4000.0), np.random.default_rng(1).uniform(size=4000)
    values[2000:2060] += 50.0
    assert noise_s(values, values, (times, times), "p99", same=False) is None
    assert noise_s(values, values, (times, times), "p50", same=False) is not None


def test_what_depends_on_each_other_in_conversations_are_conversations() -> None:
    """Turns of a conversation keep the load up while it lasts, think time included: blocks are longer than that."""
    run = simulate({
        "workload": {"requests": 2800, "arrivals": {"kind": "poisson", "rate": 2},
                     "lengths": {"kind": "conversations", "turns": 4, "system_tokens": 500, "message": 100,
                                 "output": 60, "think_time": 20}},
        "clients": [{"name": "gpu", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm"}]})
    stay, conversations = mean_stay(run.record)
    assert conversations
    assert stay / 1e9 > 60 > 30 * float(run.requests.e2e_s.mean())
    assert run.summary["settling"]["settled"]
    assert all(row.noise_s is None for row in compare(run, run).rows)   # 380 s are fewer than 5 blocks of 180 s


def test_runs_that_have_not_settled_say_so() -> None:
    """A replica short of the load: the p99 of the TTFT is that of the run's length."""
    runs = [simulate({
        "seed": seed, "workload": {"requests": 600, "arrivals": {"kind": "poisson", "rate": 30},
                                   "lengths": {"kind": "fixed", "prompt": 2000, "output": 100}},
        "clients": [{"name": "gpu", "model": "llama-3.1-8b", "device": "l40s"}]}) for seed in (1, 2)]
    table = compare(*runs, allow_different_requests=True)
    assert all(row.noise_s is None for row in table.rows)
    assert table.verdict is not None
    assert "of unknown noise: TTFT p99" in table.verdict
    assert "noise unknown: the first has not settled (too short to settle)" in " ".join(table.to_text().split())
    assert len(table.to_dict()["unsettled"]) == 2
