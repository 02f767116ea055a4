"""The build hook of the wheel (hatch_build.py): what it adds with HERMES_COMPILED=1, and that it adds nothing without.

No test compiles here: `make test-compiled` does.
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from scripts_loaded import load

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOOK = CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]


@pytest.fixture
def build() -> ModuleType:
    return load("hatch_build.py")


@pytest.fixture
def hook(build: ModuleType) -> Any:
    return build.CompiledHook(str(ROOT), HOOK, None, None, "", "wheel")


@pytest.fixture
def compiling(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """Put a stand-in for mypyc, and return the sources of each call."""
    calls: list[list[Path]] = []

    def compile_modules(sources: list[Path], work: Path) -> dict[str, str]:
        assert all(source.exists() for source in sources), "paths are relative to the project"
        calls.append(sources)
        library = work / "fast.so"
        library.write_bytes(b"fast")
        return {str(library): "hermes/core/fast.so"}

    monkeypatch.setattr(build, "compile_modules", compile_modules)
    return calls


def fresh() -> dict[str, Any]:
    """Build data as hatchling hands it to hooks."""
    return {"pure_python": True, "infer_tag": False, "force_include": {"a": "b"}}


@pytest.mark.parametrize(("value", "version"), [(None, "standard"), ("", "standard"), ("0", "standard"),
                                                ("1", "editable")])
def test_a_pure_or_editable_build_is_left_alone(
    value: str | None, version: str, hook: Any, compiling: list[Any], monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HERMES_COMPILED", raising=False)
    if value is not None:
        monkeypatch.setenv("HERMES_COMPILED", value)
    data = fresh()
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    assert (data, compiling) == (fresh(), [])
    assert hook.dependencies() == (HOOK["requires"] if value == "1" else [])


@pytest.mark.feature("Results, sweeps, studies", "`HERMES_COMPILED=1`: a wheel with the kernel compiled")
def test_a_compiled_wheel_has_a_platform_and_the_libraries(
    hook: Any, compiling: list[list[Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    monkeypatch.setenv("HERMES_COMPILED", "1")
    monkeypatch.chdir(tmp_path)   # a build may start anywhere
    data = fresh()
    hook.initialize("standard", data)
    assert (data["pure_python"], data["infer_tag"]) == (False, True)
    (library,) = set(data["force_include"]) - {"a"}
    assert data["force_include"] == {"a": "b", library: "hermes/core/fast.so"}
    assert len(compiling[0]) == len(HOOK["modules"]) > 30
    assert Path("hermes/core/clock.py") in compiling[0]
    assert Path(library).exists()
    hook.finalize("standard", data, "")
    assert not Path(library).exists()
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("error", [SystemExit("hermes/core/clock.py:1: error: bad"), OSError("cc: error: bad")])
def test_a_build_that_cannot_compile_fails(
    error: BaseException, build: ModuleType, hook: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setenv("HERMES_COMPILED", "1")
    monkeypatch.setattr(build, "compile_modules", broken)
    with pytest.raises(RuntimeError, match=r"HERMES_COMPILED=1: cannot compile the kernel .*error: bad"):
        hook.initialize("standard", fresh())


def test_the_wheel_is_pure_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HERMES_COMPILED", raising=False)
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert Path(wheel).name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hermes/core/clock.py" in names
    assert [name for name in names if "mypyc" in name or not name.startswith(("hermes/", "hermes_sim-"))] == []


def test_the_hook_pins_what_the_tests_run_with() -> None:
    pinned = set((ROOT / "constraints.txt").read_text().split())
    assert {requirement.replace("[mypyc]", "") for requirement in HOOK["requires"]} <= pinned


def test_wheels_are_compiled_for_every_python_that_is_supported() -> None:
    built = CONFIG["tool"]["cibuildwheel"]
    assert built["environment"] == {"HERMES_COMPILED": "1"}
    supported = {text.rpartition(".")[2] for text in CONFIG["project"]["classifiers"] if ":: 3." in text}
    assert "11" in supported
    assert supported <= set(built["build"].removeprefix("cp3{").partition("}")[0].split(","))
