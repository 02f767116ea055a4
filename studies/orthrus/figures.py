"""Figures of the paper beside the study's: the points that they need, and each figure with its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hermes.clients.overhead import load_overhead
from hermes.study import Compared, Point

from .points import ARRIVALS, FCFS, IBS, PROFILE, SAME_GPU, SPLIT, burst, mix, model_mix, phases
from .tables import PAPER, PAPER_MODELS, Rows, phases_s, ratio, served

__all__ = ["DIP", "compared", "compared_points"]

DIP, BESIDE = (40, 50, 60), (10, 90)      # percent embeddings: where the paper's SameGPU FCFS dips, and either side
SATURATED = (21.9, 12.9)                  # embeddings/s and generations/s of one GPU, in the paper
PHASES = {SPLIT: 38.0, IBS: 79.0}         # mean utilisation over the three phases, in the paper, %


def compared_points(folder: Path, mode: str, options: dict[str, Any]) -> list[Point]:
    """Return the points that `compared` needs."""
    cells = {(system, percent): None for system in (SPLIT, IBS) for percent in PAPER}
    cells |= {(system, percent): None for system in SAME_GPU for percent in (*DIP, *BESIDE)}
    return [
        *(mix(folder, system, percent, mode=mode, **options) for system, percent in cells),
        *(model_mix(folder, model, IBS, percent, mode=mode, **options)
          for model, sums in PAPER_MODELS.items() for percent in sums),
        *(burst(folder, system, mode=mode, **options) for system in (SPLIT, *SAME_GPU, FCFS, IBS)),
        *(phases(folder, arrivals, system, mode=mode, **options) for arrivals in ARRIVALS for system in (SPLIT, IBS)),
    ]


def compared(rows: Rows, mode: str) -> list[Compared]:
    """Return every figure of the paper beside the study's under one reading of the overhead."""
    return [*_mistral(rows, mode), *_models(rows, mode), *_phases(rows, mode), *_burst(rows, mode), *_dips(rows, mode)]


def _mistral(rows: Rows, mode: str) -> list[Compared]:
    sums, gains = [], []
    for percent, paper in PAPER.items():
        ours = {system: served(rows[f"mix {system} {percent} {mode}"]) for system in (SPLIT, IBS)}
        theirs = paper[IBS][2]
        why = f"Predicted from two rates of one saturated GPU: {ours[IBS][2] / theirs - 1:+.1%}."
        if percent == 90:
            why = (f"{why[:-1]}; the paper's SplitGPU is low there as well, with "
                   f"{paper[SPLIT][0] / SATURATED[0]:.0%} of what its saturated embedding GPU does.")
        sums.append(Compared(f"Orthrus at {ratio(percent)}, normalised", theirs, ours[IBS][2], why, 2))
        used = [[rate / (gpus * most) for rate, gpus, most in zip(cell[:2], (1, 3), SATURATED, strict=True)]
                for cell in (paper[SPLIT], ours[SPLIT])]
        gains.append(Compared(
            f"Orthrus over SplitGPU 1:3 at {ratio(percent)}", theirs / paper[SPLIT][2],
            ours[IBS][2] / ours[SPLIT][2],
            "SplitGPU's embedding and generation GPUs serve {:.0%} and {:.0%} of their saturated rates in the paper, "
            "{:.0%} and {:.0%} here.".format(*used[0], *used[1]), 2))
    return sums + gains


def _models(rows: Rows, mode: str) -> list[Compared]:
    found = []
    for model, sums in PAPER_MODELS.items():
        for percent, theirs in sums.items():
            ours = served(rows[f"model {model} {IBS} {percent} {mode}"])[2]
            found.append(Compared(f"{model}, Orthrus at {ratio(percent)}, normalised", theirs, ours,
                                  f"Predicted with the overheads of Mistral-7B's stack: {ours / theirs - 1:+.1%}.", 2))
    return found


def _phases(rows: Rows, mode: str) -> list[Compared]:
    found = []
    for arrivals in ARRIVALS:
        ours = {system: rows[f"phases {arrivals} {system} {mode}"] for system in PHASES}
        for system, theirs in PHASES.items():
            row = ours[system]
            times = ", ".join(f"{row[f'phase.{i}']:.0f}" for i in range(3))
            found.append(Compared(
                f"phases {arrivals}: {system}, utilisation %", theirs, 100 * row["utilisation"],
                f"The phases take {times} s; with the time in which the serving stack holds a GPU up "
                f"{row['occupied']:.0%}.", 0))
        split, ibs = (phases_s(ours[system]) for system in (SPLIT, IBS))
        why = (f"the last phase takes SplitGPU's one GPU for embeddings {ours[SPLIT]['phase.2']:.0f} s"
               if arrivals == "at once" else "requests arrive over all 60 s of a phase, so no system ends it sooner")
        found.append(Compared(
            f"phases {arrivals}: Orthrus IBS sooner, %", 43.0, 100 * (1 - ibs / split),
            f"SplitGPU 1:3 takes {split:.0f} s for the three phases together, IBS {ibs:.0f} s; {why}.", 0))
    return found


def _burst(rows: Rows, mode: str) -> list[Compared]:
    def p99(kind: str, system: str) -> float:
        return float(rows[f"burst {system} {mode}"][f"measured.served.{kind}.latency_s.p99"])

    def below(kind: str, system: str) -> float:
        return 100 * (1 - p99(kind, IBS) / p99(kind, system))

    stack_s = 0.0 if mode == "none" else 250 * getattr(load_overhead(PROFILE), mode).embed
    mixed = [below("embed", system) for system in SAME_GPU[1:]]
    return [
        Compared("burst: generation p99, IBS below SplitGPU 1:3, %", 9.0, below("generate", SPLIT),
                 f"{p99('generate', IBS):.1f} and {p99('generate', SPLIT):.1f} s; a GPU of IBS has 250 generations "
                 "instead of 333, but shares its time with 250 embeddings.", 0),
        Compared("burst: embedding p99, IBS below Orthrus FCFS, %", 16.0, below("embed", FCFS),
                 f"{p99('embed', IBS):.1f} and {p99('embed', FCFS):.1f} s, of which the stack's time for the 250 "
                 f"embeddings of a GPU is {stack_s:.1f} s under any scheduler.", 0),
        Compared("burst: embedding p99, IBS below SameGPU alternate and oldest, %", 16.0, (min(mixed), max(mixed)),
                 f"{p99('embed', SAME_GPU[1]):.1f} and {p99('embed', SAME_GPU[2]):.1f} s: steps of embeddings alone "
                 "have no decodes to wait for.", 0),
        Compared("burst: embedding p99, IBS below SameGPU drain, %", 16.0, below("embed", SAME_GPU[0]),
                 "Embeddings wait for the end of all generations.", 0),
    ]


def _dips(rows: Rows, mode: str) -> list[Compared]:
    causes = {
        "drain": "a batch drains at each change of kind, and kinds change most often at an even mix",
        "alternate": "decodes run at least in every second step, whatever the mix",
        "oldest": "decodes pause for steps of embeddings only, and each such step starts all embeddings in a row",
    }
    ibs = served(rows[f"mix {IBS} 50 {mode}"])[2]
    found = []
    for system in SAME_GPU:
        sums = {percent: served(rows[f"mix {system} {percent} {mode}"])[2] for percent in (*DIP, *BESIDE)}
        middle, beside = (np.mean([sums[percent] for percent in mixes]) for mixes in (DIP, BESIDE))
        reading = system.split(", ")[1]
        found.append(Compared(f"SameGPU FCFS, {reading}: sum at 40-60% over that at 10 and 90%", "a dip",
                              float(middle / beside),
                              f"At 50% the sum is {sums[50] / ibs:.0%} of Orthrus IBS's; {causes[reading]}.", 2))
    return found
