"""Nodes of a pipeline's graph in YAML: generations, loops, and stages of other clients."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from hermes.config import ConfigModel
from hermes.errors import InputError, suggest
from hermes.pipelines.expressions import Amount

__all__ = ["GenerateNode", "GraphNodes", "LoopNode", "Node", "ServiceNode", "StageNode", "limited"]

MAX_COPIES = 1024
_LIMITS = {"copies": (0, MAX_COPIES), "branches": (1, MAX_COPIES), "prompt": (1, 2**53), "output": (1, 2**53)}
_HARMLESS: dict[str, object] = {"weight": 1.0, "again": 0.0, "max_times": 1}   # equal to a missing value


def limited(name: str, value: int) -> int:
    """Return an amount within the limits of its field; raises `InputError` otherwise."""
    low, high = _LIMITS.get(name, (0, value))
    if not low <= value <= high:
        raise InputError(f"{low} to {high} {name}", value, field=name)
    return value


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_NAMES = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})


class _Node(ConfigModel):
    """Fields of every node."""

    kind: Annotated[str, Field(min_length=1, max_length=200)]
    """Kind of stage: `generate`, `loop`, or a kind that a client serves (`embed`, `retrieve`, ...)."""
    after: Annotated[list[str], BeforeValidator(_names), _NAMES] = Field(default_factory=list)
    """Nodes that must be done before this one: a name, or a list of names."""
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Probability that the node runs; the nodes after it run in any case."""
    choice: Annotated[str, Field(max_length=200)] = ""
    """Label of a choice: one of the nodes with this label runs."""
    weight: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Weight of the node among those with its label; default 1."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_fields_of_other_kinds(cls, data: Any) -> Any:
        """Refuse fields of other kinds, except at their defaults: files once contained them all."""
        if not isinstance(data, dict):
            return data
        kept, kind = dict(data), data.get("kind")
        for field, usual in _defaults().items():
            if field not in data or field in cls.model_fields:
                continue
            value = kept.pop(field)
            if value in (usual, _HARMLESS.get(field)):
                continue
            meant = suggest(kind, _KINDS)
            if meant and field in _KINDS[meant].model_fields:   # a mistyped kind
                raise InputError(f"{meant!r} for a stage with `{field}`", kind, field="kind", suggestion=meant)
            raise InputError(f"no `{field}`: {kind!r} reads {', '.join(cls.model_fields)}", value, field=field)
        return kept

    @model_validator(mode="after")
    def _check_weight(self) -> Self:
        self._together("weight", "choice")
        return self

    def _together(self, field: str, other: str) -> None:
        """Raise `InputError` for a field that has no effect without another."""
        if getattr(self, field) not in (None, _HARMLESS[field]) and getattr(self, other) in (None, ""):
            raise InputError(f"`{field}` with `{other}` only", getattr(self, field), field=field)

    @property
    def share(self) -> float:
        """Weight of the node among those with its label."""
        return 1.0 if self.weight is None else self.weight


class StageNode(_Node):
    """A node of one stage, or of several copies of it."""

    amount_fields: ClassVar[tuple[str, ...]] = ("input_bytes", "copies")
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model that serves it; default: the workload's."""
    background: bool = False
    """Whether the request completes without waiting for it (a write-back). No node may come after it."""
    input_bytes: str | int | float = 0
    """Bytes sent over the network from the client of each node in `after`; the `kv` node sends the KV it found
    instead."""
    copies: str | int | float = 1
    """Number of copies that run side by side."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further options for the service: `nprobe`, `top_k`, ..."""

    _amounts: dict[str, Amount] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_amounts(self) -> Self:
        for name in self.amount_fields:
            self._amounts[name] = Amount(getattr(self, name), field=name)
            constant = self._amounts[name].constant
            if constant is not None:
                limited(name, constant)
        return self

    @property
    def amounts(self) -> dict[str, Amount]:
        """Parsed amounts of the node by field; call one with the request's values."""
        return self._amounts


class GenerateNode(StageNode):
    """A generation by an LLM client."""

    amount_fields: ClassVar[tuple[str, ...]] = (*StageNode.amount_fields, "prompt", "output", "branches")
    kind: Literal["generate"]
    prompt: str | int | float = "prompt"
    """Prompt tokens."""
    output: str | int | float = "output"
    """Output tokens."""
    branches: str | int | float = 1
    """Answers side by side that share the prompt's KV; the generation ends with the last of them."""
    branch_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Spread of the branches' lengths around `output`: 0.3 is uniform from 0.7 to 1.3 of it."""
    kv: Annotated[str, Field(max_length=200)] = ""
    """The `fetch_kv` node whose tokens the generation need not prefill."""

    @model_validator(mode="after")
    def _check_spread(self) -> Self:
        if self.branch_spread and self.branches == 1:
            raise InputError("several branches for a spread among them", self.branches, field="branch_spread")
        return self


class ServiceNode(StageNode):
    """A stage of any other kind, served by a client of that kind."""

    amount_fields: ClassVar[tuple[str, ...]] = (*StageNode.amount_fields, "tokens", "items")
    kind: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra={"not": {"enum": ["generate", "loop"]}})]
    """Kind of stage, as its client names it: `embed`, `retrieve`, ..."""
    tokens: str | int | float = "prompt"
    """Tokens that the stage reads, e.g. `prompt` or `20 * 512`."""
    items: str | int | float = 1
    """Queries or documents."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind in ("prefill", "decode"):
            raise InputError("`generate`: clients that only prefill or decode take their part of it", self.kind,
                             field="kind")
        return self


class LoopNode(_Node):
    """A graph of its own that runs repeatedly."""

    kind: Literal["loop"]
    stages: Annotated[dict[str, Node], Field(min_length=1)]
    """The graph that it repeats."""
    max_times: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Most rounds; default 1."""
    again: Annotated[float, Field(ge=0, le=1)] | None = None
    """Probability of one more round; default 0."""

    @model_validator(mode="after")
    def _check_rounds(self) -> Self:
        self._together("again", "max_times")
        self._together("max_times", "again")
        return self


_KINDS: dict[str, type[_Node]] = {"generate": GenerateNode, "loop": LoopNode}


def _tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind if kind in ("generate", "loop") else "service"


Node = Annotated[
    Annotated[GenerateNode, Tag("generate")] | Annotated[LoopNode, Tag("loop")]
    | Annotated[ServiceNode, Tag("service")],
    Discriminator(_tag),
]
"""A node of a graph; `kind` selects its type."""
LoopNode.model_rebuild()


@cache
def _defaults() -> dict[str, Any]:
    """Return the fields of all kinds, with their defaults."""
    fields = {name: field for cls in (GenerateNode, LoopNode, ServiceNode) for name, field in cls.model_fields.items()}
    return {name: {} if name == "stages" else field.get_default(call_default_factory=True)
            for name, field in fields.items()}


class GraphNodes(ConfigModel):
    """The nodes of a graph, by name."""

    stages: Annotated[dict[str, Node], Field(min_length=1)]
    """The nodes, by name."""
