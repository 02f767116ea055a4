"""Stages: what pipelines ask clients for, and ways to wait for it.

A stage names its kind, the model that has to serve it ("" for the request's own), and how much there is to do. A
generation is a `hermes.core.sequence.Sequence` (pipelines call it `Generate`); everything else is a `ServiceStage`:
tokens, items (queries, documents) and whatever else its service reads from `options`. What a stage needs may lie
elsewhere: `inputs` says how many bytes come from the client of which earlier stage; the network moves them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from hermes.core.block_hashes import NameRuns, PromptContent
from hermes.errors import InputError

if TYPE_CHECKING:
    from hermes.core.branches import Branches
    from hermes.core.client import Client
    from hermes.core.common_prompt import CommonPrompt
    from hermes.core.request import Request

__all__ = ["AnyOf", "Segments", "ServiceStage", "Stage", "check_count"]

_NOTHING: Mapping[str, Any] = {}   # values of options are what a service reads: numbers, texts, lists
Segments = list[tuple[int, int, int]]


class Stage:
    """One piece of work of a request. Defaults live on the class: most fields are set late, or never.

    What pipelines and clients read of every stage (times are nanoseconds, -1 until they are known):

        kind, model, priority: What is to be done, by which model ("" for the request's own), how urgently (lower
            first).
        inputs: (earlier stage, bytes) that have to be at its client before it starts.
        request: Whose it is; set when it is dispatched.
        done, client: Whether it has been served, and by which client.
        detached: Started beside what comes next (`request.start`).
        content: What its tokens share with others (`hermes.core.block_hashes`); None for nothing.
        arrival_order: Unique in a simulation; breaks ties of priority, names content that nothing shares.
        assigned_ns, start_ns, first_token_ns: Given to its client; first step that computes it; its first token.

    What an LLM client keeps of it (vLLM's names). It can serve a `ServiceStage` as well, as a sequence that ends with
    its prompt, if its scheduler knows the kind.

        prompt_tokens, output_tokens: What was asked.
        target_tokens: Outputs after which the present client is done with it.
        num_computed: Tokens whose KV is in memory. num_tokens: Prompt and outputs so far. While the sequence is in a
            `DecodeGroup` the group's clock implies both, and these two are stale; so is num_blocks.
        base, finish_clock, grouped: Its place in a decode group (num_computed = clock + base).
        run_order: Rank of its latest admission (the order of vLLM's `running` list).
        first_step: The client's step that gave its first token.
        emit_step, join_tick: The step that gave the first token since it was last admitted, and the decode tick after
            it (see `LLMScheduler`).
        segments: (emit_step, join_tick, end_tick) of earlier admissions; None for the many that nothing interrupted.
        preemptions, cached_tokens: How often it was preempted; prompt tokens found in a cache when first admitted.

    Where another client takes part of it over:

        decode_on: The client that a router has chosen for the decode phase, if it places both phases at once.
        original: The stage its pipeline knows, if this is the part of it that another client takes over.
        transferred, source: Its prompt's KV comes from another client, and from which.
        overlap: (layers, seconds of prefill) that what it found may arrive beside.

    Branches of a generation (`hermes.core.branches`):

        branches, branch: Its generation's branches, and which of them it is; None and -1 for the many without.
        width: Sequences that it will be with its next token.
        assigned_outputs: Tokens of all branches that its client is to emit.
        common: What of its prompt's memory it shares with other branches.
    """

    kind = ""
    model = ""
    priority = 0
    inputs: tuple[tuple[Stage, int], ...] = ()
    request: Request = cast("Request", None)
    client: Client | None = None
    done = False
    detached = False
    content: PromptContent | None = None
    arrival_order = 0
    assigned_ns = -1
    start_ns = -1
    first_token_ns = -1

    prompt_tokens = 0
    output_tokens = 0
    target_tokens = 0
    num_computed = 0
    num_tokens = 0
    num_blocks = 0
    base = 0
    finish_clock = 0
    grouped = False
    run_order = 0
    first_step = -1
    emit_step = -1
    join_tick = 0
    segments: Segments | None = None
    preemptions = 0
    cached_tokens = 0

    decode_on: Client | None = None
    original: Stage | None = None
    transferred = False
    source: Client | None = None
    overlap: tuple[int, float] | None = None

    branches: Branches | None = None
    branch = -1
    width = 1
    assigned_outputs = 0
    common: CommonPrompt | None = None

    @property
    def all_outputs(self) -> int:
        """Output tokens of all its branches as long as it stands for them, else its own."""
        return self.output_tokens if self.branches is None or self.width == 1 else sum(self.branches.outputs)

    @property
    def own_name(self) -> object:
        """Name of the blocks that its content does not name (see `hermes.core.block_hashes`)."""
        raise NotImplementedError

    def block_key(self, index: int, block_size: int) -> object:
        """Identity of full block `index` and all before it; see `hermes.memory.blocks.BlockHolder`."""
        raise NotImplementedError

    def name_runs(self, block_size: int) -> NameRuns:
        """The names its content gives; the blocks after them have its `own_name`."""
        return ()


class ServiceStage(Stage):
    """A stage that generates nothing: `ServiceStage("retrieve", items=4, options={"top_k": 10})`.

    Args:
        tokens: Text that it reads (embedding, reranking, filtering).
        items: Queries or documents.
        options: What else its service reads, by name.
    """

    def __init__(
        self, kind: str, *, tokens: int = 0, items: int = 1, model: str = "", priority: int = 0,
        inputs: tuple[tuple[Stage, int], ...] = (), options: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.kind = kind
        self.prompt_tokens = self.num_tokens = tokens
        self.items = items
        self.model = model
        self.priority = priority
        self.inputs = inputs
        self.options = options

    def block_key(self, index: int, block_size: int) -> object:
        """Its own alone: an embedding goes through an adapter, which changes keys and values."""
        return (self.kind, self.arrival_order, index)

    @property
    def own_name(self) -> tuple[str, int]:
        return (self.kind, self.arrival_order)

    @property
    def tokens(self) -> int:
        """Tokens it reads."""
        return self.prompt_tokens

    def __repr__(self) -> str:
        return f"ServiceStage({self.kind!r}, tokens={self.tokens}, items={self.items})"


class AnyOf:
    """`first = yield AnyOf(a, b)`: wait until one of several started stages is done; the first of them that is."""

    __slots__ = ("stages",)

    def __init__(self, *stages: Stage) -> None:
        if not stages:
            raise ValueError("at least one stage to wait for")
        self.stages = stages


def check_count(name: str, value: Any, least: int = 1) -> int:
    """The value of an option that counts something; `InputError` for what is no integer, and for less than `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"an integer of at least {least}", value, field=f"options.{name}")
    return value
