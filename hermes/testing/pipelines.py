"""Contract suite for pipelines.

Inherit it in a test module, give `make()`, and pytest checks what the coordinator relies on:

    class TestMyPipeline(PipelineContract):
        def make(self):
            return my_pipeline

A pipeline with parameters is tested with those that `parameters()` gives, its defaults where left out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np

from hermes.config import ConfigModel
from hermes.core.record import STATUS_COMPLETED
from hermes.core.stage import AnyOf
from hermes.pipelines import PIPELINES, Pipeline
from hermes.pipelines.base import requested_stages
from hermes.pipelines.checks import stages_of
from hermes.pipelines.graph import GraphPipeline
from hermes.pipelines.mixing import pipeline_from
from hermes.pipelines.tracing import IDLE
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.services import SERVICES, MachineSpec, Work

__all__ = ["PipelineContract"]

_CLIENT = SimpleNamespace(name="client", platform="", kv_bytes_per_token=0.0)


class _Moment(ConfigModel):
    """A service that takes a moment for any task and reads its declared options."""

    kind: Literal["contract_moment"] = "contract_moment"
    reads: list[str] = []

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> _Moment:
        return self

    @property
    def options(self) -> dict[str, None]:
        return dict.fromkeys(self.reads)

    @property
    def memory_bytes(self) -> int:
        return 0

    def work(self, tasks: Sequence[Any]) -> Work:
        return Work(0.001 * max(1, sum(task.items for task in tasks)))


@contextmanager
def _moments() -> Iterator[None]:
    """Register that service while a contract's simulation runs."""
    SERVICES.register("contract_moment")(_Moment)
    try:
        yield
    finally:
        SERVICES.unregister("contract_moment")


def _all_stages(pipeline: Any) -> list[Any]:
    """Return the stages of a pipeline in parallel with another, each served as soon as it is waited for."""
    stages: list[Any] = []
    result = None
    while True:
        try:
            result = pipeline.send(result)
        except StopIteration:
            return stages
        for stage in result if type(result) is tuple else (result,):
            if stage.kind == "generate":
                stage.num_tokens = stage.prompt_tokens + stage.output_tokens
            stage.client, stage.done = _CLIENT, True
            stages.append(stage)


class PipelineContract(ABC):
    """Properties of every pipeline. Inherit it and give `make()`."""

    examples: ClassVar[int] = 100
    """Number of random requests per test."""
    most_stages: ClassVar[int] = 1000
    """A pipeline that yields more than this counts as endless."""

    @abstractmethod
    def make(self) -> Any:
        """Return the object registered in `PIPELINES`: a generator function of one request, or a class with
        parameters."""

    def pipeline(self) -> Any:
        """Return the same; of a part of a pipeline, which `make` gives then, the pipeline that it is tested in."""
        return self.make()

    def parameters(self) -> dict[str, Any]:
        """Return parameters for a pipeline that has any."""
        return {}

    def clients(self) -> list[dict[str, Any]]:
        """Return clients for all its stages: two engines, and one that serves every other kind in a moment."""
        clients: list[dict[str, Any]] = [{
            "count": 2, "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
            "memory": {"num_blocks": 5000}, "allow_mismatch": True,   # step times of a stand-in model
        }]
        others = [kind for kind in self.kinds if kind != "generate"]
        if others:
            clients.append({"kind": "processing", "name": "others", "serves": {
                kind: {"kind": "contract_moment", "reads": list(self.options.get(kind, ()))} for kind in others
            }})
        return clients

    @property
    def made(self) -> Callable[[Any], Pipeline]:
        """Return the pipeline as a simulation runs it."""
        return pipeline_from(self.pipeline(), self.name, self.parameters(), 0)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of stage it declares: `pipeline.stages`, or generations only."""
        return tuple(dict.fromkeys(kind for kind, _ in requested_stages(self.made)))

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Return the options that clients must read, by kind of stage: `pipeline.stage_options`, or those of its
        graph."""
        made: Any = self.made
        if not isinstance(made, GraphPipeline):
            return dict(getattr(made, "stage_options", {}))
        found: dict[str, dict[str, Any]] = {}
        for _, node in stages_of(made.graph):
            found.setdefault(node.kind, {}).update(node.options)
        return found

    @property
    def name(self) -> str:
        """Return its registered name."""
        for name in PIPELINES:
            if PIPELINES.get(name) is self.pipeline():
                return name
        raise AssertionError("the pipeline is not registered")

    def requests(self) -> Iterator[SimpleNamespace]:
        """Yield random requests, short and long."""
        rng = np.random.default_rng(5)
        for number in range(self.examples):
            prompt, output = (int(math.exp(rng.uniform(0, 8))) for _ in range(2))
            yield SimpleNamespace(
                id=number, prompt_tokens=prompt, output_tokens=output, priority=int(rng.integers(0, 3)), session=-1,
                content=None, arrival_ns=0, now=0.0, model="", client=None, past_tokens=0, context=None,
                branch_outputs=(), view=lambda kind, model="": (IDLE,), note=lambda name, value, names=(): None,
            )

    def yields(self, request: Any, made: Callable[[Any], Pipeline] | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield the stages of each yield, as a tuple, served as soon as they are waited for.

        Stages that it started before come with the next yield.

        Args:
            made: The pipeline, by default one made for this request alone. A simulation makes one for all requests, and
                so do the tests: making one takes longer than running it.
        """
        started: list[Any] = []
        request.start = lambda stage: started.append(stage) or stage   # type: ignore[func-returns-value]
        request.beside = lambda pipeline: started.extend(_all_stages(pipeline))
        running = (made or self.made)(request)
        result, count = None, 0
        known: set[Any] = set()
        while True:
            try:
                wanted = running.send(result)
            except StopIteration:
                return
            any_of = type(wanted) is AnyOf
            waited = wanted.stages if any_of else wanted if type(wanted) is tuple else (wanted,)
            assert waited, "it yields an empty tuple, which would never be done"
            again = [stage for stage in waited if stage in known and stage not in started]
            assert any_of or not again, "it yields a stage a second time"
            new = tuple(dict.fromkeys(stage for stage in (*started, *waited) if stage not in known))
            known.update(new)
            count += len(new)
            assert count <= self.most_stages, f"more than {self.most_stages} stages: it does not end"
            if new:
                yield new
            for stage in waited[:1] if any_of else waited:
                if stage.kind == "generate":
                    stage.num_tokens = stage.prompt_tokens + stage.output_tokens
                stage.client, stage.done = _CLIENT, True
            result = waited[0] if any_of else wanted

    def test_is_registered(self) -> None:
        assert self.name

    def test_ends(self) -> None:
        made = self.made
        for request in self.requests():
            assert list(self.yields(request, made)), "it yields no stage at all"

    def test_stages_are_of_the_declared_kinds(self) -> None:
        kinds, made = self.kinds, self.made
        for request in self.requests():
            for stages in self.yields(request, made):
                for stage in stages:
                    assert stage.kind in kinds, f"{stage.kind!r} is not among `stages`: {kinds}"

    def test_declared_options_are_given(self) -> None:
        assert set(self.options) <= set(self.kinds), "options of a kind that it never asks for"
        made = self.made
        if isinstance(made, GraphPipeline):
            return   # a graph states its options at the nodes
        options = self.options
        for request in self.requests():
            for stage in (stage for stages in self.yields(request, made) for stage in stages):
                missing = set(options.get(stage.kind, ())) - set(getattr(stage, "options", ()))
                assert not missing, f"{stage.kind!r} without {missing}, which `stage_options` promises"

    def test_generations_have_tokens(self) -> None:
        made = self.made
        for request in self.requests():
            served = (stage for stages in self.yields(request, made) for stage in stages)
            for stage in (stage for stage in served if stage.kind == "generate"):
                for name in ("prompt_tokens", "output_tokens"):
                    tokens = getattr(stage, name)
                    assert type(tokens) is int, f"{name} is {tokens!r}, not an int"
                    assert tokens >= 1, f"{name} is {tokens}"

    def test_a_stage_is_yielded_once(self) -> None:
        made = self.made
        for request in self.requests():
            stages = [stage for stages in self.yields(request, made) for stage in stages]
            assert len({id(stage) for stage in stages}) == len(stages)

    def test_same_request_same_stages(self) -> None:
        both = self.made, self.made
        for request in self.requests():
            first, second = ([self._shape(stages) for stages in self.yields(request, made)] for made in both)
            assert first == second

    @staticmethod
    def _shape(stages: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        names = ("kind", "prompt_tokens", "output_tokens", "priority")
        return [tuple(getattr(stage, name, None) for name in names) for stage in stages]

    def test_it_can_be_given_up_at_any_point(self) -> None:
        """A refused request closes its pipeline, which must then stop."""
        made = self.made
        for request in list(self.requests())[:10]:
            for stop in range(len(list(self.yields(request, made)))):
                request.start, request.beside = lambda stage: stage, lambda pipeline: pipeline.close()
                running = made(request)
                result = None
                for _ in range(stop + 1):
                    wanted = running.send(result)
                    result = wanted.stages[0] if type(wanted) is AnyOf else wanted
                    for stage in result if type(result) is tuple else (result,):
                        stage.client, stage.done = _CLIENT, True
                running.close()   # RuntimeError if it yields again

    def test_requests_complete(self) -> None:
        workload = {
            "requests": 30, "arrivals": {"kind": "poisson", "rate": 5.0},
            "pipeline": {"name": self.name, **self.parameters()},
            "lengths": {"kind": "fixed", "prompt": 200, "output": 30},
            "contexts": {"population": "shared", "keys": 10, "tokens": {"kind": "fixed", "tokens": 500}},
        }
        records = []
        for stepping in ("runs", "every_step"):
            with _moments():
                scenario = load_scenario({"clients": self.clients(), "workload": [workload], "stepping": stepping})
                records.append(build(scenario).run())
        assert (records[0].status == STATUS_COMPLETED).all(), f"refused: {records[0].reject_reasons}"
        assert records[0].finish_ns.tolist() == records[1].finish_ns.tolist()
