"""Result file of an engine (`hermes-online-result/1`), and the latencies of its requests.

The definitions are those of `hermes.results`: TTFT from arrival to the first token, TPOT the mean time per token after
the first, E2E from arrival to the last token. A request of one token has no TPOT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hermes.config import ConfigModel
from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware.files import read_json

__all__ = ["METRICS", "EngineResult", "Times", "read_result"]

FloatArray = npt.NDArray[np.float64]
METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Times:
    """Latencies in seconds, shape (requests,); NaN for an undefined metric."""

    ttft: FloatArray
    tpot: FloatArray
    e2e: FloatArray

    @classmethod
    def of(cls, arrival_s: Sequence[float], first_token_s: Sequence[float], finish_s: Sequence[float],
           output_tokens: Sequence[int]) -> Times:
        """Compute the latencies from instants and lengths per request."""
        arrival, first, finish = (np.asarray(v, dtype=np.float64) for v in (arrival_s, first_token_s, finish_s))
        more = np.asarray(output_tokens, dtype=np.float64) - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(more > 0, (finish - first) / more, np.nan)
        return cls(first - arrival, tpot, finish - arrival)

    def metric(self, name: str) -> FloatArray:
        """Return the defined values of one of `METRICS`."""
        values: FloatArray = getattr(self, name)
        return values[~np.isnan(values)]


Seconds = list[Annotated[float, Field(ge=0)]]


class RequestTimes(ConfigModel):
    """One request, instants on the run's clock."""

    added_s: float
    first_token_s: float
    finish_s: float
    token_s: list[float]


class StepTimes(ConfigModel):
    """One entry per engine step."""

    end_s: list[float]
    wall_s: Seconds
    cpu_s: Seconds


class Adding(ConfigModel):
    """Times of handing over each request."""

    wall_s: Seconds
    cpu_s: Seconds


class Reference(ConfigModel):
    """Median step of the reference batch."""

    wall_s: Annotated[float, Field(gt=0)]
    cpu_s: Annotated[float, Field(gt=0)]
    steps: int


class References(ConfigModel):
    """Before the first request and after the last."""

    before: Reference
    after: Reference


class EngineResult(ConfigModel):
    """One run of a real engine."""

    format: Literal["hermes-online-result/1"]
    engine: str
    engine_version: str
    clock: Literal["wall", "cpu"]
    workload_sha256: str
    requests: list[RequestTimes]
    steps: StepTimes
    adding: Adding
    load: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = []
    reference: References
    environment: dict[str, Any] = {}

    def times(self, arrival_s: Sequence[float], output_tokens: Sequence[int]) -> Times:
        """Return the latencies of its requests, with the workload's arrivals and lengths."""
        return Times.of(
            arrival_s, [r.first_token_s for r in self.requests], [r.finish_s for r in self.requests], output_tokens
        )


def read_result(path: Path, workload_sha256: str) -> EngineResult:
    """Load a result file. Raises `InputError` for an invalid file, or one of another workload."""
    result = validate(EngineResult, read_json(path), str(path))
    if result.workload_sha256 != workload_sha256:
        raise InputError(
            f"the result of the workload with sha256 {workload_sha256}", result.workload_sha256, file=str(path),
            field="workload_sha256",
        )
    return result
