"""Schema of a stored `summary.json`: the parts that figures, comparisons and reports read, with their types.

Other parts are kept as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hermes.config.files import MAX_JSON_BYTES, read_json
from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.results.slo import SloConfig

__all__ = ["FORMAT", "StoredRun", "read_summary"]

FORMAT = 1

Count = Annotated[int, Field(ge=0, lt=2**62)]
Seconds = Annotated[float, Field(ge=0, le=9e9)]   # as integer nanoseconds in 64 bits
Number = float | None


class _Part(BaseModel):
    """A part of the file with strict types; unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class StoredRun(_Part):
    """Properties of the summarised run."""

    format: int
    end_s: Seconds
    name: str = ""
    version: str = ""
    seed: int = 0
    interrupted: bool | str | None = None
    warnings: list[str] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    out_of_requests_s: Seconds | None = None
    slo: SloConfig = Field(default_factory=SloConfig)


class _Requests(_Part):
    total: Count
    completed: Count
    rejected: Count
    unfinished: Count
    preempted: Count
    reject_reasons: dict[str, Count]
    gave_up_computed: Count | None = None


class _Stats(_Part):
    count: Count
    mean: Number
    p50: Number
    p90: Number
    p99: Number


class _Mean(_Part):
    mean: float


class _StageParts(_Part):
    share: float
    total_s: _Mean
    queue_s: _Mean
    communication_s: _Mean
    compute_s: _Mean
    first_token_s: _Mean = _Mean(mean=0)


class _Breakdown(_Part):
    stages: dict[str, _StageParts]


class _OfPipeline(_Part):
    e2e_s: _Stats
    stages_mean_s: dict[str, float]


class _By(_Part):
    pipeline: dict[str, _OfPipeline] = Field(default_factory=dict)


class _Limit(_Part):
    limit_s: float


class _Goodput(_Part):
    share: Number


class _Energy(_Part):
    total_j: Number
    per_request_j: Number
    per_output_token_j: Number


class _Cost(_Part):
    total_dollars: Number = None
    per_request_dollars: Number = None
    per_million_answer_tokens_dollars: Number = None
    per_million_output_tokens_dollars: Number = None
    per_million_tokens_dollars: Number = None


class _Summary(_Part):
    requests: _Requests
    makespan_s: float
    latency: dict[str, _Stats]
    tokens: dict[str, Count]
    throughput: dict[str, Number]
    slo: dict[str, _Limit | bool | None]
    goodput: _Goodput
    breakdown: _Breakdown
    by: _By
    steps: dict[str, Number]
    energy: _Energy | None
    cost: _Cost | None = None
    clients: dict[str, dict[str, Any]]
    counters: dict[str, int]


def read_summary(folder: Path) -> tuple[StoredRun, dict[str, Any]]:
    """Return (the run, the summary as it is written) of a results folder.

    Raises `InputError` if the folder has no `summary.json`, which is written last, or if it is incomplete.
    """
    path = folder / "summary.json"
    try:
        there = path.exists()
    except OSError:
        there = False
    if not there:
        raise InputError("a folder with finished results (summary.json)", str(folder))
    content = read_json(path, MAX_JSON_BYTES)
    run = content.get("run") if isinstance(content, dict) else None
    if not isinstance(run, dict) or "end_s" not in run:
        raise InputError("a summary that hermes wrote", file=str(path), field="run")
    if run.get("format") != FORMAT:
        raise InputError(f"results of format {FORMAT}", run.get("format"), file=str(path), field="run.format")
    del content["run"]
    try:
        checked = validate(StoredRun, run)
    except InputError as error:
        raise error.located(field="run", file=str(path)) from None
    validate(_Summary, content, str(path))
    return checked, content
