"""The report of observed repetitions (`hermes-observed/1`): `hermes observe` writes it, `hermes compare` reads it.

`observed.json` lies in the folder of an observation. It names every attempt with its file of requests, those that
count, and the noise between them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes.config import ConfigModel
from hermes.config.files import beside, read_json
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.errors import InputError, Verbatim

__all__ = ["REPORT", "ObservedAttempt", "ObservedReport", "observed_report", "write_report"]

REPORT = "observed.json"
Count = Annotated[int, Field(ge=0)]


class ObservedAttempt(ConfigModel):
    """One attempt at a repetition, and whether the machine of the driver disturbed it."""

    number: Annotated[int, Field(ge=1)]
    file: Annotated[str, Field(min_length=1, max_length=400)]
    """Table of its requests, beside the report."""
    reasons: list[str] = Field(default_factory=list)
    """Rules that reject it; empty: accepted."""
    requests: Count
    failed: Count
    parts: Count
    """1, and one more for each interruption."""
    late_s: float
    """p99 of how late the driver took up a request."""
    windows: Count
    contended_windows: Count

    @property
    def accepted(self) -> bool:
        """Whether no rule rejects it."""
        return not self.reasons


class ObservedReport(ConfigModel):
    """All attempts of a folder."""

    format: Literal["hermes-observed/1"] = "hermes-observed/1"
    rules: list[str]
    repetitions: Annotated[int, Field(ge=1)]
    """Repetitions that were asked for."""
    attempts: Annotated[list[ObservedAttempt], Field(min_length=1)]
    noise: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Spread between the repetitions that count, by metric and statistic."""

    def counted(self) -> list[ObservedAttempt]:
        """Return the accepted attempts; all of them if none was accepted."""
        return [one for one in self.attempts if one.accepted] or self.attempts

    def remarks(self) -> list[str]:
        """Return what a reader of the figures has to know of the attempts."""
        accepted = sum(one.accepted for one in self.attempts)
        out = [f"attempt {one.number} is disturbed: {'; '.join(one.reasons)}" for one in self.attempts
               if not one.accepted]
        if not accepted:
            out.append("no attempt was accepted: these are the figures of all of them")
        elif accepted < self.repetitions:
            out.append(f"{accepted} of {self.repetitions} repetitions were accepted in {len(self.attempts)} attempts")
        return out


def observed_report(path: Path) -> tuple[ObservedReport, Path] | None:
    """Return (report, its folder) of an observation, by its folder or its table of requests; None for other paths.

    Raises `InputError` for a malformed report.
    """
    folder = path if path.is_dir() else path.parent
    if not (folder / REPORT).is_file() or path.name not in (folder.name, "observed.parquet"):
        return None
    report = validate(ObservedReport, read_json(folder / REPORT), str(folder / REPORT))
    if not path.is_dir() and path.name != report.attempts[0].file:
        return None
    for attempt in report.attempts:
        if not beside(folder / REPORT, attempt.file).is_file():
            raise InputError("the table of an attempt", Verbatim(f"no {attempt.file}"), file=str(folder / REPORT))
    return report, folder


def write_report(report: ObservedReport, folder: Path) -> None:
    """Write the report into the folder of an observation."""
    write_text(folder / REPORT, json.dumps(report.model_dump(mode="json"), indent=1) + "\n")
