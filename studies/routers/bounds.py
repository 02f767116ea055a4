"""What prefix caches could find in a trace, by counting: no simulation, no router, no time.

Hashes of a prompt's pieces are chained, so that an earlier prompt with piece i has all pieces before it too. A piece
that k earlier prompts had is found

- in one cache without limit: if k > 0. No placement on any number of replicas finds more.
- where each prompt went to one of N replicas at random, caches without limit: with probability 1 - (1 - 1/N)^k.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hermes.core.block_hashes import HashedPieces
from hermes.core.request_table import RequestTable
from hermes.memory.replay import replay

__all__ = ["found_at_random", "found_in_pool"]

BLOCK = 16   # tokens of an engine's block


def found_at_random(table: RequestTable, replicas: int, requests: int) -> float:
    """Return the share of the prompt tokens of the first `requests` that caches without limit find, in whole blocks."""
    seen: Counter[int] = Counter()
    found = 0.0
    for chain, ends in _pieces(table, requests):
        before = 0
        for number, end in zip(chain, ends, strict=True):
            whole = end // BLOCK
            found += (whole - before) * BLOCK * (1 - (1 - 1 / replicas) ** seen[number])
            before = whole
        seen.update(set(chain))
    return found / int(table.prompt_tokens[:requests].sum())


def found_in_pool(table: RequestTable, tokens: int, requests: int) -> float:
    """Return the share that one cache of so many tokens finds (least recently used out first): what replicas find
    together that would share their memory."""
    size = BLOCK if table.hash_tokens is not None else table.hash_block_tokens
    prompts = []
    for chain, ends in _pieces(table, requests):
        prompt = HashedPieces(chain, ends, ends[-1] if ends else 0)
        prompts.append([prompt.block_key(i, size) for i in range(prompt.num_tokens // size)])
    return replay(prompts, tokens // size).hits * size / int(table.prompt_tokens[:requests].sum())


def _pieces(table: RequestTable, requests: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return for each prompt its hashes and where each piece ends, in tokens."""
    assert table.hash_ids is not None
    found = []
    for row in range(requests):
        chain, prompt = tuple(table.hash_ids[row]), int(table.prompt_tokens[row])
        lengths = [table.hash_block_tokens] * len(chain) if table.hash_tokens is None else table.hash_tokens[row]
        found.append((chain, tuple(min(end, prompt) for end in accumulate(lengths))))
    return found
