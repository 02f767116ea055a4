"""`measure: link`: latency and bandwidth of host links, fitted when packed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hermes.calibration.link import link_file, network_lines, save_link
from hermes.calibration.link_plan import LinkMeasurement, LinkPlan, host_bytes, plan_table
from hermes.calibration.measurements.base import Shown, Table, again
from hermes.calibration.plan import PointPlan
from hermes.calibration.session import Measured

__all__ = ["Links"]


class Links(LinkMeasurement):
    __doc__ = LinkMeasurement.__doc__

    engines: ClassVar[tuple[str, ...]] = ("link",)

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the paths with their sizes, and the memory."""
        assert isinstance(plan, LinkPlan)
        memory = host_bytes(plan)
        return Shown({
            "points": plan.points, "host_memory_bytes": memory, "disk_dir": plan.disk_dir,
            "estimate_s": round(plan.estimate_s, 1),
        }, [
            Table("", ["path", "", "bytes", "points", "estimate (s)"], plan_table(plan)),
            f"host memory {memory / 2**30:.1f} GiB" + (f"; a test file in {plan.disk_dir}" if plan.disk_dir else "")
            + f"; about {plan.estimate_s:.0f} s",
        ])

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write fitted links. Raises `InputError`."""
        links = link_file(journal, output.stem, command)
        save_link(links, output)
        rows = [
            [found.label(), found.latency * 1e6, found.bandwidth / 1e9, len(found.sizes), 100 * found.mape,
             100 * found.worst, "-" if found.held_out_mape is None else f"{100 * found.held_out_mape:.1f}"]
            for found in links.links
        ]
        chosen = next((found for found in links.links if found.path == "host_to_device"), links.links[0])
        return Shown({
            "file": str(output), "complete": measured is None or measured.complete, **links.model_dump(mode="json"),
        }, [
            Table("", ["link", "latency (us)", "GB/s", "sizes", "error %", "worst %", "held out %"], rows),
            *(f"note: {note}" for note in links.provenance.notes), *again(measured),
            f"in a scenario ({chosen.label()}; the others stand at the head of the file):",
            *(f"    {line}" for line in network_lines(chosen)), f"written to {output}",
        ])
