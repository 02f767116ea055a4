"""References: per-request times measured or simulated elsewhere, from a CSV, JSON-lines or Parquet file.

A mapping gives the column of each field (`ttft: ttft_times`) and its unit. Missing durations follow from other columns:
TTFT from arrival and first token, E2E from arrival and finish, TPOT from first token, finish and the number of output
tokens, and splitwise's TBT = (E2E - TTFT) / output tokens.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hermes.config import ConfigModel
from hermes.config.bench_results import bench_rows
from hermes.config.files import csv_rows, json_lines, parquet_batches
from hermes.config.load_drivers import driver_of, driver_rows
from hermes.config.validation import validate
from hermes.config.yaml_document import load_yaml
from hermes.errors import InputError, Verbatim, suggest
from hermes.units import parse_number

__all__ = ["PRESETS", "Column", "Reference", "ReferenceMapping", "guess_mapping", "load_reference",
           "mapping_from_options", "preset"]

FloatArray = npt.NDArray[np.float64]
Unit = Literal["s", "ms", "us", "ns"]

PER_S: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
INSTANTS = ("arrival", "seen", "first_token", "finish")
DURATIONS = ("ttft", "tpot", "tbt", "e2e")
COUNTS = ("prompt_tokens", "output_tokens")
_LARGEST = 1e24   # far above nanoseconds since 1970
_REQUEST_ID = re.compile(r"(?:[A-Za-z][A-Za-z0-9_.:/# -]*[A-Za-z_.:/# -]|[A-Za-z])?([0-9]{1,30})")
FIELDS = ("id", *INSTANTS, *DURATIONS, *COUNTS, "token_times")


class Column(ConfigModel):
    """A column of the reference."""

    column: str
    """Its name; in JSON lines and Parquet `a.b` is the key b of the object a."""

    unit: Unit | None = None
    """Its unit, if it differs from the mapping's."""


class ReferenceMapping(ConfigModel):
    """Columns of the reference by field."""

    unit: Unit = "s"
    """Unit of all times without their own."""

    id: str | None = None
    """Number of the request (or a text that ends in it, `bench-12`), to join it with a request of the run."""

    arrival: Column | str | None = None
    """Time of arrival. All times may count from any origin."""

    seen: Column | str | None = None
    """Time at which the engine got the request, if `arrival` is on another clock than the other times: the smallest
    delay between the two counts as none."""

    first_token: Column | str | None = None
    """Time of the first output token."""

    finish: Column | str | None = None
    """Time of the last output token."""

    ttft: Column | str | None = None
    """First token - arrival."""

    tpot: Column | str | None = None
    """(Finish - first token) / (output tokens - 1)."""

    tbt: Column | str | None = None
    """(Finish - first token) / output tokens."""

    e2e: Column | str | None = None
    """Finish - arrival."""

    prompt_tokens: str | None = None
    """Number of prompt tokens, only to check that both sides served the same requests."""

    output_tokens: str | None = None
    """Number of output tokens."""

    token_times: Column | str | None = None
    """All token times of a request, as a JSON list or separated by semicolons, for inter-token latencies."""

    join: Literal["id", "order"] | None = None
    """Compare request by request: by `id`, or in order of the rows. Default: by id if one is mapped."""

    def column(self, field: str) -> tuple[str, float] | None:
        """Return (column name, units per second) of a field, or None if it is not mapped."""
        value = getattr(self, field)
        if value is None:
            return None
        name, unit = (value.column, value.unit) if isinstance(value, Column) else (value, None)
        return name, PER_S[unit or self.unit]


PRESETS = {
    "splitwise": ReferenceMapping(
        id="request_id", arrival="arrival", ttft="ttft_times", tbt="tbt_times", e2e="response_times",
        output_tokens="token_sizes",
    ),
    "vllm-run": ReferenceMapping(
        id="request_id", arrival="arrival_time", seen="queued_ts", first_token="first_token_ts",
        finish="last_token_ts", output_tokens="output_toks",
    ),
    "vllm-bench": ReferenceMapping(
        arrival="start_times", ttft="ttfts", e2e="latencies", output_tokens="output_lens", join="order",
    ),
}
# missing in some files of the format
_PROMPTS = {"splitwise": "prompt_sizes", "vllm-run": "input_toks", "vllm-bench": "input_lens"}


@dataclass
class Reference:
    """A reference's columns, each of shape (requests,), NaN for rows without a value.

    Attributes:
        columns: In seconds, except for the numbers of tokens.
        ids: Request ids of the run, or None.
        itl_s: Pooled inter-token latencies, or None.
    """

    columns: dict[str, FloatArray]
    ids: npt.NDArray[np.int64] | None
    itl_s: FloatArray | None
    count: int


def mapping_from_options(options: Sequence[str] = (), file: str | os.PathLike[str] | None = None) -> ReferenceMapping:
    """Return a mapping from a YAML file and `field=column[:unit]` options (which win), `unit=ms` or `join=order`."""
    data: dict[str, Any] = {}
    if file is not None:
        data = validate(ReferenceMapping, load_yaml(os.fspath(file))).model_dump(exclude_none=True)
    for option in options:
        field, equals, value = option.partition("=")
        if not equals or not value:
            raise InputError("field=column, such as ttft=ttft_ms:ms", option, field="mapping")
        if field not in ReferenceMapping.model_fields:
            raise InputError(f"one of {', '.join(ReferenceMapping.model_fields)}", field, field="mapping",
                             suggestion=suggest(field, ReferenceMapping.model_fields))
        name, colon, unit = value.rpartition(":")
        data[field] = {"column": name, "unit": unit} if colon and unit in PER_S and name else value
    return validate(ReferenceMapping, data)


def preset(name: str, path: str | os.PathLike[str]) -> ReferenceMapping:
    """Return one of `PRESETS`, with the prompt tokens if `path` has them; `InputError` for another name."""
    if name not in PRESETS:
        raise InputError(f"one of {', '.join(PRESETS)}", name, field="mapping", suggestion=suggest(name, PRESETS))
    return _with_prompts(name, _first_row(path))


def _with_prompts(name: str, row: dict[str, Any]) -> ReferenceMapping:
    prompts = _PROMPTS[name]
    return PRESETS[name].model_copy(update={"prompt_tokens": prompts} if prompts in row else {})


def _first_row(path: str | os.PathLike[str]) -> dict[str, Any]:
    return next(_rows(Path(path)), (0, {}))[1]


def guess_mapping(path: str | os.PathLike[str]) -> ReferenceMapping:
    """Return the mapping that a file's column names suggest: of a preset, or of names such as `ttft_s`, `e2e_ms`."""
    row = _first_row(path)
    if {"response_times", "ttft_times"} <= row.keys():
        return _with_prompts("splitwise", row)
    if {"start_times", "ttfts", "latencies"} <= row.keys():
        return _with_prompts("vllm-bench", row)
    if {"arrival_time", "queued_ts", "first_token_ts", "last_token_ts"} <= row.keys():
        return _with_prompts("vllm-run", row)
    data: dict[str, Any] = {
        field: {"column": f"{field}_{unit}", "unit": unit}
        for field in (*INSTANTS, *DURATIONS) for unit in PER_S if f"{field}_{unit}" in row
    }
    data |= {name: name for name in COUNTS if name in row}
    named = [name for name in ("request", "request_id", "id") if name in row]
    data |= {"id": named[0]} if named else {}
    return validate(ReferenceMapping, data)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) of a CSV or JSON-lines file, or (number of the row from 1, row) of a Parquet file."""
    suffix = path.suffix.lower()
    driver = driver_of(path)
    if driver is not None:
        yield from enumerate(driver_rows(driver, path), start=1)
    elif suffix in (".parquet", ".pq"):
        yield from enumerate(chain.from_iterable(parquet_batches(path)), start=1)
    elif suffix in (".jsonl", ".ndjson", ".json"):
        for line, found in json_lines(path):
            if isinstance(found.get("ttfts"), list):   # a result of vllm bench serve
                yield from enumerate(bench_rows(found, path), start=1)
            else:
                yield line, found
    else:
        table = csv_rows(path, unnamed=True)
        _, head = next(table)
        for line, row in table:
            yield line, dict(zip(head, row, strict=True))


def _lookup(row: dict[str, Any], column: str) -> Any:
    """Return a row's value; KeyError if it has no such column."""
    if column in row or "." not in column:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, dict):
            raise KeyError(column)
        value = value[part]
    return value


def _number(value: Any) -> float:
    """Return a number, NaN for an empty cell; ValueError or TypeError for anything that cannot be a time."""
    if value is None or value == "" or (isinstance(value, str) and value.strip().lower() in ("", "nan", "null")):
        return math.nan
    number = parse_number(value)
    if abs(number) > _LARGEST:
        raise ValueError
    return number


def _times(value: Any) -> list[float]:
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else [part for part in text.split(";") if part.strip()]
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError
    return [_number(part) for part in value]


def _request_id(value: Any) -> int:
    """Return a number, or the number at the end of a name: `bench-12`, but not `2**3`, `-3` or `1.5`."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    found = _REQUEST_ID.fullmatch(str(value).strip())
    if found is None:
        raise ValueError
    return int(found[1])


_PARSERS: dict[str, tuple[Any, str]] = {
    "id": (_request_id, "a request number"), "token_times": (_times, "a list of times"),
}


def load_reference(path: str | os.PathLike[str], mapping: ReferenceMapping) -> Reference:
    """Read a reference; `InputError` gives the file, line and column of an error."""
    wanted = {field: spec for field in FIELDS if (spec := mapping.column(field)) is not None}
    if not wanted:
        raise InputError(f"a mapping of at least one of {', '.join(FIELDS)}", field="mapping")
    name = os.fspath(path)
    values: dict[str, list[Any]] = {field: [] for field in wanted}
    lines: list[int] = []
    for line, row in _rows(Path(path)):
        lines.append(line)
        for field, (column, _) in wanted.items():
            parse, expected = _PARSERS.get(field, (_number, "a finite number"))
            try:
                value = _lookup(row, column)
            except KeyError:
                raise InputError(f"a column {column!r} (for {field})", Verbatim(", ".join(map(str, row))), file=name,
                                 line=line, suggestion=suggest(column, row)) from None
            try:
                values[field].append(parse(value))
            except (TypeError, ValueError, OverflowError, RecursionError):
                raise InputError(expected, value, file=name, line=line, field=column) from None
    if not lines:
        raise InputError("at least one request", Verbatim("none"), file=name)
    ids = _ids(values.pop("id", None), lines, name, mapping)
    itl = _itl(values.pop("token_times", None), wanted)
    columns = {
        field: np.array(column) / (1.0 if field in COUNTS else wanted[field][1])
        for field, column in values.items()
    }
    _derive(columns)
    _check_durations(columns, lines, name)
    return Reference(columns, ids, itl, len(lines))


def _ids(
    values: list[int] | None, lines: list[int], name: str, mapping: ReferenceMapping
) -> npt.NDArray[np.int64] | None:
    if mapping.join == "order":
        return np.arange(len(lines))
    if values is None:
        if mapping.join == "id":
            raise InputError("a mapping of id, to join by it", field="mapping.id")
        return None
    seen: dict[int, int] = {}
    for line, value in zip(lines, values, strict=True):
        if value in seen:
            raise InputError("each request once", Verbatim(f"{value} again (first in line {seen[value]})"), file=name,
                             line=line, field=str(mapping.id))
        seen[value] = line
    return np.array([value if value < 2**62 else -1 for value in values], dtype=np.int64)


def _itl(times: list[list[float]] | None, wanted: dict[str, tuple[str, float]]) -> FloatArray | None:
    if times is None:
        return None
    return np.concatenate([np.diff(np.array(row)) for row in times]) / wanted["token_times"][1]


def _derive(columns: dict[str, FloatArray]) -> None:
    """Fill in the durations that follow from others."""
    have = columns.keys()
    if {"arrival", "seen"} <= have:
        delay = columns["seen"] - columns["arrival"]
        columns["arrival"] = columns["arrival"] + (np.nan if np.isnan(delay).all() else np.nanmin(delay))
    if "ttft" not in have and {"arrival", "first_token"} <= have:
        columns["ttft"] = columns["first_token"] - columns["arrival"]
    if "e2e" not in have and {"arrival", "finish"} <= have:
        columns["e2e"] = columns["finish"] - columns["arrival"]
    if {"ttft", "e2e"} <= have:
        rest = columns["e2e"] - columns["ttft"]
    elif {"first_token", "finish"} <= have:
        rest = columns["finish"] - columns["first_token"]
    else:
        return
    if "output_tokens" in have:
        tokens = columns["output_tokens"]
        with np.errstate(divide="ignore", invalid="ignore"):
            columns.setdefault("tpot", np.where(tokens > 1, rest / (tokens - 1), np.nan))
            columns.setdefault("tbt", np.where(tokens > 0, rest / tokens, np.nan))


def _check_durations(columns: dict[str, FloatArray], lines: list[int], name: str) -> None:
    for field in (*DURATIONS, *COUNTS):
        if field in columns and (columns[field] < 0).any():
            row = int(np.argmax(columns[field] < 0))
            raise InputError("a number of at least 0", float(columns[field][row]), file=name, line=lines[row],
                             field=field)
