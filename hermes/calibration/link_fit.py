"""Fit of links: host links to the journal of our collector, links between devices to all-reduces.

All-reduces are those of a card's measured terms, or of nccl-tests 2.x (text; outputs of several N may follow each
other):

    all_reduce_perf -b 1K -e 128M -f 2 -g N
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hermes.calibration.collect.contention import LIMIT, contended, steady
from hermes.calibration.fit.estimators import held_out, solve
from hermes.calibration.link import LinkFile, LinkPlan, LinkProvenance, MeasuredLink, SizeError
from hermes.calibration.records import read_records
from hermes.config.files import open_file, read_text
from hermes.core.noise import spread, tally
from hermes.errors import InputError, Verbatim
from hermes.hardware.links import CollectiveTimes, LinkDescription

__all__ = ["fit_link", "interconnect", "is_nccl_tests", "link_file", "link_of_nccl_tests"]

_NCCL_ROW = re.compile(r"\s*(\d+)\s+\d+\s+\S+\s+\S+\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)")


def fit_link(path: str, memory: str, found: Sequence[SizeError]) -> MeasuredLink | None:
    """Fit a line; None with fewer than two sizes, or if the times do not grow with the bytes."""
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
    environment, best = found.environment, _best_attempts(found.points)
    groups: dict[tuple[str, str], list[SizeError]] = {}
    for point in plan.points:
        if point["name"] in best:
            median_s, cv, noise = best[point["name"]]
            groups.setdefault((point["path"], point.get("memory", "")), []).append(
                SizeError(bytes=point["bytes"], median_s=median_s, cv=cv, noise=noise))
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


def _best_attempts(records: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float, str]]:
    """Return (median seconds, cv, noise) of each point: of several attempts the steadiest, best an uncontended one."""
    found: dict[str, tuple[float, float, str]] = {}
    for record in records:
        if record["rows"]:
            rows = steady(record["rows"])   # all of them contended, or none
            times = spread(row["time_s"] for row in rows)
            this = times.p50, times.cv, "contended" if contended(rows[0]) else times.verdict
            before = found.setdefault(record["point"], this)
            if (this[2] == "contended", this[1]) < (before[2] == "contended", before[1]):
                found[record["point"]] = this
    return found


# -- all-reduces between the devices of a client -----------------------------------------------------------------------


def is_nccl_tests(path: Path) -> bool:
    """Return whether a file is the output of nccl-tests."""
    try:
        with open_file(path) as file:
            text = file.read(2**16).decode(errors="replace")
    except InputError:
        return False   # the reader of journals says why
    return re.search(r"\n#\s+size\s+count\s+type\s+redop", text) is not None


def link_of_nccl_tests(path: Path, name: str) -> LinkDescription:
    """Return the link in the output of nccl-tests. Raises `InputError` naming the line."""
    runs: dict[int, dict[int, float]] = {}
    ranks, times = 0, dict[int, float]()
    for line, row in enumerate(read_text(path).splitlines(), 1):
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

    The formula is that of `hermes.hardware.links`. Raises `InputError` without all-reduces of two sizes.
    """
    measured = {ranks: times for ranks, times in measured.items() if len(times) > 1}
    if not measured:
        raise InputError("all-reduces of at least two sizes (plan: ranks)", field="--link", file=file)
    rows = [(1.0, math.log2(ranks) - 1.0, 2.0 * (ranks - 1.0) / ranks * size)
            for ranks, times in measured.items() for size, _ in times]
    seconds = np.array([each for times in measured.values() for _, each in times])
    latency, doubling, per_byte = (float(value) for value in solve(np.array(rows), seconds))
    return LinkDescription(
        format="hermes-interconnect/1", name=name, latency=latency, latency_per_doubling=doubling,
        bandwidth=1.0 / per_byte if per_byte > 0 else None, sources=[source],
        measured=[CollectiveTimes(ranks=ranks, bytes=[size for size, _ in times], seconds=[each for _, each in times])
                  for ranks, times in measured.items()])
