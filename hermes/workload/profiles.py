"""Workload profiles: statistics of a trace that is not distributed with hermes.

A profile (`format: hermes-workload/1`) holds the quantile functions of prompt and output lengths, their rank
correlation, figures of the arrivals, and their source. `scripts/build_azure_workloads.py` and
`build_sharegpt_workload.py` write the built-in ones under `traces/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel
from hermes.config.data_files import resource_dir
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim, suggest
from hermes.workload.base import MAX_TOKENS

__all__ = ["ArrivalFigures", "QuantileTable", "WorkloadProfile", "load_workload_profile", "workload_profile_names"]


class QuantileTable(ConfigModel):
    """A distribution of token counts as its quantile function, linear between the given levels."""

    mean: Annotated[float, Field(ge=1)]
    """Mean of the source."""
    std: Annotated[float, Field(ge=0)]
    """Standard deviation of the source."""
    p50: Annotated[float, Field(ge=1)]
    """Median of the source."""
    p90: Annotated[float, Field(ge=1)]
    """90th percentile of the source."""
    p99: Annotated[float, Field(ge=1)]
    """99th percentile of the source."""
    levels: Annotated[list[float], Field(min_length=2)]
    """Levels of the quantiles: strictly increasing, from 0 to 1."""
    values: Annotated[list[Annotated[float, Field(ge=1, le=MAX_TOKENS)]], Field(min_length=2)]
    """Tokens at each level, nondecreasing."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.levels) != len(self.values):
            raise InputError(f"as many values as levels ({len(self.levels)})", len(self.values), field="values")
        if self.levels[0] != 0 or self.levels[-1] != 1 or min(np.diff(self.levels)) <= 0:
            raise InputError(Verbatim("levels must increase strictly from 0 to 1"), field="levels")
        if min(np.diff(self.values)) < 0:
            raise InputError(Verbatim("values must not decrease"), field="values")
        return self

    def at(self, u: FloatArray) -> IntArray:
        """Return token counts at the levels `u` (float64 in [0, 1], any shape), rounded to whole tokens."""
        return np.rint(np.interp(u, self.levels, self.values)).astype(np.int64)


class ArrivalFigures(ConfigModel):
    """Arrivals of the source's requests."""

    duration_s: Annotated[float, Field(ge=0)]
    """Time from the first to the last arrival, in seconds."""
    rate_per_s: Annotated[float, Field(gt=0)]
    """Gaps per second."""
    interarrival_cv: Annotated[float, Field(ge=0)]
    """Standard deviation of the gaps over their mean."""


class WorkloadProfile(ConfigModel):
    """Lengths and arrivals of a trace, as figures."""

    format: Literal["hermes-workload/1"]
    """The file format; this is version 1."""
    name: Annotated[str, Field(min_length=1)]
    """Name for use in scenarios."""
    source: dict[str, str]
    """Source of the figures: title, url, licence, and method of computation."""
    requests: Annotated[int, Field(ge=1)]
    """Number of requests of the source."""
    arrivals: ArrivalFigures | None = None
    """Arrivals of the source's requests, if it has any."""
    spearman: Annotated[float, Field(gt=-1, lt=1)]
    """Spearman's rank correlation of prompt and output tokens."""
    prompt_tokens: QuantileTable
    """Prompt lengths."""
    output_tokens: QuantileTable
    """Output lengths."""


def workload_profile_names() -> list[str]:
    """Return the names of the built-in profiles."""
    folder = resource_dir("traces")  # it also holds other kinds of traces
    return sorted(path.stem for path in folder.glob("*.yaml") if "hermes-workload/" in path.read_text(encoding="utf-8"))


def load_workload_profile(name_or_path: str | Path) -> WorkloadProfile:
    """Load a built-in profile by name, or a file (anything with a folder or the suffix .yaml/.yml).

    Raises `InputError` for an unknown name, and for a file that is not a profile, with the place.
    """
    text = str(name_or_path)
    if not is_profile_path(text):
        names = workload_profile_names()
        if text not in names:
            expected = f"a workload profile: one of {', '.join(names)}, or a path ending in .yaml"
            raise InputError(expected, text, suggestion=suggest(text, names))
    path = Path(text) if is_profile_path(text) else resource_dir("traces") / f"{text}.yaml"
    return load(WorkloadProfile, path, str(path))


def is_profile_path(name_or_path: str) -> bool:
    """Whether a scenario's `profile:` is a file rather than a built-in profile."""
    return "/" in name_or_path or Path(name_or_path).suffix in (".yaml", ".yml")
