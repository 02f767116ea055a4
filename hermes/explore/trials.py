"""Simulations on demand for a search: each once, side by side, long enough to settle, kept in the folder of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermes.errors import HermesError
from hermes.explore.lengthening import Arrivals, arrivals_of
from hermes.explore.objective import Row, is_ended
from hermes.explore.sweep.config import load_sweep
from hermes.explore.sweep.executor import Executor
from hermes.explore.sweep.planning import Progress
from hermes.explore.sweep.runner import run_sweep
from hermes.results.progress import OnProgress
from hermes.scenario import Scenario
from hermes.sums import float_sum

__all__ = ["MOST_TIMES", "Trials", "Wanted"]

Wanted = Mapping[str, tuple[Mapping[str, Any], int]]   # label -> (settings by dotted path, seed)

MOST_TIMES = 4   # that one simulation is repeated with longer arrivals


@dataclass
class Trials:
    """See the module's docstring.

    Attributes:
        left: About how many further simulations there will be, for `progress`; the search sets it. Repetitions with
            longer arrivals are not counted.
        most: So many simulations in all, by `left`.
        ahead: To about how many of the scenario's own length these come; None if they hardly differ.
        worked: To how many those come that are done.
        length: How many times as long as the scenario's own the arrivals are at first. It grows with what the
            simulations that settled have needed.
        lengths: The same of each simulation, as it was at last.
        extract: Function of further figures, as in a sweep.
        until_missed: Label -> `Job.until_missed` of the simulations that may end early.
    """

    name: str
    scenario: Scenario
    folder: Path
    executor: Executor
    progress: OnProgress | None = None
    left: int = 0
    most: int = 0
    ahead: float | None = None
    worked: float = 0.0
    length: float = 1.0
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)
    extract: str | None = None
    until_missed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrivals: Arrivals = arrivals_of(self.scenario)

    def run(self, wanted: Wanted, times: float = 1.0, *, until_missed: float = 0.0) -> dict[str, Row]:
        """Return the figures of simulations, by label. A simulation that has not settled is repeated with longer
        arrivals, up to four times and 400,000 requests.

        Args:
            times: Factor on the length at first.
            until_missed: Where the verdict is enough, `CERTAIN` or `BY_FAR` of `hermes.explore.certain_miss`: a
                simulation that so misses the SLO ends there.
        """
        left = {label: one for label, one in wanted.items()
                if label not in self.rows or (is_ended(self.rows[label]) and not until_missed)}
        self.most = len(self.rows) + max(self.left, len(left))
        self.left = max(self.left - len(left), 0)
        factors = dict.fromkeys(left, self.length * times)
        for _ in range(MOST_TIMES):
            if not left:
                break
            rows = self._simulate({label: (self.arrivals.settings(settings, factors[label]), seed)
                                   for label, (settings, seed) in left.items()}, factors, until_missed)
            longer = {label: more for label, row in rows.items()
                      if (more := self.arrivals.longer(row, factors[label])) is not None}
            for label, row in rows.items():
                self.rows[label], self.lengths[label] = self.arrivals.judged(row), factors[label]
                if label not in longer and row.get("settling.settled"):
                    self.length = max(self.length, factors[label] / times)
            left = {label: left[label] for label in longer}
            factors |= longer
        return {label: self.rows[label] for label in wanted}

    def finish(self) -> None:
        """Make the folder a sweep of all simulations; until then it is one of the latest."""
        self._sweep(self.cases, table=True)

    def _simulate(self, wanted: Wanted, factors: Mapping[str, float], until_missed: float) -> dict[str, Row]:
        names = {label: label if factors[label] == 1.0 else f"{label}, arrivals x {factors[label]:.4g}"
                 for label in wanted}
        new = {names[label]: {"label": names[label], "set": dict(settings), "seed": seed}
               for label, (settings, seed) in wanted.items()}
        self.cases |= new
        self.until_missed |= dict.fromkeys(new, until_missed)
        rows = self._sweep(new, self._progress("; ".join(new), [factors[label] for label in wanted],
                                               fresh=not wanted.keys() & self.rows.keys()))
        return {label: rows[names[label]] for label in wanted}

    def _progress(self, what: str, lengths: list[float], *, fresh: bool) -> Progress:
        """Report a round; return a function that reports its simulations as they are done."""
        before, worked, work = len(self.rows), self.worked, float_sum(lengths)
        ahead, self.worked = self.ahead, worked + work
        if ahead is not None:
            self.ahead = max(ahead - work, 0.0)

        def report(stage: str, done: int, of: int) -> None:
            if self.progress is not None and stage == "run":
                share = None if ahead is None else (worked + work * done / max(of, 1)) / (worked + max(ahead, work))
                self.progress(what, before + (done if fresh else 0), self.most, share or None)

        report("run", 0, 0)
        return report

    def _sweep(self, cases: Mapping[str, Mapping[str, Any]], progress: Progress | None = None, *, table: bool = False
               ) -> dict[str, Row]:
        more = {} if self.extract is None else {"extract": self.extract}
        sweep = load_sweep({"name": self.name, "scenario": {}, "cases": list(cases.values()), **more})
        source = self.scenario.source   # with the overrides, which a case may set again
        assert source.node is not None
        sweep = replace(sweep, base=source.node, base_dir=source.base_dir,
                        until_missed={label: self.until_missed.get(label, 0.0) for label in cases})
        done = run_sweep(sweep, self.folder, progress=progress, executor=self.executor, table=table)
        rows: dict[str, Row] = {}
        for number, label in enumerate(cases):
            row = done.outcome(number)
            assert row is not None
            if row["status"] != "ok":
                raise HermesError(f"{label}: {row['reason']}")
            rows[label] = row
        return rows
