"""The page of a sweep: its charts, its table, and every point in latency against throughput."""

from __future__ import annotations

from html import escape

from hermes.explore.sweep.plots import front_panel, labels, sweep_chart
from hermes.explore.sweep.results import SweepResults
from hermes.explore.sweep.table import point_table
from hermes.results.charts import Panel
from hermes.results.charts.report_page import Section, page
from hermes.results.figures.catalogue import FIGURES

__all__ = ["sweep_page"]

MOST_ROWS = 400
X, Y = "latency.ttft_s.p99", "headline.output_tokens_per_s"


def sweep_page(sweep: SweepResults) -> str:
    """Return the page of a sweep. Raises `InputError` if no point has results."""
    made = sweep_chart(sweep)
    names = [labels(point["settings"], list(point["settings"])) or str(number)
             for number, point in enumerate(sweep.manifest["points"])]
    failed = [f"<li>{escape(names[number])}: {escape(reason)}</li>" for number, reason in sweep.failed().items()]
    sections: list[Section] = [("Points", f"<pre>{escape(point_table(sweep, MOST_ROWS))}</pre>")]
    if failed:
        sections.append(("Failed points", f"<ul>{''.join(failed)}</ul>"))
    said = ("", f'<p class="dim">{escape(made.said)}</p>')
    return page(made.title, [said], [*made.panels, *_front(sweep, names)], sections)


def _front(sweep: SweepResults, names: list[str]) -> list[Panel]:
    """Return every point, with a line through those that no other beats in both figures."""
    rows = [sweep.outcome(number) or {} for number in range(len(names))]
    known = [(float(row[X]) * 1e3, float(row[Y]), name) for name, row in zip(names, rows, strict=True)
             if isinstance(row.get(X), int | float) and isinstance(row.get(Y), int | float)]
    best = sorted(one for one in known if not any(
        other[0] <= one[0] and other[1] >= one[1] and other[:2] != one[:2] for other in known))
    return [front_panel("Latency against throughput of all points", f"{FIGURES[X].name} (ms)", FIGURES[Y].label,
                        {"other points": [one[:2] for one in known if one not in best]}, best)] if known else []
