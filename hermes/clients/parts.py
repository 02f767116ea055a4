"""Bases of the parts that a deployment adds to an LLM client.

- A `ClientPart` sees requests on their way in and out (limits of the queue, tiers of KV). It works with every role,
  scheduler, rank and stage, because it knows none of them.
- A `StepPart` decides when steps start and end (data-parallel ranks, pipeline stages, jobs of KV offload, loads of
  adapters, serial request overhead). Parts that decide what a step computes belong to the scheduler.

`hermes.clients.build` makes them, each from the option of the client's configuration that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation

if TYPE_CHECKING:
    from hermes.clients.llm import LLMClient
    from hermes.hardware.base import StepStats
    from hermes.schedulers.plan import Plan

__all__ = ["ClientPart", "StepPart"]


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientPart:
    """A part of one client, or of those of one engine. The hooks are called in the order in which they stand here; a
    part overrides some.

    None of them may change the scheduler's queues, nor the fields of the sequence that a docstring does not name.
    """

    def attach(self, client: LLMClient) -> None:
        """Join a client. Called once for each of its clients, when that is made, in the order of its parts."""
        client.parts += (self,)

    def refusal(self, client: LLMClient, stage: Generation) -> str | None:
        """Return why the client turns a request away at this instant, or None.

        Called each time that the coordinator looks for a client, also for requests that go elsewhere; for one whose
        prompt another client computes (`stage.transferred`), when that is done, or begins if KV moves layer by layer.
        """
        return None

    def submitted(self, client: LLMClient, stage: Generation) -> None:
        """Note a request that the client has taken. Called once for each, before the front end's time, and before KV
        comes from another client."""

    def keeps(self, client: LLMClient, stage: Generation, go_on: Callable[[], None]) -> bool:
        """Whether the part keeps a request back that has come through the front end; it calls `go_on` later, once.

        Called once for each, in the order of the client's parts. It may set `num_computed` and `cached_tokens`, to what
        is in memory when `go_on` is called.
        """
        return False

    def done(self, client: LLMClient, stage: Generation) -> None:
        """Note a sequence that has ended at this instant; it still holds its blocks. Called once for each."""

    def stopped(self, client: LLMClient) -> None:
        """Drop what is under way: the client goes down at this instant, or starts again. Called once, as the last; of a
        step part in the place `pace`, too."""

    def waits(self) -> bool:
        """Whether it keeps requests back: then the client is not idle, although no step runs."""
        return False


@mypyc_attr(allow_interpreted_subclasses=True)
class StepPart(ClientPart):
    """A part about the steps of a client, or of those of one engine.

    `attach` puts the part into the places of `client.step_parts` where it wants to be called; a part writes the hooks
    of its places. Where a place is empty nothing is called. A part that sees requests too calls the base's `attach`.
    """

    # -- place `pace`: starts and cuts the steps -------------------------------------------------------------------

    def wake(self, client: LLMClient) -> None:
        """Start a step of the client after all other events of this instant, or soon. Called whenever something came
        that a step could compute: often, also several times at one instant, and while a step runs."""
        raise NotImplementedError

    def cut(self, client: LLMClient) -> None:
        """End the run in flight at the next step boundary. Called while a run of several steps is in flight."""
        raise NotImplementedError

    def starts(self) -> bool:
        """Whether a step is about to start at this instant: then the client is not idle."""
        raise NotImplementedError

    def first_index(self) -> int:
        """Return the index of the client whose place the step ends of all its clients have among the events of an
        instant. Called when a client is scraped for the first time."""
        raise NotImplementedError

    # -- place `planner`: decides whether a plan starts now --------------------------------------------------------

    def next_plan(self, client: LLMClient) -> Plan | None:
        """Return the plan of the next run; None if nothing starts now, and the part or an arrival wakes the client
        later. Called once for each run, in place of the client's own loop over `scheduler.plan`. It may complete plans
        that compute nothing."""
        raise NotImplementedError

    def planned(self) -> bool:
        """Return whether a step is planned that has not begun: what is given up leaves at its end."""
        return False

    def completed(self, client: LLMClient) -> None:
        """Note the end of a run, when its tokens are given and sequences that ended have left. Called once for each."""
        raise NotImplementedError

    # -- places `holds` and `loads`: time of single steps beside their computation ---------------------------------

    def held_up_ns(self, client: LLMClient, plan: Plan) -> int:
        """Return by how much the serving stack delays a step. Called once for each run of one step, when it starts;
        sequences that are in a step for the first time have a `start_ns` below 0. Must not modify the plan."""
        raise NotImplementedError

    def load_ns(self, client: LLMClient, plan: Plan) -> int:
        """Return by how much a step takes longer on the device. Called once for each run of one step, when it starts.
        Must not modify the plan."""
        raise NotImplementedError

    # -- place `sends`: sees the tokens that steps give -------------------------------------------------------------

    def sent(self, client: LLMClient, plan: Plan, count: int) -> None:
        """Note a run of `count` steps that ends at this instant. Called once for each, before its sequences are
        reported as ended. Must not modify the plan. The part keeps `client.late_log`: for every step by how many ns the
        user has its tokens later than `after_ns` says."""
        raise NotImplementedError

    # -- place `drafter`: prices steps -----------------------------------------------------------------------------

    def step_ns(self, plan: Plan) -> int:
        """Return how long a step takes, in place of the hardware model. Called once for each, all of them single
        steps; `verified` and one of the two others are called instead of steps of pipeline stages or of ranks. Must not
        modify the plan, as the others must not."""
        raise NotImplementedError

    def verified(self, plan: Plan) -> StepStats:
        """Return a step as the hardware model prices it."""
        raise NotImplementedError

    def drafting_ns(self, plan: Plan) -> int:
        """Return the time of what follows a step before its results are complete."""
        raise NotImplementedError

    def common_drafting_ns(self, plans: Sequence[Plan | None]) -> int:
        """Return the same after a step that clients with a `pace` take together; None stands for an idle one."""
        raise NotImplementedError

    # -- place `stages`: ends steps --------------------------------------------------------------------------------

    def end_ns(self, client: LLMClient, plan: Plan, begin_ns: int, load_ns: int) -> int:
        """Return when a single step ends that could begin at `begin_ns`, with so long a load before it. Called once
        for each, in the order in which the steps of all its clients start. Must not modify the plan."""
        raise NotImplementedError

    def common_end_ns(self, batches: list[StepStats | None], begin_ns: int, load_ns: int, drafting_ns: int) -> int:
        """Return the same for a step that clients with a `pace` take together; None stands for an idle one.

        drafting_ns: Time of the drafting after it, on the last stage.
        """
        raise NotImplementedError
