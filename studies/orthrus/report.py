"""Study of Orthrus: embeddings and generations in one batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from hermes.study import Context, Plot, Point, Report, Table, run_points

from .plots import burst_plot, mix_plot, phase_plot
from .points import CLIENTS, IBS, MIXES, SPLIT, SYSTEMS, burst, extract, mix, phases, single
from .tables import (
    MODES,
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

__all__ = ["run", "simulate"]

DRAIN, ALTERNATE, FCFS = "SameGPU FCFS, drain", "SameGPU FCFS, alternate", "Orthrus FCFS"
PROFILE = "mistral-7b-a100-40gb"
SHORT = {"horizon": "240 s", "measure.start": "60 s"}   # closed loops of the quick version


def run(context: Context) -> Report:
    """Run mixes, burst, phases, overhead, other models, and variants of the assumptions."""
    folder, mode, quick = context.file("mix.yaml").parent, context["overhead"], context.quick
    options = {"max_num_seqs": context["max_num_seqs"]}
    mixes = (10, 50, 90) if quick else tuple(sorted({*MIXES, *PAPER}))
    systems = [s for s in SYSTEMS if not (quick and s.endswith(("2:2", "3:1")))]
    clients = (1, 4, 32, 256) if quick else CLIENTS
    points = _points(folder, systems, mixes, clients, mode, options)
    variants, models = _variants(folder, mode, options), {} if quick else _models(folder, mode, options)
    points += [point for group in (() if quick else (variants, models)) for point in group.values()]
    if quick:
        points = [replace(p, settings={**p.settings, **SHORT}) if p.label.startswith("mix") else p for p in points]
    rows = simulate(context, points)
    in_time = [s for s in systems if s != DRAIN]
    tables = [
        fit_table(PROFILE), cell_table(rows, IBS), cell_table(rows, SPLIT), ratio_table(rows, mode),
        employed_table(rows, clients), mix_table(rows, systems, mixes, mode), burst_table(rows, systems, mode),
        phase_table(rows, systems, mode), overhead_table(rows, clients),
        *_variant_tables(rows, variants, models, mode), points_table(rows),
    ]
    plots = [
        Plot("orthrus-mix", f"Normalised throughput by mix, {mode} overhead; crosses: the paper.",
             mix_plot(rows, systems, mixes, mode)),
        Plot("orthrus-burst", "Latency of 1,000 generations and 1,000 embeddings at time 0.",
             burst_plot(rows, in_time)),
        Plot("orthrus-phases", "Accelerators busy over the three phases.", phase_plot(rows, in_time)),
    ]
    return Report(tables, plots, _findings(rows, mixes, mode))


def simulate(context: Context, points: list[Point]) -> dict[str, dict[str, Any]]:
    """label -> figures of each point (see `extract`, and the summary's `measured`)."""
    frame = run_points(context, "points", points, scenario="mix.yaml", extract=extract)
    return {str(row["case"]): {str(k): v for k, v in row.items()} for row in frame.to_dict("records")}


def _points(folder: Path, systems: list[str], mixes: tuple[int, ...], clients: tuple[int, ...], mode: str,
            options: dict[str, Any]) -> list[Point]:
    cells = [(system, percent, reading) for reading in MODES for system in (SPLIT, IBS) for percent in PAPER]
    wanted = dict.fromkeys([*((system, percent, mode) for system in systems for percent in mixes), *cells])
    points = [mix(folder, system, percent, mode=reading, **options) for system, percent, reading in wanted]
    options = options | {"mode": mode}
    points += [make(folder, system, **options) for make in (burst, phases) for system in systems]
    points += [single(folder, kind, n, plain=plain, **options) for kind in ("embed", "generate") for n in clients
               for plain in (True, False)]
    return points


def _variants(folder: Path, mode: str, options: dict[str, Any]) -> dict[tuple[str, int], Point]:
    """(what differs, percent) -> Orthrus IBS with it."""
    changes: dict[str, dict[str, Any]] = {
        "512 tokens a step": {"max_num_batched_tokens": 512}, "128 places": {"max_num_seqs": 128},
        "LoRA rank 64": {"rank": 64}, "engine 2 ms a step": {"step_overhead": "2 ms"},
    }
    return {(name, percent): mix(folder, IBS, percent, label=f"variant {name} {percent}", mode=mode,
                                 **options | change)
            for name, change in changes.items() for percent in PAPER}


def _models(folder: Path, mode: str, options: dict[str, Any]) -> dict[tuple[str, int], Point]:
    """(model and system, percent) -> the same on other models."""
    return {
        (f"{model} {system}", percent): mix(
            folder, system, percent, label=f"model {model} {system} {percent}", model=model, rank=rank, mode=mode,
            **options)
        for model, rank in (("qwen2-7b", 32), ("llama-3.1-8b", 64)) for system in (SPLIT, IBS) for percent in PAPER
    }


def _variant_tables(
    rows: dict[str, Any], variants: dict[Any, Any], models: dict[Any, Any], mode: str,
) -> list[Table]:
    if not models:
        return []
    for percent in PAPER:
        rows[f"as above {percent}"] = rows[f"mix {IBS} {percent} {mode}"]
    names = {"as above": "as above"} | {name: f"variant {name}" for name, _ in variants}
    tables = [variant_table("assumptions", f"{IBS} under other assumptions ({mode} overhead)", rows, names,
                            "The overheads are those of the base case, not fitted anew.")]
    for percent in PAPER:
        del rows[f"as above {percent}"]
    names = {name: f"model {name}" for name, _ in models}
    tables.append(variant_table("models", "Other models: Qwen2-7B (LoRA rank 32), Llama-3.1-8B (rank 64)", rows, names,
                                "Overheads per request as fitted for Mistral-7B: the stack is the same."))
    return tables


def _findings(rows: dict[str, Any], mixes: tuple[int, ...], assumed: str) -> list[str]:
    found = []
    for mode in MODES:
        errors = {
            (percent, column): mine / theirs - 1 for percent, paper in PAPER.items()
            for column, mine, theirs in zip(("embed/s", "gen/s", "normalised"),
                                            served(rows[f"mix {IBS} {percent} {mode}"]), paper[IBS], strict=True)
        }
        inside = sum(abs(error) <= 0.15 for error in errors.values())
        outside = ", ".join(f"{p}% {c} {e:+.1%}" for (p, c), e in errors.items() if abs(e) > 0.15)
        found.append(f"{mode} overhead: {inside} of {len(errors)} Orthrus cells within 15% of the paper"
                     f"{f'; outside: {outside}' if outside else ''}.")
    best = {p: max((s for s in SYSTEMS if f"mix {s} {p} {assumed}" in rows),
                   key=lambda s: served(rows[f"mix {s} {p} {assumed}"])[2]) for p in mixes}
    found.append("Highest normalised throughput: " + "; ".join(f"{p}%: {s}" for p, s in best.items()) + ".")
    drain, alternate = (served(rows[f"mix {s} 50 {assumed}"])[2] for s in (DRAIN, ALTERNATE))
    found.append(f"The two readings of SameGPU FCFS differ by a factor of {alternate / drain:.0f} at 50%.")
    frame = pd.DataFrame([rows[f"burst {s}"] for s in (IBS, FCFS, SPLIT)], index=[IBS, FCFS, SPLIT])
    for kind in ("embed", "generate"):
        for name in ("p50", "p99"):
            value = frame[f"measured.served.{kind}.latency_s.{name}"]
            found.append(f"Burst, {kind} {name}: IBS {value[IBS]:.2f} s, {value[IBS] / value[FCFS]:.2f} times FCFS's "
                         f"and {value[IBS] / value[SPLIT]:.2f} times {SPLIT}'s.")
    return found
