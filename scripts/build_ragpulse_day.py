"""Write the sixth day of the RAGPulse trace as a trace file of HERMES.

    python scripts/build_ragpulse_day.py FOLDER [--out traces]

FOLDER holds 0_trace.jsonl to 5_web_search.jsonl of flashserve/RAGPulse (MIT licence). The day is the 937 requests with
432,000 <= timestamp < 518,400. The hashes of texts and the sessions are numbered again in order of appearance, so that
the file is small; what requests share stays the same. The licence is written beside the trace.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pandas as pd

from hermes.workload.importers import import_trace
from hermes.workload.traces import write_trace

DAY_S = (432_000, 518_400)
REQUESTS = 937


def day(folder: Path) -> pd.DataFrame:
    """Return the requests of the day, with arrivals counted from midnight."""
    week = import_trace("ragpulse", folder)   # its first request has timestamp 0, so arrivals are timestamps
    frame = week[(week["arrival_s"] >= DAY_S[0]) & (week["arrival_s"] < DAY_S[1])].reset_index(drop=True)
    if len(frame) != REQUESTS:
        raise SystemExit(f"{folder}: expected {REQUESTS} requests on the day, found {len(frame)}")
    numbers: dict[int, int] = {}
    frame["arrival_s"] -= DAY_S[0]
    frame["session"] = pd.factorize(frame["session"])[0]
    frame["hash_ids"] = [[numbers.setdefault(i, len(numbers)) for i in ids] for ids in frame["hash_ids"]]
    return frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "traces")
    options = parser.parse_args()
    target = options.out / "ragpulse-day.parquet"
    write_trace(day(options.folder), target, source="RAGPulse (flashserve/RAGPulse, MIT), 432000 <= timestamp < 518400")
    shutil.copyfile(options.folder / "LICENSE", options.out / "ragpulse-day.LICENSE")
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
