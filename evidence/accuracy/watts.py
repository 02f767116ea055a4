"""Fit of a card's watts (`hermes.hardware.power`) to mean watts of servers, and its errors on what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from hermes.arrays import FloatArray
from hermes.errors import InputError
from hermes.hardware.descriptions.devices import DevicePower
from hermes.hardware.power import limited_compute, watts

__all__ = ["LeftOut", "ServedLoad", "error", "fit_watts", "left_out"]

START = {"serving": 100.0, "memory": 100.0, "token_j": 0.03}   # where the search begins; watts, watts, joules


class ServedLoad(NamedTuple):
    """One load of one server: what its devices did in parts of the time, and what each of them drew on average.

    seconds, compute, memory, tokens_per_s: Shape (parts,): length, shares of the peak rates, tokens sampled.
    """

    model: str
    tp: int
    load: str
    measured_w: float
    seconds: FloatArray
    compute: FloatArray
    memory: FloatArray
    tokens_per_s: FloatArray

    def predicted_w(self, power: DevicePower) -> float:
        """Return the mean watts of one device."""
        drawn = watts(power, self.compute, self.memory, 0.0, self.tokens_per_s)
        return float((drawn * self.seconds).sum() / self.seconds.sum())


class LeftOut(NamedTuple):
    """Errors, (predicted - measured) / measured, of loads that the fit did not see."""

    name: str
    power: DevicePower
    errors: FloatArray

    @property
    def median(self) -> float:
        return float(np.median(self.errors))

    @property
    def worst(self) -> float:
        return float(self.errors[np.argmax(np.abs(self.errors))])


def error(load: ServedLoad, power: DevicePower) -> float:
    """Return (predicted - measured) / measured."""
    return load.predicted_w(power) / load.measured_w - 1.0


def fit_watts(loads: Sequence[ServedLoad], free: Sequence[str], **fixed: float) -> DevicePower:
    """Return the watts with the least squared relative errors, every (model, tp) counting alike.

    free: Which of `serving`, `memory` and `token_j` are found; the others and `most` are `fixed`. `compute` follows
        from them: products draw `most` at the rate that the card keeps up. Raises `InputError` for fewer loads.
    """
    if len(loads) < len(free):
        raise InputError(f"at least {len(free)} loads to fit {', '.join(free)}", len(loads))
    pairs = [(load.model, load.tp) for load in loads]
    weights = np.array([1.0 / np.sqrt(pairs.count(pair)) for pair in pairs])
    scale = np.array([START[name] for name in free])

    def power(x: FloatArray) -> DevicePower:
        given = fixed | {name: float(value) for name, value in zip(free, x * scale, strict=True)}
        return DevicePower.model_validate({"compute": limited_compute(given["serving"], given["most"]), **given})

    def residuals(x: FloatArray) -> FloatArray:
        found = power(x)
        return np.asarray(weights * [error(load, found) for load in loads])

    most_serving = [fixed["most"] / START[name] if name == "serving" else np.inf for name in free]
    found: Any = least_squares(residuals, np.ones(len(free)), bounds=(0.0, most_serving))
    return power(found.x)


def left_out(loads: Sequence[ServedLoad], groups: Callable[[ServedLoad], str], free: Sequence[str], **fixed: float
             ) -> list[LeftOut]:
    """Leave out each group of loads in turn: return the fit to the others, and its errors on the group. A group of all
    loads is skipped."""
    names = sorted({groups(load) for load in loads})
    out = []
    for name in names:
        rest = [load for load in loads if groups(load) != name]
        if len(rest) >= len(free):
            power = fit_watts(rest, free, **fixed)
            out.append(LeftOut(name, power, np.array([error(load, power) for load in loads if groups(load) == name])))
    return out
