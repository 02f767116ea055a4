"""Columns of tables: what a value of ours must be, and the names that other tools give to it.

`Column` declares a column for `hermes.config.tables`. `TOOLS` is the one mapping of the columns of other tools: trace
importers, results of load drivers and references all use it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

__all__ = ["DURATIONS", "LARGEST", "PER_S", "TIMES", "TOKENS", "TOOLS", "Column", "Source", "Unit", "source", "tool_of"]

Unit = Literal["s", "ms", "us", "ns"]
PER_S: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
LARGEST = 1e24   # far above nanoseconds since 1970


@dataclass(frozen=True)
class Column:
    """A declared column.

    Attributes:
        name: Name of the column in HERMES.
        kind: `number` (float64), `integer` (int64), `integers` (lists of them), or `text`.
        low: The smallest value.
        high: The largest value.
        null: Whether a value may be missing (an empty cell, null, NaN). Such a column of integers becomes float64.
        unit: Unit of the values, for messages.
    """

    name: str
    kind: Literal["number", "integer", "integers", "text"] = "number"
    low: float = -LARGEST
    high: float = LARGEST
    null: bool = False
    unit: str = ""

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind == "integer":
            high = f"2**{int(self.high).bit_length() - 1}" if self.high > 10**6 else f"{int(self.high)}"
            return f"an integer from {int(self.low)} to {high}"
        if self.kind == "integers":
            return f"a list of integers of at least {int(self.low)}"
        if self.unit and self.high < LARGEST:
            return f"{self.unit} from {self.low:g} to {self.high:g}"
        return "text" if self.kind == "text" else f"a number of at least {self.low:g}" if self.low > -LARGEST else (
            "a finite number")

    def named(self, name: str, *, null: bool = False) -> Column:
        """Return the same column under another name; null: whether a value may be missing."""
        return replace(self, name=name, null=null)


MOST_TOKENS = 2**40   # of a request
TOKENS = Column("tokens", "integer", 0, MOST_TOKENS)
TIMES = Column("time")
DURATIONS = Column("duration", low=0.0)


class Source(NamedTuple):
    """A column of a file, `a.b` for the key b of the object a, and its unit if it is a time."""

    name: str
    unit: str = ""


def source(text: str, unit: str = "") -> Source:
    """Parse `name:unit`, such as `ttft_ms:ms`; `unit` where the text has none."""
    name, colon, given = text.rpartition(":")
    return Source(name, given) if colon and name and given in PER_S else Source(text, unit)


TOOLS: dict[str, dict[str, str]] = {
    "azure": {"arrival": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"},
    "burstgpt": {"arrival": "Timestamp", "prompt_tokens": "Request tokens", "output_tokens": "Response tokens"},
    "mooncake": {"arrival": "timestamp:ms", "prompt_tokens": "input_length", "output_tokens": "output_length",
                 "hash_ids": "hash_ids"},
    "bailian": {"arrival": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length",
                "hash_ids": "hash_ids"},
    "servegen": {"prompt_tokens": "input_length", "output_tokens": "output_length", "hash_ids": "hash_ids"},
    "ragpulse": {"arrival": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length",
                 "hash_ids": "hash_ids", "session": "session_id"},
    "splitwise": {"id": "request_id", "arrival": "arrival", "ttft": "ttft_times", "tbt": "tbt_times",
                  "e2e": "response_times", "prompt_tokens": "prompt_sizes", "output_tokens": "token_sizes"},
    "vllm-run": {"id": "request_id", "arrival": "arrival_time", "seen": "queued_ts", "first_token": "first_token_ts",
                 "finish": "last_token_ts", "prompt_tokens": "input_toks", "output_tokens": "output_toks"},
    "vllm-bench": {"arrival": "start_times", "ttft": "ttfts", "e2e": "latencies", "prompt_tokens": "input_lens",
                   "output_tokens": "output_lens"},
    "aiperf": {"arrival": "metadata.request_start_ns:ns", "prompt_tokens": "metrics.input_sequence_length.value",
               "output_tokens": "metrics.output_sequence_length.value",
               "ttft": "metrics.time_to_first_token.value", "e2e": "metrics.request_latency.value"},
    "guidellm": {"arrival": "request_start_time", "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens",
                 "ttft": "time_to_first_token_ms:ms", "e2e": "request_latency"},
    "inference-perf": {"arrival": "start_time", "finish": "end_time", "first_token": "output_token_times.0",
                       "prompt_tokens": "input_tokens", "output_tokens": "output_tokens"},
    "llmperf": {"ttft": "ttft_s", "e2e": "end_to_end_latency_s", "prompt_tokens": "number_input_tokens",
                "output_tokens": "number_output_tokens"},
    "blis": {"arrival": "send_time_us:us", "first_token": "first_chunk_time_us:us", "finish": "last_chunk_time_us:us",
             "prompt_tokens": "input_tokens", "output_tokens": "output_tokens", "session": "session_id",
             "prefix_group": "prefix_group", "prefix_tokens": "prefix_length"},
}
"""Tool -> our column -> its column, with `:unit` where a time is not in seconds."""


OPTIONAL = {"splitwise": ("prompt_tokens", "id"), "vllm-run": ("prompt_tokens", "id"),
            "vllm-bench": ("prompt_tokens", "arrival")}
"""Columns that tables of a tool may lack."""


def tool_of(names: Collection[str]) -> str | None:
    """Return the tool whose table of requests has these columns, by the times in it; None for other tables."""
    return next((tool for tool in ("splitwise", "vllm-bench", "vllm-run") if all(
        theirs in names for ours, theirs in TOOLS[tool].items() if ours not in OPTIONAL[tool])), None)
