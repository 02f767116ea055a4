"""Disaggregated prefill and decode in scenarios small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import pytest
from outcomes import run

Data = dict[str, Any]


def client(name: str, role: str, *, blocks: int = 1000, kind: str = "chunked", **hardware: int) -> Data:
    slow = {"kind": "test_ticks", "per_token": 10**6, "per_ctx": 10**6}
    return {
        "name": name, "role": role, "hardware": slow | hardware,
        "scheduler": {"kind": kind}, "memory": {"block_size": 1, "num_blocks": blocks, "kv_bytes_per_token": 1.0},
    }


def scenario(clients: list[Data], rows: list[list[int]], units: list[int], **more: Any) -> Data:
    return {
        "clients": clients, "workload": {
            "requests": len(rows), "arrivals": {"kind": "test_listed", "units": units},
            "lengths": {"kind": "test_listed", "rows": [[*row, 0, -1, -1, 0] for row in rows]},
        }, **more,
    }


@pytest.mark.parametrize("kind", ["chunked", "continuous", "mixed"])
def test_kv_that_fills_the_memory_can_still_go_on(kind: str) -> None:
    # Prompts of 3 tokens fill all 6 blocks; each needs another block for its next token.
    clients = [client("p", "prefill"), client("d", "decode", blocks=6, kind=kind)]
    for stepping in ("runs", "every_step"):
        record = run(scenario(clients, [[3, 3], [3, 3]], [0, 0]), stepping).record
        assert record.status.tolist() == [1, 1]


def test_output_tokens_of_a_decode_client_leave_out_the_first() -> None:
    # Each decode client has 4 tokens to give (2 + 2, and 4): equally loaded, so the fourth request goes to the first.
    clients = [client("p", "prefill"), {**client("d", "decode", base=100), "count": 2}]
    rows, router = [[3, 3], [3, 5], [3, 3], [3, 9]], {"kind": "least_loaded", "load": "output_tokens"}
    outcome = run(scenario(clients, rows, [0, 2, 4, 6], router={"kind": "test_probe", "router": router}))
    stages = outcome.record.stages
    decodes = stages["kind"] == outcome.record.stage_kinds.index("decode")
    target = dict(zip(stages["request"][decodes].tolist(), stages["client"][decodes].tolist(), strict=True))
    assert target == {0: 1, 1: 2, 2: 1, 3: 1}
