"""A generation: its tokens and progress, as pipelines request it and schedulers serve it.

A request costs one object per generation: the LLM client serves the pipeline's stage itself. A disaggregated generation
is one `Sequence` that two clients serve one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.block_hashes import NameRuns, PromptContent, name_runs
from hermes.core.stage import Stage

if TYPE_CHECKING:
    from hermes.core.request import Request

__all__ = ["Sequence"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Sequence(Stage):
    """Progress of one generation; see `Stage` for the fields."""

    kind = "generate"

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

    def block_key(self, index: int, block_size: int) -> object:
        content = self.content
        if content is not None:
            key = content.block_key(index, block_size)
            if key is not None:
                return key
        return (self.arrival_order, index)

    @property
    def own_name(self) -> int:
        return self.arrival_order

    def name_runs(self, block_size: int) -> NameRuns:
        return () if self.content is None else name_runs(self.content, block_size)
