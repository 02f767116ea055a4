"""Report of a study: tables, plots and findings, printed and written to a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import InputError
from hermes.results.layout import Section, markdown_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Compared", "Plot", "Report", "Table", "refuse_source"]

Figures = float | tuple[float, float] | str | None
NEAR = 0.15
"""Share of the paper's figure within which a study agrees with it."""


@dataclass
class Table:
    """One table of a report.

    Args:
        name: Name of its CSV file.
        digits: Decimals per column (others: 4 significant digits).
        note: Text printed below.
    """

    name: str
    title: str
    frame: pd.DataFrame
    note: str = ""
    digits: dict[str, int] = field(default_factory=dict)

    def section(self) -> Section:
        """Return the table as text; "-" for undefined values."""
        columns = [str(column) for column in self.frame.columns]
        cells = [
            [_cell(value, self.digits.get(column)) for column, value in zip(columns, row, strict=True)]
            for row in self.frame.itertuples(index=False, name=None)
        ]
        return Section(self.title, columns, cells, self.note)

    def markdown(self) -> str:
        section = self.section()
        return markdown_table(section.head, section.rows)


@dataclass
class Plot:
    """One plot of a report.

    Args:
        name: Name of its PNG file.
        caption: Text below it.
    """

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Compared:
    """One figure of a paper and the study's.

    Args:
        name: Its name, unique in a report; with the unit.
        paper: The paper's figure: a number, a pair (lowest, highest), words, or None if the paper has none.
        here: The study's, likewise.
        why: Cause of the difference, or of the agreement; one sentence.
        digits: Decimals of its numbers; None: 4 significant digits.
        where: Figure, table or section of the paper.
        interval: Lowest and highest of `here` over seeds, or its 95% interval; None where one run is the answer.
        neutral: The number between opposite conclusions: 1 for a ratio, 0 for a gain. None if there is none.
        agrees: Whether the study agrees with words of the paper, which no rule here can compare; None for numbers.
        settled: False if the run is too short or too small to tell; its verdict is then "cannot tell".
    """

    name: str
    paper: Figures
    here: Figures
    why: str = ""
    digits: int | None = None
    where: str = ""
    interval: tuple[float, float] | None = None
    neutral: float | None = None
    agrees: bool | None = None
    settled: bool = True

    def text(self, figures: Figures) -> str:
        """Return a figure of this kind as text."""
        if isinstance(figures, tuple):
            return " to ".join(_cell(value, self.digits) for value in figures)
        return _cell(figures, self.digits)

    @property
    def verdict(self) -> str:
        """Return whether the study's figure agrees with the paper's.

        - "agrees": all of it lies within `NEAR` of the paper's number or range, and on its side of `neutral`; or the
          words agree.
        - "partly": part of it does.
        - "direction": none does, but both lie on one side of `neutral`.
        - "differs", or "cannot tell" if the run has not settled it; "-" if the paper has no such figure.
        """
        if self.paper is None:
            return "-"
        if not self.settled or self.here is None:
            return "cannot tell"
        paper, here = _numbers(self.paper), _numbers(self.here)
        if self.agrees is not None or not paper or not here:
            return {True: "agrees", False: "differs", None: "-"}[self.agrees]
        low, high = min(paper) - NEAR * abs(min(paper)), max(paper) + NEAR * abs(max(paper))
        sides = None if self.neutral is None else {_side(number - self.neutral) for number in paper}
        across = [number for number in here if sides is not None and _side(number - (self.neutral or 0)) not in sides]
        if low <= min(here) and max(here) <= high:
            return "differs" if len(across) == len(here) else "partly" if across else "agrees"
        if min(here) <= high and max(here) >= low:
            return "partly"
        return "direction" if sides is not None and len(sides) == 1 and not across else "differs"


def comparison(
    compared: Sequence[Compared], others: Mapping[str, Sequence[Compared]], missing: Sequence[Compared] = (),
) -> list[Table]:
    """Return *where | figure | paper | here | interval | range | verdict | why* and, if there are `others`,
    *figure | here | under*: a row for each value that a figure takes under the labels.

    Args:
        compared: The figures as assumed.
        others: The same figures under other assumptions, by label; each may leave figures out.
        missing: Figures of the paper that the study does not compute; `why` says the reason.
    """
    import pandas as pd

    rows, changes = [], []
    for one in compared:
        found = {label: other.here for label, rows_of in others.items() for other in rows_of if other.name == one.name}
        labels: dict[str, list[str]] = {one.text(one.here): ["as assumed"]}
        for label, value in found.items():
            labels.setdefault(one.text(value), []).append(label)
        changes += [{"figure": one.name, "here": text, "under": ", ".join(names)} for text, names in labels.items()
                    if len(labels) > 1]
        numbers = [number for value in (one.here, *found.values()) for number in _numbers(value)]
        spread = one.text((min(numbers), max(numbers))) if numbers else f"{len(labels)} outcomes"
        rows.append({"where": one.where, "figure": one.name, "paper": one.text(one.paper), "here": one.text(one.here),
                     "interval": one.text(one.interval)}
                    | ({"range": spread if len(labels) > 1 else "the same" if found else "-"} if others else {})
                    | {"verdict": one.verdict, "why": one.why})
    rows += [{"where": one.where, "figure": one.name, "paper": one.text(one.paper), "here": "-", "interval": "-"}
             | ({"range": "-"} if others else {}) | {"verdict": "not computed", "why": one.why} for one in missing]
    tables = [Table("paper", "Paper and here", pd.DataFrame(rows),
                    f"verdict: agrees within {NEAR:.0%}; partly; in direction; differs. interval: over seeds."
                    + (" range: lowest and highest over the assumptions of the next table." if others else ""))]
    if changes:
        tables.append(Table("what-if", "Figures that other assumptions change (what_if in study.yaml)",
                            pd.DataFrame(changes)))
    return tables


def _side(difference: float) -> int:
    return (difference > 0) - (difference < 0)


def _numbers(figures: Figures) -> list[float]:
    values = figures if isinstance(figures, tuple) else (figures,)
    return [float(value) for value in values if isinstance(value, int | float) and value == value]


@dataclass
class Report:
    """Report of a study.

    Args:
        compared: Figures of the paper with the study's; `Study.run` puts them before the tables.
        findings: Sentences, each computed from the tables.
        notes: Sentences about the set-up, besides those of study.yaml.
        title: Filled in by `Study.run`.
        assumptions: Filled in by `Study.run`; each (name, value, value in study.yaml, allowed, meaning, source).
    """

    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    title: str = ""
    assumptions: list[tuple[Any, ...]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the report as one Markdown page, which names the files of its plots."""
        parts = [f"# {self.title}"]
        if self.notes:
            parts.append("\n".join(f"- {line}" for line in self.notes))
        if self.assumptions:
            parts += ["## Assumptions", *self._assumed()]
        for table in self.tables:
            parts += [f"## {table.title}", table.markdown(), *([table.note] if table.note else [])]
        parts += [f"![{plot.caption}]({plot.name}.png)\n\n{plot.caption}" for plot in self.plots]
        if self.findings:
            parts += ["## Findings", "\n".join(f"- {line}" for line in self.findings)]
        return "\n\n".join(parts) + "\n"

    def changed(self) -> list[str]:
        """Return the assumptions whose value differs from that in study.yaml."""
        return [f"{name} = {value} (assumed: {own})" for name, value, own, *_ in self.assumptions if value != own]

    def _assumed(self) -> list[str]:
        head = ("assumption", "value", "allowed", "meaning", "source")
        table = markdown_table(head, [(name, str(value), *rest) for name, value, _, *rest in self.assumptions])
        return [table, *(f"Changed: {line}." for line in self.changed())]

    def plain(self) -> dict[str, Any]:
        """Return the report without its plots, as data for JSON."""
        return {
            "title": self.title, "notes": self.notes, "findings": self.findings,
            "assumptions": {name: value for name, value, *_ in self.assumptions},
            "tables": {table.name: table.frame.to_dict("records") for table in self.tables},
        }

    def write(self, out: Path) -> list[Path]:
        """Write `report.md`, a CSV for each table (full precision) and a PNG for each plot; return the files
        written."""
        names = [table.name for table in self.tables] + [plot.name for plot in self.plots]
        if len(set(names)) < len(names):
            raise InputError("different names for a report's tables and plots", ", ".join(sorted(names)))
        refuse_source(out)
        out.mkdir(parents=True, exist_ok=True)
        written = []
        for table in self.tables:
            written.append(out / f"{table.name}.csv")
            table.frame.to_csv(written[-1], index=False, lineterminator="\n")
        for plot in self.plots:
            written.append(out / f"{plot.name}.png")
            plot.figure.savefig(written[-1], dpi=120, metadata={"Software": None})
        written.append(out / "report.md")
        written[-1].write_text(self.markdown(), encoding="utf-8", newline="\n")
        return written


def refuse_source(out: Path) -> None:
    """Raise `InputError` if `out` is the folder of a study's own files, which reports must not overwrite."""
    if (out / "study.yaml").exists():
        raise InputError("a folder other than that of the study's own files", str(out), field="--output")


def _cell(value: Any, digits: int | None) -> str:
    if value is None or value != value:   # NaN
        return "-"
    if isinstance(value, str | bool) or not hasattr(value, "__float__"):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15 and digits is None:
        return f"{int(value):,}"
    return f"{value:,.{digits}f}" if digits is not None else f"{value:,.4g}"
