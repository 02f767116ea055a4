"""Tiers of a replica's own are gone with it; those that it shares keep what it wrote, and reads under way stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conservation import assert_conserved, assert_nothing_leaks, ran

S = 1_000_000_000
CLIENT: dict[str, Any] = {
    "name": "llm", "count": 2, "model": "llama-3.1-8b", "memory": {"num_blocks": 400},
    "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
}


def run(scope: str, own: dict[str, Any], bandwidth: str = "50 GB/s", rate: float = 20.0) -> Any:
    tiers = {"levels": [{"name": "host", "capacity": "8 GB", "bandwidth": bandwidth, "scope": scope}],
             "block_tokens": 16}
    return ran({
        "workload": {"requests": 120, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": 320, "output": 20},
                     "prefixes": {"groups": 1, "tokens": 256}},
        "clients": [CLIENT | {"tiers": tiers, "fleet": {"start": 2, "start_up": {"total": 0.5}, **own}}],
        "gateway": {"retries": 5, "backoff": 0.2, "begun": "restart"}})


def first_found(record: Any, client: int, since_ns: int) -> int:
    """Prompt tokens that the first stage found which a client got from a time on."""
    stages = record.stages
    mine = np.flatnonzero((stages["client"] == client) & (stages["assigned_ns"] >= since_ns))
    return int(stages["cached_tokens"][mine[np.argsort(stages["assigned_ns"][mine])][0]])


LEAVES = {
    "crash": {"crashes": [{"at": 2.0, "replica": 1}], "probe": {"period": 0.1, "failures": 1, "delay": 0}},
    "drain": {"autoscaler": {"kind": "schedule", "changes": [{"at": 2.0, "replicas": 1}, {"at": 3.0, "replicas": 2}]}},
}


@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize(("scope", "found"), [("client", 0), ("all", 256)])
def test_a_new_replica_finds_what_is_shared(how: str, scope: str, found: int) -> None:
    simulation, record = run(scope, LEAVES[how])
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    ready = [time for client, number, time, state in record.membership.tolist() if (client, number, state) == (1, 1, 1)]
    assert len(ready) == 1
    assert first_found(record, 1, ready[0]) == found
    assert first_found(record, 1, 0) in (0, 256)


def test_reads_and_writes_of_a_replica_that_goes_down_stop_by_hand() -> None:
    """256 tokens of KV, 33.6 MB, take 3.36 s at 10 MB/s: the tier is busy when the replica crashes, and free then."""
    crash = {"crashes": [{"at": 2.0, "replica": 1}, {"at": 2.0, "replica": 0}], "start_up": {"total": 600.0}}
    simulation, record = run("client", crash, bandwidth="10 MB/s")
    assert_nothing_leaks(simulation)
    for tier in record.tiers:
        assert tier.used_bytes == 0
        assert tier.busy_ns <= 2 * S
        moved = tier.read_bytes + tier.written_bytes
        assert 0 < moved <= tier.busy_ns / S * 10e6 + 1
        assert moved >= tier.busy_ns / S * 10e6 - 40   # of each flow that was stopped a part of a byte is left out
        assert tier.link is not None
        assert tier.link.num_bytes == moved
