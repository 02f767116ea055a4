"""Choosers: the configuration of a query, from its profile and the state of the serving engine.

A chooser is a class registered in `CHOOSERS`, the `system` of the pipeline. METIS's own best fit and the middle of its
pruned space are here; `baselines` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hermes.config import ConfigModel, Registry, stream
from hermes.errors import InputError, Verbatim
from hermes.pipelines import ClientView
from hermes.plugins.metis.datasets import Dataset
from hermes.plugins.metis.decision import (
    Box,
    Choice,
    Configuration,
    Lengths,
    Profile,
    Reading,
    Space,
    SpaceHistory,
    choose,
)
from hermes.plugins.metis.measured import Queries
from hermes.plugins.metis.quality import QualityModel

if TYPE_CHECKING:
    from hermes.plugins.metis.pipeline import Metis

__all__ = ["CHOOSERS", "HOW", "Chooser", "Chooses", "QueryState", "Setting"]

HOW = ("fits", "partial", "fallback", "queued")


@dataclass(frozen=True)
class Setting:
    """What stands before the first query.

    Attributes:
        parameters: Parameters of the pipeline.
        queries: Draws queries, for choosers that measure on samples.
        quality: The quality model, for choosers that know or measure it.
        seed: The scenario's seed.
    """

    parameters: Metis
    dataset: Dataset
    queries: Queries
    quality: QualityModel
    seed: int

    @property
    def fixed(self) -> Configuration:
        """The configuration of the parameters `method`, `chunks` and `words`."""
        given = self.parameters
        return Configuration(given.method, given.chunks, given.words if given.method == "map_reduce" else 0)

    def stream(self, name: str) -> np.random.Generator:
        """Return a random stream of the chooser's own. Equal seeds and names give equal numbers."""
        return stream(self.seed, name)


@dataclass(frozen=True)
class QueryState:
    """What a chooser sees when a query is about to be dispatched.

    Attributes:
        profile: The profiler's profile of the query; None for choosers without one.
        lengths: Tokens of a chunk, of the question, and of the longest answer expected.
        view: State of the engine that serves the query, of several the one with the most free KV memory.
        memory: Definition of free memory: the parameter `reading` of the pipeline.
        f1_of_each: The true F1 of each of some configurations by the quality model, for choosers with hindsight.
        note: `note(name, value)` keeps a number of this request: column `note_NAME` of the results. With a third
            argument, a sequence of names, the value is the position of one of them.
    """

    profile: Profile | None
    lengths: Lengths
    view: ClientView
    memory: str
    f1_of_each: Callable[[Sequence[Configuration]], list[float]]
    note: Callable[..., None]

    @property
    def known(self) -> Profile:
        """The profile, for choosers whose queries are profiled."""
        assert self.profile is not None, "the chooser does not profile its queries (`profiled`)"
        return self.profile

    @property
    def free_tokens(self) -> int:
        """KV tokens that count as free."""
        view = self.view
        if self.memory == "free":
            return view.free_kv_tokens
        if self.memory == "uncommitted":
            return max(0, view.uncommitted_kv_tokens)
        if view.unreserved_kv_tokens is None:
            raise InputError(Verbatim(f"client {view.name} has a given number of KV blocks, so that the free memory of "
                                      "its device is unknown; leave out its memory.num_blocks, or take another reading "
                                      "of free memory"), field="pipeline.reading")
        return view.unreserved_kv_tokens

    @property
    def reading(self) -> Reading:
        """The engine's state now, with one byte for a token of KV."""
        return self._reading(self.free_tokens, self.view.running + self.view.waiting)

    @property
    def idle(self) -> Reading:
        """The same of an engine without any other query."""
        return self._reading(self.view.kv_capacity_tokens, 0)

    def _reading(self, free_tokens: int, busy: int) -> Reading:
        view = self.view
        return Reading(free_tokens, 1.0, view.block_tokens, max(0, view.max_num_seqs - busy),
                       view.max_num_batched_tokens)


class Chooses:
    """What chooses in one simulation."""

    def choose(self, state: QueryState) -> Configuration:
        """Return the configuration of a query. Called once for each request, after its profile and before its
        retrieval, in order of dispatch. Nothing of `state` may be changed."""
        raise NotImplementedError


class Chooser(ConfigModel, Chooses):
    """Base of choosers. Derive from it, give `kind` and fields, write `choose`, and register the class in `CHOOSERS`.

    A chooser that learns from query to query returns another `Chooses` from `begin`, which has the state.
    """

    profiled: ClassVar[bool] = True
    """Whether queries are profiled before the choice."""
    learns: ClassVar[bool] = False
    """Whether its profiler learns from golden runs (`feedback_every`)."""

    def begin(self, setting: Setting) -> Chooses:
        """Return what chooses in one simulation, by default itself. Called once, before the first query."""
        return self


CHOOSERS: Registry[Any] = Registry("metis_choosers", "a chooser of configurations", {
    "adaptive_rag": "hermes.plugins.metis.baselines:AdaptiveRag",
    "fixed": "hermes.plugins.metis.baselines:Fixed",
    "hindsight": "hermes.plugins.metis.baselines:Hindsight",
}, base=Chooser)


@CHOOSERS.register("metis")
class BestFit(Chooser):
    """METIS: of the configurations that the profile leaves, the largest that fits into free memory."""

    kind: Literal["metis"] = "metis"
    learns: ClassVar[bool] = True

    def begin(self, setting: Setting) -> Chooses:
        return _BestFit(setting)


class _BestFit(Chooses):
    def __init__(self, setting: Setting) -> None:
        self.parameters, self.fixed, self.history = setting.parameters, setting.fixed, SpaceHistory()

    def choose(self, state: QueryState) -> Configuration:
        space, trusted = self.history.space(state.known)
        space = self._adapted(space)
        choice, idle = (self._fit(space, state, reading) for reading in (state.reading, state.idle))
        for name, value in (("trusted", trusted), ("free_tokens", state.free_tokens),
                            ("constrained", choice.configuration != idle.configuration)):
            state.note(name, value)
        state.note("how", HOW.index(choice.how), HOW)
        return choice.configuration

    def _fit(self, space: Space, state: QueryState, reading: Reading) -> Choice:
        return choose(space, state.lengths, reading, joint=state.known.joint, partial=self.parameters.partial,
                      full=self.parameters.full)

    def _adapted(self, space: Space) -> Space:
        """Restrict the space to the fixed values of the knobs that best fit does not set."""
        fixed, adapts = self.fixed, self.parameters.adapts
        words = (self.parameters.words, self.parameters.words)
        if adapts == "chunks":
            own = (fixed.summary_words, fixed.summary_words)
            return tuple(dict.fromkeys(Box(fixed.method, box.chunks, own) for box in space))
        if adapts == "chunks+method":
            return tuple(replace(box, words=words) if box.method == "map_reduce" else box for box in space)
        return space


@CHOOSERS.register("median")
class Median(Chooser):
    """The middle of the pruned space: its last method (map_reduce if it is left), with median chunks and summaries."""

    kind: Literal["median"] = "median"
    learns: ClassVar[bool] = True

    def begin(self, setting: Setting) -> Chooses:
        return _Median()


class _Median(Chooses):
    def __init__(self) -> None:
        self.history = SpaceHistory()

    def choose(self, state: QueryState) -> Configuration:
        space, trusted = self.history.space(state.known)
        state.note("trusted", trusted)
        box = space[-1]
        return Configuration(box.method, sum(box.chunks) // 2, sum(box.words) // 2)
