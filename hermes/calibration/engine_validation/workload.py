"""Online workload of a validation: the file `hermes-online/1`, input of the engine and of the simulation.

`hermes.calibration.collect.online` describes the format on the engine's side, which reads it without pydantic.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from hermes.calibration.collect.online import WORKLOAD_FORMAT
from hermes.calibration.table_files import number_in
from hermes.config import ConfigModel
from hermes.config.files import csv_rows
from hermes.config.streams import stream
from hermes.config.validation import validate
from hermes.errors import InputError
from hermes.hardware.files import read_json

__all__ = ["Clock", "EngineSettings", "OnlineRequest", "OnlineWorkload", "draw_requests", "read_requests",
           "read_workload"]

Clock = Literal["wall", "cpu"]
"""Clock of the workload: a second on the wall, or a second of the engine's CPU time (idle time is skipped)."""
Count = Annotated[int, Field(ge=1, le=2**31)]


class EngineSettings(ConfigModel):
    """Set-up of the real engine. An engine ignores keys that it does not use."""

    model: dict[str, Any]
    """Content of the model's config.json; the weights are dummies."""
    device: Annotated[str, Field(min_length=1)] = "cpu"
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Precision of weights and arithmetic."""
    threads: Count = 1
    """CPU threads, for an engine on a CPU."""
    tensor_parallel: Count = 1
    max_num_batched_tokens: Count = 512
    max_num_seqs: Count = 32
    block_size: Count = 128
    """Tokens per KV block."""
    num_blocks: Count = 1360
    """KV blocks for requests."""
    max_model_len: Count = 4096
    seed: int = 0
    """Seed of the dummy weights and prompts."""


class OnlineRequest(ConfigModel):
    """One request; generation never stops early."""

    arrival_s: Annotated[float, Field(ge=0, le=1e9)]
    prompt_tokens: Count
    output_tokens: Count


class OnlineWorkload(ConfigModel):
    """Requests in order of arrival, and the engine that serves them."""

    format: Literal["hermes-online/1"] = "hermes-online/1"
    clock: Clock
    warmup_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    """Seconds for which the engine serves its reference batch before the first request."""
    engine: EngineSettings
    requests: Annotated[list[OnlineRequest], Field(min_length=1)]

    @model_validator(mode="after")
    def _servable(self) -> OnlineWorkload:
        arrivals = [request.arrival_s for request in self.requests]
        if arrivals != sorted(arrivals):
            raise InputError("requests in order of arrival", field="requests")
        longest = max(request.prompt_tokens + request.output_tokens for request in self.requests)
        if longest > self.engine.max_model_len:
            raise InputError(
                f"at least {longest}, the longest request", self.engine.max_model_len, field="engine.max_model_len"
            )
        return self

    def text(self) -> str:
        """Return the file's content; same workload, same bytes."""
        assert self.format == WORKLOAD_FORMAT
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    @property
    def sha256(self) -> str:
        """Return the hash of the file."""
        return hashlib.sha256(self.text().encode()).hexdigest()


def read_workload(path: Path) -> OnlineWorkload:
    """Load a workload file. Raises `InputError` naming the file and the field."""
    return validate(OnlineWorkload, read_json(path), str(path))


def draw_requests(
    rate: float, requests: int, seed: int, prompt: tuple[int, int] = (32, 1500), output: tuple[int, int] = (8, 64),
) -> list[OnlineRequest]:
    """Draw Poisson arrivals at `rate` a second; prompt lengths log-uniform and output lengths uniform in [low, high].

    Short and long prompts are equally likely, so that steps with whole prompts, chunks and decodes all occur.
    """
    draw = stream(seed, "engine-validation")
    arrivals = np.cumsum(draw.exponential(1.0 / rate, requests))
    low, high = np.log(prompt)
    prompts = np.rint(np.exp(draw.uniform(low, high, requests))).astype(int)
    outputs = draw.integers(output[0], output[1] + 1, requests)
    return [
        OnlineRequest(arrival_s=round(float(a), 6), prompt_tokens=int(p), output_tokens=int(o))
        for a, p, o in zip(arrivals, prompts, outputs, strict=True)
    ]


_NAMES = {"prompt_tokens": ("prompt_tokens", "prompt_len"), "output_tokens": ("output_tokens", "output_len"),
          "arrival_s": ("arrival_s",)}


def read_requests(path: Path) -> list[OnlineRequest]:
    """Read requests of a CSV file with arrival_s, prompt_tokens (or prompt_len) and output_tokens (or output_len).

    Raises `InputError` naming file, line and column.
    """
    rows = csv_rows(path)
    _, header = next(rows)
    columns = {}
    for field, names in _NAMES.items():
        found = [name for name in names if name in header]
        if not found:
            raise InputError(f"a column {' or '.join(names)}", file=str(path), line=1, field=field)
        columns[field] = header.index(found[0])
    requests = []
    for line, cells in rows:
        values: dict[str, Any] = {}
        for field, column in columns.items():
            kind = "float64" if field == "arrival_s" else "int64"
            values[field] = number_in(cells[column], kind, str(path), line, header[column])
        try:
            requests.append(validate(OnlineRequest, values))
        except InputError as error:
            raise error.located(file=f"{path}:{line}") from None
    return requests
