"""Findings of the study: sentences, each computed from the frames that its tables show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hermes.plugins.metis.quality import FORMULAS

from .sections import READINGS, VARIANTS
from .tables import paired

__all__ = ["BOUND", "findings"]

PAPER = (1.64, 2.54)
"""AdaptiveRAG*'s delay over METIS's."""
BOUND = 0.1
"""Share of constrained decisions from which findings call memory decisive."""


def findings(
    own: pd.DataFrame, fixed: pd.DataFrame, readings: pd.DataFrame, measured: pd.DataFrame, gains: pd.DataFrame,
    large: pd.DataFrame, steps: pd.DataFrame, sweep: pd.DataFrame, shapes: pd.DataFrame, feedback: pd.DataFrame,
) -> list[str]:
    """Return all findings.

    Args:
        own, fixed: METIS, AdaptiveRAG* and the fixed configurations.
        readings: AdaptiveRAG* by measured F1 and by its former rules.
        measured: The table of grids and noises.
        gains: Gains against fixed configurations of like delay.
        large: The large model.
        steps: The ladder.
        sweep: Less memory.
        shapes: Other quality models.
    """
    return [*_headline(own, fixed), *_of_readings(readings), *_of_measured(measured), *_of_gains(gains),
            *_headline(large, large, of=" (Llama-3.1-70B)"), *_of_steps(steps), *_under_pressure(sweep),
            *_by_shape(shapes), *_of_feedback(feedback)]


def _of(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return frame.set_index("seed").sort_index()


def _headline(own: pd.DataFrame, fixed: pd.DataFrame, of: str = "") -> list[str]:
    said = []
    for dataset, rate in dict.fromkeys(zip(own["dataset"], own["rate"], strict=True)):
        mine, rag = (_of(own, dataset=dataset, rate=rate, system=s) for s in ("METIS", "AdaptiveRAG*"))
        like = _of(fixed, dataset=dataset, rate=rate, system="vLLM fixed")
        ratio, lost = rag["delay_s"] / mine["delay_s"], 100 * (mine["f1"] / rag["f1"] - 1)
        text = (f"{dataset} at {rate:g}/s{of}: AdaptiveRAG* takes {ratio.mean():.2f} times as long as METIS "
                f"({ratio.min():.2f} to {ratio.max():.2f}), whose F1 is {lost.mean():+.1f}% of its own")
        if len(like):
            gain = 100 * (mine["f1"] / like["f1"] - 1)
            text += f" and {gain.mean():+.1f}% of the fixed one's ({gain.min():+.1f} to {gain.max():+.1f})"
        said.append(f"{text}; memory changed {100 * mine['constrained'].mean():.1f}% of the decisions.")
    return said


def _of_readings(readings: pd.DataFrame) -> list[str]:
    said = []
    for name in READINGS:
        ratios = {}
        for dataset in dict.fromkeys(readings["dataset"]):
            mine, rag = (_of(readings, dataset=dataset, system=s)["delay_s"] for s in ("METIS", name))
            ratios[dataset] = float((rag / mine).mean())
        listed = ", ".join(f"{dataset} {ratio:.2f}" for dataset, ratio in ratios.items())
        said.append(f"Delay of {name} over METIS's with queues: {listed}.")
    return said


def _of_measured(measured: pd.DataFrame) -> list[str]:
    """Ranges over grids and noises, for each load and set of data sets."""
    said = []
    delays, losses = ([c for c in measured.columns if c.startswith(start)] for start in ("delay", "F1"))
    for load in dict.fromkeys(measured["load"]):
        for end, of in (("", "2n"), ("-3n", "3n")):
            here = measured[(measured["load"] == load) & (measured["data set"].str.endswith("-3n") == bool(end))]
            if not len(here):
                continue
            ratio, f1 = here[delays].to_numpy(), here[losses].to_numpy()
            inside = (ratio >= PAPER[0]) & (ratio <= PAPER[1])
            said.append(
                f"Over grids, noises and data sets of {of}, {load}: AdaptiveRAG* takes {ratio.min():.2f} to "
                f"{ratio.max():.2f} times as long as METIS (median {np.median(ratio):.2f}; {int(inside.sum())} of "
                f"{ratio.size} within the paper's {PAPER[0]} to {PAPER[1]}), and METIS's F1 is {f1.min():+.1f} to "
                f"{f1.max():+.1f}% of its own; where the ratio is within, {_within(f1[inside])}.")
    return said


def _within(f1: np.ndarray) -> str:
    return f"{f1.min():+.1f} to {f1.max():+.1f}%" if f1.size else "there is none"


def _of_gains(gains: pd.DataFrame) -> list[str]:
    return [f"F1 of {system} over the fixed configuration of like delay: " + ", ".join(
        f"{dataset} {gain:+.1f}%" for dataset, gain in zip(own["data set"], own["F1 gain %"], strict=True)) + "."
        for system, own in gains.groupby("chosen by", sort=False)]


def _of_steps(steps: pd.DataFrame) -> list[str]:
    said = []
    for (dataset, rate), group in steps.groupby(["dataset", "rate"], sort=False):
        delay, f1 = (group.groupby("system")[column].mean() for column in ("delay_s", "f1"))
        word = "slower" if delay["METIS"] > delay["+ batching"] else "quicker"
        said.append(
            f"{dataset} at {rate:g}/s: best fit takes {delay['METIS'] / delay['+ batching']:.2f} times as long as the "
            f"median ({word}), F1 {f1['METIS']:.3f} against {f1['+ batching']:.3f}; AdaptiveRAG* takes "
            f"{delay['AdaptiveRAG*'] / delay['+ batching']:.2f} times as long as the median.")
    return said


def _under_pressure(sweep: pd.DataFrame) -> list[str]:
    mine = paired(sweep, "METIS", "METIS")
    bound = int((mine["constrained"] >= BOUND).sum())
    said = [f"Memory constrains at least {BOUND:.0%} of METIS's decisions at {bound} of {len(mine)} points of the "
            "sweep of rate and memory."]
    for name in ("AdaptiveRAG*", "AdaptiveRAG*, 1%"):
        rag = paired(sweep, "METIS", name)
        tight = rag[rag["constrained"] >= BOUND]
        if len(tight):
            lost = 100 * (tight["f1"] / tight["f1_other"] - 1)
            inside = int(tight["ratio"].between(*PAPER).sum())
            said.append(
                f"There {name} takes {tight['ratio'].min():.2f} to {tight['ratio'].max():.2f} times as long as METIS "
                f"(median {tight['ratio'].median():.2f}; {inside} within {PAPER[0]} to {PAPER[1]}), and METIS's F1 is "
                f"{lost.min():+.0f} to {lost.max():+.0f}% of its own.")
    for system in ("METIS", *(f"METIS, {name}" for name in VARIANTS)):
        pairs = paired(sweep, system, "+ batching")
        tight = pairs[pairs["constrained"] >= BOUND]
        said.append(
            f"{system}: of {len(tight)} such points it is quicker than the median of the pruned space at "
            f"{int((tight['delay_s'] < tight['delay_s_other']).sum())}, and has more F1 at "
            f"{int((tight['f1'] > tight['f1_other']).sum())}.")
    return said


def _by_shape(shapes: pd.DataFrame) -> list[str]:
    said = []
    for name in FORMULAS:
        column = f"f1_{name}"
        better: dict[str, list[str]] = {"vLLM fixed": [], f"AdaptiveRAG* {name}": [], "profile + median": []}
        for dataset, group in shapes.groupby("dataset", sort=False):
            f1 = group.groupby("system")[column].mean()
            for system, found in better.items():
                if f1["METIS"] > f1[system]:
                    found.append(str(dataset))
        lists = [", ".join(found) or "none" for found in better.values()]
        said.append(
            f"Quality model {name}: METIS has more F1 than the fixed configuration of like delay for {lists[0]}; than "
            f"AdaptiveRAG* for {lists[1]}; than the median for {lists[2]}.")
    return said


def _of_feedback(feedback: pd.DataFrame) -> list[str]:
    said = []
    for (dataset, profiler), group in feedback.assign(profiler=feedback["system"].str.split(" ").str[0]).groupby(
            ["dataset", "profiler"], sort=False):
        means = group.groupby(group["system"].str.split(" ").str[-1])[["f1", "delay_s"]].mean()
        said.append(
            f"{dataset}, {profiler} profiler: feedback changes F1 by "
            f"{100 * (means['f1']['on'] / means['f1']['off'] - 1):+.2f}% and the delay by "
            f"{100 * (means['delay_s']['on'] / means['delay_s']['off'] - 1):+.1f}%.")
    return said
