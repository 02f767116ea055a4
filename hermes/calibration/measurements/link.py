"""`measure: link`: latency and bandwidth of host links; `pack` also reads fio, nvbandwidth and nccl-tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.link import (
    MOST_READ,
    LinkFile,
    LinkPlan,
    link_file,
    network_lines,
    of_tool,
    save_link,
    tool_of,
)
from hermes.calibration.measurements.base import Measurement, Shown, again
from hermes.calibration.plan import PointPlan
from hermes.calibration.session import Measured
from hermes.config import Bytes
from hermes.config.validation import validate
from hermes.core.noise import tally
from hermes.errors import InputError
from hermes.hardware.descriptions.links import LinkDescription
from hermes.hardware.fitted.profile import dump_yaml
from hermes.results.layout import Part, Section

__all__ = ["Links"]

_ALIGN = 4096
_GUESS = {"memory_copy": (8e9, 1e-6), "disk_read": (1e9, 100e-6)}   # bytes/s and seconds, for the estimate only


class Links(Measurement):
    """Latency and bandwidth: host to device and back, host memory, disk."""

    engines: ClassVar[tuple[str, ...]] = ("link",)

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
            points += [self._point("disk_read", size) for size in sizes if size <= max(MOST_READ, self.smallest)]
        return validate(LinkPlan, {
            "device": self.device, "points": points, "disk_dir": folder,
            "arena_bytes": max(self.largest, 512 * 2**20) if "memory" in wanted else 0,
        })

    def _point(self, path: str, size: int, memory: str = "") -> dict[str, Any]:
        bandwidth, latency = _GUESS.get(path, (15e9, 20e-6))
        return {"name": f"{path} {size} {memory}".strip(), "path": path, "bytes": size, "memory": memory,
                "repetitions": self.repetitions, "estimate_s": self.repetitions * max(size / bandwidth + latency, 2e-3)}

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the transfers, and the memory."""
        assert isinstance(plan, LinkPlan)
        shown, memory = super().show_plan(plan), plan.host_bytes()
        return Shown({**shown.data, "host_memory_bytes": memory, "disk_dir": plan.disk_dir}, [
            *shown.parts,
            f"host memory {memory / 2**30:.1f} GiB" + (f"; a test file in {plan.disk_dir}" if plan.disk_dir else "")])

    @classmethod
    def reads(cls, file: Path) -> bool:
        """Return whether it is the output of fio, nvbandwidth or nccl-tests."""
        return tool_of(file) is not None

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write fitted links. Raises `InputError`."""
        links = of_tool(journal, output.stem, command) or link_file(journal, output.stem, command)
        data = {"file": str(output), "complete": measured is None or measured.complete}
        if isinstance(links, LinkDescription):
            dump_yaml(links, output, f"All-reduces. In a scenario or a device description: link: ./{output.name}")
            return Shown({**data, **links.model_dump(mode="json")}, _between_devices(links, output))
        save_link(links, output)
        return Shown({**data, **links.model_dump(mode="json")}, [
            *_of_host(links), *again(measured), f"written to {output}"])


def _of_host(links: LinkFile) -> list[Part]:
    rows = [
        [found.label(), "-" if found.latency is None else found.latency * 1e6, found.bandwidth / 1e9, len(found.sizes),
         *("-" if error is None else f"{100 * error:.1f}" for error in (found.mape, found.worst, found.held_out_mape)),
         tally(size.noise for size in found.sizes)] for found in links.links
    ]
    chosen = next((found for found in links.links if found.path == "host_to_device"), links.links[0])
    return [
        Section("", ["link", "latency (us)", "GB/s", "sizes", "error %", "worst %", "held out %", "noise"], rows),
        *(f"note: {note}" for note in links.provenance.notes),
        f"in a scenario ({chosen.label()}; the others stand at the head of the file):",
        *(f"    {line}" for line in network_lines(chosen)),
    ]


def _between_devices(link: LinkDescription, output: Path) -> list[Part]:
    rows = [[times.ranks, len(times.bytes), times.bytes[-1] / 2**20,
             2 * (times.ranks - 1) / times.ranks * times.bytes[-1] / times.seconds[-1] / 1e9]
            for times in link.measured]
    return [Section("", ["devices", "sizes", "largest (MiB)", "GB/s there"], rows),
            f"written to {output}; in a scenario or a device description: link: ./{output.name}"]
