"""KV offload to host memory: recordings of vLLM, both ways of stepping, and what stays conserved."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from evidence.schedules.offload_replay import RecordedOffload
from evidence.schedules.vllm_replay import conform_file, find_files, load_schedule, replay
from hermes.errors import InputError
from hermes.memory.host_cache import HostCache, RequestChunks
from hermes.schedulers.host_offload import HostOffload

SCHEDULES = Path(__file__).resolve().parents[1] / "data" / "vllm-schedules-offload"
FILES = find_files([SCHEDULES])
JOINED = find_files([SCHEDULES / "joined"])   # random mixtures, in each of which clients give up requests


@pytest.mark.feature("Pipelines and services", "KV offload of the engine, `memory.kv_offload`")
@pytest.mark.long
@pytest.mark.parametrize("every_step", [False, True], ids=["runs", "every_step"])
@each("path", FILES, ids=lambda path: path.stem)
def test_every_step_is_identical(path: Path, every_step: bool) -> None:
    result = conform_file(path, every_step=every_step)
    assert result.first_difference is None
    assert result.identical == result.steps > 0


def test_recordings_have_what_makes_them_worth_having() -> None:
    cases = [path for path in FILES if path not in JOINED]
    files = [json.loads(path.read_text()) for path in cases]
    # seven cases have a schedule of 0.33 as well; six have adapters or intervals, ten two batches in flight or drafts
    assert sum(path.stat().st_size for path in cases) < 1_100_000
    events: Counter[str] = Counter()
    for content in files:
        events.update(content["counts"])
        assert 20 <= len(content["requests"]) <= 60
    assert min(events[name] for name in ("loads", "stores", "steps_with_loading")) > 200
    assert min(events[name] for name in ("preemptions", "flushed")) > 30
    assert {content["eviction_policy"] for content in files} == {"lru", "arc"}
    assert {content["load_steps"] for content in files} == {0, 1, 2, 3}
    assert sum(content["async_scheduling"] for content in files) >= 7
    assert sum("num_speculative_tokens" in content for content in files) >= 4
    assert sum("max_loras" in content for content in files) >= 4
    assert sum("scheduler_config" in content for content in files) >= 3
    assert {content["blocks_per_chunk"] for content in files} >= {1, 2, 3, 4}


def test_mixtures_have_what_makes_them_worth_having() -> None:
    files = [json.loads(path.read_text()) for path in JOINED]
    assert sum(path.stat().st_size for path in JOINED) < 500_000
    assert len(files) == 2 * sum(content["async_scheduling"] for content in files) == 40
    keys: Counter[str] = Counter()
    for content in files:
        mine = Counter(key for request in content["requests"] for key in request)
        assert mine["abort_step"] + mine["abort_in_step"] > 0
        keys += mine + Counter(dict.fromkeys(content, 1))
    assert min(keys[name] for name in ("abort_step", "abort_in_step", "max_new_tokens")) > 100
    assert min(keys[name] for name in ("max_loras", "num_speculative_tokens", "local_interval")) > 15


@st.composite
def schedules(draw: st.DrawFn) -> RecordedOffload:
    """Settings and requests of a recording that was not made; memory is tight more often than not."""
    block_size = draw(st.sampled_from([1, 2, 4]))
    rows = draw(st.lists(st.tuples(
        st.integers(0, 9), st.integers(1, 20), st.integers(1, 12), st.integers(0, 2), st.integers(0, 2),
        st.integers(0, 24),
    ), min_size=1, max_size=14))
    arrival, requests = 0, []
    for number, (gap, prompt, output, priority, group, shared) in enumerate(rows):
        arrival += max(0, gap - 3)
        requests.append({
            "id": number, "arrival_step": arrival, "prompt_tokens": prompt, "output_tokens": output,
            "priority": priority, "prefix_group": group, "prefix_tokens": min(shared, prompt + output),
        })
        key = draw(st.sampled_from([None, None, "abort_step", "abort_in_step"]))
        if key is not None:
            requests[-1][key] = arrival + draw(st.integers(1, 12))
    most = max(-(-(prompt + output - 1) // block_size) for _gap, prompt, output, *_rest in rows)
    content: dict[str, Any] = {
        "max_num_batched_tokens": draw(st.sampled_from([4, 8, 40])), "max_num_seqs": draw(st.sampled_from([1, 3, 10])),
        "num_blocks": most + draw(st.integers(0, 10)), "block_size": block_size, "prefix_caching": True,
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 3])),
        "watermark": draw(st.sampled_from([0.0, 0.3])), "reserve_full_isl": draw(st.booleans()),
        "host_chunks": draw(st.integers(1, 30)), "blocks_per_chunk": draw(st.sampled_from([1, 2, 3])),
        "eviction_policy": draw(st.sampled_from(["lru", "arc"])), "offload_prompt_only": draw(st.booleans()),
        "store_threshold": draw(st.sampled_from([0, 2])), "load_steps": draw(st.integers(0, 4)),
        "store_steps": draw(st.integers(0, 4)), "blocks_per_step": draw(st.sampled_from([0, 2])),
        "requests": requests, "steps": [],
    }
    return RecordedOffload.model_validate(content)


@quick_and_full(60, 700, thorough=1500, derandomize=True)
@given(recorded=schedules())
def test_runs_and_single_steps_leave_the_same_rows(recorded: RecordedOffload) -> None:
    rows = replay(recorded, every_step=False)
    assert rows == replay(recorded, every_step=True)
    for row in rows:
        used, evictable = row["host"]
        assert 0 <= evictable <= used <= recorded.host_chunks
        assert 0 <= row["free_blocks_after"] <= recorded.num_blocks
        assert all(blocks >= chunks for _id, blocks, chunks in row["stores"])
    computed = Counter[int]()
    for row in rows:
        for name, tokens, _before in row["scheduled"]:
            computed[name] += tokens
    given_up = {one.id for one in recorded.requests if one.abort_step is not None or one.abort_in_step is not None}
    assert set(computed) | given_up == {one.id for one in recorded.requests}   # each other one was served


@pytest.mark.long
def test_everything_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last step all blocks are free, no job is under way, and no chunk is pinned."""
    built: list[HostOffload] = []
    original = HostOffload.__init__

    def noted(self: HostOffload, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        built.append(self)

    monkeypatch.setattr(HostOffload, "__init__", noted)
    for path in FILES:
        assert conform_file(path, every_step=False).ok
        offload = built[-1]
        assert offload.pool.free_blocks == offload.pool.num_blocks
        assert not offload.jobs
        assert not offload._progress
        assert not offload._being_loaded
        assert offload.host.evictable == offload.host.used
    assert len(built) == sum(len(load_schedule(path).engines()) for path in FILES)


def test_a_recording_with_a_wrong_policy_is_refused(tmp_path: Path) -> None:
    content = json.loads(FILES[0].read_text()) | {"eviction_policy": "fifo"}
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"eviction_policy"):
        conform_file(path, every_step=False)


def test_a_store_is_all_or_nothing() -> None:
    host = HostCache(3)
    first, second = RequestChunks(), RequestChunks()
    assert host.store(["a", "b"], 0, first) == ["a", "b"]
    assert host.store(["a", "c", "d"], 0, second) is None   # a and b are being written
    assert (host.used, host.evictable, host.refused) == (2, 0, 2)
    host.stored(["a", "b"])
    assert host.store(["a", "c", "d"], 0, second) == ["c", "d"]   # b goes, a is part of the offer
    assert (host.ready("a"), host.ready("b"), host.ready("c")) == (True, None, False)
    assert (host.used, host.peak, host.evictions) == (3, 3, 1)


def test_what_a_load_reads_stays() -> None:
    host = HostCache(2)
    used = RequestChunks()
    host.store(["a", "b"], 0, used)
    host.stored(["a", "b"])
    host.load(["a"], 0, RequestChunks())
    host.load(["a"], 0, RequestChunks())
    assert host.store(["x", "y"], 0, RequestChunks()) is None
    host.loaded(["a"])
    assert host.evictable == 1
    host.loaded(["a"])
    assert host.evictable == 2
    assert host.store(["x", "y"], 0, RequestChunks()) == ["x", "y"]


def test_offers_below_the_threshold_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes.memory.host_cache.MOST_COUNTED", 2)
    host = HostCache(4, store_threshold=2)
    assert host.store(["a", "b"], 0, RequestChunks()) == []
    assert host.store(["c"], 0, RequestChunks()) == []    # drops the count of a
    assert host.store(["a", "b"], 0, RequestChunks()) == ["b"]
