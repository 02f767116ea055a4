"""RunRecords without a simulation: one worked out by hand, random small ones, and large ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.core.record import (
    RUN_FIELDS,
    STAGE_FIELDS,
    STATUS_COMPLETED,
    STATUS_REJECTED,
    STATUS_UNFINISHED,
    TRANSFER_FIELDS,
    ClientInfo,
    RunRecord,
)

MS = 1_000_000


def columns(fields: tuple[str, ...], rows: list[dict[str, int]]) -> dict[str, Any]:
    missing = {"fork": -1, "branch": -1}   # no branches
    return {name: np.array([row.get(name, missing.get(name, 0)) for row in rows], dtype=np.int64) for name in fields}


def stage(request: int, kind: int, client: int, assigned: int, start: int, first: int, end: int, steps: tuple[int, int],
          *, prompt: int = 100, tokens: int | None = None, preemptions: int = 0, cached: int = 0) -> dict[str, int]:
    """Times in ms."""
    return {
        "request": request, "kind": kind, "client": client, "assigned_ns": assigned * MS, "start_ns": start * MS,
        "first_token_ns": first * MS if first >= 0 else -1, "end_ns": end * MS, "prompt_tokens": prompt,
        "output_tokens": steps[1] - steps[0] + 1 if tokens is None else tokens, "first_step": steps[0],
        "last_step": steps[1], "preemptions": preemptions, "cached_tokens": cached,
    }


def by_hand() -> RunRecord:
    """Three clients: 0 and 1 serve an LLM, 2 looks things up and works without steps.

    Client 0's steps end at 110, 120, 130 | idle | 220, 230, 240, 250; client 1's at 300, 320 | 350.
    Request 0: generate on 0, steps 0..2. Request 1: generate on 0 with a preemption, tokens at steps 3, 4, 6.
    Request 2: prefill on 0 (step 5), transfer, decode on 1 (steps 0..2). Request 3: rejected. Request 4: unfinished.
    Request 5: retrieve on 2, then generate on 0, one token at step 3.
    """
    clients = [
        ClientInfo("llm-a", "llm", num_blocks=10, block_size=16, idle_w=100.0, prefill_w=1000.0, decode_w=500.0),
        ClientInfo("llm-b", "llm", "decode", num_blocks=20, block_size=16),
        ClientInfo("rag", "rag", idle_w=10.0, prefill_w=20.0),
    ]
    stages = [
        stage(0, 0, 0, 100, 100, 110, 130, (0, 2), cached=32),
        stage(5, 3, 2, 105, 115, -1, 150, (-1, -1), prompt=0, tokens=0),
        stage(5, 0, 0, 200, 210, 220, 220, (3, 3)),
        stage(2, 1, 0, 205, 230, 240, 240, (5, 5)),
        stage(1, 0, 0, 140, 210, 220, 250, (3, 6), tokens=3, preemptions=1),
        stage(2, 2, 1, 240, 290, 300, 350, (0, 2)),
    ]
    runs = [
        {"client": 0, "start_ns": 100 * MS, "end_ns": 110 * MS, "first_step": 0, "num_steps": 1, "prefill_seqs": 1,
         "prefill_tokens": 100, "sampled": 1, "running": 1, "used_blocks": 7},
        {"client": 0, "start_ns": 110 * MS, "end_ns": 130 * MS, "first_step": 1, "num_steps": 2, "decode_seqs": 1,
         "decode_ctx": 101, "sampled": 1, "running": 1, "used_blocks": 7},
        {"client": 0, "start_ns": 210 * MS, "end_ns": 220 * MS, "first_step": 3, "num_steps": 1, "prefill_seqs": 2,
         "prefill_tokens": 200, "sampled": 2, "running": 2, "waiting": 1, "used_blocks": 9},
        {"client": 0, "start_ns": 220 * MS, "end_ns": 230 * MS, "first_step": 4, "num_steps": 1, "decode_seqs": 1,
         "sampled": 1, "running": 1, "waiting": 1, "used_blocks": 10},
        {"client": 0, "start_ns": 230 * MS, "end_ns": 240 * MS, "first_step": 5, "num_steps": 1, "prefill_seqs": 1,
         "prefill_tokens": 100, "sampled": 1, "running": 1, "waiting": 1, "used_blocks": 8, "preempted": 1},
        {"client": 0, "start_ns": 240 * MS, "end_ns": 250 * MS, "first_step": 6, "num_steps": 1, "prefill_seqs": 1,
         "prefill_tokens": 102, "sampled": 1, "running": 1, "used_blocks": 7},
        {"client": 1, "start_ns": 290 * MS, "end_ns": 320 * MS, "first_step": 0, "num_steps": 2, "decode_seqs": 1,
         "sampled": 1, "running": 1, "used_blocks": 5},
        {"client": 1, "start_ns": 330 * MS, "end_ns": 350 * MS, "first_step": 2, "num_steps": 1, "decode_seqs": 1,
         "sampled": 1, "running": 1, "used_blocks": 5},
    ]
    transfers = [{"request": 2, "src": 0, "dst": 1, "bytes": 1 << 20, "start_ns": 250 * MS, "end_ns": 280 * MS}]
    done, lost, open_ = STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED
    return RunRecord(
        clients=clients,
        stage_kinds=["generate", "prefill", "decode", "retrieve"],
        arrival_ns=np.array([100, 140, 205, 210, 340, 105]) * MS,
        prompt_tokens=np.full(6, 100),
        output_tokens=np.array([3, 3, 4, 9, 9, 1]),
        priority=np.zeros(6, dtype=np.int64),
        session=np.array([-1, -1, 3, 3, -1, -1]),
        status=np.array([done, done, done, lost, open_, done], dtype=np.int8),
        finish_ns=np.array([130, 250, 350, -1, -1, 220]) * MS - np.array([0, 0, 0, 1 - MS, 1 - MS, 0]),
        reject_reasons={3: "llm-a: needs 812 blocks, has 10"},
        stages=columns(STAGE_FIELDS, stages),
        runs=columns(RUN_FIELDS, runs),
        transfers=columns(TRANSFER_FIELDS, transfers),
        step_ends=[np.array([110, 120, 130, 220, 230, 240, 250]) * MS, np.array([300, 320, 350]) * MS,
                   np.empty(0, dtype=np.int64)],
        gaps={4: np.array([3, 4, 6])},
        out_of_range_steps=[2, 0, 0],
        end_ns=400 * MS,
        counters={"events": 40},
    )


def random_record(seed: int, requests: int = 12, clients: int = 3) -> tuple[RunRecord, list[list[float]]]:
    """A record with arbitrary but consistent steps, and per request the answer's tokens of each branch (ns).

    Answers come from one or several generates, from a prefill and its decode, with and without skipped steps, after
    earlier LLM stages; some requests are rejected or unfinished.
    """
    rng = np.random.default_rng(seed)
    step_ends = [np.cumsum(rng.integers(1, 50, size=int(rng.integers(40, 120)))) for _ in range(clients)]
    decode_steps = [np.flatnonzero(rng.random(len(ends)) < 0.7) if rng.random() < 0.4 else None for ends in step_ends]
    runs = []
    for client, ends in enumerate(step_ends):
        at = 0
        while at < len(ends):
            count = min(int(rng.integers(1, 6)), len(ends) - at)
            before = int(ends[at - 1]) if at else 0
            start = int(rng.integers(before, ends[at]))
            prefill = int(rng.integers(0, 3))
            runs.append({
                "client": client, "start_ns": start, "end_ns": int(ends[at + count - 1]), "first_step": at,
                "num_steps": count, "prefill_seqs": prefill, "prefill_tokens": 7 * prefill, "sampled": 1,
                "decode_seqs": int(rng.integers(0, 5)), "used_blocks": int(rng.integers(0, 64)),
                "waiting": int(rng.integers(0, 4)), "running": int(rng.integers(0, 5)),
                "preempted": int(rng.integers(0, 2)),
            })
            at += count
    stages: list[dict[str, int]] = []
    steps_of: list[np.ndarray] = []
    branches: list[list[float]] = []
    transfers: list[dict[str, int]] = []
    status = rng.choice([STATUS_COMPLETED] * 6 + [STATUS_REJECTED, STATUS_UNFINISHED], size=requests).astype(np.int8)
    arrival, finish = np.zeros(requests, dtype=np.int64), np.full(requests, -1, dtype=np.int64)

    def add(request: int, kind: int, client: int, assigned: int, steps: np.ndarray) -> tuple[int, list[int]]:
        ends = step_ends[client][steps]
        start = int(rng.integers(assigned, ends[0] + 1)) if assigned < ends[0] else assigned
        stages.append({
            "request": request, "kind": kind, "client": client, "assigned_ns": assigned, "start_ns": start,
            "first_token_ns": int(ends[0]), "end_ns": int(ends[-1]), "prompt_tokens": 10, "output_tokens": len(steps),
            "first_step": int(steps[0]), "last_step": int(steps[-1]), "preemptions": int(rng.integers(0, 2)),
            "cached_tokens": 0,
        })
        steps_of.append(steps)
        return int(ends[-1]), ends.tolist()

    def later(client: int, after: int, most: int = 15) -> np.ndarray | None:
        """Steps of a client that end later than `after`: after the first decode steps in a row, or scattered ones."""
        low = int(np.searchsorted(step_ends[client], after, side="right")) + int(rng.integers(0, 3))
        if low >= len(step_ends[client]):
            return None
        ticks = decode_steps[client]
        rest = np.arange(low + 1, len(step_ends[client])) if ticks is None else ticks[ticks > low]
        steps = np.concatenate(([low], rest[: int(rng.integers(0, most))]))
        if len(steps) > 2 and rng.random() < 0.3:
            steps = np.sort(rng.choice(steps, size=len(steps) - 1, replace=False))
        return steps

    for request in range(requests):
        now = arrival[request] = int(rng.integers(0, 300))
        answer: list[list[float]] = []
        shape = rng.choice(["generate", "twice", "parallel", "disaggregated"])
        if shape == "twice" and (steps := later(0, now, 5)) is not None:
            now, _ = add(request, 0, 0, now, steps)
        if shape == "disaggregated":
            source, target = rng.choice(clients, size=2, replace=False).tolist()
            if (steps := later(source, now)) is not None:
                now, first = add(request, 1, source, now, steps[:1])
                answer = [first]
                if (steps := later(target, now)) is not None:
                    transfers.append({"request": request, "src": source, "dst": target, "bytes": 5, "start_ns": now,
                                      "end_ns": now + 1})
                    now, rest = add(request, 2, target, now, steps)
                    answer = [first + rest]
        else:
            begin = now
            for _ in range(3 if shape == "parallel" else 1):
                client = int(rng.integers(0, clients))
                if (steps := later(client, begin)) is not None:
                    ended, times = add(request, 0, client, begin, steps)
                    answer.append(times)
                    now = max(now, ended)
        if not answer:
            status[request] = STATUS_REJECTED
        if status[request] == STATUS_COMPLETED:
            finish[request] = now
            branches.append(answer)
        else:
            branches.append([])
    order = np.argsort([row["end_ns"] for row in stages], kind="stable") if stages else []

    def regular(steps: np.ndarray, ticks: np.ndarray | None) -> bool:
        if ticks is None:
            return bool(steps[-1] - steps[0] + 1 == len(steps))
        return bool(np.array_equal(ticks[ticks <= steps[-1]][::-1][: len(steps) - 1], steps[1:][::-1]))

    gaps = {
        place: steps_of[row] for place, row in enumerate(order)
        if not regular(steps_of[row], decode_steps[stages[row]["client"]])
    }
    record = RunRecord(
        clients=[
            ClientInfo(f"client {c}", "llm", num_blocks=64, block_size=16, idle_w=float(rng.integers(0, 90)),
                       prefill_w=float(rng.integers(100, 900)), decode_w=float(rng.integers(100, 900)))
            for c in range(clients)
        ],
        stage_kinds=["generate", "prefill", "decode"],
        arrival_ns=arrival,
        prompt_tokens=rng.integers(1, 99, requests),
        output_tokens=rng.integers(1, 99, requests),
        priority=rng.integers(0, 3, requests),
        session=rng.integers(-1, 3, requests),
        status=status,
        finish_ns=finish,
        reject_reasons={i: f"no room for {i}" for i in np.flatnonzero(status == STATUS_REJECTED).tolist()},
        stages=columns(STAGE_FIELDS, [stages[row] for row in order]),
        runs=columns(RUN_FIELDS, runs),
        transfers=columns(TRANSFER_FIELDS, transfers),
        step_ends=step_ends,
        gaps=gaps,
        out_of_range_steps=rng.integers(0, 3, clients).tolist(),
        end_ns=max(int(ends[-1]) for ends in step_ends),
        decode_steps=decode_steps,
        counters={"events": 1, "steps": 2},
    )
    return record, branches


def large_record(requests: int, clients: int = 32, tokens: int = 200, batch: int = 20, seed: int = 0) -> RunRecord:
    """About `batch` sequences at a time on every client, `tokens` each on average, steps of about 20 ms."""
    rng = np.random.default_rng(seed)
    client = rng.integers(0, clients, requests)
    lengths = rng.integers(1, 2 * tokens, requests)
    step_ends, first = [], np.zeros(requests, dtype=np.int64)
    for c in range(clients):
        mine = np.flatnonzero(client == c)
        starts = np.sort(rng.integers(0, max(int(lengths[mine].sum()) // batch, 1), len(mine)))
        first[mine] = starts
        steps = int((starts + lengths[mine]).max()) if len(mine) else 0
        step_ends.append(np.cumsum(rng.integers(15 * MS, 25 * MS, steps)))
    last = first + lengths - 1
    first_ns, end_ns = np.zeros(requests, dtype=np.int64), np.zeros(requests, dtype=np.int64)
    runs: dict[str, list[np.ndarray]] = {name: [] for name in RUN_FIELDS}
    for c in range(clients):
        mine = np.flatnonzero(client == c)
        first_ns[mine], end_ns[mine] = step_ends[c][first[mine]], step_ends[c][last[mine]]
        begin = np.arange(0, len(step_ends[c]), 3)
        count = np.diff(np.append(begin, len(step_ends[c])))
        values = {
            "client": np.full(len(begin), c), "start_ns": np.append(0, step_ends[c][begin[1:] - 1])[:len(begin)],
            "end_ns": step_ends[c][begin + count - 1], "first_step": begin, "num_steps": count,
            "decode_seqs": np.full(len(begin), batch), "prefill_seqs": (rng.random(len(begin)) < 0.3).astype(np.int64),
        }
        for name in RUN_FIELDS:
            runs[name].append(values.get(name, np.ones(len(begin), dtype=np.int64)))
    start_ns = np.maximum(first_ns - 20 * MS, 0)
    arrival = np.maximum(start_ns - rng.integers(0, 100 * MS, requests), 0)
    order = np.argsort(arrival, kind="stable")
    rank = np.empty(requests, dtype=np.int64)
    rank[order] = np.arange(requests)
    done = np.argsort(end_ns, kind="stable")
    values = {
        "request": rank, "kind": np.zeros(requests, dtype=np.int64), "client": client, "assigned_ns": arrival,
        "start_ns": start_ns, "first_token_ns": first_ns, "end_ns": end_ns, "prompt_tokens": np.full(requests, 1000),
        "output_tokens": lengths, "first_step": first, "last_step": last,
    }
    zeros = np.zeros(requests, dtype=np.int64)
    return RunRecord(
        clients=[ClientInfo(f"client-{c}", "llm", num_blocks=1000, idle_w=1.0, prefill_w=9.0, decode_w=5.0)
                 for c in range(clients)],
        stage_kinds=["generate"],
        arrival_ns=arrival[order], prompt_tokens=np.full(requests, 1000), output_tokens=lengths[order],
        priority=zeros, session=zeros, status=np.full(requests, STATUS_COMPLETED, dtype=np.int8),
        finish_ns=end_ns[order], reject_reasons={},
        stages={name: (values | {"fork": zeros - 1, "branch": zeros - 1}).get(name, zeros)[done]
                for name in STAGE_FIELDS},
        runs={name: np.concatenate(parts) for name, parts in runs.items()},
        transfers=columns(TRANSFER_FIELDS, []),
        step_ends=step_ends, gaps={}, out_of_range_steps=[0] * clients, end_ns=int(end_ns.max(initial=0)),
    )
