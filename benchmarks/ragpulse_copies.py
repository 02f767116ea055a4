"""The RAGPulse day many times over: 512 copies of traces/ragpulse-day.parquet, each 0.1 s later than the one before.

    python benchmarks/ragpulse_copies.py FILE.parquet [--copies N] [--unshared]

writes the copies as one trace: 479,744 requests by default. The copies have the same prompts; with `--unshared` each
copy has prompts of its own. `benchmarks/core.py` calls this in a process of its own, so that its memory does not count
as the simulation's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from hermes.config.data_files import resource_dir
from hermes.config.files import parquet_frame
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--copies", type=int, default=COPIES)
    parser.add_argument("--unshared", action="store_true")
    options = parser.parse_args()
    frame = copies(parquet_frame(DAY), options.copies, shared=not options.unshared)
    write_trace(frame, options.file, source=f"{options.copies} copies of {DAY.name}")


if __name__ == "__main__":
    main()
