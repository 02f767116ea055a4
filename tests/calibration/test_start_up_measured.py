"""`measure: start-up` against a server that starts like vLLM: plan, journal, file, fit, and the use in a scenario."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from hermes.calibration.collect.start_up import StartUpCollector
from hermes.calibration.collect.written_model import tensors, weight_files, write_model
from hermes.calibration.measurements.start_up import StartUpMeasurement
from hermes.calibration.plan import save_plan
from hermes.calibration.start_up import load_starts, models_of, scenario_lines, times_of
from hermes.calibration.testing import MeasurementContract
from hermes.cli import main
from hermes.config.data_files import resource_dir
from hermes.config.validation import load
from hermes.errors import InputError
from hermes.hardware.start_up import StartUpTimes

ENGINE = os.environ.get("HERMES_VLLM_PYTHON", "")
SERVER = shlex.quote(str(Path(__file__).with_name("fake_vllm_server.py")))
COMMAND = f"{{python}} {SERVER} --model {{model}} --port {{port}}"


def config(layers: int, hidden: int = 256) -> dict[str, object]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
            "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": hidden // 4, "vocab_size": 1000, "tie_word_embeddings": False,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu"}


def models_in(folder: Path, *layers: int) -> list[str]:
    for each in layers:
        (folder / f"m{each}.json").write_text(json.dumps(config(each)))
    return [f"./m{each}.json" for each in layers]


def plan_file(at: Path, *layers: int, **keys: object) -> Path:
    path = at / "plan.yaml"
    path.write_text(yaml.safe_dump({"measure": "start-up", "models": models_in(at, *layers), "command": COMMAND,
                                    "repetitions": 1, **keys}))
    return path


class TestStartUpKeepsTheContract(MeasurementContract):
    """The contract's plans have a folder of their own: here a shipped model's form, without weights."""

    def make(self) -> StartUpMeasurement:
        return StartUpMeasurement(models=["qwen2.5-0.5b"], command=COMMAND, weights="dummy", repetitions=1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Starts of three models, measured once: the folder."""
    folder = tmp_path_factory.mktemp("starts")
    assert main(["calibrate", "run", str(plan_file(folder, 2, 8, 16)), "-q"]) == 0
    return folder


@pytest.mark.long
def test_phases_of_cold_and_warm_starts(measured):
    found = load_starts(measured / "starts.yaml")
    assert found.engine == "vLLM 0.21.0"
    assert [(start.model, start.cache, start.compiled) for start in found.starts] == [
        (model.name, cache, cache == "cold") for model in found.models for cache in ("cold", "warm")]
    for model in found.models:
        assert model.sizes == [1, 2, 4, 8]
        cold, warm = (times_of(found, model.name, cache) for cache in ("cold", "warm"))
        assert cold["compile_s"].median == pytest.approx(0.01 + 0.004 * model.layers, abs=2e-3)
        assert warm["compile_s"].median == pytest.approx(0.01 + 0.001 * model.layers, abs=2e-3)
        assert cold["capture_s"].median >= 0.05
        assert cold["first_request_s"].median >= 0.05
    for start in found.starts:
        assert start.process_s + start.weights_s + start.compile_s + start.profiling_s + start.capture_s == (
            pytest.approx(start.time_s, abs=0.01))
        assert start.imports_s + start.launch_s + start.server_s <= start.process_s + 0.05
        assert start.cpu_time_s > 0


@pytest.mark.long
def test_a_run_continues_and_a_cut_journal_is_packed(measured, tmp_path, capsys):
    journal = measured / "starts.journal.jsonl"
    whole = journal.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.journal.jsonl"
    cut.write_text("".join(whole[:-2]) + whole[-2][:40])
    assert main(["calibrate", "pack", str(cut), "-o", str(tmp_path / "cut.yaml")]) == 0
    said = capsys.readouterr().out
    assert "2 of 6 planned points were not measured" in said
    assert len(load_starts(tmp_path / "cut.yaml").starts) == 4
    for name in ("plan.yaml", "m2.json", "m8.json", "m16.json"):
        (tmp_path / name).write_bytes((measured / name).read_bytes())
    (tmp_path / "starts.journal.jsonl").write_text(cut.read_text())
    assert main(["calibrate", "run", str(tmp_path / "plan.yaml"), "-q"]) == 0   # the warm one fills its cache first
    found = load_starts(tmp_path / "starts.yaml")
    assert [start.compiled for start in found.starts if start.model == "m16"] == [True, False]


def test_the_fit_leaves_each_model_out_and_a_scenario_uses_it(measured, tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    assert main(["fit", str(measured / "starts.yaml"), "-o", str(mine), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {one["model"] for one in data["errors"]} == {"m2", "m8", "m16"}
    fitted = load(StartUpTimes, mine)
    assert fitted.load_compiled.per_layer == pytest.approx(0.001, rel=0.3)
    compiled = [one for one in data["errors"] if (one["phase"], one["cache"]) == ("compile", "warm")]
    assert all(one["predicted_s"] == pytest.approx(one["measured_s"], rel=0.2) for one in compiled)
    scenario = {
        "workload": {"requests": 20, "arrivals": {"kind": "poisson", "rate": 5},
                     "lengths": {"kind": "fixed", "prompt": 64, "output": 8}},
        "clients": [{"name": "llm", "count": 2, "model": "llama-3.1-8b", "device": "a100-80gb", "fleet": {
            "start": 1, "start_up": {"times": str(mine), "probe": 1},
            "autoscaler": {"kind": "schedule", "changes": [{"at": 1, "replicas": 2}]}}}]}
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(scenario))
    assert main(["explain", str(file)]) == 0
    assert "mine: vLLM 0.21.0 on cpu-core" in " ".join(capsys.readouterr().out.split())
    lines = "\n".join(scenario_lines(load_starts(measured / "starts.yaml"), "m8"))
    scenario["clients"][0]["fleet"]["start_up"] = {**yaml.safe_load(lines)["start_up"], "probe": 1}
    file.write_text(yaml.safe_dump(scenario))
    assert main(["explain", str(file)]) == 0
    assert "a replica is ready after" in capsys.readouterr().out


def test_what_an_empty_cache_costs_beside_compiling_counts_as_compiling(measured):
    """vLLM finds out about a model's class again, in a process of its own. The sum of the phases stays as measured."""
    found = load_starts(measured / "starts.yaml")
    found = found.model_copy(update={"starts": [start.model_copy(update={
        "process_s": process, "compile_s": 5.0,
        "time_s": process + 5.0 + start.weights_s + start.profiling_s + start.capture_s})
        for start in found.starts for process in [3.0 if start.cache == "cold" else 2.0]]})
    lines = yaml.safe_load("\n".join(scenario_lines(found, "m8")))["start_up"]
    assert lines["process"] == "2 s"
    assert lines["compile"] == {"cold": "6 s", "warm": "5 s"}
    for model in models_of(found, "starts.yaml"):
        for cache in ("cold", "warm"):
            parts = [model.seconds[cache, phase] for phase in ("process", "weights", "compile", "profiling", "capture")]
            assert sum(parts) == pytest.approx(model.seconds[cache, "wall"])
        assert model.seconds["cold", "compile"] == 6.0


def test_one_model_is_not_enough_for_a_fit(tmp_path, capsys):
    assert main(["calibrate", "run", str(plan_file(tmp_path, 2)), "-q"]) == 0
    capsys.readouterr()
    assert main(["fit", str(tmp_path / "starts.yaml")]) == 2
    assert "starts of at least 2 models" in capsys.readouterr().err


@pytest.mark.long
def test_dummy_weights_have_no_loading(tmp_path, capsys):
    assert main(["calibrate", "run", str(plan_file(tmp_path, 2, 4, weights="dummy")), "-q"]) == 0
    assert all(start.weights_s is None for start in load_starts(tmp_path / "starts.yaml").starts)
    capsys.readouterr()
    assert main(["fit", str(tmp_path / "starts.yaml")]) == 2
    assert "no weights read in cold starts of m2" in capsys.readouterr().err


def test_a_server_that_ends_is_a_failed_point(tmp_path, capsys):
    assert main(["calibrate", "run", str(plan_file(tmp_path, 2, command=f"{COMMAND} --break")), "-q"]) == 2
    said = capsys.readouterr().err
    assert "the server ended with exit code 1 before it was ready" in said
    assert "ValueError: no memory for the KV cache" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("command", "told"), [
    (f"{sys.executable} -m http.server {{port}} -d {{model}}", "its log has no line of vLLM"),
    ("no-such-program {model} {port}", "no-such-program: No such file or directory"),
])
def test_a_command_of_another_program(tmp_path, capsys, command, told):
    plan = plan_file(tmp_path, 2, command=command, ready="/", caches=["cold"])
    assert main(["calibrate", "run", str(plan), "-q"]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_start_that_takes_too_long(tmp_path, capsys):
    slow = f"{sys.executable} -c 'import time; time.sleep(60)' {{model}} {{port}}"
    plan = plan_file(tmp_path, 2, command=slow, timeout=0.3, caches=["cold"])
    assert main(["calibrate", "run", str(plan), "-q"]) == 2
    assert "the server was not ready after 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize(("keys", "told"), [
    ({"models": []}, "models"), ({"models": ["no-such-model"]}, "models.0"),
    ({"command": "vllm serve --port {port}"}, "a command line with {model}"),
    ({"command": "vllm '{model} {port}"}, "No closing quotation"), ({"dtype": "fp4"}, "dtype"),
    ({"caches": ["cold", "cold"]}, "each cache once"), ({"folder": "no-such-folder"}, "folder"),
    ({"hardware": "no-such-device"}, "hardware"), ({"timeout": 0}, "timeout"), ({"ready": "health"}, "ready"),
])
def test_keys_that_cannot_be(tmp_path, capsys, keys, told):
    assert main(["calibrate", "run", str(plan_file(tmp_path, 2, **keys)), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "plan.yaml" in said
    assert said.count("\n") == 1


def test_two_models_of_one_name(tmp_path, capsys):
    assert main(["calibrate", "run", str(plan_file(tmp_path, 2, models=["./m2.json", "m2.json"])), "--dry-run"]) == 2
    assert "models of different names" in capsys.readouterr().err


def test_a_file_that_names_a_model_it_does_not_have(measured, tmp_path):
    file = tmp_path / "starts.yaml"
    file.write_text((measured / "starts.yaml").read_text().replace("model: m2", "model: m3"))
    with pytest.raises(InputError, match=r"starts\.0\.model: expected a model of this file: m16, m2, m8, found 'm3'"):
        load_starts(file)


def test_written_weights_are_those_of_a_published_file(tmp_path):
    write_model(tmp_path / "m", config(3), "bf16", weights=True)
    [file] = weight_files(tmp_path / "m")
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    assert {name: tuple(one["shape"]) for name, one in header.items()} == tensors(config(3))
    ends = [one["data_offsets"] for one in header.values()]
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    assert 8 + length + ends[-1][1] == len(raw)
    words = json.loads((tmp_path / "m" / "tokenizer.json").read_text())["model"]
    assert len(words["vocab"]) == 1000
    assert len(words["merges"]) == 1000 - 256
    assert all(word in words["vocab"] for merge in words["merges"] for word in [*merge.split(), merge.replace(" ", "")])


def test_weights_of_another_architecture(tmp_path):
    with pytest.raises(ValueError, match="weights of MambaForCausalLM cannot be written"):
        write_model(tmp_path / "m", config(3) | {"architectures": ["MambaForCausalLM"]}, "bf16", weights=True)


def test_a_folder_with_weights_is_started_as_it_is(tmp_path):
    write_model(tmp_path / "mine", config(3), "bf16", weights=True)
    before = sorted(os.listdir(tmp_path / "mine"))
    assert main(["calibrate", "run", str(plan_file(tmp_path, 2, models=["./mine"])), "-q"]) == 0
    assert sorted(os.listdir(tmp_path / "mine")) == before
    assert load_starts(tmp_path / "starts.yaml").models[0].layers == 3


def test_nothing_is_left_behind(tmp_path):
    plan = StartUpMeasurement(models=models_in(tmp_path, 2), command=COMMAND, folder=".").plan(tmp_path)
    collector = StartUpCollector(plan.model_dump(mode="json"))
    try:
        rows, more = collector.measure(plan.points[1])   # warm, with nothing there: the cache is filled first
    finally:
        collector.close()
    assert not more["work"]["compiled"]
    assert rows[0]["time_s"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["m2.json"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_its_collector(tmp_path, number):
    says = tmp_path / "pid"
    code = f"import os, time; open({str(says)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    plan = StartUpMeasurement(models=models_in(tmp_path, 2), command=f'{{python}} -c "{code}" {{model}} {{port}}',
                              folder=".").plan(tmp_path)
    save_plan(plan, tmp_path / "points.json")
    process = subprocess.Popen([sys.executable, "-m", plan.collector, "points.json", "j.jsonl"], cwd=tmp_path,
                               stderr=subprocess.PIPE)
    until = time.monotonic() + 30
    while not (says.exists() and says.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=30)[1].decode()
    server = Path("/proc", says.read_text())
    while server.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not server.exists()
    if number == signal.SIGTERM:   # it cleans up, and no half start is written down
        assert process.returncode == 2
        assert "run the same command again to continue" in said
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("hermes-start-up")]
        assert '"point"' not in (tmp_path / "j.jsonl").read_text().partition("\n")[2]


@pytest.mark.skipif(not ENGINE, reason="HERMES_VLLM_PYTHON names no interpreter with vLLM")
def test_the_engine_itself_has_all_phases(tmp_path):
    """A cold and a warm start of vLLM on a CPU; about three minutes."""
    command = "{python} -m vllm.entrypoints.openai.api_server --model {model} --port {port} --max-model-len 512"
    plan = plan_file(tmp_path, 2, command=command, environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert main(["calibrate", "run", str(plan), "--python", ENGINE, "-q"]) == 0
    found = load_starts(tmp_path / "starts.yaml")
    assert found.engine.startswith("vLLM 0.")
    for start in found.starts:
        assert min(start.weights_s, start.compile_s, start.imports_s, start.launch_s, start.server_s) > 0
        assert start.first_request_s is not None


STARTS = Path(__file__).parents[1] / "data" / "vllm-cpu-starts" / "starts.yaml"


def test_the_shipped_times_of_a_cpu_are_this_fit(tmp_path, capsys):
    file = tmp_path / "vllm-0.32-cpu.yaml"
    assert main(["fit", str(STARTS), "-o", str(file), "--json"]) == 0
    assert file.read_text() == (resource_dir("hw_profiles") / "start_up" / file.name).read_text()
    walls = [one for one in json.loads(capsys.readouterr().out)["errors"] if one["phase"] == "wall"]
    assert len(walls) == 8
    off = {cache: [abs(one["predicted_s"] / one["measured_s"] - 1) for one in walls if one["cache"] == cache]
           for cache in ("cold", "warm")}
    assert max(off["warm"] + off["cold"]) <= 0.25
    assert sum(off["warm"] + off["cold"]) / 8 <= 0.15


def test_the_starts_of_a_cpu_are_whole():
    found = load_starts(STARTS)
    assert found.engine == "vLLM 0.32.0"
    assert not any(model.sizes for model in found.models), "a CPU captures no graphs"
    for start in found.starts:
        parts = start.process_s + start.weights_s + start.compile_s + start.profiling_s + start.capture_s
        assert parts == pytest.approx(start.time_s, abs=0.01)
        assert start.compiled, "0.32 reads its compiled model of a CPU, fails, and compiles again"
    for model in found.models:   # all the same, what it has left saves time
        cold, warm = (times_of(found, model.name, cache)["time_s"].median for cache in ("cold", "warm"))
        assert warm < 0.8 * cold
