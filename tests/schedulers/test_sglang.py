"""SGLang's scheduler: recordings are replayed without a difference, runs equal steps, wrong options are refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from evidence.schedules.sglang_replay import RecordedBatches, load_batches, replay_batches
from evidence.schedules.vllm_replay import conform_file, find_files
from hermes.api import InputError, simulate
from hermes.cli import main
from hermes.core.block_hashes import GroupPrefix
from hermes.core.generation import Generation
from hermes.memory.radix import RadixPool
from hermes.scenario import load_scenario

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "sglang-schedules"
DRIVER = Path(__file__).resolve().parents[2] / "evidence" / "schedules" / "sglang_alone.py"
FILES = find_files([RECORDINGS])


def test_the_recordings_have_what_makes_them_worth_having() -> None:
    found = [load_batches(path) for path in FILES]
    assert len(found) >= 40
    assert sum(not one.settings.disable_overlap_schedule for one in found) >= 14
    assert all(one.engine_version == "0.5.23" for one in found)
    assert sum(len(row[2]) for one in found for row in one.steps) >= 20   # retracted
    kinds = [row[0] for one in found for row in one.steps]
    assert min(kinds.count("extend"), kinds.count("mixed")) >= 100
    assert {one.settings.schedule_policy for one in found} == {"fcfs", "lpm", "lof", "dfs-weight"}
    assert {one.settings.page_size for one in found} == {1, 16}


@pytest.mark.feature("LLM clients", (
    "Scheduler `sglang`: SGLang's batches, retraction and radix tree, as recorded from it"))
@pytest.mark.parametrize("every_step", [False, True], ids=["runs", "every_step"])
@each("path", FILES, ids=lambda path: path.stem)
def test_every_batch_is_identical(path: Path, every_step: bool) -> None:
    result = conform_file(path, every_step=every_step)
    assert result.first_difference is None
    assert result.identical == result.steps > 0


@each("every_step", [False, True])
def test_an_abort_beside_an_empty_plan_is_read_a_batch_later(every_step: bool) -> None:
    """The first request has its 3 tokens with batch 2; the second, which arrives meanwhile, does not fit beside it.

    Nothing can run beside batch 2, so SGLang plans in vain, takes its results, and starts the second request in batch
    3. An abort read before batch 4 lets it decode once more; one read before batch 3 finds it in the queue.
    """
    settings = load_batches(RECORDINGS / "abort-overlap.json").settings.model_dump() | {
        "max_total_num_tokens": 40, "schedule_policy": "fcfs"}
    for abort, batches in ((2, 3), (3, 3), (4, 5), (5, 5)):
        requests = [{"id": 0, "arrival_step": 0, "prompt_tokens": 16, "output_tokens": 3},
                    {"id": 1, "arrival_step": 1, "prompt_tokens": 20, "output_tokens": 2, "abort_step": abort}]
        recorded = RecordedBatches.model_validate(
            {"engine_version": "0.5.23", "settings": settings, "steps": [], "requests": requests})
        assert len(replay_batches(recorded, every_step=every_step)) == batches, abort


@each("every_step", [False, True])
def test_mixed_chunk_needs_chunks(every_step: bool) -> None:
    """SGLang: `is_mixed_chunk` is false without `chunked_prefill_size`."""
    recorded = load_batches(RECORDINGS / "unchunked.json")
    settings = recorded.settings.model_copy(update={"enable_mixed_chunk": True})
    mixed = recorded.model_copy(update={"settings": settings})
    assert replay_batches(mixed, every_step=every_step) == recorded.rows()


def test_a_difference_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads((RECORDINGS / "plain.json").read_text())
    data["steps"][3][3] += 1
    (tmp_path / "changed.json").write_text(json.dumps(data))
    assert main(["conform", str(tmp_path / "changed.json")]) == 1
    assert "free_tokens" in capsys.readouterr().out


@st.composite
def recordings(draw: st.DrawFn) -> RecordedBatches:
    """Settings and requests of a recording that nobody made; memory is tight more often than not."""
    page = draw(st.sampled_from([1, 2, 16]))
    mixed = draw(st.booleans())
    rows = draw(st.lists(st.tuples(
        st.integers(0, 6), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2), st.integers(0, 40),
        st.integers(0, 30),
    ), min_size=1, max_size=14))
    arrival, requests = 0, []
    for number, (gap, prompt, output, group, shared, more) in enumerate(rows):
        arrival += max(0, gap - 3)
        requests.append({
            "id": number, "arrival_step": arrival, "prompt_tokens": prompt, "output_tokens": output,
            "max_new_tokens": output + more, "prefix_group": group, "prefix_tokens": min(shared, prompt)})
    most = max(prompt + output for _gap, prompt, output, *_rest in rows) + 3 * page + 2
    return RecordedBatches.model_validate({"engine_version": "", "requests": requests, "steps": [], "settings": {
        "page_size": page, "max_total_num_tokens": (most // page + draw(st.integers(0, 100 // page))) * page,
        "max_running_requests": draw(st.sampled_from([1, 3, 10])),
        "chunked_prefill_size": draw(st.sampled_from([16, 32] if mixed else [None, 16, 32])),
        "max_prefill_tokens": draw(st.sampled_from([30, 1000])), "enable_mixed_chunk": mixed,
        "schedule_policy": draw(st.sampled_from(["fcfs", "lpm", "lof", "dfs-weight"])),
        "schedule_conservativeness": draw(st.sampled_from([0.05, 0.3, 1.0])),
        "disable_radix_cache": draw(st.booleans()), "disable_overlap_schedule": draw(st.booleans()),
        "ignore_eos": False}})


@quick_and_full(60, 300, derandomize=True)
@given(recorded=recordings())
def test_runs_and_single_steps_make_the_same_batches(recorded: RecordedBatches) -> None:
    rows = replay_batches(recorded, every_step=True)
    assert replay_batches(recorded, every_step=False) == rows
    for request in recorded.requests:   # every request is served; its last output is not computed
        past = [past + tokens for row in rows for number, tokens, past in row[1] if number == request.id]
        last = request.prompt_tokens + request.output_tokens - 1
        # a request that stops before the tokens it asked for may decode once more while its last token is on its way
        assert max(past) == past[-1] in (last, last + (not recorded.settings.disable_overlap_schedule))


def test_the_tree_loses_no_block() -> None:
    """Free, cached, held: every block is one of them, and what the counts say is what the nodes hold."""
    rng = np.random.default_rng(5)
    pool = RadixPool(60, 2)
    held: list[Generation] = []
    for number in range(600):
        if held and rng.random() < 0.5:
            seq = held.pop(int(rng.integers(len(held))))
            if rng.random() < 0.7:
                pool.commit(seq, seq.num_computed)
            pool.free(seq)
        else:
            tokens = int(rng.integers(2, 30))
            seq = Generation(tokens, 1, arrival_order=number,
                           content=GroupPrefix(int(rng.integers(4)), int(rng.integers(tokens + 1))))
            if pool.missing_blocks(seq, tokens) <= pool.free_blocks:
                pool.admit(seq, tokens)
                seq.num_computed = tokens
                held.append(seq)
        nodes = list(pool.tree.walk())
        assert pool.tree.evictable == sum(node.hi - node.lo for node in nodes if not node.refs)
        locked = sum(node.hi - node.lo for node in nodes if node.refs)
        own = sum(seq.num_blocks - pool._paths[seq].hi for seq in held)
        assert pool.free_blocks + locked + own == pool.num_blocks
        assert pool.available >= 0
        assert pool.shared_blocks == sum((node.hi - node.lo) * (node.refs - 1) for node in nodes if node.refs)


@pytest.mark.parametrize(("changes", "named"), [
    ({"scheduler": {"disable_radix_cache": True}, "memory": {"prefix_caching": True}}, "memory.prefix_caching"),
    ({"memory": {"prefix_eviction": "lfu"}}, "memory.prefix_eviction"),
    ({"memory": {"hybrid": True}}, "memory.hybrid"),
    ({"scheduler": {"chunked_prefill_size": 0}}, "scheduler.chunked_prefill_size"),
    ({"scheduler": {"chunked_prefill_size": -1, "enable_mixed_chunk": True}}, "scheduler.enable_mixed_chunk"),
    ({"scheduler": {"chunked_prefill_size": 64, "enable_mixed_chunk": True}}, "scheduler.max_running_requests"),
    ({"scheduler": {"ignore_eos": True, "max_new_tokens": 100}}, "scheduler.max_new_tokens"),
])
def test_options_that_contradict_are_refused(changes: dict[str, dict[str, Any]], named: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(scenario(**changes))
    assert named in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 90}, {"disable_overlap_schedule": True}],
                         ids=lambda options: "-".join(options) or "defaults")
def test_a_scenario_in_runs_and_in_single_steps(options: dict[str, Any]) -> None:
    """The client's answer times are the same, prompts hit the tree, and memory defaults to SGLang's."""
    chosen = scenario({"schedule_policy": "lpm", "schedule_conservativeness": 0.1, **options})
    runs, steps = simulate(chosen), simulate(chosen, stepping="every_step")
    for column in ("first_token_s", "finish_s", "cached_tokens", "preemptions"):
        assert list(runs.requests[column]) == list(steps.requests[column])
    assert len(runs.runs) < len(steps.runs)
    assert runs.summary["requests"]["preempted"] > 0
    assert runs.summary["tokens"]["cached"] > 0


def scenario(scheduler: dict[str, Any] | None = None, memory: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": "sglang", "workload": {
            "requests": 120, "arrivals": {"kind": "poisson", "rate": 20.0},
            "lengths": {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 50, "output": 60,
                        "think_time": 1.0}},
        "clients": [{"name": "llm", "hardware": {"kind": "polynomial", "profile": "llama-3.1-70b-h100-tp4-bf16"},
                     "scheduler": {"kind": "sglang", **(scheduler or {})},
                     "memory": {"num_blocks": 3000, **(memory or {})}}]}


@pytest.mark.parametrize(("more", "field", "said"), [
    ({"parallel": {"pp": 2}}, "parallel.pp", "SGLang's loop over the stages"),
    ({"model": "mixtral-8x7b", "parallel": {"dp": 2}}, "parallel.dp", "SGLang's data-parallel attention"),
    ({"tiers": {"levels": [{"name": "host", "capacity": "10 GB", "bandwidth": "20 GB/s"}]}}, "tiers",
     "SGLang's hierarchical cache"),
    ({"model": "gpt-oss-120b"}, "memory.hybrid", "SGLang keeps the KV of layers with a sliding window in a pool"),
    ({"model": "gpt-oss-120b", "memory": {"hybrid": True}}, "memory.hybrid", "SGLang's pool of windows"),
])
def test_what_sglang_does_otherwise_is_refused(more: dict[str, Any], field: str, said: str) -> None:
    client = {"model": "llama-3.1-8b", "device": "h100-sxm", "scheduler": {"kind": "sglang"}, **more}
    with pytest.raises(InputError, match=said) as caught:
        simulate(scenario() | {"clients": [client]})
    assert caught.value.field == f"clients.0.{field}"


@pytest.mark.parametrize(("model", "memory"), [
    ("gpt-oss-20b", {"hybrid": False}), ("phi-3-mini-4k", {}),   # every layer of the latter has a window: one pool
])
def test_windows_that_keep_every_token(model: str, memory: dict[str, Any]) -> None:
    client = {"model": model, "device": "h100-sxm", "scheduler": {"kind": "sglang"}, "memory": memory}
    results = simulate(scenario() | {"clients": [client]})
    assert (results.requests["status"] == "completed").all()


@pytest.mark.skipif("HERMES_SGLANG_PYTHON" not in os.environ, reason="HERMES_SGLANG_PYTHON names no interpreter")
@pytest.mark.parametrize("name", ["tight-retract", "overlap-prefixes"])
def test_the_engine_makes_the_recorded_batches(name: str) -> None:
    recorded = json.loads((RECORDINGS / f"{name}.json").read_text())
    case = json.dumps({key: recorded[key] for key in ("settings", "requests")})
    done = subprocess.run([os.environ["HERMES_SGLANG_PYTHON"], str(DRIVER)], input=case, capture_output=True,
                          text=True, check=True)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    keys = ("kind", "scheduled", "retracted", "free_tokens", "cached_tokens", "ratio")
    assert [[step[key] for key in keys] for step in answer["steps"]] == RecordedBatches.model_validate(recorded).rows()


@pytest.mark.parametrize("step", [
    [], ["decode", 0, [], 1, 1, 0.5], ["extend", [[0, 1]], [], 1, 1, 0.5], ["extend", [[0, "1 kg", 0]], [], 1, 1, 0.5],
    ["extend", [], [], "x", 1, 0.5],
])
def test_a_batch_without_its_parts_is_refused(tmp_path, step):
    data = json.loads(FILES[0].read_text())
    data["steps"][0] = step
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"r\.json: .*kind, scheduled, retracted"):
        load_batches(tmp_path / "r.json")
