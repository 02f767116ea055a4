"""Importer of RAGPulse's trace: prompts put together from texts of unequal lengths.

A prompt is the concatenation of a system prompt, passages, history, web pages and the user's input. The trace gives a
number for each text, and files beside it give the texts' token lengths. The same passage behind another text has other
KV, so the importer chains the numbers: each distinct (texts before, kind, number) becomes one hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hermes.errors import InputError
from hermes.workload.base import MAX_TOKENS
from hermes.workload.importers import TraceImporter, arrivals_s, json_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RagPulseTrace"]

TRACE_FILE = "0_trace.jsonl"
_MAX_CLOCK_S = 366 * 86_400   # the trace covers a week; the same week in milliseconds lies beyond a year
_NAMES = {"arrival_s": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length",
          "hash_ids": "hash_ids", "hash_tokens": "hash_ids", "session": "session_id"}


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
        import pandas as pd

        path = path / TRACE_FILE if path.is_dir() else path
        columns, lines = json_columns(path, list(dict.fromkeys(_NAMES.values())))

        def locate(name: str, row: int) -> tuple[str, int | None]:
            return _NAMES[name], lines[row]

        found: dict[str, Any] = {ours: columns[theirs] for ours, theirs in _NAMES.items()}
        _check_clock(columns["timestamp"], path, lines)
        found["arrival_s"] = arrivals_s(columns["timestamp"], "s", path, locate)
        found["session"] = pd.factorize(pd.Series(list(map(str, columns["session_id"])), dtype=object))[0]
        found["hash_ids"], found["hash_tokens"] = _chains(columns["hash_ids"], path, lines)
        return self.finish(found, path, locate)


def _check_clock(timestamps: list[Any], path: Path, lines: list[int]) -> None:
    """Raise `InputError` at the first timestamp that is not the text of seconds within a year."""
    for line, value in zip(lines, timestamps, strict=True):
        try:
            valid = isinstance(value, str) and 0 <= float(value) <= _MAX_CLOCK_S
        except ValueError:
            valid = False
        if not valid:
            raise InputError(f'seconds from 0 to {_MAX_CLOCK_S} as text ("82")', value, field="timestamp",
                             file=str(path), line=line)


def _chains(prompts: list[Any], path: Path, lines: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Return, for each prompt, the chained hashes of its texts (numbers in order of appearance) and their tokens."""
    tokens_of: dict[str, Mapping[int, int]] = {}   # a file is read if a prompt has a text of its kind
    numbers: dict[tuple[int, str, int], int] = {}
    ids: list[list[int]] = []
    tokens: list[list[int]] = []
    for line, prompt in zip(lines, prompts, strict=True):
        before, chain, lengths = -1, [], []
        for kind, text in _texts(prompt, path, line):
            if kind not in tokens_of:
                tokens_of[kind] = _token_lengths(path.with_name(_KINDS[kind].file), _KINDS[kind].key)
            if text not in tokens_of[kind]:
                raise InputError(f"a text of {_KINDS[kind].file}", text, field=f"hash_ids.{kind}", file=str(path),
                                 line=line)
            before = numbers.setdefault((before, kind, text), len(numbers))
            chain.append(before)
            lengths.append(tokens_of[kind][text])
        ids.append(chain)
        tokens.append(lengths)
    return ids, tokens


def _texts(prompt: Any, path: Path, line: int) -> Iterator[tuple[str, int]]:
    """Yield (kind, number) of each text of a prompt, in order."""
    if not isinstance(prompt, dict) or set(prompt) != set(_KINDS):
        raise InputError(f"lists of numbers under {', '.join(_KINDS)}", prompt, field="hash_ids", file=str(path),
                         line=line)
    for kind, texts in prompt.items():
        if not isinstance(texts, list) or not all(type(text) is int for text in texts):
            raise InputError("a list of integers", texts, field=f"hash_ids.{kind}", file=str(path), line=line)
        for text in texts:
            yield kind, text


def _token_lengths(path: Path, key: str) -> dict[int, int]:
    """Return the tokens of each text of a file, by number."""
    columns, lines = json_columns(path, [key, "token_length"])
    found: dict[int, int] = {}
    for line, number, tokens in zip(lines, columns[key], columns["token_length"], strict=True):
        if type(number) is not int or number in found:
            raise InputError("an integer that no other line has", number, field=key, file=str(path), line=line)
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            raise InputError("an integer of at least 1", tokens, field="token_length", file=str(path), line=line)
        found[number] = tokens
    return found
