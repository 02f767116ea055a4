"""Groups of engines in Kubernetes manifests, and what a file is that has none.

Workloads of Kubernetes are read here; custom resources in `custom_read`, Helm values in `helm_read`, compose files in
`compose_read`. What may change a result and is not read is named with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy import custom_read
from hermes.deploy.compose_read import read_compose
from hermes.deploy.deployed import Deployed, Group, read_container, role_of
from hermes.deploy.engine_words import ENGINES, EngineWords, other_engine
from hermes.deploy.helm_read import read_chart, read_modelservice, read_production_stack, read_runtime
from hermes.deploy.nodes import at, fields, is_off, items, named, text, texts, value, whole
from hermes.deploy.options import options
from hermes.deploy.vllm import parser
from hermes.errors import InputError, Verbatim

__all__ = ["Deployed", "Group", "groups_of", "is_yaml"]

WORKLOADS = {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod", "Rollout", "CloneSet"}
CUSTOM: dict[str, Callable[[Node, Deployed], None]] = {
    "DynamoGraphDeployment": custom_read.read_dynamo, "LLMInferenceService": custom_read.read_llm_inference_service,
    "InferenceService": custom_read.read_inference_service, "StormService": custom_read.read_storm_service,
    "RoleBasedGroup": custom_read.read_storm_service, "RoleSet": custom_read.read_storm_service,
    "RayService": custom_read.read_ray_service, "VLLMRuntime": read_runtime, "Model": custom_read.read_kubeai}
NO_ENGINES = frozenset(options("kubernetes", "no_engines"))
RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
AUTOSCALERS = ("HorizontalPodAutoscaler", "ScaledObject", "VariantAutoscaling", "PodAutoscaler")
SCALING = {"autoscaling", "autoscalingConfig", "scalingAdapter"}
OBJECTS = {"EndpointPickerConfig", "HTTPRoute", "HorizontalPodAutoscaler", "ScaledObject"}
# documents without `kind`: a key that only they have, what they are, and the command that reads them
OTHERS = (("scrape_configs", "a configuration of Prometheus", ""), ("clients", "a scenario", "hermes run"),
          ("plugins", "an EndpointPickerConfig", "hermes import objects"), ("resources", "a kustomization", ""),
          ("panels", "a dashboard of Grafana", ""), ("groups", "rules of Prometheus", ""),
          ("architectures", "the config.json of a model", "--model of hermes import"),
          ("router", "values of an endpoint picker", "hermes import objects"))
_FIRST = re.compile(r"(?:\s*(?:#.*|---.*)?\n)*(?:[\"']?[A-Za-z_][\w./-]*[\"']?[ \t]*:(?:\s|$)|[{\[]\s*[\"\n}])")


def is_yaml(document: str) -> bool:
    """Whether a text is a manifest or Helm values, and not a command."""
    return _FIRST.match(document) is not None


def groups_of(document: str, file: str | None, kind: str = "vllm") -> Deployed:
    """Read all documents of a file. kind: The engine that is asked for. Raises `InputError` for one without engines."""
    found = Deployed(file=file)
    documents = [item for whole_one in parse_documents(document, file) for item in (
        items(whole_one, "items") if text(whole_one, "kind") == "List" else [whole_one])]
    for one in documents:
        name, data = text(one, "metadata", "name") or "", at(one, "data")
        if text(one, "kind") == "ConfigMap" and data is not None:
            found.config_maps[name] = data
        elif text(one, "kind") in RUNTIMES:
            found.runtimes[name] = one
    for one in documents:
        before = len(found.groups), len(found.kinds)
        _read(one, found)
        if before == (len(found.groups), len(found.kinds)):
            found.kinds.append(f"{_a(text(one, 'kind') or 'compose file or Helm values')} without an engine")
    if not found.groups:
        first = documents[0].mark.line if documents else None
        what = f"this is {' and '.join(dict.fromkeys(found.kinds)) or 'an empty file'}"
        raise InputError(Verbatim(f"no engine of {ENGINES[kind]}: {what}"), file=file, line=first)
    names: dict[str, int] = {}
    for group in found.groups:
        names[group.name] = names.get(group.name, 0) + 1
        group.name += "" if names[group.name] == 1 else f"-{names[group.name]}"
    return found


def _read(document: Node, found: Deployed) -> None:
    kind = text(document, "kind")
    if kind in CUSTOM:
        CUSTOM[kind](document, found)
        found.not_modelled += [named(f"{key} of {text(document, 'metadata', 'name') or kind}", node)
                               for key, node in _scaling(at(document, "spec"), 3)]
    elif kind in WORKLOADS or (kind == "Service" and "knative" in (text(document, "apiVersion") or "")):
        _workload(document, found)
    elif kind == "LeaderWorkerSet":
        _leader_worker_set(document, found)
    elif kind in ("HelmRelease", "Application") and (inner := at(document, "spec", "values") or at(
            document, "spec", "source", "helm", "valuesObject")) is not None:
        _read(inner, found)
    elif kind is not None:
        _other(kind, document, found)
    elif not _values(document, found) and not any(_values(child, found) for _, child in fields(document)):
        key = next((row for row in OTHERS if at(document, row[0]) is not None), None)
        found.kinds.append("a document without `kind`" if key is None else
                           f"{key[1]}{f' ({key[2]} reads it)' if key[2] else ''}")
        if key is None:
            found.unknown.append(named("a document without kind", document))


def _values(document: Node, found: Deployed) -> bool:
    """Read a document without `kind`; return whether it is one that is known."""
    if at(document, "servingEngineSpec") is not None:
        read_production_stack(document, found)
    elif at(document, "decode", "containers") or at(document, "prefill", "containers") or at(document,
                                                                                             "modelArtifacts"):
        read_modelservice(document, found)
    elif isinstance(value(document, "services"), dict):
        read_compose(document, found)
    elif at(document, "applications") or at(document, "llm_configs"):
        custom_read.read_ray(document, found)
    elif at(document, "image", "repository") or at(document, "image", "command"):
        read_chart(document, found)
    elif isinstance(value(document, "run"), str):
        custom_read.read_sky(document, found)
    elif at(document, "model") and all(key.replace("_", "-") in parser().kinds for key, _ in fields(document)):
        found.add("llm", 1, "both", EngineWords(["--config", "this file.yaml"], files={"this file.yaml": document}),
                  document)   # settings of `vllm serve --config FILE`
    else:
        return False
    return True


def _other(kind: str, document: Node, found: Deployed) -> None:
    """Note an object that starts no engine."""
    name = text(document, "metadata", "name")
    found.kinds.append(f"{_a(kind)}{' (hermes import objects reads it)' if kind in OBJECTS else ''}")
    if kind in AUTOSCALERS:
        found.not_modelled.append(named(kind, document))
    elif kind not in NO_ENGINES and kind not in RUNTIMES:
        found.unknown.append(named(f"{kind} {name or ''}".strip(), document))


def _a(kind: str) -> str:
    return f"{'an' if kind[:1] in 'AEIO' else 'a'} {kind}"


def _scaling(node: Node | None, depth: int) -> Iterator[tuple[str, Node]]:
    """Yield the fields that scale engines, unless they are off."""
    for key, own in fields(node):
        if key in SCALING and own.value and not is_off(own, "enabled"):
            yield key, own
        elif depth:
            yield from _scaling(own, depth - 1)


def _workload(document: Node, found: Deployed) -> None:
    spec = at(document, "spec")
    pod = document if text(document, "kind") == "Pod" else at(document, "spec", "template")
    before, count = len(found.groups), whole(spec, "replicas", 1)
    if pod is not None:
        _pod(document, pod, count, {}, found)
    if len(found.groups) == before and count:
        words = [word for container in items(pod, "spec", "containers") for word in (
            text(container, "image") or "", *texts(container, "command"), *texts(container, "args"))]
        found.kinds.append(f"a {text(document, 'kind')} of {other_engine(words) or 'other programs'}")


def _leader_worker_set(document: Node, found: Deployed) -> None:
    """Read a group of pods that serve as one engine: its leader starts it, else its only template."""
    template = at(document, "spec", "leaderWorkerTemplate")
    pod = at(template, "leaderTemplate") or at(template, "workerTemplate")
    if pod is not None:
        size = whole(template, "size", 1)
        _pod(document, pod, whole(at(document, "spec"), "replicas", 1),
             {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"}, found, size)


def _pod(document: Node, pod: Node, count: int, env: dict[str, str], found: Deployed, pods: int = 1) -> None:
    name = text(document, "metadata", "name") or "llm"
    role = text(pod, "metadata", "labels", "llm-d.ai/role") or text(document, "metadata", "labels", "llm-d.ai/role")
    for container in items(pod, "spec", "containers"):
        engine = read_container(container, found, env, pods=pods, pod=at(pod, "spec"))
        nodes = 1 if engine is None or pods > 1 else engine.number("--nnodes", 1)
        nodes = nodes if nodes and count % nodes == 0 else 1
        if engine is not None and engine.gpus is not None:   # the replicas are the nodes of an engine
            engine.gpus *= nodes
        found.add(name, count // nodes, role_of(role), engine, container)
