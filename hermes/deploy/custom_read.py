"""Groups of engines in custom resources: Dynamo, KServe, AIBrix, Ray Serve, KubeAI, and tasks of SkyPilot.

Field names as in the projects' own examples (November 2026, read, not run): DynamoGraphDeployment v1alpha1 and v1beta1,
LLMInferenceService and InferenceService, StormService and RoleBasedGroup, RayService with `ray.serve.llm`, and Model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from hermes.config.yaml_document import Node, parse_documents
from hermes.deploy.deployed import Deployed, environment, gpus_of, read_container, role_of, words_of
from hermes.deploy.engine_words import EngineWords, of_container, of_text
from hermes.deploy.nodes import at, fields, items, named, placed, text, texts, value, whole
from hermes.deploy.options import options
from hermes.deploy.shell_words import split
from hermes.errors import Verbatim

__all__ = ["read_dynamo", "read_inference_service", "read_kubeai", "read_llm_inference_service", "read_ray",
           "read_ray_service", "read_sky", "read_storm_service"]

LLM_FIELDS = {"annotations", "labels", "model", "model.name", "model.uri", "parallelism", "prefill", "replicas",
              "router", "runtime", "serviceAccountName", "speculator", "storageInitializer", "template", "worker"}
"""Fields of an LLMInferenceService that are read, or that change no time of its engines."""
KSERVE = frozenset(options("kserve", "beside"))
"""Arguments of KServe's Hugging Face server that are not vLLM's and do not change when a token is computed."""


# -- Dynamo ----------------------------------------------------------------------------------------------------------

def read_dynamo(document: Node, found: Deployed) -> None:
    """Read a DynamoGraphDeployment: `services` (v1alpha1) or `components` (v1beta1)."""
    spec = at(document, "spec")
    shared, _ = environment(Node({"env": at(spec, "envs") or Node([], document.mark)}, document.mark), found)
    parts = [*fields(at(spec, "services")),
             *((text(part, "name") or "llm", part) for part in items(spec, "components"))]
    for name, part in parts:
        pod = at(part, "podTemplate", "spec") or at(part, "extraPodSpec")
        main = at(pod, "mainContainer")
        own, _ = environment(Node({"env": at(part, "envs") or Node([], part.mark)}, part.mark), found)
        pods = whole(at(part, "multinode"), "nodeCount", 1)
        for container in items(pod, "containers") if main is None else [main]:
            engine = read_container(container, found, {**shared, **own}, pods=pods, pod=pod)
            if engine is not None and engine.gpus is None and (gpus := gpus_of(part)) is not None:
                engine.gpus = gpus * pods
            role = role_of(text(part, "subComponentType") or text(part, "type"))
            found.add(name, whole(part, "replicas", 1), role, engine, container)


# -- KServe ----------------------------------------------------------------------------------------------------------

def read_llm_inference_service(document: Node, found: Deployed) -> None:
    """Read an LLMInferenceService: its engines, and those that prefill for them."""
    spec, name = at(document, "spec"), text(document, "metadata", "name") or "llm"
    model = _model(at(spec, "model"))
    if model is None:
        raise document.mark.error("spec.model.uri: hf:// and the model's name at Hugging Face",
                                  text(spec, "model", "uri"), field="spec.model.uri")
    for key, node in (*fields(spec), *((f"model.{key}", node) for key, node in fields(at(spec, "model")))):
        if key not in LLM_FIELDS and node.value:
            found.not_modelled.append(named(f"{key} of {name}", node))
    is_sglang = "sglang" in (text(spec, "runtime") or "")
    speculator = at(spec, "speculator")
    drafts = []
    if speculator is not None:
        given = {key: int(own) if (own := str(node.value)).isdecimal() else own
                 for key, node in fields(at(speculator, "config"))}
        draft = _model(at(speculator, "model"))
        drafts = ["--speculative-config", json.dumps({**given, **({"model": draft} if draft else {})})]
    phases: list[tuple[str, Node | None]] = [("both", spec)]
    if (prefill := at(spec, "prefill")) is not None:
        phases = [("decode", spec), ("prefill", prefill)]
    for role, side in phases:
        assert side is not None
        parallel, worker = at(side, "parallelism"), at(side, "worker")
        data, local = whole(parallel, "data", 1), whole(parallel, "dataLocal", 0)
        pods = (data // local if local else whole(parallel, "pipeline", 1)) if worker is not None else 1
        before = ["sglang", "serve", "--model-path", model] if is_sglang else ["vllm", "serve", model, *drafts]
        for key, flag in (("tensor", "tensor-parallel-size"), ("pipeline", "pipeline-parallel-size"),
                          ("data", "data-parallel-size")):
            before += [f"--{flag}", str(whole(parallel, key, 1))] if whole(parallel, key, 1) > 1 else []
        if value(parallel, "expert") is True:
            before += ["--ep-size", str(whole(parallel, "tensor", 1))] if is_sglang else ["--enable-expert-parallel"]
        containers = items(side, "template", "containers")
        main = next((one for one in containers if text(one, "name") == "main"), next(iter(containers), None))
        node = main or side
        with placed(node):
            words = [*texts(main, "args"), *split(environment(main, found)[0].get("VLLM_ADDITIONAL_ARGS", ""))]
        alone = texts(main, "command") or words[:1] == ["vllm"]   # the container's own command, not KServe's
        engine = read_container(
            main or Node({}, side.mark), found, before=() if alone else before, pods=pods, pod=at(side, "template"),
            args=None if alone else words, command=None if alone else ())
        label = name if role == "both" else f"{name}-{role}"
        found.add(label, whole(side, "replicas", 1), role, engine, node)


def _model(model: Node | None) -> str | None:
    uri = text(model, "uri") or ""
    return uri.removeprefix("hf://").rstrip("/") if uri.startswith("hf://") else text(model, "name")


def read_inference_service(document: Node, found: Deployed) -> None:
    """Read an InferenceService whose predictor serves a language model."""
    name, predictor = text(document, "metadata", "name") or "llm", at(document, "spec", "predictor")
    count = whole(predictor, "minReplicas", 1) or 1   # none is left while no request comes
    if whole(predictor, "maxReplicas", count) > count:
        found.not_modelled.append(named(f"maxReplicas of {name} (autoscaling)", at(predictor, "maxReplicas")))
    model = at(predictor, "model")
    for container in items(predictor, "containers"):
        found.add(name, count, "both", read_container(container, found, pod=predictor), container)
    if model is None:
        return
    given = texts(model, "args")
    own = {word.lstrip("-").partition("=")[0].replace("_", "-"): place for place, word in enumerate(given)
           if word.startswith("--")}
    words, source = [], text(model, "storageUri") or ""
    for key, place in own.items():
        end = min([other for other in own.values() if other > place], default=len(given))
        if key not in KSERVE:
            words += given[place:end]
        elif key == "model-id":
            words += ["--model", given[place].partition("=")[2] or " ".join(given[place + 1:end])]
    words += ["--model", source.removeprefix("hf://")] if source.startswith("hf://") else []
    runtime = next(iter(items(found.runtimes.get(text(model, "runtime") or ""), "spec", "containers")), None)
    if runtime is None:
        engine = read_container(model, found, args=words, pod=predictor, command=["vllm", "serve"])
    else:   # the arguments of the service stand behind those of its runtime
        engine = read_container(runtime, found, environment(model, found)[0], args=[*texts(runtime, "args"), *words])
    if engine is not None:
        engine.gpus = gpus_of(model)
    found.add(name, count, "both", engine, model)


# -- AIBrix and role-based groups ------------------------------------------------------------------------------------

def read_storm_service(document: Node, found: Deployed) -> None:
    """Read a StormService, RoleSet or RoleBasedGroup: roles with pods of their own, several pods an engine."""
    spec = at(document, "spec")
    roles, sets = items(spec, "template", "spec", "roles") or items(spec, "roles"), 1
    if at(spec, "template") is not None:
        sets = whole(spec, "replicas", 1)
    for role in roles:
        name = text(role, "name") or "llm"
        group = at(role, "leaderWorkerSet") or at(role, "leaderWorkerPattern")
        size = whole(role, "podGroupSize", whole(group, "size", 1))
        pod = (at(role, "template") or at(role, "standalonePattern", "template") or at(group, "leaderTemplate")
               or at(group, "patchLeaderTemplate") or at(group, "template"))
        env = {"POD_GROUP_INDEX": "0", "LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": str(size),
               "RBG_LWP_WORKER_INDEX": "0", "RBG_LWP_GROUP_SIZE": str(size)}
        for container in items(pod, "spec", "containers"):
            engine = read_container(container, found, env, pods=size, pod=at(pod, "spec"))
            found.add(name, sets * whole(role, "replicas", 1), role_of(name), engine, container)


# -- Ray Serve -------------------------------------------------------------------------------------------------------

def read_ray_service(document: Node, found: Deployed) -> None:
    """Read a RayService: its `serveConfigV2` is a configuration of Ray Serve."""
    config = at(document, "spec", "serveConfigV2")
    if config is None or not isinstance(config.value, str):
        found.kinds.append("a RayService without `serveConfigV2`")
        return
    lines = "\n" * (config.mark.line or 0)   # of a block below its key
    for inner in parse_documents(lines + config.value, config.mark.file):
        read_ray(inner, found)


def read_ray(document: Node, found: Deployed) -> None:
    """Read a configuration of Ray Serve, or its `llm_configs`."""
    for args in [at(one, "args") for one in items(document, "applications")] or [document]:
        for role, config in _ray_configs(args):
            _ray_config(role, config, found)


def _ray_configs(args: Node | None) -> Iterator[tuple[str, Node]]:
    for config in items(args, "llm_configs"):
        yield "both", config
    for role in ("prefill", "decode"):
        if (side := at(args, f"{role}_config")) is not None:
            yield role, side


def _ray_config(role: str, config: Node, found: Deployed) -> None:
    if not isinstance(config.value, dict):
        raise config.mark.error(Verbatim("names a file with the engine's settings; import that file"),
                                field="llm_configs")
    loading, deployment = at(config, "model_loading_config"), at(config, "deployment_config")
    name = text(loading, "model_id") or "llm"
    scaling = at(deployment, "autoscaling_config")
    least = whole(scaling, "initial_replicas", whole(scaling, "min_replicas", 1))
    count = whole(deployment, "num_replicas", least or 1)
    if whole(scaling, "max_replicas", count) > count:
        found.not_modelled.append(named(f"autoscaling_config of {name}", scaling))
    if (lora := at(config, "lora_config")) is not None:
        found.not_modelled.append(named(f"lora_config of {name}", lora))
    words = ["--model", text(loading, "model_source") or name]
    for key, node in fields(at(config, "engine_kwargs")):
        words += words_of(key.replace("_", "-"), node)
    env = [key for key, _ in fields(at(config, "runtime_env", "env_vars"))]
    engine = of_container(None, ["vllm", "serve"], words, {}, env)
    found.add(name, count, role, engine, config)


# -- KubeAI, SkyPilot ------------------------------------------------------------------------------------------------

def read_kubeai(document: Node, found: Deployed) -> None:
    """Read a Model of KubeAI."""
    spec, name = at(document, "spec"), text(document, "metadata", "name") or "llm"
    if text(spec, "engine") != "VLLM":
        found.kinds.append(f"a Model that {text(spec, 'engine') or 'no engine'} serves")
        return
    words = ["--model", (text(spec, "url") or "").removeprefix("hf://").removeprefix("s3://"), *texts(spec, "args")]
    _, _, gpus = (text(spec, "resourceProfile") or "").partition(":")
    engine = EngineWords(words, text(spec, "image"), int(gpus) if gpus.isdecimal() else None)
    found.add(name, whole(spec, "replicas", whole(spec, "minReplicas", 1)) or 1, "both", engine, spec or document)


def read_sky(document: Node, found: Deployed) -> None:
    """Read a task of SkyPilot: its `run` is a script."""
    wanted = value(document, "resources", "accelerators")
    if isinstance(wanted, dict):
        counts = [str(node.value) for node in wanted.values()]
    else:
        counts = [str(wanted or "").partition(":")[2] or ("1" if wanted else "")]
    count = whole(at(document, "service"), "replicas", 1)
    for engine in of_text(str(value(document, "run"))):
        engine.gpus = int(counts[0]) if counts and counts[0].isdecimal() else None
        found.add(text(document, "name") or "llm", count, "both", engine, document)
