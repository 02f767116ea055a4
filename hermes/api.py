"""Python API: simulate a scenario, and open the results of a run."""

from __future__ import annotations

import atexit
import gc
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes import __version__
from hermes.compiled import environment
from hermes.core.reasons import Reason
from hermes.dispatch.simulation import collection_paused
from hermes.errors import InputError, warn_all
from hermes.results import Results
from hermes.scenario import Overrides, Scenario, load_scenario, resolved_yaml, with_settings
from hermes.scenario.build import build

if TYPE_CHECKING:
    from hermes.dispatch.simulation import Simulation
    from hermes.results.files.stored import StoredResults
    from hermes.scenario.alternatives import Again
    from hermes.scenario.kv_range import KvEnds

__all__ = ["InputError", "Results", "Scenario", "load_scenario", "open_run", "simulate"]

atexit.register(gc.freeze)   # modules and simulations are full of cycles, which need not be freed one by one at exit


def simulate(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    overrides: Overrides = (),
    seed: int | None = None,
    stepping: str | None = None,
    progress: bool | Callable[[int, int, float], None] = False,
    alternatives: bool = False,
    whole: bool = False,
) -> Results:
    """Simulate a scenario and return its results.

    Args:
        scenario: A file, the name of a built-in scenario, a dict, or a `Scenario`.
        overrides: Settings: `["clients.0.count=4"]`, or `{"clients.0.count": 4}`.
        seed: Replaces the scenario's seed.
        stepping: Replaces the scenario's stepping mode.
        progress: True shows a bar on stderr; a function is called with (requests done, requests in all, simulated
          seconds).
        whole: Whether an interrupt (Ctrl-C) raises `KeyboardInterrupt`.

    Raises `InputError` for any mistake in the scenario. After an interrupt it otherwise returns the results so far,
    with `meta["interrupted"]` set. Warnings (requests too long for the model) are issued as `InputWarning` and kept in
    `meta["warnings"]`.
    """
    shorts = {name: value for name, value in (("seed", seed), ("stepping", stepping)) if value is not None}
    if isinstance(overrides, Mapping):
        overrides = {**overrides, **shorts}
    else:
        overrides = [*overrides, *(f"{name}={value}" for name, value in shorts.items())]
    started = time.perf_counter()
    with collection_paused():
        checked = load_scenario(scenario, overrides)
        simulation = build(checked)
    warn_all(simulation.warnings)
    results = run_built(checked, simulation, started, progress, whole=whole)
    again = partial(simulate_again, checked) if alternatives else None
    ends: list[KvEnds] = []   # of the run, which both share
    results.find_sources = partial(_sources, checked, again, ends)
    results.find_assumed = partial(_assumed, checked, again, ends)
    return results


def _sources(checked: Scenario, again: Again | None, ends: list[KvEnds], results: Results) -> list[dict[str, Any]]:
    from hermes.scenario.step_sources import step_sources

    return step_sources(checked, results, _kv_ends(checked, again, ends, results))


def _assumed(checked: Scenario, again: Again | None, ends: list[KvEnds], results: Results) -> list[dict[str, Any]]:
    from hermes.scenario.alternatives import assumes_of

    return assumes_of(checked, results, again, kv=_kv_ends(checked, again, ends, results))


def _kv_ends(checked: Scenario, again: Again | None, ends: list[KvEnds], results: Results) -> KvEnds | None:
    """Return what the error of KV memory moves; None where no sequence waited for it."""
    if not (results.record.runs["stopped"] == Reason.KV_MEMORY).any():
        return None
    from hermes.scenario.kv_range import KvEnds

    if not ends:
        ends.append(KvEnds(checked, again))
    return ends[0]


def simulate_again(scenario: Scenario, settings: Mapping[str, Any]) -> Results:
    """Simulate a scenario with other settings, without its warnings, to the end. Raises `InputError` if they do not fit
    it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # the scenario's own run has issued them
        other = with_settings(scenario, settings)
        return run_built(other, build(other), time.perf_counter())


def run_built(
    checked: Scenario, simulation: Simulation, started: float,
    progress: bool | Callable[[int, int, float], None] = False, *, whole: bool = True,
) -> Results:
    """Run the simulation that `build(checked)` returned.

    Args:
        started: When the work began, by `time.perf_counter`.
        whole: Whether an interrupt raises `KeyboardInterrupt`, in place of results of a part.
    """
    try:
        if progress is True:
            from hermes.results.progress import ProgressBar

            with ProgressBar("requests") as bar:
                record = simulation.run(lambda done, total, now_s: bar.update(done, total, f"t = {now_s:.0f} s"),
                                        partial=not whole)
        else:
            record = simulation.run(progress or None, partial=not whole)
    except InputError as error:   # some amounts depend on the request, and fail only now
        raise checked.source.located(error) from None
    meta: dict[str, Any] = {
        "name": checked.title, "version": __version__, "environment": environment(), "seed": checked.seed,
        "scenario_text": resolved_yaml(checked, defaults=True), "wall_s": time.perf_counter() - started,
    }
    for kept in ("warnings", "remarks"):
        if getattr(simulation, kept):
            meta[kept] = getattr(simulation, kept)
    if simulation.interrupted:
        meta["interrupted"] = True
    return Results(record, meta, checked.slo, checked.measure)


def open_run(folder: str | Path) -> StoredResults:
    """Open the results that `hermes run SCENARIO -o FOLDER` wrote. The record is read at first use.

    Raises `InputError` for a folder without results, or with unfinished ones.
    """
    from hermes.results.files.stored import open_run as read

    return read(folder)
