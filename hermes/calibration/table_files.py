"""A YAML header and a Parquet table beside it: how measured steps and measured searches lie on disk.

The header names the table and its hash, so that the two cannot be mixed up.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd

from hermes.errors import InputError

__all__ = ["read_rows", "write_rows"]


def write_rows(rows: pd.DataFrame, header_path: Path) -> dict[str, str | int]:
    """Write the table beside the header; what the header has to say of it (`file`, `sha256`, `rows`).

    Same rows, same bytes.
    """
    header_path.parent.mkdir(parents=True, exist_ok=True)
    data = header_path.with_suffix(".parquet")
    rows.to_parquet(data, engine="pyarrow", compression="zstd", index=False)
    return {"file": data.name, "sha256": hashlib.sha256(data.read_bytes()).hexdigest(), "rows": len(rows)}


def read_rows(header_path: Path, file: str, sha256: str) -> tuple[pd.DataFrame, Path]:
    """The table that a header names (`file`, or of the header's name) and its path. Raises `InputError` where it is
    not there, has another hash than `sha256` (if there is one), or is no Parquet file."""
    data = header_path.parent / (file or header_path.with_suffix(".parquet").name)
    try:
        content = data.read_bytes()
    except OSError as error:
        raise InputError(
            "the Parquet file beside the header", str(error.strerror), file=str(header_path), field="file"
        ) from None
    digest = hashlib.sha256(content).hexdigest()
    if sha256 and digest != sha256:
        raise InputError(f"the file with sha256 {sha256}", digest, file=str(data))
    try:
        return pd.read_parquet(data, engine="pyarrow"), data
    except Exception as error:  # pyarrow raises many kinds for a file that is no Parquet
        raise InputError("a Parquet file", str(error).splitlines()[0], file=str(data)) from None
