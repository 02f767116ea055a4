"""The command line: what it prints, what it writes, and its exit codes."""

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from each import each

import hermes.api
from evidence.schedules import vllm_replay
from evidence.schedules.vllm_replay import FileResult
from hermes import __version__
from hermes.cli import main
from hermes.compiled import is_compiled
from hermes.config.yaml_document import parse_yaml
from hermes.core.clock import Clock
from hermes.dispatch.coordinator import Coordinator
from hermes.scenario import builtin_scenarios, load_scenario

BUILD = "compiled" if is_compiled(Coordinator) else "pure"


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def refused(call):
    def run(*arguments):
        code, out, err = call(*arguments)
        assert code == 2, (out, err)
        assert not out
        assert err.startswith("hermes: ")
        assert err.count("\n") == 1
        return err.removeprefix("hermes: ").strip()

    return run


def test_help_and_version(call):
    python = platform.python_version()
    assert call("--version") == (0, f"hermes {__version__} ({BUILD}, Python {python}, NumPy {np.__version__})\n", "")
    for arguments in ([], ["--help"], ["trace"], ["regress"], ["run", "--help"]):
        code, out, err = call(*arguments)
        assert (code, err) == (0, "")
        assert "Usage: hermes" in out


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "hermes", "run", "no-such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("hermes: ")
    assert done.stderr.count("\n") == 1


def test_completion_in_a_notebook_offers_the_whole_interface():
    """They are imported when first used, and were not in `dir(hermes)` before."""
    code = "import hermes; print(*dir(hermes))"
    offered = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"__version__", "open_run", "open_sweep", "run_sweep", "simulate"} <= set(offered)
    assert set(hermes.__all__) <= set(dir(hermes))


def test_starting_is_quick():
    code = "import sys; from hermes.cli import main; main(['--version']); print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not [name for name in ("numpy", "pandas", "pydantic", "sklearn", "simpy") if f"'{name}'" in modules]


def test_usage_errors(refused):
    assert refused("run") == "Missing argument 'scenario'."
    assert "No such command 'rum'" in refused("rum")
    assert "No such option: --st" in refused("validate", "x", "--st", "a=3")


# -- run ---------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Scenarios and commands", "`hermes run`, `hermes validate`, `hermes scenarios`")
def test_run_writes_and_prints(call, small_file, tmp_path):
    code, out, err = call("run", small_file, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "20 of small: all completed" in out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["requests"]["completed"] == 20
    environment = {"build": BUILD, "python": platform.python_version(), "numpy": np.__version__}
    assert summary["run"]["environment"] == environment
    resolved = tmp_path / "out" / "scenario.resolved.yaml"
    assert load_scenario(resolved) == load_scenario(small_file)
    assert resolved.read_text().startswith(f"# hermes {__version__}\n")


def test_run_json_and_options(call, small_file):
    code, out, _ = call("run", small_file, "--json", "--set", "workload.requests=5")
    assert code == 0
    assert json.loads(out)["requests"]["total"] == 5
    same = call("run", small_file, "--json", "--set", "workload.requests=5", "--stepping", "every_step")[1]
    assert json.loads(same)["latency"] == json.loads(out)["latency"]
    other = call("run", small_file, "--json", "--set", "workload.requests=5", "--seed", "123")[1]
    assert json.loads(other)["latency"] != json.loads(out)["latency"]


def test_run_again_from_what_was_written(call, small_file, tmp_path):
    """Paths of the resolved scenario are relative to where it was written."""
    (small_file.parent / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    data = small_file.read_text().replace(
        "lengths: {kind: fixed, prompt: 200, output: 20}", "lengths: {kind: trace, path: mine.csv, repeat: true}")
    small_file.write_text(data)
    first, second = tmp_path / "a" / "b", tmp_path / "c"
    assert call("run", small_file, "-o", first)[0] == 0
    assert call("run", first / "scenario.resolved.yaml", "-o", second)[0] == 0
    for name in ("summary.json", "requests.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_run_refusals(refused, small_file, tmp_path):
    assert refused("run", small_file, "--seed", "x").endswith("--set seed=x: seed: expected an integer, found 'x'")
    assert "did you mean 'every_step'" in refused("run", small_file, "--stepping", "every")
    (tmp_path / "file").write_text("")
    assert "file exists" in refused("run", small_file, "-o", tmp_path / "file")
    assert "expected a readable file" in refused("run", tmp_path / "none.yaml")


def test_an_empty_output_is_refused_and_nothing_is_written(refused, small_file, tmp_path, monkeypatch):
    """`-o "$UNSET"` used to write twelve files into the current folder."""
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    for arguments in (["run", small_file, "-o", ""], ["run", small_file, "--output="], ["run", small_file, "-o", " "],
                      ["sweep", small_file, "-o", ""], ["network", "draw", small_file, "-o", ""]):
        assert "--output: the name is empty" in refused(*arguments)
    assert set(tmp_path.iterdir()) == before


def test_another_run_is_replaced_only_when_asked(call, refused, small_file, tmp_path):
    out = tmp_path / "out"
    few = ["run", small_file, "--set", "workload.requests=3", "-o", out]
    assert call(*few)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for again in (few, [*few, "--seed", "1"]):
        assert f"{out} holds another run (summary.json): choose another folder, or replace it with --overwrite" in (
            refused(*again))
    assert call(*few, "--overwrite")[0] == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "record.parquet").unlink()
    (out / "summary.json").unlink()
    assert "holds another run (requests.parquet)" in refused(*few)   # it may be anyone's
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.sqlite").touch()
    assert "holds a sweep" in refused("run", small_file, "-o", tmp_path / "sweep", "--overwrite")


def test_a_run_that_was_killed_while_it_wrote_does_not_block_its_folder(call, small_file, tmp_path):
    out = tmp_path / "out"
    few = ["run", small_file, "--set", "workload.requests=3", "-o", out]
    assert call(*few)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "summary.json").unlink()
    (out / "runs.parquet").unlink()
    (out / ".runs.parquet.123.tmp").write_bytes(b"half")
    assert call(*few)[0] == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_other_files_do_not_stand_in_the_way(call, small_file, tmp_path):
    assert call("run", small_file, "--set", "workload.requests=1", "-o", tmp_path)[0] == 0
    assert small_file.exists()


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_a_run_that_rejects_everything_says_why_and_fails(call, small_file, output):
    code, out, err = call("run", small_file, "--set", "clients.0.memory.num_blocks=5", *output)
    assert code == 1
    assert out
    assert err.startswith("hermes: all 20 requests were rejected: ")
    assert "needs 14 KV blocks of 16 tokens" in err
    assert err.count("\n") == 1
    (small_file.parent / "one.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,9000,2\n1,20,3\n")
    some = ["--set", "workload={arrivals: {kind: trace, path: one.csv}, lengths: {kind: trace, path: one.csv}}"]
    code, out, err = call("run", small_file, "--set", "clients.0.memory.num_blocks=5", *some)
    assert code == 0, "one of two was served"
    assert err.startswith("hermes: warning: 1 of 2 requests of workload 'main' (50.00%) have more than 4,096 tokens")


def test_a_trace_that_was_cut_is_said(call, small_file, tmp_path):
    run = ["run", small_file, "--set", "workload.requests=5"]
    assert call(*run, "-o", tmp_path / "none")[2] == ""
    assert not (tmp_path / "none" / "trace.json.gz").exists()
    assert call(*run, "-o", tmp_path / "whole", "--trace")[2] == ""
    code, _, err = call(*run, "-o", tmp_path / "cut", "--trace-events", "20")
    assert code == 0
    assert err.startswith(f"note: {tmp_path / 'cut' / 'trace.json.gz'}: trace cut at ")
    assert "the limit is 20 (--trace-events)" in err
    assert err.count("\n") == 1
    assert (tmp_path / "cut" / "trace.json.gz").stat().st_size < (tmp_path / "whole" / "trace.json.gz").stat().st_size


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_permissions(refused, small_file, tmp_path):
    small_file.chmod(0)
    assert "permission denied" in refused("run", small_file)


@pytest.mark.long
def test_interrupted_runs_keep_what_was_done(call, small_file, tmp_path, monkeypatch):
    simulate = hermes.api.simulate

    def interrupted(*arguments, **options):
        def progress(done, total, simulated_s):
            raise KeyboardInterrupt

        return simulate(*arguments, **{**options, "progress": progress})

    monkeypatch.setattr("hermes.api.simulate", interrupted)
    code, _, err = call("run", small_file, "--set", "workload.requests=20000", "-o", tmp_path / "out",
                        "--trace-events", "1000")
    assert code == 130
    note, *rest = err.splitlines()
    assert "trace.json.gz: trace cut at " in note
    assert rest == ["results of what was simulated until the interruption", "hermes: interrupted"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["requests"]["unfinished"] > 0


@pytest.mark.drawn
@pytest.mark.parametrize(("more", "runs"), [
    (["run", "-q"], 2), (["explain", "--request", "3"], 1), (["explain", "--request", "3", "--alternatives", "1"], 1),
    (["explain", "--request", "3", "--alternatives", "1"], 2), (["advise", "--autoscaler", "{kind: static}"], 1)])
def test_an_interrupted_simulation_of_what_is_known_never_counts(call, tmp_path, monkeypatch, more, runs):
    """Ctrl-C in the first or second simulation of a command that simulates again what it has, or alternatives to it."""
    path = tmp_path / "two.yaml"
    path.write_text(
        "workload: {requests: 100, arrivals: {kind: poisson, rate: 9}, lengths: {kind: fixed, prompt: 9, output: 99}}\n"
        "clients: [{model: llama-3.1-8b, device: l40s, count: 2}]\nslo: {ttft: 30 ms}\n")
    folder = tmp_path / "first"
    assert call("run", path, "-q", "-o", folder)[0] == 0
    drain, count = Clock.drain, []

    def drained(clock, *arguments):
        count.append(clock)
        if len(count) == runs:
            drain(clock, 3 * 10**9)
            raise KeyboardInterrupt
        drain(clock, *arguments)

    monkeypatch.setattr(Clock, "drain", drained)
    out = tmp_path / "again"
    where = [path, "-o", out] if more[0] == "run" else [folder]
    code, printed, said = call(more[0], *where, *more[1:])
    assert len(count) == runs
    assert (code, printed) == (130, "")
    assert said.splitlines()[-1] == "hermes: interrupted"
    assert not (out / "summary.json").exists()


def test_interrupted_before_anything_was_done(call, small_file, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hermes.api.simulate", interrupted)
    assert call("run", small_file) == (130, "", "hermes: interrupted\n")


def test_bugs_keep_their_traceback(small_file, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("hermes.api.simulate", broken)
    with pytest.raises(ZeroDivisionError):
        main(["run", str(small_file)])


# -- validate, schema, lists -------------------------------------------------------------------------------------------


def test_validate(call, refused, small_file):
    assert call("validate", small_file) == (0, f"{small_file}: valid\n", "")
    code, out, _ = call("validate", small_file, "--resolved", "--set", "seed=3")
    assert code == 0
    assert load_scenario(parse_yaml(out).plain()) == load_scenario(small_file, ["seed=3"])
    assert json.loads(call("validate", small_file, "--json")[1])["network"]["bandwidth"] == 32e9
    message = refused("validate", small_file, "--set", "seed=-1")
    assert message.endswith("seed: expected a number of at least 0, found -1")


def test_validate_finds_what_only_building_shows(refused, small_file):
    for override, message in [
        ("workload.pipeline=plian", "workload.pipeline: expected a pipeline: one of "),
        ("clients.0.hardware.profile=lama", "clients.0.hardware.profile: expected a hardware profile: one of "),
        ("clients.0={role: prefill, memory: {num_blocks: 9, kv_bytes_per_token: 1000}, hardware: {kind: polynomial, "
         "profile: splitwise-2023-llama-2-70b-h100-tp8}}", "clients: all clients only prefill; add one that decodes"),
        ("workload.lengths={kind: trace, path: no.csv}", "workload.lengths.path: no such file: "),
    ]:
        assert message in refused("validate", small_file, "--set", override)
    small_file.write_text(small_file.read_text().replace("  requests: 20", "  requests: 20\n  pipeline: plian"))
    assert f"{small_file}:5:13: workload.pipeline: expected a pipeline" in refused("validate", small_file)


def test_a_model_nobody_serves_is_named(refused, small_file):
    text = small_file.read_text().replace("  - count: 2", "  - count: 2\n    model: llama-2-70b")
    small_file.write_text(text.replace("  requests: 20", "  requests: 20\n  model: llama-3-70b"))
    assert f"{small_file}:5:10: workload.model: expected a model that a client serves: llama-2-70b" in refused(
        "validate", small_file)


@cache
def descriptions():
    """What `hermes scenarios` says of each scenario; it reads all their files."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["scenarios", "--json"]) == 0
    return {row["name"]: row["description"] for row in json.loads(printed.getvalue())}


@pytest.mark.long
@each("name", builtin_scenarios())
def test_built_in_scenarios_are_valid_and_described(call, name):
    assert call("validate", name)[0] == 0
    assert descriptions()[name]


@pytest.mark.long
def test_schema_and_lists(call):
    assert json.loads(call("schema")[1])["title"] == "hermes scenario"
    assert "quickstart" in call("scenarios")[1]
    names = json.loads(call("profile", "list", "--json")[1])
    assert "splitwise-2023-llama-2-70b-h100-tp8" in names["hardware profiles"]
    assert "azure-conv-2023" in call("profile", "list")[1]


# -- traces ------------------------------------------------------------------------------------------------------------


def test_trace_import_and_describe(call, refused, tmp_path):
    source, target = tmp_path / "t.csv", tmp_path / "t.parquet"
    source.write_text("when;in;out\n0;10;2\n500;30;4\n")
    options = ["delimiter=;", "arrival=when", "arrival_unit=ms", "prompt=in", "output=out"]
    arguments = [part for option in options for part in ("--set", option)]
    code, out, _ = call("trace", "import", "csv", source, "-o", target, "--json", *arguments)
    assert code == 0
    assert json.loads(out)["requests"] == 2
    described = json.loads(call("trace", "describe", target, "--json")[1])
    assert described["arrivals"]["duration_s"] == 0.5
    assert "rate_per_s" in call("trace", "describe", target)[1]
    assert "did you mean 'csv'" in refused("trace", "import", "cvs", source, "-o", target)
    assert "--set promt=in: promt: expected one of the keys" in refused(
        "trace", "import", "csv", source, "-o", target, "--set", "promt=in")
    assert str(tmp_path / "none") in refused("trace", "describe", tmp_path / "none")


# -- conform, compare, regress -----------------------------------------------------------------------------------------


def test_conform_refusals(refused, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    assert "x.json" in refused("conform", tmp_path)
    assert "none.json" in refused("conform", tmp_path / "none.json")
    assert "did you mean 'runs'" in refused("conform", tmp_path, "--stepping", "run")


def test_without_a_checkout_one_line_says_what_needs_it(refused, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.partition(".")[0] == "evidence"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "evidence", None)
    (tmp_path / "x.json").write_text("{}")
    for what, arguments in (("hermes accuracy", ("accuracy", "--data", tmp_path)),
                            ("a replay of recorded schedules", ("conform", tmp_path)),
                            ("a comparison with SGLang's scheduler", ("conform", "quickstart", "--engine", "sglang"))):
        assert refused(*arguments) == (
            f"{what} needs a checkout of HERMES (folder evidence/): clone it, pip install -e .")
    assert "scheduler is chunked" in refused("conform", "quickstart", "--engine", "vllm", "--set",
                                             "clients.0.scheduler.kind=sglang")


def test_conform_writes_its_totals_alike(call, monkeypatch, tmp_path):
    (tmp_path / "one.json").write_text("{}")
    monkeypatch.setattr(vllm_replay, "find_files", lambda paths: 600 * [tmp_path / "one.json"])
    monkeypatch.setattr(vllm_replay, "conform_file", lambda path, every_step: FileResult("one", 2, 2, None))
    code, out, _ = call("conform", tmp_path)
    assert (code, out.splitlines()[-1]) == (0, "1,200 of 1,200 replays identical, 2,400 of 2,400 steps")


def test_compare(call, refused, small_file, tmp_path):
    run = tmp_path / "out"
    call("run", small_file, "-o", run)
    reference = tmp_path / "reference.csv"
    reference.write_text("request,ttft_ms,e2e_ms\n0,100,900\n1,120,1000\n")
    assert "request 2 of the run is not in the reference" in refused("compare", run, reference)
    assert "NOT the same requests" in call("compare", run, reference, "--allow-different-requests")[1]
    reference.write_text("request,ttft_ms,e2e_ms\n" + "".join(f"{n},{100 + n},900\n" for n in range(20)))
    code, out, err = call("compare", run, reference, "--json")
    assert (code, err) == (0, "")
    assert {row["metric"] for row in json.loads(out)["metrics"]} == {"ttft", "e2e"}
    assert "TTFT" in call("compare", run, reference, "--map", "ttft=ttft_ms:ms")[1]
    assert "expected one of" in refused("compare", run, reference, "--map", "tfft=ttft_ms")
    assert "nothing.csv" in refused("compare", run, tmp_path / "nothing.csv")
    assert str(tmp_path / "not-a-run") in refused("compare", tmp_path / "not-a-run", reference)
    for itself in (run, run / "requests.parquet"):
        code, out, err = call("compare", run, itself, "--json")
        assert (code, err) == (0, "")
        assert {row["error"] for row in json.loads(out)["metrics"] if row["ours_s"]} == {0.0}


def test_regress(call, refused, small_file, tmp_path):
    golden = tmp_path / "golden.yaml"
    assert call("regress", "record", small_file, "-f", golden)[0] == 0
    assert call("regress", "check", "-f", golden)[0] == 0
    small_file.write_text(small_file.read_text().replace("seed: 7", "seed: 7\nkv_transfer: full"))
    assert call("regress", "check", "-f", golden)[0] == 0, "saying a default changes nothing"
    small_file.write_text(small_file.read_text().replace("output: 20", "output: 21"))
    code, out, _ = call("regress", "check", "-f", golden, "--json")
    assert code == 1
    differences = json.loads(out)["differences"]
    assert {"latency.e2e_s.mean"} <= {row["metric"] for row in differences}
    assert "latency.e2e_s.mean" in call("regress", "check", "-f", golden)[1]
    assert call("regress", "record", "-f", golden)[0] == 0, "the scenarios of the file again"
    assert call("regress", "check", "-f", golden)[0] == 0
    assert "--tolerance: expected GLOB=NUMBER" in refused("regress", "record", "-f", golden, "--tolerance", "x")
    assert "expected a readable file" in refused("regress", "check", "-f", tmp_path / "none.yaml")
