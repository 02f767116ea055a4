"""The numbered invariants: what holds at the end of every simulation, whatever it simulated."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
from found_parts import handoff_of
from outcomes import Outcome, stage_token_steps

from hermes.core.record import STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED, RunRecord


def check(outcome: Outcome, data: dict[str, Any]) -> None:
    """All of them; `data` is the scenario that was run to its end."""
    every_arrival_is_accounted_for(outcome.record)
    no_clock_runs_backwards(outcome.record)
    blocks_are_conserved(outcome)
    tokens_out_are_tokens_asked(outcome, data)
    stages_do_not_overlap(outcome.record, data)
    bytes_sent_are_bytes_received(outcome, data)
    nothing_is_left_behind(outcome)
    turns_wait_for_answers(outcome)
    gates_hold(outcome)
    routers_choose_by_the_loads_they_see(outcome, data)


def every_arrival_is_accounted_for(record: RunRecord, *, horizon: bool = False) -> None:
    """1: completed, rejected with a reason, or unfinished where the simulation was cut short."""
    rejected = np.flatnonzero(record.status == STATUS_REJECTED).tolist()
    assert sorted(record.reject_reasons) == rejected
    assert all(reason.strip() for reason in record.reject_reasons.values())
    completed = record.status == STATUS_COMPLETED
    assert ((record.finish_ns >= 0) == completed).all()
    if not horizon:
        assert not (record.status == STATUS_UNFINISHED).any()
        assert (record.arrival_ns >= 0).all()
    served = set(record.stages["request"].tolist())
    assert set(np.flatnonzero(completed).tolist()) <= served


def no_clock_runs_backwards(record: RunRecord) -> None:
    """2: steps, stages, transfers and runs."""
    for ends in record.step_ends:
        assert (np.diff(ends, prepend=0) > 0).all()
    stages = record.stages
    arrival = record.arrival_ns[stages["request"]]
    order = [arrival, stages["assigned_ns"], stages["start_ns"], stages["first_token_ns"], stages["end_ns"]]
    for i, (before, after) in enumerate(pairwise(order)):
        assert (before < after if i == 2 else before <= after).all(), f"times {i} and {i + 1} of a stage"
    done = record.status == STATUS_COMPLETED
    assert (record.finish_ns[done] >= record.arrival_ns[done]).all()
    assert (record.transfers["end_ns"] >= record.transfers["start_ns"]).all()
    runs = record.runs
    for client, ends in enumerate(record.step_ends):
        mine = runs["client"] == client
        first, count = runs["first_step"][mine], runs["num_steps"][mine]
        assert count.sum() == len(ends), "every step belongs to one run"
        assert first.tolist() == (np.cumsum(count) - count).tolist(), "runs follow one another"
        assert (runs["start_ns"][mine][1:] >= runs["end_ns"][mine][:-1]).all()
        assert runs["end_ns"][mine].tolist() == ends[first + count - 1].tolist()
    assert record.end_ns >= max((int(ends[-1]) for ends in record.step_ends if len(ends)), default=0)


def blocks_are_conserved(outcome: Outcome) -> None:
    """3: all blocks came back. (`outcomes.watched` refuses, at each change, to leave 0 to capacity.)"""
    used = outcome.record.runs["used_blocks"]
    assert (used >= 0).all()
    for client in outcome.simulation.clients:
        pool = client.scheduler.pool
        assert pool.free_blocks == pool.num_blocks, f"{client.name} kept {pool.num_blocks - pool.free_blocks} blocks"
        assert (used[outcome.record.runs["client"] == client.index] <= pool.num_blocks).all()


def _wanted(pipeline: str, prompt: int, output: int) -> list[tuple[int, int]]:
    """(prompt, output) of each generation of a pipeline, in any order."""
    if pipeline == "test_draft":
        draft = 1 + output // 2
        return [(prompt, draft), (prompt + draft, output)]
    if pipeline == "test_branches":
        two, three = 1 + output // 2, 1 + output // 3
        return [(prompt, two), (prompt, three), (prompt + two + three, output)]
    return [(prompt, output)]


def _pipelines(record: RunRecord, data: dict[str, Any]) -> list[str]:
    names = [w["pipeline"] for w in data["workload"] for _ in range(w["requests"])]
    assert len(names) == len(record.status)
    return names


def _branches(table: Any) -> list[list[int]]:
    """Output tokens of each branch of each request; none where it has a single answer."""
    if table.branch_tokens is None:
        return [[] for _ in range(len(table))]
    rows: list[list[int]] = table.branch_tokens.tolist()
    return rows


def tokens_out_are_tokens_asked(outcome: Outcome, data: dict[str, Any]) -> None:
    """4: each generation of a completed request gives the tokens asked for, one at a time, where the record says."""
    record = outcome.record
    together = [client.scheduler.returns_together for client in outcome.simulation.clients]
    stages, pipelines = record.stages, _pipelines(record, data)
    prefill, decode = record.stage_kinds.index("prefill"), record.stage_kinds.index("decode")
    given: dict[int, list[tuple[int, int]]] = defaultdict(list)
    halves: dict[int, list[int]] = defaultdict(list)
    gives = int(data.get("first_token") == "prefill")   # tokens of a prefill that users get
    for row, (request, kind) in enumerate(zip(stages["request"].tolist(), stages["kind"].tolist(), strict=True)):
        prompt, output = int(stages["prompt_tokens"][row]), int(stages["output_tokens"][row])
        client = int(stages["client"][row])
        times = record.step_ends[client][stage_token_steps(record, row)]
        assert len(times) == output
        assert (np.diff(times) > 0).all()
        if output:
            assert times[0] == stages["first_token_ns"][row]
            assert times[-1] == stages["end_ns"][row] or (together[client] and times[-1] < stages["end_ns"][row])
        assert 0 <= stages["cached_tokens"][row] < prompt + output
        if kind == prefill:
            assert output == gives
            halves[request].append(prompt)
        elif kind == decode:
            assert prompt in halves[request], "a decode without its prefill"
            halves[request].remove(prompt)
            given[request].append((prompt, output + gives))
        else:
            given[request].append((prompt, output))
    outputs = [row for stream in outcome.simulation.streams for row in _branches(stream.table)]
    for request in np.flatnonzero(record.status == STATUS_COMPLETED).tolist():
        prompt = int(record.prompt_tokens[request])
        wanted = _wanted(pipelines[request], prompt, int(record.output_tokens[request]))
        if outputs[request]:
            wanted = [(prompt, output) for output in outputs[request]]
        assert sorted(given[request]) == sorted(wanted), f"request {request}"
        assert not halves[request]


def stages_do_not_overlap(record: RunRecord, data: dict[str, Any]) -> None:
    """5: a request's stages follow one another, but for those its pipeline runs side by side."""
    stages, pipelines = record.stages, _pipelines(record, data)
    rows: dict[int, list[int]] = defaultdict(list)
    for row, request in enumerate(stages["request"].tolist()):
        rows[request].append(row)
    for request, mine in rows.items():
        if stages["branch"][mine[0]] >= 0:
            branches_lie_side_by_side(record, mine)
            continue
        if pipelines[request] == "test_branches":
            if record.status[request] != STATUS_COMPLETED:
                continue
            total = max(int(stages["prompt_tokens"][row]) for row in mine)
            last = [row for row in mine if stages["prompt_tokens"][row] == total]
            others = [row for row in mine if row not in last]
            assert max(stages["end_ns"][row] for row in others) <= min(stages["assigned_ns"][row] for row in last)
            mine = last
        for before, after in pairwise(sorted(mine, key=lambda row: int(stages["start_ns"][row]))):
            assert stages["end_ns"][before] <= stages["start_ns"][after], f"stages of request {request}"
            assert stages["end_ns"][before] <= stages["assigned_ns"][after]


def branches_lie_side_by_side(record: RunRecord, rows: list[int]) -> None:
    """The stages of one generation with branches: one prompt, first tokens together, a branch's own in order."""
    stages = {name: column[rows] for name, column in record.stages.items()}
    assert len(set(stages["fork"].tolist())) == 1
    decode = stages["kind"] == record.stage_kinds.index("decode")
    for name in ("client", "assigned_ns", "start_ns", "first_token_ns", "first_step"):
        assert len(set(stages[name][~decode].tolist())) == 1, name
    for name in ("client", "assigned_ns"):
        assert len(set(stages[name][decode].tolist())) <= 1, name
    for branch in set(stages["branch"].tolist()):
        ends = stages["end_ns"][(stages["branch"] == branch) & ~decode]
        starts = stages["start_ns"][(stages["branch"] == branch) & decode]
        assert len(ends) == 1
        assert len(starts) <= 1
        assert (starts >= ends).all()


def bytes_sent_are_bytes_received(outcome: Outcome, data: dict[str, Any]) -> None:
    """6: and they are the KV of the prompts that moved. (A hand-over that could only wait for ever moves nothing.)"""
    record, handoff = outcome.record, handoff_of(outcome.simulation)
    networks = {outcome.simulation.network} | (set() if handoff is None else {handoff.network})
    sent = sum(network.bytes_sent for network in networks)
    assert sent == sum(network.bytes_received for network in networks)
    moved = int(record.transfers["bytes"].sum())
    assert sent == moved
    decodes = record.stages["kind"] == record.stage_kinds.index("decode")
    forks = set(record.stages["fork"][decodes & (record.stages["fork"] >= 0)].tolist())   # a prompt moves once
    single = decodes & (record.stages["fork"] < 0)
    assert len(record.transfers["bytes"]) == single.sum() + len(forks)
    prompts = set(zip(record.stages["request"][decodes].tolist(), record.stages["prompt_tokens"][decodes].tolist(),
                      strict=True))
    for moved_of in zip(record.transfers["request"].tolist(), record.transfers["bytes"].tolist(), strict=True):
        # a byte a token; layer by layer some had moved before it was given up
        gave_up = data["kv_transfer"] == "layerwise" and any(
            request == moved_of[0] and moved_of[1] < tokens for request, tokens in prompts)
        assert moved_of[1] == 0 or moved_of in prompts or gave_up
    if data["kv_transfer_scope"] == "local":
        platform = [client.platform for client in outcome.simulation.clients]
        for src, dst in zip(record.transfers["src"].tolist(), record.transfers["dst"].tolist(), strict=True):
            assert platform[src] == platform[dst], "KV left its platform"


def nothing_is_left_behind(outcome: Outcome) -> None:
    """Clients, schedulers and the coordinator are empty, their running counts back at zero."""
    assert outcome.simulation.coordinator.unfinished == 0
    for client in outcome.simulation.clients:
        scheduler = client.scheduler
        left = (scheduler.num_waiting, len(scheduler.running), len(scheduler.partial), scheduler.group.n,
                scheduler.group.ctx, len(scheduler.group.members), sum(scheduler.group.crossing))
        assert left == (0,) * 7, f"{client.name} still has {left}"
        assert [client.load(k) for k in ("input_tokens", "output_tokens", "kv_tokens", "tokens_left")] == [0] * 4
        assert client.num_assigned == 0


def turns_wait_for_answers(outcome: Outcome) -> None:
    """A turn comes when the user has thought about the answer before; what it says begins with all that was said."""
    record = outcome.record
    for stream in outcome.simulation.streams:
        table, first = stream.table, stream.first_id
        if table.turn is None:
            continue
        assert table.think_ns is not None
        outputs = table.output_tokens if table.branch_tokens is None else table.branch_tokens[:, 0]
        for row in np.flatnonzero(table.turn).tolist():
            rejected = record.status[first + row - 1] == STATUS_REJECTED
            due = record.finish_ns[first + row - 1] + table.think_ns[row]
            arrived = record.arrival_ns[first + row]
            assert rejected or (arrived == due if table.max_in_flight is None else arrived >= due)
            assert table.prompt_tokens[row] > table.prompt_tokens[row - 1] + outputs[row - 1]
            assert table.session[row] == table.session[row - 1]


def gates_hold(outcome: Outcome) -> None:
    """No more requests of a workload are in flight than its gate lets through."""
    record = outcome.record
    for stream in outcome.simulation.streams:
        limit = stream.table.max_in_flight
        if limit is None:
            continue
        mine = slice(stream.first_id, stream.first_id + len(stream.table))
        start, end = record.arrival_ns[mine], record.finish_ns[mine]
        changes = sorted([(at, -1) for at in end[end >= 0].tolist()] + [(at, 1) for at in start[end >= 0].tolist()])
        flying = np.cumsum([change for _, change in changes])
        assert flying.max(initial=0) <= limit


def routers_choose_by_the_loads_they_see(outcome: Outcome, data: dict[str, Any]) -> None:
    """A least-loaded router's choice is the first of the least loaded, as of now."""
    router = data["router"]["router"]
    if router["kind"] != "least_loaded":
        return
    kinds = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left")
    position = kinds.index(router["load"])
    for _request, _now, chosen, _decode_on, candidates, *loads in outcome.loads:
        mine = loads[position::4]
        assert chosen == candidates[mine.index(min(mine))], f"loads {mine}"
