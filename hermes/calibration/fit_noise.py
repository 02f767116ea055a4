"""How far repeated measurements of the very same step agree (`hermes.core.noise`)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from hermes.calibration.steps import STATS
from hermes.core.noise import Spread, spread
from hermes.hardware.profile import Noise

__all__ = ["label", "neighbour_error", "noise_of", "repeats"]

_KEY = ["configuration", *STATS]
MOST_LISTED = 10
FEWEST = 30
ALIKE = 0.2


def repeats(rows: pd.DataFrame) -> list[tuple[str, Spread]]:
    """(what was measured, the spread of its times) for every different step, in order of first appearance."""
    grouped = rows.groupby(_KEY, sort=False, dropna=False)["time_s"]
    return [(label(key), spread(times)) for key, times in grouped]


def label(key: tuple[object, ...]) -> str:
    """A step by its configuration and its largest statistics."""
    stats = dict(zip(STATS, key[1:], strict=True))
    shown = ("prefill_tokens", "prefill_past", "decode_seqs", "decode_ctx")
    return f"{key[0]} ({', '.join(f'{name} {stats[name]}' for name in shown if stats[name])})"


def neighbour_error(rows: pd.DataFrame) -> float | None:
    """How well a step is predicted by the mean of the steps before and after it; None for fewer than `FEWEST` such.

    Counts where all three belong to one configuration, followed each other, computed as many tokens for as many
    sequences, and have contexts and attention pairs within `ALIKE`. Where nothing was repeated this tells the noise: no
    fit can be expected to do much better. A mean absolute relative error.
    """
    ordered = rows.sort_values("sequence", kind="stable")
    key = pd.factorize(pd.MultiIndex.from_frame(ordered[["configuration", "prefill_tokens", "decode_seqs"]]))[0]
    sequence, time_s = ordered["sequence"].to_numpy(), ordered["time_s"].to_numpy()
    alike = (key[:-2] == key[1:-1]) & (key[2:] == key[1:-1]) & (sequence[2:] == sequence[:-2] + 2)
    for name in ("prefill_attn", "decode_ctx"):
        values = ordered[name].to_numpy()
        change = np.abs(np.diff(values)) <= ALIKE * values[1:]
        alike &= change[1:] & change[:-1]
    if alike.sum() < FEWEST:
        return None
    return float(np.mean(np.abs((time_s[:-2] + time_s[2:]) / 2 / time_s[1:-1] - 1)[alike]))


def noise_of(rows: pd.DataFrame) -> Noise | None:
    """Statistics over the repeated steps of some rows; None if nothing was repeated."""
    found = repeats(rows)
    repeated = [(name, entry) for name, entry in found if entry.samples > 1]
    if not repeated:
        return None
    bad = sorted((e for e in repeated if e[1].verdict in ("flaky", "rejected")), key=lambda e: -e[1].cv)
    classes = Counter(str(entry.verdict) for _, entry in found)
    return Noise(
        median_cv=float(np.median([entry.cv for _, entry in repeated])),
        max_cv=max(entry.cv for _, entry in repeated),
        median_ci95=float(np.median([entry.ci95 / entry.mean for _, entry in repeated])),
        classes={name: classes[name] for name in ("excellent", "good", "flaky", "rejected", "single") if classes[name]},
        flaky=[f"{name}: CV {entry.cv:.0%}, {entry.verdict}" for name, entry in bad[:MOST_LISTED]],
    )
