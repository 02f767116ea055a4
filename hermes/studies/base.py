"""What a study is, what it is given, and how it is found by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hermes.config.data_files import resource_dir
from hermes.config.registry import Registry
from hermes.errors import InputError
from hermes.studies.report import Report

__all__ = ["STUDIES", "Context", "Study", "load_studies"]


@dataclass(frozen=True)
class Context:
    """What a study is given.

    quick: a smaller version of the same study, under two minutes on two cores; out: a folder of its own, where sweeps
    keep their points (an interrupted study goes on where it stopped); workers: processes it may use; data: folder of
    reference data that does not ship with the product, None where the user named none; say: tells the user what is
    going on, one line at a time.
    """

    name: str
    out: Path
    quick: bool = False
    workers: int = 1
    data: Path | None = None
    say: Callable[[str], None] = field(default=lambda text: None)

    def file(self, name: str) -> Path:
        """A scenario or sweep of this study: `scenarios/studies/<study>/<name>`."""
        return resource_dir("scenarios") / "studies" / self.name / name

    def need_data(self, *parts: str) -> Path:
        """A file or folder of the reference data; `InputError` that says how to name it where it is not there."""
        if self.data is None:
            raise InputError(f"the folder with {'/'.join(parts)}, as --data DIR", None, field="--data")
        found = self.data.joinpath(*parts)
        if not found.exists():
            raise InputError(f"a folder with {'/'.join(parts)}", str(self.data), field="--data")
        return found


class Study(Protocol):
    """One study. The class is registered with `@STUDIES.register("name")` and made without arguments."""

    title: str
    """One line: what is asked."""

    def run(self, context: Context) -> Report:
        """Run it. Must give equal tables for equal inputs, whatever `context.workers` is."""
        ...


STUDIES: Registry[Any] = Registry("studies", "a study")


def load_studies() -> Registry[Any]:
    """The registry, with every study of this package in it."""
    package = importlib.import_module("hermes.studies")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"hermes.studies.{module.name}")
    return STUDIES
