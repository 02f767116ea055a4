"""Base of importers, and helpers that they share.

An importer turns one source (a file, a folder, a program that answers queries) into `MeasuredSteps`. To add one,
register a subclass of `ImporterConfig` in `IMPORTERS`, in process or through the entry-point group `hermes.importers`.
Its fields become the options of `hermes profile import KIND` (a field `source` the positional argument), their
docstrings the help.
"""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.calibration.steps import MeasuredSteps
from hermes.config import ConfigModel
from hermes.config.registry import Registry
from hermes.hardware.descriptions.files import names_in

__all__ = ["IMPORTERS", "ImporterConfig", "Progress", "known_model", "no_progress", "option_name"]

IMPORTERS: Registry[Any] = Registry("importers", "an importer")

Progress = Callable[[int, int], None]
"""Called with (done, total) while an importer works."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


class ImporterConfig(ConfigModel):
    """Base of importers. The command builds one from validated options and calls `steps` once.

    It records the command that repeats the import, for the header's `collected_by`.
    """

    @abstractmethod
    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return all steps of the source; rows that must not be fitted are marked in `excluded`. Raises `InputError`
        for an invalid source."""

    def command(self) -> str:
        """Return `hermes profile import ...` with all options that differ from their defaults; files without folders,
        and without `python`, since these hold paths of one machine."""
        words = ["hermes", "profile", "import", str(getattr(self, "kind", "?"))]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in ("kind", "python") or value == field.default:
                continue
            text = Path(value).name if isinstance(value, str) and Path(value).exists() else str(value)
            words += [text] if name == "source" else [option_name(name), text]
        return shlex.join(words)


def option_name(field: str) -> str:
    """Return the command-line option of an importer's field (`tensor_parallel` -> `--tensor-parallel`)."""
    return "--" + field.removesuffix("_file").replace("_", "-")


def known_model(name: str) -> str:
    """Return the shipped model description of a published name, or `name` itself.

    `meta-llama/Meta-Llama-3.1-70B-Instruct` -> `llama-3.1-70b`, `Qwen/Qwen3-32B` -> `qwen3-32b`.
    """
    plain = name.rsplit("/", 1)[-1].lower().removeprefix("meta-").removesuffix("-instruct")
    return plain if plain in names_in("models") else name
