"""Queries on the clock: what they expand into, what profiler and golden runs cost, the live reading of memory."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.hardware.descriptions.files import names_in
from hermes.pipelines import PIPELINES, Generate, Pipeline
from hermes.plugins.metis import choosers, datasets
from hermes.plugins.metis.choosers import HOW
from hermes.plugins.metis.decision import METHODS, Configuration, Lengths, Reading, choose
from hermes.plugins.metis.pipeline import GOLDEN_CHUNKS, Metis
from hermes.results.files.trace import trace_events
from hermes.services.remote_model import RemoteModel
from hermes.testing.pipelines import PipelineContract
from hermes.testing.services import ServiceContract

DATASETS = names_in("rag_datasets")
BASE = resource_dir("scenarios") / "studies" / "metis" / "base.yaml"


class TestMetis(PipelineContract):
    examples = 30

    def make(self):
        return Metis


class TestMetisServedProfiler(PipelineContract):
    examples = 20

    def make(self):
        return Metis

    def parameters(self):
        return {"dataset": "finsec", "system": "median", "profiler_model": "", "feedback_every": 2}


class TestRemoteModel(ServiceContract):
    def make(self):
        return RemoteModel(per_input_token=1e-5, output_tokens=20)


def run(*overrides, pipeline=None, **more):
    settings = {"name": "metis", "dataset": "musique", "system": "metis", "co_schedule": True} | (pipeline or {}) | more
    text = "{" + ", ".join(f"{k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items()) + "}"
    return simulate(BASE, overrides=[f"workload.pipeline={text}", *overrides])


@contextmanager
def seen_states():
    """What METIS's chooser was asked."""
    seen, own = [], choosers._BestFit.choose

    def spy(self, state):
        seen.append(state)
        return own(self, state)

    with mock.patch.object(choosers._BestFit, "choose", spy):
        yield seen


def calls(results, request, kind="generate"):
    record = results.record
    mine = (record.stages["request"] == request) & (record.stages["kind"] == record.stage_kinds.index(kind))
    return sorted(zip(record.stages["prompt_tokens"][mine].tolist(), record.stages["output_tokens"][mine].tolist(),
                      strict=True))


@pytest.mark.parametrize("system", ["metis", "median", "adaptive_rag", "hindsight"])
def test_every_expanded_call_is_accounted_for(system):
    """The stages of each request are the calls of its configuration, and nothing else."""
    results = run("workload.requests=40", system=system, feedback_every=0)
    for row in results.requests.itertuples():
        config = Configuration(METHODS[int(row.note_method)], int(row.note_chunks), int(row.note_words))
        lengths = Lengths(datasets.dataset("musique").chunk_tokens, row.prompt_tokens, row.output_tokens)
        mappers = [lengths.mapper(config)] * config.num_chunks if config.method != "stuff" else []
        last = [lengths.last(config)] if config.method != "map_rerank" else []
        assert calls(results, row.request) == sorted(mappers + last)
        assert len(calls(results, row.request, "retrieve")) == 1
    assert (results.requests["status"] == "completed").all()


def test_profiler_and_golden_runs_are_charged_and_reconcile():
    results = run("workload.requests=70", "workload.arrivals.rate=0.3", feedback_every=30)
    record, frame = results.record, results.requests
    kind = record.stages["kind"]
    profiled = kind == record.stage_kinds.index("profile")
    assert record.stages["prompt_tokens"][profiled].sum() == frame["note_profile_in"].sum() > 0
    golden = frame[frame["note_golden_in"].notna()]
    assert len(golden) == 2
    prompts = outputs = 0
    for row in frame.itertuples():
        config = Configuration(METHODS[int(row.note_method)], int(row.note_chunks), int(row.note_words))
        lengths = Lengths(datasets.dataset("musique").chunk_tokens, row.prompt_tokens, row.output_tokens)
        several = config.num_chunks if config.method != "stuff" else 0
        prompts += several * lengths.mapper(config)[0] + lengths.last(config)[0]
        outputs += several * lengths.mapper(config)[1] + lengths.last(config)[1]
    generated = kind == record.stage_kinds.index("generate")
    assert record.stages["prompt_tokens"][generated].sum() == prompts + golden["note_golden_in"].sum()
    assert record.stages["output_tokens"][generated].sum() == outputs + golden["note_golden_out"].sum()
    assert calls(results, golden.index[0]).count((500 + golden["prompt_tokens"].iloc[0], 300)) == GOLDEN_CHUNKS
    # golden answers make later prompts of the profiler longer
    assert frame["note_profile_in"].iloc[-1] > frame["note_profile_in"].iloc[0] + 40


def test_the_trace_shows_every_token_of_profiler_and_golden_runs():
    """What the notes and the configurations say, against the spans of the Chrome trace; the API's time against its
    price per token."""
    results = run("workload.requests=35", "workload.arrivals.rate=0.3", feedback_every=10)
    frame = results.requests
    spans: dict[str, list[dict[str, int]]] = {"generate": [], "profile": []}
    took = {}
    for event in trace_events(results.record, results.metrics):
        if event.get("cat") != "stage" or event["name"] not in spans:
            continue
        if event["ph"] == "b":
            spans[event["name"]].append(event["args"])
        if event["name"] == "profile":
            took.setdefault(event["id2"]["local"], []).append(event["ts"])
    own = [lengths_of(row) for row in frame.itertuples()]
    noted = {name: int(np.nansum(frame[f"note_{name}"])) for name in (
        "profile_in", "profile_out", "golden_in", "golden_out")}
    assert len(spans["profile"]) == 35
    assert sum(args["prompt_tokens"] for args in spans["profile"]) == noted["profile_in"]
    assert sum(args["prompt_tokens"] for args in spans["generate"]) == sum(p for p, _ in own) + noted["golden_in"]
    assert sum(args["output_tokens"] for args in spans["generate"]) == sum(o for _, o in own) + noted["golden_out"]
    assert min(noted.values()) > 0
    seconds = sum(end - begin for begin, end in took.values()) / 1e6
    assert seconds == pytest.approx(0.1 * 35 + 20e-6 * noted["profile_in"] + 5e-3 * noted["profile_out"], rel=1e-6)


def lengths_of(row):
    """Tokens in and out of all calls of a request's configuration."""
    config = Configuration(METHODS[int(row.note_method)], int(row.note_chunks), int(row.note_words))
    lengths = Lengths(datasets.dataset("musique").chunk_tokens, row.prompt_tokens, row.output_tokens)
    several = config.num_chunks if config.method != "stuff" else 0
    (prompt, summary), (last, answer) = lengths.mapper(config), lengths.last(config)
    return several * prompt + last, several * summary + answer


def test_golden_runs_that_give_way_cost_the_same_and_delay_less():
    load = ("workload.requests=60", "workload.arrivals.rate=3")
    made = [run(*load, dataset="squad", system="median", feedback_every=10, golden_last=last) for last in (False, True)]
    first, last = (results.requests for results in made)
    for name in ("note_golden_in", "note_golden_out", "note_f1"):
        np.testing.assert_array_equal(first[name], last[name])
    assert made[0].record.stages["prompt_tokens"].sum() == made[1].record.stages["prompt_tokens"].sum()
    assert last["e2e_s"].mean() < 0.98 * first["e2e_s"].mean()


def test_the_request_does_not_wait_for_its_golden_run():
    with_, without = (run("workload.requests=30", "workload.arrivals.rate=0.05", feedback_every=n) for n in (30, 0))
    assert len(with_.record.stages["kind"]) == len(without.record.stages["kind"]) + GOLDEN_CHUNKS + 2
    last = with_.requests.iloc[-1]
    ends = with_.record.stages["end_ns"][with_.record.stages["request"] == 29]
    assert last["finish_s"] < ends.max() / 1e9
    assert last["e2e_s"] >= without.requests.iloc[-1]["e2e_s"]


@pytest.mark.parametrize(("system", "golden"), [("metis", 2), ("median", 2), ("adaptive_rag", 0), ("fixed", 0)])
def test_only_profilers_that_learn_have_golden_runs(system, golden):
    results = run("workload.requests=8", "workload.arrivals.rate=0.3", system=system, feedback_every=4)
    noted = results.requests.get("note_golden_in")
    assert (0 if noted is None else noted.notna().sum()) == golden


def test_free_memory_as_the_device_reports_it():
    """The card less the share of the engine: the same however much of the KV is in use, so that no query yields."""
    load = ("workload.requests=30", "workload.arrivals.rate=2", "clients.0.scheduler.max_num_seqs=2048",
            "clients.0.memory.utilization=0.2")
    results, live = (run(*load, reading=reading, dataset="qmsum", feedback_every=0) for reading in ("device", "free"))
    assert not results.requests["note_constrained"].any()
    assert set(results.requests["note_how"]) == {HOW.index("fits")}
    assert live.requests["note_constrained"].any()
    with pytest.raises(InputError, match=r"client llm .* leave out its memory\.num_blocks"):
        run("workload.requests=1", "clients.0.memory.num_blocks=900", reading="device")


def test_a_view_says_what_the_engine_leaves_of_the_device():
    with seen_states() as states:
        results = run("workload.requests=1")
    seen = [state.view for state in states]
    info = results.record.clients[0]
    assert info.memory_utilization == 0.9
    assert seen[0].unreserved_kv_tokens == int(info.memory_bytes * (1 - 0.9) / info.kv_bytes_per_token)
    assert 30_000 < seen[0].unreserved_kv_tokens < 40_000
    assert seen[0].max_model_len == 32_768


def test_a_served_profiler_is_another_client():
    base = {"clients.1": "{name: big, model: llama-3.1-70b, device: a40, devices: 2, "
                         "hardware: {kind: roofline, model: llama-3.1-70b, device: a40, tp: 2, dtype: int4-awq}}"}
    results = run("workload.requests=20", *(f"{k}={v}" for k, v in base.items()), profiler_model="llama-3.1-70b")
    record = results.record
    names = [info.name for info in record.clients]
    served = record.stages["client"] == names.index("big")
    assert served.sum() == 20
    assert record.stages["prompt_tokens"][served].sum() == results.requests["note_profile_in"].sum()
    assert record.stages["output_tokens"][served].sum() == results.requests["note_profile_out"].sum()


def test_queries_are_the_same_whoever_chooses():
    """Equal configurations, equal F1: truth does not depend on the system."""
    a, b = run("workload.requests=60", system="fixed", chunks=4), run("workload.requests=30", system="fixed", chunks=4)
    assert a.requests["note_f1"].tolist()[:30] == b.requests["note_f1"].tolist()


@quick_and_full(2, 8)
@given(st.sampled_from(DATASETS), st.integers(300, 4000), st.sampled_from([0.5, 2.0, 8.0]),
       st.sampled_from(["free", "uncommitted"]), st.sampled_from([512, 2048]))
def test_both_steppings_see_the_same_memory(dataset, blocks, rate, reading, budget):
    made = [run("workload.requests=40", f"workload.arrivals.rate={rate}", f"clients.0.memory.num_blocks={blocks}",
                f"clients.0.scheduler.max_num_batched_tokens={budget}", "clients.0.scheduler.max_num_seqs=24",
                f"stepping={stepping}", dataset=dataset, reading=reading, feedback_every=10)
            for stepping in ("runs", "every_step")]
    for name, values in made[0].record.notes.items():
        np.testing.assert_array_equal(values, made[1].record.notes[name], err_msg=name)
    assert made[0].record.finish_ns.tolist() == made[1].record.finish_ns.tolist()


@quick_and_full(8, 25)
@given(st.sampled_from(METHODS), st.integers(1, 35), st.integers(30, 200), st.sampled_from(DATASETS),
       st.sampled_from([512, 2048, 8192]), st.sampled_from([4, 16, 256]))
def test_a_query_alone_never_holds_more_than_its_need(method, chunks, words, dataset, budget, seqs):
    """The definition of what is in memory at once, against the engine."""
    results = run("workload.requests=1", f"clients.0.scheduler.max_num_batched_tokens={budget}",
                  f"clients.0.scheduler.max_num_seqs={seqs}", system="fixed", dataset=dataset, method=method,
                  chunks=chunks, words=words)
    row = results.requests.iloc[0]
    lengths = Lengths(datasets.dataset(dataset).chunk_tokens, int(row["prompt_tokens"]), int(row["output_tokens"]))
    config = Configuration(method, chunks, words if method == "map_reduce" else 0)
    _, need = Reading(1e12, 1.0, 16, seqs, budget).need(config, lengths)
    used = results.record.runs["used_blocks"]
    if not len(used):   # stuffed into one prompt it is longer than the model reads
        assert (method, row["status"]) == ("stuff", "rejected")
        assert need > 32_768
    assert used.max(initial=0) * 16 <= need


@quick_and_full(6, 20)
@given(st.sampled_from(DATASETS), st.integers(200, 3000), st.sampled_from([0.3, 1.0, 4.0]),
       st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([8, 256]), st.sampled_from(["one", "space"]))
def test_on_the_clock_what_is_chosen_fits_or_is_the_documented_fallback(dataset, blocks, rate, partial, seqs, full):
    """Every decision of a run, against the reading it was made with; every call of it is served or rejected."""
    made = []

    def spy(space, lengths, reading, **more):
        choice = choose(space, lengths, reading, **more)
        made.append((space, lengths, reading, more["joint"], choice))
        return choice

    with mock.patch.object(choosers, "choose", spy), seen_states() as states:
        results = run("workload.requests=25", f"workload.arrivals.rate={rate}", f"clients.0.memory.num_blocks={blocks}",
                      f"clients.0.scheduler.max_num_seqs={seqs}", dataset=dataset, partial=partial, full=full,
                      feedback_every=0)
    live = made[::2]   # the others are those of an idle engine
    assert len(live) == 25
    for view, (space, lengths, reading, joint, choice) in zip((one.view for one in states), live, strict=True):
        config = choice.configuration
        assert reading.free_bytes == view.free_kv_tokens <= 16 * blocks
        assert reading.free_seqs == max(0, seqs - view.running - view.waiting)
        if choice.how == "queued":
            if full == "one":
                assert (config.num_chunks, config.method) == (1, "stuff" if joint else "map_rerank")
            else:
                assert any(config in box for box in space)
            assert not reading.holds(reading.need(config, lengths)[1])
            continue
        assert reading.holds(choice.need_bytes)
        if choice.how == "fallback":
            assert config.method == ("stuff" if joint else "map_rerank")
        else:
            assert any(config in box for box in space)
    chosen = {(METHODS[int(row.note_method)], int(row.note_chunks), int(row.note_words)): row
              for row in results.requests.itertuples()}
    assert set(chosen) == {(c.configuration.method, c.configuration.num_chunks, c.configuration.summary_words)
                           for *_, c in live}
    for row in results.requests[results.requests["status"] == "completed"].itertuples():
        method, chunks = METHODS[int(row.note_method)], int(row.note_chunks)
        expected = {"map_rerank": chunks, "stuff": 1, "map_reduce": chunks + 1}[method]
        assert len(calls(results, row.request)) == expected


def test_under_pressure_decisions_fit_or_fall_back():
    results = run("workload.requests=60", "clients.0.memory.num_blocks=500", dataset="finsec", feedback_every=0)
    frame = results.requests
    assert set(frame["note_how"]) - {HOW.index("fits")}
    assert frame["note_constrained"].mean() > 0.5
    assert (frame["status"] == "completed").all()


# -- what a pipeline may see and leave behind ----------------------------------------------------------------------


@pytest.fixture
def looking():
    seen = []

    @PIPELINES.register("looking-of-a-test")
    def looking(request: object) -> Pipeline:
        def later() -> Pipeline:
            yield Generate(50, 5)

        (view,) = request.view("generate")
        seen.append(view)
        request.note("free", view.free_kv_tokens)
        if request.id == 1:
            request.beside(later())
        yield Generate(request.prompt_tokens, request.output_tokens)

    looking.stages = ("generate",)
    yield seen
    PIPELINES.unregister("looking-of-a-test")


def scenario(**workload):
    return {
        "workload": {"requests": 3, "arrivals": {"kind": "at_once"}, "pipeline": "looking-of-a-test",
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 10}} | workload,
        "clients": [{"name": "a", "model": "mistral-7b", "memory": {"num_blocks": 100},
                     "hardware": {"kind": "roofline", "model": "mistral-7b", "device": "a40"}}],
    }


def test_a_view_counts_what_waits_and_what_is_taken(looking, tmp_path):
    results = simulate(scenario())
    assert [view.waiting for view in looking] == [0, 1, 3]   # the second runs another beside itself
    assert {view.free_kv_tokens for view in looking} == {1600}
    assert [view.uncommitted_kv_tokens for view in looking] == [1600, 1600 - 112, 1600 - 2 * 112 - 64]
    assert results.requests["note_free"].tolist() == [1600.0] * 3
    assert results.requests["stages"].tolist() == [1, 2, 1]


def test_a_view_in_the_middle_of_a_run_of_steps(looking):
    arrivals = {"kind": "poisson", "rate": 5.0}
    lengths = {"kind": "fixed", "prompt": 100, "output": 300}
    views = []
    for stepping in ("runs", "every_step"):
        looking.clear()
        simulate(scenario(requests=8, arrivals=arrivals, lengths=lengths), stepping=stepping)
        views.append(copy.copy(looking))
    assert views[0] == views[1]
    assert any(0 < view.free_kv_tokens < 1600 for view in views[0])


def test_notes_are_kept_in_files(looking, tmp_path):
    from hermes.results.files.export import write_results
    from hermes.results.files.stored import open_run

    results = simulate(scenario())
    write_results(results, tmp_path / "out")
    assert open_run(tmp_path / "out").record.notes["free"].tolist() == [1600.0] * 3


@pytest.mark.parametrize(("parameter", "value"), [
    ("dataset", "trivia"), ("grid", "fine"), ("noise", 1.5), ("reading", "all"), ("profiler", "oracle"),
    ("quality", "high"), ("chunks", 36), ("system", "best"),
])
def test_wrong_parameters_are_one_line(parameter, value):
    with pytest.raises(InputError, match=parameter):
        run(**{parameter: value})
