"""Simulate the points of a study: in parallel, each once, and only those that no earlier run has finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.folder_packages import folder_package
from hermes.errors import InputError, Verbatim
from hermes.results import Results
from hermes.study.loading import Context, Study

if TYPE_CHECKING:
    import pandas as pd

    from hermes.scenario import Scenario

__all__ = ["Point", "run_points", "scenario_of", "sweep_points"]


@dataclass(frozen=True)
class Point:
    """One simulation of a study.

    Args:
        label: Its name, at most 200 characters; points of one label differ only in the seed.
        settings: Settings in the study's scenario, by dotted path.
        columns: Columns of its row, besides the figures.
        seed: Seed of the workload; None: the scenario's own.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def run_points(
    context: Context, name: str, points: Sequence[Point], *, scenario: str | Path | Mapping[str, Any],
    extract: Callable[[Results], Mapping[str, Any]] | None = None,
) -> pd.DataFrame:
    """Return the figures of every point: a row per point, in the order of `points`.

    Args:
        context: Context of the study.
        name: Name of the folder in `context.out` that keeps the points.
        scenario: Scenario of all points: a file of the study, or a document.
        points: The points.
        extract: Function that returns more figures of a point; from a module of the study, or of a folder next to it.

    Columns are those of a sweep's frame, those of `Point.columns`, and `core_s`, the seconds of CPU time of the point.
    An interrupted study keeps its finished points. The figures are the same on any number of workers. Raises
    `InputError` if a point fails.
    """
    import pandas as pd

    from hermes.explore import load_sweep, run_sweep

    known: dict[str, Point] = {}
    seeds: dict[str, set[int | None]] = defaultdict(set)
    for point in points:
        if known.setdefault(point.label, point).settings != point.settings:
            raise ValueError(f"two points are called {point.label!r}")
        seeds[point.label].add(point.seed)
    groups: dict[tuple[int | None, ...], list[Point]] = defaultdict(list)
    for label, point in known.items():
        groups[tuple(sorted(seeds[label], key=lambda seed: -1 if seed is None else seed))].append(point)
    context.say(f"{context.study.name}: {name}, {len(set(map(_key, points)))} points")
    frames: list[pd.DataFrame] = []
    places: dict[tuple[str, int | None], int] = {}
    count = 0
    home, function = (context.study.folder, None) if extract is None else _named(context.study, extract)
    start = dict(scenario) if isinstance(scenario, Mapping) else str(context.file(str(scenario)))
    for number, (wanted, group) in enumerate(groups.items()):
        sweep = load_sweep({
            "name": name, "scenario": start, "cases": [{"label": p.label, "set": dict(p.settings)} for p in group],
            "seeds": None if wanted == (None,) else list(wanted), "extract": function,
        })
        folder = context.out / "points" / (name if len(groups) == 1 else f"{name}-{number}")
        done = run_sweep(replace(sweep, folder=home), folder, workers=context.workers, executor=context.executor)
        for failed, reason in done.failed().items():
            case = done.settings(failed)["case"]
            raise InputError("a point that can be simulated", Verbatim(reason), field=f"{name}: {case}")
        frame = done.frame().copy()   # in one block of memory: a column can then be added without a warning
        frames.append(frame.assign(core_s=frame["hash"].map(done.journal().groupby("hash")["cpu_s"].last())))
        keys = [(point.label, seed) for point in group for seed in wanted]
        places |= {key: count + place for place, key in enumerate(keys)}
        count += len(frame)
    rows = pd.concat(frames, ignore_index=True).iloc[[places[_key(point)] for point in points]].reset_index(drop=True)
    columns: dict[str, Any] = {name: [point.columns.get(name) for point in points]
                               for name in dict.fromkeys(name for point in points for name in point.columns)}
    return rows.assign(**columns).copy()   # copied, to have one block of memory instead of one per column


def _key(point: Point) -> tuple[str, int | None]:
    return point.label, point.seed


def scenario_of(context: Context, point: Point, scenario: str) -> Scenario:
    """Return the validated scenario of a point, as `run_points` simulates it."""
    from hermes.explore import load_sweep
    from hermes.explore.sweep.points import points
    from hermes.explore.sweep.points import scenario as checked

    sweep = load_sweep({"scenario": str(context.file(scenario)),
                        "cases": [{"label": point.label, "set": dict(point.settings)}]})
    return checked(sweep, points(sweep)[0])


def sweep_points(document: Mapping[str, Any]) -> list[Point]:
    """Return the points of a sweep's document (`hermes.explore`), with the settings of its cases, zips and grid and the
    values of its columns."""
    from hermes.explore import load_sweep
    from hermes.explore.sweep.points import points

    return [Point(point.label, {path: node.plain() for path, node in point.overrides.items()}, point.settings,
                  point.seed) for point in points(load_sweep(document))]


def _named(study: Study, function: Callable[..., Any]) -> tuple[Path, str]:
    """Return a function by name, as a worker process finds it: (folder, `module:function`)."""
    own = folder_package(study.folder)
    around = own.rpartition(".")[0]
    inside = function.__module__.startswith(f"{own}.")
    module = function.__module__.removeprefix(f"{own if inside else around}.")
    return study.folder if inside else study.folder.parent, f"{module}:{function.__name__}"
