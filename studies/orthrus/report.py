"""Study of Orthrus: embeddings and generations in one batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from hermes.study import Compared, Context, Plot, Point, Report, run_points

from .figures import compared, compared_points
from .plots import burst_plot, mix_plot, phase_plot
from .points import (
    ARRIVALS,
    CLIENTS,
    FCFS,
    IBS,
    MIXES,
    MODES,
    PROFILE,
    SAME_GPU,
    SPLIT,
    SYSTEMS,
    burst,
    extract,
    mix,
    model_mix,
    phases,
    single,
)
from .tables import (
    PAPER,
    PAPER_MODELS,
    burst_table,
    busy_table,
    cell_table,
    employed_table,
    fit_table,
    ibs_table,
    mix_table,
    model_table,
    overhead_table,
    phase_table,
    points_table,
    ratio_table,
    served,
)

__all__ = ["compare", "run", "simulate"]

DRAIN = SAME_GPU[0]
SHORT = {"horizon": "180 s", "measure.start": "60 s"}   # closed loops of the quick version


def run(context: Context) -> Report:
    """Run mixes, burst, phases, overhead and other models, under both readings of the overhead where that decides."""
    mode, quick = context["overhead"], context.quick
    mixes, modes = ((10, 50, 90), (mode,)) if quick else (MIXES, tuple(dict.fromkeys((*MODES, mode))))
    systems = [s for s in SYSTEMS if not (quick and s.endswith(("2:2", "3:1")))]
    clients = (1, 4, 32, 256) if quick else CLIENTS
    rows = simulate(context, _points(context, systems, mixes, modes, clients))
    in_time = [s for s in systems if s != DRAIN]
    tables = [
        fit_table(PROFILE), cell_table(rows, IBS), cell_table(rows, SPLIT), ratio_table(rows, mode),
        employed_table(rows, clients), mix_table(rows, systems, mixes, mode), phase_table(rows, systems, modes),
        busy_table(rows, systems, mode), ibs_table(rows, systems, modes), burst_table(rows, systems, mode),
        overhead_table(rows, clients), *([] if quick else [model_table(rows, mode)]), points_table(rows),
    ]
    plots = [
        Plot("orthrus-mix", f"Normalised throughput by mix, {mode} overhead; crosses: the paper.",
             mix_plot(rows, systems, mixes, mode)),
        Plot("orthrus-burst", "Latency of 1,000 generations and 1,000 embeddings at time 0.",
             burst_plot(rows, in_time, mode)),
        Plot("orthrus-phases", "Accelerators busy over the three phases: requests at the start of each, and Poisson.",
             phase_plot(rows, in_time, mode)),
    ]
    return Report(tables, plots, _findings(rows, mixes, mode, modes), compared=compared(rows, mode))


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions."""
    mode = context["overhead"]
    return compared(simulate(context, compared_points(_folder(context), mode, _options(context))), mode)


def simulate(context: Context, points: list[Point]) -> dict[str, dict[str, Any]]:
    """label -> figures of each point (see `extract`, and the summary's `measured`)."""
    if context.quick:
        points = [replace(p, settings={**p.settings, **SHORT}) if p.label.startswith(("mix", "model")) else p
                  for p in points]
    frame = run_points(context, "points", points, scenario="mix.yaml", extract=extract)
    return {str(row["case"]): {str(k): v for k, v in row.items()} for row in frame.to_dict("records")}


def _folder(context: Context) -> Path:
    return context.file("mix.yaml").parent


def _options(context: Context) -> dict[str, Any]:
    """Return the assumptions about engines, as options of `points.clients`."""
    step_ms = context["step_ms"]
    return {"max_num_seqs": context["max_num_seqs"], "max_num_batched_tokens": context["max_num_batched_tokens"],
            "rank": context["lora_rank"], "step_overhead": f"{step_ms} ms" if step_ms else ""}


def _points(context: Context, systems: list[str], mixes: tuple[int, ...], modes: tuple[str, ...],
            clients: tuple[int, ...]) -> list[Point]:
    """modes: Readings of the overhead for the burst and the phases."""
    folder, mode, options = _folder(context), context["overhead"], _options(context)
    cells = [(system, percent, reading) for reading in MODES for system in (SPLIT, IBS) for percent in PAPER]
    wanted = dict.fromkeys([*((system, percent, mode) for system in systems for percent in mixes), *cells])
    points = compared_points(folder, mode, options)
    points += [mix(folder, system, percent, mode=reading, **options) for system, percent, reading in wanted]
    for reading in modes:
        for system in systems:
            points += [burst(folder, system, mode=reading, **options),
                       *(phases(folder, arrivals, system, mode=reading, **options) for arrivals in ARRIVALS)]
    if not context.quick:
        points += [model_mix(folder, model, SPLIT, percent, mode=mode, **options)
                   for model, sums in PAPER_MODELS.items() for percent in sums]
    points += [single(folder, kind, n, plain=plain, mode=mode, **options) for kind in ("embed", "generate")
               for n in clients for plain in (True, False)]
    return list({point.label: point for point in points}.values())


def _findings(rows: dict[str, Any], mixes: tuple[int, ...], assumed: str, modes: tuple[str, ...]) -> list[str]:
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
    even = {s: served(rows[f"mix {s} 50 {assumed}"])[2] for s in SAME_GPU}
    found.append("Readings of SameGPU FCFS at 50%: " + "; ".join(
        f"{system.split(', ')[1]} {value:.2f}" for system, value in even.items()) + ".")
    for arrivals in ARRIVALS:
        for mode in modes:
            split, ibs = (rows[f"phases {arrivals} {s} {mode}"] for s in (SPLIT, IBS))
            found.append(f"Three phases, {arrivals}, {mode}: utilisation {split['utilisation']:.0%} with {SPLIT}, "
                         f"{ibs['utilisation']:.0%} with {IBS}.")
    for mode in modes:
        frame = pd.DataFrame([rows[f"burst {s} {mode}"] for s in (IBS, FCFS, SPLIT)], index=[IBS, FCFS, SPLIT])
        for kind in ("embed", "generate"):
            for name in ("p50", "p99"):
                value = frame[f"measured.served.{kind}.latency_s.{name}"]
                found.append(f"Burst, {mode}, {kind} {name}: IBS {value[IBS]:.2f} s, {value[IBS] / value[FCFS]:.2f} "
                             f"times FCFS's and {value[IBS] / value[SPLIT]:.2f} times {SPLIT}'s.")
    return found
