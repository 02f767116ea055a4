"""Import the modules of a folder under a package name of its own, without installing it."""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

__all__ = ["folder_package"]


def folder_package(folder: Path) -> str:
    """Return the package name of `folder`: its modules are `f"{folder_package(folder)}.{stem}"`.

    In such a module `from .other import x` imports from modules beside it, and `from ..sibling.other import x` from
    folders beside its folder. The name is derived from the path, so that two folders never share a module.
    """
    place = folder.resolve()
    parent = f"hermes_folder_{hashlib.sha256(str(place.parent).encode()).hexdigest()[:12]}"
    name = f"{parent}.{place.name.replace('.', '_')}"
    for package, path in ((parent, place.parent), (name, place)):
        if package not in sys.modules:
            spec = ModuleSpec(package, None, is_package=True)
            spec.submodule_search_locations = [str(path)]
            sys.modules[package] = module_from_spec(spec)
    return name
