"""Spare clients: as many as one loss takes away (`hermes size --spare`).

A loss may last for hours (a node is repaired, a zone comes back), and the SLO is to hold in each of them. So a layout
is simulated without the clients that one loss takes, for the whole of its time, and its answer has as many more. That
is k of n: the SLO holds with the rest. What the loss itself does, until routers know it, is simulated once for the
answer (`as_it_happens`), and printed beside it.

Clients that prefill do not decode when one is lost, so each side of a prefill-decode layout has its own spares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes.errors import InputError

if TYPE_CHECKING:
    from hermes.explore.size import Sizing, Tried

__all__ = ["AsItHappens", "Loss", "as_it_happens", "loss_option", "whole"]

UNITS = {"client": 0, "device": 0, "node": 8, "zone": 3}   # devices of a node, zones
LONG_S = 36_000.0   # the lost clients do not come back in the simulation
STRIKES = 1 / 3     # of the time in which requests arrive


@dataclass(frozen=True)
class Loss:
    """What is lost at a time.

    Attributes:
        unit: "client", "device" (its client goes with it), "node" or "zone".
        number: Devices of a node, or zones.
    """

    unit: str
    number: int = 0

    @property
    def text(self) -> str:
        more = {"node": f" of {self.number} devices", "zone": f" of {self.number}"}.get(self.unit, "")
        return f"one {self.unit}{more}"

    def spares(self, clients: float, devices: int) -> int:
        """Return how many clients one loss takes of those that leave so many. devices: Of one client.

        Nodes are full, so that one of eight devices has four clients of two; zones have equal parts.
        """
        if not math.isfinite(clients):
            return 0
        if self.unit == "zone":
            return math.ceil(clients / (self.number - 1))
        return max(1, self.number // devices) if self.unit == "node" else 1


def loss_option(text: str | None) -> Loss | None:
    """Return the loss of `--spare`, such as `client`, `node:4` or `zone:2`. Raises `InputError`."""
    if text is None:
        return None
    unit, _, number = text.partition(":")
    known = number.isdecimal() and (2 if unit == "zone" else 1) <= int(number) <= 1024
    if unit not in UNITS or (number and not (UNITS[unit] and known)):
        raise InputError("client, device, node (node:8, with the devices of a node) or zone (zone:3, with the zones)",
                         text, field="--spare")
    return Loss(unit, int(number) if number else UNITS[unit])


def whole(sizing: Sizing, tried: Tried) -> dict[str, Any]:
    """Return the scenario's document with the clients of a layout and its spares."""
    return sizing.settings(replace(tried, kind=replace(tried.kind, loss=None), clients=tried.all_clients))


class AsItHappens(NamedTuple):
    """What a loss does until routers know it: figures of the incident, by their names in the summary."""

    lost: str
    incident: Mapping[str, Any]


def as_it_happens(sizing: Sizing) -> AsItHappens | None:
    """Simulate the loss in the answer with its spares; None without an answer, or where nothing was hit."""
    from hermes.api import simulate
    from hermes.config.yaml_document import as_node
    from hermes.scenario import scenario_of

    if not sizing.meets or sizing.loss is None:
        return None
    best = sizing.meets[0]
    document = whole(sizing, best)
    side = max(range(len(best.clients)), key=lambda place: best.all_clients[place])
    lost, at = best.spares[side], STRIKES * float(best.row.get("settling.arrivals_s") or 60.0)
    clients = [dict(client) for client in document["clients"]]
    own = clients[side]
    several = lost > 1
    failure = {"kind": "node", "repair": LONG_S, "evict": None} if several else {"kind": "crash"}
    own |= {"fleet": {"start": own["count"], "start_up": {"total": LONG_S}, "failures": [{**failure, "at": at}]},
            **({"platform": f"{own['name']}-{{i//{lost}}}"} if several else {})}
    found = simulate(scenario_of(as_node({**document, "clients": clients}), Path(sizing.scenario.source.base_dir)))
    rows = found.summary.get("incidents", {}).get("rows")
    return AsItHappens(f"{lost} of {best.all_clients[side]} {own['name']}", rows[0]) if rows else None
