"""Token traces: traces that hold the prompts as token ids, or as hashes of their text.

The prompts' content gives their common blocks. Each full block of `block_tokens` tokens is identified by the SHA-256 of
its tokens, chained with the block before (`hermes.memory.pages`), so that two prompts share exactly the blocks of their
common beginning. The imported trace has only the numbers of the blocks, in order of appearance: no tokens and no text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hermes.config.files import json_lines
from hermes.config.tables import Table, json_table
from hermes.errors import Verbatim, suggest
from hermes.memory.pages import page_hashes
from hermes.workload.importers import HashedTrace, trace_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TokenTrace"]

_MAX_ID = 2**62


class TokenTrace(HashedTrace):
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

    def read(self, path: Path) -> pd.DataFrame:
        numbers: dict[Any, int] = {}
        names = {"arrival_s": self.arrival, "output_tokens": self.output}
        names |= {"session": self.session} if self.session is not None else {}
        found = json_table(path, list(names.values()), [self.tokens, self.hashes, self.prompt])
        lengths, ids = [], []
        for row in range(len(found)):
            length, blocks = self._prompt(found, row)
            lengths.append(length)
            ids.append([numbers.setdefault(block, len(numbers)) for block in blocks])
        if self.session is not None:
            found.columns[self.session] = [json.dumps(value, sort_keys=True) for value in found.columns[self.session]]
        outputs = found.columns[self.output]
        found.columns[self.output] = [len(value) if isinstance(value, list) else value for value in outputs]
        table = trace_columns(found, names, self.arrival_unit)
        table.columns |= {"prompt_tokens": lengths, "hash_ids": ids}
        table.names["prompt_tokens"] = self.prompt
        return self.finish(table)

    def _prompt(self, table: Table, row: int) -> tuple[Any, Iterable[bytes]]:
        """Return (tokens of the prompt, chained hashes of its blocks)."""
        given = {name: table.columns[name][row] for name in (self.tokens, self.hashes, self.prompt)
                 if name in table and table.columns[name][row] is not None}
        if (self.tokens in given) == (self.hashes in given):
            error = table.wrong(self.tokens, row, f"either {self.tokens} or {self.hashes}", Verbatim("both"))
            if self.tokens not in given:
                keys = next(keys for line, keys in json_lines(table.file) if line == error.line)
                error.found, error.suggestion = Verbatim("neither"), suggest(self.tokens, keys)
            error.field = None
            raise error
        if self.tokens in given:
            ids = self._items(table, row, self.tokens, "token ids, integers of at least 0",
                              lambda x: type(x) is int and 0 <= x < _MAX_ID)
            length = given.get(self.prompt, len(ids))
            if length != len(ids) or type(length) is not int:
                raise table.wrong(self.prompt, row, f"the number of {self.tokens} ({len(ids)})", length)
            return length, page_hashes(ids, self.block_tokens)
        pieces = self._items(table, row, self.hashes, "hashes, text or integers", lambda x: type(x) in (str, int))
        length = given.get(self.prompt, len(pieces) * self.block_tokens)
        if type(length) is int and not length // self.block_tokens <= len(pieces) <= -(-length // self.block_tokens):
            raise table.wrong(self.hashes, row, f"a hash for each {self.block_tokens} of {length} prompt tokens",
                              Verbatim(f"{len(pieces)} hashes"))
        whole = length // self.block_tokens if type(length) is int else 0   # other types are refused later
        return length, _chained(pieces[:whole])   # the rest of a block will hold generated tokens

    def _items(self, table: Table, row: int, name: str, what: str, fits: Callable[[Any], bool]) -> list[Any]:
        values: list[Any] = table.columns[name][row]
        if not isinstance(values, list):
            raise table.wrong(name, row, f"a list of {what}")
        for i, value in enumerate(values):
            if not fits(value):
                table.names[name] = f"{name}[{i}]"
                raise table.wrong(name, row, what, value)
        return values


def _chained(pieces: Iterable[Any]) -> Iterator[bytes]:
    """Chain hashes: results are equal if and only if all hashes up to there are equal. Chaining chained hashes again
    does not change which are equal."""
    before = b""
    for piece in pieces:
        before = hashlib.sha256(before + json.dumps(piece).encode()).digest()
        yield before
