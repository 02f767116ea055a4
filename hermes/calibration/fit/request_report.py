"""A fit to request times with its errors: on requests that it never saw, before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hermes.api import simulate
from hermes.arrays import FloatArray, IntArray
from hermes.calibration.fit.requests import RequestFit, client_of, fit_requests, overrides_of
from hermes.results.compare import compare
from hermes.results.reference import Reference, ReferenceMapping, guess_mapping, load_reference
from hermes.results.results import Results
from hermes.scenario import Scenario, load_scenario

__all__ = ["FittedRequests", "HeldOut", "fit_file"]

EVERY = 3   # every third request is held out
STATISTICS = ("mean", "p50", "p90", "p99")
METRICS = ("ttft", "tpot", "e2e")


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


def fit_file(
    scenario: Scenario, path: Path, mapping: ReferenceMapping | None = None, told: Callable[[str], None] | None = None,
) -> FittedRequests:
    """Fit a scenario to a file of observed requests. Raises `InputError` if they are not the scenario's requests."""
    observed = load_reference(path, mapping or guess_mapping(path))
    client = client_of(scenario)
    before = simulate(scenario)
    compare(before, path, mapping)   # refuses other requests
    some = fit_requests(scenario, observed, _fitted_on, told)
    after = simulate(load_scenario(scenario, overrides_of(some.figures, client)))
    whole = fit_requests(scenario, observed, None, told)
    rows, count = _errors(observed, before, after)
    return FittedRequests(whole, load_scenario(scenario, overrides_of(whole.figures, client)), rows, count)


def _fitted_on(numbers: IntArray) -> npt.NDArray[np.bool_]:
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
        values = [observed.columns[metric][chosen],
                  *(np.asarray(side[f"{metric}_s"], dtype=np.float64)[ids[chosen]] for side in sides)]
        known = np.all(np.isfinite(values), axis=0)
        rows += [HeldOut(metric, name, *(_figure(name, column[known]) for column in values)) for name in STATISTICS
                 if known.any()]
    return tuple(rows), int(chosen.sum())


def _figure(name: str, values: FloatArray) -> float:
    return float(values.mean() if name == "mean" else np.quantile(values, float(name[1:]) / 100))
