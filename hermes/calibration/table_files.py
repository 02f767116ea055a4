"""Files of a YAML header and a Parquet table: the storage of measured steps and measured searches.

The header holds the table's name and hash, so that the two cannot be mixed up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.config.files import beside, parquet_frame
from hermes.config.files import file_digest as sha256
from hermes.config.writing import replacing, write_text
from hermes.config.yaml_writer import to_yaml
from hermes.errors import InputError, Verbatim

__all__ = ["number_in", "read_rows", "sha256", "typed_rows", "write_header", "write_rows"]

LARGEST = 2.0**53   # integers are exact below
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[-+]?([0-9]{1,300}(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][-+]?[0-9]{1,4})?", re.ASCII)


def write_rows(rows: pd.DataFrame, header_path: Path) -> dict[str, str | int]:
    """Write the table beside the header; return the header's entries about it (`file`, `sha256`, `rows`).

    Same rows, same bytes.
    """
    data = header_path.with_suffix(".parquet")
    with replacing(data) as temporary:
        rows.to_parquet(temporary, engine="pyarrow", compression="zstd", index=False)
    return {"file": data.name, "sha256": sha256(data), "rows": len(rows)}


def typed_rows(rows: pd.DataFrame, columns: Mapping[str, str], what: str) -> pd.DataFrame:
    """Return `rows` with these columns (name -> `int64`, `float64` or `string`) in order, numbered from 0.

    Raises `InputError` naming the row and the column of a value of another type: 1.7 is not an integer, true not a
    number. An unknown number is NaN.
    """
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


def number_in(text: str, kind: str, file: str, line: int, field: str) -> int | float:
    """Parse a number in a cell of a CSV file: ASCII digits, no underscores, finite. Raises `InputError` naming the
    line.

    Args:
        kind: `int64` for whole numbers of at least 0, `float64` for any number.
    """
    pattern = _WHOLE if kind == "int64" else _NUMBER
    if not pattern.fullmatch(text.strip(" ")):
        raise InputError("a whole number" if kind == "int64" else "a number", text, file=file, line=line, field=field)
    value = int(text) if kind == "int64" else float(text)
    if not abs(value) <= LARGEST:
        raise InputError(f"a number of at most {LARGEST:.0f}", text, file=file, line=line, field=field)
    return value


def write_header(content: Mapping[str, Any], path: Path) -> None:
    """Write a header without its empty entries."""
    write_text(path, to_yaml({key: value for key, value in content.items() if value not in ("", [], {}, None)}))


def read_rows(header_path: Path, file: str, digest: str) -> tuple[pd.DataFrame, Path]:
    """Return the table that a header names (`file`, or the header's own name) and its path. Raises `InputError` if it
    is missing, has another hash than `digest` (if given), or is not a Parquet file."""
    name = file or header_path.with_suffix(".parquet").name
    data = beside(header_path, name)
    if not data.is_file():
        raise InputError("the Parquet file beside the header", name, file=str(header_path), field="file")
    found = sha256(data)
    if digest and found != digest:
        raise InputError(f"the file with sha256 {digest}", found, file=str(data))
    return parquet_frame(data), data
