"""`record.parquet`: a `RunRecord` on disk, from which the results of a folder are read back.

A row holds an array, or a part of a long one: integers in `wide` (64 bits) or `narrow` (32), others in `floats`. Array
0 is the record as compressed JSON in which {"array": n} stands for array n. The dataclasses are the schema, so that a
new field of `RunRecord` is written and read without a line here. The folder's `summary.json` has the file's SHA-256.
"""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from hermes.arrays import AnyArray
from hermes.config.files import file_digest, is_parquet, require_file, unzipped
from hermes.core.columns import release_memory
from hermes.core.record import RunRecord
from hermes.errors import InputError, Verbatim
from hermes.results.files.arrow import numbers

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_BYTES", "RECORD", "read_record", "write_record"]

RECORD = "record.parquet"
MOST_BYTES = 2**50
_LISTS = {"wide": "int64", "narrow": "int32", "floats": "float64"}   # column -> type
_COLUMNS = {"int64": "wide", "float64": "floats", **dict.fromkeys(("bool", "int8", "uint8", "int32"), "narrow")}
# fields that are written only where they hold something
_WHERE_THERE = ("held", "calls", "queued", "halts", "offers", "weights", "incidents", "incident_kinds", "circuits")
_VALUES = 1 << 20   # of a row at most; of a row group at least


# -- writing -----------------------------------------------------------------------------------------------------------


def write_record(record: RunRecord, path: Path) -> None:
    """Write a record. Equal records give equal bytes (with one version of pyarrow)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays: list[AnyArray] = []
    text = json.dumps(_encoded(record, arrays), default=np.generic.item)
    arrays.insert(0, np.frombuffer(zlib.compress(text.encode(), 6), dtype=np.uint8))
    lists = {name: pa.list_(pa.from_numpy_dtype(kind)) for name, kind in _LISTS.items()}
    packing = {f"{name}.list.element": "BYTE_STREAM_SPLIT" if name == "floats" else "DELTA_BINARY_PACKED"
               for name in lists}
    with pq.ParquetWriter(path, pa.schema([("array", pa.int32()), *lists.items()]), compression="zstd",
                          use_dictionary=False, write_statistics=False, column_encoding=packing) as writer:
        for rows in _groups(arrays):
            owner = numbers(np.array([number for number, _ in rows], dtype=np.int32))
            columns = [_lists(name, [part for _, part in rows]) for name in lists]
            writer.write_table(pa.table([owner, *columns], names=["array", *lists]))
            del columns
            release_memory(sum(len(part) for _, part in rows))


def _encoded(value: object, arrays: list[AnyArray]) -> object:
    """Return a value as JSON data, with its arrays moved to `arrays`."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays), "dtype": value.dtype.name, "shape": value.shape}
    if isinstance(value, RunRecord):
        there = {name: one for name, one in vars(value).items() if name not in _WHERE_THERE or one}
        return _encoded(there | {"gaps": _joined(value.gaps)}, arrays)
    if is_dataclass(value):
        return _encoded({each.name: getattr(value, each.name) for each in fields(value)}, arrays)
    if isinstance(value, Mapping):
        return {str(key): _encoded(one, arrays) for key, one in value.items()}
    return [_encoded(one, arrays) for one in value] if isinstance(value, list | tuple) else value


def _joined(gaps: Mapping[int, AnyArray]) -> dict[str, AnyArray]:
    """Return `RunRecord.gaps` as three arrays: thousands of short ones would be slow."""
    steps = list(gaps.values())
    return {"stages": np.array(list(gaps), dtype=np.int64), "counts": np.array([*map(len, steps)], dtype=np.int64),
            "steps": np.concatenate(steps) if steps else np.empty(0, dtype=np.int32)}


def _groups(arrays: Sequence[AnyArray]) -> Iterator[list[tuple[int, AnyArray]]]:
    """Yield rows (number of an array, a part of it), as many at once as make a row group."""
    rows: list[tuple[int, AnyArray]] = []
    held = 0
    for number, array in enumerate(arrays):
        flat = array.reshape(-1)
        for low in range(0, max(len(flat), 1), _VALUES):
            rows.append((number, flat[low:low + _VALUES]))
            held += len(rows[-1][1])
            if held >= _VALUES:
                yield rows
                rows, held = [], 0
    if rows:
        yield rows


def _lists(name: str, parts: list[AnyArray]) -> pa.Array:
    """Return a column of lists: the parts whose type it holds, and empty lists for others."""
    import pyarrow as pa

    none = np.empty(0, dtype=_LISTS[name])
    mine = [part if _COLUMNS[part.dtype.name] == name else none for part in parts]
    ends = np.cumsum([0, *map(len, mine)], dtype=np.int32)
    return pa.ListArray.from_arrays(numbers(ends), numbers(np.concatenate(mine).astype(none.dtype, copy=False)))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_record(path: Path, digest: str) -> RunRecord:
    """Read a record back. Raises `InputError` if the file does not have the SHA-256 `digest`, or another schema."""
    require_file(path)
    if not is_parquet(path) or file_digest(path, MOST_BYTES) != digest:   # a sparse file can claim any size
        raise InputError(Verbatim("it is not the file that the run wrote; run the scenario again"), file=str(path))
    try:
        arrays = [np.concatenate(parts) for parts in _stored(path)]
        data = json.loads(unzipped(arrays[0].astype(np.uint8).tobytes()))
        record: RunRecord = _decoded(RunRecord, data, arrays)
        _check_lengths(record)
    except (ValueError, TypeError, KeyError, IndexError, OSError, zlib.error, NotImplementedError, MemoryError,
            OverflowError) as error:   # what pyarrow raises, too
        raise InputError("the record of a run of this version", Verbatim(str(error)), file=str(path)) from None
    return record


def _stored(path: Path) -> list[list[AnyArray]]:
    """Return the parts of each array."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays: list[list[AnyArray]] = []
    with pq.ParquetFile(path) as file:
        for name, kind in _LISTS.items():
            if file.schema_arrow.field(name).type != pa.list_(pa.from_numpy_dtype(kind)):
                raise ValueError(f"column {name!r} of another type")
        for group in range(file.num_row_groups):
            table = file.read_row_group(group).combine_chunks()
            lists = [table[name].chunk(0) for name in _LISTS]
            values = [column.flatten().to_numpy() for column in lists]
            ends = [column.offsets.to_numpy() for column in lists]
            for row, number in enumerate(table["array"].chunk(0).to_numpy()):
                if not 0 <= number <= len(arrays):
                    raise ValueError(f"array {number} after {len(arrays)} arrays")
                if number == len(arrays):
                    arrays.append([])
                parts = [held[end[row]:end[row + 1]] for held, end in zip(values, ends, strict=True)]
                arrays[number].append(next((part for part in parts if len(part)), parts[0]))
    return arrays


def _decoded(hint: Any, value: Any, arrays: list[AnyArray]) -> Any:
    """Return a value of the type `hint` from JSON data. Raises `ValueError` or `TypeError` for other data."""
    origin, inner = _origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):   # X | None
        return None if value is None else _decoded(inner[0], value, arrays)
    if origin is np.ndarray:
        return arrays[value["array"]].astype(value["dtype"], copy=False).reshape(value["shape"])
    if origin is list or (origin is tuple and inner[-1] is Ellipsis):
        return origin(_decoded(inner[0], one, arrays) for one in value)
    if origin is tuple:
        return tuple(_decoded(each, one, arrays) for each, one in zip(inner, value, strict=True))
    if origin is Mapping:
        stages, counts, steps = (_decoded(AnyArray, value[name], arrays) for name in ("stages", "counts", "steps"))
        return dict(zip(stages.tolist(), np.split(steps, np.cumsum(counts)[:-1]), strict=False))
    if isinstance(value, dict) and isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{name: _decoded(hints[name], one, arrays) for name, one in value.items()})
    if isinstance(value, dict):
        return {inner[0](key): _decoded(inner[1], one, arrays) for key, one in value.items()}
    if type(value) is not hint and not (hint is float and type(value) is int):
        raise ValueError(f"{value!r} in place of {hint.__name__}")
    return value


def _origin(hint: Any) -> Any:
    """Return `typing.get_origin` of a hint, through an alias such as NumPy's `NDArray` (one since NumPy 2.5)."""
    origin = get_origin(hint)
    return get_origin(getattr(origin, "__value__", hint))


def _check_lengths(record: RunRecord) -> None:
    """Raise `ValueError` for columns of one table that differ in length."""
    requests = {name: getattr(record, name) for name in (
        "arrival_ns", "prompt_tokens", "output_tokens", "priority", "session", "status", "finish_ns")}
    for table in (requests, record.stages, record.runs, record.transfers):
        lengths = {name: len(column) for name, column in table.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")
