"""The built-in pipelines keep the contract, and the contract notices what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hermes.compiled import is_compiled
from hermes.core.stage import ServiceStage
from hermes.pipelines import PIPELINES, Generate, Pipeline
from hermes.testing.pipelines import PipelineContract


@pytest.mark.parametrize("built_in", list(PIPELINES))
class TestBuiltIn(PipelineContract):
    @pytest.fixture(autouse=True)
    def _chosen(self, built_in: str) -> None:
        self.built_in = built_in

    def make(self) -> Callable[[Any], Pipeline]:
        found: Callable[[Any], Pipeline] = PIPELINES.get(self.built_in)
        return found


def several(request: Any) -> Pipeline:
    """Stages one after the other and side by side."""
    first = yield Generate(request.prompt_tokens, 4)
    both = yield Generate(first.output_tokens, 3), Generate(7, request.output_tokens)
    yield Generate(sum(stage.output_tokens for stage in both), 1)


def endless(request: Any) -> Pipeline:
    while True:
        yield Generate(1, 1)


def empty(request: Any) -> Pipeline:
    yield ()


def fractional(request: Any) -> Pipeline:
    yield Generate(request.prompt_tokens / 2, 1)   # type: ignore[arg-type]


def twice(request: Any) -> Pipeline:
    stage = Generate(1, 1)
    yield stage
    yield stage


def undeclared(request: Any) -> Pipeline:
    yield Generate(1, 1)


def stubborn(request: Any) -> Pipeline:
    try:
        yield Generate(1, 1)
    finally:
        yield Generate(1, 1)


undeclared.stages = ("retrieve",)   # type: ignore[attr-defined]


def silent(request: Any) -> Pipeline:
    yield ServiceStage("search", options={"words": 3})


silent.stages = ("search",)   # type: ignore[attr-defined]
silent.stage_options = {"search": {"language": None}}   # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    parts = (several, endless, empty, fractional, twice, undeclared, silent, stubborn)
    for part in parts:
        PIPELINES.register(f"test_{part.__name__}")(part)   # type: ignore[type-var]
    yield
    for part in parts:
        PIPELINES.unregister(f"test_{part.__name__}")


def contract(function: Callable[[Any], Pipeline]) -> PipelineContract:
    class Contract(PipelineContract):
        examples = 5

        def make(self) -> Callable[[Any], Pipeline]:
            return function

    return Contract()


class TestSeveral(PipelineContract):
    def make(self) -> Callable[[Any], Pipeline]:
        return several


@pytest.mark.parametrize(
    ("function", "test"),
    [
        (endless, "test_ends"), (empty, "test_stages_are_of_the_declared_kinds"),
        (fractional, "test_generations_have_tokens"), (twice, "test_a_stage_is_yielded_once"),
        (undeclared, "test_stages_are_of_the_declared_kinds"), (silent, "test_declared_options_are_given"),
    ],
)
def test_the_contract_notices(function: Callable[[Any], Pipeline], test: str) -> None:
    # compiled, a generation refuses what is no integer itself
    error = TypeError if function is fractional and is_compiled(Generate) else AssertionError
    with pytest.raises(error):
        getattr(contract(function), test)()


def test_the_contract_notices_a_pipeline_that_cannot_be_given_up() -> None:
    with pytest.raises(RuntimeError):
        contract(stubborn).test_it_can_be_given_up_at_any_point()
