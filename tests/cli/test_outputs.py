"""Outputs that are closed, full, ASCII only or no longer read, and names that a terminal would obey."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hermes.cli import main
from hermes.cli.output import Answer, answering
from hermes.config.writing import locked, scratch_folder, write_text

SMALL = """\
name: "{name}"
description: "{description}"
workload: {{requests: 5, arrivals: {{kind: at_once}}, lengths: {{kind: fixed, prompt: 30, output: 4}}}}
clients:
  - {{hardware: {{kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}}, memory: {{num_blocks: 100}}}}
"""
HERMES = f"{sys.executable} -m hermes"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command.replace("hermes", HERMES, 1)], capture_output=True, text=True,
                          env=os.environ | environment, timeout=60, check=False)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.format(name="µ-é", description=""))
    return path


def test_ascii_output(small: Path) -> None:
    done = shell(f"hermes run {small} -q -v", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xb5-\\xe9" in done.stdout


@pytest.mark.drawn
@pytest.mark.parametrize("command", ["scenarios", "schema", "--help", "profile list", "validate --resolved quickstart"])
def test_a_reader_that_has_seen_enough(command: str) -> None:
    done = shell(f"hermes {command} | head -1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_endless_input() -> None:
    done = shell("hermes import vllm - --device h100-sxm </dev/zero")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hermes: expected at most 8388608 characters on standard input, found more\n"


@pytest.mark.long
def test_closed_output(small: Path, tmp_path: Path) -> None:
    done = shell(f"hermes run {small} -q -o {tmp_path / 'out'} >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert "µ" in (tmp_path / "out" / "scenario.resolved.yaml").read_text(), "nothing was printed into a file"
    assert shell(f"hermes run {small} -q 2>&- | cat").returncode == 0


@pytest.mark.drawn
@pytest.mark.parametrize("command", ["run SMALL -q", "validate --resolved SMALL", "scenarios", "schema"])
def test_full_output(command: str, small: Path) -> None:
    done = shell(f"hermes {command.replace('SMALL', str(small))} >/dev/full")
    assert done.stderr == "hermes: cannot write to standard output: no space left on device\n"
    assert done.returncode == 2


def test_a_full_disk_is_found_before_simulating(small: Path, tmp_path: Path) -> None:
    done = shell(f"ulimit -f 1; hermes run {small} -q -o {tmp_path / 'out'} | cat")
    assert f"cannot write into {tmp_path / 'out'}: file too large" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_made(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(small), "-q", "-o", "/proc/self/x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_folder_that_another_process_holds(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"):
        assert main(["run", str(small), "-q", "-o", str(tmp_path / "out")]) == 2
    assert "a folder that no other run is writing into" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_escape_sequences_and_markup_in_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "red.yaml"
    path.write_text(SMALL.format(name="red[/x]", description="\\e[31mred[/x]"))
    for command in (["run", str(path), "-q", "-v"], ["validate", "--resolved", str(path)], ["validate", str(path)],
                    ["run", str(path), "-q", "--json"], ["run", str(path), "-q", "-o", str(tmp_path / "out")],
                    ["compare", str(tmp_path / "out"), str(tmp_path / "out")]):
        assert main(command) == 0
        assert "\x1b" not in capsys.readouterr().out
    for text in (SMALL.format(name="\\e[31mred", description=""), '"\\e[31m": 1\n'):
        path.write_text(text)
        assert main(["validate", str(path)]) == 2
        said = capsys.readouterr().err
        assert "\\x1b[31m" in said
        assert "\x1b" not in said


def test_extends_does_not_quote_foreign_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    secret, ours = tmp_path / "theirs" / "secret.yaml", tmp_path / "ours" / "a.yaml"
    monkeypatch.chdir(tmp_path / "ours")
    for content in ("password: hunter2\n", "hunter2\n", "a: [hunter2\n", "seed: hunter2\n"):
        secret.write_text(content)
        ours.write_text("extends: ../theirs/secret.yaml\n")
        assert main(["validate", str(ours)]) == 2
        said = capsys.readouterr().err
        assert "hunter2" not in said
        assert "password" not in said
        assert "secret.yaml" in said
    ours.write_text("extends: /etc/passwd\n")
    assert main(["validate", str(ours)]) == 2
    assert ":0:0" not in capsys.readouterr().err
    (tmp_path / "ours" / "b.yaml").write_text("seed: mine\n")
    ours.write_text("extends: b.yaml\n")
    assert main(["validate", str(ours)]) == 2
    assert "found 'mine'" in capsys.readouterr().err, "of a file beside it, everything is said"


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "1/0", "import nothing_of_that_name", "raise KeyError"])
def test_a_broken_plugin_file(body: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plugin.py").write_text(textwrap.dedent(body) + "\n")
    assert main(["validate", str(small), "--plugin", str(tmp_path / "plugin.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_a_killed_process_left_beside_a_file_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    path, stray, other = tmp_path / "page.html", tmp_path / ".page.html.1.tmp", tmp_path / ".page.html.2.tmp"
    for temporary in (stray, other):
        temporary.write_text("half")
    with locked(other):
        write_text(path, "whole")
        assert {file.name for file in tmp_path.iterdir()} == {path.name, other.name}
    write_text(path, "whole")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_scratch_folders_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "hermes-scratch-999999999-x" / "kept").mkdir(parents=True)
    with scratch_folder() as mine:
        mine.joinpath("file").touch()
        with scratch_folder() as another:
            assert {file.name for file in tmp_path.iterdir()} == {mine.name, another.name}
    assert not list(tmp_path.iterdir())
    with scratch_folder(tmp_path / "named") as named:
        assert named == tmp_path / "named"


def test_the_next_command_repeats_what_was_set(small_file, capsys, monkeypatch):
    monkeypatch.chdir(small_file.parent)
    assert main(["run", small_file.name, "--seed", "4", "--set", "name=it's", "-q"]) == 0
    (command,) = re.findall(r"next: (hermes run .*) \(-v: more\)", " ".join(capsys.readouterr().out.split()))
    assert shlex.split(command)[2:] == [small_file.name, "--set", "name=it's", "--set", "seed=4", "-o", "runs/small"]


def test_what_takes_longer_is_printed_after_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    def later() -> Answer:
        printed.append(capsys.readouterr().out)
        return Answer({"b": 2}, ["second"])

    command = answering(lambda: Answer({"a": 1}, ["first"], 0, [later, lambda: Answer({"c": 3})]))
    command(as_json=False)
    assert (printed, capsys.readouterr().out) == (["first\n"], "\nsecond\n")
    command(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "b": 2, "c": 3}
