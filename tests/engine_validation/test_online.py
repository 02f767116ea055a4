"""The serving loop that real engines run in, against the simulation: the same rules, to the nanosecond."""

import json

import pytest
from fake_engine import FakeEngine, FakeTime, serve_fake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.calibration.collect import online
from hermes.calibration.engine_validation.engines import engine_named
from hermes.calibration.engine_validation.prediction import predict
from hermes.calibration.engine_validation.workload import EngineSettings, OnlineRequest, OnlineWorkload, draw_requests
from hermes.config.validation import validate
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.profile import Profile, dump_yaml, load_profile

MODEL = {"vocab_size": 100}
# a last chunk of one token costs the same whether it counts as prefill (the simulation) or as decode (the engine)
PROFILE = {
    "format": "hermes-profile/1", "name": "made-up",
    "provenance": {"source": "made up", "hardware": "none", "engine": "fake", "model": "none", "dtype": "bf16",
                   "date": "2026-11-21"},
    "phases": {
        "prefill": {"terms": [{"term": "1", "seconds": 0.02}, {"term": "tokens", "seconds": 2e-4},
                              {"term": "prefill_attn", "seconds": 1e-7}]},
        "decode": {"terms": [{"term": "1", "seconds": 0.02}, {"term": "tokens", "seconds": 2e-4},
                             {"term": "decode_ctx", "seconds": 1e-7}, {"term": "decode_seqs", "seconds": 1e-7}]},
        "mixed": {"terms": [{"term": "1", "seconds": 0.02}, {"term": "tokens", "seconds": 2e-4},
                            {"term": "prefill_attn", "seconds": 1e-7}, {"term": "decode_ctx", "seconds": 1e-7},
                            {"term": "decode_seqs", "seconds": 1e-7}]},
    },
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "made-up.yaml"
    dump_yaml(validate(Profile, PROFILE), path, "made up")
    return path


def workload_of(requests, clock="cpu", budget=512, seats=32):
    return OnlineWorkload(
        clock=clock, requests=requests,
        engine=EngineSettings(model=MODEL, max_num_batched_tokens=budget, max_num_seqs=seats, num_blocks=10**6),
    )


requests_lists = st.lists(
    st.tuples(st.integers(0, 3_000_000), st.integers(1, 1500), st.integers(1, 40)), min_size=1, max_size=25,
).map(lambda rows: [
    OnlineRequest(arrival_s=a / 1e6, prompt_tokens=p, output_tokens=o) for a, p, o in sorted(rows)
])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=requests_lists, limits=st.tuples(st.integers(16, 600), st.integers(1, 12)), clock=st.sampled_from(
    ["cpu", "wall"]))
def test_served_and_simulated_agree(profile, requests, limits, clock):
    """An engine that takes exactly what the profile says has exactly the times the simulation predicts."""
    budget, seats = limits
    model = PolynomialModel(load_profile(profile))
    with pytest.MonkeyPatch.context() as patch:
        measured = serve_fake(patch, [r.model_dump() for r in requests], clock,
                              lambda stats: model.step_ns(stats) * 1e-9, budget=budget, seats=seats)
    workload = workload_of(requests, clock, budget, seats)
    times = predict(workload, engine_named("vllm").scheduler(workload), profile).times
    served = [row["first_token_s"] - r.arrival_s for row, r in zip(measured["requests"], requests, strict=True)]
    finished = [row["finish_s"] - r.arrival_s for row, r in zip(measured["requests"], requests, strict=True)]
    # sleeping to an arrival overshoots by a nanosecond per sleep on the made-up wall clock
    assert times.ttft == pytest.approx(served, abs=2e-7)
    assert times.e2e == pytest.approx(finished, abs=2e-7)


def test_cpu_clock_ignores_what_others_take(monkeypatch):
    requests = [r.model_dump() for r in draw_requests(2.0, 20, 3)]

    def step_s(stats):
        return 0.02 + 1e-4 * stats.prefill_tokens

    alone = serve_fake(monkeypatch, requests, "cpu", step_s)
    crowded = serve_fake(monkeypatch, requests, "cpu", step_s, lost=0.4)
    for one, other in zip(alone["requests"], crowded["requests"], strict=True):
        assert one["token_s"] == pytest.approx(other["token_s"])
    assert sum(crowded["steps"]["wall_s"]) == pytest.approx(sum(crowded["steps"]["cpu_s"]) / 0.6)
    wall = serve_fake(monkeypatch, requests, "wall", step_s, lost=0.4)
    assert wall["requests"][-1]["finish_s"] > alone["requests"][-1]["finish_s"]


def test_adding_takes_time_and_arrivals_wait_for_the_step(monkeypatch):
    requests = [{"arrival_s": 0.5, "prompt_tokens": 10, "output_tokens": 2},
                {"arrival_s": 0.55, "prompt_tokens": 10, "output_tokens": 1}]
    found = serve_fake(monkeypatch, requests, "cpu", lambda stats: 0.1, add_s=0.01)
    first, second = found["requests"]
    assert first["added_s"] == pytest.approx(0.5)
    assert first["token_s"] == pytest.approx([0.61, 0.72])
    assert second["added_s"] == pytest.approx(0.61)   # seen at the end of the step it arrived in
    assert second["token_s"] == pytest.approx([0.72])
    assert found["adding"]["cpu_s"] == pytest.approx([0.01, 0.01])


def test_an_engine_that_ends_early_is_refused(monkeypatch):
    class Short(FakeEngine):
        def add(self, request, prompt_tokens, output_tokens):
            super().add(request, prompt_tokens, output_tokens - 1)

    fake = FakeTime()
    monkeypatch.setattr(online, "time", fake)
    with pytest.raises(RuntimeError, match="gave 2 of 3 tokens"):
        online.serve(Short(fake, lambda stats: 0.1, 512, 8),
                     [{"arrival_s": 0.0, "prompt_tokens": 5, "output_tokens": 3}], "cpu")


def test_orphans_stop(monkeypatch):
    monkeypatch.setenv(online.STARTER_PID, "1")
    with pytest.raises(SystemExit):
        serve_fake(monkeypatch, [{"arrival_s": 0.0, "prompt_tokens": 5, "output_tokens": 3}], "cpu", lambda stats: 0.1)


def test_result_files_are_whole_or_absent(tmp_path):
    path = tmp_path / "result.json"
    online.write_whole(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        online.write_whole(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
