"""`hermes calibrate`: write a plan file, measure it, pack journals, check a profile."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes.cli.calibrate.from_requests import from_requests
from hermes.cli.calibrate.start_up import start_up
from hermes.cli.output import Answer, command_group, show
from hermes.sums import float_sum

if TYPE_CHECKING:
    from hermes.calibration.session import Progress

__all__ = ["calibrate", "command_line"]

Sets = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the plan file; repeatable.")]
JournalFile = Annotated[Path, typer.Argument(metavar="JOURNAL", help="Journal of a collector.", show_default=False)]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="Plan file of `plan`.", show_default=False)]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.yaml", help="File of the results [the plan's `output`].")]


def plan(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="llm, terms, link, retrieval, ivf or start-up; card: all of a card.",
                            show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PLAN.yaml", help="The file.")] = Path("plan.yaml"),
    overrides: Sets = [],  # noqa: B006  (typer copies it)
) -> None:
    """Write a plan file: every key with its default and its meaning.

    `card` writes the plans of all terms of the composed hardware model into the folder PLAN, with their minutes.
    """
    if what == "card":
        _plan_card(output, overrides)
        return
    from hermes.calibration.measurements.files import template
    from hermes.config.writing import write_text

    output.parent.mkdir(parents=True, exist_ok=True)   # paths in the plan are relative to it
    write_text(output, template(what, overrides, output.parent))
    print(f"written to {output}; next: hermes calibrate run --dry-run {shlex.quote(str(output))}")


def _plan_card(output: Path, overrides: list[str]) -> None:
    """Write the plans of a card into a folder; print the minutes of each, and their sum."""
    from hermes.calibration.measurements.files import card_plans
    from hermes.config.writing import write_text
    from hermes.errors import InputError
    from hermes.results.layout import Section

    if output.suffix in (".yaml", ".yml"):
        raise InputError("a folder, for `card`", str(output), field="--output")
    output.mkdir(parents=True, exist_ok=True)   # paths in the plans are relative to it
    plans = card_plans(overrides, output)
    for made in plans:
        write_text(output / made.file, made.text)
    total = float_sum(made.estimate_s for made in plans)
    rows = [[str(output / made.file), made.points, f"{made.estimate_s / 60:.1f}"] for made in plans]
    terms, steps = (shlex.quote(str(output / name)) for name in ("terms.yaml", "steps.yaml"))
    show([
        Section("", ["plan", "points", "minutes"],
                [*rows, ["sum", sum(made.points for made in plans), f"{total / 60:.1f}"]]),
        "(the engine's start is not in them)", "measure each: hermes calibrate run FILE --python PATH",
        f"then: hermes fit {terms} --steps {steps} -o KERNELS.yaml",
    ])


def run(
    plan: PlanFile,
    overrides: Sets = [],  # noqa: B006  (typer copies it)
    output: Output = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Python interpreter of the engine [this one].")] = None,
    budget: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Time limit; run again to continue.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print points, memory and time only.")] = False,
    points: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the points for another machine and stop.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> Answer:
    """Measure the points of a plan file. Run again to continue an interrupted measurement."""
    from hermes.calibration.measurements.files import load_measurement
    from hermes.calibration.plan import save_plan
    from hermes.errors import InputError

    asked = load_measurement(plan, overrides)
    target = output or plan.parent / asked.output
    _check_yaml(target)
    try:
        made = asked.plan(plan.parent, python)
    except InputError as error:
        raise error.located(file=str(plan)) from None
    if dry_run or points is not None:
        shown = asked.show_plan(made)
        if budget is not None and budget < made.estimate_s:
            shown = shown.also(
                f"the budget of {budget:g} s may cut it off; coarse points come first; run again to continue")
        if points is not None:
            save_plan(made, points)
            shown = shown.also(f"written to {points}; there: python -m {made.collector} {points.name} JOURNAL.jsonl")
        return Answer(*shown)
    with watched(quiet) as on_progress:
        done = asked.collect(made, target, python=python, budget_s=budget, on_progress=on_progress)
    return Answer(*asked.conclude(done, target, plan.parent, command_line()))


def pack(
    journal: JournalFile, output: Output = None,
    clock: Annotated[
        str | None, typer.Option(metavar="CLOCK", help="Steps and terms: the clock of time_s, wall or cpu.")] = None,
) -> Answer:
    """Convert a collector's journal, complete or cut off, to its measured file."""
    from hermes.calibration.measurements.base import kind_of_journal
    from hermes.errors import InputError

    target = output or Path(f"{journal.name.split('.')[0]}.yaml")
    _check_yaml(target)
    kind = kind_of_journal(journal)
    if clock is not None and not kind.clock_choice:
        raise InputError("no clock: it was chosen when measuring", clock, field="--clock")
    return Answer(*kind.pack(journal, target, command=command_line(), clock=clock))


def _check_yaml(path: Path) -> None:
    from hermes.errors import InputError

    if path.suffix not in (".yaml", ".yml"):
        raise InputError("a file name that ends in .yaml", str(path), field="output")


def check(
    steps: Annotated[Path, typer.Argument(help="The header of measured steps (hermes-steps/1).", show_default=False)],
    profile: Annotated[str, typer.Argument(help="A profile: shipped name or file.", show_default=False)],
) -> Answer:
    """Compare measured steps with a profile's times: the errors of each phase."""
    from hermes.calibration.comparison import check_steps
    from hermes.calibration.steps import load_steps
    from hermes.hardware.fitted.polynomial import Polynomial
    from hermes.results.layout import Section

    measured = load_steps(steps)
    lines, _ = check_steps(measured, Polynomial(profile=profile).build(Path()))
    data = {"steps": measured.header.name, "profile": profile, "phases": [line.as_dict() for line in lines]}
    return Answer(data, [Section(
        f"{profile} on {measured.header.name} ({measured.header.hardware}, {measured.header.engine})",
        ["phase", "steps", "MAPE", "median", "p10", "p90", "worst", "outside", "worst step"],
        [[line.phase, line.errors.points, f"{line.errors.mape:.1%}",
          *(f"{value:+.1%}" for value in (line.errors.median, line.errors.p10, line.errors.p90, line.errors.worst)),
          line.out_of_range, line.worst_step] for line in lines],
    )])


def command_line() -> str:
    """Return the command line for the provenance, with absolute paths cut to their last part (the rest is local)."""
    return shlex.join(["hermes", *(Path(part).name if Path(part).is_absolute() else part for part in sys.argv[1:])])


@contextmanager
def watched(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Give a callback for a collector's progress: a bar on a terminal, occasional lines elsewhere."""
    if quiet:
        yield None
        return
    from hermes.results.progress import ProgressBar

    shown = -1
    with ProgressBar("starting", transient=False, counts=False) as bar:
        def progress(now: Progress) -> None:
            nonlocal shown
            text = f"{now.done}/{now.points} points, {_left(now)}"
            bar.update(now.done, now.points, f"{text}; {now.last[:48] or 'warming up'}")
            if not sys.stderr.isatty() and now.done * 10 // now.points > shown:
                shown = now.done * 10 // now.points
                print(text, file=sys.stderr, flush=True)

        yield progress


def _left(progress: Progress) -> str:
    classes = ", ".join(f"{count} {name}" for name, count in progress.classes.most_common())
    return f"{progress.left_s:.0f} s left" + (f"; {classes}" if classes else "")


calibrate = command_group("Measure engines, links and indices.", {
    "plan": plan, "run": run, "pack": pack, "check": check, "from-requests": from_requests, "start-up": start_up})
