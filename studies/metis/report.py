"""Study of METIS: choice of a RAG query's configuration together with its schedule."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hermes.api import simulate
from hermes.plugins.metis.choosers import HOW
from hermes.plugins.metis.decision import METHODS
from hermes.plugins.metis.quality import FORMULAS
from hermes.study import Compared, Context, Plot, Report, Table

from . import plots, tables
from .figures import compared, fixed_by_rule
from .findings import findings
from .points import SPEC_RATE, Batch, Run
from .sections import HOLDERS, Size, compared_first, compared_second, first, pressure_points, second

__all__ = ["compare", "run"]


def run(context: Context) -> Report:
    size = _size(context)
    one = Batch(context, "first", first(size))
    fixed = fixed_by_rule(size, one)
    busy = {d: _like(one["busy grid"], one["busy systems"], d, r) for d, r in size.busy}
    large = {d: _like(one["large grid"], one["large"], d, r) for d, r in size.large_pairs if r != SPEC_RATE}
    two = Batch(context, "second", second(size, fixed, busy, large))
    return _report(context, size, one, two)


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions."""
    size = _size(context)
    one = Batch(context, "first", compared_first(size))
    return compared(size, one, Batch(context, "second", compared_second(size, fixed_by_rule(size, one))))


def _size(context: Context) -> Size:
    return Size.of(context["datasets"], quick=context.quick, rate=context["rate"])


def _report(context: Context, size: Size, one: Batch, two: Batch) -> Report:
    own = pd.concat([one["systems"], one["busy systems"]])
    fixed = pd.concat([two["fixed"], two["busy fixed"], two["parrot"]])
    rates = pd.concat([one["rates"], one["other rates"], two["fixed rates"]])
    rungs = pd.concat([one["rungs"], one["more rungs"]])
    steps = _steps(size, own, rungs, pd.concat([fixed, two["fixed rungs"]]))
    sweep, shapes = _sweep(size, one["pressure"]), _shapes(size, one, rungs)
    readings = pd.concat([one["readings"], one["systems"][one["systems"]["system"] == "METIS"]])
    large = pd.concat([one["large"], two["large fixed"]])
    gains = tables.gains(*_scatter(size, one))
    fed = pd.concat([one["feedback"], one["other feedback"]])
    measured = pd.concat([one["measured"], one["systems"][one["systems"]["system"] == "METIS"]])
    measures = tables.measured(measured)
    trace_table, trace_plot = _trace(context)
    found = [
        tables.headline(pd.concat([own, fixed])), tables.readings(readings), measures, gains,
        tables.large(large), tables.ladder(steps),
        tables.lone(pd.concat([one["lone"], one["other lone"], two["fixed lone"]])),
        tables.throughput(pd.concat([one["lone"], two["fixed lone"], rates])),
        tables.by_rate(rates), tables.pressure(sweep), tables.variants(sweep), tables.knobs(two["knobs"]),
        tables.overhead(one["profilers"]), tables.feedback(fed), tables.shapes(shapes), tables.dollars(two["dollars"]),
        _reconciled(own), trace_table,
    ]
    said = findings(own, fixed, readings, measures.frame, gains.frame, large, steps, sweep, shapes, fed)
    made = [*_plots(size, one, rates, sweep), trace_plot]
    return Report(found, made, said, compared=compared(size, one, two))


def _scatter(size: Size, one: Batch) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fixed configurations and choices per query, at the sustained rates, of the first seed."""
    chosen = pd.concat([one["systems"], one["rungs"], one["more rungs"]])
    here = [r == size.base(d) and seed == 1 and s in plots.MARKS for d, r, seed, s in zip(
        chosen["dataset"], chosen["rate"], chosen["seed"], chosen["system"], strict=True)]
    return one["grid"], chosen[here]


def _plots(size: Size, one: Batch, rates: pd.DataFrame, sweep: pd.DataFrame) -> list[Plot]:
    names = list(size.datasets)
    grid, chosen = _scatter(size, one)
    return [
        Plot("metis-scatter", "Every fixed configuration, and configurations per query, at the sustained rates",
             plots.scatter_plot(grid, chosen, names)),
        Plot("metis-rates", "Mean delay by rate", plots.rates_plot(rates, names)),
        Plot("metis-pressure", "Less KV memory: delay, F1, decisions that memory changed",
             plots.pressure_plot(sweep)),
    ]


def _like(grid: pd.DataFrame, own: pd.DataFrame, dataset: str, rate: float) -> Run:
    """Return the fixed configuration of like delay, by the first seed."""
    mine = own[(own["dataset"] == dataset) & (own["rate"] == rate) & (own["system"] == "METIS")]
    delay = mine.sort_values("seed")["delay_s"].iloc[0]
    chosen: Run = tables.like_delay(grid[(grid["dataset"] == dataset) & (grid["rate"] == rate)], delay)["run"]
    return chosen


def _steps(size: Size, own: pd.DataFrame, rungs: pd.DataFrame, fixed: pd.DataFrame) -> pd.DataFrame:
    """Return the ladder: a few seeds of the sustained rates, one of the paper's."""
    steps = pd.concat([fixed, own[own["system"] == "AdaptiveRAG*"], rungs, own[own["system"] == "METIS"]])
    return pd.concat([steps[(steps["dataset"] == d) & (steps["rate"] == r)
                            & (steps["seed"] <= (size.few if r == size.base(d) else 1))] for d, r in size.pairs])


def _sweep(size: Size, cut: pd.DataFrame) -> pd.DataFrame:
    """Return points with less memory, and their settings."""
    known = pressure_points(size)
    return cut.assign(kv_tokens=[known[p][0] for p in cut["run"]], load=[known[p][1] for p in cut["run"]])


def _shapes(size: Size, one: Batch, rungs: pd.DataFrame) -> pd.DataFrame:
    """Return F1 by each quality model. Systems that do not choose by it need not run again."""
    parts = [one["shapes"]]
    for dataset in size.datasets:
        own, steps, grid = (f[(f["dataset"] == dataset) & (f["rate"] == size.base(dataset)) & (f["seed"] == 1)]
                            for f in (one["systems"], rungs, one["grid"]))
        mine = own[own["system"] == "METIS"]
        near = grid[grid["delay_s"] <= tables.LIKE * mine["delay_s"].iloc[0]]
        best = {f"f1_{name}": near[f"f1_{name}"].max() for name in FORMULAS}
        like = pd.DataFrame([best | {"dataset": dataset, "system": "vLLM fixed"}])
        parts += [mine, steps[steps["system"] == "profile + median"], like]
    return pd.concat(parts, ignore_index=True)


def _reconciled(own: pd.DataFrame) -> Table:
    """Return the tokens that pipelines declared, and those that stages served."""
    mine = own[own["system"] == "METIS"]
    rows = [{"data set": d, "runs": len(g), "profiler tokens noted": g["profile_in"].sum(),
             "in its stages": g["profiler_stage_in"].sum(), "golden runs": g["golden_runs"].sum(),
             "golden tokens noted": g["golden_in"].sum() + g["golden_out"].sum(),
             "LLM tokens served": g["llm_in"].sum() + g["llm_out"].sum()}
            for d, g in mine.groupby("dataset", sort=False)]
    return Table("reconciled", "Nothing is free: tokens of profiler and golden runs", pd.DataFrame(rows),
                 "tests/plugins/metis/test_pipeline.py adds up every call.")


def _trace(context: Context) -> tuple[Table, Plot]:
    """One query holds most of the memory when another comes that needs five chunks at once."""
    context.say("metis: trace")
    rows, runs = [], []
    for holder in HOLDERS[::2] if context.quick else HOLDERS:
        for name, pipeline in (
            ("stuff, 5 chunks", "{name: metis, system: fixed, chunks: 5, dataset: qmsum}"),
            ("METIS", "{name: metis, dataset: qmsum, profiler: perfect}"),
        ):
            results = simulate({"extends": str(context.file("pressure.yaml"))}, overrides=[
                f"workload.1.pipeline={pipeline}", f"workload.0.lengths.output={holder}"])
            frame = results.requests
            how = frame["note_how"].iloc[1] if "note_how" in frame else None
            method = METHODS[int(frame["note_method"].iloc[1])]
            rows.append({"the other generates": holder, "system": name,
                         "configuration": f"{method}, {int(frame['note_chunks'].iloc[1])} chunks",
                         "how": "-" if how is None else HOW[int(how)], "F1": frame["note_f1"].iloc[1],
                         "first call starts s": _first_start(results) - frame["arrival_s"].iloc[1],
                         "delay s": frame["e2e_s"].iloc[1], "delay of the other s": frame["e2e_s"].iloc[0]})
            if holder == HOLDERS[-1]:
                runs.append((f"{name}: {frame['e2e_s'].iloc[1]:.2f} s", results))
    table = Table("trace", "A query under memory pressure, by how long another holds the memory",
                  pd.DataFrame(rows), "", {"F1": 3, "first call starts s": 2, "delay s": 2,
                                           "delay of the other s": 2})
    return table, Plot("metis-trace", "One query holds 8,000 of 12,000 tokens of KV when another comes",
                       plots.timeline_plot(runs))


def _first_start(results: Any) -> float:
    record = results.record
    mine = (record.stages["request"] == 1) & (record.stages["kind"] == record.stage_kinds.index("generate"))
    return float(record.stages["start_ns"][mine].min()) / 1e9
