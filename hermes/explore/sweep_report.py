"""The page of a sweep: its charts, its table, and every point in latency against throughput."""

from __future__ import annotations

from html import escape
from typing import Any

from hermes.explore.plots import front_panel, labels, sweep_chart
from hermes.explore.sweep_results import SweepResults
from hermes.explore.table import FIGURES
from hermes.results.charts import Panel
from hermes.results.report_page import Section, figure_text, page

__all__ = ["sweep_page"]

MOST_ROWS = 400
X, Y = "latency.ttft_s.p99", "headline.output_tokens_per_s"


def sweep_page(sweep: SweepResults) -> str:
    """Return the page of a sweep. Raises `InputError` if no point has results."""
    points = sweep.manifest["points"]
    names = [labels(point["settings"], list(point["settings"])) or str(number) for number, point in enumerate(points)]
    rows = [sweep.outcome(number) or {} for number in range(len(points))]
    head = "".join(f"<th>{escape(' '.join((group, name)))}</th>" for group, name, _, _ in FIGURES)
    body = []
    for name, row in list(zip(names, rows, strict=True))[:MOST_ROWS]:
        cells = "".join(f"<td>{_cell(row, column, factor)}</td>" for _, _, column, factor in FIGURES)
        body.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    left = f"<p class='dim'>{len(points):,} points; the first {MOST_ROWS} are shown.</p>" * (len(points) > MOST_ROWS)
    table = f'{left}<div class="scroll"><table><tr><th>point</th>{head}</tr>{"".join(body)}</table></div>'
    failed = [f"<li>{escape(names[number])}: {escape(reason)}</li>" for number, reason in sweep.failed().items()]
    sections: list[Section] = [("Points", table)]
    if failed:
        sections.append(("Failed points", f"<ul>{''.join(failed)}</ul>"))
    made = sweep_chart(sweep)
    return page(made.title, [("", f'<p class="dim">{escape(made.said)}</p>')], [*made.panels, *_front(names, rows)],
                sections)


def _cell(row: dict[str, Any], column: str, factor: float) -> str:
    value = row.get(column)
    return "-" if isinstance(value, bool) or not isinstance(value, int | float) else figure_text(value * factor)


def _front(names: list[str], rows: list[dict[str, Any]]) -> list[Panel]:
    """Return every point, with a line through those that no other beats in both figures."""
    known = [(float(row[X]) * 1e3, float(row[Y]), name) for name, row in zip(names, rows, strict=True)
             if isinstance(row.get(X), int | float) and isinstance(row.get(Y), int | float)]
    best = sorted(one for one in known if not any(
        other[0] <= one[0] and other[1] >= one[1] and other[:2] != one[:2] for other in known))
    return [front_panel("Latency against throughput of all points", "TTFT p99 (ms)", "output tokens/s",
                        {"other points": [one[:2] for one in known if one not in best]}, best)] if known else []
