"""Objects of clusters as parts of a scenario: EndpointPickerConfig, HTTPRoute, HorizontalPodAutoscaler, ScaledObject.

Each object becomes one key: the router `llm_d`, the gateway, or an autoscaler. A field that is not modelled is refused
with its line. Fields without an effect on timing are in `beside` of each model; no other field is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy.objects_find import PICKER, embedded
from hermes.deploy.objects_route import HTTPRoute
from hermes.deploy.objects_scale import HorizontalPodAutoscaler, ScaledObject
from hermes.deploy.options import options
from hermes.deploy.picker import Check, read_picker
from hermes.deploy.typed import Keys, read
from hermes.errors import InputError, Verbatim

__all__ = ["ObjectsRead", "read_objects"]

KINDS: dict[str, tuple[str, type[HTTPRoute | HorizontalPodAutoscaler | ScaledObject]]] = {
    "HTTPRoute": ("gateway", HTTPRoute), "HorizontalPodAutoscaler": ("autoscaler", HorizontalPodAutoscaler),
    "ScaledObject": ("autoscaler", ScaledObject)}
"""Kind of an object -> the key of a scenario that it becomes, and its model."""
BY = frozenset(options("kubernetes", "by_pickers"))
"""Kinds of objects that stand by a picker and do not change what it chooses; engines are the scenario's."""


@dataclass
class ObjectsRead:
    """What the objects of a file set.

    Args:
        parts: Keys of a scenario: `router`, `gateway`, `autoscaler`.
        notes: What the user should know.
        checks: Raise `InputError` for clients among which the picker would choose otherwise.
    """

    parts: Keys = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


def read_objects(text: str, file: str | None) -> ObjectsRead:
    """Read the objects of a file; a picker may lie in another object, or in Helm values."""
    found, flow, there = ObjectsRead(), Keys(), set[str]()
    documents = parse_documents(text, file)
    others = [one for one in documents if (named := one.child("kind")) is not None and str(named.value) in BY
              and embedded(one, text) is None]   # no effect on placements, and no picker in it
    if len(others) < len(documents):
        kinds = sorted({str(node.value) for one in others if (node := one.child("kind")) is not None})
        found.notes += [f"not read: {', '.join(kinds)}"] if kinds else []
        documents = [one for one in documents if one not in others]
    for document in documents:
        document, kind = _known(document, text, found.notes)
        key = "router" if kind == PICKER else KINDS[kind][0]
        if key in there:
            raise document.mark.error(Verbatim(f"a second object for `{key}`; give one of them"), field="kind")
        there.add(key)
        if kind != PICKER:
            found.parts[key] = read(KINDS[kind][1], document).keys
            continue
        picker = read_picker(document)
        found.parts["router"], flow = picker.router, picker.gateway
        found.notes += picker.notes
        found.checks += picker.checks
    if not found.parts:
        raise InputError(f"one of {', '.join((PICKER, *KINDS))}", Verbatim("no object"), file=file)
    if flow:
        found.parts["gateway"] = found.parts.get("gateway", {}) | flow
    return found


def _known(document: Node, text: str, notes: list[str]) -> tuple[Node, str]:
    """Return a document of a known kind, and its kind: itself, or the picker in it."""
    kind = document.child("kind")
    if kind is not None and isinstance(kind.value, str) and kind.value in (PICKER, *KINDS):
        return document, kind.value
    found = embedded(document, text)
    if found is None:
        raise (kind or document).mark.error(f"one of {', '.join((PICKER, *KINDS))}; remove other objects",
                                            kind.plain() if kind else Verbatim("none"), field="kind")
    notes.append(f"the {PICKER} at {found[0]} is read, and nothing else of "
                 f"{'this file' if kind is None else f'the {kind.value}'}")
    return found[1], PICKER
