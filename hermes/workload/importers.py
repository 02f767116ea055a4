"""Importers of foreign trace formats: read a file and check it as columns of `hermes.workload.traces`.

An importer is a component of `TRACE_IMPORTERS`; its fields are the options of `hermes trace import --format KIND`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.config.columns import TOOLS, source
from hermes.config.registry import Registry
from hermes.config.tables import Table, csv_table, json_table
from hermes.config.validation import validate
from hermes.errors import InputError, Verbatim, suggest
from hermes.workload.base import MAX_TOKENS, Ends
from hermes.workload.traces import ANY_LENGTH, ZeroTokens, check_trace, read_parquet_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "TRACE_IMPORTERS", "AzureTrace", "BailianTrace", "BurstGptTrace", "CsvTrace", "MooncakeTrace", "ParquetTrace",
    "TraceImporter", "import_trace", "json_trace", "trace_columns",
]

TRACE_IMPORTERS: Registry[TraceImporter] = Registry("trace_importers", "a trace format", {
    "ragpulse": "hermes.workload.ragpulse:RagPulseTrace", "vllm-bench": "hermes.workload.driver_traces:VllmBenchTrace",
    "tokens": "hermes.workload.token_traces:TokenTrace",
    "aiperf": "hermes.workload.driver_traces:AiperfTrace", "guidellm": "hermes.workload.driver_traces:GuideLlmTrace",
    "inference-perf": "hermes.workload.driver_traces:InferencePerfTrace",
    "blis": "hermes.workload.driver_traces:BlisTrace", "servegen": "hermes.workload.driver_traces:ServeGenTrace",
    "sharegpt": "hermes.workload.driver_traces:ShareGptTrace",
})

ArrivalUnit = Literal["s", "ms", "us", "ns", "timestamp"]


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

    def finish(self, table: Table) -> pd.DataFrame:
        """Check the table's columns under this importer's rules, and start the clock at the first arrival."""
        checked = check_trace(table, sort=self.sort, zero_tokens=self.zero_tokens)
        if self.ends is not None and "max_new_tokens" not in checked:
            checked["max_new_tokens"] = ANY_LENGTH if self.ends == "stop_token" else checked["output_tokens"]
        if len(checked):
            checked["arrival_s"] -= checked["arrival_s"].iloc[0]
        dropped = len(table) - len(checked)
        if dropped:
            checked.attrs["rows_dropped"] = dropped
        return checked

    def check_hashes(self, table: Table, otherwise: str) -> None:
        """Raise `InputError` at the first row whose number of hashes is not that of its prompt's blocks. The hash of a
        partial last block may be missing, and a prompt may have no hashes at all. Other numbers mean another block
        size; `otherwise` is the remedy for the message."""
        unit = self.hash_block_tokens
        for row, (tokens, ids) in enumerate(zip(table.columns["prompt_tokens"], table.columns["hash_ids"],
                                                strict=True)):
            if not isinstance(ids, list) or not ids or type(tokens) is not int or not 0 < tokens <= MAX_TOKENS:
                continue   # `check_trace` reports values that are not lists or counts
            if not tokens // unit <= len(ids) <= -(-tokens // unit):
                raise table.wrong("hash_ids", row, f"a hash for each {unit} of {tokens} prompt tokens ({otherwise})",
                                  Verbatim(f"{len(ids)} hashes"))


class HashedTrace(TraceImporter):
    """Importer of a format with hashes of the prompts' blocks."""

    block_tokens: int = Field(default=16, ge=1, le=2**20)
    """Tokens per hashed block (Bailian: the number in the file's name, `..._blksz_16.jsonl`). Sharing is counted in
    whole blocks."""

    @property
    def hash_block_tokens(self) -> int:
        return self.block_tokens


def trace_columns(table: Table, names: Mapping[str, str], unit: ArrivalUnit = "s") -> Table:
    """Return columns under our names (ours -> the file's), arrivals as seconds after the earliest, sessions and
    groups numbered in the order of their appearance, and tenants and classes as texts.

    unit: Unit of the arrivals; `timestamp` for ISO 8601. Raises `InputError` for a missing column.
    """
    found = table.renamed(names)
    if "arrival_s" in found:
        found.columns["arrival_s"] = found.seconds("arrival_s", unit)
    for name in ("session", "prefix_group"):
        if name in found:
            found.columns[name] = found.numbered(name)
    for name in ("tenant", "class"):
        if name in found:
            found.columns[name] = ["" if value is None else str(value) for value in found.columns[name]]
    return found


def _of_tool(tool: str, wanted: tuple[str, ...] = ("arrival", "prompt_tokens", "output_tokens", "hash_ids"),
             ) -> tuple[dict[str, str], ArrivalUnit]:
    """Return our columns of a trace -> those of a tool, and the unit of its arrivals."""
    known = {ours: source(theirs, "s") for ours, theirs in TOOLS[tool].items() if ours in wanted}
    names = {"arrival_s" if ours == "arrival" else ours: theirs.name for ours, theirs in known.items()}
    return names, known["arrival"].unit   # type: ignore[return-value]  # `source` knows only units


def json_trace(path: Path, tool: str, more: tuple[str, ...] = ()) -> Table:
    """Return the columns of a tool's trace in JSON lines, and `more` under their own names."""
    names, unit = _of_tool(tool)
    found = json_table(path, [*dict.fromkeys(names.values()), *more])
    return trace_columns(found, names | {name: name for name in more}, unit)


@TRACE_IMPORTERS.register("azure")
class AzureTrace(TraceImporter):
    """Azure LLM inference traces (Azure/AzurePublicDataset): CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

    The 2023 traces are in order and have no rows with zero tokens, so they pass the strict rules above.
    """

    kind: Literal["azure"] = "azure"

    def read(self, path: Path) -> pd.DataFrame:
        return self.finish(trace_columns(csv_table(path), _of_tool("azure")[0], "timestamp"))


@TRACE_IMPORTERS.register("mooncake")
class MooncakeTrace(TraceImporter):
    """Mooncake traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens)."""

    kind: Literal["mooncake"] = "mooncake"

    def read(self, path: Path) -> pd.DataFrame:
        found = json_trace(path, "mooncake")
        self.check_hashes(found, "blocks of 16 and timestamps in seconds: import it as `bailian`")
        return self.finish(found)


@TRACE_IMPORTERS.register("bailian")
class BailianTrace(HashedTrace):
    """Traces of Alibaba's Bailian (alibaba-edu/qwen-bailian-usagetraces-anon): JSON lines with chat_id, parent_chat_id
    (-1: none), timestamp (seconds), input_length, output_length, hash_ids (blocks of 16 tokens).

    Requests with a common first chat form a session. Each keeps its recorded arrival, regardless of earlier answers.
    """

    kind: Literal["bailian"] = "bailian"

    def read(self, path: Path) -> pd.DataFrame:
        found = json_trace(path, "bailian", ("chat_id", "parent_chat_id"))
        chats, parents = (_chats(found, name) for name in ("chat_id", "parent_chat_id"))
        found.columns["session"] = _roots(chats, parents)
        self.check_hashes(found, "--set block_tokens=N for blocks of another size")
        return self.finish(found)


def _chats(table: Table, name: str) -> list[int]:
    """Take a column of chats, integers of any size, out of the table."""
    for row, value in enumerate(table.columns[name]):
        if type(value) is not int:
            raise table.wrong(name, row, "an integer")
    found: list[int] = table.columns.pop(name)
    return found


def _roots(chats: list[int], parents: list[int]) -> list[int]:
    """Return, for each chat, a number of the first of its line of parents, which the file may lack."""
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
        table = csv_table(path)
        names, unit = _of_tool("burstgpt")
        wanted = {name: value for name, value in (("Model", self.model), ("Log Type", self.log)) if value is not None}
        table.need([*names.values(), *wanted])
        rows: list[int] | range = range(len(table))
        for name, value in wanted.items():
            present = list(dict.fromkeys(table.columns[name]))
            if value not in present:
                raise InputError(f"one of {', '.join(present)}"[:200], value, field=name, file=str(path),
                                 suggestion=suggest(value, present))
            rows = [row for row in rows if table.columns[name][row] == value]
        names |= {"session": "Session ID"} if "Session ID" in table else {}
        return self.finish(trace_columns(table.rows(rows) if wanted else table, names, unit))


@TRACE_IMPORTERS.register("vllm-run")
class VllmRunTrace(HashedTrace):
    """Recorded vLLM runs: requests.jsonl (request_id, arrival_time, input_toks, output_toks), and optionally beside it
    prompt_blocks.jsonl with the prompts' chained block hashes (request_id, hash_ids)."""

    kind: Literal["vllm-run"] = "vllm-run"

    def read(self, path: Path) -> pd.DataFrame:
        path = path / "requests.jsonl" if path.is_dir() else path
        found = json_trace(path, "vllm-run", ("request_id",))
        requests = found.columns.pop("request_id")
        blocks_path = path.with_name("prompt_blocks.jsonl")
        if blocks_path.exists():
            blocks = json_table(blocks_path, ["request_id", "hash_ids"])
            hashes: dict[str, Any] = {}
            for row, (request, ids) in enumerate(zip(*blocks.columns.values(), strict=True)):
                if hashes.setdefault(str(request), ids) is not ids:
                    raise blocks.wrong("request_id", row, "each request once")
            for row, request in enumerate(requests):
                if str(request) not in hashes:
                    raise found.wrong("request_id", row, f"a request of {blocks_path.name}", request)
            found.columns["hash_ids"] = [hashes[str(request)] for request in requests]
            self.check_hashes(found, "--set block_tokens=N for blocks of another size")
        return self.finish(found)


class _Mapped(TraceImporter):
    """A table with column names given by the user."""

    arrival: str = "arrival_s"
    """Column with the arrival times."""
    arrival_unit: ArrivalUnit = "s"
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
    tenant: str | None = None
    """Column that says whose request it is: any values."""
    service_class: str | None = None
    """Column with the class of each request at a gateway: any values."""

    def mapped(self, table: Table) -> pd.DataFrame:
        """Return the trace in a table (under the file's own names)."""
        names = {"arrival_s": self.arrival, "prompt_tokens": self.prompt, "output_tokens": self.output}
        for ours in ("priority", "session", "prefix_group", "prefix_tokens", "max_new_tokens", "tenant",
                     "service_class"):
            if (theirs := getattr(self, ours)) is not None:
                names["class" if ours == "service_class" else ours] = theirs
        return self.finish(trace_columns(table, names, self.arrival_unit))


@TRACE_IMPORTERS.register("csv")
class CsvTrace(_Mapped):
    """Any CSV file with a header line."""

    kind: Literal["csv"] = "csv"
    delimiter: Annotated[str, Field(min_length=1, max_length=1, pattern=r'[^"\r\n]')] = ","
    """Separator of fields."""

    def read(self, path: Path) -> pd.DataFrame:
        return self.mapped(csv_table(path, self.delimiter))


@TRACE_IMPORTERS.register("parquet")
class ParquetTrace(_Mapped):
    """Any Parquet file."""

    kind: Literal["parquet"] = "parquet"

    def read(self, path: Path) -> pd.DataFrame:
        return self.mapped(Table(path, read_parquet_columns(path)[0]))
