"""Links between the devices of one client (`hw_profiles/links`): how long an all-reduce takes over them.

A description (`hermes-interconnect/1`) is a formula, from a data sheet or fitted, or measured times, or both:

    all_reduce(n devices, b bytes) = latency + latency_per_doubling * (log2(n) - 1) + 2 (n - 1) / n * b / bandwidth

`b` is what each device contributes; `bandwidth` is what nccl-tests call bus bandwidth: the rate at which one device's
link carries a large ring. `hermes calibrate` measures such a file; measured times win over the formula.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim
from hermes.hardware.base import FloatArray
from hermes.hardware.files import find
from hermes.units import NS_PER_S

__all__ = [
    "FAR_BYTES", "CollectiveTimes", "LinkDescription", "LinkTime", "all_reduce_times", "formula", "load_interconnect",
]

Rate = Annotated[Bandwidth, Field(ge=1e6)]   # less is a figure without its unit
FAR_BYTES = 2.0**40


Latency = Annotated[Duration, Field(le=1.0)]


class LinkTime(ConfigModel):
    """A link in a scenario: the formula of this module."""

    latency: Latency
    """Of an all-reduce of next to no bytes between two devices."""
    latency_per_doubling: Latency = 0.0
    """More of it with four devices, again with eight, and so on."""
    bandwidth: Rate
    """Bytes/s of one device's link in a large all-reduce (bus bandwidth)."""


def formula(latency: float, per_doubling: float, bandwidth: float, ranks: int) -> tuple[FloatArray, FloatArray]:
    """Return (bytes, nanoseconds) of one all-reduce; two points of a line."""
    fixed = latency + per_doubling * (math.log2(ranks) - 1.0)
    sizes = np.array([0.0, FAR_BYTES])
    return sizes, (fixed + 2.0 * (ranks - 1) / ranks * sizes / bandwidth) * NS_PER_S


class CollectiveTimes(ConfigModel):
    """Measured all-reduces of so many devices."""

    ranks: Annotated[int, Field(ge=2, le=1024)]
    bytes: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=10_000)]
    """Contributed by each device; ascending."""
    seconds: Annotated[list[Annotated[float, Field(gt=0, le=1e6)]], Field(min_length=2, max_length=10_000)]
    """Of one all-reduce of that size."""

    @model_validator(mode="after")
    def _one_time_a_size(self) -> Self:
        if len(self.seconds) != len(self.bytes):
            raise InputError(f"{len(self.bytes)} times, one for each size", len(self.seconds), field="seconds")
        if sorted(set(self.bytes)) != self.bytes:
            raise InputError("sizes in ascending order, each once", field="bytes")
        return self


class LinkDescription(ConfigModel):
    """A file of `hw_profiles/links`: what joins the devices of one client."""

    format: Literal["hermes-interconnect/1"]
    name: Name
    latency: Latency | None = None
    """Of an all-reduce of next to no bytes between two devices."""
    latency_per_doubling: Latency = 0.0
    """More of it with four devices, again with eight, and so on."""
    bandwidth: Rate | None = None
    """Bytes/s of one device's link in a large all-reduce (bus bandwidth)."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The same as a share of the device's `link_bandwidth`, for links of several generations."""
    measured: list[CollectiveTimes] = Field(default_factory=list, max_length=100)
    """All-reduces by number of devices; they win over the formula."""
    assumed: bool = False
    """Whether the figures are taken over from another machine."""
    sources: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        if self.bandwidth is not None and self.share is not None:
            raise InputError("bandwidth or share, not both", field="share")
        formula = self.latency is not None and (self.bandwidth is not None or self.share is not None)
        if not formula and not self.measured:
            missing = "latency" if self.latency is None else "bandwidth"
            raise InputError("latency and bandwidth (or share), or measured times", Verbatim("none"), field=missing)
        ranks = [times.ranks for times in self.measured]
        if len(set(ranks)) < len(ranks):
            raise InputError("each number of ranks once", field="measured")
        return self

    def all_reduce(self, ranks: int, link_bandwidth: float) -> tuple[FloatArray, FloatArray]:
        """(bytes, nanoseconds) of one all-reduce: linear between these points, in proportion beyond them.

        link_bandwidth: the device's, in bytes/s, for a `share`. Raises `InputError` for a number of ranks that was not
        measured, where there is no formula.
        """
        for times in self.measured:
            if times.ranks == ranks:
                seconds = np.maximum.accumulate(np.asarray(times.seconds, dtype=np.float64))
                sizes = np.array([0.0, *times.bytes], dtype=np.float64)
                return sizes, np.append(seconds[0], seconds) * NS_PER_S
        rate = self.bandwidth if self.share is None else self.share * link_bandwidth
        if self.latency is None or rate is None:
            known = ", ".join(str(times.ranks) for times in self.measured)
            raise InputError(f"a link that says how long {ranks} devices take; {self.name} was measured with {known}: "
                             "give latency and bandwidth too", ranks)
        return formula(self.latency, self.latency_per_doubling, rate, ranks)


def all_reduce_times(
    link: LinkTime | str, ranks: int, link_bandwidth: float | None, base_dir: Path | None,
) -> tuple[tuple[FloatArray, FloatArray], str]:
    """Return (bytes, nanoseconds) of one all-reduce over a given link, and its source in words.

    link_bandwidth: of the device; None if unknown. Raises `InputError` for an unknown link, and for one that is a share
    of an unknown rate.
    """
    if isinstance(link, LinkTime):
        return formula(link.latency, link.latency_per_doubling, link.bandwidth, ranks), "given link"
    found = load_interconnect(link, base_dir)
    if link_bandwidth is None and found.share is not None:
        raise InputError(f"a device beside the link {found.name}, whose rate is a share of the device's", link)
    times = found.all_reduce(ranks, link_bandwidth or 0.0)
    return times, f"{'assumed: ' if found.assumed else ''}link {found.name}"


def load_interconnect(name_or_path: str | Path, base_dir: Path | None = None) -> LinkDescription:
    """Load a shipped link (`pcie-host-memory`), or a file by path relative to `base_dir`. Raises `InputError`."""
    return load(LinkDescription, find(name_or_path, base_dir, "links", "a link between devices"))
