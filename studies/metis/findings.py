"""Findings of the study: sentences, each computed from the frames that its tables show."""

from __future__ import annotations

import pandas as pd

from .tables import GROWS, PAPER, gain, keeps_up, of, pair, ratio

__all__ = ["BOUND", "findings"]

BOUND = 0.1
"""Share of constrained decisions from which findings call memory decisive."""


def findings(readings: pd.DataFrame, sweep: pd.DataFrame, variants: pd.DataFrame) -> list[str]:
    """Return all findings.

    Args:
        readings: The table of readings.
        sweep: METIS and the median by KV memory and rate.
        variants: METIS with other answers to open questions, at the study's rates.
    """
    return [*_of_readings(readings), *_of_memory(sweep), *_of_variants(sweep, variants)]


def _of_readings(readings: pd.DataFrame) -> list[str]:
    most = int(readings["both"].max())
    found = readings[readings["both"] == most]
    names = "; ".join(f"{row['data sets']}, {row['quality']}, grid {row['grid']}, noise {row['noise']:g}, tolerance "
                      f"{row['tolerance']:g}" for _, row in found.iterrows())
    all_f1, all_delays = (int(readings[column].eq(4).sum()) for column in ("F1 no lower", "delay within"))
    return [
        f"Of {len(readings)} readings, at most {most} of the four data sets have a delay within the paper's {PAPER[0]} "
        f"to {PAPER[1]} and no lower F1: {names}.",
        f"Over all of them AdaptiveRAG* takes {readings['lowest'].min():.2f} to {readings['highest'].max():.2f} times "
        f"as long as METIS. On all data sets METIS has no lower F1 with {all_f1} readings, and a delay within that "
        f"range with {all_delays}.",
    ]


def _of_memory(sweep: pd.DataFrame) -> list[str]:
    counted = {False: [0, 0, 0, 0], True: [0, 0, 0, 0]}   # points, of them kept up; quicker, more F1
    for (dataset, _, _), here in sweep.groupby(["dataset", "kv_tokens", "load"], sort=False):
        own, median = pair(here, str(dataset), "METIS", "+ batching")
        if len(median):
            kept = keeps_up(own, median)
            counts = counted[bool(own["constrained"].mean() >= BOUND)]
            counts[0] += 1
            counts[1] += kept
            counts[2] += kept and ratio(median, own).mean() > 1
            counts[3] += kept and gain(own, median).mean() > 0
    return [f"Memory changes {word} {BOUND:.0%} of METIS's decisions at {counts[0]} points of data set, KV memory and "
            f"rate; at {counts[1]} of them no queue grows: there best fit is quicker than the median at {counts[2]}, "
            f"and has more F1 at {counts[3]}."
            for bound, word in ((False, "less than"), (True, "at least")) for counts in (counted[bound],)]


def _of_variants(sweep: pd.DataFrame, variants: pd.DataFrame) -> list[str]:
    own = sweep[sweep["load"] == 1]
    said = []
    for name, group in variants.groupby("system", sort=False):
        delays, f1s, grows = [], [], 0
        for (dataset, tokens), here in group.groupby(["dataset", "kv_tokens"], sort=False):
            mine, other = of(own[own["kv_tokens"] == tokens], str(dataset), "METIS"), here.set_index("seed")
            f1s.append((other["f1"] - mine["f1"]).mean())
            if keeps_up(mine, other):
                delays.append(ratio(other, mine).mean())
            else:
                grows += 1
        said.append(f"{name}: {min(delays):.2f} to {max(delays):.2f} times METIS's delay where no queue grows "
                    f"({GROWS} at {grows} of {len(f1s)}), F1 {min(f1s):+.3f} to {max(f1s):+.3f}.")
    return said
