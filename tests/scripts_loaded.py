"""Scripts as modules: `script = load("scripts/fit_watts.py")`, so that a test calls their functions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["load"]

ROOT = Path(__file__).resolve().parents[1]


def load(place: str) -> ModuleType:
    """Run a Python file at a path from the project's root, and return its module, named as the file."""
    path = ROOT / place
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module   # dataclasses and the workers of a pool look their module up there
    spec.loader.exec_module(module)
    return module
