"""Reranking: a model reads the query with each found document, or each document takes a fixed time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hermes.config import Component, ConfigModel, Duration
from hermes.core.stage import ServiceStage
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware import HARDWARE
from hermes.services.base import EncoderService, MachineSpec, PerItem, PhaseCost, Service, Work

__all__ = ["Rerank", "RerankService"]


class Rerank(ConfigModel):
    """A cross-encoder over (query, document) pairs on a hardware model, or a fixed time per document.

    In a stage with several `items` each item is a pair, and `tokens` are those of all pairs together, as for an
    encoder. In a stage with one item, `tokens` are the query's, which is paired with `documents` of `document_tokens`
    each."""

    kind: Literal["rerank"] = "rerank"
    hardware: Annotated[Any, Component(HARDWARE)] | None = None
    """Hardware model of the model's prefill; or give `per_document`."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model whose weights are in memory, if the hardware model does not state it."""
    per_document: Duration | None = None
    """Time of one core per document; or give `hardware`."""
    documents: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Documents of a query in a stage with one item."""
    document_tokens: Annotated[int, Field(ge=1, le=2**31)] = 512
    """Tokens of a document."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] = 8192
    """Most tokens of a pair; longer ones are truncated."""

    @model_validator(mode="after")
    def _one_cost(self) -> Self:
        if (self.hardware is None) == (self.per_document is None):
            raise InputError(Verbatim("give either `hardware` or `per_document`"), field="hardware")
        return self

    def build(self, machine: MachineSpec, base_dir: Path | None = None) -> RerankService:
        """Build the service; `InputError` if the model does not fit or has another device."""
        if self.per_document is not None:
            return RerankService(self, PerItem(per_item=self.per_document).build(machine, base_dir))
        assert self.hardware is not None   # the validator requires one of the two
        with inside("hardware"):
            hardware = self.hardware.build(base_dir)
        return RerankService(self, EncoderService(hardware, machine, self.max_tokens, self.model, base_dir))


class RerankService:
    """See the module's docstring."""

    def __init__(self, config: Rerank, inner: Service) -> None:
        self.config, self.inner, self.memory_bytes = config, inner, inner.memory_bytes

    def _pairs(self, tasks: Sequence[ServiceStage]) -> list[ServiceStage]:
        c, out = self.config, []
        for task in tasks:
            pairs = task.items if task.items > 1 else c.documents
            tokens = task.tokens if task.items > 1 else pairs * (task.tokens + c.document_tokens)
            out.append(ServiceStage(task.kind, tokens=min(tokens, pairs * c.max_tokens), items=pairs))
        return out

    def work(self, tasks: Sequence[ServiceStage]) -> Work:
        return self.inner.work(self._pairs(tasks))

    def outside(self, tasks: Sequence[ServiceStage]) -> list[str]:
        """Return the features in which the model's prefill leaves its measured range."""
        outside = getattr(self.inner, "outside", None)
        return [] if outside is None else outside(self._pairs(tasks))

    def costs(self, tasks: Sequence[ServiceStage]) -> list[PhaseCost]:
        """Return the phases of the model's prefill, or one phase of documents."""
        return self.inner.costs(self._pairs(tasks))  # type: ignore[attr-defined, no-any-return]
