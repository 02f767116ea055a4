"""Initial contents of prefix caches, and remarks on a workload before its run: coarse hashes, conversation rates."""

from __future__ import annotations

from typing import Any

from hermes.core.block_hashes import GroupPrefix
from hermes.core.generation import Generation
from hermes.core.request import Stream
from hermes.core.request_table import RequestTable
from hermes.errors import InputError, Verbatim, inside
from hermes.workload import WorkloadConfig

__all__ = ["coarse_hash_warnings", "conversation_remarks", "fill_prefix_caches"]


def fill_prefix_caches(configs: list[Any], clients: list[Any], streams: list[Stream], models: list[set[str]]) -> None:
    """Fill the prefix caches that start warm. models: For each stream the models that its requests may ask for."""
    first = 0
    for i, config in enumerate(configs):
        group = clients[first : first + len(config.names)]
        first += len(config.names)
        if config.kind != "llm" or config.memory.prefix_start == "empty":
            continue
        mine = [stream for stream, asked in zip(streams, models, strict=True)
                if not config.model or asked & {"", config.model}]
        with inside(f"clients.{i}.memory"):
            for client in group:
                _fill(client.scheduler.pool, mine)


def _fill(pool: Any, streams: list[Stream]) -> None:
    """Put the shared beginnings of these streams' prompts into a prefix cache, as far as they fit: the most used first,
    whole blocks only, as if each had been computed and freed once, the most used last.

    Raises `InputError` without shared beginnings.
    """
    texts = [text for stream in streams for text in stream.table.shared_texts()]
    if not texts:
        raise InputError(Verbatim(
            "no workload has prompts with a common beginning (`system_tokens` of conversations, `prefixes`, a trace's "
            "prefix_group); write empty"), field="prefix_start")
    size, room = pool.block_size, pool.num_blocks
    chosen = []
    for group, tokens in texts:
        blocks = min(tokens // size, room)
        room -= blocks
        if blocks:
            chosen.append((group, blocks * size))
    for group, tokens in reversed(chosen):
        text = Generation(tokens, 1, content=GroupPrefix(group, tokens))
        pool.admit(text, tokens)
        pool.commit(text, tokens)
        pool.free(text)


def coarse_hash_warnings(clients: list[Any], streams: list[Stream]) -> list[str]:
    """Return a warning for each workload whose prompts are hashed in larger blocks than a client's cache blocks."""
    pools = [c.scheduler.pool for c in clients if c.role != "service" and c.scheduler.pool.caching]
    sizes = [pool.block_size for pool in pools]
    found = []
    for stream in streams:
        table = stream.table
        if table.hash_ids is None or table.hash_tokens is not None or not sizes:
            continue   # pieces of unequal lengths end where their texts end: no shared text is lost between blocks
        if table.hash_block_tokens <= min(sizes):
            continue
        unit, size = table.hash_block_tokens, min(sizes)
        found.append(
            f"workload {stream.name}: prompts are hashed in blocks of {unit} tokens, the engine caches blocks of "
            f"{size}; tokens beyond a prompt's last whole hash block never hit the cache, even if a later prompt "
            f"repeats them ({_lost(table, size):.1%} of all prompt tokens)"
        )
    return found


def _lost(table: RequestTable, size: int) -> float:
    """Return the share of prompt tokens in whole engine blocks beyond the last whole hash block."""
    tokens = table.prompt_tokens
    lost = tokens % table.hash_block_tokens // size * size
    return float(lost.sum() / max(int(tokens.sum()), 1))


def conversation_remarks(configs: list[WorkloadConfig], streams: list[Stream]) -> list[str]:
    """Return a line for each workload of conversations: their number, and that `rate` counts their starts."""
    found = []
    for config, stream in zip(configs, streams, strict=True):
        turn = stream.table.turn
        if turn is None or not len(turn):
            continue
        talks = int((turn == 0).sum())
        mean = len(turn) / talks
        text = f"workload {stream.name}: {talks:,} conversations of {mean:.3g} turns, {len(turn):,} requests"
        rate = config.arrivals.model_dump().get("rate")
        if rate is not None:
            text += f"; `rate` counts conversations: {rate:g}/s of them, {rate * mean:.4g} requests/s"
        found.append(text)
    return found
