"""`hermes import vllm` and `hermes export vllm`: against the flags of vLLM 0.33.0's own parser."""

import json
import shlex
from pathlib import Path

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from hermes.api import load_scenario
from hermes.cli import main
from hermes.deploy.vllm import assumed_names, client_of, commands_of, launches_of
from hermes.deploy.vllm_features import FEATURES, MANY
from hermes.deploy.vllm_flags import BESIDE, CAPACITY, EARLIER, FLAGS, NOT_MODELLED, ON, SHORT, SWITCHES, whole_number
from hermes.deploy.vllm_models import described
from hermes.errors import InputError

# names of its flags, and which take a value: from its argument parser (scripts/vllm_serve_flags.py)
PARSER = json.loads((Path(__file__).parents[1] / "data" / "vllm-serve-flags.json").read_text())
THEIRS = PARSER["flags"]
BASE = {
    "workload": {"requests": 1, "arrivals": {"kind": "at_once"},
                 "lengths": {"kind": "fixed", "prompt": 1, "output": 1}},
    "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}],
}


def test_every_flag_is_one_of_vllms():
    assert ({*FLAGS, *BESIDE, *NOT_MODELLED, *FEATURES, *CAPACITY, *SHORT.values()} - EARLIER) <= THEIRS.keys()
    assert not (BESIDE & NOT_MODELLED) | (BESIDE & FLAGS.keys()) | (NOT_MODELLED & FLAGS.keys())
    assert not FEATURES & {*FLAGS, *BESIDE, *NOT_MODELLED}


def test_switches_are_those_of_vllm():
    known = ({*FLAGS, *BESIDE, *NOT_MODELLED}) - EARLIER
    ours = {name for name, flag in FLAGS.items() if flag.kind in ("switch", "off")} | (SWITCHES - EARLIER)
    assert ours == {name for name in known if THEIRS[name] == "switch"}


def read_with(*words):
    """What a command with these words is read as; None if it is refused with the name of the first."""
    try:
        return client_of("vllm serve meta-llama/Llama-3.1-8B " + " ".join(words))
    except InputError as error:
        assert words[0].replace("_", "-") in str(error) or words[0].startswith("--spec")   # of the configuration
        return None


@each("name", THEIRS)
def test_every_flag_of_vllm_is_read_or_refused_by_name(name):
    """No flag is unknown, and what follows one is never taken for a model."""
    if name == "model":
        return
    values = {"switch": (), "value": ("1",), "values": ("1", "2")}[THEIRS[name]]
    for read in (read_with(f"--{name}", *values), read_with(f"--{name.replace('-', '_')}", *values)):
        assert read is None or not read.unknown
        assert read is None or read.client["model"] == "llama-3.1-8b"


@each("name", PARSER["off"])
def test_every_word_that_turns_a_switch_off(name):
    off, old = read_with(f"--{name}"), read_with(f"--no-{PARSER['off'][name]}")
    assert off is not None
    assert old is not None
    assert (off.client, off.beside, off.not_modelled, off.unknown) == (
        old.client, old.beside, old.not_modelled, []) or name == "disable-log-requests"


def test_opposites_of_0_33():
    assert read_with("--disable-prefix-caching").client["memory"] == {"prefix_caching": False}
    assert read_with("--disable-chunked-prefill").client["scheduler"]["enable_chunked_prefill"] is False
    assert read_with("--enable-hybrid-kv-cache-manager").client["memory"] == {"hybrid": True}
    assert "max_loras" not in read_with("--enable-lora --max-loras 4 --disable-lora").client.get("scheduler", {})
    assert read_with("--watchdog-config.timeout 30 --kernel-config.monokernel true").unknown == []
    assert read_with("--disable-eplb").not_modelled == []
    assert read_with("--no-swa-bounded-replay").not_modelled == ["--no-swa-bounded-replay"]


def test_switches_that_are_on_are_those_of_vllm():
    assert {*PARSER["on"]} & NOT_MODELLED == ON
    assert {name for name, kind in THEIRS.items() if kind == "values"} == MANY
    assert {**PARSER["short"], "O": "optimization-level"} == SHORT


@pytest.mark.feature("Results, sweeps, studies", "`hermes import vllm`, `hermes export vllm`")
def test_a_command_with_everything():
    read = client_of(
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve --trust-remote-code meta-llama/Llama-3.1-70B-Instruct -tp 4 \\\n"
        "  --max_num_batched_tokens 8k --max-num-seqs=512 --no-enable-prefix-caching --port 8000 --enforce-eager "
        "--frobnicate 3 --gpu-memory-utilization 0.9 --kv-cache-dtype fp8 --max-model-len auto --dtype auto "
        "--no-async-scheduling --pipeline-parallel-size 1")
    assert read.client == {
        "model": "meta-llama/Llama-3.1-70B-Instruct", "parallel": {"tp": 4},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": 8000, "max_num_seqs": 512,
                      "async_scheduling": False},
        "memory": {"prefix_caching": False, "utilization": 0.9}, "hardware": {"kind": "composed", "kv_dtype": "fp8"},
    }
    assert read.not_modelled == ["--enforce-eager"]
    assert read.unknown == ["--frobnicate"]
    assert read.beside == ["--trust-remote-code", "--port"]


@pytest.mark.parametrize(("command", "client"), [
    ("vllm serve Qwen/Qwen3-235B-A22B -dp 4 -tp 2 --enable-expert-parallel", {"parallel": {"tp": 2, "dp": 4, "ep": 8}}),
    ("vllm serve Qwen/Qwen3-235B-A22B -dp 8 --enable-expert-parallel --all2all-backend deepep_low_latency",
     {"parallel": {"dp": 8, "ep": 8}, "hardware": {"kind": "composed", "all2all": "deepep_low_latency"}}),
    ("vllm serve Qwen/Qwen3-235B-A22B -tp 8 --enable-expert-parallel --all2all-backend deepep_low_latency",
     {"parallel": {"tp": 8, "ep": 8}}),
    ("vllm serve mistralai/Mixtral-8x7B-v0.1 -dp 2", {"parallel": {"dp": 2}}),
    ("vllm serve meta-llama/Llama-3.1-405B -tp 8 -pp 2 -ep", {"parallel": {"tp": 8, "pp": 2}}),
    ("vllm serve meta-llama/Llama-3.1-8B -dp 3", {"count": 3}),   # engines that share nothing
])
def test_ranks_and_stages(command, client):
    found = client_of(command).client
    assert {key: found[key] for key in ("parallel", "count", "hardware") if key in found} == client


@pytest.mark.parametrize("parallel", [{"tp": 2, "dp": 4, "ep": 8}, {"dp": 4}, {"tp": 8, "pp": 2}])
def test_ranks_and_stages_of_a_scenario(parallel):
    base = {**BASE, "clients": [{"model": "qwen3-235b-a22b", "device": "h200", "parallel": parallel,
                                 "memory": {"num_blocks": 1000}}]}
    [(_, command)] = commands_of(load_scenario(base))
    words = shlex.split(command)
    flags = {"tp": "--tensor-parallel-size", "pp": "--pipeline-parallel-size", "dp": "--data-parallel-size"}
    for key, flag in flags.items():
        assert (words[words.index(flag) + 1] if flag in words else "1") == str(parallel.get(key, 1))
    assert ("--enable-expert-parallel" in words) == ("ep" in parallel)
    assert client_of(command).client["parallel"] == parallel


def test_deepep_of_a_scenario():
    hardware = {"kind": "composed", "all2all": "deepep_low_latency"}
    base = {**BASE, "clients": [{"model": "qwen3-235b-a22b", "device": "h200", "parallel": {"dp": 8, "ep": 8},
                                 "hardware": hardware, "memory": {"num_blocks": 1000}}]}
    [(_, command)] = commands_of(load_scenario(base))
    assert client_of(command).client["hardware"] == hardware
    assert client_of(command.replace("deepep_low_latency", "mori")).not_modelled == ["--all2all-backend"]


@pytest.mark.parametrize(("name", "model", "dtype"), [
    ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b", ""), ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8-block"),
    ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b", ""), ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b", ""),
    ("neuralmagic/Mistral-7B-Instruct-v0.3-FP8", "mistral-7b", "fp8"),
    ("/models/Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8-block"),
])
def test_models_by_their_names(name, model, dtype):
    found, how = described(name)
    assert (found, how.dtype) == (model, dtype)


@pytest.mark.parametrize(("words", "model", "hardware"), [
    ("Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B-FP8", {"dtype": "fp8-block"}),
    ("Qwen/Qwen3-30B-A3B-FP8 --quantization fp8", "Qwen/Qwen3-30B-A3B-FP8", {"dtype": "fp8-block"}),
    ("Qwen/Qwen3-30B-A3B-FP8 --dtype bfloat16", "Qwen/Qwen3-30B-A3B-FP8", {"dtype": "fp8-block"}),
    ("Qwen/Qwen3-30B-A3B --quantization fp8", "qwen3-30b-a3b", {"dtype": "fp8"}),
    ("Qwen/Qwen3-30B-A3B -q fp8_per_block", "qwen3-30b-a3b", {"dtype": "fp8-block"}),
    ("Qwen/Qwen3-30B-A3B --dtype half", "qwen3-30b-a3b", {"dtype": "bf16"}),
    ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", {}),
    ("deepseek-ai/DeepSeek-V3 --quantization fp8", "deepseek-v3", {}),   # its description has blocks
    ("openai/gpt-oss-120b --quantization mxfp4 --dtype bfloat16", "gpt-oss-120b", {}),
    ("moonshotai/Kimi-K2-Thinking --quantization compressed-tensors", "kimi-k2-thinking", {}),
    ("Qwen/Qwen3-32B-AWQ --quantization awq_marlin", "Qwen/Qwen3-32B-AWQ", {"dtype": "int4-awq"}),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "nvidia/Llama-3.1-70B-Instruct-FP8", {"dtype": "fp8", "kv_dtype": "fp8"}),
    ("nvidia/Llama-3.1-70B-Instruct-FP8 --kv-cache-dtype auto", "nvidia/Llama-3.1-70B-Instruct-FP8",
     {"dtype": "fp8", "kv_dtype": "fp8"}),
    ("nvidia/Llama-3.1-70B-Instruct-FP8 --kv-cache-dtype bfloat16", "nvidia/Llama-3.1-70B-Instruct-FP8",
     {"dtype": "fp8", "kv_dtype": "bf16"}),
])
def test_a_flag_does_not_replace_the_precision_of_a_checkpoint(words, model, hardware):
    client = client_of(f"vllm serve {words}").client
    assert client["model"] == model
    assert client.get("hardware", {}) == ({"kind": "composed", **hardware} if hardware else {})


@pytest.mark.parametrize("model", ["Qwen/Qwen3-30B-A3B-FP8", "RedHatAI/Qwen3-30B-A3B-FP8-dynamic"])
def test_a_checkpoint_is_launched_by_its_name_without_a_flag(model):
    client = {**client_of(f"vllm serve {model}").client, "device": "h100-sxm"}
    [(_, command)] = commands_of(scenario := load_scenario(BASE | {"clients": [client]}))
    assert shlex.split(command)[2] == model
    assert "--quantization" not in command
    assert assumed_names(scenario) == []


def test_a_precision_that_no_flag_gives_is_said():
    client = {"model": "qwen3-30b-a3b", "device": "h100-sxm", "hardware": {"kind": "composed", "dtype": "fp8-block"}}
    scenario = load_scenario(BASE | {"clients": [client]})
    assert "no flag gives Qwen/Qwen3-30B-A3B the precision `dtype: fp8-block`" in assumed_names(scenario)[1]
    [(_, command)] = commands_of(scenario)
    assert "--quantization" not in command


def test_the_longest_sequence_is_that_of_the_checkpoint(capsys):
    command = "vllm serve Qwen/Qwen3-30B-A3B-{}2507 --max-model-len 60000"
    for kind in ("Instruct-", "Thinking-"):
        client = client_of(command.format(kind)).client | {"device": "h100-sxm"}
        assert load_scenario(BASE | {"clients": [client]}).clients[0].max_model_len == 60_000
    assert main(["import", "vllm", "vllm serve Qwen/Qwen3-30B-A3B --max-model-len 60000", "--device", "h100-sxm"]) == 2
    assert "60000 is more than 40960" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "said"), [
    ("python serve.py", "a command `vllm serve MODEL"), ("vllm serve", "names no model"),
    ("vllm serve acme/new-model", "save its config.json"), ("vllm serve x 'y", "a command that a shell can read"),
    ("vllm serve Qwen/Qwen3-32B --max-num-seqs many", "--max-num-seqs: expected a whole number"),
    ("vllm serve Qwen/Qwen3-32B --max-num-seqs", "--max-num-seqs: needs a value"),
    ("vllm serve Qwen/Qwen3-32B --quantization magic", "--quantization: expected one of"),
    ("vllm serve Qwen/Qwen3-32B --quantization awq", "because the weights of qwen3-32b have 16 bits"),
    ("vllm serve Qwen/Qwen3-32B --dtype fp8", "--dtype: expected auto or one of"),
    ("vllm serve RedHatAI/Qwen3-32B-FP8-block --quantization fp8", "stored (compressed-tensors), so that vLLM"),
    ("vllm serve openai/gpt-oss-20b --quantization fp8", "are stored (mxfp4), so that vLLM does not start"),
    ("vllm serve Qwen3-30B-A3B-FP8", "its publisher is not in the name"),
    ("vllm serve /models/Qwen3-30B-A3B-FP8", "not known for checkpoints of models"),
    ("vllm serve TheBloke/Llama-2-7B-Chat-GGUF", "a format of other engines"),
    ("vllm serve meta-llama/Llama-4-Scout-17B-16E-Instruct", "chunked attention in three of four layers"),
])
def test_a_mistake_is_one_line(command, said, capsys):
    assert main(["import", "vllm", command, "--device", "h100-sxm"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_number_of_400_digits_is_no_number():
    with pytest.raises(InputError, match="is not a whole number"):
        whole_number("x", "9" * 400)


@given(st.integers(1, 10**6))
def test_whole_numbers(value):
    assert whole_number("x", str(value)) == value
    assert whole_number("x", f"{value}k") == 1000 * value
    assert whole_number("x", f"{value}K") == 1024 * value
    with pytest.raises(InputError):
        whole_number("x", f"{value}.5")


def test_what_is_printed_is_read_as_the_same_client():
    """Every key that a flag stands for survives the way out and back."""
    client = {
        "model": "qwen3-32b", "device": "h100-sxm", "parallel": {"tp": 2}, "max_model_len": 16000,
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": 4096, "max_num_seqs": 64, "policy": "priority",
                      "long_prefill_token_threshold": 1000, "watermark": 0.01, "enable_chunked_prefill": True,
                      "async_scheduling": False, "max_num_scheduled_tokens": 3000, "max_num_active_seqs": 32,
                      "max_num_queued_reqs": 100, "max_num_queued_tokens": 10**6, "max_loras": 4,
                      "adaptive_long_prefill_threshold": True, "reserve_full_isl": False},
        "memory": {"utilization": 0.85, "block_size": 32, "num_blocks": 3000, "prefix_caching": False,
                   "hybrid": False},
        "hardware": {"kind": "composed", "dtype": "fp8", "kv_dtype": "fp8"},
        "api_servers": {"count": 2, "stream_interval": 4},
    }
    first = load_scenario(BASE | {"clients": [client]})
    [(_, command)] = commands_of(first)
    again = load_scenario(BASE | {"clients": [client_of(command).client | {"device": "h100-sxm"}]})
    assert again.clients == first.clients
    given = {f"{part}.{key}" for part in ("scheduler", "memory", "parallel", "api_servers")
             for key in client[part]}
    ranks = {"parallel.pp", "parallel.dp", "parallel.ep", "scheduler.prefill_schedule_interval"}   # tested elsewhere
    assert given - {"scheduler.kind"} | {"max_model_len"} == {flag.path for flag in FLAGS.values()} - ranks


def test_the_cadence_of_ranks_and_what_vllm_ignores():
    command = "vllm serve Qwen/Qwen3-235B-A22B -dp 4 --prefill-schedule-interval 8 --max-loras 3"
    read = client_of(command).client
    assert read["scheduler"] == {"kind": "chunked", "prefill_schedule_interval": 8}
    first = load_scenario(BASE | {"clients": [{**read, "device": "h200", "memory": {"num_blocks": 1000}}]})
    assert "--prefill-schedule-interval 8" in commands_of(first)[0][1]
    alone = client_of(command.replace("-dp 4", "--enable-lora")).client
    assert alone["scheduler"] == {"kind": "chunked", "prefill_schedule_interval": 8, "max_loras": 3}   # from 0.33 on
    assert client_of("vllm serve Qwen/Qwen3-32B --enable-lora").client["scheduler"]["max_loras"] == 1


@pytest.mark.parametrize("name", ["quickstart", "chatbot", "batching/chunked", "pipelines/rag"])
def test_commands_use_flags_that_there_are(name):
    for _, command in commands_of(load_scenario(name)):
        words = shlex.split(command)
        assert words[:2] == ["vllm", "serve"]
        place = 3
        while place < len(words):
            flag = words[place].removeprefix("--").removeprefix("no-")
            assert flag in THEIRS
            place += 1 if THEIRS[flag] == "switch" else 2


@pytest.mark.long
def test_the_commands(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    assert main(["import", "vllm", "vllm serve Qwen/Qwen3-32B -tp 2 --enforce-eager", "--device", "h100-sxm", "-o",
                 str(file)]) == 0
    assert "not modelled: --enforce-eager" in capsys.readouterr().err
    assert load_scenario(file).clients[0].parallel.tp == 2
    assert main(["export", "vllm", "quickstart"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# h100: 4 of them\nvllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4 ")


def test_the_checkpoint_that_was_imported_is_exported(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64"
    assert main(["import", "vllm", command, "--device", "h100-sxm", "--rate", "1", "-o", str(file)]) == 0
    assert "is simulated as" not in capsys.readouterr().err
    assert main(["export", "vllm", str(file)]) == 0
    said = capsys.readouterr()
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct " in said.out
    assert said.err == ""
    assert [launch.model for launch in launches_of(load_scenario(file))] == ["meta-llama/Llama-3.1-8B-Instruct"]


def test_an_assumed_checkpoint_is_said(tmp_path, capsys):
    assert main(["export", "vllm", "quickstart"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("note: meta-llama/Llama-3.1-70B is assumed for `model: llama-3.1-70b`; ")
    assert main(["export", "llm-d", "quickstart"]) == 0
    assert "\n# meta-llama/Llama-3.1-70B is assumed for" in capsys.readouterr().out
    command = "vllm serve mistralai/Mistral-7B-Instruct-v0.3"
    assert main(["import", "vllm", command, "--device", "h100-sxm", "--rate", "1", "-o", str(tmp_path / "m.yaml")]) == 0
    assert ("model mistralai/Mistral-7B-Instruct-v0.3 is simulated as mistral-7b; `hermes export` calls it "
            "mistralai/Mistral-7B-v0.1") in capsys.readouterr().err
