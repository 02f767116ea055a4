"""Search for the settings of a scenario that no other beats in all objectives (`hermes optimize`).

Optuna chooses settings in batches of a fixed size; simulations are jobs of a sweep in the folder of the search. So the
search depends on its file and on nothing else, and an interrupted one is repeated from the beginning, with every
finished simulation taken from the folder. It ends with the same bytes.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermes.errors import HermesError, InputError, Verbatim, suggest
from hermes.explore.lengthening import Arrivals, arrivals_of
from hermes.explore.objective import settled
from hermes.explore.optimize.space import Dimension, Space
from hermes.explore.sweep.config import load_sweep
from hermes.explore.sweep.executor import Executor
from hermes.explore.sweep.figures import Scalar
from hermes.explore.sweep.runner import run_sweep
from hermes.explore.trials import MOST_TIMES
from hermes.results.progress import OnProgress
from hermes.scenario.build import build
from hermes.scenario.document import resolved_yaml, scenario_of
from hermes.scenario.loading import overridden

__all__ = ["Found", "Tried", "fronts", "optimize", "scenario_text"]

Row = Mapping[str, Scalar]


@dataclass(frozen=True)
class Tried:
    """Settings that were tried.

    Attributes:
        values: The objectives, in the order of the file; empty if the settings cannot be simulated.
        excess: How far constraints are missed, largest first in the file's order; empty without constraints.
        refused: Why they cannot be simulated; "" if they can.
        failed: How their simulation ended without a result (a worker was killed, an exception); "" if it did not. Such
            settings might belong to the front.
        unsettled: Why the simulation is too short to judge constraints (`hermes.results.figures.settling`);
            "" if it settled, and without constraints.
        long: Whether the figures are of the long simulation.
        simulated: The settings that `row` is of: with the requests of arrivals that were lengthened until they settled.
    """

    settings: Mapping[str, Any]
    values: tuple[float, ...] = ()
    excess: tuple[float, ...] = ()
    refused: str = ""
    failed: str = ""
    unsettled: str = ""
    long: bool = True
    row: Row = field(default_factory=dict)
    simulated: Mapping[str, Any] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        return self.judged and not self.unsettled and all(excess <= 0 for excess in self.excess)

    @property
    def judged(self) -> bool:
        """Whether there is a result."""
        return not self.refused and not self.failed


@dataclass(frozen=True)
class Found:
    """A finished search: every settings tried, and the front of those that meet the constraints."""

    space: Space
    tried: tuple[Tried, ...]
    front: tuple[Tried, ...]
    whole: bool   # whether the space was tried whole

    @property
    def failed(self) -> tuple[Tried, ...]:
        """The settings whose simulation ended without a result: without them the front may be another."""
        return tuple(one for one in self.tried if one.failed)


def optimize(
    space: Space, folder: Path, executor: Executor, progress: OnProgress | None = None,
) -> Found:
    """Search, with the simulations kept in `folder`/simulations; `progress` is called with each round.

    Raises `InputError` for figures that a simulation does not have, and if no settings at all can be simulated, and
    `HermesError` if no simulation has a result.
    """
    search = _Search(space, folder / "simulations", executor, progress or (lambda what, done, most, share: None))
    whole = space.combinations()
    listed = search.try_all(whole) if whole is not None else search.sampled()
    failed = [tried for tried in listed if tried.failed]
    if failed and not any(tried.judged for tried in listed):
        raise HermesError(f"no simulation has a result; the first failed: {failed[0].failed}")
    if not any(tried.judged for tried in listed):
        raise InputError(Verbatim(f"no settings can be simulated; the first: {listed[0].refused}"), field="space")
    if space.config.fidelity is not None:
        listed = search.longer(listed)
    search.finish()
    front = _sorted(space, fronts([t for t in listed if t.feasible and t.long], _signs(space))[:1])
    return Found(space, tuple(listed), tuple(front), whole is not None)


def fronts(tried: Sequence[Tried], signs: Sequence[int]) -> list[list[Tried]]:
    """Sort into fronts: none of the first is beaten in all objectives, none of the second but by the first, and so on.

    signs: 1 where small values are better, -1 where large ones are.
    """
    def beats(a: Tried, b: Tried) -> bool:
        sides = [(sign * x, sign * y) for sign, x, y in zip(signs, a.values, b.values, strict=True)]
        return all(x <= y for x, y in sides) and any(x < y for x, y in sides)

    left, found = list(tried), []
    while left:
        best = [one for one in left if not any(beats(other, one) for other in left)]
        found.append(best)
        kept = {id(one) for one in best}
        left = [one for one in left if id(one) not in kept]
    return found


def _signs(space: Space) -> list[int]:
    return [1 if way == "minimize" else -1 for way in space.config.objectives.values()]


def _sorted(space: Space, found: Iterable[Sequence[Tried]]) -> list[Tried]:
    signs = _signs(space)
    return sorted((one for front in found for one in front),
                  key=lambda one: ([sign * value for sign, value in zip(signs, one.values, strict=True)],
                                   _key(one.settings)))


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=repr)


class _Search:
    """Settings that were simulated, each once."""

    def __init__(self, space: Space, folder: Path, executor: Executor, progress: OnProgress) -> None:
        self._space, self._folder, self._executor, self._progress = space, folder, executor, progress
        self._cases: dict[str, dict[str, Any]] = {}
        self._arrivals: dict[str, Arrivals] = {}   # of settings that can be simulated
        self._number = 0
        self._tried: dict[str, Tried] = {}
        self._done = self._most = 0   # simulations, those with longer arrivals left out

    def try_all(self, settings: Iterable[Mapping[str, Any]]) -> list[Tried]:
        """Return what settings give, simulating those that are new, a batch at a time."""
        listed, batch = list(settings), self._space.config.batch
        self._most = max(self._most, self._done + len(listed))
        for low in range(0, len(listed), batch):
            self._batch(listed[low:low + batch], short=self._space.config.fidelity is not None)
        return [self._tried[_key(one)] for one in listed]

    def sampled(self) -> list[Tried]:
        """Return what the sampler's settings give, each once."""
        try:
            import optuna
        except ImportError:
            raise InputError("the package optuna (pip install 'hermes-sim[optimize]'), for a space that is not tried "
                             "whole", None, field="space") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        config = self._space.config
        self._most = config.trials
        with warnings.catch_warnings():   # Optuna 5 has another way, which 4 lacks
            warnings.simplefilter("ignore", FutureWarning)
            sampler = optuna.samplers.NSGAIISampler(
                seed=config.seed, population_size=max(4, 2 * config.batch),
                constraints_func=(lambda trial: trial.user_attrs["excess"]) if config.constraints else None)
        study = optuna.create_study(
            sampler=sampler, directions=list(config.objectives.values()))
        asked, seen = 0, dict[str, Tried]()
        while len(seen) < config.trials and asked < 20 * config.trials:   # a space may have fewer settings
            trials = [study.ask() for _ in range(config.batch)]
            asked += len(trials)
            settings = [{name: _suggested(trial, name, one) for name, one in config.space.items()} for trial in trials]
            new = [one for i, one in enumerate(settings)
                   if _key(one) not in seen and _key(one) not in map(_key, settings[:i])]
            self.try_all(new[:config.trials - len(seen)])
            for trial, one in zip(trials, settings, strict=True):
                result = self._tried.get(_key(one))
                if result is None or not result.judged:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    seen |= {} if result is None else {_key(one): result}
                    continue
                seen[_key(one)] = result
                trial.set_user_attr("excess", [*result.excess, 1.0 if result.unsettled else 0.0])
                study.tell(trial, list(result.values))
        return list(seen.values())

    def longer(self, tried: Sequence[Tried]) -> list[Tried]:
        """Simulate the best at full length; the others stay as they are."""
        fidelity = self._space.config.fidelity
        assert fidelity is not None
        good = [one for one in tried if one.feasible] or [one for one in tried if one.judged]
        kept: list[Tried] = []
        for front in fronts(good, _signs(self._space)):
            if kept and len(kept) + len(front) > fidelity.keep * len(tried):
                break
            kept += front
        self._most = self._done + len(kept)
        batch = self._space.config.batch
        for low in range(0, len(kept), batch):
            self._batch([one.settings for one in kept[low:low + batch]], short=False)
        return [self._tried[_key(one.settings)] for one in tried]

    def finish(self) -> None:
        """Make the folder a sweep of all simulations; until then it is one of the latest batch."""
        if self._cases:
            self._sweep(self._cases)

    def _batch(self, settings: Sequence[Mapping[str, Any]], *, short: bool) -> None:
        fidelity = self._space.config.fidelity
        cases: dict[str, tuple[dict[str, Any], Mapping[str, Any]]] = {}
        for one in settings:
            key = _key(one)
            if key in self._tried and (short or self._tried[key].long):
                continue
            more = dict(fidelity.set) if short and fidelity is not None else {}
            said = self._refusal({**one, **more})
            if said:
                self._tried[key] = Tried(one, refused=said)
                continue
            label = f"{self._number + len(cases)}"
            cases[label] = ({"label": label, "set": {**one, **more}}, one)
        if not cases:
            return
        self._number += len(cases)
        self._tell(0)
        rows = self._rows({label: case for label, (case, _) in cases.items()}, settle=not short)
        for label, (_, one) in cases.items():
            row, simulated = rows[label]
            self._tried[_key(one)] = replace(self._judged(one, row, long=not short), simulated=simulated)
        self._done += len(cases)

    def _refusal(self, settings: Mapping[str, Any]) -> str:
        """Return why settings cannot be simulated, "" if they can."""
        sweep = self._space.sweep
        try:
            scenario = scenario_of(overridden(sweep.base, settings, sweep.base_dir), sweep.base_dir)
            build(scenario)
        except InputError as error:
            return str(error)
        self._arrivals[_key(settings)] = arrivals_of(scenario)
        return ""

    def _rows(self, cases: Mapping[str, dict[str, Any]], *, settle: bool) -> dict[str, tuple[Row, Mapping[str, Any]]]:
        """Simulate cases; with `settle`, those that have not settled again, with longer arrivals.

        Returns the figures of each, and the settings that they are of.
        """
        self._cases |= cases
        rows, factors, left = self._sweep(cases, self._tell), dict.fromkeys(cases, 1.0), dict(cases)
        simulated = {label: case["set"] for label, case in cases.items()}
        for _ in range(MOST_TIMES if settle else 0):
            longer: dict[str, dict[str, Any]] = {}
            for label, case in left.items():
                arrivals = self._arrivals[_key(case["set"])]
                rows[label] = arrivals.judged(rows[label])
                more = arrivals.longer(rows[label], factors[label])
                if more is not None:
                    factors[label] = more
                    longer[label] = {"label": f"{label}, arrivals x {more:.4g}", "set": arrivals.settings(
                        case["set"], more)}
            if not longer:
                break
            self._cases |= {one["label"]: one for one in longer.values()}
            found = self._sweep({one["label"]: one for one in longer.values()})
            rows |= {label: found[one["label"]] for label, one in longer.items()}
            simulated |= {label: one["set"] for label, one in longer.items()}
            left = {label: left[label] for label in longer}
        return {label: (row, simulated[label]) for label, row in rows.items()}

    def _tell(self, done: int) -> None:
        """Report the search, with so many simulations of the batch done."""
        met = sum(one.feasible for one in self._tried.values())
        self._progress(f"{len(self._tried)} settings tried, {met} within the constraints", self._done + done,
                   max(self._most, self._done + done), None)

    def _sweep(self, cases: Mapping[str, Mapping[str, Any]], tell: Callable[[int], None] | None = None
               ) -> dict[str, Row]:
        """Simulate cases, those that fail twice: a worker may have been killed for others' use of memory."""
        sweep = load_sweep({"name": self._space.config.name, "scenario": {}, "cases": list(cases.values())})
        base = self._space.sweep
        sweep = replace(sweep, base=base.base, base_dir=base.base_dir)
        report = None if tell is None else lambda stage, done, of: tell(done) if stage == "run" else None
        done = run_sweep(sweep, self._folder, progress=report, executor=self._executor)
        if done.failed():
            done = run_sweep(sweep, self._folder, executor=self._executor)
        return {label: done.outcome(number) or {} for number, label in enumerate(cases)}

    def _judged(self, settings: Mapping[str, Any], row: Row, *, long: bool) -> Tried:
        config = self._space.config
        if row.get("status") != "ok":
            return Tried(settings, failed=str(row.get("reason")), long=long)
        values = [self._figure(row, name, "objectives") for name in config.objectives]
        excess = [limit.excess(self._figure(row, name, "constraints")) for name, limit in config.constraints.items()]
        if not all(map(math.isfinite, [*values, *excess])):
            return Tried(settings, refused="a figure is undefined: no request completed", long=long)
        unsettled = excess and long and not settled(row) and row["settling.needed_s"] is not None
        why = str(row["settling.why"]) if unsettled else ""
        return Tried(settings, tuple(values), tuple(excess), unsettled=why, long=long, row=row)

    @staticmethod
    def _figure(row: Row, name: str, field_name: str) -> float:
        if name not in row:
            numbers = [key for key, value in row.items() if isinstance(value, int | float) and "." in key]
            raise InputError("a figure of the summary", name, field=field_name, suggestion=suggest(name, numbers))
        value = row[name]
        return math.nan if value is None or isinstance(value, str) else float(value)


def _suggested(trial: Any, name: str, dimension: Dimension) -> Any:
    """Return the sampler's value of a key. Any: a trial of Optuna, which is optional."""
    if dimension.choices is not None:
        return dimension.choices[trial.suggest_categorical(name, list(range(len(dimension.choices))))]
    low, high = dimension.min, dimension.max
    assert low is not None
    assert high is not None
    if dimension.integer:
        step = int(dimension.step or 1)
        return dimension.written(trial.suggest_int(name, int(low), int(high), step=step, log=dimension.log))
    return dimension.written(trial.suggest_float(name, low, high, step=dimension.step, log=dimension.log))


def scenario_text(space: Space, settings: Mapping[str, Any], to_dir: Path) -> str:
    """Return the scenario with settings as YAML, every default written out."""
    sweep = space.sweep
    node = overridden(sweep.base, settings, sweep.base_dir)
    return resolved_yaml(scenario_of(node, sweep.base_dir), to_dir=to_dir)
