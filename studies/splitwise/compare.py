"""Comparison with splitwise-sim, request by request: scenarios/validation/splitwise-*.yaml on its own traces.

`evidence.accuracy.recorded` describes the folder of the reference and simulates a case.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evidence.accuracy.recorded import SplitwiseCase, replayed, scenarios, splitwise_cases
from hermes.results import Results
from hermes.results.compare import compare

__all__ = ["Outcome", "Row", "run", "scenarios", "splitwise_cases"]

METRICS, STATS = ("ttft", "tbt", "e2e"), ("mean", "p50", "p90", "p99")
TOLERANCES = {"conv": 0.01, "code": 0.03}
CLOSE_S = 2e-6                          # its answers are written with nine digits


@dataclass
class Row:
    """One statistic of one metric, in seconds; error = (ours - reference) / reference."""

    metric: str
    stat: str
    ours_s: float
    reference_s: float
    error: float


@dataclass
class Outcome:
    """Result of a case.

    Attributes:
        placed: Requests of which both phases ran where splitwise-sim has them.
        on_time: Those whose first token and end agree to CLOSE_S as well.
        lent_decodes, reference_lent_decodes: Decodes that ran on machines of the prompt pool.
    """

    case: str
    tolerance: float
    requests: int
    completed: int
    rows: list[Row]
    placed: int
    on_time: int
    lent_decodes: int
    reference_lent_decodes: int
    wall_s: float

    @property
    def worst(self) -> float:
        """Return the largest error; infinite if one is undefined."""
        return max(math.inf if math.isnan(row.error) else abs(row.error) for row in self.rows)

    @property
    def ok(self) -> bool:
        complete = self.completed == self.requests and len(self.rows) == len(METRICS) * len(STATS)
        return complete and self.worst <= self.tolerance


def run(case: SplitwiseCase, stepping: str = "runs", extra: Sequence[str] = ()) -> Outcome:
    """Simulate a case on splitwise-sim's trace, and compare. extra: more changes to the scenario, as for --set."""
    started = time.perf_counter()
    results = replayed(case, stepping, extra)
    wall_s = time.perf_counter() - started
    table = compare(results, case.answers, "splitwise")
    rows = [
        Row(row.metric, row.stat, *(math.nan if x is None else x for x in (row.ours_s, row.reference_s, row.error)))
        for row in table.rows if row.metric in METRICS and row.stat in STATS
    ]
    ours, theirs = _ours(results), _theirs(case.answers)
    placed = (ours["prompt"] == theirs["prompt"]) & (ours["token"] == theirs["token"])
    off = np.maximum(np.abs(ours["ttft"] - theirs["ttft"]), np.abs(ours["e2e"] - theirs["e2e"]))
    lenders = sum(name.startswith("prompt") for name in results.clients["name"])
    return Outcome(
        case.name, TOLERANCES[case.workload], table.reference or 0, table.ours, rows, int(placed.sum()),
        int((placed & (off <= CLOSE_S)).sum()), int((ours["token"] < lenders).sum()),
        int((theirs["token"] < lenders).sum()), wall_s,
    )


def _ours(results: Results) -> dict[str, np.ndarray[Any, Any]]:
    """Return per request: clients of the prompt and of the tokens (in order of the scenario), TTFT and E2E in
    seconds."""
    record = results.record
    stages, n = record.stages, len(record.arrival_ns)
    prompt, token = np.full(n, -1), np.full(n, -1)
    decodes = stages["kind"] == record.stage_kinds.index("decode")
    prompt[stages["request"][~decodes]] = token[stages["request"][~decodes]] = stages["client"][~decodes]
    token[stages["request"][decodes]] = stages["client"][decodes]
    times = {name: results.requests[f"{name}_s"].to_numpy() for name in ("ttft", "e2e")}
    return {"prompt": prompt, "token": token, **times}


def _theirs(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The same of splitwise-sim; instances are called HARDWARE_NUMBER."""
    with path.open(newline="") as stream:
        rows = sorted(csv.DictReader(stream), key=lambda row: int(row["request_id"]))
    return {
        "prompt": np.array([int(row["prompt_instance"].rsplit("_", 1)[1]) for row in rows]),
        "token": np.array([int(row["token_instance"].rsplit("_", 1)[1]) for row in rows]),
        "ttft": np.array([float(row["ttft_times"]) for row in rows]),
        "e2e": np.array([float(row["response_times"]) for row in rows]),
    }
