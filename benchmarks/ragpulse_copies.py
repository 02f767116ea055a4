"""The RAGPulse day many times over: 512 copies of traces/ragpulse-day.parquet, each 0.1 s later than the one before.

    python benchmarks/ragpulse_copies.py FILE.parquet [--copies N] [--unshared] [--blocks TOKENS]

writes the copies as one trace: 479,744 requests by default. The copies have the same prompts; with `--unshared` each
copy has prompts of its own. With `--blocks` prompts are hashed in whole blocks of so many tokens instead of in texts.
`benchmarks/core.py` calls this in a process of its own, so that its memory does not count as the simulation's.
"""

from __future__ import annotations

import argparse
from itertools import accumulate
from pathlib import Path

import numpy as np
import pandas as pd

from hermes.config.data_files import resource_dir
from hermes.config.files import parquet_frame
from hermes.core.block_hashes import HashedPieces
from hermes.workload.traces import write_trace

COPIES, SHIFT_S = 512, 0.1
DAY = resource_dir("traces") / "ragpulse-day.parquet"


def copies(day: pd.DataFrame, count: int, *, shared: bool) -> pd.DataFrame:
    """Return `count` copies of a trace, copy k later by k x 0.1 s, in order of arrival (at one instant: of the copies).

    Args:
        day: The trace.
        count: Number of copies.
        shared: Whether all copies have the same `hash_ids`; otherwise the copies share no prompt with one another.

    The conversations of a copy are its own.
    """
    times = day["arrival_s"].to_numpy() + SHIFT_S * np.arange(count)[:, None]
    order = np.argsort(times.ravel(), kind="stable")
    copy, row = order // len(day), order % len(day)
    frame = day.iloc[row].reset_index(drop=True)
    frame["arrival_s"] = times.ravel()[order]
    frame["session"] += copy * (int(day["session"].max()) + 1)
    if not shared:
        step = 1 + max(int(ids.max()) for ids in day["hash_ids"] if len(ids))
        frame["hash_ids"] = [ids + k * step for ids, k in zip(frame["hash_ids"], copy, strict=True)]
    return frame


def in_blocks(day: pd.DataFrame, size: int) -> pd.DataFrame:
    """Return a trace with the hashes of whole blocks of `size` tokens instead of those of texts."""
    numbers: dict[object, int] = {}
    ids = []
    for row, (texts, lengths, tokens) in enumerate(zip(day["hash_ids"], day["hash_tokens"], day["prompt_tokens"],
                                                       strict=True)):
        prompt = HashedPieces(tuple(texts.tolist()), tuple(accumulate(lengths.tolist())), tokens)
        keys = [prompt.block_key(i, size) or (row, i) for i in range(tokens // size)]   # the last are the prompt's own
        ids.append(np.array([numbers.setdefault(key, len(numbers)) for key in keys]))
    return day.drop(columns="hash_tokens").assign(hash_ids=ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--copies", type=int, default=COPIES)
    parser.add_argument("--unshared", action="store_true")
    parser.add_argument("--blocks", type=int, metavar="TOKENS")
    options = parser.parse_args()
    day = parquet_frame(DAY)
    if options.blocks:
        day = in_blocks(day, options.blocks)
    frame = copies(day, options.copies, shared=not options.unshared)
    write_trace(frame, options.file, source=f"{options.copies} copies of {DAY.name}",
                hash_block_tokens=options.blocks or 512)


if __name__ == "__main__":
    main()
