"""METIS's choosers and steps keep their contracts; those of others stand beside them in a scenario."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pytest

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.pipelines import Pipeline, ServiceStage
from hermes.plugins.metis import (
    CHOOSERS,
    STEPS,
    Chooser,
    Configuration,
    Quality,
    Query,
    QueryState,
    Setting,
    Step,
    Underway,
)
from hermes.plugins.metis.baselines import AdaptiveRag, Fixed, Hindsight
from hermes.plugins.metis.choosers import BestFit, Median
from hermes.plugins.metis.datasets import dataset
from hermes.plugins.metis.measured import Queries
from hermes.plugins.metis.pipeline import Metis
from hermes.plugins.metis.quality import FORMULAS
from hermes.plugins.metis.steps import Retrieve, Synthesise
from hermes.plugins.metis.testing import ChooserContract, QualityContract, StepContract

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


@pytest.mark.feature("Plug-ins of research", (
    "METIS: pipeline `metis`, data sets in `hw_profiles/rag_datasets`; choosers `metis`, `median`, `fixed`, "
    "`adaptive_rag`, `hindsight`; quality models `default`, `all-or-nothing`, `diluted-mappers`, "
    "`heavy-tail`, `weak-synthesis`, `measured`; steps `retrieve`, `synthesise`; choosers, quality models and "
    "steps of one's own"))
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


class Counting(Chooser):
    """Keeps state between simulations, draws from numpy's global generator, and is not registered."""

    kind: Literal["counting-of-a-test"] = "counting-of-a-test"
    broken: str = "state"
    seen: ClassVar[list[int]] = []

    def choose(self, state: QueryState) -> Configuration:
        self.seen.append(1)
        if self.broken == "text":
            return "stuff"  # type: ignore[return-value]
        if self.broken == "note":
            state.note("share", float("nan"))
        chunks = np.random.randint(1, 9) if self.broken == "random" else 1 + len(self.seen) % 7
        return Configuration("stuff", chunks)


@pytest.mark.parametrize(("broken", "test", "said"), [
    ("text", "a_choice_is_a_configuration", "is no Configuration"),
    ("state", "same_states_same_choices", "different choices"),
    ("random", "same_states_same_choices", "different choices"),
    ("note", "what_it_notes_is_a_number", "nan"),
])
def test_the_contract_notices_a_broken_chooser(broken, test, said):
    class Suite(ChooserContract):
        def make(self):
            return Counting(broken=broken)

    CHOOSERS.register("counting-of-a-test")(Counting)
    try:
        with pytest.raises(AssertionError, match=said):
            getattr(Suite(), f"test_{test}")()
    finally:
        CHOOSERS.unregister("counting-of-a-test")


def test_the_contract_notices_a_broken_quality_model():
    class Proud(Quality):
        kind: Literal["proud-of-a-test"] = "proud-of-a-test"
        seen: ClassVar[list[int]] = []

        def f1(self, query: Query, config: Configuration) -> float:
            self.seen.append(1)
            return 0.5 + len(self.seen) % 1000

    class Suite(QualityContract):
        def make(self):
            return Proud()

    for test in ("f1_is_a_share", "many_configurations_at_once_are_those_one_by_one",
                 "f1_depends_on_query_and_configuration_alone"):
        with pytest.raises(AssertionError):
            getattr(Suite(), f"test_{test}")()


def test_random_numbers_of_a_chooser_are_its_own():
    one = dataset("squad")
    settings = [Setting(Metis(), one, Queries(one, None, ()), FORMULAS["default"], seed) for seed in (1, 1, 2)]
    first, again, other = (setting.stream("mine").random(3).tolist() for setting in settings)
    assert first == again != other


def test_a_class_without_the_hooks_is_refused():
    with pytest.raises(InputError, match="does not derive from Chooser"):
        CHOOSERS.register("wrong")(object)


@pytest.mark.parametrize(("choice", "said"), [
    (lambda: None, "found nothing"), (lambda: "stuff", "found 'stuff'"),
    (lambda: Configuration("stuff", 0), "num_chunks: expected an integer from 1 to 35, found 0"),
    (lambda: Configuration("stuff", 3.7), "num_chunks: expected an integer from 1 to 35, found 3.7"),
    (lambda: Configuration("map_reduce", 3), "summary_words: expected 1 to 300"),
])
def test_a_choice_that_is_no_configuration_is_one_line_that_names_the_chooser(choice, said, monkeypatch):
    monkeypatch.setattr("hermes.plugins.metis.choosers._Median.choose", lambda self, state: choice())
    with pytest.raises(InputError, match=re.escape(said)) as found:
        simulate("studies/metis/base", overrides=[
            "workload.requests=3", "workload.pipeline={name: metis, dataset: squad, system: median}"])
    assert "a configuration from chooser 'median'" in str(found.value)
