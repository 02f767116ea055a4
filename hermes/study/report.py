"""Report of a study: tables, plots and findings, printed and written to a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import InputError
from hermes.results.layout import Section, markdown_table
from hermes.study.compared import VERDICTS, Compared, cell, numbers_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["BLOCKS", "Plot", "Report", "Table", "comparison", "refuse_source"]


BLOCKS = (("figure", "where", "paper", "here", "verdict"), ("figure", "interval", "range", "why"))
"""Columns of the table of a paper's figures: what is found, and the reasons."""


@dataclass
class Table:
    """One table of a report.

    Args:
        name: Name of its CSV file.
        digits: Decimals per column (others: 4 significant digits).
        note: Text printed below.
        blocks: Columns of each block that is printed; empty: all columns are one block.
    """

    name: str
    title: str
    frame: pd.DataFrame
    note: str = ""
    digits: dict[str, int] = field(default_factory=dict)
    blocks: tuple[tuple[str, ...], ...] = ()

    def sections(self) -> list[Section]:
        """Return the table as text, a section for each block; "-" for undefined values."""
        columns = [str(column) for column in self.frame.columns]
        cells = [
            [cell(value, self.digits.get(column)) for column, value in zip(columns, row, strict=True)]
            for row in self.frame.itertuples(index=False, name=None)
        ]
        found: list[Section] = []
        for block in self.blocks or (tuple(columns),):
            places = [columns.index(name) for name in block if name in columns]
            found.append(Section("" if found else self.title, [columns[place] for place in places],
                                 [[row[place] for place in places] for row in cells]))
        found[-1] = replace(found[-1], note=self.note)
        return found

    def markdown(self) -> str:
        return "\n\n".join(markdown_table(section.head, section.rows) for section in self.sections())


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


def comparison(
    compared: Sequence[Compared], others: Mapping[str, Sequence[Compared]], missing: Sequence[Compared] = (),
) -> list[Table]:
    """Return *figure | where | paper | here | verdict | interval | range | why* and, if there are `others`,
    *figure | here | under*: a row for each value that a figure takes under the labels.

    Args:
        compared: The figures as assumed.
        others: The same figures under other assumptions, by label; each may leave figures out.
        missing: Figures of the paper that the study does not compute; `why` says the reason.
    """
    import pandas as pd

    rows, changes = [], []
    for one in (*compared, *missing):
        found = {label: other.here for label, rows_of in others.items() for other in rows_of if other.name == one.name}
        labels: dict[str, list[str]] = {one.text(one.here): ["as assumed"]}
        for label, value in found.items():
            labels.setdefault(one.text(value), []).append(label)
        changes += [{"figure": one.name, "here": text, "under": ", ".join(names)} for text, names in labels.items()
                    if len(labels) > 1]
        numbers = [number for value in (one.here, *found.values()) for number in numbers_of(value)]
        spread = one.text((min(numbers), max(numbers))) if numbers else f"{len(labels)} outcomes"
        rows.append({"figure": one.name, "where": one.where, "paper": one.text(one.paper), "here": one.text(one.here),
                     "verdict": one.verdict, "interval": one.text(one.interval)}
                    | ({"range": spread if len(labels) > 1 else "the same" if found else "-"} if others else {})
                    | {"why": one.why})
    used = dict.fromkeys(row["verdict"] for row in rows)
    tables = [Table("paper", "Paper and here", pd.DataFrame(rows),
                    "; ".join(f"{name}: {text}" for name, text in VERDICTS.items() if name in used)
                    + ". interval: over seeds."
                    + (" range: lowest and highest over the assumptions of the next table." if others else ""),
                    blocks=BLOCKS)]
    if changes:
        tables.append(Table("what-if", "Figures that other assumptions change (what_if in study.yaml)",
                            pd.DataFrame(changes)))
    return tables


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
