"""The page of a sweep: its table, and every point in latency against throughput."""

from __future__ import annotations

from html import escape
from typing import Any

from hermes.explore.sweep_results import SweepResults
from hermes.explore.table import FIGURES
from hermes.results.report_charts import Chart, Spec
from hermes.results.report_page import Section, figure_text, page

__all__ = ["sweep_page"]

MOST_ROWS = 400
X, Y = "latency.ttft_s.p99", "headline.output_tokens_per_s"


def sweep_page(sweep: SweepResults) -> str:
    """Return the page of a sweep."""
    points = sweep.manifest["points"]
    labels = [", ".join(f"{key.split('.')[-1]} {value}" for key, value in point["settings"].items()) or str(number)
              for number, point in enumerate(points)]
    rows = [sweep.outcome(number) or {} for number in range(len(points))]
    head = "".join(f"<th>{escape(' '.join((group, name)))}</th>" for group, name, _, _ in FIGURES)
    body = []
    for label, row in list(zip(labels, rows, strict=True))[:MOST_ROWS]:
        cells = "".join(f"<td>{_cell(row, column, factor)}</td>" for _, _, column, factor in FIGURES)
        body.append(f"<tr><td>{escape(label)}</td>{cells}</tr>")
    left = len(points) > MOST_ROWS
    said = f"<p class='dim'>{len(points):,} points; the first {MOST_ROWS} are shown.</p>" if left else ""
    table = f'{said}<div class="scroll"><table><tr><th>point</th>{head}</tr>{"".join(body)}</table></div>'
    failed = [f"<li>{escape(labels[number])}: {escape(reason)}</li>" for number, reason in sweep.failed().items()]
    sections: list[Section] = [("Points", table)]
    if failed:
        sections.append(("Failed points", f"<ul>{''.join(failed)}</ul>"))
    return page(sweep.name, sections, [_front(labels, rows)])


def _cell(row: dict[str, Any], column: str, factor: float) -> str:
    value = row.get(column)
    return "-" if isinstance(value, bool) or not isinstance(value, int | float) else figure_text(value * factor)


def _front(labels: list[str], rows: list[dict[str, Any]]) -> Chart:
    """Every point, with a line through those that no other beats in both figures."""
    known = [(label, float(row[X]) * 1e3, float(row[Y])) for label, row in zip(labels, rows, strict=True)
             if isinstance(row.get(X), int | float) and isinstance(row.get(Y), int | float)]
    best = sorted((one for one in known if not any(
        other[1] <= one[1] and other[2] >= one[2] and other[1:] != one[1:] for other in known)), key=lambda one: one[1])

    def values(points: list[tuple[str, float, float]]) -> list[dict[str, Any]]:
        return [{"point": label, "ms": float(f"{x:.4g}"), "tokens": float(f"{y:.4g}")} for label, x, y in points]

    encoding: Spec = {
        "x": {"field": "ms", "type": "quantitative", "title": "TTFT p99 (ms)", "scale": {"type": "log"}},
        "y": {"field": "tokens", "type": "quantitative", "title": "output tokens/s"},
        "tooltip": [{"field": key} for key in ("point", "ms", "tokens")]}
    return ("Points of the sweep", "TTFT against throughput; the line joins the points that no other beats in both.", {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json", "width": "container", "height": 320,
        "autosize": {"type": "fit", "contains": "padding"}, "data": {"values": values(known)}, "layer": [
            {"mark": {"type": "point", "filled": True, "size": 60}, "encoding": encoding, "params": [
                {"name": "zoom", "select": "interval", "bind": "scales"}]},
            {"data": {"values": values(best)}, "mark": {"type": "line", "color": "#d1495b"}, "encoding": encoding}]})
