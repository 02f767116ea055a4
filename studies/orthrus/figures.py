"""Figures of the paper beside the study's: the points that they need, and each figure with its cause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hermes.clients.overhead import load_overhead
from hermes.study import Compared, Point

from .needed import Cell, Needed
from .points import (
    ARRIVALS,
    FCFS,
    IBS,
    PROFILE,
    SAME_GPU,
    SPLIT,
    SPLITS,
    USERS,
    burst,
    mix,
    model_mix,
    phases,
    single,
)
from .tables import PAPER, PAPER_MODELS, Rows, below, gain, latency, overhead_cost, phases_s, ratio, served

__all__ = ["DIP", "EMBED_P99", "compared", "compared_points", "cost"]

DIP, BESIDE = (40, 50, 60), (10, 90)      # percent embeddings: where the paper's SameGPU FCFS dips, and either side
SATURATED = {"embed": 21.9, "generate": 12.9}      # requests/s of one GPU, in the paper
PHASES = {SPLIT: 38.0, IBS: 79.0}         # mean utilisation over the three phases, in the paper, %
GAINS = (1.28, 4.52)                      # of Orthrus over SplitGPU, in the paper
EMBED_P99 = 16.0                          # percent by which IBS's is below other schedulers' in the paper's burst
SLOWER = 1.0                              # percent from which a latency is another
OUTPUT = 512                              # tokens of a generation
SMALL = 5.0                               # percent that this study calls a small cost
WORDS = {"embed": "embedding", "generate": "generation"}
RATES = ("embeddings/s", "generations/s", "normalised")
TABLE, MODELS_SAID, BURST, THREE, SAME = (
    "throughput by mix, Mistral-7B", "throughput by mix, other models", "burst of 1,000 and 1,000", "three phases",
    "SameGPU FCFS by mix")


def compared_points(folder: Path, mode: str, options: dict[str, Any]) -> list[Point]:
    """Return the points that `compared` needs."""
    cells = {(system, percent): None for system in (*SPLITS, IBS) for percent in PAPER}
    cells |= {(system, percent): None for system in SAME_GPU for percent in (*DIP, *BESIDE)}
    return [
        *(single(folder, kind, USERS, plain=True, mode=mode, **options) for kind in SATURATED),
        *(mix(folder, system, percent, mode=mode, **options) for system, percent in (*cells, (FCFS, 50))),
        *(model_mix(folder, model, system, percent, mode=mode, **options)
          for model, sums in PAPER_MODELS.items() for percent in sums for system in (SPLIT, IBS)),
        *(burst(folder, system, mode=mode, **options) for system in (SPLIT, *SAME_GPU, FCFS, IBS)),
        *(phases(folder, arrivals, system, mode=mode, **options) for arrivals in ARRIVALS for system in (SPLIT, IBS)),
    ]


def compared(rows: Rows, mode: str, needed: Mapping[Cell, Needed] | None = None) -> list[Compared]:
    """Return every figure of the paper beside the study's under one reading of the overhead. needed: the overhead
    that gives the paper's sums, where it is known."""
    return [*_saturated(rows, mode), *_mistral(rows, mode), *_models(rows, mode, needed or {}), *_phases(rows, mode),
            *_burst(rows, mode), *_closed_loop(rows, mode), *_dips(rows, mode)]


def _saturated(rows: Rows, mode: str) -> list[Compared]:
    why = "Without any overhead." if mode == "none" else "The overheads are fitted to it, with kernel times alone."
    embed, generate = (rows[f"single {kind} {USERS} plain"] for kind in SATURATED)
    ours = (served(embed)[0], float(generate["measured.tokens_per_s"]) / OUTPUT)   # tokens: 256 answers end in one wave
    return [Compared(f"one saturated GPU, {name}", theirs, here, why, 2, where="set-up",
                     qualifier="" if mode == "none" else "fitted")
            for name, theirs, here in zip(RATES, SATURATED.values(), ours, strict=False)]


def _mistral(rows: Rows, mode: str) -> list[Compared]:
    cells, gains = [], []
    for percent, paper in PAPER.items():
        ours = {system: served(rows[f"mix {system} {percent} {mode}"]) for system in (*SPLITS, IBS)}
        used = {system: _used(ours[system], gpus) for gpus, system in enumerate(SPLITS, 1)}
        both = f"{_text(_used(paper[SPLIT], 1))} in the paper, " + "{:.0%} and {:.0%} here.".format(*used[SPLIT])
        for system in (IBS, SPLIT):
            for name, theirs, here in zip(RATES, paper[system], ours[system], strict=True):
                why = f"Predicted from two rates of one saturated GPU: {here / theirs - 1:+.1%}."
                if system == SPLIT:
                    why = both
                cells.append(Compared(f"{system} at {ratio(percent)}, {name}", theirs, here, why, 2, where=TABLE))
        gains.append(Compared(
            f"Orthrus over {SPLIT} at {ratio(percent)}", paper[IBS][2] / paper[SPLIT][2],
            gain(rows, SPLIT, percent, mode), both, 2, where=TABLE, neutral=1))
        for system in SPLITS[1:]:
            gains.append(Compared(
                f"Orthrus over {system} at {ratio(percent)}", None, gain(rows, system, percent, mode),
                f"{_text(used[system])}.", 2, where="abstract", neutral=1))
    every = [gain(rows, system, percent, mode) for system in SPLITS for percent in PAPER]
    lost = sum(one < 1 for one in every)
    return [*cells, *gains, Compared(
        "Orthrus over SplitGPU, lowest and highest of three splits and mixes", GAINS, (min(every), max(every)),
        f"Orthrus is behind in {lost} of {len(every)} cells.", 2, where="abstract", neutral=1, cases=tuple(every))]


def _used(rates: tuple[float, float, float], embed_gpus: int) -> tuple[float, float]:
    """Return the shares of their saturated rates that SplitGPU's GPUs for embeddings and generations serve."""
    return (rates[0] / (embed_gpus * SATURATED["embed"]), rates[1] / ((4 - embed_gpus) * SATURATED["generate"]))


def _text(used: tuple[float, float]) -> str:
    return (f"SplitGPU's GPUs for embeddings and generations serve {used[0]:.0%} and {used[1]:.0%} of their saturated "
            "rates")


def _models(rows: Rows, mode: str, needed: Mapping[Cell, Needed]) -> list[Compared]:
    found = []
    for model, sums in PAPER_MODELS.items():
        for percent, paper in sums.items():
            ours = {system: served(rows[f"model {model} {system} {percent} {mode}"]) for system in paper}
            more = ""
            if (model, percent) in needed:
                factor, without = needed[model, percent]
                more = (f"; the paper's sum needs {factor:.2f} times these" if factor is not None else
                        f"; without any overhead the sum is {without:.2f}")
            found += [
                Compared(f"{model}, {system} at {ratio(percent)}, {name}", theirs, here,
                         f"With the overheads of Mistral-7B's stack: {here / theirs - 1:+.1%}"
                         f"{more if system == IBS and name == RATES[-1] else ''}.", 2, where=MODELS_SAID)
                for system in (IBS, SPLIT)
                for name, theirs, here in zip(RATES, paper[system], ours[system], strict=True)]
            gains = [ours[IBS][2] / ours[SPLIT][2], paper[IBS][2] / paper[SPLIT][2]]
            found.append(Compared(f"{model}, Orthrus over {SPLIT} at {ratio(percent)}", gains[1], gains[0],
                                  f"{_text(_used(ours[SPLIT], 1))}, as Mistral-7B's.", 2, where=MODELS_SAID, neutral=1))
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
                f"{row['occupied']:.0%}.", 0, where=THREE))
        split, ibs = (phases_s(ours[system]) for system in (SPLIT, IBS))
        why = (f"the last phase takes SplitGPU's one GPU for embeddings {ours[SPLIT]['phase.2']:.0f} s"
               if arrivals == "at once" else "requests arrive over all 60 s of a phase, so no system ends it sooner")
        found.append(Compared(
            f"phases {arrivals}: Orthrus IBS sooner, %", 43.0, 100 * (1 - ibs / split),
            f"SplitGPU 1:3 takes {split:.0f} s for the three phases together, IBS {ibs:.0f} s; {why}.", 0, where=THREE,
            neutral=0))
    return found


def _burst(rows: Rows, mode: str) -> list[Compared]:
    label = f"burst {{}} {mode}"
    stack_s = 0.0 if mode == "none" else 1000 * getattr(load_overhead(PROFILE), mode).embed

    def row(kind: str, name: str, system: str, paper: float | str | None) -> Compared:
        ibs, theirs = (latency(rows[label.format(one)], kind, name) for one in (IBS, system))
        why = f"{ibs:.1f} and {theirs:.1f} s"
        if kind == "embed" and system == SPLIT:
            why += (f"; the stack's time for the 1,000 embeddings of SplitGPU's one GPU is {stack_s:.1f} s, for the "
                    f"250 of each of Orthrus's {stack_s / 4:.1f} s")
            if paper is not None:
                why += f"; the paper's {EMBED_P99:.0f}% is against other schedulers"
        here = below(rows, label, kind, name, system)
        slower = here < -SLOWER if isinstance(paper, str) else None
        return Compared(f"burst: {WORDS[kind]} {name}, IBS below {system}, %", paper, here, f"{why}.", 0, where=BURST,
                        neutral=0, agrees=slower, qualifier="reversed" if slower is False and here > SLOWER else "")

    return [
        row("generate", "p99", SPLIT, 9.0),
        row("embed", "p99", SPLIT, "slower, within 16 ms"),
        *(row("embed", "p99", system, EMBED_P99) for system in (FCFS, *SAME_GPU[1:], SAME_GPU[0])),
        *(row(kind, "p50", SPLIT, None) for kind in WORDS),
        *_schedulers(rows, label, "burst", (("embed", "p50"), ("generate", "p50"), ("generate", "p99"))),
    ]


def _closed_loop(rows: Rows, mode: str) -> list[Compared]:
    """Latencies at an even mix, of which the paper has none."""
    label = f"mix {{}} 50 {mode}"
    found = []
    for kind in WORDS:
        for name in ("p50", "p99"):
            ibs, split = (latency(rows[label.format(one)], kind, name) for one in (IBS, SPLIT))
            found.append(Compared(f"closed loop 5:5: {WORDS[kind]} {name}, IBS below {SPLIT}, %", None,
                                  below(rows, label, kind, name, SPLIT), f"{ibs:.1f} and {split:.1f} s.", 0, where="-"))
    return [*found, *_schedulers(rows, label, "closed loop 5:5", [(k, name) for k in WORDS for name in ("p50", "p99")])]


def _schedulers(rows: Rows, label: str, load: str, figures: Any) -> list[Compared]:
    """How far IBS is below the other schedulers that do not drain batches, lowest and highest."""
    found = []
    for kind, name in figures:
        all_of_them = [below(rows, label, kind, name, system) for system in (FCFS, *SAME_GPU[1:])]
        found.append(Compared(f"{load}: {WORDS[kind]} {name}, IBS below FCFS, alternate and oldest, %", None,
                              (min(all_of_them), max(all_of_them)), "", 0, where="-"))
    return found


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
        middle, beside = ([sums[percent] for percent in mixes] for mixes in (DIP, BESIDE))
        reading = system.split(", ")[1]
        found.append(Compared(f"SameGPU FCFS, {reading}: sum at 40-60% over that at 10 and 90%", "a dip",
                              float(np.mean(middle) / np.mean(beside)),
                              f"At 50% the sum is {sums[50] / ibs:.0%} of Orthrus IBS's; {causes[reading]}.", 2,
                              where=SAME, agrees=max(middle) < min(beside)))
    return found


def cost(rows: Rows, clients: tuple[int, ...]) -> Compared:
    """The cost of an engine for both kinds where only one is asked for."""
    every = [overhead_cost(rows, kind, n) for kind in SATURATED for n in clients]
    return Compared("one GPU, one kind: what an engine for both costs, %", "small", (min(every), max(every)),
                    f"1 to {max(clients)} clients, embeddings and generations; small: at most {SMALL:.0f}%.", 1,
                    where="overhead by clients", agrees=max(every) <= SMALL)
