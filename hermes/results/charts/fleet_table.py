"""Tables of replicas and of incidents in a page of `hermes report`: what was held, what it cost, what failures did."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hermes.results.charts.time_charts import Runs
from hermes.results.figures.membership import fleet_groups
from hermes.results.figures.replica_states import group_dollars, longest_queue
from hermes.results.figures.usage import paid_ns
from hermes.results.incident_text import HEAD, NOTE, incidents_rows
from hermes.results.layout import format_number, format_s
from hermes.units import NS_PER_S

__all__ = ["incidents_table", "replicas_table"]

_HEAD = ("", "slots", "ready, mean", "ready, most", "device-hours held", "started", "drained", "$ held",
         "$ if all slots were held", "longest queue")


def replicas_table(runs: Runs) -> str:
    """Return the table as HTML, a row for each group of each run whose replicas come and go, and the notes below it."""
    rows, notes = [], ["Queue: stages that wait at the group's replicas at a time."]
    for name, run in runs:
        of_run = f" of {name}" if len(runs) > 1 else ""
        start, end = paid_ns(run.record)
        groups = fleet_groups(run.record)
        for group, found in run.summary.get("fleet", {}).items():
            dollars = group_dollars(run.record, groups[group], start, end)
            queue = longest_queue(run.record, groups[group])
            rows.append([
                group + of_run, f"{found['slots']}", format_number(found["ready_mean"]), f"{found['ready_most']}",
                format_number(found["held_device_hours"]), f"{found['started']}", f"{found['drained']}",
                *(("-", "-") if dollars is None else map(format_number, dollars)),
                f"{queue.stages:,} at {format_s(queue.time_ns / NS_PER_S)}" if queue.stages else "0"])
        if (slo := run.summary.get("fleet_slo")) is not None:
            notes.append(f"SLO{of_run}: {slo['slo_minutes_out']} of {slo['minutes']} minutes out of limit, by arrival: "
                         "too small a share of the requests was within the limits.")
    return _table(_HEAD, rows, notes)


def incidents_table(runs: Runs) -> str:
    """Return the incidents of the runs as HTML, one row each; "" without one."""
    rows = [[cells[0] + (f" of {name}" if len(runs) > 1 else ""), *cells[1:]]
            for name, run in runs if "incidents" in run.summary
            for cells in incidents_rows(run.summary["incidents"])]
    return f"<h3>Incidents</h3>{_table(HEAD, rows, [NOTE])}" if rows else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table class="full"><tr>{head}</tr>{body}</table></div>' + "".join(
        f'<p class="dim">{escape(text)}</p>' for text in notes)
