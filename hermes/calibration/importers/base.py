"""Base of importers, and helpers that they share.

An importer turns one source (a file, a folder, a program that answers queries) into `MeasuredSteps`. To add one,
register a subclass of `ImporterConfig` in `IMPORTERS`, in process or through the entry-point group `hermes.importers`.
Its fields become the options of `hermes profile import KIND` (a field `source` the positional argument), their
docstrings the help.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hermes.calibration.steps import MeasuredSteps
from hermes.calibration.table_files import sha256
from hermes.config import ConfigModel
from hermes.config.files import open_file
from hermes.config.registry import Registry
from hermes.errors import InputError
from hermes.hardware.files import names_in

__all__ = [
    "IMPORTERS", "Importer", "ImporterConfig", "Progress", "known_model", "no_progress", "one_of", "option_name",
    "read_csv", "sha256",
]

IMPORTERS: Registry[Any] = Registry("importers", "an importer")

Progress = Callable[[int, int], None]
"""Called with (done, total) while an importer works."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


class Importer(Protocol):
    """Interface of importers. The host builds the importer from validated options and calls `steps` once."""

    kind: str

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return all steps of the source; rows that must not be fitted are marked in `excluded`. Raises `InputError`
        for an invalid source."""
        ...


class ImporterConfig(ConfigModel):
    """Base of importers: records the command that repeats the import, for the header's `collected_by`."""

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
    """Return the command-line option of an importer's field (`model_config_file` -> `--model-config`)."""
    return "--" + field.removesuffix("_file").replace("_", "-")


def one_of(value: object, allowed: Sequence[object], field: str, file: str | None = None) -> None:
    """Raise `InputError` unless `value` is among `allowed`."""
    if value not in allowed:
        raise InputError(f"one of {', '.join(map(str, allowed))}", value, field=field, file=file)


def known_model(name: str) -> str:
    """Return the shipped model description of a published name, or `name` itself.

    `meta-llama/Meta-Llama-3.1-70B-Instruct` -> `llama-3.1-70b`, `Qwen/Qwen3-32B` -> `qwen3-32b`.
    """
    plain = name.rsplit("/", 1)[-1].lower().removeprefix("meta-").removesuffix("-instruct")
    return plain if plain in names_in("models") else name


def read_csv(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file with at least these columns and one row; numbers finite and at least 0. Raises `InputError`."""
    try:
        if not path.exists():
            raise InputError("an existing file", str(path), field="source")
        with open_file(path, "a CSV file") as file:
            frame = pd.read_csv(file)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"a CSV file ({str(error).splitlines()[0]})", file=str(path)) from None
    missing = [name for name in (*numbers, *texts) if name not in frame]
    if missing:
        raise InputError(f"the columns {', '.join((*numbers, *texts))}", f"no {', '.join(missing)}", file=str(path))
    if frame.empty:
        raise InputError("at least one row", "none", file=str(path))
    for name in numbers:
        values = pd.to_numeric(frame[name], errors="coerce")
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            found = frame[name].tolist()[row]
            raise InputError("a number of at least 0", found, file=str(path), line=row + 2, field=name)
        frame[name] = values
    for name in texts:
        frame[name] = frame[name].astype(str)
    return frame
