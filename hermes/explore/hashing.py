"""What a point's outcome depends on, as one hash: equal hashes, equal outcomes.

The scenario with every default written out (its name and description change nothing), the contents of the data files
it reads, the function that extracts more figures, and the code: the package's version and sources, and those of the
modules that plug-ins come from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hermes
from hermes import __version__
from hermes.config.data_files import resource_dir
from hermes.config.files import file_digest
from hermes.scenario import Scenario, resolved_yaml

__all__ = ["OTHER_REGISTRIES", "code_digest", "digests", "extract_sources", "point_hash", "portable_name", "text_of"]

# nothing in these decides what a simulation answers
_BESIDE = {"calibration", "cli", "study", "testing"}
OTHER_REGISTRIES = frozenset(("calibration_engines", "importers", "trace_importers", "validation_engines"))
"""Registries whose implementations no scenario can name."""


def text_of(scenario: Scenario) -> str:
    """The resolved scenario as it is run and hashed: without what only describes it."""
    return resolved_yaml(scenario.model_copy(update={"name": "point", "description": ""}))


def code_digest(modules: Iterable[str] = (), sources: Iterable[Path] = ()) -> str:
    """Of the package's version and sources, of those of `modules`, and of other source files."""
    digest = hashlib.sha256(_package_digest().encode())
    for name in sorted(modules):
        source = _source(name)
        digest.update(name.encode() + b"\0" + (source.read_bytes() if source is not None else b""))
    for content in sorted(path.read_bytes() for path in sources):
        digest.update(b"\0" + content)
    return digest.hexdigest()


@cache   # what this process has loaded stays the same, whatever happens to the files
def _package_digest() -> str:
    digest = hashlib.sha256(__version__.encode())
    package = Path(hermes.__file__).parent
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        if parts[0] not in _BESIDE and parts[0] != "_data":
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def extract_sources(function: Callable[..., Any]) -> list[Path]:
    """The file of a function, and those of the modules that what it uses by name comes from."""
    names = getattr(function, "__globals__", {})
    used = {getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in names.values()}
    files = {_source(name) for name in used if isinstance(name, str) and name in sys.modules}
    return sorted({Path(names["__file__"])} | {file for file in files if file is not None} if names else set())


def _source(module: str) -> Path | None:
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            spec = None
        file = spec.origin if spec is not None else None
    return Path(file) if file is not None and os.path.isfile(file) else None


def digests(paths: Iterable[str]) -> dict[str, str]:
    """Digest of the content of each file, by path; "" for a file that is gone."""
    return {path: file_digest(path) if os.path.isfile(path) else ""
            for path in sorted(set(paths))}


def portable_name(path: str, base_dir: Path) -> str:
    """A shipped file by its place in the product, any other by its path relative to `base_dir`."""
    shipped, full = resource_dir("hw_profiles").parent.resolve(), Path(path).resolve()
    inside = full.is_relative_to(shipped)
    return full.relative_to(shipped).as_posix() if inside else Path(os.path.relpath(full, base_dir)).as_posix()


def point_hash(text: str, code: str, files: Mapping[str, str], extract: str | None) -> str:
    """32 hexadecimal digits."""
    content = json.dumps([text, code, dict(sorted(files.items())), extract], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
