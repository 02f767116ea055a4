"""Pipelines by name, with parameters, and several in one workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hermes
from hermes.errors import InputError
from hermes.pipelines.mixing import PipelineFinder, WeightedPipeline, draw_pipelines
from hermes.results.files.export import write_results
from hermes.workload.pipelines import PipelineChoice

ENGINE = {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}


def scenario(pipeline: Any, *, requests: int = 60, models: tuple[str, ...] = ("",), **workload: Any) -> dict[str, Any]:
    return {
        "workload": {
            "requests": requests, "arrivals": {"kind": "poisson", "rate": 20}, "pipeline": pipeline,
            "lengths": {"kind": "fixed", "prompt": 50, "output": 4}, **workload,
        },
        "clients": [
            # one engine's times stand in for all models
            *({"name": f"e{i}", "model": model, "hardware": ENGINE, "memory": {"num_blocks": 5000},
               "allow_mismatch": True}
              for i, model in enumerate(models)),
            {"kind": "processing", "name": "reward", "serves": {"score": {"kind": "per_item", "per_item": 0.001}}},
        ],
    }


@settings(max_examples=30, deadline=None)
@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=5), seed=st.integers(0, 99), n=st.integers(0, 400))
def test_more_requests_leave_the_first_as_they_are(weights, seed, n):
    few, many = draw_pipelines(weights, n, seed, "main"), draw_pipelines(weights, n + 50, seed, "main")
    assert few.tolist() == many[:n].tolist()
    assert set(many.tolist()) <= set(range(len(weights)))


def test_shares_are_the_weights():
    counts = np.bincount(draw_pipelines([1, 2, 5], 80_000, 3, "main"), minlength=3)
    assert np.abs(counts / 10_000 - [1, 2, 5]).max() < 0.1
    assert draw_pipelines([1, 1], 50, 3, "a").tolist() != draw_pipelines([1, 1], 50, 3, "b").tolist()


@pytest.mark.feature("Pipelines and services", "Mixtures of pipelines and models")
def test_each_request_takes_one_and_asks_for_its_model(tmp_path):
    ways = [{"name": "plain", "weight": 2, "model": "llama-2-70b"}, {"name": "reward-ranked", "candidates": 3},
            {"name": "reward-ranked", "candidates": 2, "weight": 0.5}]
    results = hermes.simulate(scenario(ways, models=("llama-2-70b", "llama-3.1-8b"), model="llama-3.1-8b"))
    requests, stages = results.requests, results.stages
    assert (requests["status"] == "completed").all()
    expected = {"plain": (1, "llama-2-70b", "e0"), "reward-ranked (candidates=3)": (6, "llama-3.1-8b", "e1"),
                "reward-ranked (candidates=2)": (4, "llama-3.1-8b", "e1")}
    assert set(requests["pipeline"]) == set(expected)
    for label, (count, model, client) in expected.items():
        mine = requests[requests["pipeline"] == label]
        assert (mine["stages"] == count).all()
        assert (mine["model"] == model).all()
        generated = stages[stages["request"].isin(mine["request"]) & (stages["kind"] == "generate")]
        assert set(generated["client"]) == {client}
    assert set(requests["workload"]) == {"main"}
    write_results(results, tmp_path / "out")
    read = hermes.open_run(tmp_path / "out")
    for column in ("workload", "pipeline", "model"):
        assert read.requests[column].tolist() == requests[column].tolist()
        assert read.record.labels[column][1] == results.record.labels[column][1]


def test_a_mixture_changes_no_other_number():
    alone = hermes.simulate(scenario("plain")).requests
    mixed = hermes.simulate(scenario([{"name": "plain"}, {"name": "reward-ranked"}])).requests
    assert alone["arrival_s"].tolist() == mixed["arrival_s"].tolist()
    one_way = hermes.simulate(scenario([{"name": "plain"}])).requests
    assert one_way["finish_s"].tolist() == alone["finish_s"].tolist()


def test_users_of_a_closed_loop_draw_too():
    data = scenario([{"name": "plain"}, {"name": "reward-ranked", "candidates": 2}],
                    arrivals={"kind": "closed_loop", "users": 4})
    requests = hermes.simulate(data).requests
    assert set(zip(requests["pipeline"], requests["stages"], strict=True)) == {("plain", 1), ("reward-ranked", 4)}


def test_a_graph_of_the_scenario_comes_before_what_is_registered():
    data = scenario([{"name": "rag"}, {"name": "plain"}])
    data["pipelines"] = {"rag": {"stages": {"judge": {"kind": "score"}}}}
    assert (hermes.simulate(data).requests["stages"] == 1).all()


def test_labels_have_the_parameters_in_the_short_form_of_yaml():
    """Mappings and lists, too; equal parameters are one pipeline."""
    finder = PipelineFinder({}, 0, Path())
    choices = [PipelineChoice.model_validate({"name": "metis", **parameters}) for parameters in (
        {}, {"quality": {"kind": "default", "floor": 0.1}, "steps": ["retrieve", "synthesise"]},
        {"steps": ["retrieve", "synthesise"], "quality": {"kind": "default", "floor": 0.1}})]
    built = [finder.find(choice, "workload.0.pipeline") for choice in choices]
    assert built[1] is built[2] is not built[0]
    (entries,) = finder.labelled([[WeightedPipeline("metis", pipeline, "") for pipeline in built[:2]]])
    assert [entry.label for entry in entries] == [
        "metis", "metis (quality={kind: default, floor: 0.1}, steps=[retrieve, synthesise])"]


def test_what_is_written_out_is_read_back():
    data = scenario([{"name": "plain"}, {"name": "reward-ranked", "candidates": 2}])
    checked = hermes.scenario.load_scenario(data)
    text = hermes.scenario.resolved_yaml(checked)
    assert "candidates: 2" in text
    again = hermes.scenario.load_scenario(hermes.config.yaml_document.parse_yaml(text, "x").plain())
    assert again == checked


@pytest.mark.parametrize(("pipeline", "says"), [
    ("plian", "workload.0.pipeline: expected a pipeline: one of embedding, guarded, kv-retrieval, metis, plain"),
    ([{"name": "plain", "weight": 0}], "workload.0.pipeline.0.weight: expected a number greater than 0, found 0"),
    ([{"name": "plain", "weight": -1}], "weight: expected a number greater than 0, found -1"),
    ([], "pipeline: expected at least 1 item"),
    ([{"weight": 1}], "pipeline.0.name: expected a value"),
    ({"name": "rag", "documents": 0}, "pipeline.documents: expected a number of at least 1, found 0"),
    ({"name": "rag", "document": 3}, "did you mean 'documents'"),
    ({"name": "rag", "documents": [1]}, "pipeline.documents: expected"),
    ({"name": "plain", "documents": 3}, "expected no parameters: pipeline 'plain' has none"),
    ([{"name": "plain"}, {"name": "plain", "model": "gpt-2"}], "pipeline.1.model: expected a model that a client"),
    ({"name": "guarded"}, "a client that serves stage 'tokenize'"),
    (7, "pipeline: expected"),
])
def test_refused_in_one_line(pipeline, says):
    with pytest.raises(InputError) as caught:
        hermes.simulate(scenario(pipeline, models=("llama-2-70b",)))
    shown = str(caught.value)
    assert says.replace("workload.0.", "workload.") in shown.replace("workload.0.", "workload.")
    assert "\n" not in shown
