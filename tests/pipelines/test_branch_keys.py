"""Branches in graphs and workloads: keys, lengths, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.errors import InputError
from hermes.workload.workload import WorkloadConfig


def scenario(stages: dict[str, Any] | None = None, **workload: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "clients": [
            {"name": "llm", "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
             "memory": {"num_blocks": 5000}},
            {"name": "cpu", "kind": "processing", "cores": 8,
             "serves": {"filter": {"kind": "per_item", "per_token": 1e-6}}},
        ],
        "workload": {
            "requests": 20, "arrivals": {"kind": "poisson", "rate": 4.0},
            "lengths": {"kind": "independent", "prompt": {"kind": "fixed", "tokens": 500},
                        "output": {"kind": "fixed", "tokens": 100}},
        } | workload,
    }
    if stages is not None:
        data["pipelines"] = {"mine": {"stages": stages}}
        data["workload"]["pipeline"] = "mine"
    return data


ANSWER = {"kind": "generate", "branches": 4, "branch_spread": 0.3}
GRAPH = {"answer": ANSWER, "filter": {"kind": "filter", "after": "answer", "tokens": "output"}}


def test_what_comes_after_waits_for_the_last_branch() -> None:
    results = simulate(scenario(GRAPH))
    stages = results.stages
    answers, filters = stages[stages["kind"] == "generate"], stages[stages["kind"] == "filter"]
    assert len(answers) == 20 * 4
    assert len(filters) == 20
    ends = answers.groupby("request")["end_s"].max()
    assert filters.set_index("request")["assigned_s"].sort_index().tolist() == ends.sort_index().tolist()
    tokens = answers["output_tokens"]
    assert tokens.between(70, 130).all()
    assert tokens.nunique() > 20
    assert not (stages.loc[stages["kind"] == "filter", ["fork", "branch"]] != -1).any().any()


def test_lengths_of_branches_are_a_requests_own() -> None:
    def of_graph(count: int) -> list[list[int]]:
        stages = simulate(scenario(GRAPH, requests=count)).stages
        answers = stages[stages["kind"] == "generate"].sort_values(["request", "branch"])
        return [rows["output_tokens"].tolist() for _, rows in answers.groupby("request")]

    assert of_graph(12)[:6] == of_graph(6)
    side = {"draft": {"kind": "generate", "output": 3}, "answer": ANSWER | {"after": "draft"}}
    stages = simulate(scenario(side, requests=6)).stages
    assert (stages[stages["branch"] >= 0].groupby("request").size() == 4).all()


def test_amounts_may_say_how_many_branches() -> None:
    stages = simulate(scenario({"answer": {"kind": "generate", "branches": "1 + output // 50"}}, requests=3)).stages
    assert stages.groupby("request").size().tolist() == [3, 3, 3]


def test_rag_reasoning_branches() -> None:
    from hermes.pipelines.builtin import RagReasoning

    node = RagReasoning(branches=8, branch_spread=0.3).nodes()["answer"]
    assert (node["branches"], node["branch_spread"]) == (8, 0.3)
    with pytest.raises(InputError, match="several branches for a spread"):
        RagReasoning(branch_spread=0.3).graph()


@pytest.mark.parametrize(("data", "message"), [
    (scenario({"a": {"kind": "filter", "branches": 2}}), "no `branches`: 'filter' reads"),
    (scenario({"a": {"kind": "generate", "branch_spread": 0.3}}), "several branches for a spread"),
    (scenario({"a": {"kind": "generate", "branches": "output - output"}}), "1 to 1024 branches"),
    (scenario(GRAPH, branches=2), "a graph has `branches` at its `generate` node"),
    (scenario(branch_spread=0.3), "needs several branches"),
    (scenario(branches=2000), "branches"),
    (scenario(output_scale=1e6, lengths={"kind": "fixed", "prompt": 1, "output": 2**39}),
     "output_scale"),
])
def test_mistakes(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate(data)
    assert message in str(caught.value)


def draw(**keys: Any) -> Any:
    config = WorkloadConfig.model_validate({
        "requests": 2000, "arrivals": {"kind": "poisson", "rate": 1.0},
        "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 10, "max": 900},
                    "output": {"kind": "uniform", "min": 1, "max": 400}}, **keys,
    })
    return config.draw(3, Path())


def test_scaled_outputs() -> None:
    plain, scaled = draw(), draw(output_scale=8)
    assert (scaled.output_tokens == 8 * plain.output_tokens).all()
    assert (scaled.prompt_tokens == plain.prompt_tokens).all()
    assert (scaled.arrival_ns == plain.arrival_ns).all()
    assert draw(output_scale=0.001).output_tokens.min() == 1


def test_drawn_branches() -> None:
    plain, table = draw(), draw(branches=8, branch_spread=0.3)
    assert (table.output_tokens == plain.output_tokens).all()
    assert table.branch_tokens.shape == (2000, 8)
    ratio = table.branch_tokens / plain.output_tokens[:, None]
    long = plain.output_tokens >= 100
    assert ((ratio[long] > 0.69) & (ratio[long] < 1.31)).all()
    assert ratio[long].mean() == pytest.approx(1, abs=0.01)
    assert ratio[long].std() == pytest.approx(0.3 / np.sqrt(3), abs=0.005)   # uniform
    assert table.branch_tokens.min() == 1
    assert (draw(branches=8, branch_spread=0.3, requests=50).branch_tokens == table.branch_tokens[:50]).all()
    assert (draw(branches=8).branch_tokens == plain.output_tokens[:, None]).all()
    cut = draw(branches=8, branch_spread=0.3, max_total_tokens=600)
    assert (cut.prompt_tokens[:, None] + cut.branch_tokens <= 600).all()
