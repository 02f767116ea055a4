"""Arrow tables of rows whose values have few types; the type of a column does not depend on the order of its values.

Rows come in parts, and twice: first for the types, then for the values. So the rows of a large sweep are never in
memory together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hermes.explore.objective import Row

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["columns_of", "table_of", "tables_of"]


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the names in all rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def table_of(rows: list[dict[str, Any]], columns: Iterable[str]) -> pa.Table:
    """Return a table of rows; see `tables_of`."""
    import pyarrow as pa

    return pa.concat_tables(tables_of(lambda: [rows], columns))


def tables_of(parts: Callable[[], Iterable[list[dict[str, Any]]]], columns: Iterable[str]) -> Iterator[pa.Table]:
    """Yield a table of each part's rows, all of one schema: these columns first, then the others in order of first
    appearance.

    parts: Function that begins the parts anew. Without any, one empty table is yielded.
    """

    kinds: dict[str, set[object]] = {name: set() for name in columns}
    for rows in parts():
        for row in rows:
            for name, value in row.items():
                if name not in kinds:
                    kinds[name] = set()
                if value is not None:
                    kinds[name].add(_kind(value))
    types = {name: _type(found) for name, found in kinds.items()}
    some = False
    for rows in parts():
        some = True
        yield _table(rows, types)
    if not some:
        yield _table([], types)


def _table(rows: list[dict[str, Any]], types: Mapping[str, tuple[Callable[[Any], Any], pa.DataType]]) -> pa.Table:
    import pyarrow as pa

    values = {name: [row.get(name) for row in rows] for name in types}
    return pa.table({name: pa.array([None if v is None else convert(v) for v in values[name]], type_)
                     for name, (convert, type_) in types.items()})


def _kind(value: Any) -> object:
    """Return what matters of a value for the type of its column."""
    return "large" if type(value) is int and not -2**63 <= value < 2**63 else type(value)


def _type(kinds: set[object]) -> tuple[Callable[[Any], Any], pa.DataType]:
    """Return true/false, integers, floats (if a value is one, or too large for an integer), else text."""
    import pyarrow as pa

    if kinds <= {bool}:
        return bool, pa.bool_() if kinds else pa.float64()
    if kinds <= {int}:
        return int, pa.int64()
    if kinds <= {int, float, "large"} and float in kinds:
        return float, pa.float64()
    return _text, pa.string()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
