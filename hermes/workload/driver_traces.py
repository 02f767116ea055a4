"""Importers of what load drivers and data sets hold: requests with times, or conversations without."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hermes.config.bench_results import bench_table, one_of, results_in
from hermes.config.columns import TOOLS
from hermes.config.files import MAX_DOCUMENT_BYTES, read_json, require_file
from hermes.config.load_drivers import driver_table
from hermes.config.tables import Table, json_table
from hermes.errors import InputError, Verbatim, suggest
from hermes.workload.base import MAX_TOKENS
from hermes.workload.importers import TraceImporter, trace_columns
from hermes.workload.traces import ANY_LENGTH

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AiperfTrace", "BlisTrace", "GuideLlmTrace", "InferencePerfTrace", "ServeGenTrace", "ShareGptTrace",
           "VllmBenchTrace"]

_ASK, _ANSWER = ("human", "user", "system", "developer", "tool", "function"), (
    "gpt", "assistant", "chatgpt", "bard", "bing")
"""Speakers of a conversation."""


class _DriverTrace(TraceImporter):
    """Requests that a load driver sent; see `hermes.config.load_drivers` for clocks and units."""

    kind: str

    def table(self, path: Path) -> Table:
        """Return the requests in the order in which they were sent."""
        return driver_table(self.kind, path)

    def read(self, path: Path) -> pd.DataFrame:
        found = self.table(path)
        names = ["arrival_s", "prompt_tokens", "output_tokens"]
        asked = found.columns.get("max_new_tokens")
        if asked is not None and not np.isnan(asked).all():   # an answer of all the tokens asked for ended with them
            most = np.fmax(asked, found.columns["output_tokens"])
            found.columns["max_new_tokens"] = np.where(np.isnan(asked), ANY_LENGTH, most)
            names.append("max_new_tokens")
        names += [name for name in ("session", "prefix_group") if any(found.columns.get(name, ()))]
        names += ["prefix_tokens"] if "prefix_group" in names else []
        return self.finish(trace_columns(found, {name: name for name in names}))


class AiperfTrace(_DriverTrace):
    """aiperf's profile_export.jsonl: a record per request (request_start_ns, input and output sequence length). Failed
    requests have zero output tokens (`zero_tokens`); the warm-up is left out."""

    kind: Literal["aiperf"] = "aiperf"


class GuideLlmTrace(_DriverTrace):
    """GuideLLM's benchmarks.json: the requests of one benchmark (request_start_time in seconds, prompt_tokens,
    output_tokens). Failed requests have zero output tokens (`zero_tokens`)."""

    kind: Literal["guidellm"] = "guidellm"
    benchmark: Annotated[int, Field(ge=0)] | None = None
    """Which benchmark of the file, from 0. May be left out if there is one."""

    def table(self, path: Path) -> Table:
        return driver_table(self.kind, path, benchmark=self.benchmark)


class InferencePerfTrace(_DriverTrace):
    """inference-perf's per_request_lifecycle_metrics.json (start_time in seconds, info with tokens). Failed requests
    have zero output tokens (`zero_tokens`)."""

    kind: Literal["inference-perf"] = "inference-perf"


class BlisTrace(_DriverTrace):
    """BLIS's trace data, version 2: CSV with send_time_us, server_input_tokens (or input_tokens and prefix_length),
    output_tokens, session_id, prefix_group. Failed requests have zero output tokens (`zero_tokens`)."""

    kind: Literal["blis"] = "blis"


class VllmBenchTrace(TraceImporter):
    """Results of `vllm bench serve --save-result --save-detailed` or SGLang's `bench_serving --output-details`: a JSON
    object with a list per column (start_times in seconds of a clock with any origin, input_lens, output_lens, errors).
    Without start_times all requests arrive at 0, which is right for a request_rate of inf alone: other files are
    refused. Failed requests have zero output tokens (`zero_tokens`)."""

    kind: Literal["vllm-bench"] = "vllm-bench"
    part: Annotated[int, Field(ge=0)] | None = None
    """Which result of the file, from 0. May be left out if there is one."""

    def read(self, path: Path) -> pd.DataFrame:
        results = results_in(path)
        if not results:
            raise InputError("a result: a JSON object", Verbatim("none"), file=str(path))
        result = one_of(results, self.part, path)
        found = bench_table(result, path)
        names = {name: TOOLS["vllm-bench"][name] for name in ("prompt_tokens", "output_tokens")}
        arrival = TOOLS["vllm-bench"]["arrival"]
        if arrival not in found:
            rate = result.get("request_rate", "an unknown number of")
            if rate is not None and str(rate) != "inf":   # an infinity is null
                raise InputError(Verbatim(
                    f"no start_times: the arrivals of {rate} requests a second were drawn and not written; measure "
                    "with a vllm bench serve that writes them, or write `arrivals: {kind: poisson}` and the lengths"),
                    file=str(path))
            found.columns[arrival] = np.zeros(len(found))
        return self.finish(trace_columns(found, {"arrival_s": arrival} | names))


class ServeGenTrace(TraceImporter):
    """ServeGen's offline traces (data/offline/trace_?.jsonl): JSON lines with input_length, and output_length or
    hash_ids (blocks of 16 tokens). A batch job has no arrivals: all requests arrive at 0."""

    kind: Literal["servegen"] = "servegen"
    output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Answers' length for the traces with hash_ids, which do not state it."""

    @property
    def hash_block_tokens(self) -> int:
        return 16

    def read(self, path: Path) -> pd.DataFrame:
        names = TOOLS["servegen"]
        found = json_table(path, [names["prompt_tokens"]], [names["output_tokens"], names["hash_ids"]])
        found = found.renamed({ours: theirs for ours, theirs in names.items() if theirs in found})
        outputs = found.columns.get("output_tokens", [None] * len(found))
        found.columns["output_tokens"] = [self.output_tokens if output is None else output for output in outputs]
        for row, output in enumerate(found.columns["output_tokens"]):
            if output is None:
                raise found.wrong("output_length", row, Verbatim("this trace has no answers' lengths; give one (--set "
                                                                 "output_tokens=N)"), None)
        found.columns["arrival_s"] = np.zeros(len(found))
        if "hash_ids" in found:
            found.columns["hash_ids"] = [ids or [] for ids in found.columns["hash_ids"]]
            self.check_hashes(found, "traces with hash_ids have blocks of 16")
        return self.finish(found)


class ShareGptTrace(TraceImporter):
    """Conversations like ShareGPT's: a JSON list of objects with `conversations`, a list of {from, value} (or
    `messages` with {role, content}).

    Texts have no token counts and no times: tokens are counted by a tokenizer, or estimated from characters, and all
    requests arrive at 0.
    """

    kind: Literal["sharegpt"] = "sharegpt"
    tokenizer: str = ""
    """A tokenizer.json, to count tokens with (package tokenizers). Left out, tokens are estimated."""
    chars_per_token: Annotated[float, Field(gt=0, le=100)] = 4.0
    """Characters of a token for the estimate; about 4 in English."""
    turns: Literal["first", "all"] = "first"
    """The first question and answer of each conversation, as load drivers take them; or all, with the conversation so
    far as the prompt."""

    def read(self, path: Path) -> pd.DataFrame:
        found: dict[str, list[int]] = {
            name: [] for name in ("prompt_tokens", "output_tokens", "session", "prefix_group", "prefix_tokens")}
        places: list[int] = []
        for number, texts in _conversations(path):
            before = 0
            for asked, answered in texts[: 1 if self.turns == "first" else None]:
                prompt, output = before + self._count(asked), self._count(answered)
                before = prompt + output
                places.append(number)
                shared = self.turns == "all"
                for name, value in zip(found, (prompt, output, number, number if shared else -1,
                                               prompt if shared else 0), strict=True):
                    found[name].append(value)
        if self.turns == "first":
            for name in ("session", "prefix_group", "prefix_tokens"):
                del found[name]

        return self.finish(Table(path, {"arrival_s": [0.0] * len(places), **found},
                                 places=[f"{place}." for place in places]))

    def _count(self, text: str) -> int:
        if self._tokenizer is not None:
            return len(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return round(len(text) / self.chars_per_token) if text else 0

    @cached_property
    def _tokenizer(self) -> Any:   # of a package without types
        if not self.tokenizer:
            return None
        try:
            from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            said = "counting with a tokenizer needs the package tokenizers (pip install tokenizers)"
            raise InputError(Verbatim(said), field="tokenizer") from None
        require_file(self.tokenizer, "a tokenizer.json")
        try:
            return Tokenizer.from_file(self.tokenizer)
        except Exception as error:   # the package raises Exception itself
            raise InputError("a tokenizer.json", Verbatim(f"{error}"[:200]), field="tokenizer",
                             file=self.tokenizer) from None


def _conversations(path: Path) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield (place in the file, pairs of question and answer); conversations without a pair are left out."""
    data = read_json(path, MAX_DOCUMENT_BYTES)
    if not isinstance(data, list):
        raise InputError("a JSON list of conversations", data, file=str(path))
    for number, entry in enumerate(data):
        turns = (entry.get("conversations") or entry.get("messages")) if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            raise InputError("a list `conversations`", entry, file=str(path), field=str(number))
        pairs, asked = [], ""
        for i, turn in enumerate(turns):
            who = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
            text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
            if not isinstance(text, str):
                raise InputError("an object with from and value", turn, file=str(path),
                                 field=f"{number}.conversations.{i}")
            if who not in (*_ASK, *_ANSWER):
                raise InputError(f"one of {', '.join((*_ASK, *_ANSWER))}", who, file=str(path),
                                 field=f"{number}.conversations.{i}.from", suggestion=suggest(who, (*_ASK, *_ANSWER)))
            if who in _ANSWER:
                if asked:
                    pairs.append((asked, text))
                asked = ""
            else:
                asked += text   # a system prompt stands before the question
        if pairs:
            yield number, pairs
