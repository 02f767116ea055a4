"""Efficiency factors of the roofline: the share of a device's peak rates that each class of operators reaches.

A set of factors is fitted on measured steps (`hermes fit-roofline`) and stored as `hw_profiles/efficiency/NAME.yaml`
(format `hermes-efficiency/1`) with its source and its error on models it was not fitted on. A device description names
its set: fitted on that card, or on the nearest measured one.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from hermes.config import ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError
from hermes.hardware.descriptions.files import find
from hermes.sums import float_sum

__all__ = ["AllReduceFactors", "Efficiency", "EfficiencyFile", "HeldOut", "OperatorFactors", "load_efficiency"]

Share = Annotated[float, Field(ge=1e-6, le=1)]  # values near 0 would make times infinite


class OperatorFactors(ConfigModel):
    """Shares of the peak rates that one class of operators reaches when it is large."""

    compute: Share
    """Share of the peak FLOP/s."""
    memory: Share
    """Share of the memory bandwidth."""


class AllReduceFactors(ConfigModel):
    """Factors of an all-reduce among a number of devices."""

    devices: Annotated[int, Field(ge=2, le=1024)]
    """Number of devices."""
    bandwidth: Share
    """Share of the link bandwidth that a large all-reduce reaches."""
    latency: Duration
    """Time of an all-reduce of almost no data."""


class Efficiency(ConfigModel):
    """Factors of all operator classes.

    An operator takes max(c, m) + (1 - overlap) * min(c, m), with c = flops / (peak * compute) and
    m = bytes / (bandwidth * memory), plus its kernels' latencies.
    """

    qkv_o: OperatorFactors
    """Query/key/value and output projections (and the router of a mixture): the smaller matrices."""
    ffn: OperatorFactors
    """Matrices of a dense feed-forward network."""
    experts: OperatorFactors
    """Grouped matrices of a mixture of experts."""
    lm_head: OperatorFactors
    """The output head, on sampled tokens."""
    prefill_attention: OperatorFactors
    """Attention of prompt tokens to the prompt and the tokens cached before it."""
    decode_attention: OperatorFactors
    """Attention of decodes to their contexts, usually bound by reading the KV cache."""
    elementwise: Share
    """Norms, rotary embedding, activation function, residuals: share of the memory bandwidth."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Part of an operator's shorter side (arithmetic or memory) that the longer side hides."""
    attention_tile: Annotated[float, Field(ge=0, le=65536)] = 0.0
    """Pairs that prefill attention computes in vain per token: the masked half of the tiles on the diagonal."""
    kernel_latency: Duration
    """Time of a linear or element-wise kernel with almost no work."""
    prefill_attention_latency: Duration
    """Time of one layer's prefill attention with almost no work."""
    decode_attention_latency: Duration
    """Time of one layer's decode attention with almost no work."""
    all_reduce: Annotated[list[AllReduceFactors], Field(min_length=1, max_length=64)]
    """By number of devices, ascending. Other numbers take the nearest smaller entry (or the smallest)."""
    step_overhead: Duration = 0.0
    """Time per step outside the operators (the engine, sampling)."""

    @field_validator("all_reduce")
    @classmethod
    def _ascending(cls, value: list[AllReduceFactors]) -> list[AllReduceFactors]:
        numbers = [part.devices for part in value]
        if sorted(set(numbers)) != numbers:
            raise InputError("numbers of devices in ascending order", numbers)
        return value

    def all_reduce_of(self, devices: int) -> AllReduceFactors:
        """Return the factors among `devices` devices."""
        return next((part for part in reversed(self.all_reduce) if part.devices <= devices), self.all_reduce[0])


class HeldOut(ConfigModel):
    """Error on one data set that the factors (then fitted on the others) were not fitted on."""

    steps: str
    """The data set: model, parallelism, precision."""
    points: Annotated[int, Field(ge=1)]
    mape: Annotated[float, Field(ge=0)]
    """Mean absolute relative error, a fraction."""
    bias: float
    """Mean signed relative error, a fraction."""
    worst: Annotated[float, Field(ge=0)]


class EfficiencyFile(ConfigModel):
    """A set of factors with its provenance, format `hermes-efficiency/1`."""

    format: Literal["hermes-efficiency/1"]
    name: Name
    device: str = ""
    """Device description whose peak rates the factors are shares of; empty for none."""
    sources: list[str]
    """Sources of the measured steps, or of assumed factors."""
    date: datetime.date | str = ""
    fitted_by: str = ""
    factors: Efficiency
    """For weights of 16 bits and more, and for narrower ones that are widened before multiplication."""
    factors_8bit: Efficiency | None = None
    """For weights multiplied in 8 bits. Left out, `factors`."""
    held_out: list[HeldOut] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    def of(self, compute: str) -> Efficiency:
        """Return the factors for an arithmetic (`bf16`, `fp8`, ...)."""
        return self.factors_8bit if self.factors_8bit is not None and compute in ("fp8", "int8") else self.factors

    @property
    def mape(self) -> float | None:
        """Mean held-out error over data sets, a fraction; None without held-out sets."""
        return float_sum(row.mape for row in self.held_out) / len(self.held_out) if self.held_out else None


def load_efficiency(name_or_path: str | Path, base_dir: Path | None = None) -> EfficiencyFile:
    """Load a shipped set by name (`h100-sxm`, `ideal`), or a file relative to `base_dir`. Raises `InputError`."""
    path = find(name_or_path, base_dir, "efficiency", "a file of efficiency factors")
    return load(EfficiencyFile, path)


def uniform(compute: float = 1.0, memory: float = 1.0, **more: Any) -> Efficiency:
    """Return equal shares for every class, perfect overlap and no latencies (a plain roofline), except for `more`."""
    both = OperatorFactors(compute=compute, memory=memory)
    fields: dict[str, Any] = {
        **dict.fromkeys(("qkv_o", "ffn", "experts", "lm_head", "prefill_attention", "decode_attention"), both),
        "elementwise": memory, "overlap": 1.0, "kernel_latency": 0.0, "prefill_attention_latency": 0.0,
        "decode_attention_latency": 0.0, "all_reduce": [AllReduceFactors(devices=2, bandwidth=1.0, latency=0.0)],
    }
    return Efficiency(**(fields | more))
