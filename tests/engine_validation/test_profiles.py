"""From a collector's journal to one set of steps per clock."""

import pytest

from hermes.calibration.engine_validation.profiles import collected_steps, reference_s
from hermes.calibration.engines import planner
from hermes.calibration.journal import Journal
from hermes.calibration.plan import request_for
from hermes.calibration.steps import STATS, load_steps
from hermes.calibration.vllm_plan import batches


@pytest.fixture
def journal(tmp_path):
    """Two points of a vLLM plan: every step took 10 ms of CPU, every fifth waited as long for one."""
    plan = planner("vllm").plan(request_for(
        "llama-3.1-8b", "cpu", None, "bf16", "cpu", max_num_batched_tokens=512, max_num_seqs=8, max_context=2048,
        points=2, repetitions=1))
    path = tmp_path / "steps.journal.jsonl"
    with Journal(path, plan.model_dump(mode="json"), {"device": "a CPU"}) as out:
        for point in plan.points:
            limits = point["max_num_batched_tokens"], point["max_num_seqs"]
            rows = [
                {name: getattr(stats, name) for name in STATS} | {
                    "time_s": 0.02 if index % 5 == 4 else 0.0105, "cpu_time_s": 0.01, "overhead_s": 1e-4,
                    "configuration": point["configuration"], "repetition": 0,
                } for index, stats in enumerate(batches(point["requests"], limits))
            ]
            out.point(point["name"], rows)
        for seconds in (0.011, 0.013, 0.012):
            out.write({"kind": "reference", "at_s": 0.0, "rows": [{"cpu_time_s": seconds, "time_s": 2 * seconds}] * 3})
    return path, plan


def test_a_set_per_clock(journal, tmp_path):
    path, _plan = journal
    for clock in ("wall", "cpu"):
        collected_steps(path, clock, tmp_path / f"{clock}.yaml", "hermes", on_cpu=True)
    wall, cpu = load_steps(tmp_path / "wall.yaml"), load_steps(tmp_path / "cpu.yaml")
    assert len(wall.rows) == len(cpu.rows) > 50
    assert (cpu.rows["time_s"] == 0.01).all()
    assert (cpu.rows["excluded"] == "").all()
    assert set(wall.rows["time_s"]) == {0.0105, 0.02}
    assert ((wall.rows["time_s"] == 0.02) == wall.rows["excluded"].str.startswith("contended")).all()
    assert any("less than 90% of a CPU" in note for note in wall.header.notes)


def test_a_gpu_has_one_clock_and_no_contended_steps(journal, tmp_path):
    path, _ = journal
    collected_steps(path, "wall", tmp_path / "wall.yaml", "hermes", on_cpu=False)
    assert (load_steps(tmp_path / "wall.yaml").rows["excluded"] == "").all()


def test_the_reference_while_calibrating(journal, tmp_path):
    path, _plan = journal
    assert reference_s(path, on_cpu=True) == 0.012
    assert reference_s(path, on_cpu=False) == 0.024
    assert reference_s(None, on_cpu=True) is None
    assert reference_s(tmp_path / "none", on_cpu=True) is None


def test_another_batch_is_no_reference(journal, tmp_path):
    _, plan = journal
    other = plan.model_copy(update={"reference": {"name": "reference", "requests": [[0, 32, 9]]}})
    with Journal(tmp_path / "other.jsonl", other.model_dump(mode="json"), {}) as out:
        out.write({"kind": "reference", "at_s": 0.0, "rows": [{"cpu_time_s": 1.0, "time_s": 1.0}]})
    assert reference_s(tmp_path / "other.jsonl", on_cpu=True) is None
