"""Copy-on-write pages of tokens that sequences share: paged KV memory with the tokens themselves.

A full page is identified by the SHA-256 of its tokens, chained with that of the page before. Equal hashes mean equal
content of the whole prefix, and two prompts share all leading pages that they have in common. Pages are
reference-counted, freed at zero, and copied when a sequence writes into one that others hold.

The clients' pools (`BlockPool`, `PrefixBlockPool`) do the same without tokens: their content has keys
(`hermes.core.block_hashes`), which are these hashes for prompts whose tokens are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

__all__ = ["SharedPages", "page_hashes", "shared_savings"]


def page_hashes(tokens: Sequence[int], page_tokens: int) -> Iterator[bytes]:
    """Yield the chained SHA-256 of each full page: of the hash before it (none for the first page) and the page's
    tokens as 64-bit little-endian integers."""
    if page_tokens < 1:
        raise ValueError(f"page_tokens must be at least 1, got {page_tokens}")
    data, before = np.asarray(tokens, dtype="<i8"), b""
    for start in range(0, len(data) - page_tokens + 1, page_tokens):
        before = hashlib.sha256(before + data[start:start + page_tokens].tobytes()).digest()
        yield before


def shared_savings(prefix_tokens: int, total_tokens: int, sequences: int, page_tokens: int) -> float:
    """Return the share of the pages that `sequences` of `total_tokens` save by a common prefix of `prefix_tokens`:
    floor(p / page) (N - 1) / (N ceil(total / page))."""
    whole = prefix_tokens // page_tokens
    return whole * (sequences - 1) / (sequences * -(-total_tokens // page_tokens))


class _Page:
    """One page: its tokens (in a partial page those written so far), its holders, and its hash once full."""

    __slots__ = ("digest", "refs", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.refs, self.digest = tokens, 1, b""


class SharedPages:
    """Sequences of tokens in at most `num_pages` pages (None: no limit). An operation that finds no free page raises
    `MemoryError` and changes nothing."""

    def __init__(self, page_tokens: int, num_pages: int | None = None) -> None:
        if page_tokens < 1:
            raise ValueError(f"page_tokens must be at least 1, got {page_tokens}")
        self.page_tokens, self.num_pages = page_tokens, num_pages
        self.used_pages = self.copies = 0
        self._known: dict[bytes, _Page] = {}
        self._held: dict[Hashable, list[_Page]] = {}

    @property
    def saved_pages(self) -> int:
        """Pages that sharing saves."""
        return sum(len(pages) for pages in self._held.values()) - self.used_pages

    def tokens(self, seq: Hashable) -> list[int]:
        """Return the tokens of a sequence. Raises `KeyError` for an unknown one."""
        return [token for page in self._held[seq] for token in page.tokens]

    def add(self, seq: Hashable, tokens: Sequence[int]) -> int:
        """Add a sequence; return how many of its tokens were in memory already (whole pages, from the first on)."""
        if seq in self._held:
            raise ValueError(f"sequence {seq!r} exists already")
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
        """Make `child` a copy of `seq`, its partial last page included; this takes no page."""
        if child in self._held:
            raise ValueError(f"sequence {child!r} exists already")
        pages = list(self._held[seq])
        for page in pages:
            page.refs += 1
        self._held[child] = pages

    def append(self, seq: Hashable, tokens: Sequence[int]) -> None:
        """Append tokens to the last page if it has room, or to a copy of it if it is shared."""
        self.rewrite(seq, sum(len(page.tokens) for page in self._held[seq]), tokens)

    def rewrite(self, seq: Hashable, position: int, tokens: Sequence[int]) -> None:
        """Replace all tokens from `position` on by `tokens`: KV depends on all tokens before it, so that nothing behind
        a change can stay. Pages that are not shared are reused in place."""
        pages, size = self._held[seq], self.page_tokens
        if not 0 <= position <= sum(len(page.tokens) for page in pages):
            raise ValueError(f"position must be within the sequence, got {position}")
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
        """Remove a sequence; pages that no other sequence holds become free."""
        for page in self._held.pop(seq):
            self._drop(page)

    def _check_room(self, pages: int) -> None:
        if self.num_pages is not None and self.used_pages + pages > self.num_pages:
            raise MemoryError(f"{pages} pages are needed and {self.num_pages - self.used_pages} are free")

    def _drop(self, page: _Page) -> None:
        page.refs -= 1
        if not page.refs:
            self.used_pages -= 1
            if self._known.get(page.digest) is page:
                del self._known[page.digest]

    def _write(self, pages: list[_Page], tokens: list[int]) -> None:
        """Write new pages behind `pages`, each hashed once full (a lookup finds the oldest with a hash)."""
        before = pages[-1].digest if pages else b""
        for start in range(0, len(tokens), self.page_tokens):
            page = _Page(tokens[start:start + self.page_tokens])
            self.used_pages += 1
            pages.append(page)
            if len(page.tokens) == self.page_tokens:
                page.digest = before = hashlib.sha256(before + np.array(page.tokens, dtype="<i8").tobytes()).digest()
                self._known.setdefault(page.digest, page)
