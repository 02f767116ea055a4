"""`hermes import vllm`: speculation, KV offload, CUDA graphs, optimization levels and performance modes, and back.

With HERMES_VLLM_PYTHON, an interpreter that has vLLM 0.32, its own parser reads the commands of this module.
"""

import json
import os
import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.api import load_scenario
from hermes.cli import main
from hermes.deploy.engine_scenario import read_source
from hermes.deploy.vllm import assumed_names, client_of, commands_of
from hermes.deploy.vllm_features import DRAFT_HEAD, SYNCHRONOUS, Told, apply_mode
from hermes.errors import InputError
from hermes.hardware.config import ClientTerms
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.engines import load_engine
from hermes.hardware.engine_memory import captured_sizes

ENGINE = os.environ.get("HERMES_VLLM_PYTHON")
SERVE = "vllm serve meta-llama/Llama-3.1-8B"
SHARE = Told("0.7")
EAGLE = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}
OFFLOAD = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
           "kv_connector_extra_config": {"cpu_bytes_to_use": 10**10}}


def flag(name, value):
    return f"--{name} {shlex.quote(json.dumps(value))}"


# command after the model -> scheduler.speculative
DRAFTS = {
    flag("speculative-config", EAGLE): {"method": "eagle3", "num_speculative_tokens": 3},
    f"-sc {shlex.quote(json.dumps(EAGLE))}": {"method": "eagle3", "num_speculative_tokens": 3},
    "--speculative-config.method eagle3 --speculative_config.model=x/y --speculative-config.num-speculative-tokens 2":
        {"method": "eagle3", "num_speculative_tokens": 2},
    "--spec-method ngram --spec-tokens 4": {"method": "ngram", "num_speculative_tokens": 4},
    flag("speculative-config", {"model": "[ngram]", "num_speculative_tokens": 5, "prompt_lookup_max": 4}):
        {"method": "ngram", "num_speculative_tokens": 5},
    flag("speculative-config", {"method": "deepseek_mtp", "num_speculative_tokens": 1}):
        {"method": "mtp", "num_speculative_tokens": 1},
    flag("speculative-config", {"model": "a/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 1}):
        {"method": "eagle", "num_speculative_tokens": 1},
    flag("speculative-config", {"method": "suffix"}): {"method": "suffix", "num_speculative_tokens": 24},
    flag("speculative-config", {"model": "meta-llama/Llama-3.2-3B-Instruct", "num_speculative_tokens": 4}):
        {"method": "draft_model", "num_speculative_tokens": 4, "draft_model": "meta-llama/Llama-3.2-3B-Instruct"},
}
OFFLOADS = {
    "--kv-offloading-size 64": {"cpu_bytes_to_use": 64 * 2**30},
    "--kv-offloading-size 0.5 --kv-offloading-backend native": {"cpu_bytes_to_use": 2**29},
    flag("kv-transfer-config", OFFLOAD): {"cpu_bytes_to_use": 10**10},
    "--kv-transfer-config.kv_connector OffloadingConnector --kv-transfer-config.kv_role kv_both "
    "--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 1000000":
        {"cpu_bytes_to_use": 10**6},
    flag("kv-transfer-config", OFFLOAD | {"kv_connector_extra_config": {
        "cpu_bytes_to_use": 1e10, "block_size": 64, "eviction_policy": "arc", "store_threshold": 2}}):
        {"cpu_bytes_to_use": 10**10, "blocks_per_chunk": 4, "eviction_policy": "arc", "store_threshold": 2},
}
# -> names of what is not modelled
LEVELS = {
    "-O3": [], "-O=2": [], "-O 3": [], "--optimization-level 2": [],
    "-O0": ["--optimization-level 0"], "-O 1": ["--optimization-level 1"],
    flag("compilation-config", {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"}): [],
    "-cc.cudagraph_mode=NONE": ["--compilation-config.cudagraph_mode"],
    flag("compilation-config", {"cudagraph_mode": "PIECEWISE", "custom_ops": ["all"], "cudagraph_capture_sizes": [1]}):
        ["--compilation-config.cudagraph_mode", "--compilation-config.custom_ops"],
}
SIZES = {
    "--cudagraph-capture-sizes 1 2 4 8": [1, 2, 4, 8],
    "--max-cudagraph-capture-size 32": [1, 2, 4, 8, 16, 24, 32],
    flag("compilation-config", {"cudagraph_capture_sizes": [8, 1]}): [1, 8],
    "-cc.max_cudagraph_capture_size=8": [1, 2, 4, 8],
    "--compilation-config.cudagraph_capture_sizes+ 1,16": [1, 16],
}


@pytest.mark.feature("LLM clients", (
    "Launch commands with speculation, KV offload, CUDA graph sizes and performance modes: `hermes import "
    "vllm --acceptance`"))
@pytest.mark.parametrize("flags", DRAFTS)
def test_speculation(flags):
    read = client_of(f"{SERVE} {flags} --port 8000", told=SHARE)
    assert read.client["scheduler"] == {"kind": "chunked", "speculative": DRAFTS[flags] | {"acceptance_rate": 0.7}}
    assert (read.not_modelled, read.unknown, read.beside) == ([], [], ["--port"])
    load_scenario(scenario(read.client | {"device": "h100-sxm"}))


def scenario(client):
    return {"name": "s", "workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                                      "lengths": {"kind": "fixed", "prompt": 1, "output": 1}}, "clients": [client]}


def test_acceptance_by_position_and_as_vllm_makes_it_up():
    command = f"{SERVE} {flag('speculative-config', EAGLE)}"
    read = client_of(command, told=Told("0.8,0.6,0.5")).client["scheduler"]["speculative"]
    assert read["acceptance_by_position"] == [0.8, 0.6, 0.5]
    made_up = EAGLE | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    command = f"{SERVE} {flag('speculative-config', made_up)}"
    assert client_of(command).client["scheduler"]["speculative"]["acceptance_by_position"] == [1.0, 0.5, 0.0]
    with pytest.raises(InputError, match="says how many drafts are accepted"):
        client_of(command, told=SHARE)


@pytest.mark.parametrize(("flags", "told", "said"), [
    (flag("speculative-config", EAGLE), Told(), "--acceptance: missing: the command drafts 3 tokens a step"),
    (flag("speculative-config", EAGLE), Told("high"), "--acceptance: expected a share such as 0.7"),
    (flag("speculative-config", EAGLE), Told("1.7"), "--acceptance: expected a share from 0 to 1"),
    (flag("speculative-config", EAGLE), Told("0.7,0.5"), "--acceptance: expected 3 shares"),
    (flag("speculative-config", EAGLE), Told("0.5,0.6,0.5"), "that never rise"),
    (flag("speculative-config", EAGLE), Told("0.5", draft_model="qwen3-32b"), "--draft-model: eagle3 has no model"),
    (flag("speculative-config", EAGLE | {"method": "dspark"}), SHARE, "a method that is modelled: ngram"),
    (flag("speculative-config", {"method": "eagle", "model": "x"}), SHARE, "num_speculative_tokens, the drafts"),
    (flag("speculative-config", {"num_speculative_tokens": 3}), SHARE, "names neither a method nor a model"),
    (flag("speculative-config", EAGLE) + " --spec-tokens 4", SHARE, "--spec-tokens: --speculative-config has num_spec"),
    (flag("speculative-config", {"model": "a/b", "num_speculative_tokens": 3}), SHARE, "no description of a/b, which"),
    (flag("speculative-config", {"method": "medusa", "model": "a/b", "num_speculative_tokens": 3}), SHARE,
     "--draft-time: missing: heads of medusa have no price"),
    (flag("speculative-config", {"method": "medusa", "model": "a/b", "num_speculative_tokens": 3}),
     Told("0.7", draft_time="soon"), "--draft-time: expected"),
    ("--speculative-config eagle", SHARE, "--speculative-config: needs a JSON object"),
    ("--speculative-config", SHARE, "--speculative-config: needs a value"),
    ("--kv-offloading-size big", Told(), "--kv-offloading-size: expected GiB"),
    (flag("kv-transfer-config", {"kv_connector": "OffloadingConnector"}), Told(), "missing: the bytes of host memory"),
    (flag("kv-transfer-config", OFFLOAD | {"kv_connector_extra_config": {"block_size": 40}}), Told(),
     "expected a multiple of 16 tokens"),
    ("--cpu-offload-gb 10", Told(), "--cpu-offload-gb: weights in host memory are not modelled"),
    ("--offload-group-size 4", Told(), "--offload-group-size: weights in host memory are not modelled"),
    ("-O7", Told(), "--optimization-level: expected a level from 0 to 3"),
    ("--performance-mode fast", Told(), "--performance-mode: expected balanced, interactivity or throughput"),
    ("--cudagraph-capture-sizes small", Told(), "--cudagraph-capture-sizes: expected whole numbers"),
    ("--max-cudagraph-capture-size -4", Told(), "--max-cudagraph-capture-size: expected a number of tokens"),
])
def test_a_mistake_is_one_line(flags, told, said, capsys):
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        client_of(f"{SERVE} {flags}", told=told)
    assert "\n" not in str(caught.value)
    words = [word for name, value in vars(told).items() if value is not None
             for word in (f"--{name.replace('_', '-')}", value)]
    assert main(["import", "vllm", f"{SERVE} {flags}", "--device", "h100-sxm", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("word", ["--acceptance", "--draft-model", "--draft-time"])
def test_what_is_said_of_drafts_needs_some(word, capsys):
    assert main(["import", "vllm", SERVE, "--device", "h100-sxm", word, "1"]) == 2
    assert f"{word}: no engine has speculative decoding; leave it out" in capsys.readouterr().err


def test_a_draft_model_and_its_time_can_be_given():
    command = f"{SERVE} {flag('speculative-config', {'model': 'a/b', 'num_speculative_tokens': 3})}"
    assert client_of(command, told=Told("0.7", "llama-3.2-3b")).client["scheduler"]["speculative"] == {
        "method": "draft_model", "num_speculative_tokens": 3, "acceptance_rate": 0.7, "draft_model": "llama-3.2-3b"}
    assert client_of(command, told=Told("0.7", None, "2 ms")).client["scheduler"]["speculative"] == {
        "method": "draft_model", "num_speculative_tokens": 3, "acceptance_rate": 0.7, "draft_time": "2 ms"}


def test_fields_of_speculation_that_are_not_modelled_are_named():
    given = EAGLE | {"parallel_drafting": True, "disable_padded_drafter_batch": True, "quantization": None,
                     "use_local_argmax_reduction": False, "draft_tensor_parallel_size": 1}
    read = client_of(f"{SERVE} {flag('speculative-config', given)}", told=SHARE)
    assert read.not_modelled == [f"--speculative-config.{name}" for name in (
        "parallel_drafting", "disable_padded_drafter_batch", "draft_tensor_parallel_size")]
    assert read.client["scheduler"]["async_scheduling"] is False   # as vLLM does without padding


@pytest.mark.parametrize("flags", OFFLOADS)
def test_kv_offload(flags):
    read = client_of(f"{SERVE} {flags}")
    assert read.client["memory"] == {"kv_offload": OFFLOADS[flags]}
    assert read.client["scheduler"] == {"kind": "chunked", "async_scheduling": False}
    assert read.not_modelled == [SYNCHRONOUS]
    assert client_of(f"{SERVE} {flags} --no-async-scheduling").not_modelled == []
    load_scenario(scenario(read.client | {"device": "h100-sxm"}))


@pytest.mark.parametrize(("flags", "named"), [
    ("--kv-offloading-size 10 --kv-offloading-backend lmcache",
     "--kv-offloading-backend lmcache (its copies of KV in host memory)"),
    (flag("kv-transfer-config", {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}),
     "--kv-transfer-config (LMCacheConnectorV1: LMCache, KV in host memory or a store)"),
])
def test_other_ways_to_keep_kv_are_named(flags, named):
    read = client_of(f"{SERVE} {flags}")
    assert read.client.keys() == {"model"}
    assert read.not_modelled == [named]


def test_fields_of_the_connector_that_are_not_modelled_are_named():
    given = OFFLOAD | {"kv_connector_module_path": "mine", "kv_connector_extra_config": {
        "cpu_bytes_to_use": 10**9, "spec_name": "TieringOffloadingSpec", "secondary_tiers": [{}]}}
    read = client_of(f"{SERVE} --no-async-scheduling {flag('kv-transfer-config', given)}")
    assert read.not_modelled == ["--kv-transfer-config.kv_connector_module_path",
                                 "--kv-transfer-config.kv_connector_extra_config.spec_name",
                                 "--kv-transfer-config.kv_connector_extra_config.secondary_tiers"]


@pytest.mark.parametrize("flags", LEVELS)
def test_optimization_levels(flags):
    named = client_of(f"{SERVE} {flags}").not_modelled
    assert [name.partition(" ")[0] if name.startswith("--c") else name[:22] for name in named] == LEVELS[flags]
    older = client_of(f"{SERVE} -O '{json.dumps({'level': 3, 'pass_config': {'x': 1}})}'")
    assert older.not_modelled == ["--compilation-config.pass_config"]


@pytest.mark.parametrize("flags", SIZES)
def test_sizes_of_cuda_graphs(flags):
    read = client_of(f"{SERVE} {flags} --seed 1")
    assert read.client["hardware"] == {"kind": "composed", "cudagraph_capture_sizes": SIZES[flags]}
    assert read.beside == ["--seed"]


def test_flags_of_several_values():
    read = client_of(f"{SERVE} --served-model-name a b c --port 1")
    assert read.beside == ["--served-model-name", "--port"]
    assert read.unknown == []


def clients(command, **more):
    return read_source(command, None, **{"device": "h100-sxm", "engine": None, "model": None, **more}).clients


def test_throughput_doubles_the_defaults():
    usual = load_scenario(scenario(clients(SERVE)[0])).clients[0].scheduler
    assert (usual.max_num_batched_tokens, usual.max_num_seqs) == (8192, 1024)
    for flags, tokens, seqs in (("", 16384, 2048), ("--max-num-seqs 64", 16384, 64),
                                ("--max-num-batched-tokens 2k", 2000, 2000),
                                ("--no-enable-chunked-prefill", 131072, 2048)):   # the context of the model
        [client] = clients(f"{SERVE} --performance-mode throughput {flags}")
        found = load_scenario(scenario(client)).clients[0].scheduler
        assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, seqs)
    [client] = clients(f"{SERVE} --performance-mode throughput", device="l40s")
    assert client["scheduler"]["max_num_batched_tokens"] == 4096
    assert clients(f"{SERVE} --performance-mode balanced") == clients(SERVE)


def test_interactivity_captures_each_small_batch():
    [client] = clients(f"{SERVE} --performance-mode interactivity")
    sizes = client["hardware"]["cudagraph_capture_sizes"]
    assert sizes[:32] == list(range(1, 33))
    assert sizes[32:] == [size for size in captured_sizes(512) if size > 32]
    [given] = clients(f"{SERVE} --performance-mode interactivity --cudagraph-capture-sizes 1 2")
    assert given["hardware"]["cudagraph_capture_sizes"] == [1, 2]


@given(st.sampled_from(["balanced", "interactivity", "throughput"]), st.sampled_from(["h100-sxm", "l40s", "h200"]),
       st.none() | st.integers(1, 4000), st.none() | st.integers(1, 4000))
def test_a_mode_keeps_what_a_command_says(mode, device, tokens, seqs):
    given = {key: value for key, value in (("max_num_batched_tokens", tokens), ("max_num_seqs", seqs)) if value}
    client = {"model": "llama-3.1-8b", "scheduler": {"kind": "chunked", **given}}
    notes = apply_mode(client, mode, load_engine("vllm-0.32"), load_device(device), None)
    assert given.items() <= client["scheduler"].items()
    assert len(notes) == (mode != "balanced")


def test_sizes_of_graphs_are_simulated(capsys):
    """A batch of 5 costs what one of 8 does, unless 5 is captured; one beyond the largest has no graph."""
    def step(sizes):
        hardware = {"kind": "composed", "cudagraph_capture_sizes": sizes}
        return load_scenario(scenario({"model": "llama-3.1-8b", "device": "h100-sxm", "hardware": hardware}))

    def rows(sizes):
        config = step(sizes).clients[0].hardware.completed(ClientTerms("llama-3.1-8b", "h100-sxm", "vllm-0.32"))
        model = config.build()
        return [model.rows(tokens) for tokens in (5, 8, 100)]

    assert rows([]) == [8, 8, 104]
    assert rows([8, 5, 1]) == [5, 8, 100]


def test_an_older_engine_has_neither(capsys):
    source = read_source(f"docker run vllm/vllm-openai:v0.28.0 --model meta-llama/Llama-3.1-8B --kv-offloading-size 9 "
                         f"{flag('speculative-config', EAGLE)}", None, device="h100-sxm", engine=None, model=None,
                         told=SHARE)
    assert source.warnings == ["not modelled: KV offload with vllm-0.28 (only 0.32.0 and 0.33.0)",
                               "not modelled: --speculative-config with vllm-0.28 (only from 0.31 on)"]
    assert source.clients[0]["scheduler"] == {"kind": "chunked"}


@pytest.mark.parametrize("more", [
    {"scheduler": {"kind": "chunked", "speculative": {"method": "eagle3", "num_speculative_tokens": 3,
                                                      "acceptance_rate": 0.7}}},
    {"scheduler": {"kind": "chunked", "speculative": {"method": "ngram", "num_speculative_tokens": 2,
                                                      "acceptance_rate": 0.7}}},
    {"scheduler": {"kind": "chunked", "speculative": {"method": "draft_model", "draft_model": "llama-3.2-3b",
                                                      "num_speculative_tokens": 2, "acceptance_rate": 0.7}}},
    {"scheduler": {"kind": "chunked", "async_scheduling": False},
     "memory": {"kv_offload": {"cpu_bytes_to_use": 10**11, "blocks_per_chunk": 2, "eviction_policy": "arc",
                               "offload_prompt_only": False, "store_threshold": 3}}},
    {"hardware": {"kind": "composed", "cudagraph_capture_sizes": [1, 2, 64]}},
])
def test_what_is_printed_is_read_as_the_same_client(more):
    first = load_scenario(scenario({"model": "llama-3.1-8b", "device": "h100-sxm", **more}))
    [(_, command)] = commands_of(first)
    told = SHARE if "speculative" in more.get("scheduler", {}) else Told()
    read = client_of(command, told=told)
    assert read.not_modelled == read.unknown == []
    again = load_scenario(scenario(read.client | {"device": "h100-sxm", "model": "llama-3.1-8b"})).clients[0]
    assert again.scheduler == first.clients[0].scheduler
    assert again.memory == first.clients[0].memory
    assert getattr(again.hardware, "cudagraph_capture_sizes", []) == getattr(
        first.clients[0].hardware, "cudagraph_capture_sizes", [])
    heads = [line for line in assumed_names(first) if DRAFT_HEAD in line]
    assert bool(heads) == (DRAFT_HEAD in command)


def test_a_manifest_has_the_same_words(tmp_path, capsys):
    file = tmp_path / "values.yaml"
    file.write_text(f"""
servingEngineSpec:
  modelSpec:
  - name: drafts
    repository: vllm/vllm-openai
    tag: v0.32.0
    modelURL: meta-llama/Llama-3.1-8B
    vllmConfig:
      enablePrefixCaching: true
      speculativeConfig: {{method: ngram, num_speculative_tokens: 3}}
  - name: offloads
    repository: vllm/vllm-openai
    tag: v0.32.0
    modelURL: meta-llama/Llama-3.1-8B
    vllmConfig:
      enablePrefixCaching: true
      extraArgs: ["--kv-offloading-size", "8", "--performance-mode=throughput"]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: eagle}}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: ["--model", "meta-llama/Llama-3.1-8B", "--speculative-config", '{json.dumps(EAGLE)}', "-O3"]
""")
    found = read_source(file.read_text(), str(file), device="h100-sxm", engine=None, model=None, told=SHARE)
    drafts, offloads, eagle = found.clients
    assert drafts["scheduler"]["speculative"] == {"method": "ngram", "num_speculative_tokens": 3,
                                                  "acceptance_rate": 0.7}
    assert offloads["memory"]["kv_offload"] == {"cpu_bytes_to_use": 8 * 2**30}
    assert offloads["scheduler"]["max_num_seqs"] == 2048
    assert eagle["scheduler"]["speculative"]["method"] == "eagle3"
    assert main(["import", "vllm", str(file), "--device", "h100-sxm"]) == 2
    assert "--acceptance: missing" in capsys.readouterr().err


READER = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:   # up to 0.32
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
read = []
for words in json.loads(sys.stdin.read()):
    found = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", *words])
    sizes = found.cudagraph_capture_sizes or found.compilation_config.cudagraph_capture_sizes
    most = found.max_cudagraph_capture_size or found.compilation_config.max_cudagraph_capture_size
    drafts = {key.replace("-", "_"): value for key, value in (found.speculative_config or {}).items()}   # as it does
    read.append([found.spec_tokens or drafts.get("num_speculative_tokens"),
                 found.kv_offloading_size, str(found.optimization_level), sizes and sorted(sizes), most,
                 bool(found.kv_transfer_config)])
print(json.dumps(read))
"""


@pytest.mark.skipif(not ENGINE, reason="HERMES_VLLM_PYTHON names no interpreter with vLLM")
def test_vllms_parser_reads_the_same():
    assert ENGINE is not None
    table = {**DRAFTS, **OFFLOADS, **LEVELS, **SIZES}
    commands = [shlex.split(f"meta-llama/Llama-3.1-8B {flags}") for flags in table]
    done = subprocess.run([ENGINE, "-c", READER], input=json.dumps(commands), capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    for (flags, ours), read in zip(table.items(), json.loads(done.stdout.splitlines()[-1]), strict=True):
        tokens, size, level, sizes, most, transfer = read
        if flags in SIZES:
            assert (sizes or list(captured_sizes(most))) == ours
        elif flags in LEVELS:
            assert level == (re.search(r"-O\D?(\d)", flags) or [None, "2"])[1]
        elif flags in OFFLOADS:
            assert (size * 2**30 == ours["cpu_bytes_to_use"]) if size else transfer
        else:
            assert tokens == ours["num_speculative_tokens"] or "suffix" in flags
