"""Measured links of a host (`hermes-link/1`): the plan of their measurement, the fit, and the output of other tools.

A transfer of b bytes takes `latency + b / bandwidth`. Both are non-negative and fitted to the median time of each size
with relative weights, so that small transfers count as much as large ones; the file also gives the error at every size.
A scenario takes the values unchanged: `network_lines` prints them in the form of its `network:` section. The times come
from our collector (`hermes.calibration.collect.link`) or another tool: fio and nvbandwidth (JSON) measure links of a
host, nccl-tests (text) those between the devices of a client:

    fio --direct=1 --ioengine=psync --iodepth=1 --output-format=json     3.x: a job (or more) for each block size
    nvbandwidth -j                                                       0.8: bandwidths of pinned memory, at one size
    all_reduce_perf -b 1K -e 128M -f 2 -g N                              2.x: outputs of several N may follow each other
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hermes.calibration.collect.counters import LIMIT, contended, steady
from hermes.calibration.plan import PointPlan, read_records
from hermes.calibration.table_files import Origin
from hermes.config import Bandwidth, ConfigModel, Duration, Name
from hermes.config.files import open_file, read_json, read_text
from hermes.config.tables import lookup
from hermes.config.validation import load
from hermes.core.noise import classify, spread, tally
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.links import CollectiveTimes, LinkDescription
from hermes.hardware.fitted.profile import dump_yaml

__all__ = [
    "MOST_READ", "LinkFile", "LinkPlan", "LinkProvenance", "MeasuredLink", "SizeError", "fit_link", "interconnect",
    "link_file", "load_link", "network_lines", "of_tool", "save_link", "tool_of",
]

Fraction = Annotated[float, Field(ge=0)]
Path_ = Literal["host_to_device", "device_to_host", "memory_copy", "disk_read"]
Memory = Literal["", "pinned", "pageable"]

MOST_READ = 64 * 2**20
"""Largest read of a disk."""

_NVBANDWIDTH = {"host_to_device_memcpy_ce": "host_to_device", "device_to_host_memcpy_ce": "device_to_host"}
_NCCL_ROW = re.compile(r"\s*(\d+)\s+\d+\s+\S+\s+\S+\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)")


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


def fit_link(path: str, memory: str, found: Sequence[SizeError]) -> MeasuredLink | None:
    """Fit a line; None with fewer than two sizes, or if the times do not grow with the bytes."""
    from hermes.calibration.fit.estimators import held_out, solve  # takes long to import

    sizes, seconds = np.array([[one.bytes, one.median_s] for one in found], dtype=np.float64).T
    use = np.array([one.noise != "contended" for one in found])
    if len(np.unique(sizes[use])) < 3:
        use[:] = True
    features, weights = np.column_stack([np.ones(len(sizes)), sizes]), use.astype(np.float64)
    latency, slope = solve(features, seconds, weights)
    if slope <= 0 or len(np.unique(sizes)) < 2:
        return None
    errors = features @ np.array([latency, slope]) / seconds - 1
    unseen = None
    if len(np.unique(sizes[use])) > 3:
        unseen = held_out(lambda fitted, held: features[held] @ solve(features[fitted], seconds[fitted],
                                                                      weights[fitted]), np.arange(len(sizes)))
    return MeasuredLink.model_validate({
        "path": path, "memory": memory, "latency": float(latency), "bandwidth": float(1 / slope),
        "mape": float(np.abs(errors[use]).mean()), "worst": float(np.abs(errors[use]).max()),
        "held_out_mape": None if unseen is None else float(np.abs(unseen / seconds - 1)[use].mean()),
        "sizes": [one.model_copy(update={"error": float(error)}) for one, error in zip(found, errors, strict=True)],
    })


def link_file(journal: Path, name: str, command: str = "", date: datetime.date | None = None) -> LinkFile:
    """Fit every path of a journal, in the plan's order, and record its sources.

    A point that was measured again counts with its steadiest attempt. Raises `InputError` for a journal without
    anything to fit.
    """
    plan, found = read_records(journal, LinkPlan)
    environment, best = found.environment, {record["point"]: record["rows"] for record in found.best_attempts(2)}
    groups: dict[tuple[str, str], list[SizeError]] = {}
    for point in plan.points:
        if point["name"] in best:
            rows = steady(best[point["name"]])   # all of them contended, or none
            times = spread(row["time_s"] for row in rows)
            groups.setdefault((point["path"], point.get("memory", "")), []).append(SizeError(
                bytes=point["bytes"], median_s=times.p50, cv=times.cv,
                noise="contended" if contended(rows[0]) else times.verdict))
    fits = {" ".join(key).strip(): fit_link(*key, times) for key, times in groups.items()}
    links = [link for link in fits.values() if link is not None]
    notes = [f"{label}: no link fitted: fewer than two sizes, or times that do not grow with the bytes"
             for label, link in fits.items() if link is None]
    if not links:
        raise InputError("a journal with at least one path measured at two sizes", Verbatim("; ".join(notes) or "none"))
    verdicts = [size.noise for link in links for size in link.sizes]
    notes.append(
        f"the fit is on medians of the repetitions that waited for a core at most {LIMIT:.0%} of their time; noise by "
        f"class: {tally(verdicts)}; contended: {verdicts.count('contended')}")
    if "disk" in environment:
        notes.append(f"disk read with {environment['disk']['method']}: caches below the operating system (device, host "
                     "of a virtual machine) may have answered")
    return LinkFile(name=name, links=links, provenance=LinkProvenance(
        cpu=environment.get("cpu", ""), device=environment.get("device", ""), date=date or datetime.date.today(),
        clock="CUDA events (device paths), CPU clock (memory), wall clock (disk)", collected_by=command,
        source="measured by hermes.calibration.collect.link", environment=environment, notes=notes))


# -- output of other tools ---------------------------------------------------------------------------------------------


def tool_of(path: Path) -> str | None:
    """Return the tool that wrote a file: `fio`, `nvbandwidth`, `nccl-tests`; None for another file, or none."""
    try:
        with open_file(path) as file:
            text = file.read(2**16).decode(errors="replace")
    except InputError:
        return None   # the reader of journals says why
    marks = {"nvbandwidth": r'\s*\{\s*"nvbandwidth"', "fio": r'\s*\{\s*"fio version"',
             "nccl-tests": r"(?s).*\n#\s+size\s+count\s+type\s+redop"}
    return next((tool for tool, mark in marks.items() if re.match(mark, text)), None)


def of_tool(path: Path, name: str, command: str) -> LinkFile | LinkDescription | None:
    """Return the links in the output of a tool; None for a file of none (`tool_of`). Raises `InputError`."""
    tool = tool_of(path)
    if tool == "nccl-tests":
        return _nccl(read_text(path), path, name)
    read = {"nvbandwidth": _nvbandwidth, "fio": _fio}.get(tool or "")
    return None if read is None else read(_Answer(path), name, command)


class _Answer:
    """The output of a tool in JSON, read by places such as `jobs.0.read`. Raises `InputError` naming them."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, read_json(path)

    def value(self, place: str) -> Any:
        try:
            return lookup(self.data, place)
        except KeyError:
            raise InputError("a value (required)", file=str(self.path), field=place) from None

    def items(self, place: str, kind: type = dict) -> list[Any]:
        """Return the list of mappings, or of `kind`."""
        found = self.value(place)
        if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
            raise InputError("a list of results", found, file=str(self.path), field=place)
        return found

    def number(self, place: str) -> float:
        """Return the number, above 0; nvbandwidth writes numbers as text."""
        with suppress(TypeError, ValueError):
            if 0 < (number := float(self.value(place))) < math.inf:
                return number
        raise InputError("a number above 0", self.value(place), file=str(self.path), field=place)

    def file(self, links: list[MeasuredLink], tool: str, name: str, command: str, device: str, note: str) -> LinkFile:
        return LinkFile(name=name, links=links, provenance=LinkProvenance(
            cpu="not stated", device=device, date=datetime.date.today(), clock=f"that of {tool}",
            collected_by=command, source=f"{self.path.name} of {tool}", notes=[note]))


def _nvbandwidth(answer: _Answer, name: str, command: str) -> LinkFile:
    links = []
    for number, test in enumerate(answer.items("nvbandwidth.testcases")):
        if test.get("name") in _NVBANDWIDTH and test.get("status") == "Passed":
            place = f"nvbandwidth.testcases.{number}.bandwidth_matrix"
            rates = [answer.number(f"{place}.{row}.{column}") for row, cells in enumerate(answer.items(place, list))
                     for column, cell in enumerate(cells) if cell != "N/A"]
            if rates:
                links.append(MeasuredLink(path=_NVBANDWIDTH[test["name"]], memory="pinned", latency=None,  # type: ignore[arg-type]  # one of its names
                                          bandwidth=median(rates) * 1e9))
    if not links:
        raise InputError(f"a test that passed: {', '.join(_NVBANDWIDTH)}", file=str(answer.path),
                         field="nvbandwidth.testcases")
    root = answer.data["nvbandwidth"]
    devices = [str(one) for one in root.get("GPU Device list", [])]
    return answer.file(links, f"nvbandwidth {root.get('version', '')}".strip(), name, command, "; ".join(devices),
                       "nvbandwidth copies one size: bandwidths, medians over the devices, and no latency")


def _fio(answer: _Answer, name: str, command: str) -> LinkFile:
    shared, found = answer.data.get("global options", {}), []
    for number, job in enumerate(answer.items("jobs")):
        read = f"jobs.{number}.read"
        if not answer.value(f"{read}.total_ios"):
            continue
        options = {**shared, **job.get("job options", {})}
        for key in ("iodepth", "numjobs"):
            if str(options.get(key, "1")) != "1":
                raise InputError(f"{key} of 1: reads that wait for each other have no latency of their own",
                                 options[key], file=str(answer.path), field=f"jobs.{number}.job options.{key}")
        size, mean = answer.number(f"{read}.io_bytes"), answer.number(f"{read}.lat_ns.mean")
        cv = float(answer.value(f"{read}.lat_ns.stddev")) / mean
        found.append(SizeError(bytes=round(size / answer.number(f"{read}.total_ios")), median_s=mean / 1e9,
                               cv=cv, noise=classify(cv)))
    link = fit_link("disk_read", "", sorted(found, key=lambda one: one.bytes)) if found else None
    if link is None:
        raise InputError("read jobs of at least two block sizes, the larger of which take longer",
                         sorted({one.bytes for one in found}), file=str(answer.path), field="jobs")
    return answer.file([link], str(answer.data.get("fio version", "fio")), name, command, "",
                       "mean latency of each job's reads; only direct=1 reads past the page cache")


def _nccl(text: str, path: Path, name: str) -> LinkDescription:
    runs: dict[int, dict[int, float]] = {}
    ranks, times = 0, dict[int, float]()
    for line, row in enumerate(text.splitlines(), 1):
        if row.startswith("# nThread"):
            ranks, times = 0, {}
        ranks += bool(re.match(r"#\s+Rank\s+\d+", row))
        found = _NCCL_ROW.match(row)
        if not found:
            continue
        size, root, us, rate, bus, wrong = found.groups()
        factor = 2 * (ranks - 1) / max(ranks, 1)
        if ranks < 2 or root != "-1" or (float(rate) > 1 and abs(float(bus) / float(rate) - factor) > 0.02 * factor):
            raise InputError(f"an all-reduce of two devices or more, each in a line `#  Rank N` (here {ranks})",
                             Verbatim(row.strip()), file=str(path), line=line)
        if wrong not in ("0", "N/A"):
            raise InputError("results without wrong elements", wrong, file=str(path), line=line, field="#wrong")
        if int(size) > 0 and float(us) > 0:
            times[int(size)] = float(us) * 1e-6
            runs[ranks] = times
    return interconnect(name, {ranks: sorted(times.items()) for ranks, times in sorted(runs.items())},
                        f"{path.name}: all-reduces of nccl-tests, out of place", str(path))


def interconnect(name: str, measured: dict[int, list[tuple[int, float]]], source: str, file: str) -> LinkDescription:
    """Return measured all-reduces, (bytes, seconds) by ranks, as a link; with a formula for other numbers of devices.

    The formula is that of `hermes.hardware.descriptions.links`. Raises `InputError` without all-reduces of two sizes.
    """
    from hermes.calibration.fit.estimators import solve

    measured = {ranks: times for ranks, times in measured.items() if len(times) > 1}
    if not measured:
        raise InputError("all-reduces of at least two sizes", file=file)
    rows = [(1.0, math.log2(ranks) - 1.0, 2.0 * (ranks - 1.0) / ranks * size)
            for ranks, times in measured.items() for size, _ in times]
    seconds = np.array([each for times in measured.values() for _, each in times])
    latency, doubling, per_byte = (float(value) for value in solve(np.array(rows), seconds))
    return LinkDescription(
        format="hermes-interconnect/1", name=name, latency=latency, latency_per_doubling=doubling,
        bandwidth=1.0 / per_byte if per_byte > 0 else None, sources=[source],
        measured=[CollectiveTimes(ranks=ranks, bytes=[size for size, _ in times], seconds=[each for _, each in times])
                  for ranks, times in measured.items()])
