"""Plans of link measurements for `hermes.calibration.collect.link`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.measurements.base import Measurement
from hermes.calibration.plan import PointPlan
from hermes.config import Bytes, ConfigModel
from hermes.config.validation import validate
from hermes.errors import InputError

__all__ = ["LinkMeasurement", "LinkPlan", "host_bytes", "link_plan", "plan_table"]

Count = Annotated[int, Field(ge=1, le=256)]
Size = Annotated[int, Field(ge=0, le=2**50)]
Path_ = Literal["host_to_device", "device_to_host", "memory_copy", "memory_read", "disk_read"]

KIB, MIB = 2**10, 2**20
_STREAMS_FROM = MIB           # memory, several threads at once: smaller ones would measure the start of threads
_SWEEP_BLOCKS = 256           # blocks read with each block size, and at most 64 MiB
_BLOCKS = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
_GUESS = {                    # bytes/s and seconds per transfer or block, for the estimate only
    "host_to_device": (15e9, 20e-6), "device_to_host": (15e9, 20e-6), "memory_copy": (8e9, 1e-6),
    "memory_read": (15e9, 1e-6), "disk_read": (1e9, 100e-6),
}


def _sizes(smallest: int, largest: int) -> list[int]:
    """Return powers of four times `smallest` up to `largest`, which is always included."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= 4
    return [*sizes, largest]


class LinkPoint(ConfigModel):
    """One path and size."""

    name: str
    path: Path_
    bytes: Annotated[int, Field(ge=1, le=2**50)]
    block_bytes: Size = 0
    memory: Literal["", "pinned", "pageable"] = ""
    streams: Count = 1
    repetitions: Annotated[int, Field(ge=2, le=1000)]
    estimate_s: Annotated[float, Field(ge=0)] = 0.0


class LinkPlan(PointPlan):
    """Transfers by path and size."""

    row_columns: ClassVar[dict[str, str]] = {
        "repetition": "int64", "time_s": "float64", "wall_s": "float64", "waited_s": "float64",
        "host_time_s": "float64",
    }
    point: ClassVar[type[ConfigModel] | None] = LinkPoint

    engine: Literal["link"] = "link"
    collector: str = "hermes.calibration.collect.link"
    clock: Literal["wall"] = "wall"
    warmup_s: float = 0.5
    device: str
    arena_bytes: Size
    disk_dir: str


class LinkMeasurement(Measurement):
    """Latency and bandwidth: host to device and back, host memory, disk."""

    measure: Literal["link"] = "link"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]+)?)$")] = "cpu"
    """cpu (host and disk alone), cuda or cuda:N."""
    paths: list[Literal["device", "memory", "disk"]] = Field(default_factory=list)
    """Paths: device, memory, disk; none: all that the device has."""
    smallest: Bytes = 4 * KIB
    """Smallest transfer."""
    largest: Bytes = 2**30
    """Largest transfer; each is four times as large as the one before."""
    block: Bytes = MIB
    """Disk: bytes of one read."""
    streams: Annotated[list[Count], Field(min_length=1)] = [1]
    """Threads that move bytes at once."""
    disk_dir: str = ""
    """Folder of the test file; empty: the temporary folder."""
    repetitions: Annotated[int, Field(ge=2, le=1000)] = 10
    """Measurements of every size."""
    output: str = "links.yaml"
    """Fitted links; plan and journal beside it."""

    def plan(self, base_dir: Path, python: str | None = None) -> LinkPlan:
        """Return the plan. Raises `InputError` naming the key."""
        if "device" in self.paths and self.device == "cpu":
            raise InputError("device: cuda for the paths of a device", self.device, field="device")
        wanted = set(self.paths) or ({"device", "memory", "disk"} if self.device != "cpu" else {"memory", "disk"})
        folder = None
        if "disk" in wanted:
            folder = base_dir / self.disk_dir if self.disk_dir else Path(tempfile.gettempdir())
            if not folder.is_dir():
                raise InputError("an existing folder", str(folder), field="disk_dir")
        return link_plan(
            self.device if "device" in wanted else "cpu", folder, smallest=self.smallest, largest=self.largest,
            block_bytes=self.block, streams=sorted(set(self.streams)), repetitions=self.repetitions,
            memory="memory" in wanted,
        )


def link_plan(
    device: str, disk_dir: Path | None, *, smallest: int = 4 * KIB, largest: int = 2**30, block_bytes: int = MIB,
    streams: Sequence[int] = (1,), repetitions: int = 10, memory: bool = True, arena_bytes: int | None = None,
) -> LinkPlan:
    """Return the plan: sizes outermost, small to large by path. Raises `InputError` naming the key.

    Args:
        device: `cpu`, or a CUDA device such as `cuda:0`.
        disk_dir: Folder of the test file; None leaves the disk out.
        streams: Numbers of threads that move bytes at once (memory and disk).
        arena_bytes: Memory taken twice for the memory paths, by default `largest` and at least 512 MiB.
    """
    if not 4 * KIB <= smallest <= largest or smallest % (4 * KIB) or largest % (4 * KIB):
        raise InputError("multiples of 4 KiB, the smallest not above the largest", [smallest, largest],
                         field="smallest")
    if block_bytes % (4 * KIB) or block_bytes <= 0:
        raise InputError("a multiple of 4 KiB", block_bytes, field="block")
    sizes = _sizes(smallest, largest)
    points: list[dict[str, Any]] = []
    if device != "cpu":
        points += [_point(path, size, memory=kind) for path in ("host_to_device", "device_to_host")
                   for kind in ("pinned", "pageable") for size in sizes]
    arena = arena_bytes or max(largest, 512 * MIB)
    if memory:
        points += [_point(path, size, streams=n) for path in ("memory_copy", "memory_read") for n in streams
                   for size in sizes if (n == 1 or size >= _STREAMS_FROM) and n * size <= arena]
    if disk_dir is not None:
        points += _disk_points(sizes, block_bytes, streams)
    if not points:
        raise InputError("something to measure", field="paths")
    for point in points:
        point["repetitions"] = repetitions
        point["estimate_s"] = repetitions * _seconds(point)
    return validate(LinkPlan, {
        "device": device, "arena_bytes": arena if memory else 0, "disk_dir": str(disk_dir) if disk_dir else "",
        "points": points,
    })


def _point(path: str, size: int, **more: Any) -> dict[str, Any]:
    tail = " ".join(f"{key}={value}" for key, value in more.items())
    return {"name": f"{path} {size} {tail}", "path": path, "bytes": size, **more}


def _disk_points(sizes: Sequence[int], block: int, streams: Sequence[int]) -> list[dict[str, Any]]:
    found = {(size, min(size, block), n) for n in streams for size in sizes} | {
        (min(_SWEEP_BLOCKS * one, 64 * MIB), one, 1) for one in _BLOCKS if _SWEEP_BLOCKS * one <= sizes[-1]
    }
    return [_point("disk_read", size, block_bytes=one, streams=n) for size, one, n in sorted(found)]


def _seconds(point: dict[str, Any]) -> float:
    bandwidth, latency = _GUESS[point["path"]]
    size = int(point["bytes"])
    blocks = -(-size // int(point.get("block_bytes", size)))
    return max(int(point.get("streams", 1)) * size / bandwidth + blocks * latency, 2e-3)


def host_bytes(plan: LinkPlan) -> int:
    """Return the collector's host memory: two arenas, and for a device a pinned and a pageable buffer."""
    copied = [int(point["bytes"]) for point in plan.points if "memory" in point]
    return 2 * plan.arena_bytes + 2 * max(copied, default=0)


def plan_table(plan: LinkPlan) -> list[list[Any]]:
    """Return rows of (path, variant, sizes, points, seconds)."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in plan.points:
        variant = point.get("memory") or f"{point.get('streams', 1)} stream(s)"
        groups.setdefault((point["path"], variant), []).append(point)
    return [
        [path, variant, f"{min(p['bytes'] for p in found)}..{max(p['bytes'] for p in found)}", len(found),
         round(sum(p["estimate_s"] for p in found), 2)]
        for (path, variant), found in groups.items()
    ]
