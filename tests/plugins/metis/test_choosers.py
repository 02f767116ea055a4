"""METIS's choosers and steps keep their contracts; those of others stand beside them in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.config.registry import Registry
from hermes.errors import InputError
from hermes.pipelines import Pipeline, ServiceStage
from hermes.plugins.metis import CHOOSERS, STEPS, Chooser, Configuration, QueryState, Step, Underway
from hermes.plugins.metis.baselines import AdaptiveRag, Fixed, Hindsight
from hermes.plugins.metis.choosers import BestFit, Median
from hermes.plugins.metis.steps import Retrieve, Synthesise
from hermes.plugins.metis.testing import ChooserContract, StepContract

BASE = resource_dir("scenarios") / "studies" / "metis" / "base.yaml"


class TestBestFit(ChooserContract):
    def make(self):
        return BestFit()


class TestMedian(ChooserContract):
    def make(self):
        return Median()


class TestAdaptiveRag(ChooserContract):
    def make(self):
        return AdaptiveRag()


class TestFixed(ChooserContract):
    def make(self):
        return Fixed()


class TestHindsight(ChooserContract):
    examples: ClassVar[int] = 10

    def make(self):
        return Hindsight()


class TestRetrieve(StepContract):
    def make(self):
        return Retrieve(per_chunk=3)


class TestSynthesise(StepContract):
    def make(self):
        return Synthesise()

    def steps(self):
        return ["retrieve", {"kind": "synthesise"}]


@pytest.fixture
def mine():
    """A chooser and a step of a user, under names of a test."""

    @CHOOSERS.register("alternating-of-a-test")
    class Alternating(Chooser):
        kind: Literal["alternating-of-a-test"] = "alternating-of-a-test"
        many: int = 9
        profiled: ClassVar[bool] = False

        def choose(self, state: QueryState) -> Configuration:
            assert state.profile is None
            state.note("question", state.lengths.question)
            return Configuration("stuff", 1 + (self.many - 1) * (state.lengths.question % 2))

    @STEPS.register("check-of-a-test")
    class Check(Step):
        kind: Literal["check-of-a-test"] = "check-of-a-test"
        stages: ClassVar[tuple[str, ...]] = ("rerank",)

        def run(self, underway: Underway) -> Pipeline:
            underway.request.note("found", underway.candidates)
            yield ServiceStage("rerank", items=underway.candidates)

    yield Alternating, Check
    for registry, name in ((CHOOSERS, "alternating-of-a-test"), (STEPS, "check-of-a-test")):
        registry.unregister(name)


def test_a_chooser_of_ones_own_with_parameters(mine):
    results = simulate(BASE, overrides=[
        "workload.requests=20", "workload.pipeline={name: metis, system: {kind: alternating-of-a-test, many: 7}}"])
    rows = results.requests
    assert set(rows["note_chunks"]) == {1, 7}
    assert (rows["note_chunks"] == 1 + 6 * (rows["note_question"] % 2)).all()
    assert "profile" not in set(results.stages["kind"])
    with pytest.raises(InputError, match=r"pipeline\.system\.mnay: .* \(did you mean 'many'"):
        simulate(BASE, overrides=["workload.pipeline={name: metis, system: {kind: alternating-of-a-test, mnay: 7}}"])


def test_a_step_between_retrieval_and_synthesis(mine):
    results = simulate(BASE, overrides=[
        "workload.requests=20", "clients.2.serves.rerank={kind: rerank, per_document: 1 ms}",
        "workload.pipeline={name: metis, system: fixed, chunks: 5, "
        "steps: [{kind: retrieve, per_chunk: 4}, check-of-a-test, synthesise]}"])
    assert set(results.requests["note_found"]) == {20}
    stages = results.stages.groupby("request")
    for _, rows in stages:
        ordered = rows.set_index("kind")
        assert list(ordered.index) == ["retrieve", "rerank", "generate"]
        assert ordered.loc["rerank", "assigned_s"] >= ordered.loc["retrieve", "end_s"]
        assert ordered.loc["generate", "assigned_s"] >= ordered.loc["rerank", "end_s"]


def test_a_step_that_finds_more_raises_f1(mine):
    """Pieces that a reranker moves to the top count as read."""
    from dataclasses import replace

    @STEPS.register("perfect-of-a-test")
    class Perfect(Step):
        kind: Literal["perfect-of-a-test"] = "perfect-of-a-test"
        stages: ClassVar[tuple[str, ...]] = ()

        def run(self, underway: Underway) -> Pipeline:
            underway.query = replace(underway.query, ranks=tuple(range(1, len(underway.query.ranks) + 1)))
            yield from ()

    try:
        plain, sorted_ = (simulate(BASE, overrides=[
            "workload.requests=40", f"workload.pipeline={{name: metis, system: fixed, chunks: 4, steps: {steps}}}"])
            for steps in ("[retrieve, synthesise]", "[retrieve, perfect-of-a-test, synthesise]"))
    finally:
        STEPS.unregister("perfect-of-a-test")
    assert (sorted_.requests["note_f1"] >= plain.requests["note_f1"]).all()
    assert sorted_.requests["note_f1"].mean() > plain.requests["note_f1"].mean()


def test_no_method_but_the_documented_ones_is_asked_for(mine):
    with pytest.raises(InputError, match="does not derive from Chooser"):
        CHOOSERS.register("wrong")(object)
    names = {registry.name for registry in Registry.every}
    assert {"metis_choosers", "metis_quality", "metis_steps"} <= names
