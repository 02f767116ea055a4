"""Stages: the work that pipelines request from clients.

A stage names its kind, the model that must serve it ("" for the request's own), and its amount of work. A generation is
a `hermes.core.sequence.Sequence` (pipelines call it `Generate`). Everything else is a `ServiceStage`, with tokens,
items (queries, documents) and the `options` that its service reads. The input of a stage may be on another client:
`inputs` lists the bytes that come from the client of an earlier stage, and the network moves them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hermes.compiled import check_overrides, mypyc_attr
from hermes.core.block_hashes import NameRuns, PromptContent
from hermes.errors import InputError

if TYPE_CHECKING:
    from hermes.core.branches import Branches
    from hermes.core.client import Client
    from hermes.core.common_prompt import CommonPrompt
    from hermes.core.request import Request

__all__ = ["AnyOf", "Segments", "ServiceStage", "Stage", "check_count"]

_NOTHING: Mapping[str, Any] = {}   # option values depend on the service: numbers, texts, lists
Segments = list[tuple[int, int, int]]


@mypyc_attr(allow_interpreted_subclasses=True)
class Stage:
    """One piece of work of a request. Defaults live on the class: most fields are set late, or never.

    Fields that pipelines and clients read of every stage (times in nanoseconds, -1 until known):

        kind: Kind of work.
        model: Model that must serve it ("" for the request's own).
        priority: Lower is more urgent.
        inputs: (earlier stage, bytes) pairs that must arrive at its client before it starts.
        request: Its request; set at dispatch.
        done, client: Whether it has been served, and by which client.
        detached: Whether the pipeline started it and went on (`request.start`).
        background: Whether the pipeline started it and has not waited for it since.
        content: What its tokens share with others (`hermes.core.block_hashes`); None for nothing.
        arrival_order: Unique in a simulation; breaks ties of priority, names content that is not shared.
        assigned_ns: When it was assigned to its client.
        start_ns: Start of the first step that computes it.
        first_token_ns: When its first token was ready.

    Fields that an LLM client maintains (vLLM's names). It can also serve a `ServiceStage`, as a sequence that ends with
    its prompt, if its scheduler knows the kind.

        prompt_tokens, output_tokens: Tokens requested.
        target_tokens: Outputs after which the present client is done with it.
        max_new_tokens: Output tokens that it asks for; 0 if it asks for those that it gets.
        stops_early: Whether a stop token ends it at its present client, before the tokens that it asks for.
        num_computed: Tokens whose KV is in memory.
        num_tokens: Prompt and outputs so far. In a `DecodeGroup` the group's clock implies num_computed, num_tokens
            and num_blocks, and these fields are stale.
        base, finish_clock, grouped: Its place in a decode group (num_computed = clock + base).
        run_order: Rank of its latest admission (the order of vLLM's `running` list).
        first_step: The client's step that gave its first token.
        emit_step, join_tick: The step that gave the first token since its last admission, and the decode tick after
            that (see `LLMScheduler`).
        segments: (emit_step, join_tick, end_tick) of earlier admissions; None for the many without interruption.
        preemptions: Number of preemptions.
        cached_tokens: Prompt tokens found in a cache at the first admission.

    Fields of a stage that two clients serve:

        decode_on: Decode client, if the router places both phases at once.
        original: The pipeline's stage, if this is the part of it that a second client serves.
        hands_over: Whether another client goes on when the present one has computed the prompt.
        transferred, source: Whether its prompt's KV comes from another client, and that client.
        given: Output tokens that another client has given before.
        overlap: (layers, seconds of prefill) during which found KV may still arrive.

    Fields of branches (`hermes.core.branches`):

        branches, branch: Its generation's branches, and its index among them; None and -1 for the many without.
        width: Sequences that it becomes with its next token.
        assigned_outputs: Tokens of all branches that its client is to emit.
        common: The part of its prompt's memory that it shares with other branches.
    """

    kind = ""
    model = ""
    priority = 0
    inputs: tuple[tuple[Stage, int], ...] = ()
    request: Request = None  # type: ignore[assignment]  # set at dispatch
    client: Client | None = None
    done = False
    detached = False
    background = False
    content: PromptContent | None = None
    arrival_order = 0
    assigned_ns = -1
    start_ns = -1
    first_token_ns = -1

    prompt_tokens = 0
    output_tokens = 0
    target_tokens = 0
    max_new_tokens = 0
    stops_early = False
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
    hands_over = False
    transferred = False
    given = 0
    source: Client | None = None
    overlap: tuple[int, float] | None = None

    branches: Branches | None = None
    branch = -1
    width = 1
    assigned_outputs = 0
    common: CommonPrompt | None = None

    def __init_subclass__(cls) -> None:
        check_overrides(cls)

    @property
    def all_outputs(self) -> int:
        """Output tokens of all branches while this sequence stands for them, otherwise its own."""
        return self.output_tokens if self.branches is None or self.width == 1 else sum(self.branches.outputs)

    @property
    def own_name(self) -> object:
        """Name of the blocks that its content does not name (see `hermes.core.block_hashes`)."""
        raise NotImplementedError

    def block_key(self, index: int, block_size: int) -> object:
        """Return a key of full block `index` and all before it; see `hermes.memory.blocks.BlockHolder`."""
        raise NotImplementedError

    def name_runs(self, block_size: int) -> NameRuns:
        """Return the names that its content gives; blocks after them have its `own_name`."""
        return ()


@mypyc_attr(allow_interpreted_subclasses=True)
class ServiceStage(Stage):
    """A stage that generates no tokens: `ServiceStage("retrieve", items=4, options={"top_k": 10})`.

    Args:
        tokens: Tokens that it reads (embedding, reranking, filtering).
        items: Queries or documents.
        options: Other values that its service reads, by name.
    """

    def __init__(
        self, kind: str, *, tokens: int = 0, items: int = 1, model: str = "", priority: int = 0,
        inputs: tuple[tuple[Stage, int], ...] = (), options: Mapping[str, Any] = _NOTHING,   # Any: see `_NOTHING`
    ) -> None:
        self.kind = kind
        self.prompt_tokens = self.num_tokens = tokens
        self.items = items
        self.model = model
        self.priority = priority
        self.inputs = inputs
        self.options = options

    def block_key(self, index: int, block_size: int) -> object:
        """Return a key of its own: an embedding goes through an adapter, which changes keys and values."""
        return (self.kind, self.arrival_order, index)

    @property
    def own_name(self) -> tuple[str, int]:
        return (self.kind, self.arrival_order)

    @property
    def tokens(self) -> int:
        """Tokens that it reads."""
        return self.prompt_tokens

    def __repr__(self) -> str:
        return f"ServiceStage({self.kind!r}, tokens={self.tokens}, items={self.items})"


class AnyOf:
    """`first = yield AnyOf(a, b)`: wait for the first of several started stages; the pipeline gets that stage."""

    __slots__ = ("stages",)

    def __init__(self, *stages: Stage) -> None:
        if not stages:
            raise ValueError("AnyOf needs at least one stage to wait for")
        self.stages = stages


def check_count(name: str, value: object, least: int = 1) -> int:
    """Return the value of an option that counts something; `InputError` unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"an integer of at least {least}", value, field=f"options.{name}")
    return value
