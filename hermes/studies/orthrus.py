"""The study `orthrus`: embeddings and generations in one batch (docs/studies/orthrus.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hermes.studies.base import STUDIES, Context
from hermes.studies.orthrus_plots import burst_plot, mix_plot, phase_plot
from hermes.studies.orthrus_points import (
    CLIENTS,
    IBS,
    MIXES,
    SPLIT,
    SYSTEMS,
    Point,
    burst,
    mix,
    phases,
    run_points,
    single,
)
from hermes.studies.orthrus_tables import (
    PAPER,
    burst_table,
    cell_table,
    employed_table,
    fit_table,
    mix_table,
    overhead_table,
    phase_table,
    points_table,
    ratio_table,
    served,
    variant_table,
)
from hermes.studies.report import Plot, Report, Table

__all__ = ["Orthrus"]

DRAIN, ALTERNATE, FCFS = "SameGPU FCFS, drain", "SameGPU FCFS, alternate", "Orthrus FCFS"
PROFILE = "mistral-7b-a100-40gb"
SHORT = {"horizon": "240 s", "measure.start": "60 s"}   # closed loops of the quick version

ASSUMPTIONS = [
    "Four A100 40 GB, Mistral-7B in bf16 (analytical step times, kernels only: hw_profiles/roofline), one engine each, "
    "requests round robin. Embedding: 128 tokens; generation: 128 + 512 tokens; LoRA of rank 16 on all projections, "
    "unmerged but on SplitGPU's embedding GPUs.",
    "512 clients in a closed loop that draw the kind of each request, wait for the answer and ask again at once; 180 s "
    "of warm-up, 180 s measured. Rates are those of stages that ended in the window; normalised = 1.7 x generations/s "
    "+ embeddings/s.",
    "The serving stack takes a time per request, one thread: serial adds it to the GPU's time, overlapped is a queue "
    "of its own in front of the GPU. Both are fitted to the two saturated rates of one GPU and to nothing else.",
    "An engine has 256 places and 2,048 tokens a step (vLLM's defaults). IBS: total slots, those that run included, in "
    "proportion to who waits.",
    "SameGPU FCFS, drain: strictly in order of arrival, the batch of one kind ends before the other kind starts; "
    "alternate: all run, every step is of one kind, and kinds take turns.",
]


@STUDIES.register("orthrus")
class Orthrus:
    """See the module's docstring and `hermes.studies.base.Study`."""

    title = "Orthrus: embeddings and generations in one batch"

    def run(self, context: Context) -> Report:
        """Mixes, burst, phases, overhead, other models, and what the assumptions do."""
        folder = context.file("mix.yaml").parent
        quick = context.quick
        mixes = (10, 50, 90) if quick else tuple(sorted({*MIXES, *PAPER}))
        systems = [s for s in SYSTEMS if not (quick and s.endswith(("2:2", "3:1")))]
        clients = (1, 4, 32, 256) if quick else CLIENTS
        points = _points(folder, systems, mixes, clients)
        variants, models = _variants(folder), {} if quick else _models(folder)
        points += [point for group in (() if quick else (variants, models)) for point in group.values()]
        context.say(f"{len(points)} points")
        if quick:
            points = [Point(p.label, p.settings | SHORT) if p.label.startswith("mix") else p for p in points]
        rows = run_points(points, context, "points")
        in_time = [s for s in systems if s != DRAIN]
        tables = [
            fit_table(PROFILE), cell_table(rows, IBS), cell_table(rows, SPLIT), ratio_table(rows),
            employed_table(rows, clients), mix_table(rows, systems, mixes), burst_table(rows, systems),
            phase_table(rows, systems), overhead_table(rows, clients), *_variant_tables(rows, variants, models),
            points_table(rows),
        ]
        plots = [
            Plot("orthrus-mix", "Normalised throughput by mix, serial overhead; crosses: the paper.",
                 mix_plot(rows, systems, mixes)),
            Plot("orthrus-burst", "Latency of 1,000 generations and 1,000 embeddings at time 0.",
                 burst_plot(rows, in_time)),
            Plot("orthrus-phases", "Accelerators busy over the three phases.", phase_plot(rows, in_time)),
        ]
        return Report(self.title, ASSUMPTIONS, tables, plots, _findings(rows, mixes))


def _points(folder: Path, systems: list[str], mixes: tuple[int, ...], clients: tuple[int, ...]) -> list[Point]:
    points = [mix(folder, system, percent) for system in systems for percent in mixes]
    points += [mix(folder, system, percent, mode="overlapped") for system in (SPLIT, IBS) for percent in PAPER]
    points += [make(folder, system) for make in (burst, phases) for system in systems]
    points += [single(folder, kind, n, plain=plain) for kind in ("embed", "generate") for n in clients
               for plain in (True, False)]
    return points


def _variants(folder: Path) -> dict[tuple[str, int], Point]:
    """(what differs, percent) -> Orthrus IBS with it."""
    changes: dict[str, dict[str, Any]] = {
        "512 tokens a step": {"max_num_batched_tokens": 512}, "128 places": {"max_num_seqs": 128},
        "LoRA rank 64": {"rank": 64}, "engine 2 ms a step": {"step_overhead": "2 ms"},
    }
    return {(name, percent): mix(folder, IBS, percent, label=f"variant {name} {percent}", **change)
            for name, change in changes.items() for percent in PAPER}


def _models(folder: Path) -> dict[tuple[str, int], Point]:
    """(model and system, percent) -> the same on other models."""
    return {
        (f"{model} {system}", percent): mix(
            folder, system, percent, label=f"model {model} {system} {percent}", model=model, rank=rank)
        for model, rank in (("qwen2-7b", 32), ("llama-3.1-8b", 64)) for system in (SPLIT, IBS) for percent in PAPER
    }


def _variant_tables(rows: dict[str, Any], variants: dict[Any, Any], models: dict[Any, Any]) -> list[Table]:
    if not models:
        return []
    for percent in PAPER:
        rows[f"as above {percent}"] = rows[f"mix {IBS} {percent} serial"]
    names = {"as above": "as above"} | {name: f"variant {name}" for name, _ in variants}
    tables = [variant_table("assumptions", f"{IBS} under other assumptions (serial overhead)", rows, names,
                            "The overheads are those of the base case, not fitted anew.")]
    for percent in PAPER:
        del rows[f"as above {percent}"]
    names = {name: f"model {name}" for name, _ in models}
    tables.append(variant_table("models", "Other models: Qwen2-7B (LoRA rank 32), Llama-3.1-8B (rank 64)", rows, names,
                                "Overheads per request as fitted for Mistral-7B: the stack is the same."))
    return tables


def _findings(rows: dict[str, Any], mixes: tuple[int, ...]) -> list[str]:
    found = []
    for mode in ("serial", "overlapped"):
        errors = {
            (percent, column): mine / theirs - 1 for percent, paper in PAPER.items()
            for column, mine, theirs in zip(("embed/s", "gen/s", "normalised"),
                                            served(rows[f"mix {IBS} {percent} {mode}"]), paper[IBS], strict=True)
        }
        inside = sum(abs(error) <= 0.15 for error in errors.values())
        outside = ", ".join(f"{p}% {c} {e:+.1%}" for (p, c), e in errors.items() if abs(e) > 0.15)
        found.append(f"{mode} overhead: {inside} of {len(errors)} Orthrus cells within 15% of the paper"
                     f"{f'; outside: {outside}' if outside else ''}.")
    best = {p: max((s for s in SYSTEMS if f"mix {s} {p} serial" in rows),
                   key=lambda s: served(rows[f"mix {s} {p} serial"])[2]) for p in mixes}
    found.append("Highest normalised throughput: " + "; ".join(f"{p}%: {s}" for p, s in best.items()) + ".")
    drain, alternate = (served(rows[f"mix {s} 50 serial"])[2] for s in (DRAIN, ALTERNATE))
    found.append(f"The two readings of SameGPU FCFS differ by a factor of {alternate / drain:.0f} at 50%.")
    frame = pd.DataFrame([rows[f"burst {s}"] for s in (IBS, FCFS, SPLIT)], index=[IBS, FCFS, SPLIT])
    for kind in ("embed", "generate"):
        for name in ("p50", "p99"):
            value = frame[f"measured.served.{kind}.latency_s.{name}"]
            found.append(f"Burst, {kind} {name}: IBS {value[IBS]:.2f} s, {value[IBS] / value[FCFS]:.2f} times FCFS's "
                         f"and {value[IBS] / value[SPLIT]:.2f} times {SPLIT}'s.")
    return found
