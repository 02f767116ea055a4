"""Links between the devices of one client (`hw_profiles/links`): how long an all-reduce takes over them.

A description (`hermes-interconnect/1`) is a formula, from a data sheet or fitted, or measured times, or both:

    all_reduce(n devices, b bytes) = latency + latency_per_doubling * (log2(n) - 1) + 2 (n - 1) / n * b / bandwidth

`b` is what each device contributes; `bandwidth` is what nccl-tests call bus bandwidth: the rate at which one device's
link carries a large ring. `hermes calibrate` measures such a file; measured times win over the formula.

A link that is assumed for machines of which nothing is known says what others measured: `fast` and `slow`, the ends of
its range.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import FloatArray
from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.devices import Rates
from hermes.hardware.descriptions.files import find
from hermes.hardware.trust import FEW, GUESS, MEASURED, NEAR, Trust
from hermes.units import NS_PER_S

__all__ = [
    "FAR_BYTES", "CollectiveTimes", "Joined", "LinkDescription", "LinkEnd", "LinkTime", "all_reduce_times", "formula",
    "load_interconnect", "span",
]

Rate = Annotated[Bandwidth, Field(ge=1e6)]   # less is a figure without its unit
Share = Annotated[float, Field(gt=0, le=1)]
FAR_BYTES = 2.0**40
GIVEN = Trust("guess", 0.6, 2.0)   # one latency and bandwidth: what those of one user are off (llm-d)
SPANNED = np.geomspace(2.0**13, 2.0**27, 15)   # bytes of an all-reduce: a row of a small model, 8,192 of a large one


class Joined(NamedTuple):
    """One all-reduce over a link: (bytes, nanoseconds), the source in words, and how far to trust it."""

    times: tuple[FloatArray, FloatArray]
    source: str
    trust: Trust


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


def span(fast: tuple[FloatArray, FloatArray], middle: tuple[FloatArray, FloatArray],
         slow: tuple[FloatArray, FloatArray]) -> Trust:
    """Return the range of a guess: its least and greatest factor over all usual sizes."""
    at = {name: np.interp(SPANNED, *times) for name, times in (("fast", fast), ("middle", middle), ("slow", slow))}
    return Trust("guess", min(float((at["fast"] / at["middle"]).min()), 1.0),
                 max(float((at["slow"] / at["middle"]).max()), 1.0))


def _by_formula(ranks: int) -> Trust:
    """How far to trust one latency and bandwidth for all sizes: engines and NCCL change their way with the size."""
    return NEAR if ranks <= FEW else GIVEN


class LinkEnd(ConfigModel):
    """One end of what is known of links of this kind: the formula of this module."""

    latency: Latency
    """Of an all-reduce of next to no bytes between two devices."""
    latency_per_doubling: Latency = 0.0
    """More of it with four devices, again with eight, and so on."""
    bandwidth: Rate | None = None
    """Bytes/s of one device's link in a large all-reduce (bus bandwidth)."""
    pcie_share: Share | None = None
    """The same as a share of the rate of the device's PCIe slot."""
    divided: bool = False
    """Whether all devices share one path, so that each of four has half of what each of two has."""

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.bandwidth is None) == (self.pcie_share is None):
            raise InputError("one of bandwidth and pcie_share", field="bandwidth")
        return self

    def rate(self, ranks: int, rates: Rates) -> float:
        """Bytes/s of one device's link among so many."""
        whole = self.bandwidth if self.bandwidth is not None else (self.pcie_share or 0.0) * rates.pcie
        return whole * 2.0 / ranks if self.divided else whole

    def all_reduce(self, ranks: int, rates: Rates) -> tuple[FloatArray, FloatArray]:
        """(bytes, nanoseconds) of one all-reduce."""
        return formula(self.latency, self.latency_per_doubling, self.rate(ranks, rates), ranks)


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
    share: Share | None = None
    """The same as a share of the device's `link_bandwidth`, for links of several generations."""
    pcie_share: Share | None = None
    """The same as a share of the rate of the device's PCIe slot (`pcie` of a device), by its generation and lanes."""
    measured: list[CollectiveTimes] = Field(default_factory=list, max_length=100)
    """All-reduces by number of devices; they win over the formula."""
    assumed: bool = False
    """Whether the figures are taken over from another machine."""
    fast: LinkEnd | None = None
    """The fastest machine of this kind that is known; the range of an assumed link."""
    slow: LinkEnd | None = None
    """The slowest."""
    sources: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        given = [name for name in ("bandwidth", "share", "pcie_share") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{given[0]} or {given[1]}, not both", field=given[1])
        formula = self.latency is not None and given
        if not formula and not self.measured:
            missing = "latency" if self.latency is None else "bandwidth"
            raise InputError("latency and bandwidth (or share, or pcie_share), or measured times", Verbatim("none"),
                             field=missing)
        ranks = [times.ranks for times in self.measured]
        if len(set(ranks)) < len(ranks):
            raise InputError("each number of ranks once", field="measured")
        if (self.fast is None) != (self.slow is None):
            raise InputError("both ends of the range, or neither", field="fast" if self.fast is None else "slow")
        return self

    def rate(self, rates: Rates) -> float | None:
        """Bytes/s of one device's link, None without a formula. Raises `InputError` for a share of an unknown rate."""
        for share, whole, of in ((self.share, rates.link, "link_bandwidth"), (self.pcie_share, rates.pcie, "pcie")):
            if share is not None:
                if not whole:
                    raise InputError(f"a device beside the link {self.name}, whose rate is a share of the device's "
                                     f"({of})", self.name)
                return share * whole
        return self.bandwidth

    def all_reduce(self, ranks: int, rates: Rates) -> tuple[FloatArray, FloatArray]:
        """(bytes, nanoseconds) of one all-reduce: linear between these points, in proportion beyond them.

        Raises `InputError` for a number of ranks that was not measured, where there is no formula.
        """
        for times in self.measured:
            if times.ranks == ranks:
                seconds = np.maximum.accumulate(np.asarray(times.seconds, dtype=np.float64))
                sizes = np.array([0.0, *times.bytes], dtype=np.float64)
                return sizes, np.append(seconds[0], seconds) * NS_PER_S
        rate = self.rate(rates)
        if self.latency is None or rate is None:
            known = ", ".join(str(times.ranks) for times in self.measured)
            raise InputError(f"a link that says how long {ranks} devices take; {self.name} was measured with {known}: "
                             "give latency and bandwidth too", ranks)
        return formula(self.latency, self.latency_per_doubling, rate, ranks)

    def trust(self, ranks: int, rates: Rates) -> Trust:
        """How far to trust `all_reduce`: measured times, a formula, or what is assumed."""
        if any(times.ranks == ranks for times in self.measured):
            return NEAR if self.assumed else MEASURED
        if self.fast is None or self.slow is None:
            return GUESS if self.assumed else _by_formula(ranks)
        return span(self.fast.all_reduce(ranks, rates), self.all_reduce(ranks, rates),
                    self.slow.all_reduce(ranks, rates))


def all_reduce_times(link: LinkTime | str, ranks: int, rates: Rates, base_dir: Path | None) -> Joined:
    """Return one all-reduce over a given link.

    Raises `InputError` for an unknown link, and for one that is a share of an unknown rate.
    """
    if isinstance(link, LinkTime):
        times = formula(link.latency, link.latency_per_doubling, link.bandwidth, ranks)
        return Joined(times, "given link", _by_formula(ranks))
    found = load_interconnect(link, base_dir)
    return Joined(found.all_reduce(ranks, rates), f"{'assumed: ' if found.assumed else ''}link {found.name}",
                  found.trust(ranks, rates))


def load_interconnect(name_or_path: str | Path, base_dir: Path | None = None) -> LinkDescription:
    """Load a shipped link (`pcie-host-memory`), or a file by path relative to `base_dir`. Raises `InputError`."""
    return load(LinkDescription, find(name_or_path, base_dir, "links", "a link between devices"))
