"""Schedules recorded from the real engine are replayed without a difference, in runs and in single steps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from each import check_each
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from evidence.schedules.vllm_replay import RecordedSchedule, conform_file, find_files, load_schedule, replay
from hermes.cli import main
from hermes.hardware.descriptions.engines import vllm_engines

SCHEDULES = Path(__file__).resolve().parents[1] / "data" / "vllm-schedules"
FOLDERS = ("given", "recorded", "recorded-options", "async", "versions", "fields", "speculation", "aborts", "ends",
           "mixtures", "drafted", "talks", "joined")
FILES = find_files([SCHEDULES / folder for folder in FOLDERS])


def test_the_recordings_are_there() -> None:
    folders = Counter(path.parent.name for path in FILES)
    assert folders["given"] == 14
    assert folders["recorded"] + folders["recorded-options"] >= 20
    assert folders["async"] >= 50


def test_asynchronous_recordings_have_what_makes_them_worth_having() -> None:
    files = [json.loads(path.read_text()) for path in FILES if path.parent.name == "async"]
    assert all(content["async_scheduling"] for content in files)
    events: Counter[str] = Counter()
    for content in files:
        events.update(content["counts"])
    assert events["victims_with_last_token_in_flight"] >= 30
    assert min(events[kind] for kind in ("victims_in_flight", "self_preemptions", "resumed_hits")) >= 100
    # batches with nothing in them, because all there was to run had its last token in flight, and because of preemption
    empty = [preempted for content in files for _step, preempted in content.get("empty_steps", [])]
    assert sum(not preempted for preempted in empty) >= 100
    assert sum(bool(preempted) for preempted in empty) >= 3


def test_every_engine_has_its_recordings() -> None:
    taken = Counter(version for path in FILES if path.parent.name == "versions"
                    for version in load_schedule(path).versions)
    minor = {"vllm-" + version.rpartition(".")[0]: count for version, count in taken.items()}
    assert set(minor) == set(vllm_engines())
    assert min(minor.values()) >= 20


# A quarter of the folders is replayed each time, drawn by the commit, and all of them in CI.


def check_steps(path: Path, every_step: bool) -> None:
    result = conform_file(path, every_step=every_step)
    assert result.first_difference is None
    assert result.identical == result.steps > 0


@pytest.mark.feature("LLM clients", "Scheduler `chunked`: vLLM V1, synchronous and asynchronous; `hermes conform`")
@pytest.mark.drawn
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_step_is_identical(folder: str) -> None:
    check_each(find_files([SCHEDULES / folder]), lambda path: check_steps(path, every_step=False))


@pytest.mark.drawn
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_step_is_identical_step_by_step(folder: str) -> None:
    check_each(find_files([SCHEDULES / folder]), lambda path: check_steps(path, every_step=True))


@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("path", find_files([SCHEDULES.with_name("vllm-cases")]), ids=lambda path: path.stem)
def test_recordings_that_once_differed(path: Path, every_step: bool) -> None:
    """cadence-31: a deferred request that is aborted is deferred no longer, so prompts wait at the next step.
    runs-talk-54:
    a waiting request finds a block that an answer fills in the middle of a run of decode steps."""
    check_steps(path, every_step)


@st.composite
def schedules(draw: st.DrawFn) -> RecordedSchedule:
    """Settings and requests of a recording that nobody made; memory is tight more often than not."""
    block_size = draw(st.sampled_from([1, 2, 4]))
    rows = draw(st.lists(st.tuples(
        st.integers(0, 6), st.integers(1, 20), st.integers(1, 12), st.integers(0, 2), st.integers(0, 2),
        st.integers(0, 20),
    ), min_size=1, max_size=14))
    arrival, requests = 0, []
    for number, (gap, prompt, output, priority, group, shared) in enumerate(rows):
        arrival += max(0, gap - 3)
        requests.append({
            "id": number, "arrival_step": arrival, "prompt_tokens": prompt, "output_tokens": output,
            "priority": priority, "prefix_group": group, "prefix_tokens": min(shared, prompt),
        })
    most = max(-(-(prompt + output - 1) // block_size) for _gap, prompt, output, *_rest in rows)
    content: dict[str, Any] = {
        "max_num_batched_tokens": draw(st.sampled_from([4, 8, 40])), "max_num_seqs": draw(st.sampled_from([1, 3, 10])),
        "num_blocks": most + draw(st.integers(0, 10)), "block_size": block_size, "prefix_caching": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 3])), "adaptive_cap": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.3])), "reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()), "requests": requests, "steps": [],
        "max_loras": draw(st.sampled_from([None, None, 1, 2])),
        "scheduler_config": {"prefill_schedule_interval": draw(st.sampled_from([1, 1, 2, 5]))},
    }
    for request in requests if content["max_loras"] else ():
        request["adapter"] = draw(st.integers(0, 3))
    return RecordedSchedule.model_validate(content)


@quick_and_full(50, 150, derandomize=True)
@given(recorded=schedules())
def test_runs_and_single_steps_leave_the_same_rows(recorded: RecordedSchedule) -> None:
    rows = replay(recorded, every_step=True)
    assert replay(recorded, every_step=False) == rows
    assert all(0 <= row["free_blocks_after"] <= recorded.num_blocks for row in rows)
    for request in recorded.requests:   # everybody is served; the last output of a request is not computed
        past = [past + tokens for row in rows for number, tokens, past in row["scheduled"] if number == request.id]
        assert max(past) == past[-1] == request.prompt_tokens + request.output_tokens - 1


def test_a_recording_is_replayed_with_the_rules_of_its_version(tmp_path, capsys):
    source = next((SCHEDULES / "versions").glob("cap-lone-2043@0.15*"))
    data = json.loads(source.read_text())
    assert conform_file(source, every_step=False).ok
    for engine, version, same in (("", "0.32.0", False), ("vllm 0.30.0 (alone)", "", True), ("", "", False)):
        path = tmp_path / "other.json"
        path.write_text(json.dumps(data | {"engine": engine, "engine_version": version}))
        assert conform_file(path, every_step=True).ok is same
    (tmp_path / "other.json").write_text(json.dumps(data | {"engine_version": "0.9.1"}))
    assert main(["conform", str(tmp_path / "other.json")]) == 2
    assert "vllm-0.15" in capsys.readouterr().err
    (tmp_path / "other.json").write_text(json.dumps(data | {"steps": [{"again": [3]}]}))
    assert main(["conform", str(tmp_path / "other.json")]) == 2
    assert "steps.0: expected a step, which later ones continue" in capsys.readouterr().err


def test_a_prefix_without_a_group_is_refused(tmp_path, capsys):
    source = next(path for path in sorted(SCHEDULES.rglob("*.json")) if "prefix" in path.name)
    data = json.loads(source.read_text())
    number = next(i for i, request in enumerate(data["requests"]) if request["prefix_tokens"])
    del data["requests"][number]["prefix_group"]
    (tmp_path / "cut.json").write_text(json.dumps(data))
    assert main(["conform", str(tmp_path / "cut.json")]) == 2
    err = capsys.readouterr().err
    assert f"requests.{number}.prefix_group: expected the group" in err
