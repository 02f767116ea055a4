"""Groups of engines in Helm values: vLLM's production stack, llm-d's modelservice, and the chart in vLLM's examples.

Field names as in the production stack's chart (`servingEngineSpec.modelSpec`) and its operator (`VLLMRuntime`), in
llm-d's chart (`decode`, `prefill`, `modelArtifacts`), and in vLLM's (`image.command`).
"""

from __future__ import annotations

import re

from hermes.config.yaml_document import Node
from hermes.deploy.deployed import Deployed, environment, gpus_of, read_container, words_of
from hermes.deploy.engine_words import of_container
from hermes.deploy.nodes import at, fields, is_off, is_on, items, named, text, texts, whole
from hermes.deploy.options import options
from hermes.deploy.vllm_features import FEATURES, ROLES
from hermes.deploy.vllm_flags import FLAGS
from hermes.errors import Verbatim

__all__ = ["read_chart", "read_modelservice", "read_production_stack", "read_runtime"]

# fields of modelSpec[] that do not change when a token is computed
BESIDE_SPEC = frozenset(options("production-stack", "beside"))
READ_SPEC = {"enableLoRA", "lmcacheConfig", "modelURL", "replicaCount", "repository", "requestGPU", "tag",
             "vllmConfig"}
FLAG_FIELDS = {*FLAGS, *FEATURES, "dtype", "kv-cache-dtype", "quantization"}


def read_production_stack(document: Node, found: Deployed) -> None:
    """Read the values of vLLM's production stack."""
    engine = at(document, "servingEngineSpec")
    if is_off(engine, "enableEngine"):
        return
    for spec in items(engine, "modelSpec"):
        if not is_off(spec, "enabled"):
            _model_spec(spec, found)
    routing = at(document, "routerSpec", "routingLogic")
    if routing is not None and routing.value == "roundrobin":
        found.router = "round_robin"
    elif routing is not None:
        found.not_modelled.append(named(f"routingLogic {routing.value}", routing))
    cache = at(document, "cacheserverSpec")
    if cache is not None and cache.value:
        found.not_modelled.append(named("cacheserverSpec", cache))


def _model_spec(spec: Node, found: Deployed) -> None:
    words = [_model(spec), *_config(at(spec, "vllmConfig"), found)]
    words += ["--enable-lora"] if is_on(spec, "enableLoRA") else []
    image = ":".join(filter(None, (text(spec, "repository"), text(spec, "tag"))))
    known, names = environment(spec, found)
    engine = of_container(image or None, ["vllm", "serve"], words, known, names)
    assert engine is not None
    count, gpus = whole(spec, "replicaCount", 1), whole(spec, "requestGPU", 0)
    if is_on(spec, "raySpec", "enabled"):   # a head and so many workers are one engine
        count, gpus = min(count, 1), whole(at(spec, "raySpec", "headNode"), "requestGPU", 0) + count * gpus
    engine.gpus = gpus or None
    for name, node in fields(spec):
        if name == "keda" and is_on(node, "enabled"):
            found.not_modelled.append(named("keda (autoscaling)", node))
        elif name == "lmcacheConfig" and is_on(node, "enabled"):
            found.not_modelled.append(named("lmcacheConfig", node))
        elif name not in BESIDE_SPEC | READ_SPEC | {"keda", "raySpec"}:
            found.unknown.append(named(f"modelSpec.{name}", node))
    role = ROLES.get(text(spec, "lmcacheConfig", "kvRole") or "", "both")
    found.add(text(spec, "name") or "llm", count, role, engine, spec)


def _model(spec: Node) -> str:
    model = text(spec, "modelURL")
    if model is None:
        raise spec.mark.error("modelURL: the model's name at Hugging Face", Verbatim("nothing"), field="modelSpec")
    return model


def _config(config: Node | None, found: Deployed) -> list[str]:
    """Return the flags of a `vllmConfig`: its names in small letters with dashes."""
    words = [word for name, node in fields(config) for word in _config_words(name, node, found)]
    if config is not None and at(config, "enablePrefixCaching") is None:
        words.append("--no-enable-prefix-caching")   # the chart's own default
    return words + texts(config, "extraArgs")


def _config_words(name: str, node: Node, found: Deployed) -> list[str]:
    flag = re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", name).lower()
    if name in ("extraArgs", "env", "port", "prometheusMultiprocDir", "v1"):
        return []
    if name == "v0":
        found.not_modelled += [named("vllmConfig.v0", node)] if str(node.value) == "1" else []
        return []
    if flag in FLAG_FIELDS:
        return [] if node.value in (0, "") and not isinstance(node.value, bool) else words_of(flag, node)
    if name in ("runner", "convert") and node.value in ("", None, "auto", "generate"):
        return []
    found.unknown.append(named(f"vllmConfig.{name}", node))
    return []


def read_runtime(document: Node, found: Deployed) -> None:
    """Read a `VLLMRuntime` of the production stack's operator, whole or with a prefill and a decode part."""
    name, spec = text(document, "metadata", "name") or "llm", at(document, "spec")
    parts = [(role, at(spec, "topology", role)) for role in ("prefill", "decode")] + [("both", spec)]
    for role, part in parts:
        if part is None or (role == "both" and at(spec, "topology") is not None):
            continue
        model, deployment = at(part, "model") or part, at(part, "deploymentConfig")
        words = [_model(model)]
        for key in ("maxModelLen", "dtype", "maxNumSeqs"):
            if (node := at(model, key)) is not None:
                words += _config_words(key, node, found)
        words += ["--enable-lora"] if is_on(model, "enableLoRA") else []
        known, names = environment(at(part, "vllmConfig"), found)
        engine = of_container(text(deployment, "image", "name"), ["vllm", "serve"],
                              [*words, *_config(at(part, "vllmConfig"), found)], known, names)
        assert engine is not None
        engine.gpus = whole(at(deployment, "resources"), "gpu", 0) or None
        cache = at(part, "lmCacheConfig")
        if is_on(cache, "enabled") and role == "both":
            found.not_modelled.append(named("lmCacheConfig", cache))
        found.add(name if role == "both" else f"{name}-{role}", whole(deployment, "replicas", 1), role, engine, part)


def read_modelservice(document: Node, found: Deployed) -> None:
    """Read the values of llm-d's modelservice chart."""
    uri, name = text(document, "modelArtifacts", "uri") or "", text(document, "modelArtifacts", "name")
    model = uri.removeprefix("hf://").strip('"') if uri.startswith("hf://") and "{{" not in uri else name
    for role, usual in (("decode", 1), ("prefill", 0)):
        side = at(document, role)
        if side is None or is_off(side, "create"):
            continue
        count, parallel = whole(side, "replicas", usual), at(side, "parallelism")
        if is_on(side, "autoscaling", "enabled"):
            found.not_modelled.append(named(f"{role}.autoscaling", at(side, "autoscaling")))
        tensor, workers = whole(parallel, "tensor", 1), whole(parallel, "workers", 1)
        local = whole(parallel, "dataLocal", whole(parallel, "data", 1) // max(workers, 1))
        data = whole(parallel, "data", local * workers)
        env = {"TP_SIZE": str(tensor), "DP_SIZE": str(data), "DP_SIZE_LOCAL": str(local), "LWS_WORKER_INDEX": "0"}
        for container in items(side, "containers") if count else ():
            before: tuple[str, ...] = ()
            if text(container, "modelCommand") in ("vllmServe", "imageDefault"):
                if model is None:
                    raise container.mark.error("modelArtifacts.name: the model's name at Hugging Face",
                                               Verbatim("nothing"), field=role)
                before = ("vllm", "serve", model, *(("--tensor-parallel-size", str(tensor)) if tensor > 1 else ()),
                          *(("--data-parallel-size", str(data)) if data > 1 else ()))
            engine = read_container(container, found, env, before, max(workers, 1), pod=side)
            found.add(role, count, role, engine, container)


def read_chart(document: Node, found: Deployed) -> None:
    """Read the values of the chart in vLLM's examples: an image, and the words that it starts."""
    image = at(document, "image")
    command = texts(image, "command") or texts(document, "command")
    name = ":".join(filter(None, (text(image, "repository"), text(image, "tag"))))
    known, names = environment(document, found)
    engine = of_container(name or None, command, texts(document, "args"), known, names)
    if engine is not None:
        engine.gpus = gpus_of(document)
    found.add(text(document, "nameOverride") or "llm", whole(document, "replicaCount", 1), "both", engine, document)
