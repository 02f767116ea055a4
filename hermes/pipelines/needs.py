"""What a pipeline says that nobody would read, and what it asks of clients and workload: checked before the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hermes.core.stage import check_count
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.pipelines.base import GENERATIONS, asked
from hermes.pipelines.graph import Graph, GraphPipeline, Node

__all__ = ["check_fields", "check_options", "check_past", "nobody_serves", "stages_of"]

_ANY_NODE = ("kind", "after", "choice", "weight", "probability")
_ANY_STAGE = (*_ANY_NODE, "model", "input_bytes", "copies", "background", "options")
_READ = {
    "loop": (*_ANY_NODE, "stages", "max_times", "again"),
    "generate": (*_ANY_STAGE, "prompt", "output", "branches", "branch_spread", "kv"),
}
_READ_ELSEWHERE = (*_ANY_STAGE, "tokens", "items")
_TOGETHER = (("weight", "choice", 1.0), ("again", "max_times", 0.0), ("max_times", "again", 1))
"""Fields that mean nothing unless another is given as well, and what holds without them."""

_USUAL = {field: usual for field, _other, usual in _TOGETHER}


def check_fields(graph: Graph) -> None:
    """Raise `InputError` for a field that was given to a node and that a node like it does not read.

    One that says what would hold without it does no harm: a scenario written out in full has them all.
    """
    for name, node in graph.nodes.items():
        with inside(name):
            _check_node(node, first=not node.after and not graph.path)
        if node.kind == "loop":
            with inside(f"{name}.stages"):
                check_fields(graph.loops[name])


def _check_node(node: Node, *, first: bool) -> None:
    """The fields of one node; `first`: it starts with the request."""
    if node.kind in ("prefill", "decode"):
        raise InputError("`generate`: clients that only prefill or decode take their part of it", node.kind,
                         field="kind")
    read = _READ.get(node.kind, _READ_ELSEWHERE)
    for field, spec in Node.model_fields.items():
        value = getattr(node, field)
        if field not in read and value not in (spec.get_default(call_default_factory=True), _USUAL.get(field)):
            meant = suggest(node.kind, _READ)
            if meant and field in _READ[meant]:   # a mistyped kind
                raise InputError(f"{meant!r} for a stage with `{field}`", node.kind, field="kind", suggestion=meant)
            raise InputError(f"no `{field}`: {node.kind!r} reads {', '.join(read)}", value, field=field)
    for field, other, usual in _TOGETHER:
        if getattr(node, field) not in (None, usual) and getattr(node, other) in (None, ""):
            raise InputError(f"`{field}` with `{other}` only", getattr(node, field), field=field)
    if first and node.input_bytes != 0:
        raise InputError("a node before it that sends them (`after`)", node.input_bytes, field="input_bytes")


def check_options(pipeline: Any, name: str, serving: Callable[[str, str], list[Any]]) -> None:
    """Raise `InputError` for an option that nobody reads who may serve its stage, and for a value that is none.

    A graph says its options at its nodes; a hand-written pipeline those that have to be read as `stage_options`, kind
    of stage -> name -> value, None for one that depends on the request. What else its stages carry is for whoever wants
    it. name: what results call the pipeline; serving: (kind of stage, model that it names) -> the clients that may
    serve it.
    """
    if isinstance(pipeline, GraphPipeline):
        for where, node in stages_of(pipeline.graph):
            if node.options:
                with inside(f"pipelines.{pipeline.name}.stages.{where}"):
                    _check_given(node.kind, node.options, serving(node.kind, node.model))
        return
    needed = getattr(pipeline, "stage_options", {})
    for kind, model in asked(pipeline):
        clients = serving(kind, model)
        known = _read_by(clients, kind)
        for option, value in needed.get(kind, {}).items():
            if option not in known:
                found = Verbatim(f"{clients[0].name!r}, which reads {', '.join(sorted(known)) or 'no options'}")
                raise InputError(
                    f"a client that reads option {option!r} of {kind!r} stages, which pipeline {name!r} gives", found,
                    field="clients",
                )
            least = known[option]
            if value is not None and least is not None:
                with inside(f"{name}.{kind}"):
                    check_count(option, value, least)


def _read_by(clients: list[Any], kind: str) -> dict[str, int | None]:
    """The options that any of these clients reads of such a stage, and the least integer each may be."""
    known: dict[str, int | None] = {}
    for client in clients:
        known |= getattr(client, "stage_options", {}).get(kind, {})
    return known


def _check_given(kind: str, options: Mapping[str, Any], clients: list[Any]) -> None:
    """The options at one node of a graph."""
    known = _read_by(clients, kind)
    for name, value in options.items():
        if name not in known:
            read = f"one of {', '.join(sorted(known))}" if known else "no options"
            raise InputError(f"{read}: what {clients[0].name!r} reads of {kind!r}", name, field=f"options.{name}",
                             suggestion=suggest(name, known))
        least = known[name]
        if least is not None:
            check_count(name, value, least)


def check_past(pipeline: GraphPipeline) -> None:
    """Raise `InputError` for a graph that reads `past`; for workloads that bring no contexts along."""
    for where, node in stages_of(pipeline.graph):
        for name, amount in node.amounts.items():
            if "past" in amount.names:
                raise InputError(
                    f"contexts, whose tokens {where}.{name} of pipeline {pipeline.name!r} reads (`past`)", None,
                    field="contexts",
                )


def nobody_serves(clients: list[Any], kind: str, model: str, platform: str | None = None) -> InputError:
    """The error where no client serves a kind of stage (of a model, on a platform): says what they do serve."""
    where = "" if platform is None else f" on platform {platform!r}"
    of = f" of model {model!r}" if model or kind in GENERATIONS else ""
    same = [client for client in clients if kind in client.stages]
    if same:
        found = f"{kind!r} on " + ", ".join(dict.fromkeys(f"{c.name!r} ({c.model or 'any model'})" for c in same))
    else:
        found = "clients for " + ", ".join(sorted({served for client in clients for served in client.stages}))
    suggestion = None if same else suggest(kind, {served for client in clients for served in client.stages})
    return InputError(f"a client that serves stage {kind!r}{of}{where}", Verbatim(found), field="clients",
                      suggestion=suggestion)


def stages_of(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Every stage with where it stands, those of loops included."""
    for name, node in graph.nodes.items():
        if node.kind == "loop":
            yield from stages_of(graph.loops[name])
        else:
            yield f"{graph.path}{name}", node
