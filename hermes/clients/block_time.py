"""Exact KV occupancy of runs of several steps: blocks in use times time.

A run records the blocks in use when it ends. Inside a run of decode steps the number grows by one block for each
sequence whose last block is full, so the blocks at the end times the run's length are too many. A sequence takes a
block every `block_size` steps; the step at which it began to decode and the length of its prompt give the exact steps.
The correction therefore needs no record of single steps, and equals what `stepping: every_step` adds up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hermes.arrays import IntArray

if TYPE_CHECKING:
    from hermes.clients.llm_readings import LLMReadings

__all__ = ["block_ns", "block_ns_of_client", "blocks_taken"]

Segments = list[tuple[int, int, int]]   # of an interrupted sequence, see `hermes.core.generation.Generation`


def blocks_taken(spans: IntArray, block_size: int, num_ticks: int) -> IntArray:
    """Return the blocks that decoding sequences take in each tick, shape (num_ticks,).

    A sequence takes a block in a tick if its tokens fill whole blocks before the tick.

    Args:
        spans: Decode spans of sequences, shape (n, 3): first tick, the one after the last, tokens in KV memory before
            the first.
    """
    first, stop, before = spans.T
    take = first + -before % block_size
    some = take < stop
    take, stop = take[some], stop[some]
    change = np.zeros(-(-(num_ticks + block_size) // block_size) * block_size, dtype=np.int64)
    np.add.at(change, take, 1)
    np.add.at(change, take + -(-(stop - take) // block_size) * block_size, -1)
    return change.reshape(-1, block_size).cumsum(axis=0).ravel()[:num_ticks]


def block_ns(
    runs: dict[str, IntArray], step_ends: IntArray, ticks: IntArray | None, spans: IntArray, block_size: int
) -> IntArray:
    """Return blocks in use times nanoseconds for each of a client's runs (in order), shape (runs,).

    A step counts the blocks in use at its end.

    Args:
        ticks: Steps in which all decoding sequences advance; None if every step does that.
        spans: As for `blocks_taken`; several for a sequence that was interrupted.
    """
    span_ns = runs["end_ns"] - runs["start_ns"]
    whole = np.asarray(runs["used_blocks"] * span_ns, dtype=np.int64)
    lost = runs["num_steps"] == 0   # a step that did not end: its client went down
    if lost.any():
        kept = {name: column[~lost] for name, column in runs.items()}
        whole[~lost] = block_ns(kept, step_ends, ticks, spans, block_size)
        return whole
    if not len(step_ends) or (runs["num_steps"] == 1).all():
        return whole
    taken = blocks_taken(spans, block_size, len(step_ends) if ticks is None else len(ticks))
    if ticks is not None:
        of_ticks, taken = taken, np.zeros(len(step_ends), dtype=np.int64)
        taken[ticks] = of_ticks
    late = np.zeros(len(step_ends), dtype=np.int64)   # start of a step, since the start of its run
    late[1:] = step_ends[:-1] - np.repeat(runs["start_ns"], runs["num_steps"])[1:]
    late[runs["first_step"]] = 0
    return np.asarray(whole - np.add.reduceat(taken * late, runs["first_step"]), dtype=np.int64)


def block_ns_of_client(
    client: LLMReadings, runs: dict[str, IntArray], stages: dict[str, IntArray], rows: IntArray,
    gaps: dict[int, Segments], decode: int, ticks: IntArray | None,
) -> IntArray:
    """Return `block_ns` of the runs of a client after the simulation, shape (runs,).

    Args:
        runs: The client's rows of the table of runs, in order of time.
        stages: The table of all stages.
        rows: Rows of `stages` that the client served.
        gaps: Row of a stage -> segments of a sequence that was interrupted.
        decode: Code of the stage kind whose first token came with the prompt's KV; -1 if there is none.
        ticks: As for `block_ns`.
    """
    spans = np.empty((0, 3), dtype=np.int64)
    if client.scheduler.group.grows:
        spans = _spans(client, stages, rows, gaps, ticks, decode)
    return block_ns(runs, client.steps.array(), ticks, spans, client.scheduler.pool.block_size)


def _spans(client: LLMReadings, stages: dict[str, IntArray], rows: IntArray, gaps: dict[int, Segments],
           ticks: IntArray | None, decode: int) -> IntArray:
    """Return the decode spans of a client's sequences (see `blocks_taken`)."""
    rows = rows[(stages["output_tokens"][rows] > 1) & (stages["first_step"][rows] >= 0)]
    irregular = [row for row in rows.tolist() if row in gaps]
    rows = rows[~np.isin(rows, irregular)]
    stop = stages["last_step"][rows] + 1
    if ticks is not None:
        stop = np.searchsorted(ticks, stop)
    # Of its own rows only: a pass over the whole table for each client is quadratic in their number.
    # `kind == decode`: the first token came with the prompt's KV.
    tokens, prompts, kinds = stages["output_tokens"], stages["prompt_tokens"], stages["kind"]
    spans = [np.stack((stop - tokens[rows] + 1, stop, prompts[rows] + (kinds[rows] == decode)), axis=1)]
    spans += [_interrupted(int(prompts[row] + (kinds[row] == decode)), gaps[row]) for row in irregular]
    scheduler, end = client.scheduler, client.num_steps if ticks is None else len(ticks)
    for seq in (*scheduler.running, *scheduler.waiting, *scheduler.holding):   # cut off by the horizon
        segments = [*(seq.segments or ())] + ([(seq.emit_step, seq.join_tick, end)] if seq.emit_step >= 0 else [])
        spans.append(_interrupted(seq.prompt_tokens + seq.given, segments))
    return np.concatenate(spans)


def _interrupted(tokens: int, segments: Segments) -> IntArray:
    """Return the spans of a sequence with `tokens` tokens in memory at its first token."""
    spans = []
    for emit, start, stop in segments:
        tokens += emit >= 0
        spans.append((start, stop, tokens - 1))
        tokens += stop - start
    return np.array(spans, dtype=np.int64).reshape(-1, 3)
