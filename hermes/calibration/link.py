"""Measured links (`hermes-link/1`): latency and bandwidth per path, fitted to a collector's journal.

A transfer of b bytes takes `latency + b / bandwidth`; a disk read of b bytes in blocks takes `ceil(b / block) * latency
+ b / bandwidth`. Both parameters are non-negative and fitted to the median time of each size with relative weights, so
that small transfers count as much as large ones; the file also gives the error at every size. A scenario takes the
values unchanged: `network_lines` prints them in the form of its `network:` section.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from sklearn.model_selection import LeaveOneOut

from hermes.calibration.collect.contention import LIMIT, contended, steady
from hermes.calibration.comparison import compare_times
from hermes.calibration.fit.estimators import solve
from hermes.calibration.link_plan import LinkPlan
from hermes.calibration.records import read_records
from hermes.calibration.table_files import Origin
from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.core.noise import Spread, spread, tally
from hermes.errors import InputError, Verbatim
from hermes.hardware.profile import dump_yaml

__all__ = [
    "LinkFile", "LinkProvenance", "MeasuredLink", "SizeError", "fit_links", "link_file", "load_link", "network_lines",
    "save_link",
]

Fraction = Annotated[float, Field(ge=0)]


class SizeError(ConfigModel):
    """One size of a path: the measurement, and the error of the fit."""

    bytes: Annotated[int, Field(ge=1)]
    block_bytes: Annotated[int, Field(ge=0)] = 0
    """Disk reads: bytes of one read."""
    median_s: Annotated[float, Field(gt=0)]
    error: float
    """(fit - median) / median."""
    held_out: float | None = None
    """The same for a fit without this size."""
    cv: Fraction
    noise: str
    """Class of the repetitions' variation; `contended` if they waited for a core: shown, but not fitted while three
    other sizes are left."""


class MeasuredLink(ConfigModel):
    """One path: `seconds = latency_s * pieces + bytes / bandwidth`, pieces 1 or the blocks of a disk read."""

    path: Literal["host_to_device", "device_to_host", "memory_copy", "memory_read", "disk_read"]
    memory: Literal["", "pinned", "pageable"] = ""
    """Host memory of a copy between host and device."""
    streams: Annotated[int, Field(ge=1)] = 1
    """Transfers that ran at the same time."""
    latency: Duration
    bandwidth: Bandwidth
    """Bytes/s of one stream. All streams together: times `streams`."""
    mape: Fraction
    """Mean absolute relative error over sizes, a fraction."""
    worst: Fraction
    held_out_mape: Fraction | None = None
    """The same, with each size predicted by a fit without it."""
    sizes: Annotated[list[SizeError], Field(min_length=1)]

    def seconds(self, num_bytes: int, block_bytes: int | None = None) -> float:
        """Return the time of one transfer; `block_bytes` for disk reads (by default one block)."""
        pieces = -(-num_bytes // block_bytes) if block_bytes else 1
        return pieces * self.latency + num_bytes / self.bandwidth

    def label(self) -> str:
        """Return its name in tables."""
        more = [part for part in (self.memory, f"{self.streams} streams" if self.streams > 1 else "") if part]
        return f"{self.path} ({', '.join(more)})" if more else self.path


class LinkProvenance(Origin):
    """Source of the figures."""

    cpu: str
    device: str = ""


class LinkFile(ConfigModel):
    """A `hermes-link/1` file."""

    format: Literal["hermes-link/1"]
    name: Name
    provenance: LinkProvenance
    links: Annotated[list[MeasuredLink], Field(min_length=1)]

    def find(self, path: str, memory: str = "", streams: int = 1) -> MeasuredLink:
        """Return the link of a path. The `InputError` for an unknown path lists the known ones."""
        for link in self.links:
            if (link.path, link.memory, link.streams) == (path, memory, streams):
                return link
        there = "; ".join(link.label() for link in self.links)
        raise InputError(f"one of the links of {self.name}: {there}", Verbatim(f"{path} {memory} {streams}"))


@dataclass(frozen=True)
class _Measured:
    """One size: its entry in the plan, its times, and whether they are reliable."""

    point: dict[str, Any]
    times: Spread
    contended: bool


def _solve(pieces: Any, sizes: Any, seconds: Any) -> tuple[float, float]:
    """Fit (latency, seconds per byte), both at least 0, by least squares on relative errors."""
    features = np.column_stack([pieces, sizes]).astype(np.float64)
    (latency, slope), _ = solve(features, np.asarray(seconds, np.float64), np.ones(len(features)), relative=True)
    return float(latency), float(slope)


def _held_out(pieces: Any, sizes: Any, seconds: Any, use: Any) -> list[float | None]:
    """Return the relative error at each size of a fit without it; None if too few sizes are left."""
    out: list[float | None] = []
    for rest, held in LeaveOneOut().split(sizes):
        fitted = rest[use[rest]]
        if len(np.unique(sizes[fitted])) < 3:
            out.append(None)
            continue
        latency, slope = _solve(pieces[fitted], sizes[fitted], seconds[fitted])
        out.append(float(((latency * pieces + slope * sizes) / seconds)[held[0]] - 1))
    return out


def _fit(found: Sequence[_Measured]) -> MeasuredLink | None:
    """Fit a line; None with fewer than two sizes, or if the times do not grow with the bytes."""
    points = [one.point for one in found]
    sizes = np.array([point["bytes"] for point in points], dtype=np.float64)
    blocks = np.array([point.get("block_bytes") or point["bytes"] for point in points], dtype=np.float64)
    seconds, pieces = np.array([one.times.p50 for one in found]), np.ceil(sizes / blocks)
    use = np.array([not one.contended for one in found])
    if len(np.unique(sizes[use])) < 3:
        use[:] = True
    latency, slope = _solve(pieces[use], sizes[use], seconds[use])
    if slope <= 0 or len(np.unique(sizes)) < 2:
        return None
    predicted = latency * pieces + slope * sizes
    errors, found_errors = predicted / seconds - 1, compare_times(predicted[use], seconds[use])
    held_out = _held_out(pieces, sizes, seconds, use)
    known = [abs(error) for error, used in zip(held_out, use, strict=True) if used and error is not None]
    return MeasuredLink(
        path=points[0]["path"], memory=points[0].get("memory", ""), streams=points[0].get("streams", 1),
        latency=latency, bandwidth=1 / slope,
        mape=found_errors.mape, worst=abs(found_errors.worst),
        held_out_mape=float(np.mean(known)) if known else None,
        sizes=[
            SizeError(bytes=one.point["bytes"], block_bytes=one.point.get("block_bytes", 0), median_s=one.times.p50,
                      error=float(error), held_out=out, cv=one.times.cv,
                      noise="contended" if one.contended else one.times.verdict)
            for one, error, out in zip(found, errors, held_out, strict=True)
        ],
    )


def fit_links(
    plan: LinkPlan, records: Sequence[dict[str, Any]]
) -> tuple[list[MeasuredLink], list[str]]:
    """Return one link for every path of a journal, in the plan's order, and the paths that no link could be fitted to.

    A point that was measured again counts with the attempt that varied least. Raises `InputError` for a journal without
    anything to fit.
    """
    groups: dict[tuple[Any, ...], list[_Measured]] = {}
    best = _best_attempts(records)
    for point in plan.points:
        if point["name"] in best:
            key = point["path"], point.get("memory", ""), point.get("streams", 1)
            groups.setdefault(key, []).append(_Measured(point, *best[point["name"]]))
    links, unfit = [], []
    for key, points in groups.items():
        label = " ".join(str(part) for part in key if part)
        found = _fit(points)
        if found is None:
            unfit.append(f"{label}: no link fitted: fewer than two sizes, or times that do not grow with the bytes")
        else:
            links.append(found)
    if not links:
        raise InputError("a journal with at least one path measured at two sizes", Verbatim("; ".join(unfit) or "none"))
    return links, unfit


def _best_attempts(records: Sequence[dict[str, Any]]) -> dict[str, tuple[Spread, bool]]:
    """Return the times of each point, and whether they are contended: of several attempts the steadiest, preferably an
    uncontended one."""
    found: dict[str, tuple[Spread, bool]] = {}
    for record in records:
        if record["rows"]:
            rows = steady(record["rows"])
            times = spread(row["time_s"] for row in rows)
            busy = contended(rows[0])   # all attempts are contended, or none
            before = found.get(record["point"])
            if before is None or (busy, times.cv) < (before[1], before[0].cv):
                found[record["point"]] = times, busy
    return found


def link_file(journal: Path, name: str, command: str = "", date: datetime.date | None = None) -> LinkFile:
    """Fit a journal and record its sources. Raises `InputError`."""
    plan, found = read_records(journal, LinkPlan)
    environment = found.environment
    links, unfit = fit_links(plan, found.points)
    sizes = [size for link in links for size in link.sizes]
    notes = [
        *unfit,
        f"the fit is on medians of the repetitions that waited for a core at most {LIMIT:.0%} of their time; "
        f"noise by class: {tally(size.noise for size in sizes)}; contended: "
        f"{sum(size.noise == 'contended' for size in sizes)}"
    ]
    if "disk" in environment:
        notes.append(f"disk read with {environment['disk']['method']}: caches below the operating system (device, host "
                     "of a virtual machine) may have answered")
    if any(link.path.startswith("memory") for link in links):
        notes.append("memory paths are cold (larger than the caches); their latency is that of one numpy call")
    if any(link.path == "host_to_device" for link in links):
        notes.append("device copies run alone on an idle device; both directions at once were not measured")
    return LinkFile(
        format="hermes-link/1", name=name, links=links,
        provenance=LinkProvenance(
            cpu=environment.get("cpu", ""), device=environment.get("device", ""), date=date or datetime.date.today(),
            clock=("CUDA events (device paths), " if environment.get("device") else "")
            + "CPU clock (memory, one stream), wall clock (other host paths)",
            collected_by=command, source="measured by hermes.calibration.collect.link", environment=environment,
            notes=notes,
        ),
    )


def save_link(link: LinkFile, path: Path) -> None:
    """Write a file that `load_link` reads; its first lines show its use in a scenario."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["Measured links. In a scenario, where clients are joined by one of them:", ""]
    for measured in link.links:
        lines += [f"{measured.label()}: error {measured.mape:.1%} on average over sizes, {measured.worst:.1%} at worst"]
        lines += [f"    {line}" for line in network_lines(measured)]
    dump_yaml(link, path, "\n".join(lines))


def load_link(path: Path) -> LinkFile:
    """Load a measured-links file. Raises `InputError`."""
    return load(LinkFile, path)


def network_lines(link: MeasuredLink) -> list[str]:
    """Return the lines of a scenario's `network:` for clients joined by this link; also the keys of a topology's
    `links`."""
    return ["network:", "  kind: link", f"  bandwidth: {_quantity(link.bandwidth, 'B/s')}",
            f"  latency: {_quantity(link.latency, 's')}"]


def _quantity(value: float, unit: str) -> str:
    """Return a value in a readable unit with four digits: `21.3 GB/s`, `8.1 us`."""
    if unit == "B/s":
        factor, prefix = next(((f, p) for f, p in ((1e9, "G"), (1e6, "M")) if value >= f), (1.0, ""))
    else:
        factor, prefix = next(((f, p) for f, p in ((1.0, ""), (1e-3, "m"), (1e-6, "u")) if value >= f), (1e-9, "n"))
    return f"{value / factor:.4g} {prefix}{unit}"
