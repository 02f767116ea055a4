"""Importer of RAGPulse's trace: prompts put together from texts of unequal lengths.

A prompt is the concatenation of a system prompt, passages, history, web pages and the user's input. The trace gives a
number for each text, and files beside it give the texts' token lengths. The same passage behind another text has other
KV, so the importer chains the numbers: each distinct (texts before, kind, number) becomes one hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hermes.config.columns import TOOLS
from hermes.config.tables import Table, json_table
from hermes.workload.base import MAX_TOKENS
from hermes.workload.importers import TraceImporter, trace_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RagPulseTrace"]

TRACE_FILE = "0_trace.jsonl"
_MAX_CLOCK_S = 366 * 86_400   # the trace covers a week; the same week in milliseconds lies beyond a year


class _Kind(NamedTuple):
    """A kind of text: the file beside the trace with the token lengths, and the key of the numbers in that file."""

    file: str
    key: str


_KINDS = {
    "sys_prompt": _Kind("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": _Kind("2_passages.jsonl", "passage_id"),
    "history": _Kind("3_history.jsonl", "history_id"),
    "web_search": _Kind("5_web_search.jsonl", "web_search_id"),
    "user_input": _Kind("4_user_input.jsonl", "user_input_id"),
}


class RagPulseTrace(TraceImporter):
    """RAGPulse (flashserve/RAGPulse): a folder with 0_trace.jsonl (timestamp in seconds as text, input_length,
    output_length, session_id, and hash_ids with a list of numbers for each kind of text) and the files
    1_sys_prompt.jsonl to 5_web_search.jsonl with the token length of each text.

    Texts stand in the prompt in the order of the keys of `hash_ids`. Their lengths add up to a few tokens less than
    input_length; the last tokens belong to the request alone. The published file is two parts, one behind the other,
    each of which covers the whole week: rows are sorted by arrival.
    """

    kind: Literal["ragpulse"] = "ragpulse"
    sort: bool = True
    """Sort rows by arrival; otherwise rows out of order are an error."""

    def read(self, path: Path) -> pd.DataFrame:
        path = path / TRACE_FILE if path.is_dir() else path
        found = json_table(path, list(TOOLS["ragpulse"].values()))
        for row, value in enumerate(found.columns["timestamp"]):
            if not _is_clock(value):
                raise found.wrong("timestamp", row, f'seconds from 0 to {_MAX_CLOCK_S} as text ("82")')
        names = {"arrival_s" if ours == "arrival" else ours: theirs for ours, theirs in TOOLS["ragpulse"].items()}
        table = trace_columns(found, names)
        table.columns["hash_ids"], table.columns["hash_tokens"] = _chains(found, path)
        table.names["hash_tokens"] = "hash_ids"
        return self.finish(table)


def _is_clock(value: Any) -> bool:
    try:
        return isinstance(value, str) and 0 <= float(value) <= _MAX_CLOCK_S
    except ValueError:
        return False


def _chains(trace: Table, path: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Return, for each prompt, the chained hashes of its texts (numbers in order of appearance) and their tokens."""
    tokens_of: dict[str, Mapping[int, int]] = {}   # a file is read if a prompt has a text of its kind
    numbers: dict[tuple[int, str, int], int] = {}
    ids: list[list[int]] = []
    tokens: list[list[int]] = []
    for row, prompt in enumerate(trace.columns["hash_ids"]):
        before, chain, lengths = -1, [], []
        for kind, text in _texts(trace, row, prompt):
            if kind not in tokens_of:
                tokens_of[kind] = _token_lengths(path.with_name(_KINDS[kind].file), _KINDS[kind].key)
            if text not in tokens_of[kind]:
                trace.names["hash_ids"] = f"hash_ids.{kind}"
                raise trace.wrong("hash_ids", row, f"a text of {_KINDS[kind].file}", text)
            before = numbers.setdefault((before, kind, text), len(numbers))
            chain.append(before)
            lengths.append(tokens_of[kind][text])
        ids.append(chain)
        tokens.append(lengths)
    return ids, tokens


def _texts(trace: Table, row: int, prompt: Any) -> Iterator[tuple[str, int]]:
    """Yield (kind, number) of each text of a prompt, in order."""
    if not isinstance(prompt, dict) or set(prompt) != set(_KINDS):
        raise trace.wrong("hash_ids", row, f"lists of numbers under {', '.join(_KINDS)}")
    for kind, texts in prompt.items():
        if not isinstance(texts, list) or not all(type(text) is int for text in texts):
            trace.names["hash_ids"] = f"hash_ids.{kind}"
            raise trace.wrong("hash_ids", row, "a list of integers", texts)
        for text in texts:
            yield kind, text


def _token_lengths(path: Path, key: str) -> dict[int, int]:
    """Return the tokens of each text of a file, by number."""
    table = json_table(path, [key, "token_length"])
    found: dict[int, int] = {}
    for row, (number, tokens) in enumerate(zip(table.columns[key], table.columns["token_length"], strict=True)):
        if type(number) is not int or number in found:
            raise table.wrong(key, row, "an integer that no other line has")
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            raise table.wrong("token_length", row, "an integer of at least 1")
        found[number] = tokens
    return found
