"""Scraped values of clients: by hand, and in random scenarios the same with runs, in single steps, and from a log of
every step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_options import BASES, OPTIONS, Option, scenario_with
from hypothesis import given
from hypothesis import strategies as st
from profiles import quick, thorough, when_asked_for
from random_scenarios import FAMILIES, Data, scenarios
from scenario_parts import UNIT_NS
from test_given_up import impatient
from test_parallel_engines import engines

from hermes.clients.llm import LLMClient
from hermes.compiled import is_compiled
from hermes.core.clock import ARRIVAL, AUTOSCALER, MEMBERSHIP, SCRAPE, START, TRANSFER
from hermes.core.scraped import Sample, Scrapable, scrape
from hermes.scenario import load_scenario
from hermes.scenario.build import build

Log = dict[int, list[tuple[int, int, int, float]]]
Reads = list[tuple[int, int, int, Sample | None]]
PRIORITIES = (TRANSFER, MEMBERSHIP, SCRAPE, AUTOSCALER, ARRIVAL, START, START + 10_000)


@contextmanager
def logged(log: Log) -> Iterator[None]:
    """Log the values after every run of steps, without what arrived while its end was reported."""
    complete, take = LLMClient._complete, LLMClient._take
    late: dict[int, int] = {}   # by client whose end is being reported

    def _complete(self: LLMClient, now: int) -> None:
        late[self.index] = 0
        complete(self, now)
        pool = self.scheduler.pool
        log.setdefault(self.index, []).append((
            now, self.num_waiting - late.pop(self.index), self.num_running,
            (pool.num_blocks - pool.free_blocks) / pool.num_blocks))

    def _take(self: LLMClient, stage: Any) -> None:
        before = self.num_waiting
        take(self, stage)
        if self.index in late:
            late[self.index] += self.num_waiting - before

    LLMClient._complete, LLMClient._take = _complete, _take  # type: ignore[method-assign]
    try:
        yield
    finally:
        LLMClient._complete, LLMClient._take = complete, take  # type: ignore[method-assign]


def reads_of(scenario: Data, stepping: str, probes: list[tuple[int, int]], periods: list[tuple[int, int]],
             log: Log | None = None) -> Reads:
    """Return what scrapers of all clients read at these (time, priority), and check those that are refreshed by need
    against those that are always read."""
    simulation = build(load_scenario({**scenario, "stepping": stepping}))
    found: Reads = []
    watched = []
    for client in simulation.clients:
        if not isinstance(client, LLMClient):
            continue
        assert isinstance(client, Scrapable)
        for period, offset in periods:
            scraper, lazy = client.scraper(period, offset), client.scraper(period, offset)
            due = [0]
            lazy.alarm = lambda time, due=due: due.__setitem__(0, time)   # type: ignore[misc]
            watched.append((client.index, period, scraper, lazy, due))

    def probe(priority: int) -> None:
        now = simulation.env._now
        for index, period, scraper, lazy, due in watched:
            sample = scraper.read()
            found.append((now, priority, index * 10**12 + period, sample))
            if due[0] <= now:
                due[0] = lazy.refresh()
                assert due[0] >= now
            values = None if sample is None else sample[1:]
            assert values == (None if lazy.sample is None else lazy.sample[1:]), (now, index, due)

    for time, priority in probes:
        simulation.env.tick_at(time, priority, lambda tick, priority=priority: probe(priority))   # type: ignore[misc]
    if log is None:
        simulation.run()
    else:
        with logged(log):
            simulation.run()
    return found


def expected(log: Log, reads: Reads, periods: list[tuple[int, int]]) -> Reads:
    """Return what the log of every step says about the same reads."""
    offsets = dict(periods)
    out: Reads = []
    for now, priority, key, _ in reads:
        index, period = divmod(key, 10**12)
        last = now if priority >= SCRAPE else now - 1
        at = last - (last - offsets[period]) % period
        if at < offsets[period]:
            out.append((now, priority, key, None))
            continue
        rows = log.get(index, [])
        place = bisect_right(rows, at, key=lambda row: row[0])
        out.append((now, priority, key, Sample(at, *(rows[place - 1][1:] if place else (0, 0, 0.0)))))
    return out


def check(scenario: Data, data: st.DataObject) -> None:
    log: Log = {}
    reads_of(scenario, "every_step", [], [], log)
    ends = sorted({row[0] for rows in log.values() for row in rows})
    last = ends[-1] if ends else UNIT_NS
    whole = data.draw(st.booleans(), label="multiples of the unit")
    unit = UNIT_NS if whole else max(1, last // 97)
    times = st.one_of(st.sampled_from(ends or [0]), st.integers(0, last // unit + 3).map(lambda n: n * unit))
    probes = data.draw(st.lists(st.tuples(times, st.sampled_from(PRIORITIES)), min_size=1, max_size=30))
    chosen = data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 12, 50]), min_size=1, max_size=3, unique=True))
    periods = [(n * unit, data.draw(st.one_of(st.just(0), st.integers(0, n).map(lambda k: k * unit),
                                              st.sampled_from(ends or [0])), label="offset") % (n * unit))
               for n in chosen]
    runs = reads_of(scenario, "runs", probes, periods)
    steps_log: Log = {}
    steps = reads_of(scenario, "every_step", probes, periods, steps_log)
    assert steps == expected(steps_log, steps, periods)
    assert runs == steps


needs_python = pytest.mark.skipif(is_compiled(LLMClient), reason="the log replaces methods")


@pytest.mark.feature("Plug-ins of research", "Scraped views of clients: `hpa`, `least_loaded` with `view`")
@pytest.mark.drawn
@needs_python
@pytest.mark.parametrize("family", FAMILIES)
@quick(30)
@given(data=st.data())
def test_scrapes_are_those_of_single_steps(family: str, data: st.DataObject) -> None:
    check(data.draw(scenarios(family)), data)


@pytest.mark.drawn
@needs_python
@pytest.mark.parametrize("family", [*FAMILIES, "sglang"])
@quick(15)
@given(data=st.data())
def test_scrapes_of_requests_that_are_given_up(family: str, data: st.DataObject) -> None:
    check(data.draw(impatient(family)), data)


@needs_python
@quick(20)
@given(data=st.data())
def test_scrapes_of_ranks_and_stages(data: st.DataObject) -> None:
    check(data.draw(engines()), data)


@needs_python
@when_asked_for
@pytest.mark.parametrize("family", [*FAMILIES, "sglang"])
@thorough
@given(data=st.data())
def test_scrapes_thoroughly(family: str, data: st.DataObject) -> None:
    check(data.draw(impatient(family)), data)
    if family != "sglang":
        check(data.draw(scenarios(family, most=40)), data)


def by_hand(rows: list[list[int]], units: list[int], *, scheduler: Data | None = None) -> Data:
    """One client whose every step takes 1 us. rows: [prompt, output] of requests that arrive at `units` of 1 us."""
    return {
        "workload": {"requests": len(rows), "arrivals": {"kind": "test_listed", "units": units},
                     "lengths": {"kind": "test_listed", "rows": [[*row, 0, -1, -1, 0] for row in rows]}},
        "clients": [{
            "name": "a", "hardware": {"kind": "test_ticks", "base": 1, "per_token": 1000, "per_ctx": 10**6},
            "scheduler": {"kind": "chunked", "max_num_batched_tokens": 64, "max_num_seqs": 1, "async_scheduling": False}
            | (scheduler or {}),
            "memory": {"block_size": 4, "num_blocks": 20, "prefix_caching": False, "kv_bytes_per_token": 1.0}}],
    }


STEPPINGS = pytest.mark.parametrize("stepping", ["runs", "every_step"])
US = UNIT_NS


def at(scenario: Data, stepping: str, period: int, offset: int, *times: int, priority: int = ARRIVAL) -> list[Any]:
    return [sample for *_, sample in reads_of(scenario, stepping, [(time, priority) for time in times],
                                              [(period, offset)])]


@STEPPINGS
def test_a_scrape_at_a_step_end_and_inside_a_run_by_hand(stepping: str) -> None:
    """8 prompt tokens fill 2 of 20 blocks of 4 tokens. The first step ends at 1 us; step k computes token 7 + k, so the
    steps that end at 2, 6 and 10 us take blocks 3, 4 and 5."""
    scenario = by_hand([[8, 12]], [0])
    ends = [Sample(n * US, 0, 1, blocks / 20) for n, blocks in
            [(1, 2), (2, 3), (3, 3), (4, 3), (5, 3), (6, 4), (9, 4), (10, 5), (11, 5)]]
    assert at(scenario, stepping, US, 0, *(n * US for n in (1, 2, 3, 4, 5, 6, 9, 10, 11))) == ends
    # a nanosecond before the end of the step that takes a block, and at its end
    assert at(scenario, stepping, 100 * US, 6 * US - 1, 6 * US) == [Sample(6 * US - 1, 0, 1, 0.15)]
    assert at(scenario, stepping, 100 * US, 6 * US, 6 * US) == [Sample(6 * US, 0, 1, 0.2)]
    # during the first step no step has ended, after the last one at 12 us the blocks are free
    assert at(scenario, stepping, 100 * US, US - 1, US, 50 * US) == [Sample(US - 1, 0, 0, 0.0)] * 2
    assert at(scenario, stepping, 100 * US, 12 * US, 11 * US, 12 * US) == [None, Sample(12 * US, 0, 0, 0.0)]


@STEPPINGS
def test_a_scrape_at_an_arrival_by_hand(stepping: str) -> None:
    """The second request arrives at 5 us, at a step end, and the third at 7.5 us inside a step; neither finds a slot.
    Each counts from the next step end on."""
    scenario = by_hand([[8, 12], [4, 2], [4, 2]], [0, 5, 7])
    scenario["workload"]["arrivals"] = {"kind": "test_listed", "units": [0, 5, 7]}
    waiting = {4: 0, 5: 0, 6: 1, 7: 1, 8: 2, 11: 2, 12: 2}
    found = at(scenario, stepping, US, 0, *(n * US for n in waiting))
    assert [sample.waiting for sample in found] == list(waiting.values())
    assert [sample.running for sample in found] == [1, 1, 1, 1, 1, 1, 0]
    # between two steps: the scrapes of 5.4 and 6.4 us show the steps that ended at 5 and 6 us
    half = at(scenario, stepping, US, 4 * US // 10, 5 * US + 500, 6 * US + 500)
    assert half == [Sample(5 * US + 400, 0, 1, 0.15), Sample(6 * US + 400, 1, 1, 0.2)]


@STEPPINGS
def test_a_read_before_the_place_of_scrapes_sees_the_scrape_before(stepping: str) -> None:
    scenario = by_hand([[8, 12]], [0])
    assert at(scenario, stepping, 2 * US, 0, 6 * US, priority=TRANSFER) == [Sample(4 * US, 0, 1, 0.15)]
    assert at(scenario, stepping, 2 * US, 0, 6 * US, priority=SCRAPE) == [Sample(6 * US, 0, 1, 0.2)]


@STEPPINGS
def test_a_client_that_is_lost_and_found(stepping: str) -> None:
    """Lost at 6 us: the scrape of 5 us stays the last one. Found at 20 us: no sample until 23 us."""
    simulation = build(load_scenario({**by_hand([[8, 40]], [0]), "stepping": stepping}))
    client, env = simulation.clients[0], simulation.env
    scraper, found = client.scraper(9 * US, 5 * US), []   # 5, 14, 23, 32 us
    def read(tick: Any) -> None:
        found.append((env._now // US, scraper.read()))

    for n in (4, 5, 6, 15, 20, 22, 23, 31, 32):
        env.tick_at(n * US, ARRIVAL, read)
    env.tick_at(6 * US, TRANSFER + 1, lambda tick: client.scrapes.lost(env._now))
    env.tick_at(20 * US, MEMBERSHIP, lambda tick: client.scrapes.found(env._now))
    simulation.run()
    old = Sample(5 * US, 0, 1, 0.15)
    assert found[:4] == [(4, None), (5, old), (6, old), (15, old)]
    assert found[4:6] == [(20, None), (22, None)]
    assert found[6][1] is not None
    assert found[6][1].at_ns == 23 * US


def test_a_scrape_at_the_instant_of_a_crash_fails() -> None:
    simulation = build(load_scenario(by_hand([[8, 40]], [0])))
    client, env = simulation.clients[0], simulation.env
    scraper = client.scraper(3 * US, 0)
    env.tick_at(6 * US, TRANSFER + 1, lambda tick: client.scrapes.lost(env._now))
    found: list[Any] = []
    env.tick_at(7 * US, ARRIVAL, lambda tick: found.append(scraper.read()))
    simulation.run()
    assert found == [Sample(3 * US, 0, 1, 0.15)]


def test_offsets_are_of_named_streams() -> None:
    """Each pair of scraper and client has its own; another client changes none."""
    few, many = ([scrape(client, 3, "router", 0.05).offset_ns for client in build(load_scenario(
        by_hand([[8, 2]], [0]) | {"clients": [by_hand([[8, 2]], [0])["clients"][0] | {"count": count}]})).clients]
        for count in (2, 5))
    assert few == many[:2]
    assert len(set(many)) == 5
    assert all(0 <= offset < 50_000_000 for offset in many)
    client = build(load_scenario(by_hand([[8, 2]], [0]))).clients[0]
    offsets = [scrape(client, seed, name, 0.05).offset_ns for seed, name in ((3, "router"), (3, "hpa"), (4, "router"))]
    assert len(set(offsets)) == 3


def check_option(scenario: Data, *, from_log: bool = True) -> None:
    probes = [(n * 7_777_777, ARRIVAL) for n in range(1, 150)]
    periods = [(5_000_000, 1_234_567), (61_000_000, 7)]
    log: Log = {}
    steps = reads_of(scenario, "every_step", probes, periods, log)
    if from_log and not is_compiled(LLMClient):
        assert steps == expected(log, steps, periods)
    assert reads_of(scenario, "runs", probes, periods) == steps
    assert any(sample is not None and sample.running and sample.kv_use > 0 for *_, sample in steps)


@pytest.mark.drawn
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_scrapes_with_every_option(option: Option) -> None:
    # the log has no starts and crashes
    check_option(scenario_with(option), from_log="client.fleet" not in option.settings)


@pytest.mark.parametrize("base", ["mixture", "windows", "enough"])
def test_scrapes_on_every_base(base: str) -> None:
    check_option(BASES[base].scenario_with(load=BASES[base].loads[0]))
    check_option(BASES[base].scenario_with(
        *(option for option in OPTIONS if option.name in ("synchronous", "uncached")), load=BASES[base].loads[0]))
