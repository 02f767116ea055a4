"""`hermes export llm-d` and `hermes export dynamo`: against the schema of Kubernetes, and against what is simulated."""

import copy
import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from hermes.api import load_scenario
from hermes.cli import main
from hermes.deploy.manifests import KINDS, manifest_text
from hermes.deploy.vllm import client_of, commands_of
from hermes.errors import InputError

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "kubernetes" / "deployment-v1.json").read_text())
KINDS_OF_WORKER = {"both": "worker", "prefill": "prefill", "decode": "decode"}
SCENARIOS = {
    "mixed": {"model": "llama-3.1-70b", "device": "h100-sxm", "count": 4, "parallel": {"tp": 4}},
    "split": {"model": "llama-3.1-8b", "device": "h100-sxm", "count": "3P1D"},
}


def scenario(name, **more):
    return load_scenario({
        "name": f"Chat, {name}!",
        "workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                     "lengths": {"kind": "fixed", "prompt": 1, "output": 1}},
        "clients": [{"name": "H100s", **SCENARIOS[name], **more}],
    })


def validate(document, name):
    jsonschema.Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"}).validate(document)


def pods(kind, documents):
    """Yield (pod template, replicas, role) of every group of engines."""
    if kind == "llm-d":
        for document in documents:
            if document["kind"] == "Deployment":
                template = document["spec"]["template"]
                role = template["metadata"]["labels"].get("llm-d.ai/role", "both")
                yield template, document["spec"]["replicas"], role
    else:
        for part in documents[0]["spec"]["components"]:
            if part["type"] != "frontend":
                role = next(role for role, name in KINDS_OF_WORKER.items() if name == part["type"])
                yield part["podTemplate"], part["replicas"], role


@pytest.mark.feature("Results, sweeps, studies", "`hermes export llm-d`, `hermes export dynamo`")
@pytest.mark.parametrize("name", SCENARIOS)
def test_deployments_meet_the_schema(name):
    documents = list(yaml.safe_load_all(manifest_text("llm-d", scenario(name))))
    deployments = [document for document in documents if document["kind"] == "Deployment"]
    assert len(deployments) == (1 if name == "mixed" else 2)
    for document in deployments:
        validate(document, "io.k8s.api.apps.v1.Deployment")
        assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("broken", ["replica", "image"])
def test_the_schema_notices_a_wrong_manifest(broken):
    document = copy.deepcopy(next(iter(yaml.safe_load_all(manifest_text("llm-d", scenario("mixed"))))))
    if broken == "replica":
        document["spec"]["replica"] = document["spec"].pop("replicas")
    else:
        document["spec"]["template"]["spec"]["containers"][0]["image"] = 32
    with pytest.raises(jsonschema.ValidationError):
        validate(document, "io.k8s.api.apps.v1.Deployment")


@pytest.mark.parametrize("name", SCENARIOS)
def test_dynamos_pods_meet_the_schema(name):
    """The form around the pods has no schema in a package: it is that of Dynamo 1.6.1's own templates."""
    [document] = yaml.safe_load_all(manifest_text("dynamo", scenario(name)))
    assert (document["apiVersion"], document["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    assert document["metadata"] == {"name": f"chat-{name}"}
    assert list(document["spec"]) == ["components"]
    types = [part["type"] for part in document["spec"]["components"]]
    assert types == ["frontend", *(["worker"] if name == "mixed" else ["prefill", "decode"])]
    for part in document["spec"]["components"]:
        assert set(part) == {"name", "type", "replicas", "podTemplate"}
        assert part["podTemplate"]["spec"]["containers"][0]["name"] == "main"
        validate(part["podTemplate"], "io.k8s.api.core.v1.PodTemplateSpec")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_pods_start_what_is_simulated(kind, name):
    checked = scenario(name)
    documents = list(yaml.safe_load_all(manifest_text(kind, checked)))
    commands = {name: client_of(command).client for name, command in commands_of(checked)}
    found = list(pods(kind, documents))
    assert len(found) == len(commands)
    for (template, replicas, role), client in zip(found, checked.clients, strict=True):
        container = template["spec"]["containers"][0]
        args = container["args"]
        if kind == "dynamo":
            assert args.pop(0) == "--model"
            if role != "both":
                where = args.index("--disaggregation-mode")
                assert args[where + 1] == role
                del args[where:where + 2]
        read = client_of("vllm serve " + shlex.join(args))
        assert read.client == commands[client.name]
        assert (replicas, role) == (client.count, client.role)
        assert container["resources"]["limits"] == {"nvidia.com/gpu": str(client.parallel.tp)}
        assert ("--kv-transfer-config" in args) == (role != "both")


def test_decodes_stand_behind_the_routing_sidecar():
    documents = yaml.safe_load_all(manifest_text("llm-d", scenario("split")))
    by_role = {role: template["spec"] for template, _, role in pods("llm-d", documents)}
    assert "initContainers" not in by_role["prefill"]
    [proxy] = by_role["decode"]["initContainers"]
    engine = by_role["decode"]["containers"][0]
    port = int(engine["args"][engine["args"].index("--port") + 1])
    assert f"--vllm-port={port}" in proxy["args"]
    assert port == engine["ports"][0]["containerPort"] != 8000
    assert proxy["restartPolicy"] == "Always"   # which makes of an init container a sidecar


def test_the_pool_selects_every_engine():
    documents = list(yaml.safe_load_all(manifest_text("llm-d", scenario("split"))))
    [pool] = [document for document in documents if document["kind"] == "InferencePool"]
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    wanted = pool["spec"]["selector"]["matchLabels"].items()
    assert all(wanted <= template["metadata"]["labels"].items() for template, _, _ in pods("llm-d", documents))
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]


def test_images():
    assert "vllm/vllm-openai:v0.19.0" in manifest_text("llm-d", scenario("mixed", engine="vllm-0.19"))
    assert "registry.example/mine:1" in manifest_text("dynamo", scenario("mixed"), "registry.example/mine:1")
    other = scenario("mixed", scheduler={"kind": "continuous"})
    with pytest.raises(InputError, match="chunked"):
        manifest_text("dynamo", other)


def test_the_command_line(tmp_path, capsys):
    for kind in KINDS:
        file = tmp_path / f"{kind}.yaml"
        assert main(["export", kind, "quickstart", "-o", str(file)]) == 0
        assert main(["export", kind, "quickstart"]) == 0
        assert file.read_text() in capsys.readouterr().out


GROUPS = ["a b", "a-b", "A.b"]
LONG = ["x" * 80 + " one", "x" * 80 + " two"]


@pytest.mark.parametrize("names", [
    GROUPS, LONG, ["a-b-2", "a b", "a.b"], ["!!", "??"], ["Frontend", "frontend"]], ids=str)
def test_groups_of_similar_names_stay_apart(names):
    given = load_scenario({
        "name": "n" * 70, "workload": scenario("mixed").workload[0].model_dump(),
        "clients": [{"name": name, "model": "llama-3.1-8b", "device": "h100-sxm", "count": i + 1}
                    for i, name in enumerate(names)]})
    documents = list(yaml.safe_load_all(manifest_text("llm-d", given)))
    deployments = [one for one in documents if one["kind"] == "Deployment"]
    for document in deployments:
        validate(document, "io.k8s.api.apps.v1.Deployment")
    assert [one["spec"]["replicas"] for one in deployments] == list(range(1, len(names) + 1))
    own = [one["metadata"]["name"] for one in deployments]
    components = [one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for one in deployments]
    [graph] = yaml.safe_load_all(manifest_text("dynamo", given))
    parts = [one["name"].lower() for one in graph["spec"]["components"]]
    for found in (own, components, parts):
        assert len(set(found)) == len(found)
        assert all(re.fullmatch("[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in found), found


def test_models_of_similar_names_have_pools_of_their_own(tmp_path):
    text = (Path(__file__).parents[2] / "hw_profiles" / "models" / "llama-3.1-8b.yaml").read_text()
    models = []
    for name in ("m.1", "m-1", "m" * 90):
        models.append(str(tmp_path / f"{name}.yaml"))
        Path(models[-1]).write_text(text)
    given = load_scenario({"workload": scenario("mixed").workload[0].model_dump(), "clients": [
        {"name": str(i), "model": model, "device": "h100-sxm"} for i, model in enumerate(models)]})
    documents = list(yaml.safe_load_all(manifest_text("llm-d", given)))
    pools = [one for one in documents if one["kind"] == "InferencePool"]
    names = [one["metadata"]["name"] for one in pools] + [one["spec"]["endpointPickerRef"]["name"] for one in pools]
    assert len(set(names)) == 6
    assert all(len(name) <= 63 for name in names)
