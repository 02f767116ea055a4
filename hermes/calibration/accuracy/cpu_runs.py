"""Reference set of vLLM 0.32.0 on one CPU thread (`data/vllm-cpu`): every online run there is.

The profile was fitted on the single steps of other workloads of the same engine (`steps.csv`). A run may have any rate:
its requests and the engine's limits are columns of its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hermes.calibration.accuracy.replay import replay, trust_of_steps
from hermes.calibration.accuracy.row import Case, Row, rows_of, statistics
from hermes.calibration.importers.base import read_csv
from hermes.errors import InputError

__all__ = ["cpu_runs"]

COLUMNS = ("arrival_s", "prompt_len", "output_len", "first_token_s", "finish_s", "mnbt", "mns")
PROFILE = "vllm-cpu-small-llama"
BLOCK_SIZE, BLOCKS = 128, 1360


def cpu_runs(data: Path) -> Iterator[Row]:
    """Each online run, on the clock that it was timed with."""
    folder = data / "vllm-cpu"
    paths = sorted(folder.glob("online-*.csv"))
    if not paths:
        raise InputError("an online run of the engine, online-NAME.csv", "none", file=str(folder))
    for path in paths:
        yield from _run(path)


def _run(path: Path) -> Iterator[Row]:
    run = read_csv(path, COLUMNS).sort_values("arrival_s", kind="stable", ignore_index=True)
    requests = pd.DataFrame({"arrival_s": run.arrival_s, "prompt_tokens": run.prompt_len.astype(int),
                             "output_tokens": run.output_len.astype(int)})
    client = {
        "hardware": {"kind": "polynomial", "profile": PROFILE},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": int(run.mnbt[0]), "max_num_seqs": int(run.mns[0]),
                      "async_scheduling": False},
        "memory": {"block_size": BLOCK_SIZE, "num_blocks": BLOCKS, "prefix_caching": False},
    }
    results = replay(client, requests)
    found = results.requests
    several = run.output_len > 1
    measured = statistics({
        "ttft": run.first_token_s - run.arrival_s, "e2e": run.finish_s - run.arrival_s,
        "tpot": ((run.finish_s - run.first_token_s) / (run.output_len - 1).clip(lower=1))[several],
    })
    case = Case("vLLM on a CPU", path.stem.removeprefix("online-"), "vllm-0.32", "cpu", "small-llama",
                trust_of_steps(results))
    yield from rows_of(case, measured, statistics({name: found[f"{name}_s"] for name in ("ttft", "tpot", "e2e")}))
