"""Reference set of steady decoding by batch (ML.ENERGY's leaderboard): time between tokens, watts, joules per token.

`hermes.calibration.accuracy.steady_runs` simulates the servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hermes.calibration.accuracy.row import Case, Row
from hermes.calibration.accuracy.steady_runs import FILES, Steady, steady_runs
from hermes.calibration.fit.watts import ServedLoad, fit_watts
from hermes.hardware.devices import DeviceDescription, DevicePower
from hermes.hardware.power import UtilisedPower, utilisation
from hermes.hardware.trust import Trust

__all__ = ["FREE", "power_without", "served_load", "steady_decodes"]

FREE = ("memory", "token_j")   # watts that these loads tell; `serving` and `most` are the card's


def steady_decodes(data: Path) -> Iterator[Row]:
    """Median time between tokens by batch (no figure was found on it), and the watts and joules per output token of the
    devices twice: as shipped, which these loads were fitted with, and with each model's card fitted to the others."""
    found = [each for name in FILES if (path := data / "h100" / "ml-energy" / name).exists()
             for each in steady_runs(path)]
    without: dict[tuple[str, str, int], DevicePower | None] = {}
    for steady in found:
        measured_s = steady.row["median_itl_ms"] / 1e3
        yield Row(_case("ML.ENERGY", steady, steady.trust), "itl", "p50", measured_s, _itl(steady))
        yield from _energy(_case("ML.ENERGY, fitted", steady), steady, steady.power)
        key = steady.card, steady.model, steady.tp
        if key not in without:
            without[key] = power_without(key[1:], steady.power.device, found)
        power = without[key]
        if power is not None:
            yield from _energy(_case("ML.ENERGY, left out", steady), steady, replace(steady.power, power=power))


def _case(name: str, steady: Steady, trust: Trust | None = None) -> Case:
    card = steady.card if steady.tp == 1 else f"{steady.card} tp{steady.tp}"
    return Case(name, f"{steady.seqs} sequences", "not stated", card, steady.model, trust)


def _energy(case: Case, steady: Steady, power: UtilisedPower) -> Iterator[Row]:
    watts = steady.tp * float((power.run_w(steady.columns) * steady.seconds).sum()) / steady.span_s
    yield Row(case, "watts", "mean", steady.row["avg_power_watts"], watts)
    yield Row(case, "joules per token", "mean", steady.row["energy_per_token_joules"], watts / steady.tokens_per_s)


def _itl(steady: Steady) -> float:
    """Median seconds between tokens."""
    steps = steady.columns["num_steps"]
    each = steady.seconds / steps
    order = np.argsort(each)
    tokens = np.cumsum((steps * steady.columns["decode_seqs"])[order])
    return float(each[order][np.searchsorted(tokens, tokens[-1] / 2)])


def served_load(steady: Steady, *, measured_times: bool) -> ServedLoad:
    """Return what the devices of a server did, by runs of steps.

    measured_times: Whether the simulator's times are stretched to the measured tokens per second.
    """
    seconds, columns = steady.seconds, steady.columns
    slower = steady.tokens_per_s / float(steady.row["output_throughput_tokens_per_sec"]) if measured_times else 1.0
    compute, memory, _ = utilisation(steady.power.device, steady.power.work, columns)
    tokens = columns["sampled"] * columns["num_steps"] / seconds
    return ServedLoad(steady.model, steady.tp, f"{steady.seqs} sequences",
                      float(steady.row["avg_power_watts"]) / steady.tp, seconds * slower, compute / slower,
                      memory / slower, tokens / slower)


def power_without(pair: tuple[str, int], device: DeviceDescription, others: Sequence[Steady]) -> DevicePower | None:
    """Return a card's watts fitted without a (model, tp); None if no other one was measured on it."""
    left = [served_load(each, measured_times=True) for each in others
            if each.card == device.name and (each.model, each.tp) != pair]
    if device.power is None or not left:
        return None
    return fit_watts(left, FREE, serving=device.power.serving, most=device.power.most)
