"""METIS pipeline: RAG queries whose configuration is chosen just before dispatch (`hermes.plugins.metis`).

A request is a question (the workload's prompt) with an answer (its output). It is profiled, gets a configuration,
retrieves its chunks, and expands into calls: mappers side by side, then one call that waits for all of them.

Recorded for every request (`request.note`):

- `method` (an index of `METHODS`), `chunks`, `words`: its configuration.
- `f1`, and `f1_NAME` by each quality model.
- `kv_used`: share of KV memory in use at the decision.
- `profile_in`, `profile_out`: tokens of the profiler's call; `golden_in`, `golden_out`: of a golden run.
- `trusted`: 0 for a profile of low confidence.
- for best fits `how` (an index of `HOW`), `free_tokens` (KV memory that counted as free), and `constrained`: whether an
  idle engine would have got another configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.config import ConfigModel, stream
from hermes.errors import InputError, Verbatim
from hermes.pipelines import PIPELINES, ClientView, Generate, Pipeline, ServiceStage
from hermes.plugins.metis import datasets, quality
from hermes.plugins.metis.baselines import AdaptiveRag, grid, median, quickest_best, work
from hermes.plugins.metis.decision import (
    MAX_CHUNKS,
    METHODS,
    Box,
    Choice,
    Configuration,
    Lengths,
    Reading,
    Space,
    SpaceHistory,
    choose,
)
from hermes.plugins.metis.profiler import profiler

__all__ = ["GOLDEN_CHUNKS", "GOLDEN_TOKENS", "HOW", "Metis", "MetisPipeline"]

HOW = ("fits", "partial", "fallback", "queued")
GOLDEN_CHUNKS, GOLDEN_TOKENS = 30, 300
KEPT = 4
"""Golden answers in the profiler's prompt."""
FEEDS_BACK = ("metis", "median")
"""Systems whose profiler learns from golden runs; AdaptiveRAG* has a classifier of its own."""
LAST = 2**40
"""Priority of golden runs that yield to all others: above any query's number."""


@PIPELINES.register("metis")
class Metis(ConfigModel):
    """A RAG query with its configuration: profile it, choose, look up the chunks, call the model once or many times."""

    dataset: Annotated[str, Field(max_length=200)] = "musique"
    """Data set of the queries: squad, musique, finsec or qmsum, these with -3n (chunks and pieces such that 3n chunks
    stay within the published input lengths), or the path of a YAML file of format hermes-rag-dataset/1."""
    system: Literal["metis", "median", "adaptive_rag", "fixed", "hindsight"] = "metis"
    """How the configuration is chosen: best fit; middle of the pruned space; best measured F1 of the query's class; a
    fixed one; least work within 2% of the query's best F1, known in advance."""
    method: Literal["map_rerank", "stuff", "map_reduce"] = "stuff"
    """Method of the fixed configuration, and of knobs left out of `adapts`."""
    chunks: Annotated[int, Field(ge=1, le=MAX_CHUNKS)] = 4
    """Chunks of the fixed configuration."""
    words: Annotated[int, Field(ge=1, le=300)] = 60
    """Words of a summary of the fixed configuration, for map_reduce."""
    adapts: Literal["all", "chunks", "chunks+method"] = "all"
    """Knobs that best fit sets; the others are fixed."""
    co_schedule: bool = False
    """Whether the calls of a query run together: in order of queries, for schedulers with `policy: priority`."""
    reading: Literal["free", "uncommitted", "device"] = "free"
    """Definition of free memory: unallocated blocks; those less the needs of prompts in progress or waiting; or what
    the device reports as free, in addition to the share that the engine has taken for itself (`memory.utilization`)."""
    partial: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of its mappers that a configuration may start with; 1: all or nothing."""
    full: Literal["one", "space"] = "one"
    """Configuration to queue if not even one chunk fits: one chunk, or the least of the query's pruned space."""
    profiler: Annotated[str, Field(max_length=200)] = "large"
    """Quality of profiles: large, small, poor or perfect."""
    profiler_model: Annotated[str, Field(max_length=4096)] = ""
    """The model that profiles, served by an LLM client; default: a client that serves stage `profile`."""
    feedback_every: Annotated[int, Field(ge=0, le=10**6)] = 30
    """Queries per golden run, which runs in parallel with the query; 0 for none. For systems with METIS's profiler:
    best fit and the middle of the pruned space."""
    golden_last: bool = False
    """Whether calls of golden runs yield to all others, for schedulers with `policy: priority`."""
    quality: Annotated[str, Field(max_length=200)] = "default"
    """The quality model by which `adaptive_rag` and `hindsight` choose."""
    noise: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Standard deviation of the F1 of one of the answers on which `adaptive_rag` measures a configuration, around the
    quality model's; 0: it measures the quality model's F1 itself."""
    grid: Literal["full", "words-120", "coarse", "chunks"] = "full"
    """Configurations that `adaptive_rag` measures: the whole range of the knobs; with summaries of up to 120 words;
    powers of two; or numbers of chunks only, all in one prompt."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Difference in measured F1 below which `adaptive_rag` takes the quicker of two configurations; 0: the best."""

    def build(self, name: str, seed: int) -> Callable[[Any], Iterator[Any]]:
        """Return the pipeline, with the state that it learns in one simulation. Raises `InputError` for unknown
        names."""
        return MetisPipeline(self, seed)


class MetisPipeline:
    """The queries of one simulation: their draws, earlier decisions, and the golden answers kept."""

    def __init__(self, config: Metis, seed: int) -> None:
        self.config, self.seed = config, seed
        self.dataset = datasets.dataset(config.dataset)
        self.profiler = profiler(config.profiler)
        self.quality = quality.quality_model(config.quality)
        self.profiles = config.system not in ("fixed", "hindsight")
        self.feeds_back = config.system in FEEDS_BACK and config.feedback_every > 0
        kinds: list[Any] = ["retrieve", "generate"]
        if self.profiles:
            kinds.append(("generate", config.profiler_model) if config.profiler_model else "profile")
        self.stages = tuple(kinds)
        self.history = SpaceHistory()
        self.kept = self._queries = 0
        self._fixed = Configuration(config.method, config.chunks, config.words if config.method == "map_reduce" else 0)
        self._adaptive: AdaptiveRag | None = None
        self._grid = grid() if config.system == "hindsight" else []

    def __call__(self, request: Any) -> Pipeline:
        query = self.dataset.draw(stream(self.seed, f"metis/{self.dataset.name}/{request.id}"))
        lengths = self.dataset.lengths(request.prompt_tokens)
        lengths = replace(lengths, answer=max(lengths.answer, request.output_tokens))
        if self.profiles:
            yield self._profile(request)
            if self.feeds_back:
                self._queries += 1
                if self._queries % self.config.feedback_every == 0:
                    request.beside(self._golden(request))
        view = max(request.view("generate"), key=lambda one: one.free_kv_tokens)
        chosen = self._configuration(request, query, lengths, view)
        self._note(request, query, chosen, view)
        yield ServiceStage("retrieve", options={"top_k": chosen.num_chunks})
        calls = replace(lengths, answer=request.output_tokens)
        if chosen.method != "stuff":
            prompt, output = calls.mapper(chosen)
            yield tuple(self._call(request, prompt, output) for _ in range(chosen.num_chunks))
        if chosen.method != "map_rerank":
            yield self._call(request, *calls.last(chosen))

    def _call(self, request: Any, prompt: int, output: int) -> Generate:
        return Generate(prompt, output, request.id if self.config.co_schedule else request.priority)

    # -- the profile, and golden runs ------------------------------------------------------------------------------

    def _profile(self, request: Any) -> Any:
        tokens = self.profiler.prompt_tokens(request.prompt_tokens, self.kept, self.dataset.output_tokens[1])
        output, model = self.profiler.output_tokens, self.config.profiler_model
        request.note("profile_in", tokens)
        request.note("profile_out", output)
        if not model:
            return ServiceStage("profile", tokens=tokens, options={"output_tokens": output})
        stage = Generate(tokens, output, request.priority)
        stage.model = model
        return stage

    def _golden(self, request: Any) -> Pipeline:
        """Return the most careful configuration, whose answer the profiler is shown."""
        prompt = self.dataset.chunk_tokens + request.prompt_tokens
        last, output = GOLDEN_CHUNKS * GOLDEN_TOKENS + request.prompt_tokens, self.dataset.output_tokens[1]
        request.note("golden_in", GOLDEN_CHUNKS * prompt + last)
        request.note("golden_out", GOLDEN_CHUNKS * GOLDEN_TOKENS + output)
        yield ServiceStage("retrieve", options={"top_k": GOLDEN_CHUNKS})
        yield tuple(self._golden_call(request, prompt, GOLDEN_TOKENS) for _ in range(GOLDEN_CHUNKS))
        yield self._golden_call(request, last, output)
        self.kept = min(KEPT, self.kept + 1)

    def _golden_call(self, request: Any, prompt: int, output: int) -> Generate:
        if self.config.golden_last:
            return Generate(prompt, output, LAST)
        return self._call(request, prompt, output)

    # -- the decision ----------------------------------------------------------------------------------------------

    def _configuration(self, request: Any, query: datasets.Query, lengths: Lengths, view: ClientView) -> Configuration:
        system = self.config.system
        if system == "fixed":
            return self._fixed
        if system == "hindsight":
            return self._hindsight(query, lengths)
        rng = stream(self.seed, f"metis profiler/{self.dataset.name}/{request.id}")
        profile = self.profiler.estimate(query.profile, rng, self.kept)
        if system == "adaptive_rag":
            return self._adaptive_rag(view).choose(profile)
        space, trusted = self.history.space(profile)
        request.note("trusted", trusted)
        if system == "median":
            return median(space)
        space = self._adapted(space)
        free = self._free(view)
        choice = self._fit(space, lengths, view, free, joint=profile.joint)
        idle = self._fit(space, lengths, view, view.kv_capacity_tokens, joint=profile.joint, idle=True)
        request.note("free_tokens", free)
        request.note("how", HOW.index(choice.how))
        request.note("constrained", choice.configuration != idle.configuration)
        return choice.configuration

    def _free(self, view: ClientView) -> int:
        if self.config.reading == "free":
            return view.free_kv_tokens
        if self.config.reading == "uncommitted":
            return max(0, view.uncommitted_kv_tokens)
        if view.unreserved_kv_tokens is None:
            raise InputError(Verbatim(f"client {view.name} has a given number of KV blocks, so that the free memory of "
                                      "its device is unknown; leave out its memory.num_blocks, or take another reading "
                                      "of free memory"), field="pipeline.reading")
        return view.unreserved_kv_tokens

    def _fit(self, space: Space, lengths: Lengths, view: ClientView, free_tokens: int, *, joint: bool,
             idle: bool = False) -> Choice:
        seqs = view.max_num_seqs - (0 if idle else view.running + view.waiting)
        reading = Reading(free_tokens, 1.0, view.block_tokens, max(0, seqs), view.max_num_batched_tokens)
        return choose(space, lengths, reading, joint=joint, partial=self.config.partial, full=self.config.full)

    def _adapted(self, space: Space) -> Space:
        """Restrict the space to the fixed values of the knobs that best fit does not set."""
        fixed, adapts = self._fixed, self.config.adapts
        words = (self.config.words, self.config.words)
        if adapts == "chunks":
            own = (fixed.summary_words, fixed.summary_words)
            return tuple(dict.fromkeys(Box(fixed.method, box.chunks, own) for box in space))
        if adapts == "chunks+method":
            return tuple(replace(box, words=words) if box.method == "map_reduce" else box for box in space)
        return space

    def _adaptive_rag(self, view: ClientView) -> AdaptiveRag:
        if self._adaptive is None:
            config = self.config
            measured = self.seed if config.noise else 0   # without noise every seed measures the same
            self._adaptive = _adaptive_rag(config.dataset, config.quality, config.noise, config.grid, config.tolerance,
                                           measured, view.max_model_len)
        return self._adaptive

    def _hindsight(self, query: datasets.Query, lengths: Lengths) -> Configuration:
        configs, ranks = self._grid, self._ranks(query, self.quality)
        f1 = self.quality.f1_of_each(query.profile, ranks, configs)
        return configs[quickest_best(f1, [work(config, lengths) for config in configs], 0.02)]

    @staticmethod
    def _ranks(query: datasets.Query, model: quality.QualityModel) -> tuple[int, ...]:
        return query.heavy_ranks if model.heavy_tail else query.ranks

    def _note(self, request: Any, query: datasets.Query, chosen: Configuration, view: ClientView) -> None:
        request.note("method", METHODS.index(chosen.method))
        request.note("chunks", chosen.num_chunks)
        request.note("words", chosen.summary_words)
        request.note("kv_used", 1 - view.free_kv_tokens / view.kv_capacity_tokens)
        for name, model in quality.QUALITY.items():
            value = model.f1(query.profile, self._ranks(query, model), chosen)
            request.note("f1" if name == "default" else f"f1_{name}", value)


@lru_cache(maxsize=64)
def _adaptive_rag(dataset: str, model: str, noise: float, grid: str, within: float, seed: int,
                  longest: int | None) -> AdaptiveRag:
    """Return AdaptiveRAG* of a data set. Its sample queries are the same in every run, the answers to them differ by
    seed: the simulations of a sweep share them."""
    one = datasets.dataset(dataset)
    return AdaptiveRag(one, quality.quality_model(model), stream(0, f"metis samples/{one.name}"),
                       stream(seed, f"metis answers/{one.name}"), noise=noise, grid=grid, within=within,
                       longest=longest)
