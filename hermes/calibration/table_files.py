"""Measured files: a YAML header and a Parquet table of the same name, for steps, terms and searches.

All headers are a `MeasuredHeader`, and hold the table's hash, so that the two cannot be mixed up. `Origin` is the part
that files without a table share (`hermes-link/1`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field

from hermes.config import ConfigModel, Name
from hermes.config.files import beside, parquet_frame
from hermes.config.files import file_digest as sha256
from hermes.config.validation import validate
from hermes.config.writing import replacing, write_text
from hermes.config.yaml_document import load_yaml
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, Verbatim

__all__ = ["MeasuredHeader", "MeasuredTable", "Origin", "sha256", "typed_rows"]

Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]

LARGEST = 2.0**53   # integers are exact below


class Origin(ConfigModel):
    """Where measured figures come from."""

    date: datetime.date | str
    clock: str
    """Clock of the times: CUDA events, wall clock, CPU clock, or the source's own statement."""
    source: str
    """File, data set or program, with its licence."""
    collected_by: str = ""
    """Command that collected or imported the figures."""
    environment: dict[str, Any] = Field(default_factory=dict)
    """Versions and the machine."""
    notes: list[str] = Field(default_factory=list)
    """Limits of the figures, and other notes to a reader."""


class MeasuredHeader(Origin):
    """Header of a measured file; each format adds what was measured."""

    format: str
    name: Name
    file: Annotated[str, Field(max_length=400)] = ""
    """The Parquet file beside the header; written by `MeasuredTable.save`."""
    sha256: Digest = ""
    """Hash of the Parquet file; written by `save`, checked by `load`."""
    rows: Annotated[int, Field(ge=0)] = 0
    hardware: str
    """The device's name for itself, e.g. NVIDIA H200."""
    engine: str = ""
    """Engine or library of the kernels: vllm, torch, splitwise-sim, ..."""
    engine_version: str = ""
    source_sha256: Digest = ""
    """Hash of the journal or of the imported file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the engine and of the collection (CUDA graphs, threads, warm-up, grid)."""
    excluded: list[str] = Field(default_factory=list)
    """Points or data of the source that could not be measured or were left out, with reasons."""


H = TypeVar("H", bound=MeasuredHeader)


@dataclass(frozen=True)
class MeasuredTable(Generic[H]):
    """A header and its rows. A format declares the class of its header, and the types of its columns."""

    header_class: ClassVar[type[Any]]
    columns: ClassVar[Mapping[str, str]]

    header: H
    rows: pd.DataFrame

    def usable(self) -> pd.DataFrame:
        """Return the rows that a fit may use."""
        return self.rows[self.rows["excluded"] == ""].reset_index(drop=True)

    @classmethod
    def tidy(cls, rows: pd.DataFrame, what: str) -> pd.DataFrame:
        """Return `rows` with all columns in order and of their types, times above 0. Raises `InputError`."""
        out = typed_rows(rows, cls.columns, what)
        if not (np.isfinite(out["time_s"]) & (out["time_s"] > 0)).all():
            raise InputError("times above 0", Verbatim("others"), file=what, field="time_s")
        return out

    def save(self, path: Path) -> H:
        """Write `path` (a header, .yaml, without empty entries) and the Parquet file of the same name; return the
        header as written. Same rows, same bytes. Raises `InputError` for invalid rows."""
        data, rows = path.with_suffix(".parquet"), self.tidy(self.rows, str(path))
        with replacing(data) as temporary:
            rows.to_parquet(temporary, engine="pyarrow", compression="zstd", index=False)
        header = self.header.model_copy(update={"file": data.name, "sha256": sha256(data), "rows": len(rows)})
        write_text(path, to_yaml({k: v for k, v in header.model_dump().items() if v not in ("", [], {}, None)}))
        return header

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a measured file by the path of its header.

        Raises `InputError` if the table is missing or is not a Parquet file of these columns, or has another hash than
        the header says.
        """
        header = validate(cls.header_class, load_yaml(path))
        name = header.file or path.with_suffix(".parquet").name
        data = beside(path, name)
        if not data.is_file():
            raise InputError("the Parquet file beside the header", name, file=str(path), field="file")
        found = sha256(data)
        if header.sha256 and found != header.sha256:
            raise InputError(f"the file with sha256 {header.sha256}", found, file=str(data))
        return cls(header, cls.tidy(parquet_frame(data), str(data)))


def typed_rows(rows: pd.DataFrame, columns: Mapping[str, str], what: str) -> pd.DataFrame:
    """Return `rows` with these columns (name -> `int64`, `float64` or `string`) in order, numbered from 0.

    Raises `InputError` for other columns, and naming the row and the column of a value of another type: 1.7 is not an
    integer, true not a number. An unknown number is NaN.
    """
    unknown, missing = sorted(set(rows.columns) - set(columns)), sorted(set(columns) - set(rows.columns))
    if unknown or missing:
        raise InputError(f"the columns {', '.join(columns)}", f"unknown {unknown}, missing {missing}", file=what)
    out = {}
    for name, kind in columns.items():
        values = rows[name].reset_index(drop=True)
        if kind == "string":
            out[name] = values.astype(str)
            continue
        numbers = values
        if values.dtype == object:
            numbers = pd.Series([value if type(value) in (int, float) else None for value in values])
        if numbers.dtype.kind not in "iuf":
            raise InputError("numbers in the columns of numbers", Verbatim(f"{name}: {numbers.dtype}"), file=what,
                             field=name)
        found = numbers.to_numpy(np.float64)
        bad = ~((found == np.rint(found)) & (np.abs(found) <= LARGEST)) if kind == "int64" else np.isinf(found)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            expected = "numbers in the columns of numbers" if kind == "float64" else (
                "numbers in the columns of numbers, whole ones here")
            raise InputError(expected, values.tolist()[row], file=what, field=f"row {row}.{name}")
        out[name] = numbers.astype(np.int64 if kind == "int64" else np.float64)
    return pd.DataFrame(out)
