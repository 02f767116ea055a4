"""`hermes advise`: what an autoscaler would have done, on a run or a dump of metrics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hermes.cli.output import Answer, Plugins, Quiet

if TYPE_CHECKING:
    from hermes.fleet.advice import Advice
    from hermes.results.layout import Part

__all__ = ["advise"]

OPEN_LOOP = "open loop: it saw the recorded replicas, and what it asked for changed nothing"
ROWS = 40      # decisions that are printed
SUFFIXES = (".csv", ".json", ".om")


def advise(
    run: Annotated[list[str], typer.Argument(
        metavar="RUN|DUMP...", help="A folder that `hermes run -o` wrote; or a .csv file with metrics; or .json files "
        "of Prometheus, each perhaps with waiting=, running= or kv_use= before it; or OpenMetrics (.om).",
        show_default=False)],
    autoscaler: Annotated[str, typer.Option(
        metavar="FILE.yaml|{...}", help="The autoscaler: a file, or a mapping such as '{kind: hpa, ...}'.",
        show_default=False)],
    group: Annotated[list[str], typer.Option(
        metavar="NAME", help="Group of clients of a run; repeatable. Left out, the only one.")] = [],  # noqa: B006
    most: Annotated[int | None, typer.Option(
        min=1, max=100_000, metavar="N", show_default=False, help="Most replicas of a dump [no limit].")] = None,
    label: Annotated[str, typer.Option(
        metavar="NAME", help="Label of Prometheus with the name of a replica.")] = "pod",
    plot: Annotated[Path | None, typer.Option(
        "--plot", metavar="FILE", help="Draw the replicas, recorded and wanted: a .png or .svg file.")] = None,
    plugins: Plugins = False,
    quiet: Quiet = False,
) -> Answer:
    """Print what an autoscaler would have done in a finished run, or with the metrics of a real service.

    It is open loop: the autoscaler sees the recorded replicas, and what it asks for changes nothing. A run is simulated
    again, as its record does not have each scrape.
    """
    from hermes.config.yaml_document import load_yaml, parse_yaml
    from hermes.errors import InputError, Verbatim

    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise InputError("a .png or .svg file", str(plot), field="--plot")
    document = parse_yaml(autoscaler, "--autoscaler") if autoscaler.lstrip().startswith("{") else load_yaml(autoscaler)
    dump = len(run) > 1 or (run[0].lower().endswith(SUFFIXES) and not Path(run[0]).is_dir())
    if dump:
        if len(group) > 1:
            raise InputError(Verbatim("a dump is of one group"), field="--group")
        found, head = _of_dump(run, document, group[0] if group else "replicas", most, label)
    else:
        from hermes.results.progress import ProgressBar
        from hermes.scenario.advise import advise_run

        if most is not None:
            raise InputError(Verbatim("of a run only the autoscaler's `max` limits it; leave it out"), field="--most")
        if quiet or not sys.stderr.isatty():
            found = advise_run(run[0], document, group, plugins=plugins)
        else:
            with ProgressBar("requests") as bar:
                found = advise_run(run[0], document, group,
                                   lambda done, total, now_s: bar.update(done, total, f"t = {now_s:.0f} s"),
                                   plugins=plugins)
        head = {}
    if plot is not None:
        _draw(found, plot)
    parts: list[Part] = [OPEN_LOOP]
    for one in found:
        parts += _parts(one)
    parts += [head["note"]] if "note" in head else []
    return Answer({"open_loop": True, **head, "groups": [_data(one) for one in found]}, parts)


def _of_dump(files: list[str], document: Any, name: str, most: int | None, label: str
             ) -> tuple[list[Advice], dict[str, Any]]:
    """Return the advice on a dump, and what is said about the dump."""
    from hermes.fleet.advice import NO_LIMIT
    from hermes.fleet.dump import read_dump
    from hermes.fleet.replay import replay
    from hermes.scenario.advise import autoscaler_of
    from hermes.units import NS_PER_S

    chosen = autoscaler_of(document)
    dump = read_dump(files, label)
    interval_s = dump.interval_ns / NS_PER_S
    head: dict[str, Any] = {"start_s": dump.start_s, "interval_s": interval_s, "means": dump.means(),
                            "rows": {name: len(rows.time_ns) for name, rows in dump.replicas.items()}}
    period = chosen.value_of("scrape") or chosen.value_of("period")
    if period is not None and interval_s > period:
        head["note"] = (f"the dump has values every {interval_s:g} s, and {chosen.value_of('kind')} would "
                        f"have had them\nevery {period:g} s: it sees some again")
    return [replay(dump, chosen, name, most or NO_LIMIT)], head


def _parts(one: Advice) -> list[Part]:
    from hermes.results.layout import Section, format_number
    from hermes.units import NS_PER_S, counted

    hours = 3600 * NS_PER_S
    shown = one.decisions[:ROWS]
    left = len(one.decisions) - len(shown)
    share = f" ({one.differs_ns / one.end_ns:.1%})" if one.end_ns else ""
    rate = "" if one.per_day is None else f", {format_number(one.per_day)} a day"
    said = [f"{one.group}: {counted(len(one.decisions), 'decision')} in {one.end_ns / NS_PER_S:,.6g} s{rate}",
            f"wanted differs from recorded for {one.differs_ns / NS_PER_S:,.6g} s{share}: "
            f"{one.more_ns / hours:.3g} replica-hours more, {one.fewer_ns / hours:.3g} fewer", *_asked(one)]
    if not shown:
        return ["\n".join(said)]
    return ["\n".join(said), Section("", ["from s", "to s", "recorded", "wanted", "reason"], [
        [f"{row.start_ns / NS_PER_S:.10g}", f"{row.end_ns / NS_PER_S:.10g}", row.recorded, row.wanted, row.reason]
        for row in shown], f"... and {left:,} more (--json has all)" if left else "")]


def _asked(one: Advice) -> list[str]:
    """Return what its metrics asked for, if its limits of rate allowed less, and what the group does not have."""
    out = []
    if max(one.asked, default=0) > one.most:
        out.append(f"its metrics ask for {sum(one.asked) / len(one.asked):.3g} replicas on average, "
                   f"{max(one.asked)} at most")
    if one.slots is not None and max(one.most, *one.asked, 0) > one.slots:
        taken = f"; it would have taken up to {one.most} at a look" if one.most > one.slots else ""
        out.append(f"the group has {one.slots} (its `count`){taken}")
    return out


def _data(one: Advice) -> dict[str, Any]:
    from hermes.units import NS_PER_S

    return {
        "group": one.group, "duration_s": one.end_ns / NS_PER_S, "decisions_per_day": one.per_day,
        "differs_s": one.differs_ns / NS_PER_S, "more_replica_hours": one.more_ns / NS_PER_S / 3600,
        "fewer_replica_hours": one.fewer_ns / NS_PER_S / 3600,
        "decisions": [{"from_s": row.start_ns / NS_PER_S, "to_s": row.end_ns / NS_PER_S, "recorded": row.recorded,
                       "wanted": row.wanted, "reason": row.reason} for row in one.decisions],
        "count": one.slots, "wanted_most": one.most or None, "asked_most": max(one.asked, default=None),
        "asked_mean": sum(one.asked) / len(one.asked) if one.asked else None,
        "recorded": [[time / NS_PER_S, number] for time, number in one.recorded],
    }


def _draw(found: list[Advice], output: Path) -> None:
    """Draw the replicas of each group over time."""
    import pandas as pd

    from hermes.config.writing import replacing
    from hermes.results.charts import Axis, Chart, Layer, Panel
    from hermes.results.plots import image
    from hermes.units import NS_PER_S

    panels = []
    for one in found:
        # a line for what is recorded, and one for each decision that breaks off where it agrees again
        ends = [*one.recorded, (one.end_ns, one.recorded[-1][1])]
        layers = [Layer("step", pd.DataFrame({
            "x": [time / NS_PER_S for time, _ in ends], "y": [number for _, number in ends], "series": "recorded"}))]
        layers += [Layer("line", pd.DataFrame({
            "x": [row.start_ns / NS_PER_S, row.end_ns / NS_PER_S], "y": [row.wanted] * 2, "series": "wanted"}))
            for row in one.decisions[:1000]]
        title = "Replicas" if one.group == "replicas" else f"Replicas of {one.group}"
        panels.append(Panel(title, Axis("time (s)"), Axis("replicas"), layers, legend=True))
    suffix: Literal["png", "svg"] = "svg" if output.suffix == ".svg" else "png"
    with replacing(output) as path:
        path.write_bytes(image(Chart("What the autoscaler would have done", OPEN_LOOP, panels), suffix))
