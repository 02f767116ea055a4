"""Importer of CSV files with one measured step per row and a fixed header (units in the names)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from hermes.calibration.importers.base import IMPORTERS, ImporterConfig, Progress, known_model, no_progress
from hermes.calibration.steps import COLUMNS, STATS, MeasuredSteps, StepsHeader
from hermes.calibration.table_files import sha256
from hermes.config.columns import Column
from hermes.config.tables import csv_table
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
MAY_BE_EMPTY = ("cpu_time_s", "overhead_s", "power_w")


def _column(name: str) -> Column:
    kind = COLUMNS[CSV_COLUMNS[name]]
    if kind == "int64":
        return Column(name, "integer", 0, 2**53)
    return Column(name, "text") if kind == "string" else Column(name, null=name in MAY_BE_EMPTY)


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
        table = csv_table(Path(self.source))
        for name in table.columns:
            if name not in CSV_COLUMNS:
                raise InputError(f"columns among {', '.join(CSV_COLUMNS)}", name, file=self.source, line=1,
                                 suggestion=suggest(name, CSV_COLUMNS))
        missing = [name for name in NEEDED if name not in table]
        if missing:
            raise InputError(f"the columns {', '.join(NEEDED)}", f"no {', '.join(missing)}", file=self.source, line=1)
        frame = pd.DataFrame({CSV_COLUMNS[name]: table.typed(_column(name)) for name in table.columns})
        if frame.empty:
            raise InputError("at least one row", file=self.source)
        for line, row in zip(table.lines or (), frame.to_dict("records"), strict=True):
            self._check({str(name): value for name, value in row.items()}, line)
        named = "configuration" in frame
        if not named:   # steps of the same batch are held out together
            frame["configuration"] = [
                " ".join(f"{name}={row[name]}" for name in STATS if row[name]) for row in frame.to_dict("records")]
        return MeasuredSteps(self._header(named), frame)

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
        if not row.get("configuration", "unnamed"):
            wrong = "text in the column configuration"
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
