"""Contract suites for METIS's extension points: choosers, models of answer quality, steps.

    class TestMyChooser(ChooserContract):
        def make(self):
            return MyChooser(share=0.2)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from hermes.config import ConfigModel
from hermes.pipelines import ClientView
from hermes.plugins.metis.choosers import CHOOSERS, Chooser, Chooses, QueryState, Setting
from hermes.plugins.metis.datasets import Dataset, Query, dataset
from hermes.plugins.metis.decision import METHODS, Configuration, Profile
from hermes.plugins.metis.measured import Queries
from hermes.plugins.metis.pipeline import Metis
from hermes.plugins.metis.quality import FORMULAS, QUALITY, Quality
from hermes.plugins.metis.steps import STEPS, Step
from hermes.testing.pipelines import PipelineContract

__all__ = ["ChooserContract", "QualityContract", "StepContract"]

DATASETS = ("squad", "musique", "finsec", "qmsum-3n")


def _survives(component: ConfigModel) -> None:
    assert type(component).model_validate(component.model_dump()) == component, "it does not survive a scenario file"


class _InPipeline(PipelineContract):
    """A part of the pipeline `metis`, which is tested with it."""

    examples: ClassVar[int] = 30

    @abstractmethod
    def make(self) -> Any:
        """Return the component, equal at each call."""

    def pipeline(self) -> Any:
        return Metis


class ChooserContract(_InPipeline):
    """Properties of every chooser, and the contract of pipelines with it in METIS. Inherit it and give `make()`."""

    @abstractmethod
    def make(self) -> Chooser:
        """Return the chooser, equal at each call."""

    def parameters(self) -> dict[str, Any]:
        return {"system": self.make().model_dump()}

    @staticmethod
    def states(notes: dict[str, float], *, profiled: bool) -> Iterator[QueryState]:
        """Yield queries of several data sets at engines with much, little and no free memory."""
        rng = np.random.default_rng(5)
        for number in range(200):
            one = dataset(DATASETS[number % len(DATASETS)])
            query, capacity = one.draw(rng), int(rng.choice([1_600, 16_000, 160_000]))
            free = int(capacity * rng.choice([0.0, 0.05, 0.5, 1.0])) // 16 * 16
            running = 0 if free == capacity else int(rng.integers(1, 40))
            view = ClientView("llm", "model", capacity, free, free - int(rng.integers(0, 2_000)), 16, running,
                              int(rng.integers(0, 5)), 64, 2048, 4_000, 32_768)
            yield QueryState(
                query.profile if profiled else None, one.lengths(int(rng.integers(10, 60))), view,
                ("free", "uncommitted", "device")[number % 3],
                lambda configs, query=query: FORMULAS["default"].f1_of_each(query, configs),  # type: ignore[misc]
                lambda name, value, names=(): notes.__setitem__(name, value))

    def begun(self) -> Chooses:
        """Return what chooses in a new simulation."""
        one = dataset("musique")
        given = Metis.model_validate({"system": self.make()})
        return self.make().begin(Setting(given, one, Queries(one, None, ()), FORMULAS["default"], 0))

    def chosen(self) -> list[Configuration]:
        """Return the choices of a new simulation."""
        chooses = self.begun()
        return [chooses.choose(state) for state in self.states({}, profiled=self.make().profiled)]

    def test_a_choice_is_a_configuration(self) -> None:
        for one in self.chosen():
            assert isinstance(one, Configuration), f"{one!r} is no Configuration"

    def test_same_states_same_choices(self) -> None:
        np.random.seed(1)
        first = self.chosen()
        np.random.seed(2)   # of numpy's global generator nothing may depend
        assert self.chosen() == first, "equal states, different choices in another simulation"

    def test_what_it_notes_is_a_number(self) -> None:
        notes: dict[str, float] = {}
        chooses = self.begun()
        for state in self.states(notes, profiled=self.make().profiled):
            chooses.choose(state)
            assert all(math.isfinite(value) for value in notes.values()), notes

    def test_it_survives_a_scenario_file(self) -> None:
        assert CHOOSERS.get(self.make().model_dump()["kind"]) is type(self.make())
        _survives(self.make())


class QualityContract:
    """Properties of every quality model. Inherit it and give `make()`."""

    @abstractmethod
    def make(self) -> Quality:
        """Return the model, equal at each call."""

    def configurations(self) -> Sequence[Configuration]:
        """Return configurations that the model knows; fewer where it knows few methods."""
        return [Configuration(method, chunks, words) for method in METHODS for chunks in (1, 2, 5, 12, 35)
                for words in ((1, 30, 300) if method == "map_reduce" else (0,))]

    def queries(self) -> Iterator[Query]:
        """Yield queries of several data sets, and those of its file if it has one."""
        names = self.make().opened().queries
        rng = np.random.default_rng(5)
        sets: list[Dataset] = [dataset(name) for name in DATASETS]
        for number in range(60):
            yield Queries(sets[number % len(sets)], None, names).draw(number, rng)
        yield Query(Profile(True, True, 10, (30, 200)), tuple(range(1, 11)), (10**6,) * 10, names[0] if names else "")

    def test_f1_is_a_share(self) -> None:
        model = self.make().opened()
        for query in self.queries():
            for config in self.configurations():
                assert 0 <= model.f1(query, config) <= 1, f"F1 {model.f1(query, config)} of {config}, {query}"

    def test_many_configurations_at_once_are_those_one_by_one(self) -> None:
        model, configs = self.make().opened(), self.configurations()
        for query in self.queries():
            assert model.f1_of_each(query, configs) == [model.f1(query, config) for config in configs]

    def test_f1_depends_on_query_and_configuration_alone(self) -> None:
        cases = [(query, config) for query in self.queries() for config in self.configurations()]
        one, other = self.make().opened(), self.make().opened()
        forwards = [one.f1(*case) for case in cases]
        assert forwards == [other.f1(*case) for case in reversed(cases)][::-1], "the order of questions matters"

    def test_answers_have_tokens(self) -> None:
        model = self.make().opened()
        for query in self.queries():
            for config in self.configurations():
                tokens = model.answer_tokens(query, config)
                assert tokens is None or (type(tokens) is int and tokens >= 1), f"{tokens!r} tokens of an answer"

    def test_it_survives_a_scenario_file(self) -> None:
        assert QUALITY.get(self.make().model_dump()["kind"]) is type(self.make())
        _survives(self.make())


class StepContract(_InPipeline):
    """Properties of every step: the contract of pipelines with it in METIS, between retrieval and synthesis, or where
    `steps()` puts it. Inherit it and give `make()`."""

    @abstractmethod
    def make(self) -> Step:
        """Return the step, equal at each call."""

    def steps(self) -> list[Any]:
        """Return all steps of the pipeline, as in YAML."""
        return ["retrieve", self.make().model_dump(), "synthesise"]

    def parameters(self) -> dict[str, Any]:
        return {"steps": self.steps(), "system": "fixed", "method": "map_reduce", "chunks": 3}

    def test_it_survives_a_scenario_file(self) -> None:
        assert STEPS.get(self.make().model_dump()["kind"]) is type(self.make())
        _survives(self.make())
