"""Plans for a real vLLM engine: what they ask for, and the steps it makes of them."""

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.calibration.measurements.llm import LlmMeasurement
from hermes.calibration.steps import STATS, load_steps
from hermes.calibration.vllm_plan import batches
from hermes.errors import InputError

RECORDED = Path(__file__).resolve().parents[1] / "data" / "vllm-cpu" / "points.json.gz"

TRACE = Path(__file__).resolve().parents[2] / "traces" / "hardware" / "vllm-0.32.0-cpu-small-llama.yaml"

workloads = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 300), st.integers(1, 30)).map(list),
                     min_size=1, max_size=20)


@quick_and_full(50, 150)
@given(workloads, st.integers(1, 200), st.integers(1, 10))
def test_batches_compute_every_token_once(requests, budget, seats):
    steps = list(batches(requests, (budget, seats)))
    assert sum(s.sampled for s in steps) == sum(output for _, _, output in requests)
    computed = sum(s.prefill_tokens + s.decode_seqs for s in steps)
    assert computed == sum(prompt + output - 1 for _, prompt, output in requests)
    for s in steps:
        assert 0 < s.prefill_tokens + s.decode_seqs <= budget
        assert s.prefill_seqs + s.decode_seqs <= seats
        assert s.sampled <= s.prefill_seqs + s.decode_seqs
        assert s.decode_ctx_max <= s.decode_ctx <= s.decode_ctx_max * s.decode_seqs
        assert s.prefill_attn >= s.prefill_past + s.prefill_tokens


def test_batches_are_those_of_the_real_engine():
    """Points measured with vLLM 0.32.0 on a CPU: every step's statistics."""
    points = json.loads(gzip.decompress(RECORDED.read_bytes()))
    assert len(points) >= 12
    for point in points:
        ours = [[getattr(s, name) for name in STATS] for s in batches(point["requests"], tuple(point["limits"]))]
        assert ours == point["steps"], point["name"]


def made(**more):
    options = {"max_num_batched_tokens": 1024, "max_num_seqs": 32, "max_context": 4096, "repetitions": 1} | more
    return LlmMeasurement(model="llama-3.1-8b", **{"dtype": "bf16", "parts": ["grid"]} | options).plan(Path())


@pytest.mark.parametrize("more", [{}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 64, "max_context": 512},
                                  {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_context": 32768}])
def test_a_plan_spans_what_is_asked_for(more):
    options = {"max_num_batched_tokens": 1024, "max_num_seqs": 32, "max_context": 4096} | more
    plan = made(**more)
    assert plan == made(**more)
    levels = [point["level"] for point in plan.points]
    assert levels == sorted(levels)
    assert max(p["max_num_batched_tokens"] for p in plan.points) == options["max_num_batched_tokens"]
    assert max(p["max_num_seqs"] for p in plan.points) == options["max_num_seqs"]
    kinds = dict.fromkeys(("prefill", "decode", "mixed", "past"), 0)
    for point in plan.points:
        assert point["estimate_s"] > 0
        assert max(p + o for _, p, o in point["requests"]) <= options["max_context"]
        for s in batches(point["requests"], (point["max_num_batched_tokens"], point["max_num_seqs"])):
            kinds["prefill"] += not s.decode_seqs
            kinds["decode"] += not s.prefill_tokens
            kinds["mixed"] += bool(s.prefill_tokens and s.decode_seqs)
            kinds["past"] += s.prefill_past > 0
    assert min(v for k, v in kinds.items() if k != "mixed" or options["max_num_seqs"] > 1) >= 10


def test_a_cut_off_plan_is_broad():
    full, cut = made(), made(points=20)
    assert [p["name"] for p in cut.points] == [p["name"] for p in full.points][:20]
    assert len({p["max_num_batched_tokens"] for p in cut.points}) >= 3


def test_memory_is_stated():
    plan = made()
    model = plan.model
    assert plan.memory.weights_bytes == model.weight_bytes("bf16")
    most = max(sum(p + o for _, p, o in point["requests"]) for point in plan.points)
    assert plan.memory.kv_bytes >= most * model.kv_bytes_per_token(2.0)
    assert plan.options["kv_gib"] == math.ceil(plan.memory.kv_bytes / 2**30)


@pytest.mark.parametrize(("more", "field"), [
    ({"dtype": "fp8"}, "dtype"), ({"max_num_batched_tokens": 32}, "max_context"), ({"max_context": 100},
                                                                                     "max_context"),
])
def test_what_cannot_be_measured_is_refused(more, field):
    with pytest.raises(InputError, match=field):
        made(**more)


def test_the_collected_steps_are_whole():
    """Steps of the live validation in docs/accuracy.md: kept whole, those without a CPU marked."""
    steps = load_steps(TRACE)
    rows = steps.rows
    assert len(rows) > 2500
    assert (steps.header.engine, steps.header.engine_version, steps.header.dtype) == ("vllm", "0.32.0", "bf16")
    assert (rows["cpu_time_s"] > 0).all()
    assert ((rows["overhead_s"] >= 0) & (rows["overhead_s"] < rows["time_s"])).all()
    lost = rows["cpu_time_s"] < 0.9 * rows["time_s"]
    assert rows["excluded"][lost].ne("").all()
    assert rows["excluded"].eq("").mean() > 0.9


def test_the_part_of_the_engine():
    """Full chunks beside 0, 1, 2, 4, ... decodes at several contexts, and steady batches of all sizes."""
    made = LlmMeasurement(model="llama-3.1-8b", device="cuda", max_num_batched_tokens=512, max_num_seqs=16,
                          max_context=4096, parts=["engine"]).plan(Path())
    assert {point["part"] for point in made.points} == {"engine"}
    beside, alone = set(), set()
    for point in made.points:
        limits = point["max_num_batched_tokens"], point["max_num_seqs"]
        for stats in batches(point["requests"], limits):
            assert stats.prefill_tokens + stats.decode_seqs <= 512
            if stats.prefill_tokens + stats.decode_seqs == 512 and stats.prefill_seqs == 1 and "full" in point["name"]:
                beside.add((stats.decode_seqs, stats.prefill_past > 0))
            if not stats.prefill_tokens and "batch" in point["name"]:
                alone.add(stats.decode_seqs)
    assert beside >= {(n, past) for n in (0, 1, 2, 4, 8, 15) for past in (False, True)}
    assert alone >= {1, 2, 3, 4, 6, 8, 12, 16}
    longest = max(p + o for point in made.points for _, p, o in point["requests"])
    assert longest <= 4096
