"""Writer of kernel tables (`hermes-kernels/1`); `hermes.hardware.kernel_tables` reads them and has the format."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hermes.config.writing import write_bytes, write_text
from hermes.config.yaml_writer import to_yaml
from hermes.hardware.kernel_tables import KernelsFile

__all__ = ["coded", "save_kernels"]

SCALE = 1000.0


def coded(ns: Any) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Nanoseconds as int16, 1000 * ln(nanoseconds): steps of 0.1%; -1 where nothing was measured."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.rint(SCALE * np.log(np.asarray(ns, dtype=np.float64)))
    return np.where(np.isfinite(logs), np.maximum(logs, 0.0), -1).astype(np.int16)


def save_kernels(header: KernelsFile, arrays: Mapping[str, np.ndarray[Any, Any]], path: Path, comment: str = "") -> (
        KernelsFile):
    """Write `path` (YAML) and the .npz beside it; return the header as written. Same tables, same bytes.

    Args:
        arrays: Tables of nanoseconds (float64, nan where not measured) by name, and their axes (`NAME/AXIS`).
        comment: First lines of the YAML.
    """
    tables = [key for key, values in arrays.items() if values.ndim > 1 and not key.endswith("/heads")]
    stored = {key: coded(values) if key in tables else values.astype(np.int64) for key, values in arrays.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **stored)  # type: ignore[arg-type]
    header = header.model_copy(update={"tables": tables, "sha256": hashlib.sha256(buffer.getvalue()).hexdigest()})
    write_bytes(path.with_suffix(".npz"), buffer.getvalue())
    write_text(path, to_yaml(header.model_dump(), comment))
    return header
