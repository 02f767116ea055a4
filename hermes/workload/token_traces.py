"""Token traces: traces that hold the prompts as token ids, or as hashes of their text.

The prompts' content gives their common blocks. Each full block of `block_tokens` tokens is identified by the SHA-256 of
its tokens, chained with the block before (`hermes.memory.pages`), so that two prompts share exactly the blocks of their
common beginning. The imported trace has only the numbers of the blocks, in order of appearance: no tokens and no text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from hermes.config.files import json_lines
from hermes.errors import InputError, Verbatim, suggest
from hermes.memory.pages import page_hashes
from hermes.workload.importers import TraceImporter, arrivals_s

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TokenTrace"]

_MAX_ID = 2**62


class TokenTrace(TraceImporter):
    """JSON lines with an arrival, the prompt as a list of token ids or of hashes of its pieces, and the output.

    A line has either `tokens` (integers) or `hashes` (text or integers, one per `block_tokens` tokens of the prompt; of
    the piece alone or of the prompt up to its end). The output is a number of tokens or a list of token ids, which is
    counted.
    """

    kind: Literal["tokens"] = "tokens"
    arrival: str = "arrival"
    """Key of the arrival time."""
    arrival_unit: Literal["s", "ms", "us", "ns", "timestamp"] = "s"
    """Unit of the arrival time; `timestamp` for ISO 8601 dates and times."""
    tokens: str = "tokens"
    """Key of the prompt's token ids."""
    hashes: str = "hashes"
    """Key of the hashes of the prompt's text, if it has no token ids."""
    prompt: str = "prompt_tokens"
    """Key of the prompt's length beside `hashes`; without it every piece counts as whole. Beside `tokens` it is
    checked."""
    output: str = "output"
    """Key of the output: a number of tokens, or their ids."""
    session: str | None = None
    """Key that identifies conversations: any values, numbered in order of appearance."""
    block_tokens: int = Field(default=16, ge=1, le=2**20)
    """Tokens per hashed block. Sharing is counted in whole blocks."""

    @property
    def hash_block_tokens(self) -> int:
        return self.block_tokens

    def read(self, path: Path) -> pd.DataFrame:
        numbers: dict[Any, int] = {}
        lines: list[int] = []
        found: dict[str, list[Any]] = {"arrival_s": [], "prompt_tokens": [], "output_tokens": [], "hash_ids": []}
        sessions: list[str] = []
        for line, row in json_lines(path):
            at = _Row(row, path, line)
            length, blocks = self._prompt(at)
            found["arrival_s"].append(at.need(self.arrival))
            found["prompt_tokens"].append(length)
            found["output_tokens"].append(_count(at.need(self.output)))
            found["hash_ids"].append([numbers.setdefault(block, len(numbers)) for block in blocks])
            if self.session is not None:
                sessions.append(json.dumps(at.need(self.session), sort_keys=True))
            lines.append(line)
        names = {"arrival_s": self.arrival, "prompt_tokens": self.prompt, "output_tokens": self.output}

        def locate(name: str, index: int) -> tuple[str, int | None]:
            return names.get(name, name), lines[index]

        columns: dict[str, Any] = dict(found)
        columns["arrival_s"] = arrivals_s(found["arrival_s"], self.arrival_unit, path, locate)
        if self.session is not None:
            import pandas as pd

            columns["session"] = pd.factorize(pd.Series(sessions, dtype=object))[0]
        return self.finish(columns, path, locate)

    def _prompt(self, row: _Row) -> tuple[Any, Iterable[bytes]]:
        """Return (tokens of the prompt, chained hashes of its blocks)."""
        given = [name for name in (self.tokens, self.hashes) if name in row.values]
        if len(given) != 1:
            raise InputError(f"either {self.tokens} or {self.hashes}", Verbatim("both" if given else "neither"),
                             file=str(row.path), line=row.line,
                             suggestion=suggest(self.tokens, row.values) if not given else None)
        if self.tokens in row.values:
            ids = row.ids(self.tokens)
            length = row.values.get(self.prompt, len(ids))
            if length != len(ids):
                raise InputError(f"the number of {self.tokens} ({len(ids)})", length, field=self.prompt,
                                 file=str(row.path), line=row.line)
            return length, page_hashes(ids, self.block_tokens)
        pieces = row.pieces(self.hashes)
        length = row.values.get(self.prompt, len(pieces) * self.block_tokens)
        if type(length) is int and not length // self.block_tokens <= len(pieces) <= -(-length // self.block_tokens):
            raise InputError(f"a hash for each {self.block_tokens} of {length} prompt tokens",
                             Verbatim(f"{len(pieces)} hashes"), field=self.hashes, file=str(row.path), line=row.line)
        whole = length // self.block_tokens if type(length) is int else 0   # other types are refused later
        return length, _chained(pieces[:whole])   # the rest of a block will hold generated tokens


class _Row:
    """One line of the file."""

    def __init__(self, values: dict[str, Any], path: Path, line: int) -> None:
        self.values, self.path, self.line = values, path, line

    def need(self, name: str) -> Any:
        """Return the value of a key. Raises `InputError` if it is missing."""
        if name not in self.values:
            raise InputError("a value", Verbatim("none"), field=name, file=str(self.path), line=self.line,
                             suggestion=suggest(name, self.values))
        return self.values[name]

    def ids(self, name: str) -> list[int]:
        """Return token ids; `InputError` for anything else."""
        return self._list(name, "token ids, integers of at least 0", lambda x: type(x) is int and 0 <= x < _MAX_ID)

    def pieces(self, name: str) -> list[Any]:
        """Return hashes; `InputError` for anything else."""
        return self._list(name, "hashes, text or integers", lambda x: type(x) in (str, int))

    def _list(self, name: str, what: str, fits: Any) -> list[Any]:
        values = self.values[name]
        if not isinstance(values, list):
            raise InputError(f"a list of {what}", values, field=name, file=str(self.path), line=self.line)
        for i, value in enumerate(values):
            if not fits(value):
                raise InputError(what, value, field=f"{name}[{i}]", file=str(self.path), line=self.line)
        return values


def _chained(pieces: Iterable[Any]) -> Iterator[bytes]:
    """Chain hashes: results are equal if and only if all hashes up to there are equal. Chaining chained hashes again
    does not change which are equal."""
    before = b""
    for piece in pieces:
        before = hashlib.sha256(before + json.dumps(piece).encode()).digest()
        yield before


def _count(output: Any) -> Any:
    return len(output) if isinstance(output, list) else output
