"""Work that pipelines ask clients for, other than generations (`hermes.core.sequence`), and ways to wait for it.

A stage names its kind, the model that has to serve it ("" for the request's own), and how much there is to do: tokens,
items (queries, documents) and whatever else its service reads from `options`. What a stage needs may lie elsewhere:
`inputs` says how many bytes come from the client of which earlier stage; they are moved over the network first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes.core.block_hashes import NameRuns

__all__ = ["AnyOf", "Stage"]

_NOTHING: Mapping[str, Any] = {}


class Stage:
    """One piece of work. Times are nanoseconds, -1 until they are known.

    tokens: text it reads (embedding, reranking, filtering); items: queries or documents; inputs: (earlier stage, bytes)
    done, client: whether it has been served, and by whom

    An LLM client serves one as a sequence that ends with its prompt (`hermes.core.sequence` says what the fields
    mean), if its scheduler knows the kind.
    """

    # What the coordinator and routers read of every stage; a generation has its own.
    output_tokens = target_tokens = all_outputs = 0
    transferred = False
    decode_on: Any = None
    source: Any = None
    content: Any = None
    branches: Any = None
    width = 1
    client: Any = None
    original: Any = None
    request: Any = None
    segments: Any = None
    done = False
    detached = False
    arrival_order = 0
    assigned_ns = start_ns = first_token_ns = -1
    first_step = -1
    preemptions = cached_tokens = 0
    num_computed = num_blocks = run_order = join_tick = 0
    emit_step = branch = -1
    grouped = False
    common: Any = None
    overlap: tuple[int, float] | None = None   # (layers, seconds of prefill) that what it found may arrive beside

    def __init__(
        self, kind: str, *, tokens: int = 0, items: int = 1, model: str = "", priority: int = 0,
        inputs: tuple[tuple[Any, int], ...] = (), options: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.kind = kind
        self.prompt_tokens = self.num_tokens = tokens
        self.items = items
        self.model = model
        self.priority = priority
        self.inputs = inputs
        self.options = options

    def block_key(self, index: int, block_size: int) -> object:
        """Nobody's KV: an embedding goes through an adapter, which changes keys and values."""
        return (self.kind, self.arrival_order, index)

    @property
    def own_name(self) -> tuple[str, int]:
        """See `Sequence.own_name`."""
        return (self.kind, self.arrival_order)

    def name_runs(self, block_size: int) -> NameRuns:
        return ()

    @property
    def tokens(self) -> int:
        """Tokens it reads."""
        return self.prompt_tokens

    def __repr__(self) -> str:
        return f"Stage({self.kind!r}, tokens={self.tokens}, items={self.items})"


class AnyOf:
    """`first = yield AnyOf(a, b)`: wait until one of several started stages is done; the first of them that is."""

    __slots__ = ("stages",)

    def __init__(self, *stages: Any) -> None:
        if not stages:
            raise ValueError("at least one stage to wait for")
        self.stages = stages
