"""`hermes calibrate link`: how fast bytes move between host, device and disk."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.calibrate.llm import watched
from hermes.cli.output import Json, print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.link import LinkFile
    from hermes.calibration.points import PointPlan

__all__ = ["add_to"]

PATHS = ("device", "memory", "disk")


def add_to(app: typer.Typer) -> None:
    app.command()(link)


def link(
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu (host and disk alone) or cuda.")] = "cpu",
    paths: Annotated[
        list[str], typer.Option("--path", metavar="PATH", help="device, memory or disk; may be given often [all].")
    ] = [],  # noqa: B006  (typer copies it)
    smallest: Annotated[str, typer.Option(metavar="SIZE", help="Smallest transfer.")] = "4 KiB",
    largest: Annotated[str, typer.Option(metavar="SIZE", help="Largest transfer; 4 times as much each.")] = "1 GiB",
    block: Annotated[str, typer.Option(metavar="SIZE", help="Disk: bytes of one read.")] = "1 MiB",
    streams: Annotated[
        list[int], typer.Option(metavar="N", help="Threads that move bytes at once; may be given often [1].")
    ] = [1],  # noqa: B006
    disk_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the test file goes [the temporary folder].")] = None,
    repetitions: Annotated[int, typer.Option(min=2, max=1000, help="Measurements of every size.")] = 10,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What the file calls itself [its own name].")] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="Interpreter with numpy and torch [this].")] = None,
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Stop in time; run again to continue.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print sizes, memory and time; measure nothing.")] = False,
    write_plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Write the plan for another machine, and stop.")] = None,
    from_journal: Annotated[
        Path | None, typer.Option(metavar="JOURNAL", help="Fit this journal instead of measuring.")] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="LINKS.yaml", help="Fitted links; plan and journal beside it.")
    ] = Path("links.yaml"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Measure latency and bandwidth: host to device and back, host memory, disk. Continues where it was interrupted."""
    from hermes.calibration.link import link_file, save_link
    from hermes.calibration.points import PointPlan, measure

    journal, complete = from_journal, True
    if from_journal is None:
        plan = PointPlan(_plan(device, paths, smallest, largest, block, streams, disk_dir, repetitions))
        if dry_run or write_plan:
            if write_plan:
                plan.save(write_plan)
            _show_plan(plan, write_plan, budget, as_json)
            return
        with watched(quiet) as on_progress:
            journal, _, complete = measure(
                plan, output, python=python, budget_s=budget, on_progress=on_progress)
    assert journal is not None
    links = link_file(journal, name or output.stem, shlex.join(["hermes", *sys.argv[1:]]))
    save_link(links, output)
    _show(links, output, complete, as_json)


def _plan(
    device: str, paths: list[str], smallest: str, largest: str, block: str, streams: list[int], disk_dir: Path | None,
    repetitions: int,
) -> dict[str, Any]:
    from hermes.calibration.link_plan import link_plan
    from hermes.errors import InputError, inside, suggest
    from hermes.units import parse_bytes

    for path in paths:
        if path not in PATHS:
            raise InputError(f"one of {', '.join(PATHS)}", path, field="--path", suggestion=suggest(path, PATHS))
    if device != "cpu" and not device.startswith("cuda"):
        raise InputError("cpu, cuda or cuda:N", device, field="--device")
    if "device" in paths and device == "cpu":
        raise InputError("--device cuda for the paths of a device", device, field="--device")
    wanted = set(paths) or (set(PATHS) if device != "cpu" else {"memory", "disk"})
    sizes = {}
    for field, text in (("--smallest", smallest), ("--largest", largest), ("--block", block)):
        with inside(field):
            sizes[field] = parse_bytes(int(text) if text.isdecimal() else text)
    folder = (disk_dir or Path(tempfile.gettempdir())) if "disk" in wanted else None
    if folder is not None and not folder.is_dir():
        raise InputError("an existing folder", str(folder), field="--disk-dir")
    return link_plan(
        device if "device" in wanted else "cpu", folder, smallest=sizes["--smallest"], largest=sizes["--largest"],
        block_bytes=sizes["--block"], streams=sorted(set(streams)), repetitions=repetitions, memory="memory" in wanted,
    )


def _show_plan(plan: PointPlan, written: Path | None, budget: float | None, as_json: bool) -> None:
    from hermes.calibration.link_plan import host_bytes, plan_table

    content = plan.content
    memory = host_bytes(content)
    if as_json:
        print_json({"points": plan.points, "host_memory_bytes": memory, "disk_dir": content["disk_dir"],
                    "estimate_s": round(plan.estimate_s, 1)})
        return
    print_table("", ["path", "", "bytes", "points", "estimate (s)"], plan_table(content))
    print(f"host memory {memory / 2**30:.1f} GiB" + (f"; a test file in {content['disk_dir']}" if content["disk_dir"]
          else "") + f"; about {plan.estimate_s:.0f} s")
    if budget is not None and budget < plan.estimate_s:
        print(f"the budget of {budget:g} s may cut it off; run the same command again to continue")
    if written:
        print(f"written to {written}; there: python -m {plan.collector} {written.name} JOURNAL.jsonl")


def _show(links: LinkFile, output: Path, complete: bool, as_json: bool) -> None:
    from hermes.calibration.link import network_lines

    if as_json:
        print_json({"file": str(output), "complete": complete, **links.model_dump(mode="json")})
        return
    rows = [
        [found.label(), found.latency * 1e6, found.bandwidth / 1e9, len(found.sizes), 100 * found.mape,
         100 * found.worst, "-" if found.held_out_mape is None else f"{100 * found.held_out_mape:.1f}"]
        for found in links.links
    ]
    print_table("", ["link", "latency (us)", "GB/s", "sizes", "error %", "worst %", "held out %"], rows)
    for note in links.provenance.notes:
        print(f"note: {note}")
    if not complete:
        print("stopped by the budget: run the same command again to continue")
    shown = next((found for found in links.links if found.path == "host_to_device"), links.links[0])
    print(f"in a scenario ({shown.label()}; the others stand at the head of the file):")
    print("\n".join(f"    {line}" for line in network_lines(shown)))
    print(f"written to {output}")
