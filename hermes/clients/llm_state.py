"""Records of which the state of an LLM client consists, each with the fields that change together.

`LLMClient` reads and writes their fields directly: a method here would be a call for each run of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.hardware.base import HardwareModel, StepStats
from hermes.hardware.config import history_of, prices, write_ends_of
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.clients.llm import LLMClient
    from hermes.clients.parts import StepPart

__all__ = ["ANY_LENGTH", "ANY_TIME", "Flight", "GivenUp", "Limits", "MovedBlocks", "Pricing",
           "ServingStack", "StepParts", "Unseen", "Waits"]

ANY_LENGTH = 1 << 62
"""`max_model_len` of a client without a limit."""
ANY_TIME = 1 << 62
_KV_MEMORY = int(Reason.KV_MEMORY)


class Flight:
    """The run of steps in flight.

    Attributes:
        plan: Its plan; None if no step runs.
        planned: Its steps, fewer than the plan's if it was cut.
        start_ns: Its start, or that of the latest run.
        step_range: Its shortest and longest step; known if the client is tracked.
        held_up: Time in which the serving stack delays it.
        end_ns: Its end; -1 if no step runs.
        ended_ns: End of the run before; -1 before the first.
        futile: How many times in a row a sequence that ran alone has preempted itself.
    """

    __slots__ = ("end_ns", "ended_ns", "futile", "held_up", "plan", "planned", "start_ns", "step_range")

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.planned = self.start_ns = self.held_up = self.futile = 0
        self.step_range = (1, 1)
        self.end_ns = self.ended_ns = -1


class Pricing:
    """Pricing of steps.

    Attributes:
        write_ends: Function of the hardware model that prices short runs; None if it has none.
        history: What earlier steps cost later ones; None if they cost nothing.
        step_ns: Function of the hardware model that prices single steps; None if a part or the history has a say.
    """

    __slots__ = ("history", "step_ns", "write_ends")

    def __init__(self, hardware: HardwareModel) -> None:
        self.write_ends = write_ends_of(hardware)
        self.history = history_of(hardware)
        self.step_ns: Callable[[StepStats], int] | None = None

    def settle(self, hardware: HardwareModel, parts: StepParts) -> None:
        """Note, once its parts are known, who prices a client's single steps."""
        if not parts.holds and self.history is None and parts.drafter is parts.stages is None and prices(
                hardware, "step_ns"):
            self.step_ns = hardware.step_ns


class StepParts:
    """A client's parts about steps, by the places where they are called (`hermes.clients.parts.StepPart`).

    Attributes:
        pace: Starts and cuts its steps; None if the client does.
        planner: Decides whether a plan starts now; None if each does.
        holds: Delay its single steps before they compute.
        loads: Make its single steps longer.
        sends: See the tokens of its runs.
        drafter: Prices its steps in place of the hardware model (speculative decoding); None without one.
        stages: Ends its steps; None if a step ends when its time has passed.
    """

    __slots__ = ("drafter", "holds", "loads", "pace", "planner", "sends", "stages")

    def __init__(self) -> None:
        self.pace: StepPart | None = None
        self.planner: StepPart | None = None
        self.drafter: StepPart | None = None
        self.stages: StepPart | None = None
        self.holds: tuple[StepPart, ...] = ()
        self.loads: tuple[StepPart, ...] = ()
        self.sends: tuple[StepPart, ...] = ()

    def held_up_ns(self, client: LLMClient, plan: Plan) -> int:
        """Return by how much the serving stack delays a step."""
        total = 0
        for part in self.holds:
            total += part.held_up_ns(client, plan)
        return total

    def load_ns(self, client: LLMClient, plan: Plan) -> int:
        """Return by how much a step takes longer on the device."""
        total = 0
        for part in self.loads:
            total += part.load_ns(client, plan)
        return total

    def end_of_step(self, client: LLMClient, plan: Plan, now: int) -> int:
        """Return the end of a single step that starts now, with what parts and history add to its time; note its
        start."""
        flight, history = client._flight, client._price.history
        held_up = flight.held_up = self.held_up_ns(client, plan) if self.holds else 0
        for seq, _n in plan.prefills:
            if seq.start_ns < 0:
                seq.start_ns = now
        load_ns = self.load_ns(client, plan) if self.loads else 0
        if self.stages is not None:
            return self.stages.end_ns(client, plan, now + held_up, load_ns)
        ns = load_ns + (client.hardware.step_ns(plan) if self.drafter is None else self.drafter.step_ns(plan))
        if history is not None:
            if plan.prefill_tokens:
                ns = history.step_ns(plan, ns, now)
            if now > flight.ended_ns:
                ns += history.idle_ns
        return now + held_up + ns


class Limits:
    """Limits of requests.

    Attributes:
        max_model_len: Of prompt plus output tokens.
        unreserved_kv_tokens: See `hermes.core.client.ClientView`.
        fits: A prompt and an output known to fit; smaller ones fit too.
    """

    __slots__ = ("fits", "max_model_len", "unreserved_kv_tokens")

    def __init__(self) -> None:
        self.max_model_len = ANY_LENGTH
        self.unreserved_kv_tokens: int | None = None
        self.fits = (0, 0)


class ServingStack:
    """The serving stack around the engine.

    Attributes:
        before_ns, token_ns: Front-end time before the engine, and before it per prompt token
            (`hermes.clients.frontend`).
        at_host: Requests that its own thread has (`hermes.clients.overhead`).
    """

    __slots__ = ("at_host", "before_ns", "token_ns")

    def __init__(self, before_ns: int, token_ns: float) -> None:
        self.before_ns, self.token_ns = before_ns, token_ns
        self.at_host = 0


class Unseen:
    """Sequences that have arrived and that no plan has seen yet (asynchronous scheduling).

    Attributes:
        late: (arrival, sequence) pairs.
        seen_ns: Start of the step in flight or of the one just ended: the next plan sees arrivals up to then. ANY_TIME
            if no step is in flight.
    """

    __slots__ = ("late", "seen_ns")

    def __init__(self) -> None:
        self.late: list[tuple[int, Generation]] = []
        self.seen_ns = ANY_TIME


class GivenUp:
    """Sequences that were given up.

    Attributes:
        in_step: While the step in flight runs: they leave at its end.
        outside: Before the engine had them.
    """

    __slots__ = ("in_step", "outside")

    def __init__(self) -> None:
        self.in_step: list[Generation] = []
        self.outside: set[Generation] = set()


class MovedBlocks:
    """Blocks taken or freed from outside during runs.

    Attributes:
        now: Correction to the final blocks of the run in flight times its length, in blocks x ns.
        in_runs: (row of the table of runs, blocks x ns) of earlier runs.
        peak: The most blocks in use at the end of a step, before the first change after it.
        step: Steps that had ended at the latest change.
    """

    __slots__ = ("in_runs", "now", "peak", "step")

    def __init__(self) -> None:
        self.now = self.peak = self.step = 0
        self.in_runs: list[tuple[int, int]] = []


class Waits:
    """Why sequences wait during steps and without steps.

    Attributes:
        reason, since_ns: Of the run in flight: the `Reason` for which sequences wait (0: none does), and since when.
        stalled_ns: Since when no step runs although sequences wait; -1 if that is not so.
        stalls: `Reason`, start and end of waits outside steps.
    """

    __slots__ = ("reason", "since_ns", "stalled_ns", "stalls")

    def __init__(self) -> None:
        self.reason = self.since_ns = 0
        self.stalled_ns = -1
        self.stalls: list[tuple[int, int, int]] = []

    def note(self, scheduler: LLMScheduler, plan: Plan | None, now: int) -> None:
        """Note why sequences wait during a plan that starts now, and the wait that it ends."""
        waits, reason = scheduler.num_waiting, scheduler.stopped
        if self.stalled_ns >= 0:
            if now > self.stalled_ns:
                self.stalls.append((self.reason, self.stalled_ns, now))
            self.stalled_ns = -1
        if reason < 0 and waits:
            reason = _KV_MEMORY if plan is None else scheduler.limit_of(plan)
        self.reason, self.since_ns = reason if waits else 0, now
        if plan is None and waits:
            self.stalled_ns = now
