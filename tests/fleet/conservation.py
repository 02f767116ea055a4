"""What must hold after any run in which clients are lost, requests time out, and attempts are made again."""

from __future__ import annotations

from typing import Any

import numpy as np
from found_parts import handoff_of

from hermes.core.record import (
    ATTEMPT_OUTCOMES,
    DOWN,
    DRAINING,
    FATES,
    GONE,
    HELD_OUTCOMES,
    READY,
    SPARE,
    STARTING,
    RunRecord,
)
from hermes.dispatch.simulation import Simulation
from hermes.results.metrics import sent_tokens
from hermes.results.results import Results
from hermes.scenario import load_scenario
from hermes.scenario.build import build

RUNNING, COMPLETED, FAILED, TIMED_OUT, CANCELLED, REVOKED, MIGRATED = range(len(ATTEMPT_OUTCOMES))
WAITING, SENT, REFUSED, EXPIRED, GIVEN_UP = range(len(HELD_OUTCOMES))
NEXT = {GONE: {STARTING, READY, SPARE}, STARTING: {STARTING, READY, GONE, DOWN, SPARE}, READY: {DRAINING, DOWN},
        DRAINING: {GONE, SPARE}, DOWN: {STARTING, GONE}, SPARE: {STARTING, GONE, DOWN}}


def ran(data: dict[str, Any]) -> tuple[Simulation, RunRecord]:
    simulation = build(load_scenario(data))
    return simulation, simulation.run()


def assert_steps_give_the_same(data: dict[str, Any], record: RunRecord) -> None:
    """A scenario simulated step by step, too, leaks nothing and has the same record."""
    other, steps = ran(data | {"stepping": "every_step"})
    assert_nothing_leaks(other)
    assert record.finish_ns.tolist() == steps.finish_ns.tolist()
    assert record.reject_reasons == steps.reject_reasons
    assert record.membership.tolist() == steps.membership.tolist()
    for kept in ("attempts", "held", "calls", "queued", "halts", "offers", "migrations"):
        table, other_table = getattr(record, kept), getattr(steps, kept)
        assert table.keys() == other_table.keys()
        for name, column in table.items():
            assert column.tolist() == other_table[name].tolist(), name
    for name in ("request", "client", "start_ns", "first_token_ns", "end_ns", "output_tokens"):
        assert record.stages[name].tolist() == steps.stages[name].tolist(), name


def assert_nothing_leaks(simulation: Simulation) -> None:
    coordinator, network = simulation.coordinator, simulation.network
    for client in simulation.clients:
        left = (client.num_assigned, client.input_tokens, client.output_tokens, client.emitted)
        assert left == (0, 0, 0, 0), (client.name, left)
        scheduler = getattr(client, "scheduler", None)
        if scheduler is not None:
            scheduler.plan(1)   # an asynchronous engine gives blocks back with its next plan
            assert scheduler.pool.free_blocks == scheduler.pool.num_blocks, f"{client.name} holds blocks"
            assert not scheduler.running, client.name
            assert not scheduler.num_waiting, client.name
        assert not any(tier._active for tier in client.tiers), f"{client.name}: flows of a tier"
    assert coordinator.inputs.idle()
    assert all(part.idle() for part in coordinator.parts)
    handoff = handoff_of(simulation)
    if handoff is not None:
        assert not any(handoff._moving.values())
        for held in (handoff._twins, handoff._flights, handoff._ahead, handoff._turned_away, handoff._given_up,
                     *handoff._leaving.values(), *handoff._intake.values()):
            assert not held
        network = handoff.network
    assert network.bytes_sent == network.bytes_received + network.bytes_cancelled
    for client in simulation.clients:
        assert not any(values[place] for values, place, _kind in coordinator._loads._cells[client.index]), client.name


def assert_conserved(record: RunRecord, *, ended: bool = True) -> None:
    """Requests and attempts add up, each attempt has an end, and replicas change as they may."""
    stages, table = record.stages, record.attempts
    if ended:
        assert (record.status > 0).all()
    assert len(table["outcome"]) == sum((table["outcome"] == code).sum() for code in range(len(ATTEMPT_OUTCOMES)))
    over = table["outcome"] != RUNNING
    assert over.all() or not ended
    assert (table["end_ns"][over] >= table["start_ns"][over]).all()
    assert (table["end_ns"][~over] == -1).all()
    calls = table["call"]
    order = np.argsort(calls, kind="stable")   # the attempts of each call, one after another
    same = np.diff(calls[order]) == 0
    first = np.flatnonzero(np.concatenate([[True], ~same])[:len(calls)])
    place = np.arange(len(calls)) - np.repeat(first, np.diff([*first, len(calls)]))
    assert (table["number"][order] == place + 1).all()
    before, after = order[:-1][same], order[1:][same]
    assert not (table["outcome"][before] == COMPLETED).any()   # at most one, and that the last
    assert (table["start_ns"][after] >= table["end_ns"][before]).all()
    completed = record.status[table["request"]] == 1
    last = np.ones(len(calls), dtype=bool)
    last[before] = False
    unawaited = set(record.background.tolist())
    offers = record.notes.get("client_tries")
    if not unawaited:
        served = completed & last
        if offers is not None:   # of a request that its client offered again, calls of earlier offers failed
            once = np.isnan(offers)[table["request"]]
            answered = table["request"][last & (table["outcome"] == COMPLETED)]
            assert np.isin(table["request"][served & ~once], answered).all()
            served &= once
        assert (table["outcome"][served] == COMPLETED).all()
    assert (record.status[record.fates[:, 0]] == 2).all()
    assert len(record.stage_attempts) == len(stages["client"])
    begun = stages["start_ns"] >= 0
    assert (stages["assigned_ns"] <= stages["end_ns"]).all()
    assert (stages["start_ns"][begun] <= stages["end_ns"][begun]).all()
    state = dict.fromkeys(record.membership[:, 0].tolist(), GONE)
    for client, _number, time, now in record.membership.tolist():
        assert now in NEXT[state[client]] or time == 0, (client, time, state[client], now)
        state[client] = now
    for client in state:   # nothing of a replica that is gone or down is left
        mine = np.flatnonzero(stages["client"] == client)
        mine = mine[np.argsort(stages["assigned_ns"][mine], kind="stable")]
        latest = np.maximum.accumulate(stages["end_ns"][mine])   # end of those that came so far
        own = record.membership[record.membership[:, 0] == client]
        lost = own[np.isin(own[:, 3], (GONE, DOWN)), 2]
        before = np.searchsorted(stages["assigned_ns"][mine], lost)
        assert (latest[before[before > 0] - 1] <= lost[before > 0]).all(), client
    for client in range(len(record.clients)):   # steps follow one another, and those of no steps end at a crash
        mine = record.runs["client"] == client
        starts, ends = record.runs["start_ns"][mine], record.runs["end_ns"][mine]
        assert (starts[1:] >= ends[:-1]).all()
        cut = ends[record.runs["num_steps"][mine] == 0]
        crashed = record.membership[np.isin(record.membership[:, 3], (DOWN, GONE)) &
                                    (record.membership[:, 0] == client), 2]
        assert np.isin(cut, crashed).all()


def assert_held(record: RunRecord, cycle_ns: int = 1_000_000, *, ended: bool = True, first_come: bool = False,
                gateways: int = 1) -> None:
    """Each call that waited in the gateway has one end, and as many attempts began as calls left. In an instant no more
    leave than are queued, and one more at a tick of each gateway.

    first_come: Within a priority they leave in the order in which they were queued.
    """
    held, table = record.held, record.attempts
    outcome, asked, left = held["outcome"], held["asked_ns"], held["left_ns"]
    assert (left >= asked)[outcome != WAITING].all()
    assert ((left == -1) == (outcome == WAITING)).all()
    assert (outcome != WAITING).all() or not ended
    sent = outcome == SENT
    leaving = sorted(zip(held["call"][sent].tolist(), left[sent].tolist(), strict=True))
    of_engines = np.isin(table["call"], held["call"])
    begun = sorted(zip(table["call"][of_engines].tolist(), table["start_ns"][of_engines].tolist(), strict=True))
    assert set(begun) <= set(leaving)
    times, counts = np.unique(left[sent], return_counts=True)
    order = np.sort(asked)
    queued = np.searchsorted(order, times, side="right") - np.searchsorted(order, times)
    assert (counts <= queued + gateways * (times % cycle_ns == 0)).all()
    if first_come:
        for priority in np.unique(held["priority"]):
            mine = np.flatnonzero(sent & (held["priority"] == priority))
            assert (np.diff(left[mine]) >= 0).all()
    fates = record.fates[:, 1]
    for name, code in (("expired", EXPIRED), ("shed", REFUSED)):
        assert (fates == FATES.index(name)).sum() <= (outcome == code).sum()
    revoked = table["outcome"] == REVOKED
    assert (fates == FATES.index("revoked")).sum() <= revoked.sum()   # clients may offer a request again
    assert not (record.status[table["request"][revoked]] == 1).any() or "client_tries" in record.notes
    assert (record.status[record.fates[:, 0]] == 2).all()


def assert_migrations_add_up(record: RunRecord) -> None:
    """The attempts of a call give its tokens, each one once, in the order of time; and the figures count the same."""
    results, stages, table = Results(record), record.stages, record.migrations
    metrics, sent = results.metrics, sent_tokens(record)
    done = record.status == 1
    codes, names = record.labels["pipeline"]
    plain = np.array([name == "plain" for name in names])[codes]
    whole = done & plain & (metrics.branches == 1)
    assert metrics.emitted_tokens[whole].tolist() == metrics.answer_tokens[whole].tolist() == (
        record.output_tokens[whole].tolist())
    assert metrics.computed_prompt_tokens[whole].tolist() == record.prompt_tokens[whole].tolist()
    if not table:
        return
    outcome, number = record.attempts["outcome"], record.stage_attempts
    gave = outcome[table["attempt"]] == MIGRATED
    assert (table["sent"][gave] > 0).all()
    assert sorted(table["attempt"][gave].tolist()) == np.flatnonzero(outcome == MIGRATED).tolist()
    assert (sent >= 0).all()
    for attempt, tokens in zip(table["attempt"][gave].tolist(), table["sent"][gave].tolist(), strict=True):
        mine = number == attempt
        assert int(sent[mine].sum()) == tokens, "no more than its engine gave"
        over = record.attempts["end_ns"][attempt]
        times = stages["first_token_ns"][mine & (sent > 0)]
        assert (times <= over).all()
    for attempt, to in zip(table["attempt"].tolist(), table["to"].tolist(), strict=True):
        if to >= 0:
            assert record.attempts["call"][attempt] == record.attempts["call"][to]
            assert record.attempts["start_ns"][to] >= record.attempts["end_ns"][attempt]
    prompts = dict(zip(number.tolist(), stages["prompt_tokens"].tolist(), strict=True))
    for attempt, to, tokens in zip(*(table[name].tolist() for name in ("attempt", "to", "sent")), strict=True):
        if to in prompts:
            assert prompts[to] == prompts[attempt] + tokens, "the next prompt ends with what the user has"
    found = results.summary["attempts"]["migrations"]
    assert found["migrated"] == results.summary["attempts"]["migrated"] == int(gave.sum())
    assert found["migrated"] + found["in_vain"] + found["anew"] == len(gave)
    for key in ("migrated", "in_vain", "anew", "recomputed_tokens", "lost_tokens"):
        assert found[key] == sum(part[key] for part in found["causes"].values()) >= 0
    itl = results.summary["latency"]["itl_s"]
    read = metrics.answer_tokens[done & (metrics.branches == 1)]
    if (metrics.branches[done] == 1).all():
        assert itl["count"] == int(np.maximum(read - 1, 0).sum()), "a gap between each two tokens"
        assert itl["min"] is None or itl["min"] >= 0


def assert_tokens_add_up(record: RunRecord) -> None:
    """Each token that a client's steps sampled is in one stage, where each sequence gets one from a step."""
    for client in range(len(record.clients)):
        runs, stages = record.runs, record.stages
        mine = runs["client"] == client
        sampled = int((runs["sampled"][mine] * runs["num_steps"][mine]).sum())
        assert sampled == int(stages["output_tokens"][stages["client"] == client].sum())
