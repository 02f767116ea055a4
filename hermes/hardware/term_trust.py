"""Class and range of each term of a step, by where its time comes from.

Widths are round figures: kernel tables of the card itself 6%; times found on a relative (another host, version or card
of the same architecture) 15%; data sheets and generic factors 40 to 60%. All-reduces of four devices and more differ
from site to site by factors (llm-d's eight H100: four times the tables'). How many cells of the accuracy page lie
inside was not counted yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes.hardware.trust import GUESS, MEASURED, NEAR, Kind, Trust, worst

__all__ = ["WHOLE", "Grounds", "deciding", "described", "in_total", "term_trust", "trust_of"]

WHOLE = "whole step"   # the term of a model that has no named ones

BY_SITE = Trust("guess", 0.8, 4.0)   # all-reduces of four devices and more
FEW = 2                              # devices whose all-reduces were the tables' where they were compared
COUNTS = 0.1                         # share of a step from which on a term's class is the step's


@dataclass(frozen=True)
class Grounds:
    """What the times of one model on one device rest on.

    tabled: terms that kernel tables give; of_card: whether those were measured on this very card
    fitted: whether the roofline's factors were fitted on this very card
    nearest: whether experts have the times of another shape
    beside_known: whether decodes beside prompts were compared with this card's kernel
    engine_known: whether the engine's own time is of an engine that was measured
    devices: that reduce together; link_given: whether the scenario names their link
    """

    tabled: frozenset[str]
    of_card: bool
    fitted: bool
    nearest: bool
    beside_known: bool
    engine_known: bool
    devices: int
    link_given: bool


def term_trust(names: Mapping[str, object], grounds: Grounds) -> dict[str, Trust]:
    """Return class and range of each term of `names`."""
    table, roof = MEASURED if grounds.of_card else NEAR, NEAR if grounds.fitted else GUESS
    found = {name: table if name in grounds.tabled else roof for name in names}
    special = {
        "engine": NEAR if grounds.engine_known else GUESS,
        "decodes_beside_prompt": NEAR if grounds.beside_known else GUESS,
        "all_reduce": NEAR if grounds.link_given or grounds.devices <= FEW else BY_SITE,
        "hops": NEAR if grounds.link_given else GUESS,
        "dispatch": GUESS, "combine": GUESS,
    }
    if "sampling" not in grounds.tabled:
        special["sampling"] = NEAR
    if grounds.nearest:
        special["experts"] = NEAR
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


def in_total(seconds: Mapping[str, float], trust: Mapping[str, Trust]) -> Trust:
    """Return class and range of a sum of terms: all off to the same side, and the worst class of those that count."""
    total = sum(seconds.values())
    ranged = {name: trust.get(name, NEAR) for name in seconds}
    if total <= 0.0:
        return NEAR
    kinds = tuple(one.kind for name, one in ranged.items() if seconds[name] >= COUNTS * total)
    low, high = (sum(seconds[name] * end for name, end in ends.items()) / total for ends in (
        {name: one.low for name, one in ranged.items()}, {name: one.high for name, one in ranged.items()}))
    return Trust(worst(kinds or ("near",)), low, high)


def deciding(seconds: Mapping[str, float], trust: Mapping[str, Trust], kind: Kind) -> list[str]:
    """Return the terms that give a sum its class `kind`, largest first."""
    total = sum(seconds.values())
    found = [name for name, each in seconds.items()
             if trust.get(name, NEAR).kind == kind and each >= COUNTS * total]
    return sorted(found, key=lambda name: -seconds[name])
