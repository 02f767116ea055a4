"""What binds: a small scenario made to bind on each resource, and one in which nothing does."""

from __future__ import annotations

from typing import Any

import pytest

import hermes

HARDWARE = {"kind": "polynomial", "profile": "llama-2-70b-h100-tp8"}


def run(rate: float | None = 40.0, *, requests: int = 400, lengths: tuple[int, int] = (200, 40), count: int = 1,
        **client: Any) -> dict[str, Any]:
    arrivals = {"kind": "at_once"} if rate is None else {"kind": "poisson", "rate": rate}
    summary = hermes.simulate({
        "workload": {"requests": requests, "arrivals": arrivals,
                     "lengths": {"kind": "fixed", "prompt": lengths[0], "output": lengths[1]}},
        "clients": [{"name": "llm", "count": count, "hardware": HARDWARE, "memory": {"num_blocks": 50_000}, **client}],
    }).summary
    found: dict[str, Any] = summary["binds"]
    return found


def test_arrivals() -> None:
    """An engine that is always busy, with room for more."""
    found = run(6.0)
    assert (found["what"], found["where"], found["all"]) == ("arrivals", None, {})
    assert found["groups"]["llm"]["busy_share"] > 0.95
    assert found["groups"]["llm"]["what"] == "arrivals"


@pytest.mark.parametrize(("what", "scenario"), [
    ("slots", {"rate": 8.0, "scheduler": {"kind": "chunked", "max_num_seqs": 4}}),
    ("slots", {"rate": 8.0, "scheduler": {"kind": "static", "max_num_seqs": 4}}),
    ("KV memory", {"rate": 8.0, "memory": {"num_blocks": 64}}),
    ("KV memory", {"rate": 8.0, "memory": {"num_blocks": 64}, "scheduler": {"kind": "continuous"}}),
    ("compute", {"rate": 40.0, "lengths": (1500, 4)}),
    ("compute", {"rate": 40.0, "lengths": (1500, 4),
                 "scheduler": {"kind": "continuous", "max_num_batched_tokens": 2048}}),
    ("nothing", {"rate": None, "requests": 20, "lengths": (100, 300)}),
])
def test_each_resource(what: str, scenario: dict[str, Any]) -> None:
    found = run(**scenario)
    assert found["what"] == what, found
    if what != "nothing":
        assert found["where"] == "llm"
        assert found["share"] >= 0.5
        assert list(found["all"]) == [f"{what} llm"]
    assert found["groups"]["llm"]["what"] == what


def test_memory_of_the_clients_that_kv_moves_to() -> None:
    """Prompts are computed at once, and wait to move: the decode clients have no room for them."""
    client = {"hardware": HARDWARE, "memory": {"num_blocks": 50_000, "kv_bytes_per_token": 1000}}
    small = {**client, "memory": {"num_blocks": 70, "kv_bytes_per_token": 1000}}
    found = hermes.simulate({
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 8.0},
                     "lengths": {"kind": "fixed", "prompt": 200, "output": 40}},
        "clients": [{"name": "p", "role": "prefill", **client}, {"name": "d", "role": "decode", **small}],
    }).summary["binds"]
    assert (found["what"], found["where"]) == ("KV memory", "d")
    assert found["groups"]["p"]["what"] == "arrivals"


def test_alike_clients_are_one_group() -> None:
    found = run(16.0, count=3, scheduler={"kind": "chunked", "max_num_seqs": 2})
    assert list(found["groups"]) == ["llm"]
    assert found["groups"]["llm"]["clients"] == 3
    assert (found["what"], found["where"]) == ("slots", "llm")
