"""Generations: stages that an LLM engine serves as sequences of tokens.

A request costs one object per generation: the LLM client serves the pipeline's stage itself. A disaggregated generation
is one `Generation` that two clients serve one after the other. Other stages that an engine serves (it embeds with its
own model) become an `Embedding` when they are dispatched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.block_hashes import NameRuns, PromptContent, name_runs
from hermes.core.stage import Stage

if TYPE_CHECKING:
    from hermes.core.branches import Branches
    from hermes.core.client import Client
    from hermes.core.common_prompt import CommonPrompt
    from hermes.core.request import Request

__all__ = ["Embedding", "Generation", "Segments", "token_delay_ns"]

Segments = list[tuple[int, int, int]]


def token_delay_ns(client: Client, step: int) -> int:
    """Return how long after the end of a step of a client the user has its tokens."""
    late = client.late_log
    return client.after_ns + (late[step] if late and step < len(late) else 0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Generation(Stage):
    """One generation and its progress, as pipelines request it and schedulers serve it.

    `arrival_order` numbers the dispatches of all stages of the simulation; each branch has a number of its own.

    Fields that an LLM client maintains (vLLM's names), besides those of every `Stage`:

        output_tokens: Tokens requested.
        target_tokens: Outputs after which the present client is done with it.
        max_new_tokens: Output tokens that it asks for; 0 if it asks for those that it gets.
        stops_early: Whether a stop token ends it at its present client, before the tokens that it asks for.
        num_computed: Tokens whose KV is in memory.
        num_tokens: Prompt and outputs so far. In a `DecodeGroup` the group's clock implies num_computed, num_tokens
            and num_blocks, and these fields are stale.
        base, finish_clock, grouped: Its place in a decode group (num_computed = clock + base).
        run_order: Rank of its latest admission (the order of vLLM's `running` list).
        first_token_ns: When its first token was ready; -1 until then.
        first_step: The client's step that gave its first token.
        emit_step, join_tick: The step that gave the first token since its last admission, and the decode tick after
            that (see `LLMScheduler`).
        segments: (emit_step, join_tick, end_tick) of earlier admissions; None for the many without interruption.
        preemptions: Number of preemptions.
        carried: Output tokens at the end of its prompt, which attempts at it before gave.

    Fields of a generation that two clients serve:

        decode_on: Decode client, if the router places both phases at once.
        hands_over: Whether another client goes on when the present one has computed the prompt.
        transferred, source: Whether its prompt's KV comes from another client, and that client.
        is_read: False if another generation of the request follows, whose tokens its user reads.
        prefill: The sequence whose prompt that client computed.
        given: Output tokens that another client has given before.

    Fields of branches (`hermes.core.branches`):

        branches, branch: Its generation's branches, and its index among them; None and -1 for the many without.
        width: Sequences that it becomes with its next token.
        assigned_outputs: Tokens of all branches that its client is to emit.
        common: The part of its prompt's memory that it shares with other branches.
    """

    # What every sequence is asked for: a default on the class costs ten times as much to look up. Each is set at once.
    __slots__ = (
        "arrival_order", "assigned_ns", "attempt", "background", "base", "branches", "cached_tokens", "carried",
        "client", "common", "content", "decode_on", "done", "emit_step", "finish_clock", "first_step",
        "first_token_ns", "given", "grouped", "hands_over", "inputs", "join_tick", "kind", "max_new_tokens", "model",
        "num_blocks", "num_computed", "num_tokens", "original", "output_tokens",
        "preemptions", "priority", "prompt_tokens", "request", "run_order", "segments", "start_ns", "stops_early",
        "target_tokens", "transferred", "width",
    )

    is_read = True
    source: Client | None = None
    prefill: Generation | None = None
    branch = -1
    assigned_outputs = 0

    def __init__(
        self, prompt_tokens: int, output_tokens: int, priority: int = 0, request: Request | None = None,
        arrival_order: int = 0, content: PromptContent | None = None,
    ) -> None:
        self.prompt_tokens = self.num_tokens = prompt_tokens
        self.output_tokens = self.target_tokens = output_tokens
        self.priority = priority
        self.request = request  # type: ignore[assignment]  # set at dispatch
        self.arrival_order = arrival_order
        self.content = content
        self.max_new_tokens = self.num_computed = self.num_blocks = self.base = self.finish_clock = self.run_order = 0
        self.join_tick = self.preemptions = self.cached_tokens = self.given = self.carried = 0
        self.assigned_ns = self.start_ns = self.first_token_ns = self.first_step = self.emit_step = self.attempt = -1
        self.stops_early = self.grouped = self.hands_over = self.transferred = self.background = self.done = False
        self.kind, self.model = "generate", ""
        self.inputs = ()
        self.client: Client | None = None
        self.decode_on: Client | None = None
        self.original: Stage | None = None
        self.segments: Segments | None = None
        self.branches: Branches | None = None
        self.common: CommonPrompt | None = None
        self.width = 1

    @property
    def all_outputs(self) -> int:
        """Output tokens of all branches while this sequence stands for them, otherwise its own."""
        return self.output_tokens if self.branches is None or self.width == 1 else sum(self.branches.outputs)

    def is_read_by(self, now_ns: int, client: Client | None, prefill_gives: int) -> bool:
        """Whether a user has its first token, which the front end of its client sends; that of a prompt which another
        client decodes is for users only if `prefill_gives`."""
        first = self
        if self.given:   # by the client that computed its prompt
            assert self.prefill is not None
            first, client = self.prefill, self.source
        if client is None or first.first_token_ns < 0 or (first is self and self.hands_over and not prefill_gives):
            return False
        return first.first_token_ns + token_delay_ns(client, first.first_step) <= now_ns

    def size(self, load: str) -> int:
        """Return what it adds to a load of a client, as heavy-light routing uses it."""
        if load == "output_tokens":
            return self.all_outputs
        if load == "tokens_left":
            return self.all_outputs - max(0, self.num_tokens - self.prompt_tokens)
        # once its prompt is computed it holds `num_tokens`
        return self.num_tokens if load == "kv_tokens" else self.prompt_tokens

    def block_key(self, index: int, block_size: int) -> object:
        """Return a key of full block `index` and all before it; see `hermes.memory.blocks.BlockHolder`."""
        content = self.content
        if content is not None:
            key = content.block_key(index, block_size)
            if key is not None:
                return key
        return (self.arrival_order, index)

    @property
    def own_name(self) -> object:
        """Name of the blocks that its content does not name (see `hermes.core.block_hashes`)."""
        return self.arrival_order

    def name_runs(self, block_size: int) -> NameRuns:
        """Return the names that its content gives; blocks after them have its `own_name`."""
        return () if self.content is None else name_runs(self.content, block_size)


@mypyc_attr(allow_interpreted_subclasses=True)
class Embedding(Generation):
    """A stage of another kind that an LLM engine serves: a sequence that ends with its prompt.

    The coordinator makes it of the pipeline's stage when that is dispatched to an engine.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.prompt_tokens, 0, stage.priority, stage.request, stage.arrival_order, stage.content)
        self.kind = stage.kind
        self.model = stage.model
        self.inputs = stage.inputs
        self.original = stage.original or stage

    # It goes through an adapter, which changes keys and values: its blocks are its own.

    def block_key(self, index: int, block_size: int) -> object:
        return (self.kind, self.arrival_order, index)

    @property
    def own_name(self) -> object:
        return (self.kind, self.arrival_order)

    def name_runs(self, block_size: int) -> NameRuns:
        return ()
