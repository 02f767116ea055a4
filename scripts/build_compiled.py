"""Compile the kernel's modules with mypyc into build/compiled: `python scripts/build_compiled.py` (or `make compiled`).

build/compiled holds a copy of the package with the compiled modules beside their sources, and links to the data
folders. It is used by whatever runs with PYTHONPATH=build/compiled. Needs a C compiler and the `compiled` extra (mypy,
setuptools). Deleting the folder undoes it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "compiled"
PARTS = OUT / "parts"   # C files and objects

# The hot modules, as far as mypyc can keep their meaning. What stays out, and why:
# - pydantic classes: pydantic reads annotations that compiled classes do not keep;
# - core.request: contract suites and plug-ins serve stand-ins for a request, which compiled code would refuse;
# - pipelines: a compiled generator has no `gi_running`, which the coordinator asks for;
# - core.block_hashes, core.client: mypyc drops a class attribute's default None whose type is a compiled protocol;
# - core.clock's events are compiled as ordinary classes (`native_class=False`): SimPy sets and reads their attributes.
# A class is compiled together with its bases.
MODULES = (
    "core.branches", "core.clock", "core.columns", "core.common_prompt", "core.coordinator", "core.generation",
    "core.kv_transfer", "core.layerwise", "core.load_ledger", "core.stage",
    "clients.llm", "clients.llm_readings", "clients.llm_state", "clients.machine",
    "hardware.base", "hardware.composed_lora", "hardware.composed_terms",
    "memory.blocks", "memory.prefix", "memory.segments",
    "network.flows", "network.sharing",
    "routing.active_blocks", "routing.own", "routing.prefixes", "routing.tracking",
    "schedulers.base", "schedulers.chunked", "schedulers.decode_group", "schedulers.mixed", "schedulers.plan",
)


def sources() -> list[Path]:
    """Return the modules to compile, relative to the package's parent folder."""
    return [Path("hermes", *name.split(".")).with_suffix(".py") for name in MODULES]


def copy_package() -> None:
    """Copy the package to build/compiled, without earlier compiled modules."""
    shutil.rmtree(OUT / "hermes", ignore_errors=True)
    for library in OUT.glob("*.so"):
        library.unlink()
    shutil.copytree(ROOT / "hermes", OUT / "hermes", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for folder in ("hw_profiles", "traces", "scenarios"):
        if not (OUT / folder).exists():
            (OUT / folder).symlink_to(ROOT / folder, target_is_directory=True)


def compile_modules() -> None:
    """Type-check, translate to C, and compile in place."""
    from mypyc.build import mypycify
    from setuptools import setup

    os.chdir(OUT)
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(PARTS / "mypy")]
    extensions = mypycify(
        [*options, *map(str, sources())], opt_level="2", debug_level="0", group_name="hermes", target_dir=str(PARTS),
    )
    setup(name="hermes-compiled", packages=[], ext_modules=extensions,
          script_args=["--quiet", "build_ext", "--inplace", "--build-temp", str(PARTS), "--build-lib", str(PARTS)])


def main() -> int:
    copy_package()
    try:
        compile_modules()
    except BaseException:
        shutil.rmtree(OUT / "hermes")   # half a build would run as pure Python
        raise
    print(f"compiled {len(MODULES)} modules; use them with PYTHONPATH={OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
