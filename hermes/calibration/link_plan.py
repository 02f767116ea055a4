"""Which transfers `hermes calibrate link` measures: a plan for `hermes.calibration.collect.link`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hermes.errors import InputError

__all__ = ["COLLECTOR", "host_bytes", "link_plan", "plan_table"]

COLLECTOR = "hermes.calibration.collect.link"

KIB, MIB = 2**10, 2**20
_STREAMS_FROM = MIB           # memory, several threads at once: below, starting them would be measured
_SWEEP_BLOCKS = 256           # blocks read with each block size, and at most 64 MiB
_BLOCKS = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
_GUESS = {                    # bytes/s and seconds per transfer or block, for the estimate only
    "host_to_device": (15e9, 20e-6), "device_to_host": (15e9, 20e-6), "memory_copy": (8e9, 1e-6),
    "memory_read": (15e9, 1e-6), "disk_read": (1e9, 100e-6),
}


def _sizes(smallest: int, largest: int) -> list[int]:
    """Powers of four times `smallest` up to `largest`, which is always there."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= 4
    return [*sizes, largest]


def link_plan(
    device: str, disk_dir: Path | None, *, smallest: int = 4 * KIB, largest: int = 2**30, block_bytes: int = MIB,
    streams: Sequence[int] = (1,), repetitions: int = 10, memory: bool = True, arena_bytes: int | None = None,
) -> dict[str, Any]:
    """The plan: sizes outermost, small to large by path.

    device: `cpu`, or a CUDA device such as `cuda:0`; disk_dir: where the test file goes, None to leave the disk out;
    streams: numbers of threads that move bytes at once (memory and disk); arena_bytes: memory taken twice for the
    memory paths, by default `largest` and at least 512 MiB. Raises `InputError` naming the option.
    """
    if not 4 * KIB <= smallest <= largest or smallest % (4 * KIB) or largest % (4 * KIB):
        raise InputError("multiples of 4 KiB, the smallest not above the largest", [smallest, largest], field="--sizes")
    if block_bytes % (4 * KIB) or block_bytes <= 0:
        raise InputError("a multiple of 4 KiB", block_bytes, field="--block")
    if repetitions < 2:
        raise InputError("at least 2 (noise is told from repetitions)", repetitions, field="--repetitions")
    if any(n < 1 or n > 256 for n in streams):
        raise InputError("numbers of threads between 1 and 256", list(streams), field="--streams")
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
        raise InputError("something to measure", field="--paths")
    for point in points:
        point["repetitions"] = repetitions
        point["estimate_s"] = repetitions * _seconds(point)
    return {
        "format": "hermes-plan/1", "engine": "link", "collector": COLLECTOR, "device": device, "clock": "wall",
        "warmup_s": 0.5, "arena_bytes": arena if memory else 0, "disk_dir": str(disk_dir) if disk_dir else "",
        "points": points,
    }


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


def host_bytes(plan: dict[str, Any]) -> int:
    """Host memory the collector takes: two arenas, and for a device a pinned and a pageable buffer."""
    copied = [int(point["bytes"]) for point in plan["points"] if "memory" in point]
    return 2 * int(plan["arena_bytes"]) + 2 * max(copied, default=0)


def plan_table(plan: dict[str, Any]) -> list[list[Any]]:
    """Rows of (path, variant, sizes, points, seconds) for people."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in plan["points"]:
        variant = point.get("memory") or f"{point.get('streams', 1)} stream(s)"
        groups.setdefault((point["path"], variant), []).append(point)
    return [
        [path, variant, f"{min(p['bytes'] for p in found)}..{max(p['bytes'] for p in found)}", len(found),
         round(sum(p["estimate_s"] for p in found), 2)]
        for (path, variant), found in groups.items()
    ]
