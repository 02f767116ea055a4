"""Change one thing in a file of JSON, JSON lines, YAML, CSV or Parquet; find where two such files differ."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from fuzzing.mutations import TEXT_MUTATIONS, TREE_MUTATIONS, binary, damaged, spliced, spoiled_grid, truncated

__all__ = ["changed_place", "mutate", "read_yaml"]

CELLS = ["", " ", "x", "-5", "nan", "inf", "1e400", "9" * 400, "1.5", "0", "\u0661", "1_000", "0x10", '"', "2**3",
         "true", "None", "12345678901234567890", "\x1b[31m", "../../x"]
LINES = [b"", b"{}", b"[]", b"null", b"3", b'"text"', b'{"a": NaN}', b"{", b"\xff"]


def mutate(content: bytes, suffix: str, rng: random.Random) -> tuple[str, bytes]:
    """(name of the mutation, changed content)."""
    if suffix == ".parquet":
        return _parquet(content, rng)
    if suffix == ".sqlite":
        return _database(content, rng)
    if suffix == ".npz":
        return _arrays(content, rng)
    if suffix == ".http":
        return _reply(content, rng)
    if rng.random() < 0.2:
        damage = rng.choice(TEXT_MUTATIONS)
        return damage.__name__, damage(content, rng)
    if not content.strip():
        return "something", b"x"
    return {".json": _json, ".jsonl": _lines, ".yaml": _yaml, ".csv": _csv, ".log": _csv}[suffix](content, rng)


def _tree(tree: Any, rng: random.Random) -> tuple[str, Any]:
    """One change to nested data; what has too little in it for a change is replaced."""
    mutation = rng.choice(TREE_MUTATIONS)
    try:
        changed, _ = mutation(tree, rng)
    except (IndexError, TypeError, KeyError, ValueError):   # no number, no word, or no key in it
        return "replaced", rng.choice([None, 3, [], {}, "text", [tree]])
    return mutation.__name__, changed


def _json(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    name, tree = _tree(json.loads(content), rng)
    return name, json.dumps(tree).encode()


def _yaml(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    if b"\n---" in content:
        documents = content.split(b"\n---\n")
        place = rng.randrange(len(documents))
        name, documents[place] = _yaml(documents[place], rng)
        return name, b"\n---\n".join(documents)
    name, tree = _tree(read_yaml(content), rng)
    return name, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode()


def _lines(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = [line for line in content.splitlines() if line.strip()]
    row = rng.randrange(len(lines))
    kind = rng.choice(["tree", "tree", "tree", "gone", "twice", "order", "line"])
    if kind == "tree":
        kind, tree = _tree(json.loads(lines[row]), rng)
        lines[row] = json.dumps(tree).encode()
    elif kind == "gone":
        del lines[row]
    elif kind == "twice":
        lines.insert(row, lines[row])
    elif kind == "order":
        other = rng.randrange(len(lines))
        lines[row], lines[other] = lines[other], lines[row]
    else:
        lines[row] = rng.choice(LINES)
    return kind, b"\n".join(lines) + b"\n"


def _csv(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind, grid = spoiled_grid(list(csv.reader(io.StringIO(content.decode()))), CELLS, rng)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(grid)
    return kind, out.getvalue().encode()


def _reply(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """An HTTP reply: another status, another header, another body, or damage."""
    head, _, body = content.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    kind = rng.choice(["status", "header", "length", "body", "damaged"])
    if kind == "damaged":
        damage = rng.choice([truncated, binary, spliced, damaged])
        return damage.__name__, damage(content, rng)
    if kind == "status":
        status = rng.choice([*(b"HTTP/1.1 %d Other" % code for code in (100, 204, 206, 301, 401, 404, 429, 500, 999)),
                             b"HTTP/1.1", b"HTTP/9.9 200 OK", b"200", b""])
    elif kind == "header":
        headers.append(rng.choice([b"Location: /", b"Transfer-Encoding: chunked", b"Content-Encoding: gzip",
                                   b"no colon", b"X-Long: " + b"x" * 70_000, b"X: y\r\n" * 200, b"\xff: \x00"]))
    elif kind == "length":
        longer = b"%d" % (len(body) + 1)
        headers[-1] = b"Content-Length: " + rng.choice([b"0", b"-1", b"3", b"9" * 30, b"x", b"", longer])
    else:
        kind, body = _csv(body, rng) if rng.random() < 0.7 else (
            "page", rng.choice([b"<html>not here</html>", b" <?xml?>", b"\x1f\x8b\x08\x00", b"{}", b""]))
        headers[-1] = b"Content-Length: %d" % len(body)
    return kind, b"\r\n".join([status, *headers]) + b"\r\n\r\n" + body


def _parquet(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(["column", "null", "type", "value", "rename", "rows", "extra", "order", "truncated", "flipped"])
    if kind == "truncated":
        return kind, truncated(content, rng)
    if kind == "flipped":
        place = rng.randrange(len(content))
        return kind, content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1:]
    table = pq.read_table(pa.BufferReader(content))
    name = rng.choice(table.column_names)
    place, column = table.column_names.index(name), table[name]
    if kind == "column":
        table = table.drop_columns([name])
    elif kind == "rename":
        table = table.rename_columns([name + "x" if other == name else other for other in table.column_names])
    elif kind == "extra":
        table = table.append_column("extra", pa.array([1] * len(table)))
    elif kind == "rows":
        shorter = table.slice(0, max(len(table) - 1, 0))
        table = rng.choice([table.slice(0, 0), shorter, pa.concat_tables([table, table])])
    elif kind == "order":
        table = table.take(pa.array(range(len(table) - 1, -1, -1), pa.int64()))
    else:
        made = _column(column, kind, rng)
        table = table.set_column(place, name, made)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return f"{kind} {name}", sink.getvalue().to_pybytes()


def _column(column: Any, kind: str, rng: random.Random) -> pa.Array:
    values = column.to_pylist()
    row = rng.randrange(len(values)) if values else 0
    if kind == "type":
        made = [[str(v) for v in values], [True] * len(values), [0.5] * len(values), [1] * len(values),
                [None] * len(values), [[1]] * len(values), [b"\xff"] * len(values)]
        return pa.array(rng.choice(made))
    if not values:
        return pa.array(values)
    if kind == "null":
        values[row] = None
    elif isinstance(values[row], bool):
        values[row] = not values[row]
    elif isinstance(values[row], int):
        values[row] = rng.choice([-1, -2, 0, 10**6, 2**62, -(2**63), values[row] + 1])
    elif isinstance(values[row], list):
        values[row] = rng.choice([[], values[row] + [1], values[row][:-1], [0] * len(values[row])])
    elif isinstance(values[row], float):
        values[row] = rng.choice([math.nan, math.inf, -math.inf, -1.0, 1e300, 0.0, values[row] * 2 + 1])
    else:
        values[row] = rng.choice(["", "nobody", "\x1b[31m", "../../x"])
    try:
        return pa.array(values, None if isinstance(values[row], str) else column.type)
    except (pa.ArrowInvalid, OverflowError):   # too large for a column of small integers
        return pa.array(values)


def _arrays(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(["array", "value", "type", "shape", "rename", "empty", "truncated", "flipped", "extra"])
    if kind == "empty":
        return kind, b""
    if kind in ("truncated", "flipped"):
        place = rng.randrange(len(content))
        return kind, content[:place] + (b"" if kind == "truncated" else
                                        bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1:])
    with np.load(io.BytesIO(content)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name = rng.choice(list(arrays))
    array = arrays[name]
    if kind == "array":
        del arrays[name]
    elif kind == "value" and array.size:
        changed = array.copy()
        changed.flat[rng.randrange(array.size)] = rng.choice([0, -1, -2, 30000] + [np.nan] * (array.dtype.kind == "f"))
        arrays[name] = changed
    elif kind == "type":
        arrays[name] = rng.choice([array.astype(np.float64), array.astype(str), array.astype(np.complex128),
                                   array.astype(np.int64) * 10**12, array > 3])
    elif kind == "shape":
        arrays[name] = rng.choice([array.reshape(-1), array[..., None], array[:0], array[:-1], np.array(3)])
    elif kind == "rename":
        arrays[name + "x"] = arrays.pop(name)
    else:
        arrays[rng.choice(["extra", "prefill/x/bf16", "decode/128/bf16", "gemm/int8", "a/b/c/d/e"])] = array
    out = io.BytesIO()
    np.savez(out, **arrays)
    return f"{kind} {name}", out.getvalue()


def _database(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(["cell", "cell", "cell", "row", "table", "column", "truncated", "flipped"])
    if kind == "truncated":
        return kind, truncated(content, rng)
    if kind == "flipped":
        place = rng.randrange(len(content))
        return kind, content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1:]
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content)
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice(names)
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        column, rows = rng.choice(columns), [row for (row,) in database.execute(f"SELECT rowid FROM {table}")]
        row = rng.choice(rows) if rows else 0
        if kind == "cell":
            value = rng.choice([None, "", "x", "{}", "[]", "null", "NaN", "3", 3, -1, 1.5, b"\xff", 2**62, "ok"])
            database.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", (value, row))
        elif kind == "row":
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
        elif kind == "table":
            database.execute(f"DROP TABLE {table}")
        else:
            database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
        database.commit()
        return f"{kind} {table}.{column}", database.serialize()


# -- what differs ------------------------------------------------------------------------------------------------------


def changed_place(before: bytes, after: bytes, suffix: str) -> str | None:
    """Where two contents differ: a dotted path, a column, a line; None where they mean the same."""
    read: Callable[[bytes], Any] = {
        ".json": json.loads, ".jsonl": _read_lines, ".yaml": read_yaml, ".csv": _read_csv,
        ".parquet": _read_parquet, ".sqlite": _read_database, ".npz": _read_arrays, ".http": _read_reply,
        ".log": lambda content: content.decode().splitlines(),
    }[suffix]
    if before == after:
        return None
    try:
        return _differs(read(before), read(after), "")
    except Exception:   # another reader's complaint
        return "text"


def _read_reply(content: bytes) -> Any:
    head, _, body = content.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = {name.decode("latin-1"): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    return {"body": body, "status": int(status.split()[1]), **headers}   # its words are for people


def _read_lines(content: bytes) -> Any:
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def read_yaml(content: bytes) -> Any:
    """Read a document, or a list of several, with the scanner in C: thousands of cases are mutated from whole scenarios
    and profiles."""
    found = list(yaml.load_all(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    return found[0] if len(found) == 1 else found


def _read_csv(content: bytes) -> Any:
    header, *rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"))) if row]
    return [header, *(dict(zip(header, row, strict=True)) for row in rows)]


def _read_parquet(content: bytes) -> Any:
    table = pq.read_table(pa.BufferReader(content))
    return {name: repr([_number(value) for value in table[name].to_pylist()]) for name in table.column_names}


def _number(value: Any) -> Any:
    """A text of a number is the number, and 3.0 is 3."""
    try:
        return float(value) if isinstance(value, int | str) and not isinstance(value, bool) else value
    except (ValueError, OverflowError):
        return value


def _read_arrays(content: bytes) -> Any:
    with np.load(io.BytesIO(content)) as stored:
        return {name: repr((stored[name].dtype, stored[name].tolist())) for name in stored.files}


def _read_database(content: bytes) -> Any:
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content)
        names = sorted(name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
        found = {}
        for name in names:
            cursor = database.execute(f"SELECT * FROM {name}")
            columns = [column[0] for column in cursor.description]
            rows = sorted(cursor.fetchall(), key=repr)
            found[name] = {column: repr([row[i] for row in rows]) for i, column in enumerate(columns)}
        return found


def _differs(before: Any, after: Any, place: str) -> str | None:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in before or key not in after:
                return f"{place}.{key}".strip(".")
            found = _differs(before[key], after[key], f"{place}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return f"{place}.length".strip(".")
        return next((found for i, pair in enumerate(zip(before, after, strict=True))
                     if (found := _differs(*pair, f"{place}.{i}")) is not None), None)
    same = before == after and isinstance(before, bool) == isinstance(after, bool)
    return None if same or before is after else place.strip(".") or "all"
