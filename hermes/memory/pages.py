"""Pages of tokens that sequences share, and copy when one of them writes: the paged KV memory with its tokens.

A full page is known by the SHA-256 of its tokens chained with that of the page before, so equal hashes mean equal
content of the whole prefix, and two prompts share as many leading pages as they have in common. Pages are
reference-counted, freed at zero, and copied when a sequence writes into one that others hold.

The clients' pools (`BlockPool`, `PrefixBlockPool`) do the same without tokens: there, content has keys
(`hermes.core.block_hashes`), which for prompts whose tokens are known are these hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

__all__ = ["SharedPages", "page_hashes", "shared_savings"]


def page_hashes(tokens: Sequence[int], page_tokens: int) -> Iterator[bytes]:
    """SHA-256 of each full page, chained: of the hash before it (none for the first) and the page's tokens as 64-bit
    little-endian integers."""
    if page_tokens < 1:
        raise ValueError(f"pages of at least one token: {page_tokens}")
    data, before = np.asarray(tokens, dtype="<i8"), b""
    for start in range(0, len(data) - page_tokens + 1, page_tokens):
        before = hashlib.sha256(before + data[start:start + page_tokens].tobytes()).digest()
        yield before


def shared_savings(prefix_tokens: int, total_tokens: int, sequences: int, page_tokens: int) -> float:
    """Share of the pages that are not needed where `sequences` of `total_tokens` have `prefix_tokens` in common:
    floor(p / page) (N - 1) / (N ceil(total / page))."""
    whole = prefix_tokens // page_tokens
    return whole * (sequences - 1) / (sequences * -(-total_tokens // page_tokens))


class _Page:
    """One page: its tokens (of the last page of a sequence, those written so far), its holders, its hash once full."""

    __slots__ = ("digest", "refs", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.refs, self.digest = tokens, 1, b""


class SharedPages:
    """Sequences of tokens in pages. `num_pages` at most, without limit where None; an operation that finds no free page
    raises `MemoryError` and changes nothing."""

    def __init__(self, page_tokens: int, num_pages: int | None = None) -> None:
        if page_tokens < 1:
            raise ValueError(f"pages of at least one token: {page_tokens}")
        self.page_tokens, self.num_pages = page_tokens, num_pages
        self.used_pages = self.copies = 0
        self._known: dict[bytes, _Page] = {}
        self._held: dict[Hashable, list[_Page]] = {}

    @property
    def saved_pages(self) -> int:
        """Pages that there would be more, if every sequence had its own."""
        return sum(len(pages) for pages in self._held.values()) - self.used_pages

    def tokens(self, seq: Hashable) -> list[int]:
        """What a sequence holds. Raises `KeyError` where there is none."""
        return [token for page in self._held[seq] for token in page.tokens]

    def add(self, seq: Hashable, tokens: Sequence[int]) -> int:
        """A sequence comes; how many of its tokens were there already (whole pages, from the first on)."""
        if seq in self._held:
            raise ValueError(f"a sequence that is not there: {seq!r}")
        found: list[_Page] = []
        for digest in page_hashes(tokens, self.page_tokens):
            page = self._known.get(digest)
            if page is None:
                break
            found.append(page)
        rest = list(tokens[len(found) * self.page_tokens:])
        self._check_room(-(-len(rest) // self.page_tokens))
        for page in found:
            page.refs += 1
        self._held[seq] = found
        self._write(found, rest)
        return len(found) * self.page_tokens

    def fork(self, seq: Hashable, child: Hashable) -> None:
        """`child` begins as `seq` is, its last, partial page included; no page is taken."""
        if child in self._held:
            raise ValueError(f"a sequence that is not there: {child!r}")
        pages = list(self._held[seq])
        for page in pages:
            page.refs += 1
        self._held[child] = pages

    def append(self, seq: Hashable, tokens: Sequence[int]) -> None:
        """More tokens; into the last page, if it has room, or into a copy of it, if it is shared."""
        self.rewrite(seq, sum(len(page.tokens) for page in self._held[seq]), tokens)

    def rewrite(self, seq: Hashable, position: int, tokens: Sequence[int]) -> None:
        """Everything from token `position` on becomes `tokens`: KV depends on all tokens before it, so nothing behind
        a change can stay. What is not shared is reused in place."""
        pages, size = self._held[seq], self.page_tokens
        if not 0 <= position <= sum(len(page.tokens) for page in pages):
            raise ValueError(f"a position within the sequence: {position}")
        keep, into = divmod(position, size)
        partial = pages[keep].tokens[:into] if into else []
        dropped = pages[keep:]
        new = [*partial, *tokens]
        own = sum(page.refs == 1 for page in dropped)
        self._check_room(-(-len(new) // size) - own)
        if into and len(tokens) and dropped[0].refs > 1:
            self.copies += 1
        for page in dropped:
            self._drop(page)
        del pages[keep:]
        self._write(pages, new)

    def free(self, seq: Hashable) -> None:
        """A sequence goes; pages that nobody else holds are free."""
        for page in self._held.pop(seq):
            self._drop(page)

    def _check_room(self, pages: int) -> None:
        if self.num_pages is not None and self.used_pages + pages > self.num_pages:
            raise MemoryError(f"{pages} free pages: {self.num_pages - self.used_pages}")

    def _drop(self, page: _Page) -> None:
        page.refs -= 1
        if not page.refs:
            self.used_pages -= 1
            if self._known.get(page.digest) is page:
                del self._known[page.digest]

    def _write(self, pages: list[_Page], tokens: list[int]) -> None:
        """New pages behind `pages`, each hashed once it is full (the first that carries a hash is the one found)."""
        before = pages[-1].digest if pages else b""
        for start in range(0, len(tokens), self.page_tokens):
            page = _Page(tokens[start:start + self.page_tokens])
            self.used_pages += 1
            pages.append(page)
            if len(page.tokens) == self.page_tokens:
                page.digest = before = hashlib.sha256(before + np.array(page.tokens, dtype="<i8").tobytes()).digest()
                self._known.setdefault(page.digest, page)
