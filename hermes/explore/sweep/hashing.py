"""Hash of everything that a point's outcome depends on: equal hashes, equal outcomes.

The hash covers the scenario with every default written out (without name and description), the contents of the data
files it reads, the function that extracts more figures, and the code: the package's version and sources, and those of
the plug-ins' modules.
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
from hermes.config.files import file_digest, relative_name
from hermes.scenario import Scenario, resolved_yaml

__all__ = [
    "OTHER_REGISTRIES", "Digests", "code_digest", "extract_sources", "point_hash", "portable_name", "text_digest",
    "unnamed",
]

# these do not affect the outcome of a simulation
_BESIDE = {"calibration", "cli", "study", "testing"}
OTHER_REGISTRIES = frozenset(("importers", "measurements", "trace_importers"))
"""Registries whose implementations no scenario can name."""


def unnamed(scenario: Scenario) -> Scenario:
    """Return a scenario as it is run and hashed, without the keys that only describe it."""
    return scenario.model_copy(update={"name": "point", "description": ""})


def text_digest(scenario: Scenario) -> str:
    """Return the digest of a scenario's resolved text."""
    return hashlib.sha256(resolved_yaml(scenario).encode()).hexdigest()


def code_digest(modules: Iterable[str] = (), sources: Iterable[Path] = ()) -> str:
    """Hash the package's version and sources, the sources of `modules`, and other source files."""
    digest = hashlib.sha256(_package_digest().encode())
    for name in sorted(modules):
        source = _source(name)
        digest.update(name.encode() + b"\0" + (source.read_bytes() if source is not None else b""))
    for content in sorted(path.read_bytes() for path in sources):
        digest.update(b"\0" + content)
    return digest.hexdigest()


@cache   # this process keeps the code it has loaded, even if the files change
def _package_digest() -> str:
    digest = hashlib.sha256(__version__.encode())
    package = Path(hermes.__file__).parent
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        if parts[0] not in _BESIDE and parts[0] != "_data":
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def extract_sources(function: Callable[..., Any]) -> list[Path]:
    """Return the file of a function, and the files of modules that its globals come from."""
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


class Digests:
    """Digest of each file's content by path, read once; "" for a missing file."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __getitem__(self, path: str) -> str:
        if path not in self._known:
            self._known[path] = file_digest(path) if os.path.isfile(path) else ""
        return self._known[path]

    def of(self, paths: Iterable[str]) -> dict[str, str]:
        return {path: self[path] for path in sorted(set(paths))}


def portable_name(path: str, base_dir: Path) -> str:
    """Return a portable name: a shipped file's place in the product, any other's path relative to `base_dir`."""
    shipped, full = resource_dir("hw_profiles").parent.resolve(), Path(path).resolve()
    inside = full.is_relative_to(shipped)
    return full.relative_to(shipped).as_posix() if inside else relative_name(full, base_dir)


def point_hash(digest: str, code: str, files: Mapping[str, str], extract: str | None, *, until_missed: float = 0.0
               ) -> str:
    """Return the hash, 32 hexadecimal digits. digest: of the scenario's text. until_missed: as of a `Job`."""
    said = [digest, code, dict(sorted(files.items())), extract]
    content = json.dumps([*said, until_missed] if until_missed else said, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
