"""Study of Orthrus: embeddings and generations in one batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes.study import Compared, Context, Plot, Point, Report, run_points

from ..common.seeds import with_spread
from .figures import EMBED_P99, compared, compared_points, cost
from .needed import Cell, Needed, needed_table
from .plots import burst_plot, mix_plot, phase_plot
from .points import (
    ARRIVALS,
    CLIENTS,
    IBS,
    MIXES,
    MODES,
    PROFILE,
    SAME_GPU,
    SPLIT,
    SPLITS,
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
    Rows,
    below,
    busy_table,
    cell_table,
    employed_table,
    fit_table,
    gain,
    gain_table,
    latency,
    latency_table,
    mix_table,
    model_table,
    overhead_table,
    phase_table,
    points_table,
    ratio,
    served,
)

__all__ = ["compare", "run", "simulate"]

DRAIN = SAME_GPU[0]
SEEDS = (1, 2, 3, 4)   # besides the scenario's own, for intervals; a burst is the same at every seed


def run(context: Context) -> Report:
    """Run mixes, burst, phases, overhead and other models, under both readings of the overhead where that decides."""
    mode, quick = context["overhead"], context.quick
    mixes, modes = ((10, 50, 90), (mode,)) if quick else (MIXES, tuple(dict.fromkeys((*MODES, mode))))
    systems, clients = list(SYSTEMS), (1, 4, 32, 256) if quick else CLIENTS
    folder, options = _folder(context), _options(context)
    points = _points(context, systems, mixes, modes, clients)
    rows = simulate(context, points)
    seeded = [] if quick else _seeds(context, rows, [
        *compared_points(folder, mode, options),
        *(mix(folder, system, percent, mode=mode, **options) for system in (*SPLITS, IBS) for percent in mixes)])
    needed, needs = needed_table(lambda wanted: simulate(context, wanted, "needed"), folder,
                                   "serial" if mode == "none" else mode, options)
    in_time = [s for s in systems if s != DRAIN]
    tables = [
        fit_table(PROFILE), cell_table(rows, IBS), cell_table(rows, SPLIT), gain_table(rows, seeded, mixes, mode),
        employed_table(rows, clients), needed, mix_table(rows, systems, mixes, mode),
        latency_table(rows, systems, tuple(PAPER), mode, modes), phase_table(rows, systems, modes),
        busy_table(rows, systems, mode), overhead_table(rows, clients), *([] if quick else [model_table(rows, mode)]),
        points_table(rows),
    ]
    plots = [
        Plot("orthrus-mix", f"Normalised throughput by mix, {mode} overhead; crosses: the paper.",
             mix_plot(rows, systems, mixes, mode)),
        Plot("orthrus-burst", "Latency of 1,000 generations and 1,000 embeddings at time 0.",
             burst_plot(rows, in_time, mode)),
        Plot("orthrus-phases", "Accelerators busy over the three phases: requests at the start of each, and Poisson.",
             phase_plot(rows, in_time, mode)),
    ]
    figures = [*with_spread(compared(rows, mode, needs), [compared(other, mode) for other in seeded]),
               cost(rows, clients)]
    findings = _findings(rows, seeded, mixes, mode, modes, needs)
    return Report(tables, plots, findings, compared=figures)


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions."""
    mode = context["overhead"]
    return compared(simulate(context, compared_points(_folder(context), mode, _options(context))), mode)


def simulate(context: Context, points: list[Point], name: str = "points") -> Rows:
    """label -> figures of each point (see `extract`, and the summary's `measured`). name: of the folder."""
    frame = run_points(context, name, points, scenario="mix.yaml", extract=extract)
    return {str(row["case"]): {str(k): v for k, v in row.items()} for row in frame.to_dict("records")}


def _seeds(context: Context, rows: Rows, points: list[Point]) -> list[Rows]:
    """Return `rows` at each of the other seeds; points: those that a seed changes, and others."""
    drawn = {point.label: point for point in points if not point.label.startswith(("burst", "single"))}.values()
    frame = run_points(context, "seeds", [replace(point, seed=seed) for seed in SEEDS for point in drawn],
                       scenario="mix.yaml", extract=extract)
    found = [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]
    return [rows | {str(row["case"]): row for row in found[i * len(drawn):(i + 1) * len(drawn)]}
            for i in range(len(SEEDS))]


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


def _findings(rows: Rows, seeded: list[Rows], mixes: tuple[int, ...], assumed: str, modes: tuple[str, ...],
              needed: dict[Cell, Needed]) -> list[str]:
    found = [_splits(rows, seeded, mixes, assumed), _embeddings(rows, assumed), _needed(needed)]
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
    best = []
    for percent in mixes:
        sums = {system: served(rows[f"mix {system} {percent} {assumed}"])[2] for system in SYSTEMS}
        first = IBS if sums[IBS] > 0.999 * max(sums.values()) else max(sums, key=lambda system: sums[system])
        less = "" if first == IBS else f" (IBS {1 - sums[IBS] / sums[first]:.1%} below)"
        best.append(f"{percent}%: {first}{less}")
    found.append(f"Highest normalised throughput: {'; '.join(best)}.")
    even = {s: served(rows[f"mix {s} 50 {assumed}"])[2] for s in SAME_GPU}
    found.append("Readings of SameGPU FCFS at 50%: " + "; ".join(
        f"{system.split(', ')[1]} {value:.2f}" for system, value in even.items()) + ".")
    for arrivals in ARRIVALS:
        for mode in modes:
            split, ibs = (rows[f"phases {arrivals} {s} {mode}"] for s in (SPLIT, IBS))
            found.append(f"Three phases, {arrivals}, {mode}: utilisation {split['utilisation']:.0%} with {SPLIT}, "
                         f"{ibs['utilisation']:.0%} with {IBS}.")
    return found


def _splits(rows: Rows, seeded: list[Rows], mixes: tuple[int, ...], mode: str) -> str:
    """Where a split has the higher sum; the paper has none."""
    ahead = []
    for system in SPLITS:
        for percent in mixes:
            every = [gain(one, system, percent, mode) for one in (rows, *seeded)]
            if every[0] < 1:
                ahead.append(f"{system} at {percent}% ({every[0]:.2f}"
                             + (f"; {min(every):.2f} to {max(every):.2f} over {len(every)} seeds)" if seeded else
                                "; one seed)"))
    return (f"{'Contradicts' if ahead else 'Agrees with'} the paper, where Orthrus is ahead of every SplitGPU: "
            f"{IBS} is behind in {len(ahead)} of {len(SPLITS) * len(mixes)} cells of split and mix"
            + (f", in times the split's sum: {'; '.join(ahead)}." if ahead else "."))


def _embeddings(rows: Rows, mode: str) -> str:
    """How far IBS's embeddings are from those of SplitGPU in the burst."""
    label = f"burst {{}} {mode}"
    own, split = (latency(rows[label.format(system)], "embed", "p99") for system in (IBS, SPLIT))
    less = below(rows, label, "embed", "p99", SPLIT)
    said = "Agrees with" if abs(less / EMBED_P99 - 1) <= 0.15 else "Contradicts"
    return (f"{said} the paper, which has IBS's embedding p99 {EMBED_P99:.0f}% below others: in the burst it is "
            f"{own:.1f} s, {less:.0f}% below the {split:.1f} s of {SPLIT}.")


def _needed(needed: dict[Cell, Needed]) -> str:
    parts = [f"{model} {ratio(percent)} " + (f"none ({one.without:.2f} without any)" if one.factor is None else
                                             f"{one.factor:.2f}") for (model, percent), one in needed.items()]
    return f"Factor on the fitted overheads that gives the paper's sum: {', '.join(parts)}."
