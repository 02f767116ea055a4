"""scripts/release_check.py: what it calls a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from markdown_blocks import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from release_check import Release
from release_tools import CheckError, Done, OpenError, differences, execute, must, written

LINE = "hermes: cannot import scipy: no such file; install its packages again: pip install hermes-sim"


@pytest.mark.parametrize(("code", "err", "fine"), [
    (0, "", True), (2, LINE, True), (2, f"hermes: warning: x\n{LINE}", True), (1, LINE, False),
    (2, "hermes: no", False),
    (1, "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'scipy'", False),
    (2, f"Traceback\n{LINE}", False),
])
def test_a_command_without_a_package_works_or_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, err: str, fine: bool,
) -> None:
    release = Release(tmp_path)
    monkeypatch.setattr(release, "command", lambda *given, **more: Done(code, "", err, 0.0))
    assert (release.without("plot", "scipy", "", {"scipy"}, "", {}) == "") == fine


def test_a_run_without_a_package_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    release = Release(tmp_path)
    monkeypatch.setattr(release, "command", lambda *given, **more: Done(0, "", "", 0.0))
    (tmp_path / "run-scipy-missing").mkdir()
    (tmp_path / "run-scipy-missing" / "a").write_bytes(b"1")
    assert release.without("run", "scipy", "", {"scipy"}, "", {"a": b"1"}) == ""
    assert release.without("run", "scipy", "", {"scipy"}, "", {"a": b"2"}) == "run-scipy-missing: other bytes"


def test_only_the_build_may_differ_in_a_summary(tmp_path: Path) -> None:
    for name, summary in (
        ("a", {"run": {"environment": 1, "seed": 1}}), ("b", {"run": {"seed": 1}}), ("c", {"run": {"seed": 2}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        (tmp_path / name / "runs.parquet").write_bytes(b"r")
    ours, same, other = (written(tmp_path / name) for name in "abc")
    assert ours == same
    assert differences(ours, other) == "summary.json"


def test_a_failed_check_fails_the_release_and_an_open_one_does_not(tmp_path: Path) -> None:
    def failing() -> str:
        raise CheckError("no")

    def unmade() -> str:
        raise OpenError("no tool here")

    release = Release(tmp_path)
    for name, check in (("a", failing), ("b", unmade), ("c", lambda: "yes")):
        release.make(name, check)
    assert [(row.name, row.verdict, row.text) for row in release.rows] == [
        ("a", "FAILED", "no"), ("b", "open", "no tool here"), ("c", "ok", "yes")]
    assert release.open[-1] == "b: no tool here"
    assert "no address" in release.open[0]


def test_an_installed_wheel_has_no_compiler(tmp_path: Path) -> None:
    given = Release(tmp_path).env("pure")
    assert (given["CC"], given["PATH"]) == ("/bin/false", str(tmp_path / "venv-pure" / "bin"))
    assert not [name for name in given if name.startswith("PYTHON")]


def test_a_command_that_has_to_succeed_names_its_last_line() -> None:
    program = "import sys; print('x'); sys.exit('why\\n')"
    assert execute([sys.executable, "-c", program]).code == 1
    with pytest.raises(CheckError, match=r"exit 1: (why|x)"):
        must([sys.executable, "-c", program])
