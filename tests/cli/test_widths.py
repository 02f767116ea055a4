"""Tables fit 80 columns where standard output is no terminal, and names stay whole."""

from __future__ import annotations

import pytest

from hermes.cli import main
from hermes.cli.output import show
from hermes.results import progress
from hermes.results.layout import WIDTH, Section
from hermes.results.progress import SearchProgress
from hermes.scenario import builtin_scenarios
from hermes.units import counted

DEEPSEEK = """clients: [{model: deepseek-v3, hardware: {kind: composed, device: h200}, parallel: {tp: 8}}]
workload: {arrivals: {kind: poisson, rate: 1}, lengths: {kind: fixed, prompt: 500, output: 100}, requests: 10}
"""


@pytest.mark.drawn
@pytest.mark.parametrize("command", ["scenarios", "profile list", "explain DEEPSEEK --prompt 200", "pipeline list",
                                     "study --list", "explain quickstart --request 3", "doctor"])
def test_tables_fit(command, tmp_path, capsys):
    (tmp_path / "d.yaml").write_text(DEEPSEEK)
    assert main(command.replace("DEEPSEEK", str(tmp_path / "d.yaml")).split()) in (0, None)
    said = capsys.readouterr().out
    assert said
    assert [line for line in said.splitlines() if len(line) > WIDTH] == []
    if command == "scenarios":
        words = said.split()
        assert [name for name in builtin_scenarios() if name not in words] == []


def test_a_table_of_many_columns_is_cut_into_several(capsys):
    columns = [f"column {i}" for i in range(12)]
    show([Section("many", ["name", *columns], [["a" * 40, *(f"{i}{i}{i}.{i}" for i in range(12))]])])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(any(f"{i}{i}{i}.{i}" in line for line in lines) for i in range(12))


def test_one_device_and_two_devices():
    assert [counted(number, "device") for number in (0, 1, 2, 1200)] == [
        "0 devices", "1 device", "2 devices", "1,200 devices"]


def test_progress_is_seldom(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with SearchProgress() as line:
        for done, now in enumerate((101.0, 109.0, 111.0, 115.0, 130.0, 141.0)):
            line(f"at {now:g}; another" + "x" * (100 if now > 140 else 0), done, 10)
    said = capsys.readouterr().err.splitlines()
    assert said == ["11 s: 2 of about 10 simulations; at 111 and 1 more",   # two say nothing of the others
                    "30 s: 4 of about 10 simulations; at 130 and 1 more",
                    "41 s: 5 of about 10 simulations, about 41 s left; at 141 and 1 more"]
    with SearchProgress() as line:   # whole, or not at all
        now = 200.0
        line("x" * 100, 5, 10)
        now = 211.0
        line("x" * 20 + "; y", 12, 10)
    assert capsys.readouterr().err.splitlines() == [
        "59 s: 5 of about 10 simulations, about 59 s left",
        f"70 s: 12 of about 12 simulations, about 6 s left; {'x' * 20}"]
    with SearchProgress() as line:   # the bound at once; then by the share of the work
        line("450 at most", 0, 30, 0.0)
        now = 222.0
        line("x", 6, 30, 0.25)
    assert capsys.readouterr().err.splitlines() == [
        "0 s: 0 of about 30 simulations; 450 at most", "11 s: 6 of about 30 simulations, about 33 s left; x"]
    with SearchProgress(verbose=True) as line:
        for done, what in enumerate(("x" * 100, "x" * 100, "y")):
            line(what, done, 900)
    assert capsys.readouterr().err.splitlines() == [
        f"0 s: 0 of about 900 simulations; {'x' * 100}", "0 s: 2 of about 900 simulations; y"]
    with SearchProgress(quiet=True, verbose=True) as line:
        line("x", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_is_a_bar_on_standard_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with SearchProgress() as bar:
        bar("1 x h100-sxm TP1", 3, 12)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "3 of about 12 simulations" in printed.err
