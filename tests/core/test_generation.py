"""Stages with and without the fields of a sequence; a stage that an engine or a service may serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hermes
from hermes.core.generation import Generation
from hermes.core.stage import ServiceStage, Stage
from hermes.pipelines import PIPELINES, Generate


def test_a_stage_of_a_service_has_no_fields_of_sequences() -> None:
    of_sequences = [name for name in dir(Generation) if name not in dir(Stage)]
    stage = ServiceStage("retrieve", tokens=3)
    assert {"num_tokens", "num_computed", "branches", "segments", "run_order", "output_tokens"} <= {*of_sequences}
    assert not [name for name in of_sequences if hasattr(stage, name)]
    assert stage.size("output_tokens") == stage.size("input_tokens") == 3
    assert Generation(3, 4).size("output_tokens") == 4


@pytest.fixture
def seen() -> Iterator[list[tuple[Any, ...]]]:
    """Record what a pipeline sees of the embedding that it yields."""
    found: list[tuple[Any, ...]] = []

    def embed_and_answer(request: Any) -> Any:
        asked = ServiceStage("embed", tokens=request.prompt_tokens)
        stage = yield asked
        found.append((stage is asked, stage.client.name, stage.start_ns >= 0, stage.done))
        yield Generate(request.prompt_tokens, 2)

    embed_and_answer.stages = ("embed", "generate")  # type: ignore[attr-defined]
    PIPELINES.register("embed_and_answer")(embed_and_answer)  # type: ignore[type-var]
    yield found
    PIPELINES.unregister("embed_and_answer")


def served(blocks: int) -> Any:
    """Embed a prompt of 100 tokens, where an engine with so many blocks of 16 and a service both embed; the router
    asks the engine first."""
    return hermes.simulate({
        "workload": {"requests": 3, "arrivals": {"kind": "poisson", "rate": 1}, "pipeline": "embed_and_answer",
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 2}},
        "clients": [
            {"name": "engine", "hardware": {"kind": "roofline", "profile": "mistral-7b-a100-40gb"},
             "scheduler": {"kind": "heterogeneous", "serves": ["embed"]}, "memory": {"num_blocks": blocks}},
            {"kind": "rag", "name": "cpu", "serves": {"embed": {"kind": "per_item", "fixed": 0.01}}},
            {"name": "llm", "hardware": {"kind": "roofline", "profile": "mistral-7b-a100-40gb"}},
        ],
        "routers": {"embed": {"kind": "least_loaded", "load": "requests"}},
    })


def test_the_pipeline_gets_the_stage_that_it_yielded(seen: list[tuple[Any, ...]]) -> None:
    stages = served(blocks=100).stages
    embedded = stages[stages["kind"] == "embed"]
    assert seen == [(True, "engine", True, True)] * 3
    assert [*embedded["client"]] == ["engine"] * 3
    assert [*embedded["prompt_tokens"]] == [100] * 3
    assert [*embedded["output_tokens"]] == [0] * 3
    assert embedded["first_token_s"].isna().all()


def test_what_the_engine_refuses_the_service_takes(seen: list[tuple[Any, ...]]) -> None:
    results = served(blocks=6)   # 96 tokens
    assert seen == [(True, "cpu", True, True)] * 3
    assert results.summary["requests"]["completed"] == 3
