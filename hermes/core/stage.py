"""Stages: the work that pipelines request from clients.

A stage names its kind, the model that must serve it ("" for the request's own), and its amount of work. A stage that an
LLM engine serves is a `hermes.core.generation.Generation` (pipelines call it `Generate`). Everything else is a
`ServiceStage`, with tokens, items (queries, documents) and the `options` that its service reads. The input of a stage
may be on another client: `inputs` lists the bytes that come from the client of an earlier stage, and the network moves
them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hermes.compiled import check_overrides, mypyc_attr
from hermes.core.block_hashes import PromptContent
from hermes.errors import InputError

if TYPE_CHECKING:
    from hermes.core.client import Client
    from hermes.core.request import Request

__all__ = ["AnyOf", "ServiceStage", "Stage", "check_count"]

_NOTHING: Mapping[str, Any] = {}   # option values depend on the service: numbers, texts, lists


@mypyc_attr(allow_interpreted_subclasses=True)
class Stage:
    """One piece of work of a request. Defaults live on the class: most fields are set late, or never.

    Times are in nanoseconds, -1 until known.

        kind: Kind of work.
        model: Model that must serve it ("" for the request's own).
        priority: Lower is more urgent.
        inputs: (earlier stage, bytes) pairs that must arrive at its client before it starts.
        request: Its request; set at dispatch.
        done, client: Whether it has been served, and by which client.
        detached: Whether the pipeline started it and went on (`request.start`).
        background: Whether the pipeline started it and has not waited for it since.
        content: What its tokens share with others (`hermes.core.block_hashes`); None for nothing.
        prompt_tokens: Tokens that it reads.
        cached_tokens: How many of them were found in a cache or a store of KV.
        overlap: (layers, seconds of prefill) during which the KV that it found may still arrive.
        arrival_order: Unique in a simulation; breaks ties of priority, names content that is not shared.
        assigned_ns: When it was assigned to its client.
        start_ns: When its client started it: for a sequence, the start of the first step that computes it.
        original: The pipeline's stage, if this is the part of it that a second client serves, an attempt of a gateway,
            or an `Embedding`.
        attempt: Number of the attempt that it belongs to; -1 without a gateway.
        gateway: Number of the gateway that its call goes through, where there are several.
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
    prompt_tokens = 0
    cached_tokens = 0
    overlap: tuple[int, float] | None = None
    arrival_order = 0
    assigned_ns = -1
    start_ns = -1
    original: Stage | None = None
    attempt = -1
    gateway = 0

    def __init_subclass__(cls) -> None:
        check_overrides(cls)

    def size(self, load: str) -> int:
        """Return what it adds to a load of a client (`hermes.core.client.LOADS`): the tokens that it reads."""
        return self.prompt_tokens


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
        self.prompt_tokens = tokens
        self.items = items
        self.model = model
        self.priority = priority
        self.inputs = inputs
        self.options = options

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
