"""Study of METIS: choice of a RAG query's configuration together with its schedule."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hermes.api import simulate
from hermes.plugins.metis.choosers import HOW
from hermes.plugins.metis.decision import METHODS
from hermes.study import Compared, Context, Plot, Report, Table

from . import plots, tables
from .figures import compared, fixed_by_rule, sweep_of
from .findings import findings
from .points import Batch
from .sections import DILUTED, HOLDERS, Size, compared_first, compared_second, first, second

__all__ = ["compare", "run"]


def run(context: Context) -> Report:
    size = _size(context)
    one = Batch(context, "first", first(size))
    return _report(context, size, one, Batch(context, "second", second(size, fixed_by_rule(size, one))))


def compare(context: Context) -> list[Compared]:
    """Return the paper's figures under the context's assumptions."""
    size = _size(context)
    one = Batch(context, "first", compared_first(size))
    return compared(size, one, Batch(context, "second", compared_second(size, fixed_by_rule(size, one))))


def _size(context: Context) -> Size:
    return Size.of(context["datasets"], quick=context.quick, rate=context["rate"])


def _report(context: Context, size: Size, one: Batch, two: Batch) -> Report:
    alone = {"as assumed": (one["alone"], "f1"), "3n, mappers diluted": (one["diluted"], f"f1_{DILUTED.quality}")}
    lone = pd.concat([one["alone"], one["others alone"], two["fixed alone"]])
    rates = pd.concat([one["rates"], two["fixed rates"]])
    steps = pd.concat([two["fixed"], two["parrot"], one["systems"], one["no golden runs"], one["hindsight"]])
    sweep = sweep_of(size, one["systems"][one["systems"]["system"] != "profile + median"], one["memory"],
                     one["more memory"])
    found = [tables.alone(alone), tables.by_rate(one["rates"]), tables.memory(sweep), tables.ladder(steps),
             tables.lone(lone), tables.throughput(pd.concat([one["alone"], two["fixed alone"], rates])),
             tables.paper_rate(one["paper's rate"]), tables.feedback(one["feedback"])]
    said = []
    if not context.quick:   # what needs all readings and seeds
        readings, variants = tables.readings(one["readings"]), sweep_of(size, one["variants"])
        found += [readings, tables.variants(variants, sweep[sweep["load"] == 1])]
        said = findings(readings.frame, sweep, variants)
    trace_table, trace_plot = _trace(context)
    made = [
        Plot("metis-scatter", "Every fixed configuration, and configurations per query, one query at a time",
             plots.scatter_plot(one["grid alone"], lone, list(size.datasets))),
        Plot("metis-rates", "Mean delay by rate, where no queue grows", plots.rates_plot(rates, list(size.datasets))),
        Plot("metis-memory", "Best fit and the median by KV memory", plots.memory_plot(sweep)),
        trace_plot,
    ]
    return Report([*found, trace_table], made, said, compared=compared(size, one, two))


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
