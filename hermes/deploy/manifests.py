"""Kubernetes manifests of a scenario's engines: Deployments for llm-d, a DynamoGraphDeployment for Dynamo."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hermes.config.yaml_writer import to_yaml
from hermes.deploy.pods import Pod, ending_of
from hermes.deploy.typed import Keys
from hermes.deploy.vllm import TRANSFER, Launch, assumed_names, launches_of
from hermes.errors import InputError, Verbatim, printable
from hermes.scenario import Scenario

__all__ = ["DYNAMO_VERSION", "KINDS", "manifest_text", "names_of"]

DYNAMO_VERSION = "1.6.1"
"""The release of Dynamo whose templates the form of `dynamo_graph` is taken from."""

PORT, ENGINE_PORT, PICKER_PORT = 8000, 8200, 9002
SIDECAR = "ghcr.io/llm-d/llm-d-routing-sidecar:latest"
START_S, EVERY_S = 3600, 10   # the longest start of an engine: a large model's weights come over the network
MACHINE = 8                   # devices of a pod
MOST_NAME = 63                # characters of a name (RFC 1123), which Kubernetes asks of labels
PICKER = "-epp"               # ends the name of a pool's endpoint picker


def llm_d(scenario: Scenario, image: str | None = None) -> list[Keys]:
    """Return one Deployment for every group of LLM clients, and an InferencePool for every model.

    Args:
        image: The image of the engines; vLLM's own of the simulated version where left out.

    Engines that decode what others have prefilled get llm-d's routing sidecar in front of them.
    """
    launches, out, pools = _of_one_machine(scenario), [], {}
    models = list(dict.fromkeys(launch.model for launch in launches))
    pool_of = dict(zip(models, names_of([model.rsplit("/", 1)[-1] for model in models], MOST_NAME - len(PICKER)),
                       strict=True))
    deployments = names_of([f"{scenario.name}-{launch.name}" for launch in launches])
    components = names_of([launch.name for launch in launches])
    for launch, deployment, component in zip(launches, deployments, components, strict=True):
        pool = pool_of[launch.model]
        labels = pools[pool] = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": pool}
        own = {**labels, "app.kubernetes.io/component": component}
        if launch.role != "both":
            own["llm-d.ai/role"] = launch.role
        behind = launch.role == "decode"
        port = ENGINE_PORT if behind else PORT
        pod = _pod(launch, "modelserver", image or _vllm_image(launch), ["vllm", "serve"],
                   [launch.model, *launch.flags, "--port", str(port)], port)
        if behind:
            pod["initContainers"] = [{
                "name": "routing-proxy", "image": SIDECAR, "restartPolicy": "Always",
                "args": [f"--port={PORT}", f"--vllm-port={ENGINE_PORT}", "--connector=nixlv2"],
                "ports": [{"containerPort": PORT, "name": "proxy"}]}]
        out.append({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": deployment, "labels": labels},
            "spec": {"replicas": launch.count, "selector": {"matchLabels": own},
                     "template": {"metadata": {"labels": own}, "spec": pod}}})
    return out + [{
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": pool},
        "spec": {"targetPorts": [{"number": PORT}], "selector": {"matchLabels": labels},
                 "endpointPickerRef": {"name": pool + PICKER, "port": {"number": PICKER_PORT}}}}
        for pool, labels in pools.items()]


def dynamo_graph(scenario: Scenario, image: str | None = None) -> list[Keys]:
    """Return one DynamoGraphDeployment: a frontend, and a component for every group of LLM clients.

    Args:
        image: The image of frontend and engines; NVIDIA's of Dynamo 1.6.1 where left out.
    """
    image = image or f"nvcr.io/nvidia/ai-dynamo/vllm-runtime:{DYNAMO_VERSION}"
    frontend = {"name": "main", "image": image, "command": ["python3"], "args": ["-m", "dynamo.frontend"]}
    components: list[Keys] = [{"name": "Frontend", "type": "frontend", "replicas": 1,
                                         "podTemplate": {"spec": {"containers": [frontend]}}}]
    launches = _of_one_machine(scenario)
    names = names_of(["Frontend", *(launch.name for launch in launches)])[1:]   # Dynamo makes small letters of its own
    for launch, name in zip(launches, names, strict=True):
        role = "worker" if launch.role == "both" else launch.role
        mode = [] if launch.role == "both" else ["--disaggregation-mode", launch.role]
        components.append({"name": name, "type": role, "replicas": launch.count, "podTemplate": {"spec": _pod(
            launch, "main", image, ["python3", "-m", "dynamo.vllm"],
            ["--model", launch.model, *mode, *launch.flags])}})
    return [{"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment",
             "metadata": {"name": _name(scenario.name)}, "spec": {"components": components}}]


KINDS = {"llm-d": llm_d, "dynamo": dynamo_graph}
"""What makes the documents of each kind of manifest."""

_SHARED_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory"}}   # ranks of an engine exchange data in it


def manifest_text(kind: str, scenario: Scenario, image: str | None = None) -> str:
    """Return the YAML documents of a kind (`KINDS`), with what is left to the reader as comments on top.

    Raises `InputError` for a scenario without engines that can be launched.
    """
    documents = KINDS[kind](scenario, image)
    devices = sorted({f"{launch.device} ({launch.name})" for launch in launches_of(scenario) if launch.device})
    head = [f"# {kind}: the engines of {scenario.name!r}, by hermes export {kind}.",
            "# Before you apply it: the secret hf-token with the key HF_TOKEN, where the model asks for one;",
            f"# a nodeSelector or affinity for the devices: {', '.join(devices) or 'those of the scenario'}."]
    if kind == "llm-d":
        head.append("# The endpoint picker and the gateway that endpointPickerRef names come from llm-d's charts.")
    head += [f"# {line}" for line in assumed_names(scenario)]
    head = [" ".join(line.split()) for line in head]   # a name may not begin a line of its own
    return "\n".join(map(printable, head)) + "\n" + "---\n".join(map(to_yaml, documents))


def _of_one_machine(scenario: Scenario) -> list[Launch]:
    """Return the launches of a scenario. Raises `InputError` for an engine that spans machines."""
    launches = launches_of(scenario)
    for launch in launches:
        if launch.devices > MACHINE:
            raise InputError(f"engines of at most {MACHINE} devices ({launch.name}): one over several machines needs a "
                             "LeaderWorkerSet, which is not written", launch.devices, field="parallel")
    return launches


def _pod(launch: Launch, name: str, image: str, command: Sequence[str], args: Sequence[str],
         port: int | None = None) -> Keys:
    """Return the specification of a pod with an engine. port: Of its server, if Kubernetes is to probe it."""
    ends, life, flags = ending_of(launch.fleet, f"{launch.path}.fleet")
    transfer = [] if launch.role == "both" else ["--kv-transfer-config", json.dumps(TRANSFER)]
    env: list[Keys] = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}}]
    if transfer:   # the other side asks for KV at the address of the pod
        env.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    engine = {
        "name": name, "image": image, "command": list(command), "args": [*args, *flags, *transfer], "env": env,
        "resources": {"limits": {launch.resource: str(launch.devices)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    if port is not None:   # it may take an hour to start, and is then asked every 10 s
        get = {"httpGet": {"path": "/health", "port": port}, "periodSeconds": EVERY_S}
        probes = {"startupProbe": {**get, "failureThreshold": START_S // EVERY_S}, "readinessProbe": get}
        engine |= {"ports": [{"containerPort": port, "name": "http"}], **probes,
                   **{key: get | own if key.endswith("Probe") else own for key, own in life.items()}}
    else:
        engine |= {key: own for key, own in life.items() if not key.endswith("Probe")}
    return Pod.checked({"containers": [engine], "volumes": [_SHARED_MEMORY], **ends})


def _vllm_image(launch: Launch) -> str:
    if launch.engine_version is None:
        raise InputError(Verbatim("no image: the scenario names no version of vLLM"), field="--image")
    return f"vllm/vllm-openai:v{launch.engine_version}"


def names_of(texts: Sequence[str], most: int = MOST_NAME) -> list[str]:
    """Return a name that Kubernetes takes for each text, all distinct: the second of two alike ends in -2.

    most: Characters of a name.
    """
    found: list[str] = []
    for text in texts:
        name = short = _name(text, most)
        number = 1
        while name in found:
            number += 1
            end = f"-{number}"
            name = short[:most - len(end)].rstrip("-") + end
        found.append(name)
    return found


def _name(text: str, most: int = MOST_NAME) -> str:
    """Return a name that Kubernetes takes: small letters, digits and dashes, from a letter to no dash."""
    short = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    short = short if short[:1].isalpha() else f"c-{short}".strip("-")
    return short[:most].rstrip("-")
