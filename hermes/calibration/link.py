"""Measured links of a host (`hermes-link/1`), and the plan of their measurement: latency and bandwidth per path.

A transfer of b bytes takes `latency + b / bandwidth`. Both are non-negative and fitted to the median time of each size
with relative weights, so that small transfers count as much as large ones; the file also gives the error at every size.
The times come from our collector (`hermes.calibration.collect.link`) or from fio; nvbandwidth gives a bandwidth alone
(`hermes.calibration.link_fit`). A scenario takes the values unchanged: `network_lines` prints them in the form of its
`network:` section.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hermes.calibration.plan import PointPlan
from hermes.calibration.table_files import Origin
from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim
from hermes.hardware.profile import dump_yaml

__all__ = [
    "MOST_READ", "LinkFile", "LinkPlan", "LinkProvenance", "MeasuredLink", "SizeError", "load_link", "network_lines",
    "save_link",
]

Fraction = Annotated[float, Field(ge=0)]
Path_ = Literal["host_to_device", "device_to_host", "memory_copy", "disk_read"]
Memory = Literal["", "pinned", "pageable"]

MOST_READ = 64 * 2**20
"""Largest read of a disk."""


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
        return 2 * self.arena_bytes + 2 * max(copied, default=0) + (MOST_READ if self.disk_dir else 0)


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


class LinkProvenance(Origin):
    """Source of the figures."""

    cpu: str
    device: str = ""


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
