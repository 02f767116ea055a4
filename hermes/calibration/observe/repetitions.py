"""Repetitions of an observation: attempts, the rules that reject a disturbed one, and the noise between the others.

The first attempt is `observed.parquet` in the folder, further ones `observed-2.parquet`, ...; a rejected attempt stays.
The rules are fixed beforehand and look at the driver and its machine, never at a request's latency.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.calibration.collect.contention import LIMIT
from hermes.calibration.journal import read_journal
from hermes.calibration.observe.driver import WINDOW_S
from hermes.calibration.observe.session import Outcome, Target, observe
from hermes.core.noise import spread
from hermes.results.distribution import Distribution
from hermes.results.observed import ObservedAttempt, ObservedReport, write_report
from hermes.scenario import Scenario

__all__ = ["RULES", "judged", "noise_between", "observe_repeatedly"]

BUSY_SHARE = 0.90          # of a core: a driver that needs more notes chunks late
CONTENDED_WINDOWS = 0.10
LATE_S = 0.020
DRIFT_S = 0.010

RULES = (
    f"rejected when in more than {CONTENDED_WINDOWS:.0%} of the windows of {WINDOW_S:g} s the driver waited for a core "
    f"for more than {LIMIT:.0%} of the time, or used more than {BUSY_SHARE:.0%} of one",
    f"rejected when the driver took up its requests late: p99 above {LATE_S * 1e3:g} ms, or the median of the last "
    f"quarter {DRIFT_S * 1e3:g} ms above that of the first",
)
STATS = ("mean", "p50", "p90", "p99")


def observe_repeatedly(
    scenario: Scenario, target: Target, folder: Path, repetitions: int = 1, most: int | None = None,
    told: Callable[[int, int, int], None] | None = None,
) -> tuple[ObservedReport, list[Outcome]]:
    """Observe until `repetitions` attempts are accepted, and write `folder`/observed.json after each.

    A repeated call continues, and adds to what is there. Raises `InputError`.

    Args:
        most: Most attempts; by default twice the repetitions, and one for one repetition.
        told: Called with (attempt, requests done, requests in total).
    """
    most = most or (2 * repetitions if repetitions > 1 else 1)
    attempts: list[ObservedAttempt] = []
    outcomes: list[Outcome] = []
    while len(attempts) < most and sum(one.accepted for one in attempts) < repetitions:
        number = len(attempts) + 1
        say = None if told is None else _of_attempt(told, number)
        outcomes.append(observe(scenario, target, folder, say, attempt=number))
        attempts.append(judged(number, outcomes[-1]))
        report = ObservedReport(rules=list(RULES), repetitions=repetitions, attempts=attempts)
        tables = [pd.read_parquet(folder / one.file) for one in report.counted()]
        report = report.model_copy(update={"noise": noise_between(tables)})
        write_report(report, folder)
    return report, outcomes


def _of_attempt(told: Callable[[int, int, int], None], number: int) -> Callable[[int, int], None]:
    return lambda done, total: told(number, done, total)


def judged(number: int, outcome: Outcome) -> ObservedAttempt:
    """Apply the rules to an attempt that has ended."""
    _, records = read_journal(outcome.file.with_suffix(".jsonl"))
    windows = [record for record in records if record["kind"] == "load"]
    contended = sum(one["waited_s"] > LIMIT * one["wall_s"] or one["cpu_s"] > BUSY_SHARE * one["wall_s"]
                    for one in windows)
    rows = [record["rows"][0] for record in records if record["kind"] == "point"]
    rows.sort(key=lambda row: row["scheduled_s"])
    late = np.array([row.get("taken_s", row["arrival_s"]) - row["scheduled_s"] for row in rows])
    p99 = float(np.quantile(late, 0.99))
    quarter = max(1, len(late) // 4)
    drift = float(np.median(late[-quarter:]) - np.median(late[:quarter]))
    reasons = []
    if contended > CONTENDED_WINDOWS * len(windows):
        reasons.append(f"{contended} of {len(windows)} windows contended")
    if p99 > LATE_S:
        reasons.append(f"requests taken up late, p99 {p99 * 1e3:.1f} ms")
    if drift > DRIFT_S:
        reasons.append(f"requests taken up later and later, by {drift * 1e3:.1f} ms")
    return ObservedAttempt(
        number=number, file=outcome.file.name, reasons=reasons, requests=outcome.requests, failed=outcome.failed,
        parts=outcome.parts, late_s=round(p99, 6), windows=len(windows), contended_windows=contended)


def noise_between(tables: list[pd.DataFrame]) -> dict[str, dict[str, Any]]:
    """Return the spread of every statistic of TTFT, TPOT and E2E over repetitions; empty for fewer than two."""
    out: dict[str, dict[str, Any]] = {}
    if len(tables) < 2:
        return out
    for metric in ("ttft", "tpot", "e2e"):
        stats = [Distribution(table[f"{metric}_s"].to_numpy(dtype=np.float64)).stats() for table in tables]
        for stat in STATS:
            values = [one[stat] for one in stats if one[stat] is not None]
            if len(values) == len(tables) and sum(values) > 0:
                out.setdefault(metric, {})[stat] = spread(values).as_dict()
    return out
