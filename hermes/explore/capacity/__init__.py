"""The highest load, or the fewest clients, with which a scenario meets its SLO.

A trial is one simulation at one level of a grid: loads in steps of 1%, or whole numbers of clients. The search
(`hermes.explore.bracket`) finds the two neighbours of which one is met and the harder one missed. The time of arrivals
stays the same at every load: a workload with a number of requests has so many more at a higher rate.

The first seed's search says where the answer is. Loads near it are then judged by several seeds together, and for
longer, until the interval of the answer is narrow enough (`hermes.explore.capacity.capacity_pooled`). Numbers of
clients are searched for seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes.config.writing import scratch_folder
from hermes.errors import InputError
from hermes.explore.bracket import Bracket
from hermes.explore.capacity.capacity_pooled import Shares, most_of_pooled, pooled
from hermes.explore.certain_miss import CERTAIN
from hermes.explore.lengthening import replays
from hermes.explore.objective import Row, missed, need_fixed_clients, need_slo
from hermes.explore.sweep.executor import Executor, opened
from hermes.explore.trials import Trials
from hermes.results.progress import OnProgress
from hermes.scenario import Overrides, Scenario, load_scenario
from hermes.scenario.starts import check_starts
from hermes.workload.base import ArrivalProcess

__all__ = ["Answer", "Capacity", "Trial", "axis_of", "capacity"]

RATIO = 1.01          # of neighbouring loads
FIRST_STRIDE = 70     # levels of a doubled load
CONFIRM = 3           # loads below the answer that must be met as well
NEAR_STRIDE = 16      # levels from a load whose share of late requests is near the allowed one
LOWEST = -700         # a thousandth of the scenario's load
MOST_CLIENTS = 64     # times the scenario's
USUAL, USUAL_NEAR = 9, 5   # simulations of a search, and of one near its answer, as a rule
USUAL_SHORT, USUAL_TIMES = 3, 7   # loads of short simulations of all seeds; how many times as long the long ones are
FEWEST = 100          # requests at loads below the scenario's, if it has as many


@dataclass(frozen=True)
class Trial:
    """One simulation of a search.

    Args:
        load: Factor on the scenario's load, or the number of clients.
        misses: What it misses, or None.
        row: Its flat figures, as in a sweep.
    """

    level: int
    load: float
    seed: int
    misses: str | None
    row: Row


@dataclass(frozen=True)
class Answer:
    """The answer of one seed.

    Args:
        load: The hardest load that is met; None if not even the easiest one tried is.
        next_load: The next harder one on the grid, which is missed; None if none was missed. Where the
            answer is only the start for all seeds together, any harder one.
        complete: False if the search ended by the number of runs: the answer is between `load` and `next_load`.
    """

    seed: int
    load: float | None
    next_load: float | None
    complete: bool
    trials: list[Trial]

    def at(self, load: float | None) -> Trial | None:
        """Return the trial at a load."""
        return next((trial for trial in self.trials if trial.load == load), None)


@dataclass(frozen=True)
class Capacity:
    """The answer, over all seeds.

    Args:
        over: "rate" or "clients".
        unit: What the answer counts: requests/s, conversations/s, users, clients, or times the scenario's load.
        base: The scenario's own load in that unit.
        answers: Of each seed alone; of a load, of the first seed.
        path: Folder of the trials, a sweep; None if they were not kept.
        load: What all seeds meet together, as a factor; low, high: its 95% interval. All None where they were not
            judged together. beyond: The next load, which is missed.
        complete: False if the search, of all seeds together if there is one, ended by the number of runs.
        trials: Of the loads that were judged together.
    """

    name: str
    over: str
    unit: str
    base: float
    answers: list[Answer]
    within: float
    path: Path | None = None
    load: float | None = None
    beyond: float | None = None
    low: float | None = None
    high: float | None = None
    complete: bool = True
    seeds: Sequence[int] = ()
    trials: Sequence[Trial] = ()

    @property
    def values(self) -> list[float]:
        """The answer of each seed, in the unit; 0 for a seed that never meets the SLO."""
        return [self.base * (answer.load or 0.0) for answer in self.answers]

    @property
    def value(self) -> float | None:
        """The load (clients: the most of any seed), in the unit. None if a seed's answer is unknown."""
        if self.seeds:
            return None if self.load is None else self.base * self.load
        return None if any(answer.load is None for answer in self.answers) else max(self.values)

    @property
    def half_width(self) -> float | None:
        """Half of the 95% interval, in the unit; None without one."""
        return None if self.low is None or self.high is None else self.base * (self.high - self.low) / 2

    @property
    def narrow(self) -> bool:
        """Whether the answer is as precise as asked for."""
        if self.over == "clients":
            return len(set(self.values)) == 1
        return self.half_width is not None and self.half_width <= self.within * (self.value or 0.0)

    @property
    def runs(self) -> int:
        return len(self.trials) + sum(len(answer.trials) for answer in self.answers)


def capacity(
    scenario: str | Path | Mapping[str, Any], *, over: str = "rate", overrides: Overrides = (), seeds: int = 5,
    within: float = 0.02, max_runs: int = 12, workers: int = 1, out: str | Path | None = None,
    executor: Executor | None = None, progress: OnProgress | None = None, quick: bool = False,
) -> Capacity:
    """Find the highest load, or the fewest clients, with which a scenario meets its SLO.

    Args:
        scenario: A file, the name of a built-in scenario, or a dict.
        over: "rate": all its workloads times one factor (closed loops: their users). "clients": the number of clients
            of its only group, or "clients:NAME" of one of several.
        overrides: Settings such as `"slo.ttft=1s"`.
        seeds: Most seeds, from the scenario's own on. At least 3 are used (or `seeds`, if that is less).
        within: Half width of the 95% interval that ends the repetitions, relative.
        max_runs: Most simulations of one seed at one length; those for the ends of the interval come on top.
        workers: Processes; 0 runs all in this one.
        out: Folder that keeps the simulations as a sweep; a repeated call continues. Left out, none are kept.
        executor: Executor to use instead of `workers` new processes.
        progress: Called with each round (`hermes.results.progress.OnProgress`).
        quick: The answer of the first seed at the scenario's own length.

    Raises `InputError` for a scenario without an SLO, and for loads that cannot be scaled.
    """
    checked = load_scenario(scenario, overrides)
    need_slo(checked)
    need_fixed_clients(client.value_of("fleet") for client in checked.clients)
    check_starts(checked)
    axis = axis_of(checked, over)
    with (scratch_folder(out) as folder,
          opened(executor, workers) as doing):
        trials = Trials(f"capacity of {checked.title}", checked, folder, doing, progress)
        together = axis.over == "rate" and not quick
        levels = math.asinh(within / RATIO) / math.log(RATIO)   # the answer may be the lower of the two around it
        few = min(seeds, 3)
        trials.left = USUAL + (0 if quick else USUAL_SHORT * few + few + 3 if together else (few - 1) * USUAL_NEAR)
        trials.ahead = USUAL + USUAL_SHORT * few + (few + 1) * USUAL_TIMES if together else None
        most = max_runs + (0 if quick else most_of_pooled(seeds, max_runs, levels) if together else
                           (seeds - 1) * max_runs)
        if progress is not None:
            progress(f"{most} at most", 0, trials.left, 0.0)
        shares = Shares()
        first = _search(trials, axis, [(checked.seed, axis.bracket(0 if together else CONFIRM))], max_runs,
                        shares if together else None)[0]
        found = Capacity(checked.title, axis.over, axis.unit, axis.base, [first], within,
                         None if out is None else Path(out), complete=first.complete)
        if quick or first.load is None:
            pass
        elif not together:
            found = replace(found, answers=_by_seed(trials, axis, first, seeds, max_runs))
        elif first.next_load is not None:
            found = _together(trials, axis, found, seeds, max_runs, levels, shares)
        if out is not None:
            trials.finish()
    return found


def _by_seed(trials: Trials, axis: _Axis, first: Answer, seeds: int, max_runs: int) -> list[Answer]:
    """Search with further seeds, each from the first answer on, until three agree."""
    answers = [first]
    further = range(first.seed + 1, first.seed + seeds)
    for batch in (further[:2], *([seed] for seed in further[2:])):
        if not batch or (len(answers) >= 3 and len({answer.load for answer in answers}) == 1):
            break
        trials.left = len(batch) * USUAL_NEAR
        near = axis.level(first.load or 1.0)
        answers += _search(trials, axis, [(seed, axis.bracket(0, near)) for seed in batch], max_runs)
    return answers


def _together(trials: Trials, axis: _Axis, found: Capacity, seeds: int, max_runs: int, levels: float, shares: Shares
              ) -> Capacity:
    """Judge loads near the first seed's answer by all seeds. levels: From the answer to the ends of its interval, that
    are near enough. shares: Those of the first seed's search."""
    first = found.answers[0]
    at = first.at(first.load)
    assert at is not None
    made: dict[tuple[int, str], list[Trial]] = {}
    length = trials.length

    def simulate(with_seeds: Sequence[int], times: float, suffix: str, level: int) -> list[Row]:
        labels = {f"{_said(axis, level)}, seed {seed}{suffix}": seed for seed in with_seeds}
        if times > 1.0 and not any(suffix == known for _, known in made):   # the first of this length
            trials.left = (len(with_seeds) + 2) * (1 if shares.known(1.0) else USUAL_NEAR) + 2
            trials.ahead = trials.left * times * length
        rows = trials.run({label: (axis.settings(axis.load(level)), seed) for label, seed in labels.items()},
                          max(times * length / trials.length, 1.0))   # which grows with what a seed needs to settle
        made[level, suffix] = [Trial(level, axis.load(level), seed, missed(rows[label]), rows[label])
                               for label, seed in labels.items()]
        return [rows[label] for label in labels]

    requests = 10**9 if trials.arrivals.fixed else int(at.row["requests.total"])   # a trace is as long as it is
    trials.left = 2 * USUAL_NEAR * min(seeds, 3)
    crossings = shares.crossings()
    start = round(crossings[0].level if crossings else _offered(axis, at.level, at.row))
    one = pooled(simulate, start, requests, range(first.seed, first.seed + seeds), max_runs, LOWEST, levels, shares)
    load, beyond, low, high = (None if level is None else axis.load(level)
                               for level in (one.level, one.beyond, one.low, one.high))
    return replace(found, load=load, beyond=beyond, low=low, high=high, complete=one.complete,
                   seeds=one.seeds, trials=[trial for some in made.values() for trial in some])


@dataclass(frozen=True)
class _Axis:
    """What is searched over: loads by level, and the settings of a load."""

    over: str
    unit: str
    base: float
    settings: Callable[[float], dict[str, Any]]
    own: int = 1   # clients: the scenario's number

    def bracket(self, confirm: int, start: int | None = None) -> Bracket:
        if self.over == "clients":
            return Bracket(-self.own if start is None else start, 1, lowest=-MOST_CLIENTS * self.own, highest=-1)
        return Bracket(0, FIRST_STRIDE, lowest=LOWEST, confirm=confirm)

    def load(self, level: float) -> float:
        return float(-level) if self.over == "clients" else float(f"{RATIO**level:.4g}")

    def level(self, load: float) -> int:
        return -round(load) if self.over == "clients" else round(math.log(load, RATIO))


def axis_of(scenario: Scenario, over: str) -> _Axis:
    """Return what `over` varies in a scenario. Raises `InputError`."""
    kind, _, group = over.partition(":")
    if kind == "clients":
        return _clients(scenario, group)
    if over != "rate":
        raise InputError("rate, clients, or clients:NAME", over, field="--over")
    place = None if scenario.source.node is None else scenario.source.node.child("workload")
    several = place is not None and isinstance(place.value, list)
    workloads = scenario.workload

    def settings(factor: float) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i, workload in enumerate(workloads):
            path = f"workload.{i}" if several else "workload"
            out |= {f"{path}.arrivals.{key}": value for key, value in workload.arrivals.scaled(factor).items()}
            if workload.requests is not None and not replays(workload):
                out[f"{path}.requests"] = max(round(workload.requests * factor), min(workload.requests, FEWEST))
        return out

    for i, workload in enumerate(workloads):
        try:
            workload.arrivals.scaled(1.0)
        except InputError as error:
            field = f"workload.{i}.arrivals" if several else "workload.arrivals"
            raise scenario.source.located(error.located(field=field)) from None
    only = workloads[0] if len(workloads) == 1 else None
    if only is not None and not isinstance(only.arrivals, ArrivalProcess):
        return _Axis("rate", "users", only.arrivals.users, settings)
    rate = None if only is None else getattr(only.arrivals, "rate", None)
    if only is None or rate is None:
        return _Axis("rate", "times the scenario's load", 1.0, settings)
    return _Axis("rate", f"{only.counted.get('arrivals', 'requests')}/s", rate, settings)


def _clients(scenario: Scenario, group: str) -> _Axis:
    names = [client.name for client in scenario.clients]
    if not group and len(names) > 1:
        raise InputError(f"the group of clients to count: --over clients:NAME, one of {', '.join(names)}", "clients",
                         field="--over")
    if group and group not in names:
        raise InputError(f"a group of clients: one of {', '.join(names)}", group, field="--over")
    index = names.index(group) if group else 0
    return _Axis("clients", f"clients of {names[index]}", 1.0,
                 lambda load: {f"clients.{index}.count": round(load)}, scenario.clients[index].count)


def _search(trials: Trials, axis: _Axis, searches: list[tuple[int, Bracket]], max_runs: int,
            shares: Shares | None = None) -> list[Answer]:
    """Run the searches of several seeds side by side. shares: Of one seed, of which only a start is wanted: the
    search ends as soon as they say where."""
    found: dict[int, list[Trial]] = {seed: [] for seed, _ in searches}
    ended: dict[int, bool] = {}
    while len(ended) < len(searches):
        wanted: dict[str, tuple[int, int, Bracket]] = {}
        for seed, bracket in searches:
            level = bracket.choose() if seed not in ended and len(found[seed]) < max_runs else None
            if level is None:
                ended.setdefault(seed, bracket.closed)
            else:
                wanted[f"{_said(axis, level)}, seed {seed}"] = level, seed, bracket
        rows = trials.run({label: (axis.settings(axis.load(level)), seed)
                           for label, (level, seed, _) in wanted.items()},
                          until_missed=0.0 if axis.over == "rate" else CERTAIN) if wanted else {}
        for label, (level, seed, bracket) in wanted.items():
            row = rows[label]
            what = missed(row)
            found[seed].append(Trial(level, axis.load(level), seed, what, row))
            bracket.known[level] = what is None
            if what is not None:   # by what was served of a whole run
                bracket.hint = _served_level(axis, level, row)
            if shares is not None:
                shares.add(_offered(axis, level, row), [row])
                low, high = bracket.meets_up_to, bracket.misses_from
                if low is not None and high is not None:
                    bracket.near = high - low if shares.crossings() else 1
                elif shares.last():
                    bracket.stride = NEAR_STRIDE
    answers = []
    for seed, bracket in searches:
        low, high = bracket.meets_up_to, bracket.misses_from
        answers.append(Answer(seed, None if low is None else axis.load(low), None if high is None else axis.load(high),
                              ended[seed], found[seed]))
    return answers


def _said(axis: _Axis, level: int) -> str:
    load = axis.load(level)
    return f"{load:g} {axis.unit}" if axis.over == "clients" else f"{axis.base * load:.4g} {axis.unit}"


def _offered(axis: _Axis, level: int, row: Row) -> float:
    """Return the level of the rate that a seed's arrivals really had."""
    offered = row.get("headline.offered_per_s") if axis.unit == "requests/s" else None
    return math.log(offered / axis.base, RATIO) if offered else level


def _served_level(axis: _Axis, level: int, row: Row) -> int | None:
    """Return the level of the rate that overloaded clients still served: more they cannot serve for long."""
    offered, served = row.get("headline.offered_per_s"), row.get("headline.served_per_s")
    if axis.over != "rate" or row.get("headline.stable") is not False or not offered or not served:
        return None
    return axis.level(axis.load(level) * min(served / offered, 1.0))
