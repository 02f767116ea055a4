"""Arrow tables from columns, without pandas: importing it takes 0.35 s, which a run does not need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hermes.arrays import BoolArray
from hermes.results.files.frames import Coded, Columns
from hermes.units import unit_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_table", "numbers", "with_units"]


def with_units(table: pa.Table) -> pa.Table:
    """Return a table whose columns of numbers have their `unit` as metadata (`hermes.units.unit_of`)."""
    import pyarrow as pa

    return pa.Table.from_arrays(table.columns, schema=pa.schema([   # `cast` imports pyarrow.compute, for 30 ms
        each.with_metadata({"unit": unit_of(each.name)}) if pa.types.is_floating(each.type)
        or pa.types.is_integer(each.type) else each for each in table.schema], table.schema.metadata))


def arrow_table(columns: Columns) -> pa.Table:
    """Return columns as a table with units: `Coded` as dictionaries, lists as strings."""
    import pyarrow as pa

    def array(column: Any) -> pa.Array:
        if isinstance(column, Coded):
            return pa.DictionaryArray.from_arrays(numbers(column.codes, column.codes < 0), _texts(column.names))
        return numbers(column) if isinstance(column, np.ndarray) else _texts(column)

    return with_units(pa.table({name: array(column) for name, column in columns.items()}))


def numbers(values: npt.NDArray[Any], missing: BoolArray | None = None) -> pa.Array:
    """Return an array of one dimension as an Arrow array, built from its buffers; missing: elements that are null."""
    import pyarrow as pa

    valid = None if missing is None or not missing.any() else _bits(~missing)
    content = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, content])


def _bits(values: BoolArray) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _texts(values: Sequence[str | None]) -> pa.Array:
    """Return a string array; None is missing."""
    import pyarrow as pa

    encoded = [b"" if text is None else text.encode() for text in values]
    ends = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    wide = bool(ends[-1] > np.iinfo(np.int32).max)
    missing = np.array([text is None for text in values], dtype=np.bool_)
    return pa.Array.from_buffers(pa.large_string() if wide else pa.string(), len(encoded), [
        _bits(~missing) if missing.any() else None, pa.py_buffer(ends if wide else ends.astype(np.int32)),
        pa.py_buffer(b"".join(encoded)),
    ])
