"""Where the time of a request went: parts that add up, and waiting named by its cause."""

import json

import pytest

import hermes
from hermes.cli import main
from hermes.errors import InputError
from hermes.results.request_times import BLOCKS, BUDGET, PLANNED, SLOTS, request_times


def served(requests=6, prompt=300, output=20, scheduler=None, memory=None, rate=1000.0):
    return hermes.simulate({
        "name": "s", "seed": 1,
        "workload": {"requests": requests, "arrivals": {"kind": "uniform", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": prompt, "output": output}},
        "clients": [{
            "name": "a", "model": "llama-3.1-8b", "engine": "vllm-0.23",
            "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
            "memory": {"num_blocks": 1000, "prefix_caching": False, **(memory or {})},
            "scheduler": {"kind": "chunked", **(scheduler or {})},
        }],
    })


def causes(results, request):
    return {part.cause for part in request_times(results, request) if part.part == "queue"}


@pytest.mark.parametrize("rate", [5.0, 50.0, 1000.0])
def test_parts_add_up_to_the_whole(rate):
    results = served(requests=12, rate=rate)
    for request in range(12):
        row = results.requests[results.requests["request"] == request].iloc[0]
        parts = request_times(results, request)
        assert sum(part.seconds for part in parts) == pytest.approx(row["e2e_s"], rel=1e-9)
        assert all(part.seconds > 0 for part in parts)
        to_first = [part for part in parts if part.part in ("queue", "prompt")]
        assert sum(part.seconds for part in to_first) == pytest.approx(row["ttft_s"], rel=1e-9)


def test_waiting_is_named_by_what_was_missing():
    assert SLOTS in causes(served(scheduler={"max_num_seqs": 2}), 5)
    assert BLOCKS in causes(served(memory={"num_blocks": 45}), 5)
    assert BUDGET in causes(served(scheduler={"max_num_batched_tokens": 310, "max_num_seqs": 64}), 5)
    assert PLANNED in causes(served(requests=2, rate=100.0, prompt=2000), 1)


def test_tokens_beside_the_prompts_of_others():
    parts = request_times(served(requests=3, rate=20.0, output=40), 0)
    found = {part.cause: part for part in parts if part.part == "decode"}
    assert set(found) == {"no prompt in these steps", "prompts of others in these steps"}
    assert sum(part.steps for part in found.values()) == 39


def test_a_request_that_does_not_exist():
    with pytest.raises(InputError, match="0 to 5"):
        request_times(served(), 6)


@pytest.mark.long
def test_the_command_shows_it(capsys):
    assert main(["explain", "quickstart", "--request", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["e2e_s"], rel=1e-9)
    assert main(["explain", "quickstart", "--request", "12"]) == 0
    assert "prompts of others" in capsys.readouterr().out
    assert main(["explain", "quickstart", "--request", "99999"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
