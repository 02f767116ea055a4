"""References: per-request times measured or simulated elsewhere, from a CSV, JSON-lines or Parquet file.

A mapping gives the column of each field (`ttft: ttft_times`) and its unit. Missing durations follow from other columns:
TTFT from arrival and first token, E2E from arrival and finish, TPOT from first token, finish and the number of output
tokens, and splitwise's TBT = (E2E - TTFT) / output tokens.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel
from hermes.config.bench_results import JSON, bench_of, bench_table, is_prometheus
from hermes.config.columns import LARGEST, OPTIONAL, PER_S, TIMES, TOKENS, TOOLS, Unit, source, tool_of
from hermes.config.files import MAX_DOCUMENT_BYTES, json_lines, open_file, parquet_schema, read_json
from hermes.config.load_drivers import driver_of, driver_table
from hermes.config.tables import Table, csv_table, json_table, parquet_columns
from hermes.config.validation import validate
from hermes.config.yaml_document import load_yaml
from hermes.errors import InputError, Verbatim, suggest
from hermes.units import parse_number

__all__ = ["PRESETS", "Column", "Reference", "ReferenceMapping", "guess_mapping", "load_reference",
           "mapping_from_options", "preset"]


INSTANTS = ("arrival", "seen", "first_token", "finish")
DURATIONS = ("ttft", "tpot", "tbt", "e2e")
COUNTS = ("prompt_tokens", "output_tokens")
_PARQUET = (".parquet", ".pq")
T = TypeVar("T")
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
    tool: ReferenceMapping.model_validate({
        ours: theirs for ours, theirs in TOOLS[tool].items() if ours != "prompt_tokens"
    } | ({"join": "order"} if tool == "vllm-bench" else {}))
    for tool in ("splitwise", "vllm-run", "vllm-bench")
}
"""Mappings of files with one request per row; some files of these tools lack the prompt tokens."""


@dataclass
class Reference:
    """A reference's columns, each of shape (requests,), NaN for rows without a value.

    Attributes:
        columns: In seconds, except for the numbers of tokens.
        ids: Request ids of the run, or None.
        itl_s: Pooled inter-token latencies, or None.
    """

    columns: dict[str, FloatArray]
    ids: IntArray | None
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
        given = source(value)
        data[field] = {"column": given.name, "unit": given.unit} if given.unit else value
    return validate(ReferenceMapping, data)


def preset(name: str, path: str | os.PathLike[str], part: int | None = None) -> ReferenceMapping:
    """Return one of `PRESETS`, with the prompt tokens if `path` has them; `InputError` for another name."""
    if name not in PRESETS:
        raise InputError(f"one of {', '.join(PRESETS)}", name, field="mapping", suggestion=suggest(name, PRESETS))
    return _of_tool(name, _names(Path(path), part))


def _of_tool(name: str, columns: Collection[str]) -> ReferenceMapping:
    """Return the mapping of a tool, of the columns that there are."""
    theirs = TOOLS[name]
    update = {ours: theirs[ours] if theirs[ours] in columns else None for ours in OPTIONAL[name] if ours != "id"}
    return PRESETS[name].model_copy(update=update)


def guess_mapping(path: str | os.PathLike[str], part: int | None = None) -> ReferenceMapping:
    """Return the mapping that a file's column names suggest: of a preset, or of names such as `ttft_s`, `e2e_ms`.

    part: Which of several results in the file, from 0.
    """
    row = _names(Path(path), part)
    tool = tool_of(row)
    if tool is not None:
        return _of_tool(tool, row)
    data: dict[str, Any] = {
        field: {"column": f"{field}_{unit}", "unit": unit}
        for field in (*INSTANTS, *DURATIONS) for unit in PER_S if f"{field}_{unit}" in row
    }
    if not data:
        raise InputError(Verbatim(_no_times(row)), file=os.fspath(path))
    data |= {name: name for name in COUNTS if name in row}
    named = [name for name in ("request", "request_id", "id") if name in row]
    data |= {"id": named[0]} if named else {}
    return validate(ReferenceMapping, data)


def _no_times(columns: Collection[str]) -> str:
    if "experiments" in columns:
        return ("the raw export of GenAI-Perf counts no tokens; give the summary next to it "
                "(profile_export_genai_perf.json)")
    if {"status", "data"} <= {*columns}:
        return "an answer of Prometheus' API has no single request; give what the load driver wrote"
    named = f"its columns are {', '.join(map(str, columns))}"[:200] if columns else "it has no columns"
    return f"no latencies: {named}; name them (--map ttft=COLUMN:ms), or give the result of a load driver"


def _names(path: Path, part: int | None) -> Collection[str]:
    """Return the names of the columns: a CSV file's header, the keys of the first object."""
    if driver_of(path) is None and path.suffix.lower() in _PARQUET:
        names: list[str] = parquet_schema(path).names
        return names
    if driver_of(path) is None and bench_of(path, part) is None and path.suffix.lower() in JSON:
        first = _array(path)[:1] if _is_array(path) else [next(json_lines(path), (0, {}))[1]]
        return first[0] if first else {}
    return _read(path, [], part).columns


def _read(path: Path, names: Sequence[str], part: int | None) -> Table:
    """Return these columns of a file (of CSV files and of load drivers all). `InputError` if one is missing."""
    driver = driver_of(path)
    if driver is not None:
        return driver_table(driver, path, **({} if driver != "guidellm" or part is None else {"benchmark": part}))
    if path.suffix.lower() in _PARQUET:
        return parquet_columns(path, names)
    if path.suffix.lower() not in JSON:
        if is_prometheus(path):
            raise InputError(Verbatim(
                "is a dump of Prometheus metrics: counters and histograms since the server's start, of no single "
                "request; give what the load driver wrote (its per-request times, or its summary)"), file=str(path))
        return csv_table(path, unnamed=True)
    result = bench_of(path, part)
    if result is not None:
        return bench_table(result, path)
    if not _is_array(path):
        return json_table(path, names)
    rows = _array(path)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table(path, columns, places=[f"{number}." for number in range(len(rows))])


def _is_array(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    with open_file(path) as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \n\r\t").startswith(b"[")


def _array(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON array."""
    found = read_json(path, MAX_DOCUMENT_BYTES, unknown=True)
    for number, row in enumerate(found):
        if not isinstance(row, dict):
            raise InputError("an object for each request", row, file=str(path), field=f"{number}")
    return list(found)


def _times(value: Any) -> list[float]:
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else [part for part in text.split(";") if part.strip()]
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError
    times = [parse_number(part) for part in value]
    if not all(abs(time) <= LARGEST for time in times):
        raise ValueError
    return times


def _request_id(value: Any) -> int:
    """Return a number, or the number at the end of a name: `bench-12`, but not `2**3`, `-3` or `1.5`."""
    found = None if isinstance(value, bool) else _REQUEST_ID.fullmatch(str(value).strip())
    if found is None:
        raise ValueError
    return int(found[1])


def load_reference(path: str | os.PathLike[str], mapping: ReferenceMapping, part: int | None = None) -> Reference:
    """Read a reference; `InputError` gives the file, line and column of an error.

    part: Which of several results in the file, from 0.
    """
    wanted = {field: spec for field in FIELDS if (spec := mapping.column(field)) is not None}
    if not wanted:
        raise InputError(f"a mapping of at least one of {', '.join(FIELDS)}", field="mapping")
    names = {field: column for field, (column, _) in wanted.items()}
    table = _read(Path(path), list(dict.fromkeys(names.values())), part).renamed(names)
    if not len(table):
        raise InputError("at least one request", Verbatim("none"), file=table.file)
    ids = _ids(table, mapping)
    columns: dict[str, FloatArray] = {}
    for field in (*INSTANTS, *DURATIONS, *COUNTS):
        if field in COUNTS and field in wanted:
            columns[field] = table.typed(TOKENS.named(field, null=True)).astype(np.float64)
        elif field in wanted:
            columns[field] = table.typed(TIMES.named(field, null=True)) / wanted[field][1]
    _derive(columns)
    for field in DURATIONS:
        for row in np.flatnonzero(columns[field] < 0)[:1] if field in columns else ():
            table.names[field] = field   # the column may be derived
            raise table.wrong(field, int(row), "a number of at least 0", float(columns[field][row]))
    gaps = None
    if "token_times" in wanted:
        times = _parsed(table, "token_times", _times, "a list of times")
        gaps = np.concatenate([np.diff(np.array(row)) for row in times]) / wanted["token_times"][1]
    return Reference(columns, ids, gaps, len(table))


def _parsed(table: Table, field: str, parse: Callable[[Any], T], expected: str) -> list[T]:
    out = []
    for row, value in enumerate(table.columns[field]):
        try:
            out.append(parse(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise table.wrong(field, row, expected) from None
    return out


def _ids(table: Table, mapping: ReferenceMapping) -> IntArray | None:
    if mapping.join == "id" and mapping.id is None:
        raise InputError("a mapping of id, to join by it", field="mapping.id")
    values = _parsed(table, "id", _request_id, "a request number") if mapping.id is not None else None
    if mapping.join == "order":
        return np.arange(len(table))
    if values is None:
        return None
    seen: dict[int, int] = {}
    for row, value in enumerate(values):
        if value in seen:
            raise table.wrong("id", row, "each request once", Verbatim(f"{value} again (first in line {seen[value]})"))
        seen[value] = row if table.lines is None else int(table.lines[row])
    return np.array([value if value < 2**62 else -1 for value in values], dtype=np.int64)


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
