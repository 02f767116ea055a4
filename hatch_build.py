"""Build hook of the wheel: compile the kernel's modules with mypyc if the environment has HERMES_COMPILED=1.

Without the variable the hook does nothing, and the wheel is pure Python; so is an editable installation, always.
pyproject.toml lists the modules and what compiling them needs ([tool.hatch.build.targets.wheel.hooks.custom]). The
compiler must be there already.
"""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "hermes"   # mypyc puts the code of all modules into one library, hermes__mypyc


def asked() -> bool:
    return os.environ.get("HERMES_COMPILED") == "1"


class CompiledHook(BuildHookInterface[Any]):
    """Adds compiled modules to a wheel, next to their sources."""

    def dependencies(self) -> list[str]:
        """Return what the build environment needs in addition. Called once, before the build."""
        return list(self.config["requires"]) if asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the libraries to the wheel. version: "standard" or "editable"."""
        if not asked() or version == "editable":
            return
        sources = [Path("hermes", *name.split(".")).with_suffix(".py") for name in self.config["modules"]]
        self._work = TemporaryDirectory(prefix="hermes-compiled-")
        try:
            with chdir(self.root):
                libraries = compile_modules(sources, Path(self._work.name))
        except (Exception, SystemExit) as error:   # mypyc exits with the text of a type error
            raise RuntimeError(
                f"HERMES_COMPILED=1: cannot compile the kernel ({type(error).__name__}: {error}); no wheel is made: "
                "repair the compiler, or unset the variable for a pure wheel"
            ) from error
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= libraries   # the build fails if one is missing

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the libraries after the wheel is written."""
        if "_work" in self.__dict__:
            self._work.cleanup()


def compile_modules(sources: list[Path], work: Path) -> dict[str, str]:
    """Translate to C and compile into the folder `work`; return each library's file and its place in the wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    # SimPy is needed, because compiled classes have its classes as bases. Types of other packages are `Any`, so that
    # their versions cannot change the wheel; `make lint` checks types.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", "--disallow-subclassing-any",
               f"--cache-dir={work / 'mypy'}"]
    extensions = mypycify([*options, *map(str, sources)], opt_level="2", debug_level="0", group_name=GROUP,
                          target_dir=str(work))
    command: Any = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work / "lib"), str(work)
    command.ensure_finalized()
    command.run()
    names = [f"{GROUP}__mypyc", *(".".join(source.with_suffix("").parts) for source in sources)]
    return {command.get_ext_fullpath(name): os.path.relpath(command.get_ext_fullpath(name), command.build_lib)
            for name in names}
