"""Groups of engines in Kubernetes manifests, and in the Helm values of vLLM's production stack and of llm-d.

Field names as in the production stack's chart (`servingEngineSpec.modelSpec`), in llm-d's modelservice chart (`decode`,
`prefill`, `modelArtifacts`) and in Kubernetes. What may change a result and is not read is named with its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy.engine_words import EngineWords, of_container
from hermes.deploy.vllm_features import FEATURES
from hermes.deploy.vllm_flags import FLAGS
from hermes.errors import InputError, Verbatim

__all__ = ["Deployed", "Group", "groups_of", "is_yaml", "placed"]

ROLES = {"prefill": "prefill", "decode": "decode"}
PRODUCER = {"kv_producer": "prefill", "kv_consumer": "decode"}
WORKLOADS = {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod"}
NO_ENGINES = {
    "ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "DestinationRule", "Gateway",
    "HTTPRoute", "InferenceModel", "InferenceObjective", "InferencePool", "Ingress", "Namespace", "NetworkPolicy",
    "PersistentVolume", "PersistentVolumeClaim", "PodDisruptionBudget", "PodMonitor", "Role", "RoleBinding", "Route",
    "Secret", "Service", "ServiceAccount", "ServiceMonitor", "StorageClass", "PriorityClass", "ResourceClaimTemplate"}
# fields of modelSpec[] that do not change when a token is computed
BESIDE_SPEC = {
    "affinity", "annotations", "chatTemplate", "chatTemplateConfigMap", "containerSecurityContext", "enabled",
    "enableTool", "env", "extraPorts", "extraVolumeMounts", "extraVolumes", "hf_token", "imagePullPolicy",
    "imagePullSecret", "imagePullSecrets", "initContainer", "labels", "limitCPU", "limitMemory", "name", "nodeName",
    "nodeSelector", "nodeSelectorTerms", "podAnnotations", "podLabels", "priorityClassName", "pvcAccessMode",
    "pvcLabels", "pvcMatchLabels", "pvcStorage", "requestCPU", "requestGPUType", "requestMemory", "resources",
    "runtimeClassName", "schedulerName", "securityContext", "serviceAccountName", "shmSize", "storageClass",
    "tolerations", "toolCallParser"}
READ_SPEC = {"enableLoRA", "lmcacheConfig", "modelURL", "replicaCount", "repository", "requestGPU", "tag",
             "vllmConfig"}


@dataclass
class Group:
    """Equal engines.

    Args:
        count: Replicas.
        role: `both`, `prefill` or `decode`.
        at: Where they are written, for messages.
    """

    name: str
    count: int
    role: str
    engine: EngineWords
    at: Node


@dataclass
class Deployed:
    """Deployments in a file.

    Args:
        groups: Engines.
        not_modelled, unknown: Fields with their lines that may change a result.
        router: `round_robin` where the file asks for it, else None.
    """

    groups: list[Group] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    router: str | None = None


def is_yaml(text: str) -> bool:
    """Whether a text is a manifest or Helm values, and not a command."""
    return re.search(r"(?m)^(apiVersion|kind|servingEngineSpec|modelArtifacts|decode|prefill)\s*:", text) is not None


def groups_of(text: str, file: str | None) -> Deployed:
    """Read all documents of a file. Raises `InputError` for one without engines."""
    found = Deployed()
    documents = parse_documents(text, file)
    for document in documents:
        _read(document, found)
    if not found.groups:
        at = documents[0].mark if documents else None
        raise InputError(Verbatim("no engine of vLLM: neither a workload with a container that starts it, nor Helm "
                                  "values with servingEngineSpec.modelSpec, or with decode and prefill"),
                         file=file, line=at.line if at else None)
    roles = {group.role for group in found.groups}
    for group in found.groups:   # decode engines that no engine prefills for serve whole requests
        if {"prefill", "decode"} - roles:
            group.role = "both"
    names: dict[str, int] = {}
    for group in found.groups:
        names[group.name] = names.get(group.name, 0) + 1
        group.name += "" if names[group.name] == 1 else f"-{names[group.name]}"
    return found


def _read(document: Node, found: Deployed) -> None:
    kind = _text(document, "kind")
    if _at(document, "servingEngineSpec") is not None:
        _production_stack(document, found)
    elif _text(document, "apiVersion") is None and (_at(document, "decode") or _at(document, "modelArtifacts")):
        _modelservice(document, found)
    elif kind == "List":
        for item in _items(document, "items"):
            _read(item, found)
    elif kind in WORKLOADS:
        _workload(document, found)
    elif kind == "LeaderWorkerSet":
        _leader_worker_set(document, found)
    elif kind in ("HorizontalPodAutoscaler", "ScaledObject", "VariantAutoscaling"):
        found.not_modelled.append(_named(kind, document))
    elif kind is None or kind not in NO_ENGINES:
        what = "a document without kind" if kind is None else f"{kind} {_text(document, 'metadata', 'name') or ''}"
        found.unknown.append(_named(what.strip(), document))


def _workload(document: Node, found: Deployed) -> None:
    spec = _at(document, "spec")
    pod = document if _text(document, "kind") == "Pod" else _at(document, "spec", "template")
    count = _whole(spec, "replicas", 1)
    if pod is not None and count:
        _pod(document, pod, count, {}, found)


def _leader_worker_set(document: Node, found: Deployed) -> None:
    """Read a group of pods that serve as one engine: its leader starts vLLM, else its only template."""
    template = _at(document, "spec", "leaderWorkerTemplate")
    pod = _at(template, "leaderTemplate") or _at(template, "workerTemplate")
    if pod is not None and (count := _whole(_at(document, "spec"), "replicas", 1)):
        size = _whole(template, "size", 1)
        _pod(document, pod, count, {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"}, found, size)


def _pod(document: Node, pod: Node, count: int, env: dict[str, str], found: Deployed, pods: int = 1) -> None:
    name = _text(document, "metadata", "name") or "llm"
    role = _text(pod, "metadata", "labels", "llm-d.ai/role") or _text(document, "metadata", "labels", "llm-d.ai/role")
    for container in _items(_at(pod, "spec"), "containers"):
        engine = _container(container, env, pods=pods)
        if engine is not None:
            found.groups.append(Group(name, count, ROLES.get(role or "", _role(engine)), engine, container))


def _container(container: Node, env: dict[str, str], before: tuple[str, ...] = (), pods: int = 1
               ) -> EngineWords | None:
    """Read a container. before: Arguments that stand before its own; pods: How many make an engine."""
    entries = _items(container, "env")
    names = [name for entry in entries if (name := _text(entry, "name")) is not None]
    known = {name: value for entry in entries
             if (name := _text(entry, "name")) is not None and (value := _text(entry, "value")) is not None}
    image = _text(container, "image")
    with placed(container):
        engine = of_container(image, _texts(container, "command"), [*before, *_texts(container, "args")],
                              {**env, **known}, names)
    if engine is not None:
        gpus = _gpus(container)
        engine.gpus = None if gpus is None else gpus * pods
    return engine


def _gpus(container: Node) -> int | None:
    limits = _at(container, "resources", "limits") or _at(container, "resources", "requests")
    for name, node in (limits.value if limits is not None and isinstance(limits.value, dict) else {}).items():
        if name.endswith("/gpu") and str(node.value).isdecimal():
            return int(str(node.value))
    return None


def _role(engine: EngineWords) -> str:
    text = " ".join(engine.words)
    return next((role for name, role in PRODUCER.items() if name in text), "both")


def _production_stack(document: Node, found: Deployed) -> None:
    engine = _at(document, "servingEngineSpec")
    if _at(engine, "enableEngine") is not None and _at(engine, "enableEngine").value is False:  # type: ignore[union-attr]
        return
    for spec in _items(engine, "modelSpec"):
        enabled = _at(spec, "enabled")
        if enabled is None or enabled.value is not False:
            _model_spec(spec, found)
    routing = _at(document, "routerSpec", "routingLogic")
    if routing is not None and routing.value == "roundrobin":
        found.router = "round_robin"
    elif routing is not None:
        found.not_modelled.append(_named(f"routingLogic {routing.value}", routing))
    cache = _at(document, "cacheserverSpec")
    if cache is not None and cache.value:
        found.not_modelled.append(_named("cacheserverSpec", cache))


def _model_spec(spec: Node, found: Deployed) -> None:
    model = _text(spec, "modelURL")
    if model is None:
        raise spec.mark.error("modelURL: the model's name at Hugging Face", Verbatim("nothing"), field="modelSpec")
    words, config = [model], _at(spec, "vllmConfig")
    for name, node in _fields(config):
        words += _config_words(name, node, config, found)
    if config is not None and _at(config, "enablePrefixCaching") is None:
        words.append("--no-enable-prefix-caching")   # the chart's own default
    if (lora := _at(spec, "enableLoRA")) is not None and lora.value is True:
        words.append("--enable-lora")
    words += _texts(config, "extraArgs")
    image = ":".join(filter(None, (_text(spec, "repository"), _text(spec, "tag"))))
    names = [text for entry in _items(spec, "env") if (text := _text(entry, "name")) is not None]
    engine = of_container(image or None, ["vllm", "serve"], words, {}, names)
    assert engine is not None
    engine.gpus = _whole(spec, "requestGPU", 0) or None
    for name, node in _fields(spec):
        if name == "keda" and _on(node, "enabled"):
            found.not_modelled.append(_named("keda (autoscaling)", node))
        elif name == "lmcacheConfig" and _on(node, "enabled"):
            found.not_modelled.append(_named("lmcacheConfig", node))
        elif name not in BESIDE_SPEC | READ_SPEC | {"keda", "raySpec"}:
            found.unknown.append(_named(f"modelSpec.{name}", node))
    role = PRODUCER.get(_text(spec, "lmcacheConfig", "kvRole") or "", "both")
    if (count := _whole(spec, "replicaCount", 1)):
        found.groups.append(Group(_text(spec, "name") or "llm", count, role, engine, spec))


def _config_words(name: str, node: Node, config: Node | None, found: Deployed) -> list[str]:
    """Return the flag of a key of `vllmConfig`: its name in small letters with dashes."""
    flag = re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", name).lower()
    if name == "extraArgs":
        return []
    if name in ("v0", "v1"):
        if name == "v0" and str(node.value) == "1":
            found.not_modelled.append(_named("vllmConfig.v0", node))
        return []
    if flag in FLAGS or flag in FEATURES or flag in ("dtype", "kv-cache-dtype", "quantization"):
        if isinstance(node.value, bool):
            return [f"--{flag}" if node.value else f"--no-{flag}"]
        if isinstance(node.value, dict | list):
            return [f"--{flag}", json.dumps(node.plain())]
        return [] if node.value is None or (node.value == 0 and flag == "max-loras") else [f"--{flag}", str(node.value)]
    if name in ("runner", "convert") and node.value in ("", None, "auto", "generate"):
        return []
    if name != "prometheusMultiprocDir":
        found.unknown.append(_named(f"vllmConfig.{name}", node))
    return []


def _modelservice(document: Node, found: Deployed) -> None:
    uri, name = _text(document, "modelArtifacts", "uri") or "", _text(document, "modelArtifacts", "name")
    model = uri.removeprefix("hf://").strip('"') if uri.startswith("hf://") and "{{" not in uri else name
    for role, usual in (("decode", 1), ("prefill", 0)):
        side = _at(document, role)
        if side is None or ((create := _at(side, "create")) is not None and create.value is False):
            continue
        count, parallel = _whole(side, "replicas", usual), _at(side, "parallelism")
        if _on(_at(side, "autoscaling"), "enabled"):
            found.not_modelled.append(_named(f"{role}.autoscaling", _at(side, "autoscaling")))
        tensor, workers = _whole(parallel, "tensor", 1), _whole(parallel, "workers", 1)
        local = _whole(parallel, "dataLocal", _whole(parallel, "data", 1) // max(workers, 1))
        data = _whole(parallel, "data", local * workers)
        env = {"TP_SIZE": str(tensor), "DP_SIZE": str(data), "DP_SIZE_LOCAL": str(local), "LWS_WORKER_INDEX": "0"}
        for container in _items(side, "containers") if count else ():
            before: tuple[str, ...] = ()
            if _text(container, "modelCommand") in ("vllmServe", "imageDefault"):
                if model is None:
                    raise container.mark.error("modelArtifacts.name: the model's name at Hugging Face",
                                               Verbatim("nothing"), field=role)
                before = ("vllm", "serve", model, *(("--tensor-parallel-size", str(tensor)) if tensor > 1 else ()),
                          *(("--data-parallel-size", str(data)) if data > 1 else ()))
            engine = _container(container, env, before, max(workers, 1))
            if engine is not None:
                found.groups.append(Group(role, count, role, engine, container))


@contextmanager
def placed(node: Node) -> Iterator[None]:
    """Give errors that name no file the place of a node."""
    try:
        yield
    except InputError as error:
        if error.file is not None or node.mark.file is None:
            raise
        raise node.mark.error(error.expected, error.found, field=error.field, suggestion=error.suggestion) from None


def _named(what: str, node: Node | None) -> str:
    line = None if node is None else (node.key or node.mark).line
    return what if line is None else f"{what} (line {line})"


def _on(node: Node | None, key: str) -> bool:
    child = _at(node, key)
    return child is not None and child.value is True


def _at(node: Node | None, *keys: str) -> Node | None:
    for key in keys:
        node = None if node is None else node.child(key)
    return node


def _text(node: Node | None, *keys: str) -> str | None:
    """Return a scalar as text; None if it is missing or empty."""
    found = _at(node, *keys)
    if found is None or found.value is None or isinstance(found.value, dict | list):
        return None
    return str(found.value).lower() if isinstance(found.value, bool) else str(found.value)


def _texts(node: Node | None, key: str) -> list[str]:
    found = _at(node, key)
    if found is None or found.value is None:
        return []
    if not isinstance(found.value, list) or any(isinstance(item.value, dict | list) for item in found.value):
        raise found.mark.error("a list of words", Verbatim("something else"), field=key)
    return ["" if item.value is None else str(item.value) for item in found.value]


def _items(node: Node | None, key: str) -> list[Node]:
    found = _at(node, key)
    if found is None or found.value is None:
        return []
    if not isinstance(found.value, list):
        raise found.mark.error("a list", Verbatim("something else"), field=key)
    return found.value


def _fields(node: Node | None) -> Iterator[tuple[str, Node]]:
    if node is not None and isinstance(node.value, dict):
        yield from node.value.items()


def _whole(node: Node | None, key: str, default: int) -> int:
    found = _at(node, key)
    if found is None or found.value is None:
        return default
    text = str(found.value)
    if not text.isdecimal() or len(text) > 6:
        raise found.mark.error("a whole number from 0 to 999999", found.value, field=key)
    return int(text)
