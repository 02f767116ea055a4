"""Clients whose engine offloads KV to host memory: what it gains, what is conserved, what is refused."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hermes
from hermes.clients.host_offload import HostLink
from hermes.core.generation import Generation
from hermes.core.record import STATUS_COMPLETED
from hermes.deploy.engine_conform import served_of
from hermes.deploy.vllm import commands_of
from hermes.errors import InputError
from hermes.memory.host_cache import HostCache
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.schedulers.host_offload import HostOffload, Job
from hermes.schedulers.parts import part_of

KV_BYTES = 131_072
BLOCK_BYTES = 16 * KV_BYTES
FAST = "50 GB/s"


def scenario(offload: dict[str, Any] | None, *, blocks: int = 250, requests: int = 100, users: int = 8,
             memory: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None, **client: Any,
             ) -> dict[str, Any]:
    held = {"num_blocks": blocks, "block_size": 16, "kv_bytes_per_token": KV_BYTES, **(memory or {})}
    if offload is not None:
        held["kv_offload"] = {"cpu_bytes_to_use": "4 GiB", "bandwidth": FAST, **offload}
    return {
        "workload": {
            "requests": requests, "arrivals": {"kind": "closed_loop", "users": users, "think": 0.2},
            "lengths": {"kind": "conversations", "turns": {"kind": "geometric", "mean": 6}, "system_tokens": 130,
                        "think_time": 0.2, "think_distribution": "exponential", "longest": 3000,
                        "message": {"kind": "uniform", "min": 20, "max": 300},
                        "output": {"kind": "uniform", "min": 5, "max": 60}},
        },
        "clients": [{
            "name": "llm", "model": "llama-3.1-8b", "memory": held,
            "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
            "scheduler": {"kind": "chunked", "async_scheduling": False, **(scheduler or {})}, **client,
        }],
    }


def ttft(results: Any) -> float:
    return float(results.summary["latency"]["ttft_s"]["mean"])


def test_returning_conversations_start_earlier() -> None:
    without = hermes.simulate(scenario(None))
    with_host = hermes.simulate(scenario({}))
    slow = hermes.simulate(scenario({"bandwidth": "1 GB/s"}))
    assert ttft(with_host) < 0.9 * ttft(without)
    assert ttft(slow) > ttft(with_host)
    cached = [results.summary["cache"]["cached_tokens"] for results in (without, with_host)]
    assert cached[1] > 2 * cached[0]


@pytest.mark.drawn
@pytest.mark.parametrize("offload", [
    {}, {"cpu_bytes_to_use": "500 MiB"}, {"cpu_bytes_to_use": "500 MiB", "eviction_policy": "arc"},
    {"blocks_per_chunk": 4}, {"offload_prompt_only": False}, {"bandwidth": "2 GB/s", "latency": "1 ms"},
    {"store_threshold": 2},
], ids=str)
def test_bytes_are_blocks(offload: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves is whole blocks, the host cache is never over its capacity, and both ways of stepping agree."""
    jobs: list[tuple[bool, int, int, int]] = []
    start = HostLink.start

    def noted(self: HostLink, job: Job, now_ns: int) -> int:
        end = start(self, job, now_ns)
        jobs.append((job.load, len(job.blocks), now_ns, end))
        return end

    monkeypatch.setattr(HostLink, "start", noted)
    results = hermes.simulate(scenario(offload))
    moved, jobs = jobs, []
    every_step = hermes.simulate({**scenario(offload), "stepping": "every_step"})
    (host,) = results.record.tiers
    assert host == every_step.record.tiers[0]
    for column in ("first_token_ns", "end_ns"):
        assert np.array_equal(results.record.stages[column], every_step.record.stages[column])
    assert host.hits > 50
    assert host.hit_tokens > 800
    assert host.read_bytes == BLOCK_BYTES * sum(blocks for load, blocks, _now, _end in moved if load)
    assert host.written_bytes == BLOCK_BYTES * sum(blocks for load, blocks, _now, _end in moved if not load)
    assert host.read_bytes >= host.hit_tokens * KV_BYTES
    assert 0 < host.used_bytes <= host.peak_bytes <= host.capacity_bytes <= load_bytes(offload)
    for direction in (True, False):   # one job after the other
        ends = [(now, end) for load, _blocks, now, end in moved if load is direction]
        assert all(a[1] <= b[1] for a, b in pairwise(ends))
    assert results.summary["requests"]["completed"] == 100
    assert results.summary["tiers"]["host"]["hit_tokens"] == host.hit_tokens


def load_bytes(offload: dict[str, Any]) -> int:
    (client,) = load_scenario(scenario(offload)).clients
    return int(client.memory.kv_offload.cpu_bytes_to_use)


def test_a_host_of_some_chunks() -> None:
    (client,) = load_scenario(scenario({"cpu_bytes_to_use": 10 * BLOCK_BYTES + 1, "blocks_per_chunk": 3})).clients
    config = client.memory.kv_offload
    assert config.build(BLOCK_BYTES).capacity == 3
    assert config.chunk_bytes(1000) == 4096   # whole pages
    with pytest.raises(InputError, match="at least one chunk of 6,291,456 bytes, found 2097152"):
        hermes.simulate(scenario({"cpu_bytes_to_use": BLOCK_BYTES, "blocks_per_chunk": 3}))


def test_the_host_is_not_over_its_capacity_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HostCache.store
    most = 0

    def checked(self: HostCache, *args: Any) -> Any:
        nonlocal most
        stored = store(self, *args)
        most = max(most, self.used)
        assert self.used <= self.capacity == 150
        return stored

    monkeypatch.setattr(HostCache, "store", checked)
    hermes.simulate(scenario({"cpu_bytes_to_use": 150 * BLOCK_BYTES}, blocks=200))
    assert most == 150


def test_a_prefill_waits_for_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that loads for a request does not compute it, and none does before the load is complete."""
    loads: list[tuple[Generation, int]] = []
    start = HostLink.start

    def noted(self: HostLink, job: Job, now_ns: int) -> int:
        end = start(self, job, now_ns)
        if job.load and job.seq.start_ns < 0:
            loads.append((job.seq, end))
        return end

    monkeypatch.setattr(HostLink, "start", noted)
    hermes.simulate(scenario({"bandwidth": "4 GB/s"}))
    assert len(loads) > 20
    assert all(seq.start_ns >= end for seq, end in loads)
    assert any(seq.start_ns == end for seq, end in loads)   # an engine with nothing to compute hears at once


DRAFTS = {"method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.6, "draft_time": "1 ms"}
BESIDE = {
    "two batches in flight": {"async_scheduling": True},
    "adapters": {"max_loras": 2},
    "drafts": {"speculative": DRAFTS},
    "drafts ahead": {"async_scheduling": True, "speculative": DRAFTS},
    "an interval": {"prefill_schedule_interval": 4},
    "all of them": {"async_scheduling": True, "max_loras": 2, "prefill_schedule_interval": 4, "speculative": DRAFTS,
                    "policy": "priority"},
}


@pytest.mark.drawn
@pytest.mark.parametrize("scheduler", BESIDE.values(), ids=BESIDE)
def test_it_works_with_other_parts_of_the_scheduler(scheduler: dict[str, Any]) -> None:
    """All requests are served, blocks and chunks come back, loads save prefills, and stepping makes no difference."""
    data = scenario({}, scheduler=scheduler)
    if "max_loras" in scheduler:
        data["workload"]["adapters"] = {"count": 3}
    simulation = build(load_scenario(data))
    record = simulation.run()
    assert (record.status == STATUS_COMPLETED).all()
    (client,) = simulation.clients
    client.scheduler.plan(1)
    assert client.scheduler.pool.free_blocks == client.scheduler.pool.num_blocks
    offload = part_of(client.scheduler, HostOffload)
    assert offload is not None
    assert offload.loaded_tokens > 0
    assert offload.host.evictable == offload.host.used
    assert not offload.jobs
    runs, steps = (hermes.simulate(data | {"stepping": stepping}).requests for stepping in ("runs", "every_step"))
    assert (runs.e2e_s == steps.e2e_s).all()
    assert (runs.ttft_s == steps.ttft_s).all()
    data["clients"][0]["memory"]["kv_offload"] = None
    computed = hermes.simulate(data).record.runs["prefill_tokens"].sum()
    assert record.runs["prefill_tokens"].sum() < 0.9 * computed


@pytest.mark.parametrize(("changes", "message"), [
    ({"scheduler": {"kind": "static", "async_scheduling": None}}, "needs the scheduler `chunked`"),
    ({"memory": {"prefix_caching": False}}, "needs prefix_caching: true"),
    ({"memory": {"prefix_eviction": "lfu"}}, "needs prefix_eviction: lru"),
    ({"engine": "vllm-0.27"}, "follows vLLM 0.32.0 and 0.33.0; leave `engine` out"),
    ({"role": "prefill"}, "not recorded yet with a role"),
    ({"tiers": {"levels": [{"name": "a", "capacity": "1 GB", "bandwidth": "1 GB/s"}]}}, "not recorded yet with tiers"),
    ({"hardware": {"kind": "composed"}, "device": "h100-sxm", "parallel": {"pp": 2}}, "yet with pipeline stages"),
], ids=lambda value: "" if isinstance(value, str) else str(value)[:40])
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], message: str) -> None:
    data = scenario({}, **changes)
    if changes.get("scheduler", {}).get("kind") == "static":
        data["clients"][0]["scheduler"] = {"kind": "static"}
    with pytest.raises(InputError, match=message) as caught:
        load_scenario(data)
    assert caught.value.field is not None
    assert caught.value.field.endswith("memory.kv_offload")
    assert "\n" not in str(caught.value).strip()


def test_layers_with_a_window_are_refused() -> None:
    data = scenario({}, blocks=4000)
    data["clients"][0] |= {"model": "gpt-oss-20b", "hardware": {"kind": "composed"}, "device": "h100-sxm"}
    data["clients"][0]["memory"].pop("kv_bytes_per_token")
    with pytest.raises(InputError, match="write hybrid: false"):
        load_scenario(data)
    data["clients"][0]["memory"]["hybrid"] = False
    assert load_scenario(data).clients[0].memory.kv_offload is not None


def test_branches_are_refused() -> None:
    data = scenario({})
    data["workload"] = {"requests": 3, "arrivals": {"kind": "poisson", "rate": 1}, "branches": 2,
                        "lengths": {"kind": "fixed", "prompt": 64, "output": 4}}
    with pytest.raises(InputError, match="chunks of a prompt that several branches hold"):
        hermes.simulate(data)


def test_the_bandwidth_is_the_devices() -> None:
    data = scenario({})
    del data["clients"][0]["memory"]["kv_offload"]["bandwidth"]
    data["clients"][0]["device"] = "h100-sxm"
    assert hermes.simulate(data).record.tiers[0].bandwidth == 64e9


def test_the_command_starts_the_connector() -> None:
    ((_name, command),) = commands_of(load_scenario(scenario({"eviction_policy": "arc"}, device="h100-sxm")))
    assert '"kv_connector": "OffloadingConnector"' in command
    assert '"cpu_bytes_to_use": 4294967296, "eviction_policy": "arc"' in command


def test_conform_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(InputError, match=r"cannot serve clients with memory\.kv_offload"):
        served_of(scenario({}))


@pytest.mark.long
def test_nothing_is_loaded_without_it() -> None:
    """The modules of the offload stay out of runs without it."""
    code = ("import hermes, sys; hermes.simulate('quickstart'); "
            "print([m for m in sys.modules if 'host_offload' in m or 'host_cache' in m])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_what_is_given_up_while_a_step_waits_for_copies_leaves_at_its_end() -> None:
    """A step that is planned waits for the copies of blocks that it takes, at 0.3 GB/s for seconds; clients give up
    meanwhile, in the step, in the queue and during their load. Nothing is left then, and single steps give the same."""
    data = {
        "seed": 2, "workload": {
            "requests": 150, "arrivals": {"kind": "poisson", "rate": "4 /s"}, "patience": {"total": "1.5 s"},
            "lengths": {"kind": "conversations", "turns": 5, "message": {"kind": "geometric", "mean": 600},
                        "output": {"kind": "geometric", "mean": 100}, "think_time": "2 s", "system_tokens": 500}},
        "clients": [{"name": "c", "model": "llama-3.1-8b", "device": "h100-sxm",
                     "scheduler": {"kind": "chunked", "max_num_seqs": 12, "async_scheduling": False},
                     "memory": {"num_blocks": 700, "kv_offload": {"cpu_bytes_to_use": "20 GB",
                                                                  "bandwidth": "0.3 GB/s"}}}]}
    emitted = []
    for stepping in ("runs", "every_step"):
        simulation = build(load_scenario(data | {"stepping": stepping}))
        record = simulation.run()
        assert (record.status == STATUS_COMPLETED).sum() + len(record.reject_reasons) == 150
        assert len(record.reject_reasons) > 100
        [client] = simulation.clients
        pool, part = client.scheduler.pool, part_of(client.scheduler, HostOffload)   # type: ignore[attr-defined]
        assert pool.free_blocks == pool.num_blocks
        assert part is not None
        assert not client.scheduler.running   # type: ignore[attr-defined]
        assert not part._loading
        assert not part._loaded
        assert part.scheduler.kept == set()
        assert client.emitted == 0   # type: ignore[attr-defined]
        emitted.append((record.finish_ns.tolist(), record.stages["output_tokens"].tolist()))
    assert emitted[0] == emitted[1]
