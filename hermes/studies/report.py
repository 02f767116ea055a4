"""What a study answers: tables, plots and the sentences that follow from them, printed and written to a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Plot", "Report", "Table"]


@dataclass
class Table:
    """One table. name: of its CSV file; digits: decimals per column (others: 4 significant); note: what to know."""

    name: str
    title: str
    frame: pd.DataFrame
    note: str = ""
    digits: dict[str, int] = field(default_factory=dict)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Headers and cells as text; "-" for what is undefined."""
        columns = [str(column) for column in self.frame.columns]
        cells = [
            [_cell(value, self.digits.get(column)) for column, value in zip(columns, row, strict=True)]
            for row in self.frame.itertuples(index=False, name=None)
        ]
        return columns, cells

    def markdown(self) -> str:
        columns, cells = self.rows()
        lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


@dataclass
class Plot:
    """One figure. name: of its PNG file; caption: what to see in it."""

    name: str
    caption: str
    figure: Figure


@dataclass
class Report:
    """Everything a study answers. findings: sentences, each computed from the tables, none written in advance."""

    title: str
    assumptions: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The report as one page, plots by the names of their files."""
        parts = [f"# {self.title}"]
        if self.assumptions:
            parts.append("\n".join(f"- {line}" for line in self.assumptions))
        for table in self.tables:
            parts += [f"## {table.title}", table.markdown(), *([table.note] if table.note else [])]
        parts += [f"![{plot.caption}]({plot.name}.png)\n\n{plot.caption}" for plot in self.plots]
        if self.findings:
            parts += ["## Findings", "\n".join(f"- {line}" for line in self.findings)]
        return "\n\n".join(parts) + "\n"

    def write(self, out: Path) -> list[Path]:
        """`report.md`, a CSV for each table (full precision) and a PNG for each plot; the files written."""
        names = [table.name for table in self.tables] + [plot.name for plot in self.plots]
        if len(set(names)) < len(names):
            raise InputError("different names for a report's tables and plots", ", ".join(sorted(names)))
        out.mkdir(parents=True, exist_ok=True)
        written = []
        for table in self.tables:
            written.append(out / f"{table.name}.csv")
            table.frame.to_csv(written[-1], index=False)
        for plot in self.plots:
            written.append(out / f"{plot.name}.png")
            plot.figure.savefig(written[-1], dpi=120, metadata={"Software": None})
        written.append(out / "report.md")
        written[-1].write_text(self.markdown(), encoding="utf-8")
        return written


def _cell(value: Any, digits: int | None) -> str:
    if value is None or value != value:   # NaN
        return "-"
    if isinstance(value, str | bool) or not hasattr(value, "__float__"):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15 and digits is None:
        return f"{int(value):,}"
    return f"{value:,.{digits}f}" if digits is not None else f"{value:,.4g}"
