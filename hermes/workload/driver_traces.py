"""Importers of what load drivers and data sets hold: requests with times, or conversations without."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from hermes.config.files import json_lines
from hermes.config.load_drivers import driver_rows, guidellm_rows
from hermes.errors import InputError, Verbatim
from hermes.workload.base import MAX_TOKENS
from hermes.workload.importers import TraceImporter, arrivals_s
from hermes.workload.traces import ANY_LENGTH

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AiperfTrace", "BlisTrace", "GuideLlmTrace", "InferencePerfTrace", "ServeGenTrace", "ShareGptTrace"]


class _DriverTrace(TraceImporter):
    """Requests that a load driver sent; see `hermes.config.load_drivers` for clocks and units."""

    @abstractmethod
    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Return the requests in the order in which they were sent."""

    def read(self, path: Path) -> pd.DataFrame:
        import pandas as pd

        rows = self.rows(path)

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return f"request {row}, {name}", None

        found: dict[str, Any] = {"arrival_s": arrivals_s([row["arrival_s"] for row in rows], "s", path, locate)}
        for name in ("prompt_tokens", "output_tokens"):
            found[name] = [int(row[name] or 0) for row in rows]
        asked = [row.get("max_new_tokens") for row in rows]
        if any(one is not None for one in asked):   # an answer of all the tokens asked for ended with them
            found["max_new_tokens"] = [ANY_LENGTH if one is None else max(int(one), output)
                                       for one, output in zip(asked, found["output_tokens"], strict=True)]
        for name in ("session", "prefix_group"):
            texts = pd.Series([str(row.get(name) or "") for row in rows])
            if (texts != "").any():
                found[name] = pd.factorize(texts.where(texts != ""))[0]   # -1 where there is none
        if "prefix_group" in found:
            found["prefix_tokens"] = [int(row["prefix_tokens"]) if row["prefix_group"] else 0 for row in rows]
        return self.finish(found, path, locate)


class AiperfTrace(_DriverTrace):
    """aiperf's profile_export.jsonl: a record per request (request_start_ns, input and output sequence length). Failed
    requests have zero output tokens (`zero_tokens`); the warm-up is left out."""

    kind: Literal["aiperf"] = "aiperf"

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return driver_rows("aiperf", path)


class GuideLlmTrace(_DriverTrace):
    """GuideLLM's benchmarks.json: the requests of one benchmark (request_start_time in seconds, prompt_tokens,
    output_tokens). Failed requests have zero output tokens (`zero_tokens`)."""

    kind: Literal["guidellm"] = "guidellm"
    benchmark: Annotated[int, Field(ge=0)] | None = None
    """Which benchmark of the file, from 0. May be left out if there is one."""

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return sorted(guidellm_rows(path, self.benchmark), key=lambda row: float(row["arrival_s"]))


class InferencePerfTrace(_DriverTrace):
    """inference-perf's per_request_lifecycle_metrics.json (start_time in seconds, info with tokens). Failed requests
    have zero output tokens (`zero_tokens`)."""

    kind: Literal["inference-perf"] = "inference-perf"

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return driver_rows("inference-perf", path)


class BlisTrace(_DriverTrace):
    """BLIS's trace data, version 2: CSV with send_time_us, server_input_tokens (or input_tokens and prefix_length),
    output_tokens, session_id, prefix_group. Failed requests have zero output tokens (`zero_tokens`)."""

    kind: Literal["blis"] = "blis"

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return driver_rows("blis", path)


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
        found: dict[str, list[Any]] = {name: [] for name in ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids")}
        lines = []
        for line, row in json_lines(path):
            lines.append(line)
            output = row.get("output_length", self.output_tokens)
            if output is None:
                raise InputError(Verbatim("this trace has no answers' lengths; give one (--set output_tokens=N)"),
                                 file=str(path), line=line, field="output_length")
            for name, value in (("arrival_s", 0.0), ("prompt_tokens", row.get("input_length")),
                                ("output_tokens", output), ("hash_ids", row.get("hash_ids") or [])):
                found[name].append(value)
        names = {"prompt_tokens": "input_length", "output_tokens": "output_length"}

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return names.get(name, name), lines[row]

        if any(found["hash_ids"]):
            self.check_hashes(found, path, locate, "traces with hash_ids have blocks of 16")
        else:
            del found["hash_ids"]
        return self.finish(found, path, locate)


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

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return f"{places[row]}.{name}", None

        return self.finish({"arrival_s": [0.0] * len(places), **found}, path, locate)

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
            raise InputError("the package tokenizers (pip install tokenizers)", None, field="tokenizer") from None
        try:
            return Tokenizer.from_file(self.tokenizer)
        except Exception as error:   # the package raises Exception itself
            raise InputError("a tokenizer.json", Verbatim(f"{error}"[:200]), field="tokenizer",
                             file=self.tokenizer) from None


def _conversations(path: Path) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Yield (place in the file, pairs of question and answer); conversations without a pair are left out."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("a JSON list of conversations", Verbatim(f"{error}"[:200]), file=str(path)) from None
    if not isinstance(data, list):
        raise InputError("a list of conversations", Verbatim(type(data).__name__), file=str(path))
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
            if who in ("gpt", "assistant", "chatgpt", "bard", "bing"):
                if asked:
                    pairs.append((asked, text))
                asked = ""
            else:
                asked += text   # a system prompt stands before the question
        if pairs:
            yield number, pairs
