"""How answers end: by a stop token, or with the tokens that their requests ask for."""

import json

import numpy as np
import pandas as pd
import pytest

from hermes.api import simulate
from hermes.config.validation import validate
from hermes.core.request_table import ANY_NUMBER
from hermes.errors import InputError
from hermes.scenario import load_scenario
from hermes.scenario.assumptions import assumptions
from hermes.workload.importers import import_trace
from hermes.workload.traces import read_trace, write_trace
from hermes.workload.workload import WorkloadConfig

UNIFORM = {"kind": "independent", "prompt": 50, "output": {"kind": "uniform", "min": 2, "max": 90}}
CHAT = {"kind": "independent", "prompt": 50, "output": {"kind": "lognormal", "median": 40, "sigma": 1.0}}


def table(tmp_path, lengths, **more):
    config = validate(WorkloadConfig, {"requests": 40, "arrivals": {"kind": "poisson", "rate": 5}, "lengths": lengths,
                                       **more})
    return config.draw(1, tmp_path)


def test_a_workload_says_how_answers_end(tmp_path):
    for ends in ("stop_token", "max_new_tokens"):
        drawn = table(tmp_path, UNIFORM, ends=ends)
        assert (drawn.max_new_tokens is None) == (ends == "max_new_tokens")
    assert (drawn := table(tmp_path, UNIFORM, ends="stop_token")).max_new_tokens.tolist() == [ANY_NUMBER] * 40
    assert drawn.output_tokens.tolist() == table(tmp_path, UNIFORM).output_tokens.tolist()


def test_left_out_the_lengths_say_it(tmp_path):
    assert table(tmp_path, UNIFORM).max_new_tokens is None
    assert table(tmp_path, {"kind": "fixed", "prompt": 50, "output": 20}).max_new_tokens is None
    for chat in (CHAT, {"kind": "empirical", "profile": "azure-conv-2023"}):
        assert set(table(tmp_path, chat).max_new_tokens.tolist()) == {ANY_NUMBER}


def test_longer_answers_are_cut_to_what_is_asked_for(tmp_path):
    whole, cut = table(tmp_path, CHAT), table(tmp_path, CHAT, max_new_tokens=30)
    assert cut.output_tokens.tolist() == np.minimum(whole.output_tokens, 30).tolist()
    assert set(cut.max_new_tokens.tolist()) == {30}
    assert (cut.output_tokens == 30).any()
    assert (cut.output_tokens < 30).any()


def test_a_context_that_cuts_an_answer_is_what_it_asked_for(tmp_path):
    drawn = table(tmp_path, CHAT, ends="stop_token", max_total_tokens=80)
    assert (drawn.max_new_tokens == 30).all()
    assert drawn.output_tokens.max() == 30


def test_conversations_go_on_with_the_answers_that_were_given(tmp_path):
    talks = {"kind": "conversations", "turns": 4, "message": 10, "output": {"kind": "geometric", "mean": 60},
             "think_time": 1.0}
    drawn = table(tmp_path, talks, max_new_tokens=25)
    later = np.flatnonzero(drawn.turn > 0)
    grown = drawn.prompt_tokens[later] - drawn.prompt_tokens[later - 1]
    assert grown.tolist() == (drawn.output_tokens[later - 1] + 10).tolist()
    assert drawn.output_tokens.max() == 25


def test_what_contradicts_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"max_new_tokens.*leave it out"):
        table(tmp_path, CHAT, ends="max_new_tokens", max_new_tokens=30)


def test_a_trace_keeps_what_was_asked_for(tmp_path):
    frame = pd.DataFrame({"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [9, 9, 9], "output_tokens": [5, 6, 7],
                          "max_new_tokens": [5, 100, -1]})
    write_trace(frame, tmp_path / "t.parquet", source="test")
    assert read_trace(tmp_path / "t.parquet").max_new_tokens.tolist() == [5, 100, ANY_NUMBER]
    replay = {"kind": "trace", "path": str(tmp_path / "t.parquet")}
    for more, asked in (({}, [5, 100, ANY_NUMBER]), ({"ends": "max_new_tokens"}, None),
                        ({"max_new_tokens": 6}, [6, 6, 6])):
        drawn = validate(WorkloadConfig, {"arrivals": replay, "lengths": replay, **more}).draw(1, tmp_path)
        assert (None if drawn.max_new_tokens is None else drawn.max_new_tokens.tolist()) == asked
    with pytest.raises(InputError, match=r"max_new_tokens\[1\]: expected at least the row's output_tokens \(6\)"):
        write_trace(frame.assign(max_new_tokens=[5, 3, -1]), tmp_path / "bad.parquet", source="test")


def test_importers_write_how_answers_ended(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,limit\n0,9,5,5\n1,9,6,80\n")
    assert "max_new_tokens" not in import_trace("csv", path)
    assert import_trace("csv", path, ends="max_new_tokens")["max_new_tokens"].tolist() == [5, 6]
    assert import_trace("csv", path, ends="stop_token")["max_new_tokens"].tolist() == [-1, -1]
    assert import_trace("csv", path, max_new_tokens="limit")["max_new_tokens"].tolist() == [5, 80]


@pytest.mark.parametrize(("sent", "asked"), [
    ({"max_tokens": 64, "ignore_eos": True}, 10), ({"max_completion_tokens": 64}, 64), ({}, None)])
def test_load_drivers_say_what_they_asked_for(tmp_path, sent, asked):
    entry = {"start_time": 1.0, "end_time": 2.0, "request": json.dumps({"model": "m", **sent}), "error": None,
             "info": {"input_tokens": 7, "output_tokens": 10, "output_token_times": [1.5, 2.0]}}
    path = tmp_path / "per_request_lifecycle_metrics.json"
    path.write_text(json.dumps([entry]))
    frame = import_trace("inference-perf", path)
    assert (frame["max_new_tokens"].tolist() if "max_new_tokens" in frame else [None]) == [asked]
    guide = tmp_path / "benchmarks.json"
    guide.write_text(json.dumps({"metadata": {}, "benchmarks": [{"requests": {"successful": [{
        "request_start_time": 1.0, "request_latency": 1.0, "prompt_tokens": 7, "output_tokens": 10,
        "time_to_first_token_ms": 50.0, "request_args": json.dumps({"body": sent})}]}}]}))
    frame = import_trace("guidellm", guide)
    assert (frame["max_new_tokens"].tolist() if "max_new_tokens" in frame else [None]) == [asked]


def served(ends, client=None, **scheduler):
    return simulate({
        "name": "ends", "workload": {
            "requests": 3, "arrivals": {"kind": "uniform", "rate": 0.1}, "ends": ends,
            "lengths": {"kind": "fixed", "prompt": 100, "output": 5}},
        "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm", "scheduler": {"kind": "chunked", **scheduler},
                     **(client or {})}]})


def test_an_engine_that_plans_ahead_computes_one_step_more():
    stopped, by_length = served("stop_token"), served("max_new_tokens")
    assert [len(one.record.step_ends[0]) for one in (stopped, by_length)] == [18, 15]
    assert stopped.requests.e2e_s.tolist() == by_length.requests.e2e_s.tolist()   # it is alone
    assert int((stopped.record.runs["sampled"] * stopped.record.runs["num_steps"]).sum()) == 15


def test_a_synchronous_engine_knows_in_time():
    stopped, by_length = (served(ends, async_scheduling=False) for ends in ("stop_token", "max_new_tokens"))
    assert stopped.requests.equals(by_length.requests)
    assert len(stopped.record.step_ends[0]) == 15


def test_an_answer_that_fills_the_context_ends_by_its_length():
    assert len(served("stop_token", {"max_model_len": 105}).record.step_ends[0]) == 15
    assert len(served("stop_token", {"max_model_len": 106}).record.step_ends[0]) == 18


def test_a_client_that_only_prefills_asks_for_one_token():
    results = served("stop_token", {"count": "1P1D"})
    steps = dict(zip([client.name for client in results.record.clients], map(len, results.record.step_ends),
                     strict=True))
    assert sorted(steps.values())[0] == 3
    assert results.summary["requests"]["completed"] == 3


def assumed(**workload):
    one = {"requests": 3, "arrivals": {"kind": "uniform", "rate": 1}, "lengths": CHAT, **workload}
    found = assumptions(load_scenario({"name": "ends", "workload": one,
                                       "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}]}))
    return {each.name: each for each in found}


def test_where_the_default_decides_it_is_an_assumption():
    assert list(assumed()["ends"].settings.values()) == ["max_new_tokens"]
    for said in ({"ends": "stop_token"}, {"max_new_tokens": 100}, {"lengths": UNIFORM}):
        assert "ends" not in assumed(**said)
