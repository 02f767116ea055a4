"""The first page of the help, shell completion, and the list of scenarios."""

import contextlib
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.completion import get_completion_script

import hermes.cli
from hermes.cli import MODULES, command, main
from hermes.cli.complete import scenarios, sweeps
from hermes.cli.groups import EXAMPLES, GROUPS
from hermes.scenario import builtin_scenarios
from hermes.scenario.loading import builtin_sweeps

SHELLS = ("bash", "zsh", "fish")
COMMANDS = command()


def leaves(command, names=()):
    """Every command that runs something, with the words that lead to it."""
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*names, name))
    if not getattr(command, "commands", None):
        yield names, command


def test_a_command_is_read_without_those_of_other_modules():
    """`main` builds only the module of the command that is called: the table must name what each module adds."""
    assert {module: tuple(command(module).commands) for module in MODULES} == MODULES
    files = {path.stem for path in Path(hermes.cli.__file__).parent.glob("*.py") if "-> Answer:" in path.read_text()}
    assert files <= {*MODULES, "output", "profile_show"}, "a module with a command that the table lacks"


def completed(monkeypatch, capsys, line, shell="bash"):
    """What a shell offers for a line, as it asks for it."""
    monkeypatch.setenv("_HERMES_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with contextlib.suppress(SystemExit):
        main([])
    return capsys.readouterr().out


def test_every_help_names_what_refuses_code(capsys):
    for names in ((), ("profile",), *(names for names, _ in leaves(COMMANDS))):
        assert main([*names, "--help"]) == 0
        assert "--no-plugins" in capsys.readouterr().out, names


@pytest.mark.feature("Scenarios and commands", "Help, shell completion")
def test_commands_are_in_groups_and_lines_fit(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = [name for group in GROUPS.values() for name in group]
    assert sorted(shown) == sorted(COMMANDS.commands), "each in one group"
    assert "More:" not in lines
    for title, group in GROUPS.items():
        start = lines.index(f"{title}:")
        below = lines[start + 1:start + 1 + len(group)]
        assert [line.split()[0] for line in below] == list(group)
        assert all(line.endswith(text) for line, text in zip(below, group.values(), strict=True)), "a line was cut"


def test_examples_are_commands_that_exist(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    for example, _ in EXAMPLES:
        assert example in out
        program, name, *arguments = shlex.split(example)
        assert program == "hermes"
        context = COMMANDS.commands[name].make_context(name, arguments)   # the arguments are those of the command
        assert context.params


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_commands_and_options(monkeypatch, capsys, shell):
    offered = completed(monkeypatch, capsys, "hermes ", shell)
    assert all(name in offered for name in COMMANDS.commands)
    offered = completed(monkeypatch, capsys, "hermes run x --", shell)
    assert all(option in offered for option in ("--set", "--overwrite", "--output", "--json"))
    assert "import" in completed(monkeypatch, capsys, "hermes trace ", shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_valid(shell):
    script = get_completion_script(prog_name="hermes", complete_var="_HERMES_COMPLETE", shell=shell)
    assert f"_HERMES_COMPLETE=complete_{shell}" in script
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_help_says_how_to_turn_completion_on(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    assert "--install-completion" in out
    assert "--show-completion" in out


def test_values_are_completed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queues.yaml").touch()
    (tmp_path / "queues.txt").touch()
    assert completed(monkeypatch, capsys, "hermes run qu").split() == ["quickstart", "queues.yaml"]
    assert completed(monkeypatch, capsys, "hermes validate batching/co").split() == ["batching/continuous"]
    assert completed(monkeypatch, capsys, f"hermes run {tmp_path}/q").split() == [f"{tmp_path}/queues.yaml"]
    assert completed(monkeypatch, capsys, "hermes sweep sweeps/w").split() == ["sweeps/which-batching"]
    assert completed(monkeypatch, capsys, "hermes plot x --kind la").split() == ["latency"]
    assert completed(monkeypatch, capsys, "hermes run no/such/folder/x").strip() == ""


def test_completed_names_are_the_built_in_ones(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert scenarios("") == sorted(builtin_scenarios())
    assert sweeps("") == sorted(builtin_sweeps())


def test_every_command_has_help():
    assert not [names for names, command in leaves(COMMANDS) if not (command.help or "").strip()]


def test_scenarios_of_studies_are_listed_apart(capsys):
    assert main(["scenarios"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = [line.split()[0] if line and not line.startswith(" ") else "" for line in lines]
    headings = [number for number, line in enumerate(lines) if line.startswith("scenarios ")]
    assert len(headings) == 3
    assert first[headings[0] + 2] == "quickstart", "where to start comes first"
    own, validation, studies = (
        {name for name in first[low:high] if name in builtin_scenarios()}
        for low, high in zip(headings, [*headings[1:], len(lines)], strict=True))
    assert own | validation | studies == set(builtin_scenarios())
    assert studies == {name for name in builtin_scenarios() if name.startswith("studies/")}
    assert not {Path(name).parts[0] for name in own} & {"studies", "validation"}
    capsys.readouterr()
    assert main(["scenarios", "--json"]) == 0
    groups = {row["name"]: row["group"] for row in json.loads(capsys.readouterr().out)}
    assert (groups["quickstart"], groups["studies/metis/base"]) == ("", "studies")
