"""Prefix caches that go on in tiers: what is found, that it is read, that both ways of stepping agree."""

from __future__ import annotations

import copy
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

import hermes
from hermes.clients.kv_tier import block_keys
from hermes.core.block_hashes import ConversationText
from hermes.errors import InputError
from hermes.scenario import load_scenario

KV_BYTES = 131_072
HOST = {"name": "host", "capacity": "10 TB", "bandwidth": "50 GB/s", "lookup": "100 us"}


def scenario(tiers: list[dict[str, Any]] | None, *, blocks: int = 400, requests: int = 60, users: int = 4,
             caching: bool = True, count: int = 1, **options: Any) -> dict[str, Any]:
    client: dict[str, Any] = {
        "name": "llm", "count": count, "model": "llama-3.1-8b",
        "memory": {"num_blocks": blocks, "block_size": 16, "prefix_caching": caching, "kv_bytes_per_token": KV_BYTES},
        "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
    }
    if tiers is not None:
        client["tiers"] = {"levels": copy.deepcopy(tiers), "block_tokens": 64, **options}
    return {
        "workload": {
            "requests": requests, "arrivals": {"kind": "closed_loop", "users": users, "think": 0.2},
            "lengths": {"kind": "conversations", "turns": {"kind": "geometric", "mean": 6}, "system_tokens": 130,
                        "think_time": 0.2, "think_distribution": "exponential", "longest": 3000,
                        "message": {"kind": "uniform", "min": 20, "max": 300},
                        "output": {"kind": "uniform", "min": 5, "max": 60}},
        },
        "clients": [client],
    }


@pytest.mark.feature("Pipelines and services", "Prefix caches that go on in tiers")
def test_a_tier_without_limit_finds_what_a_replay_finds():
    """One request at a time: every block that was ever stored is found, less the last token's, which is computed. What
    is stored is what was computed: the prompt, and the answer but for its last token."""
    data = scenario([HOST], caching=False, users=1)
    results = hermes.simulate(data)
    table = load_scenario(data).workload[0].draw(0, load_scenario(data).source.base_dir)
    tier = results.record.tiers[0]
    seen: set[Any] = set()
    found = 0
    for session, prompt, output in zip(table.session.tolist(), table.prompt_tokens.tolist(),
                                       table.output_tokens.tolist(), strict=True):
        text = ConversationText(session, 0, 130, prompt + output)
        found += len(list(takewhile(seen.__contains__, block_keys(text, prompt - 1, 64, ""))))
        seen.update(block_keys(text, prompt + output - 1, 64, ""))
    assert tier.hits == found > 100
    assert results.summary["cache"]["cached_tokens"] == 64 * tier.hits
    assert tier.read_bytes == 64 * KV_BYTES * tier.hits
    assert tier.written_bytes == 64 * KV_BYTES * len(seen) == tier.used_bytes
    assert int(results.record.runs["prefill_tokens"].sum()) == int(table.prompt_tokens.sum()) - 64 * tier.hits


def test_the_device_comes_first():
    """A device that keeps everything leaves nothing for the tiers to find."""
    roomy = hermes.simulate(scenario([HOST], blocks=50_000, users=12))
    tight = hermes.simulate(scenario([HOST], blocks=250, users=12))
    without = hermes.simulate(scenario(None, blocks=250, users=12))
    cached = [r.summary["cache"]["cached_tokens"] for r in (without, tight, roomy)]
    assert 0 <= roomy.record.tiers[0].read_bytes < 0.1 * tight.record.tiers[0].read_bytes
    assert cached[0] < cached[1]
    assert tight.summary["latency"]["ttft_s"]["mean"] < without.summary["latency"]["ttft_s"]["mean"]


def test_a_request_waits_for_what_is_read():
    slow = hermes.simulate(scenario([{**HOST, "bandwidth": "1 GB/s"}], caching=False))
    fast = hermes.simulate(scenario([HOST], caching=False))
    hidden = hermes.simulate(scenario([{**HOST, "bandwidth": "1 GB/s"}], caching=False, overlap=True))
    means = [r.summary["latency"]["ttft_s"]["mean"] for r in (fast, hidden, slow)]
    assert means == sorted(means)
    assert means[2] > 1.5 * means[0]
    assert hidden.record.tiers[0].read_bytes > 0


def test_what_is_shared_is_stored_once():
    """Two clients in turn over one store: what one has computed, the other finds."""
    own = hermes.simulate(scenario([HOST], count=2, caching=False, users=1) | {"router": {"kind": "round_robin"}})
    shared = hermes.simulate(scenario([{**HOST, "scope": "all"}], count=2, caching=False, users=1)
                             | {"router": {"kind": "round_robin"}})
    assert len(own.record.tiers) == 2
    assert len(shared.record.tiers) == 1
    assert shared.record.tiers[0].used_bytes < sum(tier.used_bytes for tier in own.record.tiers)
    assert shared.summary["cache"]["hit_rate"] > own.summary["cache"]["hit_rate"]


@quick_and_full(4, 10)
@given(
    scheduler=st.sampled_from(["chunked", "continuous", "static", "mixed"]), blocks=st.sampled_from([250, 400, 5000]),
    caching=st.booleans(), overlap=st.booleans(), demote=st.booleans(), seed=st.integers(0, 99),
    capacity=st.sampled_from([1, 20, 1000]),
)
def test_single_steps_agree(scheduler, blocks, caching, overlap, demote, seed, capacity):
    tiers = [{**HOST, "capacity": capacity * 64 * KV_BYTES}, {**HOST, "name": "disk", "bandwidth": "5 GB/s"}]
    data = scenario(tiers, blocks=blocks, requests=40, caching=caching, overlap=overlap, demote=demote,
                    write="nearest" if demote else "all") | {"seed": seed}
    data["clients"][0]["scheduler"] = {"kind": scheduler, "max_num_batched_tokens": 4096}
    runs, steps = (hermes.simulate(data | {"stepping": stepping}).record for stepping in ("runs", "every_step"))
    assert (runs.status == 1).all()
    assert np.array_equal(runs.finish_ns, steps.finish_ns)
    assert runs.tiers == steps.tiers
    assert all(tier.peak_bytes <= tier.capacity_bytes for tier in runs.tiers)


def test_prefill_and_decode_on_two_clients():
    """The prompt is stored when its prefill is done, whoever decodes it."""
    data = scenario([HOST], caching=False, requests=30)
    decode = {**copy.deepcopy(data["clients"][0]), "name": "decode", "role": "decode"}
    del decode["tiers"]
    data["clients"] = [{**data["clients"][0], "role": "prefill"}, decode]
    results = hermes.simulate(data)
    assert (results.record.status == 1).all()
    assert results.record.tiers[0].hits > 0
    assert results.record.tiers[0].clients == ("llm",)


def test_blocks_have_to_fit_into_each_other():
    with pytest.raises(InputError, match="a multiple of the client's block size, 16"):
        hermes.simulate(scenario([HOST], block_tokens=40))


@pytest.mark.parametrize(("client", "changes", "said"), [
    ("llm", {"kv_offload": {"tiers": [HOST]}}, "clients.0.kv_offload: expected one of the keys"),
    ("llm", {"tiers": [HOST]}, "clients.0.tiers: expected a mapping with keys of levels, block_tokens"),
    ("llm", {"tiers": {"levels": [HOST, {**HOST, "name": "disk", "policy": "lfu"}]}},
     "clients.0.tiers.levels.1.policy: expected one of the keys name, capacity"),
    ("kv_retrieval", {"tiers": [HOST]}, "clients.0.tiers: expected a mapping with keys of levels, block_tokens"),
    ("kv_retrieval", {"tiers": {"levels": [{**HOST, "policy": "fifo"}]}},
     "clients.0.tiers.levels.0.policy: expected one of the keys name, capacity"),
])
def test_keys_of_before_are_unknown(client: str, changes: dict[str, Any], said: str) -> None:
    data = scenario(None)
    data["clients"][0] |= {"kind": client, **changes}
    with pytest.raises(InputError) as caught:
        load_scenario(data)
    assert str(caught.value).startswith(said)


def test_what_moves_into_tiers_is_found_there() -> None:
    data = scenario(None)
    data["clients"].append({"kind": "kv_retrieval", "name": "kv", "model": "llama-3.1-8b", "tiers": {"levels": [HOST]},
                            "write": "nearest"})
    with pytest.raises(InputError, match=r"did you mean 'clients\.1\.tiers\.write'"):
        load_scenario(data)
