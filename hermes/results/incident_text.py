"""Incidents in words: the lines of a run, and the table of its report and of `-v`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes.results.layout import format_s
from hermes.units import counted

__all__ = ["HEAD", "NOTE", "incidents_lines", "incidents_rows"]

HEAD = ("incident", "at", "noticed", "by", "traffic left", "capacity back", "time to recover", "min out", "failed",
        "refused", "retried", "cut", "wasted", "lost")
NOTE = ("times after the strike; time to recover: until every minute of arrivals keeps the SLO again; min out: minutes "
        "of the clock out of the SLO; failed, refused, retried: requests; wasted, lost: tokens")


def incidents_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line about the incidents of a run, and one about the worst of them."""
    found = summary.get("incidents")
    if found is None:
        return []
    kinds = ", ".join(f"{number} {kind}" for kind, number in found["kinds"].items())
    lost = found["requests_failed"] + found["requests_refused"]
    worst = max(found["rows"], key=lambda row: (
        row["recovered_s"] or 0.0, row["requests_failed"], row["back_s"] or 0.0))
    noticed = "not noticed" if worst["noticed_s"] is None else (
        f"noticed after {format_s(worst['noticed_s'])} ({worst['noticed_by']})")
    back = "capacity not back" if worst["back_s"] is None else f"capacity back after {format_s(worst['back_s'])}"
    return [f"{kinds}: {lost:,} requests lost, {found['retried']:,} retried, {found['wasted_tokens']:,} tokens "
            "wasted",
            f"{_name(worst['kind'], worst['clients'])} at {format_s(worst['at_s'])}: {noticed}, {back}"
            + ("" if worst["recovered_s"] is None else f", recovered after {format_s(worst['recovered_s'])}")]


def _name(kind: str, clients: Sequence[str]) -> str:
    return f"{kind} of {clients[0]}" + (f" and {counted(len(clients) - 1, 'other')}" if len(clients) > 1 else "")


def incidents_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table of incidents, below `HEAD`. found: `incidents` of the summary."""
    def time(value: float | None) -> str:
        return "-" if value is None else format_s(value)

    return [(_name(row["kind"], row["clients"]), format_s(row["at_s"]), time(row["noticed_s"]),
             row["noticed_by"] or "-", *(time(row[name]) for name in ("left_s", "back_s", "recovered_s")),
             str(row["slo_minutes_out"]),
             *(f"{number:,}" for number in (
                 *(row[name] for name in ("requests_failed", "requests_refused", "retried", "cut")),
                 row["wasted_prompt_tokens"] + row["wasted_output_tokens"], row["lost_tokens"])))
            for row in found["rows"]]
