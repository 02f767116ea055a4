"""Random crashes, retries and time-outs whose times fall on one another: runs of steps leave what single steps leave.

Steps take 1,000 ns and 100 ns more per prompt token (`hand_parts`), and most other times are multiples of 500 ns. So
step ends, KV, crashes, starts, time-outs and arrivals often have one instant, and others lie within a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import hand_parts
import pytest
from conservation import assert_migrations_add_up
from hand_parts import MODES, Data, Run, ask, client, fleet, s
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.results.measure import streamed


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def time(rnd: Random, most: int) -> int:
    return rnd.randrange(most) * 500 + rnd.choice([0, 0, 0, 137, 251])


def random_fleet(rnd: Random, count: int) -> Data:
    scale = {time(rnd, 80): rnd.randint(1, count) for _ in range(rnd.randrange(4))}
    crashes, start = [(time(rnd, 80), rnd.randrange(count)) for _ in range(rnd.randrange(6))], rnd.randint(1, count)
    return fleet(   # without changes, the slots from `start` on never have a replica, and may not crash
        *((at, slot) for at, slot in crashes if scale or slot < start), start=start,
        up=rnd.choice([0, 500, 3000, 10000]), scale=tuple(sorted(scale.items())),
        probe=(rnd.choice([1, 500, 3000, 100000]), rnd.randint(1, 2), rnd.choice([0, 500]), 0))


def scheduler(rnd: Random, kind: str) -> Data:
    if kind == "sglang":
        return {"kind": kind}
    seats: Data = {"kind": kind, "max_num_seqs": rnd.choice([2, 8])}
    return seats if kind != "chunked" else seats | {
        "async_scheduling": rnd.random() < 0.4, "max_num_batched_tokens": rnd.choice([10, 20, 100])}


def scenario(rnd: Random) -> tuple[list[Data], list[Data], Data]:
    """Return clients, requests, and other keys."""
    apart = rnd.random() < 0.5
    kind = rnd.choice(["chunked"] * 3 + ["continuous", "mixed"] + ["static", "sglang"] * (not apart))
    size = 1 if kind == "sglang" else rnd.choice([1, 4])
    caching = rnd.random() < 0.5 and kind != "static"
    memory = {"size": size, "blocks": rnd.choice([160, 800]) // size, "caching": caching}
    own = {"scheduler": scheduler(rnd, kind)}
    if rnd.random() < 0.2:
        own["frontend"] = {"before": s(500), "after": s(500)}
    keys: Data = {"router": {"kind": rnd.choice(["round_robin", "least_loaded"])}, "gateway": {
        "retries": rnd.randrange(4), "begun": rnd.choice(["fail", "restart"]),
        "per_try": rnd.choice([None, s(3000), s(8000)]), "timeout": rnd.choice([None, s(20000)]),
        "cancel_delay": rnd.choice([0, s(500), s(1500)]),
        "queue": rnd.choice([None, {"ttl": s(4000)}, {"ttl": 1.0, "max": 2}])}}
    if apart:
        clients = [client(random_fleet(rnd, 2), name=role, role=role, **memory) | own for role in ("prefill", "decode")]
        layerwise = rnd.random() < 0.5
        keys |= {"kv_transfer": "layerwise" if layerwise else "full", "kv_transfer_retry": rnd.choice([None, s(1000)]),
                 "first_token": rnd.choice(["decode", "prefill"]), "network": {
                     "kind": "link", "bandwidth": rnd.choice([1e9, 4e9, 1e10]), "shared": rnd.random() < 0.5,
                     "latency": rnd.choice([0, s(500)])}}
        if layerwise:
            clients = [one | {"model": "llama-3.1-8b", "allow_mismatch": True} for one in clients]
    else:
        clients = [client(random_fleet(rnd, 3), count=3, **memory) | own]
    more: Data = {"branches": 2} if kind in ("chunked", "continuous", "static") and rnd.random() < 0.25 else {}
    asks = []
    for _ in range(rnd.randint(5, 25)):
        patience = rnd.choice([{}] * 4 + [{"patience": {limit: s(500 * rnd.randint(1, 30))}}
                                          for limit in ("total", "first_token")])
        asks.append(ask(time(rnd, 60), rnd.randint(1, 6) * rnd.choice([5, 10]), rnd.randint(1, 11), **patience, **more))
    if rnd.random() < 0.6:
        keys["gateway"]["migration"] = {"limit": rnd.randint(1, 4), "idle": rnd.choice([None, s(2500), s(6000)])}
        for one in clients:
            one["fleet"]["drain"] = {"grace": s(rnd.choice([500, 2000, 6137])), "end": rnd.choice([None, "cancel"])}
    return clients, asks, keys


def block_times(found: Run) -> list[int | None]:
    """Blocks x ns of each client. None where KV is taken or freed from outside at the end of a step: a single step may
    count those blocks or not."""
    record = found.record
    apart = any(info.role != "both" for info in record.clients)
    outside = {time for table in (record.transfers, record.stages) for name in ("start_ns", "end_ns", "assigned_ns")
               for time in table.get(name, ())} if apart else set()
    totals = [int(record.runs["kv_block_ns"][record.runs["client"] == index].sum())
              for index in range(len(record.clients))]
    return [None if outside & set(found.step_ends(index)) else total for index, total in enumerate(totals)]


def left_behind(found: Run) -> dict[str, Any]:
    record = found.record
    return {
        "ends": found.ends, "finish": found.finish, "reasons": found.reasons, "attempts": found.attempts,
        "migrations": {name: column.tolist() for name, column in record.migrations.items()},
        "computed": record.attempts["computed"].tolist(), "stages": sorted(found.stages), "moves": sorted(found.moves),
        "members": record.membership.tolist(), "steps": [ends.tolist() for ends in record.step_ends],
        "busy": [found.busy_ns(index) for index in range(len(record.clients))], "blocks": block_times(found),
        "cached": int(record.stages["cached_tokens"].sum()),
    }


@quick_and_full(16, 150, thorough=5000)
@given(st.integers(0, 1 << 40))
def test_runs_of_steps_leave_what_single_steps_leave(seed: int) -> None:
    clients, asks, keys = scenario(Random(seed))
    runs, steps = (Run(clients, asks, mode, **keys) for mode in MODES)
    ours, theirs = left_behind(runs), left_behind(steps)
    for name, value in ours.items():
        assert value == theirs[name], name
    assert (streamed(runs.record) >= 0).all()
    assert_migrations_add_up(runs.record)
