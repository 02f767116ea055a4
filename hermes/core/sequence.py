"""A generation as a scheduler sees it: how many tokens, how far, how many blocks.

`Sequence` is what an LLM client serves. The pipeline stage `Generate` is one, so a request costs one object per
generation. A disaggregated generation is one `Sequence` that two clients serve one after the other.
"""

from __future__ import annotations

from typing import Any

from hermes.core.block_hashes import NameRuns, name_runs
from hermes.core.common_prompt import CommonPrompt

__all__ = ["Sequence"]


class Sequence:
    """Progress of one generation.

    prompt_tokens, output_tokens: what was asked; target_tokens: outputs after which the present client is done with it
    num_computed: tokens whose KV is in memory; num_tokens: prompt + outputs so far. vLLM's names. While the sequence is
        in a `DecodeGroup` both are implied by the group's clock, and these two are stale; so is num_blocks.
    base, finish_clock: its place in a decode group (num_computed = clock + base)
    run_order: rank of its latest admission (the order of vLLM's `running` list)
    arrival_order: unique in a simulation; breaks ties of priority, names content that nobody shares
    first_step: the client's step that gave its first token; emit_step, join_tick: the step that gave the first token
        since it was last admitted, and the decode tick (see `LLMScheduler`) after it
    segments: (emit_step, join_tick, end_tick) of earlier admissions; None for the many that were never interrupted
    decode_on: the client a router has chosen for the decode phase, if it places both phases at once
    model: the model that has to serve it, "" for the request's own
    inputs, done, client, detached: as for every stage (`hermes.core.stage.Stage`)
    original: the stage its pipeline knows, if this is the part of it that another client takes over
    transferred, source: its prompt's KV comes from another client, and from which
    branches, branch: the branches of its generation and which of them it is (`hermes.core.branches`), None and -1
        for the many without; width: sequences it will be with its next token; output_tokens: till then, of the longest;
        assigned_outputs: tokens of all branches that its client is to emit
    common: what of its prompt's memory it shares with other branches (`hermes.core.common_prompt`)
    """

    # Defaults live on the class: a sequence is made for every generation, and most of these are set late, or never.
    kind = "generate"
    num_computed = 0
    num_blocks = 0
    base = 0
    finish_clock = 0
    run_order = 0
    join_tick = 0
    grouped = False
    first_step = -1
    emit_step = -1
    assigned_ns = -1
    start_ns = -1
    first_token_ns = -1
    preemptions = 0
    cached_tokens = 0
    segments: list[tuple[int, int, int]] | None = None
    transferred = False
    source: Any = None
    decode_on: Any = None
    model = ""
    inputs: tuple[tuple[Any, int], ...] = ()
    client: Any = None
    original: Any = None
    done = False
    detached = False
    branches: Any = None
    branch = -1
    width = 1
    assigned_outputs = 0
    common: CommonPrompt | None = None

    def __init__(
        self, prompt_tokens: int, output_tokens: int, priority: int = 0, request: Any = None, arrival_order: int = 0,
        content: Any = None,
    ) -> None:
        self.prompt_tokens = self.num_tokens = prompt_tokens
        self.output_tokens = self.target_tokens = output_tokens
        self.priority = priority
        self.request = request
        self.arrival_order = arrival_order
        self.content = content

    @property
    def all_outputs(self) -> int:
        """Output tokens of all its branches as long as it stands for them, else its own."""
        return self.output_tokens if self.width == 1 else sum(self.branches.outputs)

    def block_key(self, index: int, block_size: int) -> object:
        """Identity of full block `index` and all before it; see `hermes.memory.blocks.BlockHolder`."""
        content = self.content
        if content is not None:
            key = content.block_key(index, block_size)
            if key is not None:
                return key
        return (self.arrival_order, index)

    @property
    def own_name(self) -> int:
        """Name of the blocks that its content does not name (see `hermes.core.block_hashes`)."""
        return self.arrival_order

    def name_runs(self, block_size: int) -> NameRuns:
        """The names its content gives; the blocks after them have its `own_name`."""
        return () if self.content is None else name_runs(self.content, block_size)
