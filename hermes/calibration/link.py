"""Measured links of a host (`hermes-link/1`): latency and bandwidth per path.

A transfer of b bytes takes `latency + b / bandwidth`. Both are non-negative and fitted to the median time of each size
with relative weights, so that small transfers count as much as large ones; the file also gives the error at every size.
The times come from our collector (`hermes.calibration.collect.link`) or from fio; nvbandwidth gives a bandwidth alone
(`hermes.calibration.link_fit`). A scenario takes the values unchanged: `network_lines` prints them in the form of its
`network:` section.
"""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.plan import PointPlan
from hermes.config import Bandwidth, Bytes, ConfigModel, Duration, Name
from hermes.config.validation import load, validate
from hermes.errors import InputError, Verbatim
from hermes.hardware.profile import dump_yaml

__all__ = [
    "LinkFile", "LinkMeasurement", "LinkPlan", "LinkProvenance", "MeasuredLink", "SizeError", "load_link",
    "network_lines", "save_link",
]

Fraction = Annotated[float, Field(ge=0)]
Path_ = Literal["host_to_device", "device_to_host", "memory_copy", "disk_read"]
Memory = Literal["", "pinned", "pageable"]

_ALIGN, _MOST_READ = 4096, 64 * 2**20
_GUESS = {"memory_copy": (8e9, 1e-6), "disk_read": (1e9, 100e-6)}   # bytes/s and seconds, for the estimate only


# -- plans -------------------------------------------------------------------------------------------------------------


class LinkPoint(ConfigModel):
    """One path and size."""

    name: str
    path: Path_
    bytes: Annotated[int, Field(ge=1, le=2**50)]
    memory: Memory = ""
    repetitions: Annotated[int, Field(ge=2, le=1000)]
    estimate_s: Annotated[float, Field(ge=0)] = 0.0


class LinkPlan(PointPlan):
    """Transfers by path and size."""

    row_columns: ClassVar[dict[str, str]] = {
        "repetition": "int64", **dict.fromkeys(("time_s", "wall_s", "waited_s", "host_time_s"), "float64")}
    point: ClassVar[type[ConfigModel] | None] = LinkPoint

    engine: Literal["link"] = "link"
    collector: str = "hermes.calibration.collect.link"
    clock: Literal["wall"] = "wall"
    warmup_s: float = 0.5
    device: str
    arena_bytes: Annotated[int, Field(ge=0, le=2**50)]
    disk_dir: str

    def host_bytes(self) -> int:
        """Return the collector's host memory: two arenas, and buffers for a device (twice) and the disk."""
        copied = [int(point["bytes"]) for point in self.points if point.get("memory")]
        return 2 * self.arena_bytes + 2 * max(copied, default=0) + (_MOST_READ if self.disk_dir else 0)


class LinkMeasurement(ConfigModel):
    """Latency and bandwidth: host to device and back, host memory, disk."""

    measure: Literal["link"] = "link"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]+)?)$")] = "cpu"
    """cpu (host and disk alone), cuda or cuda:N."""
    paths: list[Literal["device", "memory", "disk"]] = Field(default_factory=list)
    """Paths: device, memory, disk; none: all that the device has."""
    smallest: Bytes = _ALIGN
    """Smallest transfer."""
    largest: Bytes = 2**30
    """Largest transfer; each is four times as large as the one before. Reads of a disk end at 64 MiB."""
    disk_dir: str = ""
    """Folder of the test file; empty: the temporary folder."""
    repetitions: Annotated[int, Field(ge=2, le=1000)] = 10
    """Measurements of every size."""
    output: str = "links.yaml"
    """Fitted links; plan and journal beside it."""

    def plan(self, base_dir: Path, python: str | None = None) -> LinkPlan:
        """Return the plan: by path, sizes from small to large. Raises `InputError` naming the key."""
        if "device" in self.paths and self.device == "cpu":
            raise InputError("device: cuda for the paths of a device", self.device, field="device")
        if not _ALIGN <= self.smallest <= self.largest or self.smallest % _ALIGN or self.largest % _ALIGN:
            raise InputError("multiples of 4 KiB, the smallest not above the largest", [self.smallest, self.largest],
                             field="smallest")
        wanted = self.paths or ["device", "memory", "disk"]
        sizes = [*(self.smallest * 4**n for n in range(30) if self.smallest * 4**n < self.largest), self.largest]
        points: list[dict[str, Any]] = []
        if "device" in wanted and self.device != "cpu":
            points += [self._point(path, size, kind) for path in ("host_to_device", "device_to_host")
                       for kind in ("pinned", "pageable") for size in sizes]
        if "memory" in wanted:
            points += [self._point("memory_copy", size) for size in sizes]
        folder = ""
        if "disk" in wanted:
            where = base_dir / self.disk_dir if self.disk_dir else Path(tempfile.gettempdir())
            if not where.is_dir():
                raise InputError("an existing folder", str(where), field="disk_dir")
            folder = str(where)
            points += [self._point("disk_read", size) for size in sizes if size <= max(_MOST_READ, self.smallest)]
        return validate(LinkPlan, {
            "device": self.device, "points": points, "disk_dir": folder,
            "arena_bytes": max(self.largest, 512 * 2**20) if "memory" in wanted else 0,
        })

    def _point(self, path: str, size: int, memory: str = "") -> dict[str, Any]:
        bandwidth, latency = _GUESS.get(path, (15e9, 20e-6))
        return {"name": f"{path} {size} {memory}".strip(), "path": path, "bytes": size, "memory": memory,
                "repetitions": self.repetitions, "estimate_s": self.repetitions * max(size / bandwidth + latency, 2e-3)}


# -- files -------------------------------------------------------------------------------------------------------------


class SizeError(ConfigModel):
    """One size of a path: the measurement, and the error of the fit."""

    bytes: Annotated[int, Field(ge=1)]
    median_s: Annotated[float, Field(gt=0)]
    cv: Fraction
    noise: str
    """Class of the repetitions' variation; `contended` if they waited for a core: shown, but not fitted while three
    other sizes are left."""
    error: float = 0.0
    """(fit - median) / median."""


class MeasuredLink(ConfigModel):
    """One path: `seconds = latency + bytes / bandwidth`."""

    path: Path_
    memory: Memory = ""
    """Host memory of a copy between host and device."""
    latency: Duration | None = None
    """None where the tool measured one size only."""
    bandwidth: Bandwidth
    mape: Fraction | None = None
    """Mean absolute relative error over sizes, a fraction."""
    worst: Fraction | None = None
    held_out_mape: Fraction | None = None
    """The same as `mape`, with each size predicted by a fit without it."""
    sizes: list[SizeError] = Field(default_factory=list)

    def seconds(self, num_bytes: int) -> float:
        """Return the time of one transfer; without a latency where that is unknown."""
        return (self.latency or 0.0) + num_bytes / self.bandwidth

    def label(self) -> str:
        """Return its name in tables."""
        return f"{self.path} ({self.memory})" if self.memory else self.path


class LinkProvenance(ConfigModel):
    """Source of the figures."""

    cpu: str
    device: str = ""
    date: datetime.date | str
    clock: str
    collected_by: str = ""
    source: str
    environment: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class LinkFile(ConfigModel):
    """A `hermes-link/1` file."""

    format: Literal["hermes-link/1"] = "hermes-link/1"
    name: Name
    provenance: LinkProvenance
    links: Annotated[list[MeasuredLink], Field(min_length=1)]

    def find(self, path: str, memory: str = "") -> MeasuredLink:
        """Return the link of a path. The `InputError` for an unknown path lists the known ones."""
        for link in self.links:
            if (link.path, link.memory) == (path, memory):
                return link
        there = "; ".join(link.label() for link in self.links)
        raise InputError(f"one of the links of {self.name}: {there}", Verbatim(f"{path} {memory}"))


def save_link(link: LinkFile, path: Path) -> None:
    """Write a file that `load_link` reads; its first lines show its use in a scenario."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["Measured links. In a scenario, where clients are joined by one of them:", ""]
    for found in link.links:
        error = "" if found.mape is None or found.worst is None else (
            f"error {found.mape:.1%} on average over sizes, {found.worst:.1%} at worst")
        lines += [f"{found.label()}: {error}", *(f"    {line}" for line in network_lines(found))]
    dump_yaml(link, path, "\n".join(lines))


def load_link(path: Path) -> LinkFile:
    """Load a measured-links file. Raises `InputError`."""
    return load(LinkFile, path)


def network_lines(link: MeasuredLink) -> list[str]:
    """Return the lines of a scenario's `network:` for clients joined by this link; also the keys of a topology's
    `links`."""
    latency = "0 s   # not measured: fill it in" if link.latency is None else _quantity(link.latency, "s")
    return ["network:", "  kind: link", f"  bandwidth: {_quantity(link.bandwidth, 'B/s')}", f"  latency: {latency}"]


def _quantity(value: float, unit: str) -> str:
    """Return a value in a readable unit with four digits: `21.3 GB/s`, `8.1 us`."""
    prefixes = ((1e9, "G"), (1e6, "M"), (1.0, "")) if unit == "B/s" else ((1.0, ""), (1e-3, "m"), (1e-6, "u"))
    factor, prefix = next(((f, p) for f, p in prefixes if value >= f), (1.0, "") if unit == "B/s" else (1e-9, "n"))
    return f"{value / factor:.4g} {prefix}{unit}"
