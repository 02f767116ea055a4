"""The nodes of a graph: what YAML says about a generation, a loop, and a stage that any other client serves."""

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
_HARMLESS: dict[str, object] = {"weight": 1.0, "again": 0.0, "max_times": 1}   # as if they were left out


def limited(name: str, value: int) -> int:
    """An amount, if it is one that its field may be; `InputError` if not."""
    low, high = _LIMITS.get(name, (0, value))
    if not low <= value <= high:
        raise InputError(f"{low} to {high} {name}", value, field=name)
    return value


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_NAMES = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})


class _Node(ConfigModel):
    """What every node says."""

    kind: Annotated[str, Field(min_length=1, max_length=200)]
    """`generate`, `loop`, or a kind of stage that a client serves (`embed`, `retrieve`, ...)."""
    after: Annotated[list[str], BeforeValidator(_names), _NAMES] = Field(default_factory=list)
    """Nodes that have to be done before: a name, or a list of them."""
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How often it runs at all; what comes after it does not depend on it."""
    choice: Annotated[str, Field(max_length=200)] = ""
    """Of all nodes with this label, one runs."""
    weight: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """How often it is the one, relative to the others with its label; 1 where left out."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_fields_of_other_kinds(cls, data: Any) -> Any:
        """A field of another kind that says what holds without it does no harm: files once had them all."""
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
        """`InputError` for a field that means nothing unless another is given as well."""
        if getattr(self, field) not in (None, _HARMLESS[field]) and getattr(self, other) in (None, ""):
            raise InputError(f"`{field}` with `{other}` only", getattr(self, field), field=field)

    @property
    def share(self) -> float:
        """Its weight among the nodes with its label."""
        return 1.0 if self.weight is None else self.weight


class StageNode(_Node):
    """A node that is one stage, or several copies of it."""

    amount_fields: ClassVar[tuple[str, ...]] = ("input_bytes", "copies")
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model that serves it; the workload's where left out."""
    background: bool = False
    """Whether the request is complete without it (a write-back); nothing can come after it."""
    input_bytes: str | int | float = 0
    """Bytes that come from the client of each node it comes after, over the network; from that of the `kv` node, what
    it found."""
    copies: str | int | float = 1
    """How many of it run side by side."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What else the service reads: `nprobe`, `top_k`, ..."""

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
        """Its amounts, by the names of their fields, to be called with what is known of a request."""
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
    """Answers side by side that share the prompt's KV; it is done with the last of them."""
    branch_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How far the lengths of its branches lie from `output`: 0.3 is uniform from 0.7 to 1.3 of it."""
    kv: Annotated[str, Field(max_length=200)] = ""
    """The `fetch_kv` node whose tokens need no prefill."""

    @model_validator(mode="after")
    def _check_spread(self) -> Self:
        if self.branch_spread and self.branches == 1:
            raise InputError("several branches for a spread among them", self.branches, field="branch_spread")
        return self


class ServiceNode(StageNode):
    """A stage of any other kind: whatever a client serves."""

    amount_fields: ClassVar[tuple[str, ...]] = (*StageNode.amount_fields, "tokens", "items")
    kind: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra={"not": {"enum": ["generate", "loop"]}})]
    """Kind of stage, as the client that serves it calls it: `embed`, `retrieve`, ..."""
    tokens: str | int | float = "prompt"
    """Tokens it reads, e.g. `prompt` or `20 * 512`."""
    items: str | int | float = 1
    """Queries or documents."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind in ("prefill", "decode"):
            raise InputError("`generate`: clients that only prefill or decode take their part of it", self.kind,
                             field="kind")
        return self


class LoopNode(_Node):
    """A graph of its own that runs again and again."""

    kind: Literal["loop"]
    stages: Annotated[dict[str, Node], Field(min_length=1)]
    """The graph that it repeats."""
    max_times: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Its rounds at most; 1 where left out."""
    again: Annotated[float, Field(ge=0, le=1)] | None = None
    """How often it goes round once more; never where left out."""

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
"""A node of a graph: its kind says which."""
LoopNode.model_rebuild()


@cache
def _defaults() -> dict[str, Any]:
    """The fields of all kinds, and what holds where one is left out."""
    fields = {name: field for cls in (GenerateNode, LoopNode, ServiceNode) for name, field in cls.model_fields.items()}
    return {name: {} if name == "stages" else field.get_default(call_default_factory=True)
            for name, field in fields.items()}


class GraphNodes(ConfigModel):
    """The nodes of a graph, by name."""

    stages: Annotated[dict[str, Node], Field(min_length=1)]
    """The nodes, by name."""
