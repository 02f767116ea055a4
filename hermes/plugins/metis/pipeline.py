"""METIS pipeline: RAG queries whose configuration is chosen just before dispatch (`hermes.plugins.metis`).

A request is a question (the workload's prompt) with an answer (its output). It is profiled, gets a configuration of a
chooser (`choosers`), and runs its steps (`steps`): retrieval, then calls of the model.

Recorded for every request (`request.note`):

- `method` (an index of `METHODS`), `chunks`, `words`: its configuration.
- `f1` by the quality model; where that is a shipped formula, also `f1_NAME` by each of the others.
- `kv_used`: share of KV memory in use at the decision.
- `profile_in`, `profile_out`: tokens of the profiler's call; `golden_in`, `golden_out`: of a golden run.
- by the chooser, for METIS and the median `trusted`: 0 for a profile of low confidence.
- by METIS `how` (an index of `HOW`), `free_tokens` (KV memory that counted as free), and `constrained`: whether an idle
  engine would have got another configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hermes.config import Component, ConfigModel, FileName, NameOrFile, stream
from hermes.errors import InputError, Verbatim, inside
from hermes.pipelines import PIPELINES, ClientView, Generate, Pipeline, ServiceStage
from hermes.plugins.metis import datasets
from hermes.plugins.metis.choosers import CHOOSERS, Chooser, QueryState, Setting
from hermes.plugins.metis.decision import MAX_CHUNKS, METHODS, Configuration, ConfigurationError
from hermes.plugins.metis.measured import Queries
from hermes.plugins.metis.profiler import profiler
from hermes.plugins.metis.quality import FORMULAS, QUALITY, Formula, Quality
from hermes.plugins.metis.steps import STEPS, Step, Underway

__all__ = ["GOLDEN_CHUNKS", "GOLDEN_TOKENS", "Metis", "MetisPipeline"]

GOLDEN_CHUNKS, GOLDEN_TOKENS = 30, 300
KEPT = 4
"""Golden answers in the profiler's prompt."""
LAST = 2**40
"""Priority of golden runs that yield to all others: above any query's number."""
BY_NAME = BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value)
"""A name stands for the component of that kind."""


@PIPELINES.register("metis")
class Metis(ConfigModel):
    """A RAG query with its configuration: profile it, choose, look up the chunks, call the model once or many times."""

    dataset: NameOrFile = "musique"
    """Data set of the queries: squad, musique, finsec or qmsum, these with -3n (chunks and pieces such that 3n chunks
    stay within the published input lengths), or the path of a YAML file of format hermes-rag-dataset/1, relative to the
    scenario."""
    queries: FileName | None = None
    """CSV with the names of measured queries: column `query`; optionally `answer_tokens`, and their true profiles:
    `joint`, `complex` (0 or 1), `pieces`, `least_words`, `most_words`. Relative to the scenario."""
    system: Annotated[Any, Component(CHOOSERS), BY_NAME] = Field(default="metis", validate_default=True)
    """Chooser of the configuration: `metis`, best fit; `median`, middle of the pruned space; `adaptive_rag`, best
    measured F1 of the query's class; `fixed`; `hindsight`, least work within 2% of the query's best F1, known in
    advance; or a registered one, as its name or as `{kind: NAME, ...}`."""
    steps: Annotated[list[Annotated[Any, Component(STEPS), BY_NAME]], Field(min_length=1, max_length=100)] = Field(
        default=["retrieve", "synthesise"], validate_default=True)
    """Steps after the choice: `retrieve`, `synthesise`, or registered ones, as names or as `{kind: NAME, ...}`."""
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
    """Queries per golden run, which runs in parallel with the query; 0 for none. For choosers whose profiler learns:
    `metis` and `median`."""
    golden_last: bool = False
    """Whether calls of golden runs yield to all others, for schedulers with `policy: priority`."""
    quality: Annotated[Any, Component(QUALITY), BY_NAME] = Field(default="default", validate_default=True)
    """The quality model, which gives the F1 of every answer, and by which `adaptive_rag` and `hindsight` choose:
    `default`, `heavy-tail`, `weak-synthesis`, `all-or-nothing`, `diluted-mappers`; `{kind: measured, file: f1.csv}`; or
    a registered one."""
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
        with inside("dataset"):
            self.dataset = datasets.dataset(config.dataset)
        self.profiler = profiler(config.profiler)
        asked: Quality = config.quality
        self.quality = asked.opened()
        self.others = [one for one in FORMULAS.values() if isinstance(asked, Formula) and one.kind != asked.kind]
        self.queries = Queries(self.dataset, config.queries, self.quality.queries)
        chooser: Chooser = config.system
        self.chooser = chooser.begin(Setting(config, self.dataset, self.queries, self.quality, seed))
        self.profiles = chooser.profiled
        self.feeds_back = chooser.learns and config.feedback_every > 0
        self.steps: list[Step] = config.steps
        kinds: list[Any] = [kind for step in self.steps for kind in step.stages]
        kinds += ["retrieve", "generate"] if self.feeds_back else []
        if self.profiles:
            kinds.append(("generate", config.profiler_model) if config.profiler_model else "profile")
        self.stages = tuple(dict.fromkeys(kinds))
        self.kept = self._asked = 0

    def __call__(self, request: Any) -> Pipeline:
        query = self.queries.draw(request.id, stream(self.seed, f"metis/{self.dataset.name}/{request.id}"))
        answer = query.answer_tokens or request.output_tokens
        lengths = self.dataset.lengths(request.prompt_tokens)
        if self.profiles:
            yield self._profile(request)
            if self.feeds_back:
                self._asked += 1
                if self._asked % self.config.feedback_every == 0:
                    request.beside(self._golden(request))
        view = max(request.view("generate"), key=lambda one: one.free_kv_tokens)
        profile = None
        if self.profiles:
            rng = stream(self.seed, f"metis profiler/{self.dataset.name}/{request.id}")
            profile = self.profiler.estimate(query.profile, rng, self.kept)
        chosen = self._choose(QueryState(
            profile, replace(lengths, answer=max(lengths.answer, answer)), view, self.config.reading,
            lambda configs: self.quality.f1_of_each(query, configs), request.note))
        self._note(request, chosen, view)
        answer = self.quality.answer_tokens(query, chosen) or answer
        underway = Underway(request, query, chosen, replace(lengths, answer=answer), self._priority(request))
        noted = None
        for step in self.steps:
            if underway.query is not noted:
                noted = underway.query
                self._note_f1(request, noted, chosen)
            yield from step.run(underway)

    def _priority(self, request: Any) -> int:
        return int(request.id if self.config.co_schedule else request.priority)

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
        return Generate(prompt, output, LAST if self.config.golden_last else self._priority(request))

    # -- what is kept ----------------------------------------------------------------------------------------------

    def _choose(self, state: QueryState) -> Configuration:
        """Return the chooser's choice. Raises `InputError` that names the chooser if it is no configuration."""
        whose = f"a configuration from chooser {self.config.system.kind!r}"
        try:
            chosen = self.chooser.choose(state)
        except ConfigurationError as error:
            raise InputError(whose, Verbatim(str(error)), field="system") from error
        if not isinstance(chosen, Configuration):
            raise InputError(whose, chosen, field="system")
        return chosen

    def _note(self, request: Any, chosen: Configuration, view: ClientView) -> None:
        request.note("method", METHODS.index(chosen.method), METHODS)
        request.note("chunks", chosen.num_chunks)
        request.note("words", chosen.summary_words)
        request.note("kv_used", 1 - view.free_kv_tokens / view.kv_capacity_tokens)

    def _note_f1(self, request: Any, query: datasets.Query, chosen: Configuration) -> None:
        request.note("f1", self.quality.f1(query, chosen))
        measured = self.quality.is_measured(query, chosen)
        if measured is not None:
            request.note("f1_measured", measured)
        for other in self.others:
            request.note(f"f1_{other.kind}", other.f1(query, chosen))
