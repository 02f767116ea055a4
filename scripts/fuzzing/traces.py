"""Mutated traces, in our format and in those that can be imported."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fuzzing.mutations import binary, empty, spliced, spoiled_grid, truncated
from hermes.workload.traces import read_trace

__all__ = ["MutatedTrace", "mutated"]

CELLS = [
    "", " ", "x", "-5", "nan", "inf", "1e400", "9" * 400, "1.5", "0", "3 ms", "\u0661", "0x10", "+3", '"', "-0", "1e3",
    "None", "true", "\x00", "2023-13-45 00:00:00", "[1]", "12345678901234567890",
]
OURS = ["arrival_s", "prompt_tokens", "output_tokens"]
Rows = list[list[str]]


@dataclass
class MutatedTrace:
    mutation: str
    path: Path
    command: list[str]
    understood: Callable[[], Any]
    written: Callable[[], Any]


def mutated(number: int, rng: random.Random, folder: Path) -> MutatedTrace:
    make = rng.choice([_csv, _csv, _azure, _mooncake, _parquet])
    return make(number, rng, folder)


def _grid(rng: random.Random, header: list[str], first: Callable[[int], str]) -> tuple[str, Rows]:
    """A table with one mistake."""
    rows = [[first(i), str(100 + 10 * i), str(5 + i), *("0" for _ in header[3:])] for i in range(8)]
    return spoiled_grid([list(header), *rows], CELLS, rng)


def _text(grid: Rows) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(grid)
    return out.getvalue().encode()


def _damaged(text: bytes, rng: random.Random) -> tuple[str, bytes]:
    damage = rng.choice([truncated, binary, spliced, empty])
    return damage.__name__, damage(text, rng)


def _cells(path: Path) -> dict[str, list[float]]:
    """An independent reading of a CSV file."""
    rows = [row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))) if row]
    return {name: [float(row[i]) for row in rows[1:]] for i, name in enumerate(rows[0])}


def _read(path: Path, names: list[str]) -> dict[str, list[float]]:
    table = read_trace(path)
    found = {"arrival_s": [t / 1e9 for t in table.arrival_ns]} if table.arrival_ns is not None else {}
    return found | {name: [float(v) for v in getattr(table, name)] for name in names if name != "arrival_s"}


def _csv(number: int, rng: random.Random, folder: Path) -> MutatedTrace:
    path = folder / f"trace-{number}.csv"
    header = [*OURS, "priority"] if rng.random() < 0.5 else OURS
    kind, grid = _grid(rng, header, lambda i: str(0.25 * i))
    text = _text(grid)
    if rng.random() < 0.25:
        kind, text = _damaged(text, rng)
    path.write_bytes(text)
    return MutatedTrace(
        f"csv {kind}", path, _reader(path, number, rng), lambda: _read(path, list(_cells(path))), lambda: _cells(path)
    )


def _reader(path: Path, number: int, rng: random.Random) -> list[str]:
    """Return a command that reads a trace in our format."""
    if rng.random() < 0.5:
        return ["trace", "describe", str(path), "--json"]
    user = path.parent / f"user-{number}.yaml"
    user.write_text(
        f"workload: {{arrivals: {{kind: trace, path: {path.name}}}, lengths: {{kind: trace, path: {path.name}}}}}\n"
        "clients: [{hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}, "
        "memory: {num_blocks: 1000}}]\n"
    )
    return ["validate", str(user)]


def _imported(kind: str, name: str, path: Path, written: Callable[[], Any]) -> MutatedTrace:
    target = path.with_suffix(".out.parquet")
    command = ["trace", "import", name, str(path), "-o", str(target), "--json"]
    return MutatedTrace(f"{name} {kind}", path, command, lambda: _read(target, OURS[1:]), written)


def _azure(number: int, rng: random.Random, folder: Path) -> MutatedTrace:
    path = folder / f"azure-{number}.csv"
    header = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
    kind, grid = _grid(rng, header, lambda i: f"2023-11-16 18:15:{40 + i}.6805900")
    text = _text(grid)
    if rng.random() < 0.25:
        kind, text = _damaged(text, rng)
    path.write_bytes(text)

    def written() -> dict[str, list[float]]:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
        return {ours: [float(row[theirs]) for row in rows] for ours, theirs in zip(OURS[1:], header[1:], strict=True)}

    return _imported(kind, "azure", path, written)


def _mooncake(number: int, rng: random.Random, folder: Path) -> MutatedTrace:
    path = folder / f"mooncake-{number}.jsonl"
    names = ["timestamp", "input_length", "output_length", "hash_ids"]
    rows: list[Any] = [dict(zip(names, [250 * i, 600 + i, 9, [i, i + 1]], strict=True)) for i in range(6)]
    row, kind = rng.randrange(6), rng.choice(["cell", "cell", "cell", "missing", "unknown", "not_an_object", "order"])
    if kind == "cell":
        rows[row][rng.choice(names)] = rng.choice([
            None, "x", -1, 1.5, float("nan"), float("inf"), 10**30, True, [], {}, [1, "x"], [-1, 2], "7", 0])
    elif kind == "missing":
        del rows[row][rng.choice(names)]
    elif kind == "unknown":
        rows[row][rng.choice(names) + "s"] = rows[row].pop(rng.choice(names))
    elif kind == "not_an_object":
        rows[row] = rng.choice([[], 3, None, "text"])
    else:
        rows[row], rows[(row + 1) % 6] = rows[(row + 1) % 6], rows[row]
    text = "".join(json.dumps(line) + "\n" for line in rows).encode()
    if rng.random() < 0.25:
        kind, text = _damaged(text, rng)
    path.write_bytes(text)

    def written() -> dict[str, list[float]]:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        columns = zip(OURS[1:], names[1:3], strict=True)
        return {ours: [float(line[theirs]) for line in lines] for ours, theirs in columns}

    return _imported(kind, "mooncake", path, written)


def _parquet(number: int, rng: random.Random, folder: Path) -> MutatedTrace:
    path = folder / f"trace-{number}.parquet"
    columns = [[0.0, 0.5, 1.0, 1.5], [10, 20, 30, 40], [2, 3, 4, 5]]
    frame = pd.DataFrame(dict(zip(OURS, columns, strict=True)))
    column = rng.choice(OURS)
    kind = rng.choice(["type", "value", "missing", "unknown", "damaged"])
    if kind == "type":
        frame[column] = rng.choice([
            ["a", "b", "c", "d"], [[1], [2], [3], [4]], [True, False, True, True], [None] * 4,
            [b"\xff", b"", b"1", b"2"], pd.to_datetime(["2023-01-01"] * 4), [1.5, 2.5, 3.5, 4.5], ["1", "2", "3", "4"],
        ])
    elif kind == "value":
        frame[column] = frame[column].astype(float)
        frame.loc[rng.randrange(4), column] = rng.choice([float("nan"), float("inf"), -1.0, 1e30, 0.0, 2.5, 1e18])
    elif kind == "missing":
        frame = frame.drop(columns=[column])
    elif kind == "unknown":
        frame = frame.rename(columns={column: column + "x"}) if rng.random() < 0.5 else frame.assign(extra=1)
    frame.to_parquet(path)
    if kind == "damaged":
        damage = rng.choice([truncated, binary, empty])
        path.write_bytes(damage(path.read_bytes(), rng))
    return MutatedTrace(
        f"parquet {kind}", path, _reader(path, number, rng), lambda: _read(path, OURS),
        lambda: {name: [float(v) for v in frame[name]] for name in frame.columns},
    )
