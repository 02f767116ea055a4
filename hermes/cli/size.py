"""`hermes size`: the fewest devices that serve a load within an SLO."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli import complete
from hermes.cli.output import Answer, Options, Overrides, SearchOptions, Verbose, cores

if TYPE_CHECKING:
    from hermes.explore.scale import Limit
    from hermes.explore.size.groups import Grouped
    from hermes.results.layout import Section

__all__ = ["size"]


@dataclass(frozen=True)
class LayoutOptions(Options):
    """The layouts to try."""

    device: Annotated[str, typer.Option(metavar="NAMES", help="Devices to try, separated by commas.")] = "h100-sxm"
    tp: Annotated[str, typer.Option(metavar="NUMBERS", help="Devices that share every layer, to try.")] = "1,2,4,8"
    pp: Annotated[str | None, typer.Option(
        metavar="NUMBERS", help="Pipeline stages of a client to try. Left out, 1 and 2, within the largest --tp.")
    ] = None
    dp: Annotated[str | None, typer.Option(
        metavar="NUMBERS", help="Data-parallel ranks of a client to try. Left out, 1; of a mixture of experts also 2, "
                                "4 and 8 with --ep, within the largest --tp.")] = None
    ep: Annotated[str | None, typer.Option(
        metavar="off,on", help="Whether each device has whole experts (expert parallelism). Left out, off; of a "
                               "mixture both.")] = None
    layout: Annotated[str, typer.Option(
        metavar="NAMES", help="mixed: each client serves prompts and answers. pd: some prefill, the others decode.")
    ] = "mixed,pd"
    price: Annotated[str, typer.Option(
        metavar="PRICES", help="Dollars per hour of one device, such as gb200=10.5,h200=4, instead of the "
                               "description's.")] = ""
    max_devices: Annotated[int, typer.Option(min=1, max=100_000, help="Most devices of a layout.")] = 64
    spare: Annotated[str | None, typer.Option(
        metavar="UNIT", help="Keep the SLO while one client, device, node (node:8 devices) or zone (zone:3 of them) is "
                             "lost.")] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `hermes.explore.size.size`. Raises `InputError`."""
        from hermes.explore.size.layouts import Splits
        from hermes.explore.size.spare import loss_option

        return {"loss": loss_option(self.spare),
                "devices": _names(self.device, "--device"), "tps": _numbers(self.tp, "--tp"),
                "splits": Splits(pps=None if self.pp is None else _numbers(self.pp, "--pp"),
                                 dps=None if self.dp is None else _numbers(self.dp, "--dp"),
                                 eps=None if self.ep is None else _experts(self.ep)),
                "layouts": _layouts(self.layout),
                "max_devices": self.max_devices, "prices": _prices(self.price)}


@dataclass(frozen=True)
class ScaleOptions(Options):
    """The search for a fleet."""

    scale: Annotated[bool, typer.Option(
        "--scale", help="Of a scenario with a fleet: the autoscaler's target, min and start that need the fewest "
                        "device-hours within --minutes.")] = False
    minutes: Annotated[str | None, typer.Option(
        metavar="LIMIT", help="With --scale: how many minutes may be out of the SLO, such as 10 or 1%.")] = None
    seeds: Annotated[int, typer.Option(min=1, max=20, help="With --scale: seeds of the search.")] = 3
    least: Annotated[str | None, typer.Option(
        "--min", metavar="NUMBERS", help="With --scale: values of the autoscaler's min to try.")] = None
    start: Annotated[str | None, typer.Option(
        metavar="NUMBERS", help="With --scale: replicas at the start to try.")] = None

    def check(self) -> None:
        """Raise `InputError` for options of `--scale` without it."""
        from hermes.errors import InputError, Verbatim

        for option, value in (("--minutes", self.minutes), ("--min", self.least), ("--start", self.start)):
            if value is not None and not self.scale:
                raise InputError(Verbatim("it belongs to --scale; give both or none"), field=option)


def size(
    scenario: Annotated[str | None, typer.Argument(
        help="A scenario file, or the name of a built-in one, instead of --model and --workload.", show_default=False,
        autocompletion=complete.scenarios)] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model, or the path of its config.json.")] = None,
    workload: Annotated[str | None, typer.Option(
        metavar="NAME", help="A workload profile such as azure-conv-2023, or a trace file.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="Requests per second, such as 50/s.")] = None,
    slo: Annotated[str | None, typer.Option(
        metavar="LIMITS", help="Limits such as ttft_p99=1s,tpot_p99=50ms.")] = None,
    layouts: LayoutOptions = LayoutOptions(),
    group: Annotated[str | None, typer.Option(
        metavar="NAME", help="Size this group of LLM clients alone; the others stay as the scenario has them.")] = None,
    fleet: ScaleOptions = ScaleOptions(),
    overrides: Overrides = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="DIR", help="Write the best scenario, a figure and all simulations here.")] = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008  (frozen)
    verbose: Verbose = False,
) -> Answer:
    """Find the fewest devices that serve a load within an SLO, by device, parallelism and layout.

    Several groups of LLM clients are sized one by one, then simulated together. Exit code 1 if no layout meets the SLO.
    With --scale: the fleet with the fewest device-hours. Exit code 1 if none keeps the limit.
    """
    from hermes.explore.assumed import assumes_of_best
    from hermes.explore.objective import slo_overrides
    from hermes.explore.size import size as find
    from hermes.explore.size.files import from_options, from_scenario, write
    from hermes.explore.size.groups import groups_in, size_groups
    from hermes.explore.size.text import front_section, lines, plain, ranking
    from hermes.results.progress import SearchProgress

    settings = [*overrides, *(slo_overrides(slo) if slo is not None else [])]
    fleet.check()
    if fleet.scale:
        given = {"--model": model, "--workload": workload, "--rate": rate, "--pp": layouts.pp, "--dp": layouts.dp,
                 "--ep": layouts.ep, "--price": layouts.price or None, "--spare": layouts.spare}
        return _scaled(scenario, given, fleet, group, settings, output, search, verbose)
    start = (from_options(model, workload, rate, settings) if scenario is None
             else from_scenario(scenario, model, workload, rate, settings, group))
    options: dict[str, Any] = layouts.arguments() | {
        "base_dir": start.base_dir, "out": None if output is None else output / "simulations"}
    with search.executor_of() as executor, SearchProgress(quiet=search.quiet, verbose=verbose) as progress:
        if group is None and len(groups_in(start.document)) > 1:
            _one_group(layouts.spare, list(groups_in(start.document)))
            groups = size_groups(start.document, executor=executor, progress=progress, **options)
            return _of_groups(groups, start.base_dir, output, verbose)
        found = find(start.document, executor=executor, progress=progress, **options)
    if output is not None:
        write(found, output)
        if found.meets:
            _write_launch(output)
    sections = [*ranking(found), *([front_section(found)] if verbose else [])]
    return _answer(lines(found), plain(found), partial(assumes_of_best, found), output if found.meets else None,
                   sections, verbose, int(not found.meets))


def _one_group(spare: str | None, groups: list[str]) -> None:
    """Raise `InputError` for spares of several groups: together they would be simulated without any."""
    from hermes.errors import InputError, Verbatim

    if spare is not None:
        raise InputError(Verbatim(f"it is for one group of clients; name one (--group {groups[0]})"), field="--spare")


def _scaled(scenario: str | None, given: dict[str, str | None], fleet: ScaleOptions, group: str | None,
            settings: list[str], output: Path | None, search: SearchOptions, verbose: bool) -> Answer:
    """Return the answer of `--scale`. given: Options that do not go with it, with their values."""
    from hermes.errors import InputError, Verbatim
    from hermes.explore.objective import limits_text
    from hermes.explore.scale import scale
    from hermes.explore.scale.text import lines, plain, points_table
    from hermes.explore.size.files import write_best
    from hermes.results.layout import labelled
    from hermes.results.progress import SearchProgress

    if scenario is None:
        raise InputError(Verbatim("missing: --scale needs a scenario with a fleet"), field="SCENARIO")
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise InputError(Verbatim("--scale keeps the scenario's clients and workload; change them with --set"),
                         field=wrong)
    limit = _limit(fleet.minutes)
    count = search.workers if search.workers >= 0 else cores()

    def estimated(usual: int, seconds: float) -> None:
        if seconds and not search.quiet:
            took = usual * seconds / max(count, 1)
            print(f"{seconds:.0f} s: of one simulation; about {usual} of them, "
                  f"{f'{took:.0f} s' if took < 120 else f'{took / 60:.0f} min'} with "
                  f"{'1 process' if count <= 1 else f'{count} processes'}", file=sys.stderr, flush=True)

    with search.executor_of() as executor, SearchProgress(quiet=search.quiet, verbose=verbose) as progress:
        found = scale(scenario, limit, group=group, overrides=settings, seeds=fleet.seeds,
                      least=None if fleet.least is None else _replicas(fleet.least, "--min"),
                      starts=None if fleet.start is None else _replicas(fleet.start, "--start"),
                      out=None if output is None else output / "simulations", executor=executor, progress=progress,
                      estimated=estimated)
    text = lines(found, limits_text(found.scenario.slo))
    best = found.cheapest
    if output is not None and best is not None:
        write_best(found.document(best), found.scenario.source.base_dir, best.fleet.label, output)
        text.append(("files", f"{output}; next: hermes run {output / 'best.yaml'}"))
    return Answer(plain(found), [labelled(text), points_table(found, verbose=verbose)], int(best is None))


def _limit(text: str | None) -> Limit:
    from hermes.errors import InputError
    from hermes.explore.scale import Limit

    expected = "the minutes that may be out of the SLO: a number such as 10, or a share such as 1%"
    if text is None:
        raise InputError(expected, None, field="--minutes")
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= (100 if text.endswith("%") else 1e9):
        raise InputError(expected, text, field="--minutes")
    return Limit(share=value / 100) if text.endswith("%") else Limit(value)


def _replicas(text: str, option: str) -> list[int]:
    from hermes.errors import InputError

    names = _names(text, option)
    if not all(name.isdecimal() and int(name) <= 100_000 for name in names):
        raise InputError("numbers of replicas, such as 1,2,4", text, field=option)
    return [int(name) for name in names]


def _of_groups(found: Grouped, base_dir: Path, output: Path | None, verbose: bool) -> Answer:
    """Write the scenario with all groups, and return their answers."""
    from hermes.explore.assumed import assumes_of_document
    from hermes.explore.size.files import write_best
    from hermes.explore.size.groups_text import lines, plain

    if output is not None and found.meets:
        write_best(found.document, base_dir, "each group by its own simulations, then together", output)
        _write_launch(output)
    assumes = partial(assumes_of_document, found.document, base_dir) if found.meets else list
    return _answer(lines(found), plain(found), assumes, output if found.meets else None, [], verbose,
                   int(not found.meets))


def _answer(lines: list[tuple[str, str]], data: dict[str, Any], assumes: Callable[[], list[dict[str, Any]]],
            written: Path | None, sections: list[Section], verbose: bool, exit_code: int) -> Answer:
    """Return the answer, and after it the defaults behind it, whose alternatives are simulated."""
    from hermes.results.layout import labelled

    if written is not None:
        lines = [*lines, ("files", f"{written}; next: hermes capacity {written / 'best.yaml'}")]
    return Answer(data, [labelled(lines), *sections], exit_code, [partial(_assumed, assumes, verbose)])


def _assumed(assumes: Callable[[], list[dict[str, Any]]], verbose: bool) -> Answer:
    from hermes.results.assumes import assumed_lines
    from hermes.results.layout import labelled

    found = assumes()
    texts = [("assumes", text) for text in assumed_lines(found, verbose=verbose)]
    return Answer({"assumes": found}, [labelled(texts)] if texts else [])


def _write_launch(folder: Path) -> None:
    """Write the commands that start the engines of the best layout, and its Kubernetes manifests."""
    from hermes.config.writing import write_text
    from hermes.deploy.manifests import KINDS, manifest_text
    from hermes.deploy.vllm import assumed_names, command_lines
    from hermes.scenario import load_scenario

    best = load_scenario(folder / "best.yaml")
    write_text(folder / "launch.sh", "".join(f"# {line}\n\n" for line in assumed_names(best))
               + "\n".join(f"{lines}\n" for lines in command_lines(best)))
    for kind in KINDS:
        write_text(folder / f"{kind}.yaml", manifest_text(kind, best))


def _names(text: str, option: str) -> list[str]:
    from hermes.errors import InputError

    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not names:
        raise InputError("at least one name", text, field=option)
    return names


def _prices(text: str) -> dict[str, float]:
    from hermes.errors import InputError

    prices: dict[str, float] = {}
    for part in _names(text, "--price") if text else []:
        name, equals, dollars = (word.strip() for word in part.partition("="))
        try:
            prices[name] = float(dollars)
        except ValueError:
            equals = ""
        if not name or not equals or not 0 < prices[name] <= 1e6:
            raise InputError("dollars per hour of one device, such as gb200=10.5", part, field="--price")
    return prices


def _numbers(text: str, option: str) -> list[int]:
    from hermes.errors import InputError

    names = _names(text, option)
    if not all(name.isdecimal() and 1 <= int(name) <= 1024 for name in names):
        what = {"--tp": "devices", "--pp": "stages", "--dp": "ranks"}[option]
        raise InputError(f"numbers of {what} from 1 to 1024, such as 1,2,4,8", text, field=option)
    return [int(name) for name in names]


def _experts(text: str) -> list[bool]:
    from hermes.errors import InputError

    names = _names(text, "--ep")
    if not set(names) <= {"off", "on"}:
        raise InputError("off, on or both, separated by a comma", text, field="--ep")
    return [name == "on" for name in names]


def _layouts(text: str) -> list[str]:
    from hermes.errors import InputError
    from hermes.explore.size import LAYOUTS

    names: list[Any] = _names(text, "--layout")
    wrong = next((name for name in names if name not in LAYOUTS), None)
    if wrong is not None:
        raise InputError(f"layouts of {', '.join(LAYOUTS)}", wrong, field="--layout")
    return names
