"""The router protocol.

A router's configuration is a component. Before the simulation starts, `build(context)` makes one router for each set of
candidate clients (those that serve a kind of stage for a model).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hermes.arrays import IntArray
from hermes.core.client import Client
from hermes.core.stage import Stage

__all__ = ["Decider", "LoadCell", "Router", "RouterContext"]


class Router(Protocol):
    """Chooses a client for each stage. Must be deterministic, given its random generator and the loads it reads."""

    def choose(self, stage: Stage) -> Client:
        """Return the client that serves `stage`. Called once per stage, when the stage is ready.

        A router that places both phases of a generation at once (`places_both_phases` of its configuration) also sets
        `stage.decode_on`. Its candidates are the clients of either phase. It is asked again if a generation continues
        elsewhere than it chose (`stage.transferred`).

        A router may have a method `changed(members)`: of its candidates only these, in their order, take stages from
        now on. It is called when clients join or leave, also before the first request if some do not start ready, and
        never if all candidates serve throughout. A router without it is refused where clients come and go.

        A router may have a method `observe(event, client, stage)`. Events: "prefilled" (the prompt has ended at
        `client`), "transferred" (the KV has left `client`), "done" (the stage is complete at `client`, or was given up
        there), "refused" (the stage cannot be served as chosen, or its client cannot be reached).
        """
        ...


class Decider(Protocol):
    """Keeps decisions about one request (`hermes.routing.decisions.Decisions`)."""

    request: int

    def decide(self, now_ns: int, stage: Stage, among: Sequence[Client], chosen: Client,
               told: Mapping[str, Sequence[float]], lowest: bool) -> Client:
        """Keep a decision, and return the client that gets the stage."""
        ...


@dataclass
class LoadCell:
    """Load of the candidates. The coordinator updates it as stages are assigned and done."""

    kind: str                       # "input_tokens", "output_tokens" or "requests"
    values: IntArray   # by candidate


@dataclass
class RouterContext:
    """Services of the simulation that a router may use.

    Attributes:
        candidates: Clients in the order of the scenario; ties go to the first.
        rng: The router's own random stream.
        transfer_ns: Duration of moving a stage's data to a candidate, without contention.
        now_ns: Returns the simulated time.
        cells: Loads that the coordinator keeps for the router; see `watch`.
        seed: The scenario's, for named streams.
        believed: Notes how many tokens of a stage's prompt the router believes to be cached at the client that it
            chooses. Results show their sum over a request with what was cached.
        name: Of the router in the names of its streams: of several gateways each has its own.
        decisions: What keeps decisions about one request, and may turn them; None in ordinary simulations. A router
            that notes what it sends asks it between its choice and its notes (`hermes.routing.decisions.settled`).
    """

    candidates: Sequence[Client]
    rng: np.random.Generator
    transfer_ns: Callable[[Stage, Client], int] = field(default=lambda stage, client: 0)
    now_ns: Callable[[], int] = field(default=lambda: 0)
    cells: list[LoadCell] = field(default_factory=list)
    seed: int = 0
    believed: Callable[[Stage, int], None] = field(default=lambda stage, tokens: None)
    name: str = "router"
    decisions: Decider | None = None

    def watch(self, kind: str) -> IntArray:
        """Return an array, by candidate, of a load that changes only when stages are assigned and done."""
        cell = LoadCell(kind, np.zeros(len(self.candidates), dtype=np.int64))
        self.cells.append(cell)
        return cell.values
