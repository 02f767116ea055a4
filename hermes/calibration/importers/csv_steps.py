"""Importer of CSV files with one measured step per row and a fixed header (units in the names)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, known_model, no_progress
from hermes.calibration.steps import COLUMNS, MeasuredSteps, StepsHeader
from hermes.calibration.table_files import number_in, sha256
from hermes.config.files import csv_rows
from hermes.errors import InputError, suggest

__all__ = ["CSV_COLUMNS", "CsvSteps"]

CSV_COLUMNS: dict[str, str] = {
    "prefill_seqs": "prefill_seqs", "prefill_tokens": "prefill_tokens", "prefill_past_tokens": "prefill_past",
    "prefill_attn_pairs": "prefill_attn", "decode_seqs": "decode_seqs", "decode_ctx_tokens": "decode_ctx",
    "decode_ctx_max_tokens": "decode_ctx_max", "sampled_seqs": "sampled", "time_s": "time_s",
    "cpu_time_s": "cpu_time_s", "overhead_s": "overhead_s", "power_w": "power_w", "configuration": "configuration",
    "repetition": "repetition", "excluded": "excluded",
}
"""Columns of the file -> columns of `hermes-steps/1`."""
NEEDED = tuple(CSV_COLUMNS)[:9]
MAY_BE_EMPTY = ("cpu_time_s", "overhead_s", "power_w", "excluded")


@IMPORTERS.register("csv")
class CsvSteps(ImporterConfig):
    """Measured steps in a CSV file.

    Columns: prefill_seqs, prefill_tokens, prefill_past_tokens, prefill_attn_pairs, decode_seqs, decode_ctx_tokens,
    decode_ctx_max_tokens, sampled_seqs, time_s; optional: cpu_time_s, overhead_s, power_w, configuration, repetition,
    excluded.
    """

    kind: Literal["csv"] = "csv"
    source: str
    """The CSV file."""
    hardware: Annotated[str, Field(min_length=1)]
    """The measured device, in words."""
    model: Annotated[str, Field(min_length=1)]
    """The model: a shipped description's name, or words."""
    dtype: Annotated[str, Field(min_length=1)]
    """Precision of weights and arithmetic."""
    engine: Annotated[str, Field(min_length=1)]
    """The engine of the steps."""
    engine_version: str = ""
    """Its version."""
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Degree of tensor parallelism."""
    date: str = "not stated"
    """Date of the measurement."""
    clock: str = "not stated"
    """Clock of time_s."""
    licence: str = "origin and licence not stated"
    """Origin and licence of the file, in words."""

    def steps(self, progress: Progress = no_progress) -> MeasuredSteps:
        """Return one step per row, in the order of the file."""
        path = Path(self.source)
        rows = csv_rows(path)
        _, header = next(rows)
        names = self._columns([name.strip() for name in header])
        found: list[dict[str, Any]] = []
        for line, cells in rows:
            row = {name: self._value(name, cell, line) for name, cell in zip(names, cells, strict=True)}
            self._check(row, line)
            found.append(row)
        if not found:
            raise InputError("at least one row", file=self.source)
        frame = pd.DataFrame(found)
        if "configuration" not in frame:   # steps of the same batch are held out together
            frame["configuration"] = [
                " ".join(f"{name}={row[name]}" for name in list(COLUMNS)[:8] if row[name]) for row in found]
        return MeasuredSteps(self._header("configuration" in names), frame)

    def _columns(self, header: list[str]) -> list[str]:
        for name in header:
            if name not in CSV_COLUMNS:
                raise InputError(f"columns among {', '.join(CSV_COLUMNS)}", name, file=self.source, line=1,
                                 suggestion=suggest(name, CSV_COLUMNS))
        missing = [name for name in NEEDED if name not in header]
        if missing:
            raise InputError(f"the columns {', '.join(NEEDED)}", f"no {', '.join(missing)}", file=self.source, line=1)
        return [CSV_COLUMNS[name] for name in header]

    def _value(self, name: str, cell: str, line: int) -> Any:
        kind = COLUMNS[name]
        if kind == "string":
            if not cell and name not in MAY_BE_EMPTY:
                raise InputError("text", cell, file=self.source, line=line, field=name)
            return cell
        if not cell and name in MAY_BE_EMPTY:
            return float("nan")
        field = next(ours for ours, column in CSV_COLUMNS.items() if column == name)
        return number_in(cell, kind, self.source, line, field)

    def _check(self, row: dict[str, Any], line: int) -> None:
        """Refuse impossible steps, which would mislead a fit silently."""
        wrong = ""
        if not row["time_s"] > 0:
            wrong = "time_s above 0"
        elif not row["prefill_tokens"] + row["decode_seqs"]:
            wrong = "at least one token (prefill_tokens, decode_seqs)"
        elif bool(row["prefill_tokens"]) != bool(row["prefill_seqs"]) or row["prefill_tokens"] < row["prefill_seqs"]:
            wrong = "as many prefill_seqs as have prefill_tokens"
        elif row["prefill_attn"] < row["prefill_tokens"]:
            wrong = "prefill_attn_pairs of at least prefill_tokens: every token attends to itself"
        elif not row["decode_ctx_max"] <= row["decode_ctx"] <= row["decode_ctx_max"] * row["decode_seqs"]:
            wrong = "decode_ctx_tokens (the sum) between decode_ctx_max_tokens and decode_seqs times it"
        elif row["sampled"] > row["prefill_seqs"] + row["decode_seqs"]:
            wrong = "at most one of sampled_seqs for each sequence"
        if wrong:
            raise InputError(wrong, file=self.source, line=line)

    def _header(self, named: bool) -> StepsHeader:
        model = known_model(self.model)
        notes = [] if named else ["no column `configuration`: steps of the same batch are held out together"]
        return StepsHeader(
            name=f"{model.rsplit('/', 1)[-1]}-{self.hardware}-tp{self.tp}-{self.dtype}".lower().replace(" ", "-"),
            hardware=self.hardware, engine=self.engine, engine_version=self.engine_version, model=model,
            tensor_parallel=self.tp, dtype=self.dtype, date=self.date, clock=self.clock,
            source=f"{Path(self.source).name} ({self.licence})", source_sha256=sha256(Path(self.source)),
            collected_by=self.command(), notes=notes,
        )
