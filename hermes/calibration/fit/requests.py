"""Fit the few figures of a scenario that request times can tell (`hermes calibrate from-requests`).

Most servers can be observed only from outside: when a request was sent, when its first and its last token came. Those
times tell a factor for prompts, one for decodes, a fixed time of each step, and the front end; not which operator or
link is slow. Simulate the requests with the figures so far, sum the steps of each request's two phases
(`request_phases`), solve for figures of smaller relative errors, none negative, and repeat. Requests that are resampled
say how certain a figure is; those that they do not tell are left as they were. Errors are those on requests that a
fit did not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hermes.api import simulate
from hermes.arrays import BoolArray, FloatArray, IntArray
from hermes.calibration.fit.request_phases import NAMES, Phases, phases_of
from hermes.clients.config import LLMClientConfig
from hermes.clients.frontend import FrontEnd
from hermes.config.streams import stream
from hermes.errors import InputError, Verbatim
from hermes.results.compare import compare
from hermes.results.compare.reference import Reference, ReferenceMapping, guess_mapping, load_reference
from hermes.results.distribution import Distribution
from hermes.results.results import Results
from hermes.scenario import Scenario, load_scenario
from hermes.scenario.build import build

__all__ = ["Figures", "FittedFigure", "FittedRequests", "HeldOut", "RequestFit", "client_of", "fit_file",
           "fit_requests", "overrides_of"]

SIMULATIONS = 30      # at most, between two decisions about which figures are identified
SETTLED = 0.003       # relative change of a figure that is not worth another simulation
RESAMPLES = 200
CLEAR = 0.5            # half of a 95% range over the figure, above which the requests do not tell it
FEWEST = 20
SMALLEST_S = 1e-4      # errors are relative to at least this
OWN = 0.01             # share of a figure's column that is its own, below which it is not told apart from the others
LEAVE_FIRST = ("per_prompt_token_s", "per_seq_s", "fixed_s", "front_end_s", "decodes", "prompts")
LEAST = 1e-3           # a relative error that is never large
LOWEST = np.array([0.0, 0.0, 0.0, 0.0, 0.01, 0.01])   # of each figure: a factor of 0 is none, and not identified

EVERY = 3   # every third request is held out
STATISTICS = ("mean", "p50", "p90", "p99")
METRICS = ("ttft", "tpot", "e2e")

_SCALE = np.array([1e-3, 1e-6, 1e-4, 1e-5, 0.1, 0.1])   # a change counts relative to at least this


@dataclass(frozen=True)
class Figures:
    """Figures of one kind of client; see `NAMES`. The front end is the sum of before and after."""

    front_end_s: float
    per_prompt_token_s: float = 0.0
    fixed_s: float = 0.0
    per_seq_s: float = 0.0
    prompts: float = 1.0
    decodes: float = 1.0

    def array(self) -> FloatArray:
        return np.array([getattr(self, name) for name in NAMES])


@dataclass(frozen=True)
class FittedFigure:
    """A figure with its 95% range over resampled requests. identified: Whether they determine it, else it was kept."""

    name: str
    value: float
    low: float
    high: float
    identified: bool


@dataclass(frozen=True)
class RequestFit:
    """What was fitted.

    Attributes:
        start, figures: Before and after.
        ranges: One entry per figure.
        simulations: How many the last descent took; `SIMULATIONS` if it did not settle.
        error: Root of the mean square of the relative errors of both phases.
        requests: Requests used.
    """

    start: Figures
    figures: Figures
    ranges: tuple[FittedFigure, ...]
    simulations: int
    error: float
    requests: int

    @property
    def settled(self) -> bool:
        return self.simulations < SIMULATIONS


@dataclass(frozen=True)
class HeldOut:
    """One figure of the requests that were held out, in seconds: observed, and simulated before and after the fit."""

    metric: str
    statistic: str
    observed_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True)
class FittedRequests:
    """The fit on all requests, the scenario with its figures, and the errors of a fit without the held-out ones."""

    fit: RequestFit
    scenario: Scenario
    held_out: tuple[HeldOut, ...]
    held_out_requests: int


def client_of(scenario: Scenario) -> LLMClientConfig:
    """Return the one kind of client. Raises `InputError` for scenarios with several."""
    clients = [config for config in scenario.clients if isinstance(config, LLMClientConfig)]
    if len(scenario.clients) != 1 or not clients or clients[0].role != "both":
        raise InputError(Verbatim("request times tell the figures of one kind of LLM client that does both phases; "
                                  "take the others out"), field="clients")
    return clients[0]


def overrides_of(figures: Figures, client: LLMClientConfig) -> dict[str, Any]:
    """Return the keys of the scenario that set the figures. What comes after the engine stays as it is, as far as the
    sum allows."""
    after = min((client.frontend or FrontEnd()).after, figures.front_end_s)
    return {
        "clients.0.frontend": {"before": figures.front_end_s - after, "after": after,
                               "per_prompt_token": figures.per_prompt_token_s},
        "clients.0.adjust": {"prompts": figures.prompts, "decodes": figures.decodes, "fixed": figures.fixed_s,
                             "per_seq": figures.per_seq_s},
    }


def fit_file(
    scenario: Scenario, path: Path, mapping: ReferenceMapping | None = None,
    report: Callable[[str], None] | None = None,
) -> FittedRequests:
    """Fit a scenario to a file of observed requests. Raises `InputError` if they are not the scenario's requests."""
    observed = load_reference(path, mapping or guess_mapping(path))
    client = client_of(scenario)
    before = simulate(scenario, whole=True)
    compare(before, path, mapping)   # refuses other requests
    some = fit_requests(scenario, observed, _fitted_on, report)
    after = simulate(load_scenario(scenario, overrides_of(some.figures, client)), whole=True)
    whole = fit_requests(scenario, observed, None, report)
    rows, count = _errors(observed, before, after)
    return FittedRequests(whole, load_scenario(scenario, overrides_of(whole.figures, client)), rows, count)


def _fitted_on(numbers: IntArray) -> BoolArray:
    return np.asarray(numbers % EVERY > 0)


def _errors(observed: Reference, *runs: Results) -> tuple[tuple[HeldOut, ...], int]:
    """Return figures of the requests that were held out and that all sides completed."""
    ids = observed.ids
    assert ids is not None   # the fit asked for them
    chosen = ~_fitted_on(ids) & np.isfinite(observed.columns["e2e"])
    sides = [run.columns("requests") for run in runs]
    for side in sides:
        chosen &= np.isfinite(np.asarray(side["e2e_s"], dtype=np.float64)[ids])
    rows = []
    for metric in METRICS:
        if metric not in observed.columns:
            continue
        values = np.array([observed.columns[metric][chosen],
                           *(np.asarray(side[f"{metric}_s"], dtype=np.float64)[ids[chosen]] for side in sides)])
        known = np.all(np.isfinite(values), axis=0)
        stats = [Distribution(column[known]).stats() for column in values]
        rows += [HeldOut(metric, name, *(each[name] for each in stats)) for name in STATISTICS if known.any()]
    return tuple(rows), int(chosen.sum())


def fit_requests(
    scenario: Scenario, observed: Reference, use: Callable[[IntArray], BoolArray] | None = None,
    report: Callable[[str], None] | None = None,
) -> RequestFit:
    """Fit the figures of a scenario's client to the observed requests, which have the simulation's numbers.

    Args:
        use: Which requests to fit on, by their numbers; all where left out.
        report: Called with a line for each simulation.
    """
    client = client_of(scenario)
    ids, ttft, e2e = observed.ids, observed.columns.get("ttft"), observed.columns.get("e2e")
    if ids is None or ttft is None or e2e is None:
        raise InputError(Verbatim("the observed requests need numbers, TTFT and E2E; --map names their columns"))

    def measure(figures: FloatArray) -> _Rows:
        return _rows(_simulated(scenario, _named(figures), client), ids, ttft, e2e, use)

    front, change = client.frontend or FrontEnd(), client.adjust
    start = Figures(front.before + front.after, front.per_prompt_token, change.fixed, change.per_seq, change.prompts,
                    change.decodes)
    at = start.array()
    free = _apart(measure(at))
    begin = [at]
    while True:
        at, rows, tried = min((_descend(measure, each, free, report) for each in begin),
                              key=lambda found: found[1].cost(LEAST))
        low, high = _spread(rows, at, free)
        wide = np.where(free, (high - low) / 2 / np.maximum(at, 1e-30), 0.0)
        wide[free & (at <= LOWEST) & (LOWEST > 0.0)] = np.inf
        if wide.max() <= CLEAR:
            break
        worst = int(np.argmax(wide))   # leave the least certain one as it was, and fit the others, on and anew
        free[worst] = False
        at[worst] = start.array()[worst]
        begin = [at, start.array()]
    return RequestFit(
        start, _named(at), tuple(FittedFigure(*each) for each in zip(
            NAMES, at.tolist(), low.tolist(), high.tolist(), free.tolist(), strict=True)),
        tried, float(np.sqrt(np.mean(rows.missing**2))), len(rows.missing) // 2)


def _descend(measure: Callable[[FloatArray], _Rows], at: FloatArray, free: BoolArray,
             report: Callable[[str], None] | None) -> tuple[FloatArray, _Rows, int]:
    """Return the figures with the smallest errors, their rows, and the simulations that it took.

    Levenberg-Marquardt with the columns of the simulated schedule as derivatives. They leave out that queues grow with
    the figures, so a step counts only if the simulation confirms it, else a shorter one is tried.
    """
    rows, damping, tried = measure(at), 1e-3, 1
    while tried < SIMULATIONS:
        step = np.where(free, np.maximum(_solve(rows.weighted(), at, free, damping), LOWEST), at)
        change = float(np.max(np.abs(step - at) / np.maximum(np.abs(at), _SCALE)))
        if change < SETTLED:
            break
        other = measure(step)
        tried += 1
        if other.cost(rows.usual) < rows.cost(rows.usual):
            at, rows, damping = step, other, damping * 0.3
        else:
            damping = max(damping, 1e-3) * 6.0
        if report is not None:
            report(f"simulation {tried}: " + ", ".join(f"{n} {v:.4g}" for n, v in zip(NAMES, at, strict=True))
                 + f"; error {np.sqrt(np.mean(rows.missing**2)):.2%}")
    return at, rows, tried


@dataclass(frozen=True)
class _Rows:
    """Relative errors of a simulation, and their derivatives: TTFT of all requests, then the rest of all.

    columns: Shape (2 requests, 6), by figure. missing: What the simulation is short of, shape (2 requests,).
    """

    columns: FloatArray
    missing: FloatArray

    @property
    def usual(self) -> float:
        """The size of a usual error."""
        return max(1.5 * float(np.median(np.abs(self.missing))), LEAST)

    def cost(self, usual: float) -> float:
        """Sum of errors, squared as far as they are usual: a request that comes just before or just after the start of
        a step waits a whole step less or more, which says little about the figures."""
        return float(np.sum(np.sqrt(1.0 + (self.missing / usual) ** 2) - 1.0)) * usual**2

    def weighted(self) -> _Rows:
        """Return rows whose squares have the derivatives of the cost."""
        weight = (1.0 + (self.missing / self.usual) ** 2) ** -0.25
        return _Rows(self.columns * weight[:, None], self.missing * weight)

    def some(self, chosen: IntArray) -> _Rows:
        half = len(self.missing) // 2
        both = np.concatenate((chosen, chosen + half))
        return _Rows(self.columns[both], self.missing[both])


def _simulated(scenario: Scenario, figures: Figures, client: LLMClientConfig) -> Phases:
    over = overrides_of(figures, client)
    simulation = build(load_scenario(scenario, over))
    hardware: Any = simulation.clients[0]   # Any: the view of a client that this package has no type for
    front = over["clients.0.frontend"]
    return phases_of(simulation.run(), hardware.hardware, front["before"], front["per_prompt_token"])


def _rows(phases: Phases, ids: IntArray, ttft: FloatArray, e2e: FloatArray, use: Callable[[IntArray], BoolArray] | None,
          ) -> _Rows:
    """Return the rows of the requests on both sides."""
    places = {int(number): row for row, number in enumerate(ids)}
    ours = [row for row, number in enumerate(phases.request.tolist()) if number in places]
    theirs = np.array([places[int(phases.request[row])] for row in ours], dtype=np.int64)
    mine = np.array(ours, dtype=np.int64)
    good = np.isfinite(ttft[theirs]) & np.isfinite(e2e[theirs]) if len(mine) else np.zeros(0, dtype=bool)
    if use is not None and len(mine):
        good &= use(phases.request[mine])
    mine, theirs = mine[good], theirs[good]
    if len(mine) < FEWEST:
        raise InputError(f"at least {FEWEST} requests that both sides completed", Verbatim(f"{len(mine)}"))
    parts = []
    for columns, simulated, seconds in (
        (phases.first[mine], phases.ttft_s[mine], ttft[theirs]),
        (phases.rest[mine], phases.rest_s[mine], (e2e - ttft)[theirs]),
    ):
        weight = 1.0 / np.maximum(seconds, SMALLEST_S)
        weight[seconds <= 0] = 0.0   # answers of one token have no second phase
        parts.append((columns * weight[:, None], (seconds - simulated) * weight))
    return _Rows(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))


def _solve(rows: _Rows, at: FloatArray, free: BoolArray, damping: float) -> FloatArray:
    """Return the figures of the smallest errors by the derivatives at `at`, none negative; those not free stay."""
    found = at.copy()
    columns = rows.columns[:, free]
    size = np.maximum(np.sqrt((columns**2).sum(axis=0)), 1e-30)
    target = rows.missing + columns @ at[free]
    held = np.sqrt(damping) * np.eye(len(size))   # each figure is held at its present value by a share of its weight
    found[free] = nnls(np.concatenate((columns / size, held)),
                       np.concatenate((target, np.sqrt(damping) * at[free] * size)))[0] / size
    return found


def _apart(rows: _Rows) -> BoolArray:
    """Return which figures have columns that are no sum of the others': of those that are, one is left as it was."""
    free = np.ones(len(NAMES), dtype=bool)
    for name in LEAVE_FIRST:
        place = NAMES.index(name)
        column = rows.columns[:, place]
        others = rows.columns[:, free & (np.arange(len(NAMES)) != place)]
        rest = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        free[place] = float(np.linalg.norm(rest)) > OWN * float(np.linalg.norm(column))
    return free


def _spread(rows: _Rows, at: FloatArray, free: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the 95% range of each figure over resampled requests."""
    draw, half = stream(0, "from-requests"), len(rows.missing) // 2
    rows = rows.weighted()
    found = np.array([_solve(rows.some(draw.integers(0, half, half)), at, free, 1e-9) for _ in range(RESAMPLES)])
    return np.quantile(found, 0.025, axis=0), np.quantile(found, 0.975, axis=0)


def _named(values: FloatArray) -> Figures:
    return Figures(**{name: float(value) for name, value in zip(NAMES, values, strict=True)})
