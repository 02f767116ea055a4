"""Objects of clusters as parts of a scenario: EndpointPickerConfig, HTTPRoute, HorizontalPodAutoscaler, ScaledObject.

Each object becomes one key: the router `llm_d`, the gateway, or an autoscaler. A field that is not modelled is refused
with its line. Fields without an effect on timing are in the tables of each reader; no other field is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy.objects_fields import BESIDE, duration_of, fields_of, items_of, node_at, text_of, whole_of
from hermes.deploy.objects_find import PICKER, embedded
from hermes.deploy.objects_scale import read_hpa, read_keda
from hermes.deploy.picker import Check, read_picker
from hermes.errors import InputError, Verbatim

__all__ = ["ObjectsRead", "parts_of", "read_objects"]

VERSIONS = {PICKER: ("inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1"),
            "HTTPRoute": ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"),
            "HorizontalPodAutoscaler": ("autoscaling/v2",), "ScaledObject": ("keda.sh/v1alpha1",)}


BY = frozenset((
    "ConfigMap", "Service", "ServiceAccount", "Secret", "Namespace", "Role", "RoleBinding", "ClusterRole",
    "ClusterRoleBinding", "Gateway", "GatewayClass", "InferencePool", "Deployment", "PodMonitor", "ServiceMonitor",
    "PodDisruptionBudget", "NetworkPolicy"))
"""Kinds of objects that stand by a picker and do not change what it chooses; engines are the scenario's."""


@dataclass
class ObjectsRead:
    """What the objects of a file set.

    Args:
        parts: Keys of a scenario: `router`, `gateway`, `autoscaler`.
        notes: What the user should know.
        checks: Raise `InputError` for clients among which the picker would choose otherwise.
    """

    parts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


def parts_of(text: str, file: str | None) -> dict[str, Any]:
    """Return the keys that the objects of a file set: `router`, `gateway`, `autoscaler`."""
    return read_objects(text, file).parts


def read_objects(text: str, file: str | None) -> ObjectsRead:
    """Read the objects of a file; a picker may lie in another object, or in Helm values."""
    readers = {"HTTPRoute": ("gateway", _route), "HorizontalPodAutoscaler": ("autoscaler", read_hpa),
               "ScaledObject": ("autoscaler", read_keda)}
    read, flow, there = ObjectsRead(), dict[str, Any](), set[str]()
    documents = parse_documents(text, file)
    others = [document for document in documents if _stands_by(document, text)]
    if len(others) < len(documents):
        kinds = sorted({str(node.value) for one in others if (node := node_at(one, "kind")) is not None})
        read.notes += [f"not read: {', '.join(kinds)}"] if kinds else []
        documents = [one for one in documents if one not in others]
    for document in documents:
        document, kind = _known(document, text, read.notes)
        text_of(node_at(document, "apiVersion"), "apiVersion", document, VERSIONS[kind])
        key = "router" if kind == PICKER else readers[kind][0]
        if key in there:
            raise document.mark.error(Verbatim(f"a second object for `{key}`; give one of them"), field="kind")
        there.add(key)
        if kind != PICKER:
            read.parts[key] = readers[kind][1](document)
            continue
        picker = read_picker(document)
        read.parts["router"], flow = picker.router, picker.gateway
        read.notes += picker.notes
        read.checks += picker.checks
    if not read.parts:
        raise InputError(f"one of {', '.join(VERSIONS)}", Verbatim("no object"), file=file)
    if flow:
        read.parts["gateway"] = read.parts.get("gateway", {}) | flow
    return read


def _stands_by(document: Node, text: str) -> bool:
    """Whether an object is of a kind without an effect on placements, and holds no picker."""
    kind = node_at(document, "kind")
    return kind is not None and str(kind.value) in BY and embedded(document, text) is None


def _known(document: Node, text: str, notes: list[str]) -> tuple[Node, str]:
    """Return a document of a known kind, and its kind: itself, or the picker in it."""
    kind = node_at(document, "kind")
    if kind is not None and isinstance(kind.value, str) and kind.value in VERSIONS:
        return document, kind.value
    found = embedded(document, text)
    if found is None:
        raise (kind or document).mark.error(f"one of {', '.join(VERSIONS)}; remove other objects",
                                            kind.plain() if kind else Verbatim("none"), field="kind")
    notes.append(f"the {PICKER} at {found[0]} is read, and nothing else of "
                 f"{'this file' if kind is None else f'the {kind.value}'}")
    return found[1], PICKER


# -- routes ----------------------------------------------------------------------------------------------------------

def _rule(node: Node, path: str) -> dict[str, Node]:
    """Return the fields of a rule; refuse those that send some requests elsewhere."""
    rule = fields_of(node, path, ("timeouts", "retry", "matches", "backendRefs"), ("name",))
    matches = items_of(rule.get("matches"), f"{path}.matches")
    for place, match in enumerate(matches):
        here = f"{path}.matches.{place}"
        fields_of(match, here, ("path", "method"))   # headers and parameters narrow it to requests that have them
        if match.plain() != matches[0].plain():
            raise match.mark.error(Verbatim("differs from the first match; one is modelled, so keep the one of the "
                                            "workload's requests"), field=here)
    backends = items_of(rule.get("backendRefs"), f"{path}.backendRefs")
    if len(backends) > 1:
        raise backends[1].mark.error(Verbatim("a second backend gets a share of the requests, which is not modelled; "
                                              "keep one"), field=f"{path}.backendRefs.1")
    for backend in backends:
        here = f"{path}.backendRefs.0"
        weight = fields_of(backend, here, ("weight",), ("group", "kind", "name", "namespace", "port")).get("weight")
        if weight is not None and whole_of(weight, f"{here}.weight") == 0:
            raise weight.mark.error("a weight from 1 on (0 sends it no request)", 0, field=f"{here}.weight")
    return rule


def _plain(rule: dict[str, Node]) -> dict[str, Any]:
    return {key: node.plain() for key, node in rule.items()}


def _route(document: Node) -> dict[str, Any]:
    spec = fields_of(fields_of(document, "", ("spec",), BESIDE).get("spec"), "spec", ("rules",),
                   ("parentRefs", "hostnames"))
    rules = items_of(spec.get("rules"), "spec.rules")
    if not rules:
        raise document.mark.error("a rule", Verbatim("none"), field="spec.rules")
    path = "spec.rules.0"
    rule = _rule(rules[0], path)
    for place, other in enumerate(rules[1:], start=1):
        own = _rule(other, f"spec.rules.{place}")
        if _plain(own) != _plain(rule):
            raise other.mark.error(Verbatim("differs from the first rule; one rule is modelled, so keep the one of the "
                                            "workload's requests"), field=f"spec.rules.{place}")
    gateway: dict[str, Any] = {}
    times = fields_of(rule.get("timeouts"), f"{path}.timeouts", ("request", "backendRequest"))
    retry = fields_of(rule.get("retry"), f"{path}.retry", ("attempts", "backoff", "codes"))
    if "retry" in rule and "attempts" not in retry:
        raise rule["retry"].mark.error(Verbatim("is missing; gateways differ in it, so write it"),
                                       field=f"{path}.retry.attempts")
    inner: dict[str, Any] = {}
    if "request" in times and (limit := duration_of(times["request"], f"{path}.timeouts.request")):
        gateway["timeout"] = limit
    if "backendRequest" in times and (limit := duration_of(times["backendRequest"], f"{path}.timeouts.backendRequest")):
        inner["per_try"] = limit
    if retry:
        inner["retries"] = whole_of(retry["attempts"], f"{path}.retry.attempts")
        if "backoff" in retry:
            base = duration_of(retry["backoff"], f"{path}.retry.backoff") or 0.0
            inner |= {"backoff": base, "max_backoff": 10 * base}   # Envoy: ten times the base
    codes = [whole_of(code, f"{path}.retry.codes") for code in items_of(retry.get("codes"), f"{path}.retry.codes")]
    for code in codes:
        if code not in (429, 502, 503, 504, 529):
            raise retry["codes"].mark.error("statuses among 429, 502, 503, 504, 529", code, field=f"{path}.retry.codes")
    if codes and set(codes) != {502, 503, 504}:
        return gateway | {"retry": {"kind": "envoy", **inner, "retry_on": codes}}
    return gateway | inner
