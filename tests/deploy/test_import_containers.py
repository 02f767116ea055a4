"""`hermes import vllm` of containers: `docker run`, manifests, and Helm values; and the load that it chooses."""

import json
from pathlib import Path

import pytest

from hermes.api import load_scenario, simulate
from hermes.cli import main
from hermes.deploy.docker_words import SHORT_SWITCHES, SHORT_VALUES, SWITCHES, VALUES
from hermes.deploy.engine_scenario import read_source
from hermes.deploy.engine_words import engine_of_image, of_text
from hermes.deploy.manifests import manifest_text
from hermes.errors import InputError

DATA = Path(__file__).parents[1] / "data" / "manifests"
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  replicas: 3
  template:
    metadata: {{labels: {{app: chat}}}}
    spec:
      containers:
      - {{name: sidecar, image: envoy, args: [--port, "80"]}}
      - name: vllm
        image: vllm/vllm-openai:v0.28.1
        command: {command}
        args: {args}
        env:
        - {{name: HF_TOKEN, value: hf_secret}}
        - {{name: TP, value: "2"}}
        resources: {{limits: {{nvidia.com/gpu: "2"}}}}
"""


def source(text, file=None, **more):
    return read_source(text, file, **{"device": "h200", "engine": None, "model": None, **more})


def read(name):
    file = DATA / f"{name}.yaml"
    return source(file.read_text(), str(file))


@pytest.mark.feature("Results, sweeps, studies", "`hermes import vllm` of `docker run`, manifests and Helm values")
@pytest.mark.parametrize("command", [
    "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache --env HF_TOKEN=hf_secret "
    "-p 8000:8000 --ipc=host vllm/vllm-openai:v0.28.1 --model Qwen/Qwen3-32B -tp 2",
    "sudo docker run -itd --rm --gpus '\"device=0,1\"' -p8000:8000 -eHF_TOKEN=hf_secret --shm-size 16g --name x "
    "--entrypoint vllm vllm/vllm-openai:v0.28.1 serve Qwen/Qwen3-32B -tp 2 2>&1 | tee log",
    "docker container run --entrypoint=/bin/bash docker.io/vllm/vllm-openai:v0.28.1 -lc 'export A=1 && exec vllm serve "
    "Qwen/Qwen3-32B --tensor-parallel-size=2; sleep 9'",
    "podman run --device nvidia.com/gpu=all --security-opt label=disable vllm/vllm-openai:v0.28.1 Qwen/Qwen3-32B \\\n"
    "  --tensor-parallel-size 2",
    "docker run --gpus 2 --entrypoint python3 vllm/vllm-openai:v0.28.1 -m vllm.entrypoints.openai.api_server "
    "--model Qwen/Qwen3-32B --tensor-parallel-size 2 > /tmp/log &",
])
def test_docker_commands(command):
    found = source(command)
    assert found.clients == [{"name": "llm", "model": "qwen3-32b", "parallel": {"tp": 2}, "device": "h200",
                              "engine": "vllm-0.28"}]
    assert (found.warnings, found.notes) == ([], [])


def test_what_a_docker_command_leaves_open_is_named_without_its_values():
    found = source("docker run --gpus 1 --hooks=3 --env-file secrets.env -e VLLM_ATTENTION_BACKEND=hf_secret "
                   "vllm/vllm-openai:latest --model Qwen/Qwen3-32B -tp 2 --frobnicate hf_secret --api-key hf_secret")
    assert found.warnings == [
        "the container has 1 GPUs, its engine takes 2 (--tensor-parallel-size)", "unknown: --frobnicate",
        "unknown: docker run --hooks", "unknown: the variables in --env-file", "not modelled: VLLM_ATTENTION_BACKEND"]
    assert found.notes == ["the image's tag (latest) names no version of vLLM: the rules of vllm-0.33"]
    assert "hf_secret" not in str(found)


@pytest.mark.parametrize(("image", "engine", "flags", "named"), [
    ("v0.28.0", None, "--enable-lora --max-loras 4", "--enable-lora and --max-loras with vllm-0.28 (only from 0.31"),
    ("v0.30.1", None, "--enable-lora", "--enable-lora with vllm-0.30 (only from 0.31"),
    ("v0.32.0", "vllm-0.24", "--max-num-queued-reqs 9", "--max-num-queued-reqs with vllm-0.24 (only from 0.29"),
])
def test_flags_that_the_engines_version_has_no_rules_for_are_left_out_and_named(image, engine, flags, named):
    command = f"docker run vllm/vllm-openai:{image} --model Qwen/Qwen3-32B --max-num-seqs 64 {flags}"
    found = source(command, engine=engine)
    assert found.clients[0]["scheduler"] == {"kind": "chunked", "max_num_seqs": 64}
    assert found.warnings == [f"not modelled: {named} on)"]
    assert found.notes == []
    load_scenario(found.document("qwen3-32b", "azure-conv-2023", 1.0))   # the scenario is valid


def test_slots_for_adapters_that_the_workload_does_not_have_are_named():
    found = source("docker run vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-32B --enable-lora --max-loras 4")
    assert found.clients[0]["scheduler"] == {"kind": "chunked", "max_loras": 4}
    assert found.warnings == []
    assert len(found.notes) == 1
    assert "the workload has no adapters" in found.notes[0]
    document = found.document("qwen3-32b", "azure-conv-2023", 1.0)
    document["workload"]["adapters"] = {"count": 8}   # what the note says to write
    assert load_scenario(document).workload[0].adapters.count == 8


def test_options_of_docker_are_either_switches_or_not():
    assert not SWITCHES & VALUES
    assert not SHORT_SWITCHES & SHORT_VALUES


@pytest.mark.parametrize(("image", "engine"), [
    ("vllm/vllm-openai:v0.20.1", "vllm-0.20"), ("localhost:5000/vllm/vllm-openai:v0.32.0", "vllm-0.32"),
    ("localhost:5000/vllm/vllm-openai", None), ("vllm/vllm-openai:v0.11.0@sha256:ab", "vllm-0.15"),
    ("lmcache/vllm-openai:2025-05-27-v1", None), ("ghcr.io/llm-d/llm-d-cuda:v0.3.0", None),
])
def test_the_version_of_an_image(image, engine):
    found, note = engine_of_image(image)
    assert found == engine
    assert (note is None) == (engine in ("vllm-0.20", "vllm-0.32"))


@pytest.mark.parametrize(("command", "said"), [
    ("docker run --hooks 3 vllm/vllm-openai", "no option --hooks that is known here"),
    ("docker run -k vllm/vllm-openai", "no option -k"), ("docker run --rm", "names no image"),
    ("docker run ubuntu env HF_TOKEN=hf_secret ls", "does not start vLLM"), ("docker run --gpus", "needs a value"),
    ("HF_TOKEN=hf_secret ls", "expected a command `vllm serve"),
    ("docker run -e X 'y", "a command that a shell can read"),
    ("vllm serve hf_secret_model hf_secret 'x", "a command that a shell can read"),
])
def test_a_command_that_cannot_be_read_is_one_line(command, said, capsys):
    assert main(["import", "vllm", command, "--device", "h200"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "hf_secret" not in error


def test_helm_values_of_the_production_stack():
    found = read("production-stack")
    assert found.clients == [
        {"name": "llama3", "count": 2, "model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 16384,
         "scheduler": {"kind": "chunked", "enable_chunked_prefill": True, "max_num_seqs": 128},
         "memory": {"utilization": 0.95, "prefix_caching": False}, "hardware": {"kind": "composed", "dtype": "bf16"},
         "device": "h200", "engine": "vllm-0.20"},
        {"name": "mist", "model": "qwen3-32b", "memory": {"prefix_caching": True}, "parallel": {"tp": 2},
         "device": "h200"}]
    assert found.router == "round_robin"
    assert found.warnings == ["not modelled: lmcacheConfig (line 20)", "unknown: vllmConfig.fancyThing (line 17)"]
    assert "hf_" not in str(found)


def test_helm_values_of_llm_d():
    found = read("modelservice")
    one = {"model": "meta-llama/Llama-3.1-70B-Instruct", "parallel": {"tp": 4}, "device": "h200", "count": 2}
    assert found.clients == [{**one, "name": "decode", "role": "decode"},
                             {**one, "name": "prefill", "role": "prefill", "memory": {"block_size": 128}}]
    assert found.warnings == ["not modelled: --enforce-eager of decode"]


def test_a_leader_worker_set_with_a_script():
    """Variables of the container and of the set are put in; decode engines without prefill serve whole requests."""
    found = read("wide")
    assert found.clients == [{"name": "wide", "model": "qwen3-235b-a22b", "parallel": {"dp": 16, "ep": 16},
                              "device": "h200"}]
    assert found.warnings == ["not modelled: HorizontalPodAutoscaler (line 42)",
                              "not modelled: VLLM_ALL2ALL_BACKEND of wide"]


@pytest.mark.parametrize(("command", "args"), [
    ('["vllm", "serve"]', '[Qwen/Qwen3-32B, "--tensor-parallel-size=2"]'),
    ('["vllm", "serve", "Qwen/Qwen3-32B"]', '["--tensor-parallel-size", $(TP)]'),
    ("[]", '[--model, Qwen/Qwen3-32B, -tp, "2"]'),
    ('["sh", "-c"]', '["vllm serve Qwen/Qwen3-32B --tensor-parallel-size ${TP:-1}"]'),
])
def test_a_deployment(command, args):
    text = DEPLOYMENT.format(command=command, args=args)
    found = source(f"{text}---\n{text}")
    want = {"count": 3, "model": "qwen3-32b", "parallel": {"tp": 2}, "device": "h200", "engine": "vllm-0.28"}
    assert found.clients == [{"name": "chat", **want}, {"name": "chat-2", **want}]
    assert (found.warnings, found.notes) == ([], [])


@pytest.mark.parametrize(("change", "said"), [
    (("replicas: 3", "replicas: many"), "s.yaml:6:13: replicas: expected a whole number"),
    (('-tp, "2"', "--max-num-seqs, many"), "s.yaml:15:41: --max-num-seqs: expected a whole number"),
    (("Qwen/Qwen3-32B", "acme/new"), "s.yaml:12:9: command: no description of acme/new"),
    (("kind: Deployment", "kind: Service"), "s.yaml:2: no engine of vLLM"),
    (("args:", "args: {{"), "s.yaml:11:46: "), (("[--model", "3 #"), "args: expected a list of words"),
])
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path, change, said, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = DEPLOYMENT.format(command="[]", args='[--model, Qwen/Qwen3-32B, -tp, "2"]')
    Path("s.yaml").write_text(text.replace(*change))
    assert main(["import", "vllm", "s.yaml", "--device", "h200"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "hf_secret" not in error


@pytest.mark.long
def test_a_large_manifest_ends_early(tmp_path, capsys):
    file = tmp_path / "large.yaml"
    file.write_text("kind: List\nitems:\n" + "- {kind: Service, spec: {a: [1, 2, 3]}}\n" * 150_000)
    assert main(["import", "vllm", str(file), "--device", "h200"]) == 2
    assert "expected at most 500000 values" in capsys.readouterr().err


def test_manifests_of_hermes_are_read_as_the_same_clients():
    scenario = load_scenario({
        "workload": {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 1,
                                                                                 "output": 1}},
        "clients": [{"name": "p", "role": "prefill", "count": 2, "model": "llama-3.1-8b", "device": "h200",
                     "parallel": {"tp": 2}},
                    {"name": "d", "role": "decode", "model": "llama-3.1-8b", "device": "h200", "parallel": {"tp": 2},
                     "memory": {"block_size": 32}}]})
    found = source(manifest_text("llm-d", scenario))
    assert [(client["role"], client.get("count", 1), client["parallel"]) for client in found.clients] == [
        ("prefill", 2, {"tp": 2}), ("decode", 1, {"tp": 2})]
    assert found.clients[1]["memory"]["block_size"] == 32
    assert found.warnings == []


@pytest.mark.long
def test_the_scenarios_meet_their_slo(tmp_path, capsys):
    """Two models, each at a rate of its own; the reasons stand on top."""
    file = tmp_path / "s.yaml"
    assert main(["import", "vllm", str(DATA / "production-stack.yaml"), "--device", "h200", "-o", str(file)]) == 0
    said = capsys.readouterr().err
    assert "hermes: warning: unknown: vllmConfig.fancyThing (line 17)\n" in said
    text = file.read_text()
    assert "# meta-llama/Llama-3.1-8B-Instruct: parallel: as the command says; an engine holds weights 16 GB" in text
    assert text.count("the highest that met the SLO in") == 2
    summary = simulate(file).summary
    assert summary["slo"]["pass"] is True
    assert summary["headline"]["stable"] is not False
    assert set(summary["by"]["workload"]) == {"Llama-3.1-8B-Instruct", "qwen3-32b"}


@pytest.mark.long
@pytest.mark.parametrize(("rate", "note"), [("1/s", None), ("300/s", "300/s misses the SLO")])
def test_a_rate_that_was_asked_for_is_kept_if_it_meets_the_slo(tmp_path, capsys, rate, note):
    file = tmp_path / "s.yaml"
    command = "docker run --gpus 1 vllm/vllm-openai:v0.32.0 --model meta-llama/Llama-3.1-8B --max-model-len 4096"
    assert main(["import", "vllm", command, "--device", "l40s", "--rate", rate, "-o", str(file)]) == 0
    said = capsys.readouterr().err
    assert ("misses the SLO" in said) == (note is not None)
    scenario = load_scenario(file)
    assert (scenario.workload[0].arrivals.rate == 1.0) == (note is None)
    assert scenario.workload[0].max_total_tokens == 4096
    assert simulate(file).summary["slo"]["pass"] is True


def test_flags_of_a_command_are_words_that_follow_it():
    assert of_text("nohup /opt/vllm serve m -tp 2 &\nsleep 3")[0].words == ["m", "-tp", "2"]
    assert of_text("export X=1\nvllm serve m\n --port 3")[0].words == ["m", "--port", "3"]
    with pytest.raises(InputError):
        of_text("")[0]
    assert json.dumps(of_text("vllm serve m --x '{\"a\": 1}'")[0].words) == '["m", "--x", "{\\"a\\": 1}"]'
