"""Fit of a serving stack's time per request: from the measured rates of one saturated engine.

The hardware model predicts the steps' times; the rest of the time behind a measured rate is the stack's. For each kind
of request and each reading of the overhead (`hermes.clients.overhead`), the engine is simulated with that kind alone.
The overhead is the root of 1 / simulated rate - 1 / measured rate, which falls with it. No other parameter is fitted.

Rates are counted in the step log of the measured window: embeddings that ended, and tokens divided by those of an
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hermes.api import Scenario, load_scenario, simulate
from hermes.clients import OverheadProfile, load_overhead
from hermes.config import to_yaml
from hermes.errors import InputError
from hermes.results import steps_within
from hermes.units import NS_PER_S, s_to_ns

__all__ = ["PIPELINE_OF", "FittedRate", "fit_overhead", "saturated_rate", "write_overhead"]

PIPELINE_OF = {"embed": "embedding", "generate": "plain"}
MODES = ("serial", "overlapped")
_TOLERANCE = 1e-3   # relative error of the rate
_MOST = 40          # simulations per root


@dataclass(frozen=True)
class FittedRate:
    """One fitted overhead.

    Attributes:
        bare_per_s: Rate without any overhead.
        overhead_s: Overhead per request.
        fitted_per_s: Rate with the overhead.
    """

    kind: str
    mode: str
    measured_per_s: float
    bare_per_s: float
    overhead_s: float
    fitted_per_s: float


def saturated_rate(scenario: Scenario, kind: str, mode: str, overhead_s: float) -> float:
    """Return the requests per second of one kind alone, with `overhead_s` for each."""
    results = simulate(scenario, overrides=[
        f"workload.0.pipeline={PIPELINE_OF[kind]}",
        f"clients.0.request_overhead={{mode: {mode}, {kind}: {overhead_s!r}}}",
    ], whole=True)
    record, window = results.record, results.measure
    assert window is not None
    ends = record.step_ends[0]
    ends = ends[ends > s_to_ns(window.start)]
    if len(ends) < 2:
        raise InputError("a `measure` window with many steps in it", f"{len(ends)} steps", field="measure")
    # From one step's end to another's, so that no step is cut.
    steps = steps_within(record, int(ends[0]), int(ends[-1]))
    seconds = float(ends[-1] - ends[0]) / NS_PER_S
    if kind == "embed":
        return float((record.runs["embedded"] * steps).sum()) / seconds
    return float((record.runs["sampled"] * steps).sum() / np.mean(record.output_tokens)) / seconds


def fit_overhead(
    source: str | Path | Scenario | Mapping[str, Any], measured: Mapping[str, float],
    say: Callable[[str], None] = lambda text: None,
) -> list[FittedRate]:
    """Return the overheads that explain `measured` rates (kind -> requests per second of the saturated engine).

    Args:
        source: A scenario with one engine, a closed loop that saturates it, and a `measure` window.

    Raises `InputError` for other scenarios, and for rates above those of the hardware model alone.
    """
    scenario = load_scenario(source)
    if len(scenario.workload) != 1 or len(scenario.clients) != 1 or scenario.measure is None:
        raise InputError("a scenario with one workload, one client and a `measure` window", scenario.name)
    scenario = load_scenario(scenario, ["clients.0.request_overhead=null"])
    fitted = []
    for kind, target in measured.items():
        bare = saturated_rate(scenario, kind, "serial", 0.0)
        if bare < target:
            raise InputError(f"at most the {bare:.4g}/s that the hardware model alone can do", target, field=kind)
        for mode in MODES:
            overhead, rate = _root(scenario, kind, mode, target, bare)
            say(f"{kind}, {mode}: {overhead * 1e3:.3f} ms gives {rate:.4g}/s (measured {target:g}, bare {bare:.4g})")
            fitted.append(FittedRate(kind, mode, target, bare, overhead, rate))
    return fitted


def _root(scenario: Scenario, kind: str, mode: str, target: float, bare: float) -> tuple[float, float]:
    """Regula falsi (Illinois) on time per request, which is close to linear in a serial overhead."""
    low, f_low = 0.0, 1 / bare - 1 / target            # too fast: below zero
    if f_low > -_TOLERANCE / target:
        return 0.0, bare
    high = 1.05 / target
    rate = saturated_rate(scenario, kind, mode, high)
    f_high = 1 / rate - 1 / target
    at, side = high, 0
    for _ in range(_MOST):
        at = high - f_high * (high - low) / (f_high - f_low)
        rate = saturated_rate(scenario, kind, mode, at)
        if abs(rate / target - 1) < _TOLERANCE:
            return at, rate
        f = 1 / rate - 1 / target
        if f > 0:
            high, f_high = at, f
            f_low = f_low / 2 if side == 1 else f_low
            side = 1
        else:
            low, f_low = at, f
            f_high = f_high / 2 if side == -1 else f_high
            side = -1
    raise InputError(f"a rate that some overhead explains to {_TOLERANCE:.1%}", target, field=f"{kind} ({mode})")


def write_overhead(fitted: list[FittedRate], name: str, provenance: list[str], path: Path) -> OverheadProfile:
    """Write the profile, format `hermes-overhead/1`, to 10 us, and read it back."""
    profile: dict[str, object] = {"format": "hermes-overhead/1", "name": name}
    for mode in MODES:
        profile[mode] = {one.kind: f"{one.overhead_s * 1e3:.2f} ms" for one in fitted if one.mode == mode}
    profile["provenance"] = provenance
    path.parent.mkdir(parents=True, exist_ok=True)
    text = to_yaml(profile, f"Time of the serving stack per request: {name}.", compact=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return load_overhead(path.resolve())
