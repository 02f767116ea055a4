"""Class and range of each term of a step, by where its time comes from.

Widths of terms are round figures. Kernel tables of the card itself are 6% where servers of it were compared whose host
times and clocks are known (`compared` of a device), else 15%: as tables of a relative are, or what was found on
another host, version or card of the same architecture. Data sheets and generic factors are 40 to 60%. All-reduces of
four devices and more differ from site to site by factors (llm-d's eight H100: four times the tables'). How many cells
of the accuracy page lie inside what follows for results is printed by `hermes accuracy`
(`evidence.accuracy.table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes.hardware.trust import BY_SITE, FEW, GUESS, MEASURED, NEAR, Kind, Trust
from hermes.sums import float_sum

__all__ = ["WHOLE", "Grounds", "class_of", "deciding", "described", "in_total", "of_other_engine", "term_trust",
           "trust_of"]

WHOLE = "whole step"   # the term of a model that has no named ones

UNCOMPARED = ("experts", "attention_of_prompts", "attention_of_decodes")   # what differs in models of other kinds
WIDTHS = {"measured": 0.085, "near": 0.2}   # largest distance from the prediction of a sum of each class
DECIDES = 0.2                        # share of a sum's range from which on a term is named


@dataclass(frozen=True)
class Grounds:
    """What the times of one model on one device rest on.

    tabled: terms that kernel tables give; of_card: whether those were measured on this very card
    fitted: whether the roofline's factors were fitted on this very card
    nearest: whether experts have the times of another shape
    beside_known: whether decodes beside prompts were compared with this card's kernel
    compared_card: whether servers of this card were compared whose host times and clocks are known
    compared_model: whether a server with a model of this kind was compared
    engine_known: whether the engine's own time is of an engine that was measured
    devices: that reduce together
    """

    tabled: frozenset[str]
    of_card: bool
    fitted: bool
    nearest: bool
    beside_known: bool
    compared_card: bool
    compared_model: bool
    engine_known: bool
    devices: int


def term_trust(names: Mapping[str, object], grounds: Grounds) -> dict[str, Trust]:
    """Return class and range of each term of `names`. Named and assumed links have their own (`Sources.links`)."""
    alone = grounds.devices == 1   # all-reduces are the site's, and what waits for them
    own = grounds.of_card and grounds.compared_card and grounds.compared_model and alone
    table, roof = MEASURED if own else NEAR, NEAR if grounds.fitted else GUESS
    found = {name: table if name in grounds.tabled else roof for name in names}
    special = {
        "engine": NEAR if grounds.engine_known else GUESS,
        "decodes_beside_prompt": NEAR if grounds.beside_known else GUESS,
        "all_reduce": NEAR if grounds.devices <= FEW else BY_SITE,
        "hops": GUESS, "dispatch": GUESS, "combine": GUESS,
    }
    if "sampling" not in grounds.tabled:
        special["sampling"] = NEAR
    if grounds.nearest:
        special["experts"] = NEAR
    if not grounds.compared_model:
        special |= dict.fromkeys(UNCOMPARED, GUESS)
    found |= {name: one for name, one in special.items() if name in found}
    if not grounds.fitted and not grounds.tabled:   # nothing was measured near: no term is better than a guess
        found = {name: one if one.kind == "guess" else GUESS for name, one in found.items()}
    return found


def trust_of(model: Any) -> Mapping[str, Trust]:
    """Return class and range of each term of a hardware model. Fits and tables of whole steps have one, `near`: they
    were measured on the card, single steps of other batches are up to 14% off (docs/accuracy.md)."""
    found: Mapping[str, Trust] = model.trust_of() if hasattr(model, "trust_of") else {WHOLE: NEAR}
    return found


def described(model: Any) -> str:
    """Return what a model without named terms is called."""
    return str(getattr(model, "description", "") or getattr(model, "name", "") or type(model).__name__)


def of_other_engine(trust: Mapping[str, Trust]) -> dict[str, Trust]:
    """Return the ranges of terms of an engine whose kernels and host nobody measured, with those of another engine."""
    found = {name: NEAR if one.kind == "measured" else one for name, one in trust.items()}
    return found | ({"engine": GUESS} if "engine" in found else {})


def in_total(seconds: Mapping[str, float], trust: Mapping[str, Trust]) -> Trust:
    """Return class and range of a sum of terms: all off to the same side, and the class of a range as wide."""
    total = float_sum(seconds.values())
    if total <= 0.0:
        return NEAR
    low, high = (float_sum(each * ends[name] for name, each in seconds.items()) / total for ends in (
        {name: trust.get(name, NEAR).low for name in seconds}, {name: trust.get(name, NEAR).high for name in seconds}))
    return Trust(class_of(low, high, WIDTHS), low, high)


def class_of(low: float, high: float, widths: Mapping[str, float]) -> Kind:
    """Return the class of a range of factors: the first whose largest distance from 1 it keeps to, else a guess."""
    far = max(high - 1.0, 1.0 - low)
    if far <= widths["measured"]:
        return "measured"
    return "near" if far <= widths["near"] else "guess"


def deciding(seconds: Mapping[str, float], trust: Mapping[str, Trust]) -> list[str]:
    """Return the terms that make the range of a sum as wide as it is, widest first."""
    ranged = {name: trust.get(name, NEAR) for name in seconds}
    widths = {name: each * (ranged[name].high - ranged[name].low) for name, each in seconds.items()}
    found = [name for name, width in widths.items() if width >= DECIDES * float_sum(widths.values()) > 0.0]
    return sorted(found, key=lambda name: -widths[name])
