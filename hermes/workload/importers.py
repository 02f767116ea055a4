"""Importers of foreign trace formats: read a file and check it as columns of `hermes.workload.traces`.

An importer is a component of `TRACE_IMPORTERS`; its fields are the options of `hermes trace import --format KIND`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel
from hermes.config.files import json_lines
from hermes.config.registry import Registry
from hermes.config.validation import validate
from hermes.errors import InputError, Verbatim, suggest
from hermes.units import NS_PER_S
from hermes.workload.base import MAX_TOKENS, Ends, FloatArray
from hermes.workload.traces import (
    ANY_LENGTH,
    Locate,
    ZeroTokens,
    check_trace,
    read_csv_columns,
    read_parquet_columns,
    require_columns,
    to_floats,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "TRACE_IMPORTERS", "AzureTrace", "BailianTrace", "BurstGptTrace", "CsvTrace", "MooncakeTrace", "ParquetTrace",
    "TraceImporter", "arrivals_s", "import_trace", "json_columns",
]

TRACE_IMPORTERS: Registry[TraceImporter] = Registry("trace_importers", "a trace format", {
    "ragpulse": "hermes.workload.ragpulse:RagPulseTrace", "vllm-bench": "hermes.workload.bench_files:VllmBenchTrace",
    "tokens": "hermes.workload.token_traces:TokenTrace",
    "aiperf": "hermes.workload.driver_traces:AiperfTrace", "guidellm": "hermes.workload.driver_traces:GuideLlmTrace",
    "inference-perf": "hermes.workload.driver_traces:InferencePerfTrace",
    "blis": "hermes.workload.driver_traces:BlisTrace", "servegen": "hermes.workload.driver_traces:ServeGenTrace",
    "sharegpt": "hermes.workload.driver_traces:ShareGptTrace",
})

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def import_trace(kind: str, path: str | Path, **options: Any) -> pd.DataFrame:
    """Import the trace in the file `path` of format `kind`, checked, with the columns of `hermes.workload.traces`.

    Options are the importer's fields. Raises `InputError` for an unknown format or option, and for malformed files,
    with file, line and column.
    """
    importer: TraceImporter = validate(TRACE_IMPORTERS.get(kind), options)
    return importer.read(Path(path))


class TraceImporter(ConfigModel):
    """Importer of one foreign format."""

    sort: bool = False
    """Sort rows by arrival; otherwise rows out of order are an error."""
    zero_tokens: ZeroTokens = "refuse"
    """Rows with zero prompt or output tokens (failed requests): refuse the file, drop the rows, or count one token."""
    ends: Ends | None = None
    """How the answers ended: by a `stop_token`, or with the `max_new_tokens` that their requests asked for (a load
    driver set `ignore_eos`). Written to the trace's column max_new_tokens, if the file does not say it. Left out, the
    workload that replays the trace says it."""

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per block of `hash_ids`, if the format has them."""
        return 512

    @abstractmethod
    def read(self, path: Path) -> pd.DataFrame:
        """Return the checked trace (`InputError` for malformed files). Implementations end in `self.finish(...)`."""

    def finish(self, columns: Mapping[str, Any], path: Path, locate: Locate | None) -> pd.DataFrame:
        """Check the columns under this importer's rules, and start the clock at the first arrival."""
        checked = check_trace(columns, str(path), locate, sort=self.sort, zero_tokens=self.zero_tokens)
        if self.ends is not None and "max_new_tokens" not in checked:
            checked["max_new_tokens"] = ANY_LENGTH if self.ends == "stop_token" else checked["output_tokens"]
        if len(checked):
            checked["arrival_s"] -= checked["arrival_s"].iloc[0]
        dropped = len(columns["arrival_s"]) - len(checked)
        if dropped:
            checked.attrs["rows_dropped"] = dropped
        return checked

    def check_hashes(self, columns: Mapping[str, Any], path: Path, locate: Locate, otherwise: str) -> None:
        """Raise `InputError` at the first row whose number of hashes is not that of its prompt's blocks. The hash of a
        partial last block may be missing, and a prompt may have no hashes at all. Other numbers mean another block
        size; `otherwise` is the remedy for the message."""
        unit = self.hash_block_tokens
        for row, (tokens, ids) in enumerate(zip(columns["prompt_tokens"], columns["hash_ids"], strict=True)):
            if not isinstance(ids, list) or not ids or type(tokens) is not int or not 0 < tokens <= MAX_TOKENS:
                continue   # `check_trace` reports values that are not lists or counts
            if not tokens // unit <= len(ids) <= -(-tokens // unit):
                field, line = locate("hash_ids", row)
                raise InputError(f"a hash for each {unit} of {tokens} prompt tokens ({otherwise})",
                                 Verbatim(f"{len(ids)} hashes"), field=field, line=line, file=str(path))


@TRACE_IMPORTERS.register("azure")
class AzureTrace(TraceImporter):
    """Azure LLM inference traces (Azure/AzurePublicDataset): CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

    The 2023 traces are in order and have no rows with zero tokens, so they pass the strict rules above.
    """

    kind: Literal["azure"] = "azure"

    def read(self, path: Path) -> pd.DataFrame:
        columns, lines = read_csv_columns(path)
        names = {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}
        require_columns(columns, names.values(), str(path))

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return names[name], lines[row]

        texts: dict[str, Any] = {ours: columns[theirs] for ours, theirs in names.items()}
        texts["arrival_s"] = arrivals_s(columns["TIMESTAMP"], "timestamp", path, locate)
        return self.finish(texts, path, locate)


@TRACE_IMPORTERS.register("mooncake")
class MooncakeTrace(TraceImporter):
    """Mooncake traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens)."""

    kind: Literal["mooncake"] = "mooncake"

    def read(self, path: Path) -> pd.DataFrame:
        names = {
            "arrival_s": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length",
            "hash_ids": "hash_ids",
        }
        columns, lines = json_columns(path, list(names.values()))
        found: dict[str, Any] = {ours: columns[theirs] for ours, theirs in names.items()}

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return names[name], lines[row]

        found["arrival_s"] = arrivals_s(found["arrival_s"], "ms", path, locate)
        self.check_hashes(found, path, locate, "blocks of 16 and timestamps in seconds: import it as `bailian`")
        return self.finish(found, path, locate)


@TRACE_IMPORTERS.register("bailian")
class BailianTrace(TraceImporter):
    """Traces of Alibaba's Bailian (alibaba-edu/qwen-bailian-usagetraces-anon): JSON lines with chat_id, parent_chat_id
    (-1: none), timestamp (seconds), input_length, output_length, hash_ids (blocks of 16 tokens).

    Requests with a common first chat form a session. Each keeps its recorded arrival, regardless of earlier answers.
    """

    kind: Literal["bailian"] = "bailian"
    block_tokens: int = Field(default=16, ge=1, le=2**20)
    """Tokens per hashed block: the number in the file's name (`..._blksz_16.jsonl`)."""

    @property
    def hash_block_tokens(self) -> int:
        return self.block_tokens

    def read(self, path: Path) -> pd.DataFrame:
        names = {
            "arrival_s": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length",
            "hash_ids": "hash_ids",
        }
        columns, lines = json_columns(path, [*names.values(), "chat_id", "parent_chat_id"])
        found: dict[str, Any] = {ours: columns[theirs] for ours, theirs in names.items()}

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return names.get(name, name), lines[row]

        found["arrival_s"] = arrivals_s(found["arrival_s"], "s", path, locate)
        found["session"] = _roots(columns["chat_id"], columns["parent_chat_id"], path, lines)
        self.check_hashes(found, path, locate, "--set block_tokens=N for blocks of another size")
        return self.finish(found, path, locate)


def _roots(chats: list[Any], parents: list[Any], path: Path, lines: Sequence[int]) -> list[int]:
    """Return, for each chat, a number of the first of its line of parents, which the file may lack."""
    for name, ids in (("chat_id", chats), ("parent_chat_id", parents)):
        for line, value in zip(lines, ids, strict=True):
            if type(value) is not int:
                raise InputError("an integer", value, field=name, file=str(path), line=line)
    parent_of = dict(zip(chats, parents, strict=True))
    first: dict[int, int] = {-1: -1}
    for chat in chats:
        way: dict[int, None] = {}
        root = chat
        while root not in first and root not in way:
            way[root] = None
            above = parent_of.get(root, -1)
            if above == -1:
                first[root] = root
            root = above if above != -1 else root
        found = first.get(root, root)
        for each in way:
            first[each] = found
    numbers: dict[int, int] = {}
    return [numbers.setdefault(first[chat], len(numbers)) for chat in chats]


@TRACE_IMPORTERS.register("burstgpt")
class BurstGptTrace(TraceImporter):
    """BurstGPT (HPMLL/BurstGPT): CSV with Timestamp (seconds), Model, Request tokens, Response tokens, Log Type, and in
    some versions Session ID.

    Requests without response tokens failed; they are dropped, and the import says how many.
    """

    kind: Literal["burstgpt"] = "burstgpt"
    zero_tokens: ZeroTokens = "drop"
    """Rows with zero request or response tokens (failed requests): refuse the file, drop the rows, or count one
    token."""
    model: str | None = None
    """Import only requests to this model (`ChatGPT`, `GPT-4`). Left out, all."""
    log: str | None = None
    """Import only requests of this log type (`API log`, `Conversation log`). Left out, all."""

    def read(self, path: Path) -> pd.DataFrame:
        columns, lines = read_csv_columns(path)
        names = {"arrival_s": "Timestamp", "prompt_tokens": "Request tokens", "output_tokens": "Response tokens"}
        wanted = {"Model": self.model, "Log Type": self.log}
        require_columns(columns, [*names.values(), *(name for name, value in wanted.items() if value)], str(path))
        rows = list(range(len(lines)))
        for name, value in wanted.items():
            if value is not None:
                present = list(dict.fromkeys(columns[name]))
                rows = [row for row in rows if columns[name][row] == value]
                if value not in present:
                    raise InputError(f"one of {', '.join(present)}"[:200], value, field=name, file=str(path),
                                     suggestion=suggest(value, present))

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return names.get(name, name), lines[rows[row]]

        texts: dict[str, Any] = {ours: [columns[theirs][row] for row in rows] for ours, theirs in names.items()}
        texts["arrival_s"] = arrivals_s(texts["arrival_s"], "s", path, locate)
        if "Session ID" in columns:
            import pandas as pd

            sessions = pd.Series([columns["Session ID"][row] for row in rows])
            texts["session"] = np.where(sessions == "", -1, pd.factorize(sessions.where(sessions != ""))[0])
        return self.finish(texts, path, locate)


@TRACE_IMPORTERS.register("vllm-run")
class VllmRunTrace(TraceImporter):
    """Recorded vLLM runs: requests.jsonl (request_id, arrival_time, input_toks, output_toks), and optionally beside it
    prompt_blocks.jsonl with the prompts' chained block hashes (request_id, hash_ids)."""

    kind: Literal["vllm-run"] = "vllm-run"
    block_tokens: int = Field(default=16, ge=1, le=2**20)
    """Tokens per hashed block."""

    @property
    def hash_block_tokens(self) -> int:
        return self.block_tokens

    def read(self, path: Path) -> pd.DataFrame:
        path = path / "requests.jsonl" if path.is_dir() else path
        names = {"arrival_s": "arrival_time", "prompt_tokens": "input_toks", "output_tokens": "output_toks"}
        columns, lines = json_columns(path, [*names.values(), "request_id"])
        found: dict[str, Any] = {ours: columns[theirs] for ours, theirs in names.items()}
        blocks_path = path.with_name("prompt_blocks.jsonl")
        if blocks_path.exists():
            blocks, _ = json_columns(blocks_path, ["request_id", "hash_ids"])
            hashes = dict(zip(map(str, blocks["request_id"]), blocks["hash_ids"], strict=True))
            for request, line in zip(columns["request_id"], lines, strict=True):
                if str(request) not in hashes:
                    raise InputError(f"a request of {blocks_path.name}", request, field="request_id", file=str(path),
                                     line=line)
            found["hash_ids"] = [hashes[str(request)] for request in columns["request_id"]]

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return names.get(name, name), lines[row]

        found["arrival_s"] = arrivals_s(found["arrival_s"], "s", path, locate)
        if "hash_ids" in found:
            self.check_hashes(found, path, locate, "--set block_tokens=N for blocks of another size")
        return self.finish(found, path, locate)


class _Mapped(TraceImporter):
    """A table with column names given by the user."""

    arrival: str = "arrival_s"
    """Column with the arrival times."""
    arrival_unit: Literal["s", "ms", "us", "ns", "timestamp"] = "s"
    """Unit of the arrival times; `timestamp` for ISO 8601 dates and times."""
    prompt: str = "prompt_tokens"
    """Column with the prompt tokens."""
    output: str = "output_tokens"
    """Column with the output tokens."""
    priority: str | None = None
    """Column with integer priorities."""
    session: str | None = None
    """Column that identifies conversations: any values, numbered in order of appearance."""
    prefix_group: str | None = None
    """Column that identifies shared prefixes: any values, numbered in order of appearance."""
    prefix_tokens: str | None = None
    """Column with the length of the shared prefix."""
    max_new_tokens: str | None = None
    """Column with the output tokens that each request asked for; -1 for no limit."""

    def mapped(self, columns: Mapping[str, Any], path: Path, lines: Sequence[int] | None) -> pd.DataFrame:
        """Return the trace in `columns` (under the file's own names)."""
        import pandas as pd

        names = {"arrival_s": self.arrival, "prompt_tokens": self.prompt, "output_tokens": self.output}
        for ours in ("priority", "session", "prefix_group", "prefix_tokens", "max_new_tokens"):
            if (theirs := getattr(self, ours)) is not None:
                names[ours] = theirs
        require_columns(columns, names.values(), str(path))

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return (names[name], lines[row]) if lines is not None else (f"{names[name]}[{row}]", None)

        found: dict[str, Any] = {ours: columns[theirs] for ours, theirs in names.items()}
        found["arrival_s"] = arrivals_s(found["arrival_s"], self.arrival_unit, path, locate)
        for ours in ("session", "prefix_group"):
            if ours in found:
                found[ours] = pd.factorize(pd.Series(list(found[ours])).astype(str))[0]
        return self.finish(found, path, locate)


@TRACE_IMPORTERS.register("csv")
class CsvTrace(_Mapped):
    """Any CSV file with a header line."""

    kind: Literal["csv"] = "csv"
    delimiter: Annotated[str, Field(min_length=1, max_length=1, pattern=r'[^"\r\n]')] = ","
    """Separator of fields."""

    def read(self, path: Path) -> pd.DataFrame:
        columns, lines = read_csv_columns(path, self.delimiter)
        return self.mapped(columns, path, lines)


@TRACE_IMPORTERS.register("parquet")
class ParquetTrace(_Mapped):
    """Any Parquet file."""

    kind: Literal["parquet"] = "parquet"

    def read(self, path: Path) -> pd.DataFrame:
        return self.mapped(read_parquet_columns(path)[0], path, None)


def json_columns(path: Path, names: Sequence[str]) -> tuple[dict[str, list[Any]], list[int]]:
    """Return columns of a file of JSON objects, one per line, and the line numbers. `InputError` for a missing key."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    lines: list[int] = []
    for number, row in json_lines(path):
        for name in names:
            if name not in row:
                raise InputError("a value", Verbatim("none"), field=name, file=str(path), line=number)
            columns[name].append(row[name])
        lines.append(number)
    return columns, lines


def arrivals_s(values: Any, unit: str, path: Path, locate: Locate) -> FloatArray:
    """Return times in any unit as seconds after the earliest (float64); `InputError` at the first other value."""
    import pandas as pd

    if unit != "timestamp":
        floats = to_floats(values, "arrival_s", str(path), locate)
        return (floats - floats.min()) / _PER_SECOND[unit] if len(floats) else floats
    try:
        texts = pd.Series(list(values))
        instants = pd.DatetimeIndex(pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce"))
        ns = instants.as_unit("ns").asi8
    except (ValueError, TypeError, OverflowError):
        raise InputError("ISO 8601 dates and times", field=locate("arrival_s", 0)[0], file=str(path)) from None
    for row in np.flatnonzero(instants.isna())[:1]:
        field, line = locate("arrival_s", int(row))
        raise InputError("an ISO 8601 date and time", list(values)[row], field=field, line=line, file=str(path))
    return (ns - ns.min()) / NS_PER_S if len(ns) else np.zeros(0)
