"""The LLM client: a scheduler and its KV memory over a hardware model, on the clock.

A client works in runs of steps. It gets a plan from its scheduler, gets the plan's duration with one call to its
hardware model, and sleeps until the run ends. An event that may change the batch cuts the run at the next step
boundary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappush
from operator import sub
from typing import TYPE_CHECKING

import numpy as np

from hermes.clients.llm_readings import LLMReadings
from hermes.clients.llm_state import (
    ANY_TIME,
    Flight,
    GivenUp,
    Limits,
    MovedBlocks,
    Pricing,
    ServingStack,
    StepParts,
    Unseen,
    Waits,
)
from hermes.clients.parts import ClientPart
from hermes.compiled import mypyc_attr
from hermes.core.branches import sequences_of
from hermes.core.client import ClientEvents, Track
from hermes.core.clock import ARRIVAL, START, STEP_END, Call, Clock, Tick
from hermes.core.columns import RowLog, StepLog
from hermes.core.generation import Generation
from hermes.hardware.base import HardwareModel
from hermes.schedulers.base import AT_REST, DOWN, IN_STEP, PLANNED, RESULTS, LLMScheduler
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.clients.cache_events import CacheReader
    from hermes.clients.scrapes import ClientScraper

__all__ = ["LLMClient"]

_accumulate = np.add.accumulate
FUTILE = 2       # sequences that preempt themselves alone this often in a row will make no progress
SHORT_RUN = 28   # up to this many steps a hardware model may price one by one: faster than numpy
MAX_RUN = 256    # longest run priced at once; a longer one continues in the next


@mypyc_attr(allow_interpreted_subclasses=True)
class LLMClient(LLMReadings):
    """See the module's docstring and `hermes.clients.base.Client`.

    Args:
        role: "both", "prefill" (gives the first token, then hands the KV over) or "decode" (takes KV over).
        parts: What the deployment adds to requests' way in and out, and to steps (`hermes.clients.parts`).
        frontend_ns: Front-end time before the engine, before it per prompt token, and after it
            (`hermes.clients.frontend`).
    """

    __slots__ = (
        "_asynchronous", "_direct", "_end_call", "_end_priority", "_flight", "_given_up", "_hooked", "_lean",
        "_max_run", "_moved", "_own_queue", "_price", "_runs", "_start", "_unseen", "_waits", "after_ns", "another",
        "cache_log", "emitted", "env", "events", "hardware", "index", "input_tokens", "kv_bytes_per_token", "late_log",
        "limits", "model", "name", "num_assigned", "num_layers", "num_steps", "output_tokens", "parts", "pauses",
        "platform", "returns_together", "role", "scheduler", "scrapes", "stack", "stages", "step_parts", "steps",
        "tiers", "tracks",
    )

    def __init__(
        self, env: Clock, index: int, name: str, scheduler: LLMScheduler, hardware: HardwareModel, runs: RowLog,
        events: ClientEvents, *, model: str = "", role: str = "both", platform: str = "", every_step: bool = False,
        frontend_ns: tuple[int, float, int] = (0, 0.0, 0), parts: tuple[ClientPart, ...] = (),
    ) -> None:
        self.env, self.index, self.name = env, index, name
        self.scheduler, self.hardware, self._asynchronous = scheduler, hardware, scheduler.asynchronous
        # Serves all runs; no other event has its priority, so that it needs no number.
        self._end_priority, self._end_call = STEP_END + index, [self._on_end]
        self.model, self.role, self.platform = model, role, platform
        generations = {"both": ("generate", "prefill", "decode"), "prefill": ("generate", "prefill"),
                       "decode": ("decode",)}[role]
        served = scheduler.stages
        self.stages = served.difference(("generate",)) if role != "decode" else frozenset()
        if "generate" in served:
            self.stages |= frozenset(generations)
        self.events = events
        self.steps = StepLog()
        self.pauses: list[int] | None = None if scheduler.ticks_every_step else []
        self.num_steps = 0                # steps completed
        self.tiers = ()
        self.tracks: list[tuple[Track, int]] = []   # (keeper of load bounds, this client's position in its list)
        self.input_tokens = self.output_tokens = self.num_assigned = 0
        self.late_log: Sequence[int] = ()   # a part with `sent` keeps it
        self.emitted = 0                  # tokens emitted by sequences that are not finished
        self.kv_bytes_per_token = 0.0     # whole client, all layers; the client's configuration sets it for transfers
        self.num_layers = 1
        self._runs = runs
        self._max_run = 1 if every_step else MAX_RUN
        # whether sequences wait where only the scheduler knows
        self._own_queue = type(scheduler).num_waiting is not LLMScheduler.num_waiting
        self._flight, self._unseen, self._waits = Flight(), Unseen(), Waits()
        self.limits, self._moved, self._given_up = Limits(), MovedBlocks(), GivenUp()
        self._price, self.step_parts = Pricing(hardware), StepParts()
        before_ns, token_ns, self.after_ns = frontend_ns
        self.stack = ServingStack(before_ns, token_ns)
        self._start: Tick | None = None
        self.returns_together = scheduler.returns_together
        self.scrapes = None               # values for scrapers, made for the first one
        self.cache_log = None             # events of its prefix cache, made for a router that asks
        self.parts: tuple[ClientPart, ...] = ()
        # An empty engine for a replica that starts again; its group's `fleet` sets it.
        self.another: Callable[[], tuple[LLMScheduler, tuple[ClientPart, ...]]] | None = None
        self._attach(parts)

    def _attach(self, parts: tuple[ClientPart, ...]) -> None:
        """Let parts join, and note what none of them asks for."""
        self.parts = ()
        for part in parts:
            part.attach(self)
        self._hooked = self._has_hooks()
        self._price.settle(self.hardware, self.step_parts)
        # whether sequences go to the engine at once, and rows of runs leave out what only parts bring about
        self._direct = not parts and not self.stack.before_ns and not self.stack.token_ns
        self._lean = self._price.step_ns is not None and not self.scheduler.parts

    def _has_hooks(self) -> bool:
        """Whether something beside the scheduler hears of the ends of runs, or plans them."""
        step_parts = self.step_parts
        return (self.scrapes is not None or self.cache_log is not None or bool(step_parts.sends)
                or step_parts.planner is not None or bool(self._given_up.in_step))

    def renew(self) -> None:
        """Start again with an empty engine. Called while the client is idle, without stages."""
        self._empty()
        if self.scrapes is not None:
            self.scrapes.found(self.env._now)

    def _empty(self) -> None:
        """Take an empty engine."""
        assert self.another is not None
        pace = self.step_parts.pace
        for part in self.parts if pace is None else (*self.parts, pace):
            part.stopped(self)
        decode_steps = self.scheduler.group.clock
        self.scheduler, parts = self.another()
        self.scheduler.group.clock = decode_steps   # segments of sequences count on from the replica before
        if self.cache_log is not None:
            self.cache_log.restarted()
        stalls = self._waits.stalls
        self._flight, self._unseen, self._waits = Flight(), Unseen(), Waits()
        self._waits.stalls = stalls
        self._price, self.step_parts = Pricing(self.hardware), StepParts()
        self.tiers = ()
        self._attach(parts)

    @property
    def free_at_ns(self) -> int:
        """When the step in flight ends; now without one."""
        flight, steps = self._flight, self.steps
        return self.env._now if flight.plan is None else steps.view[steps.pos + flight.planned - 1]

    def scraper(self, period_ns: int, offset_ns: int) -> ClientScraper:
        """Return a scraper that asks at `offset_ns`, and every `period_ns` from then on (`hermes.core.scraped`)."""
        from hermes.clients.scrapes import ClientScraper, Scrapes  # most clients are not scraped

        if self.scrapes is None:
            self.scrapes, self._hooked = Scrapes(self), True
        scraper = ClientScraper(self.scrapes, period_ns, offset_ns)
        self.scrapes.scrapers.append(scraper)
        return scraper

    def watch_passes(self) -> None:
        """Keep the last step that has ended, for `engine_state`."""
        from hermes.clients.scrapes import Scrapes  # most clients are not watched

        if self.scrapes is None:
            self.scrapes, self._hooked = Scrapes(self), True
        self.scrapes.keeps_passes = True

    def cache_events(self) -> CacheReader:
        """Return the events of its prefix cache (`hermes.core.engine_readings`)."""
        from hermes.clients.cache_events import ClientCacheLog  # few routers ask

        if self.cache_log is None:
            self.cache_log, self._hooked = ClientCacheLog(self), True
        return self.cache_log.reader()

    # -- arrivals ------------------------------------------------------------------------------------------------

    def refusal(self, stage: Generation) -> str | None:
        limits = self.limits
        prompt, output = limits.fits
        if stage.prompt_tokens <= prompt and stage.target_tokens <= output and stage.branches is None:
            return self._refused_by_part(stage) if self.parts else None
        reason = self.unfit(stage)
        return self._refused_by_part(stage) if reason is None and self.parts else reason

    def unfit(self, stage: Generation) -> str | None:
        """Return why the client can never serve a stage, or None."""
        limits = self.limits
        prompt, output = limits.fits
        if stage.prompt_tokens <= prompt and stage.target_tokens <= output and stage.branches is None:
            return None
        if stage.prompt_tokens + stage.target_tokens > limits.max_model_len:   # as `vllm serve` does
            return (f"{stage.prompt_tokens} prompt and {stage.target_tokens} output tokens are more than its "
                    f"max_model_len of {limits.max_model_len}")
        reason = self.scheduler.can_ever_fit(stage)
        if reason is None and stage.prompt_tokens >= prompt and stage.target_tokens >= output:
            limits.fits = stage.prompt_tokens, stage.target_tokens
        return reason

    def _refused_by_part(self, stage: Generation) -> str | None:
        for part in self.parts:
            reason: str | None = part.refusal(self, stage)
            if reason is not None:
                return reason
        return None

    def submit(self, stage: Generation) -> None:
        """Take a sequence (with its KV, if `stage.transferred`)."""
        if self._direct and not self._given_up.outside:
            self._take(stage)
            return
        if self.parts and not stage.transferred:
            self.expect(stage)
        stack = self.stack
        if (stack.before_ns or stack.token_ns) and not stage.transferred:
            ready = self.env._now + stack.before_ns + round(stack.token_ns * stage.prompt_tokens)
            self.env.tick_at(ready, ARRIVAL, lambda tick: self._accept(stage))
        else:
            self._accept(stage)

    def expect(self, stage: Generation) -> None:
        """Note a sequence that the client has taken, before its KV has come from another client."""
        for part in self.parts:
            part.submitted(self, stage)

    def _accept(self, stage: Generation, first: int = 0) -> None:
        """Take a sequence into the engine, once the parts from number `first` on let it through."""
        if self._given_up.outside and stage in self._given_up.outside:
            self._given_up.outside.remove(stage)
            return
        if self.parts:
            for number in range(first, len(self.parts)):
                if self.parts[number].keeps(self, stage, partial(self._accept, stage, number + 1)):
                    return
        self._take(stage)

    def _take(self, stage: Generation) -> None:
        if stage.max_new_tokens:   # otherwise it ends with the tokens that it asked for, as a prefill alone does
            left = self.limits.max_model_len - stage.prompt_tokens
            if left < stage.max_new_tokens:
                stage.max_new_tokens = left
            stage.stops_early = (
                stage.target_tokens < stage.max_new_tokens and not stage.hands_over and self.role != "prefill")
        scheduler, flight = self.scheduler, self._flight
        if self.scrapes is not None:
            self.scrapes.note()
        if self._asynchronous:
            self._unseen.late.append((self.env._now, stage))
        elif stage.branches is None:
            scheduler.enqueue(stage)
        else:
            free = self._catch_up()   # branches whose KV has come take blocks
            scheduler.enqueue(stage)
            self._note_moved(free)
        if flight.plan is None:
            self.wake()
        elif flight.planned > 1:
            if scheduler.wants_cut(stage):
                self.cut()
            elif not self._waits.reason:
                self._stop_from_next_step()

    def _stop_from_next_step(self) -> None:
        """Note that a sequence which has just arrived waits for the end of the run in flight."""
        view, pos, planned = self.steps.view, self.steps.pos, self._flight.planned
        # with asynchronous scheduling the plan of that step knows of it
        boundary = bisect_left(view, self.env._now, pos, pos + planned) + self.scheduler.asynchronous
        if boundary < pos + planned - 1:
            self._waits.reason, self._waits.since_ns = self.scheduler.stop_of_arrival(), view[boundary]

    def reserve(self, stage: Generation) -> bool:
        """Take memory for KV that is about to arrive; return False if there is not enough."""
        if self.scrapes is not None:
            self.scrapes.note()
        free = self._catch_up()
        taken = self.scheduler.reserve(stage)
        self._note_moved(free)
        if taken and self._flight.plan is not None and self._flight.planned > 1:
            self.cut()   # the rest of the run may lack its blocks now
        return taken

    def _note_moved(self, free_before: int) -> None:
        """Account for blocks taken or freed from outside, possibly in the middle of a run."""
        pool, group, plan = self.scheduler.pool, self.scheduler.group, self._flight.plan
        if plan is None or self._flight.planned == 1 or pool.free_blocks == free_before:
            return
        if not (ended := self.steps_done()):
            return
        since = self.steps.view[self.steps.pos + ended - 1] - self._flight.start_ns
        moved = self._moved
        moved.now += (free_before - pool.free_blocks) * since
        step = self.num_steps + ended
        if moved.step == step:   # it is no longer what was in use at the end of a step
            return
        moved.step = step
        used = pool.num_blocks - free_before
        if plan.decodes and group.grows:   # at the end of the latest step; the one in flight has taken its blocks
            used -= group.blocks_for(self._steps_started()) - group.blocks_for(ended)
        moved.peak = max(moved.peak, used)

    def forget(self, stage: Generation) -> None:
        """Return the blocks of a sequence that this step has completed to the pool."""
        self.scheduler.release(stage)

    def release(self, stage: Generation) -> None:
        """Free KV that was kept for a transfer: waiting sequences may be admitted."""
        if self.scrapes is not None:
            self.scrapes.note()
        free = self._catch_up()
        self.scheduler.release(stage)
        self._note_moved(free)
        self.memory_freed()

    def memory_freed(self) -> None:
        """Handle blocks that were freed from outside the steps."""
        if self.scheduler.num_waiting:
            if self._flight.plan is None:
                self.wake()
            elif self._flight.planned > 1:
                self.cut()
        if self.events.room is not None:
            self.events.room(self)

    def abort(self, stage: Generation) -> None:
        """Cancel a generation whose client has given up, as the engine's abort does, with all its branches.

        It leaves when the step in flight has ended, and its blocks are free then, before those of the sequences that
        end in this step. With asynchronous scheduling the next step is planned by then, and computes it once more.
        Engines that cannot take it out then go on with it (`LLMScheduler.leave`).
        """
        if self.scrapes is not None:
            self.scrapes.note()
        flight, unseen, waits, scheduler = self._flight, self._unseen, self._waits, self.scheduler
        seen_ns = unseen.seen_ns if flight.plan is None else flight.start_ns   # by the next plan
        if flight.plan is not None and (started := self._steps_started()) > 1:   # the plan after this step, not the run
            seen_ns = self.steps.view[self.steps.pos + started - 2]
        late = [item for item in unseen.late if item[1] is stage]
        when = self._moment()
        if late and (late[0][0] > seen_ns or when == AT_REST or (stage.transferred and stage.width > 1)):   # it'd split
            unseen.late.remove(late[0])
            if not unseen.late and waits.since_ns > self.env._now:
                waits.reason = 0   # no other sequence would have waited
            self.events.aborted(self, stage)
            if stage.num_blocks:   # KV from another client
                self.release(stage)
        elif not late and not any(scheduler.has(seq) for seq in sequences_of(stage)):
            self._given_up.outside.add(stage)   # the front end or the host has it
            self.events.aborted(self, stage)
        elif when == IN_STEP or self._leave([stage], when, []):
            self._given_up.in_step.append(stage)
            self._hooked = True
            if flight.plan is not None and flight.planned > 1:
                self.cut()
        elif when == AT_REST:
            self.memory_freed()

    def _moment(self) -> int:
        """Return whether a step is under way, or planned that begins at this instant."""
        flight, planner = self._flight, self.step_parts.planner
        if flight.plan is not None or (planner is not None and planner.planned()):
            return IN_STEP
        return PLANNED if self.scheduler.asynchronous and flight.ended_ns == self.env._now else AT_REST

    def _leave(self, stages: list[Generation], when: int, finished: list[Generation]) -> list[Generation]:
        """Let generations go that were given up; return those that stay. finished: What has ended, without the gone."""
        staying = []
        for stage in stages:
            for seq in sequences_of(stage):
                if not self.scheduler.leave(seq, when):
                    staying.append(stage)
                    break
                if seq in finished:
                    finished.remove(seq)
                self.events.aborted(self, seq)
        return staying

    def kill(self, stages: list[Generation]) -> None:
        """Go down at this instant with these generations, all that the client has.

        Steps that have ended count. The step in flight emits nothing: it is a run of no steps, up to now.
        """
        flight, now, scheduler = self._flight, self.env._now, self.scheduler
        if self.scrapes is not None:
            self.scrapes.lost(now)
        self._given_up.in_step.clear()   # what leaves with the step in flight leaves now
        plan, ended, planned = flight.plan, self.steps_done(), flight.planned
        if plan is not None:
            flight.end_ns = -1
            since = flight.start_ns
            if ended:
                since = self.steps.view[self.steps.pos + ended - 1]
                flight.planned = ended
                ahead = max(plan.taken - ended, 0)   # 1 if the step in flight has taken its blocks
                if ahead and plan.decodes and scheduler.group.grows:   # they are in use in its row only
                    group = scheduler.group
                    blocks = group.blocks_for(plan.taken) - group.blocks_for(ended)
                    self._moved.now += blocks * (since - flight.start_ns)
                self._complete(since)
                self._waits.since_ns = max(self._waits.since_ns, since)
                plan.taken = ahead
            if ended < planned and since < now:
                scheduler.take_blocks(plan, 1)
                plan.embedded = 0
                flight.plan, flight.start_ns, flight.planned = plan, since, 0
                flight.held_up = 0 if ended else min(flight.held_up, now - since)
                self._record(plan, self.num_steps, 0, now)
            flight.plan = None
        late = {stage for _, stage in self._unseen.late}
        self._unseen.late.clear()
        for stage in stages:
            for seq in sequences_of(stage):
                if scheduler.has(seq):
                    scheduler.leave(seq, DOWN)
                elif seq not in late:
                    self._given_up.outside.add(seq)   # the front end or the host has it
                self.events.aborted(self, seq)
        if self._start is not None:
            self._start.callbacks.clear()
            self._start = None
        self._empty()
        if self.tracks:
            for track, position in self.tracks:
                track.moved(position, self)

    def wake(self) -> None:
        """Start a step after all other events of this instant."""
        if self.step_parts.pace is not None:
            self.step_parts.pace.wake(self)
        elif self._start is None:
            self._start = self.env.tick_at(self.env._now, START + self.index, self._on_start)

    @property
    def idle(self) -> bool:
        """Whether no step runs or is about to start at this instant, or the running ones make no progress."""
        pace = self.step_parts.pace
        starts = self._start is not None if pace is None else pace.starts()
        return ((self._flight.plan is None and not starts) or self.stuck) and not self.parts_wait()

    def parts_wait(self) -> bool:
        """Whether a part keeps requests back."""
        return bool(self.parts) and any(part.waits() for part in self.parts)

    @property
    def stuck(self) -> bool:
        """Whether steps make no progress: a sequence alone preempts itself again and again."""
        return self._flight.futile >= FUTILE

    def _gave_up_alone(self) -> None:
        """Handle a sequence that preempted itself while running alone. If that repeats (each first chunk fits, the rest
        never does, because KV that waits to move holds the memory), tell the KV transfer that this client is stuck."""
        self._flight.futile += 1
        if self._flight.futile >= FUTILE and self.events.room is not None:
            self.events.room(self)

    # -- runs of steps -------------------------------------------------------------------------------------------

    def _on_start(self, tick: Tick) -> None:
        self._start = None
        if self._flight.plan is None:
            self._begin()

    def _plan_in_view(self, seen_ns: int) -> Plan | None:
        """Return the scheduler's plan for the sequences that had arrived by `seen_ns`."""
        late, scheduler = self._unseen.late, self.scheduler
        seen = 0
        for arrived_ns, stage in late:
            if arrived_ns > seen_ns:
                break
            scheduler.enqueue(stage)
            seen += 1
        del late[:seen]
        return scheduler.plan(1 if late else self._max_run)   # the next step's plan sees later arrivals

    def _next_plan(self) -> Plan | None:
        """Return the plan of the next run, None if there is nothing to compute."""
        if self.step_parts.planner is not None:
            return self.step_parts.planner.next_plan(self)
        unseen = self._unseen
        plan = self._plan_in_view(unseen.seen_ns) if unseen.late else self.scheduler.plan(self._max_run)
        return plan if plan is not None and (plan.decodes or plan.prefills) else self._plan_after(plan)

    def _plan_after(self, plan: Plan | None) -> Plan | None:
        """Return the plan of the next run after one that computes nothing."""
        unseen = self._unseen
        late = unseen.late
        while late if plan is None else not (plan.prefills or plan.decodes):
            # A plan that only preempts, or an empty batch: it computes nothing and takes no time. With nothing to run
            # beside the step in flight, the engine waits for that step's results and plans again.
            if plan is not None:
                self.scheduler.complete(plan, 1, -1, 0)
                if plan.preempted and not self.scheduler.running:
                    self._gave_up_alone()
            plan = self._plan_in_view(ANY_TIME)
        if plan is None:
            if self.events.room is not None:
                self.events.room(self)   # no blocks are free, but the KV transfer must know that nothing runs
            unseen.seen_ns = ANY_TIME
        return plan

    def _begin(self) -> None:
        scheduler, flight, waits = self.scheduler, self._flight, self._waits
        if self._hooked or self._unseen.late:
            plan = self._next_plan()
        else:
            plan = scheduler.plan(self._max_run)
            if plan is None or not (plan.decodes or plan.prefills):
                plan = self._plan_after(plan)
        env = self.env
        now = env._now
        # a reason that is left is of the wait that ends now
        if waits.reason or scheduler.waiting or scheduler.holding or scheduler.left or (
                self._own_queue and scheduler.num_waiting):
            waits.note(scheduler, plan, now)
        if plan is None:
            return
        flight.plan, flight.start_ns = plan, now
        steps, price = self.steps, self._price
        num_steps = flight.planned = plan.num_steps
        pos = steps.pos
        last = pos + num_steps
        if last > steps.size:
            steps.reserve(num_steps)
            pos, last = 0, num_steps
        if num_steps == 1:
            prefills = plan.prefills
            if price.step_ns is None or self.step_parts.loads:
                end = self.step_parts.end_of_step(self, plan, now)
            else:   # nothing holds it up
                for seq, _n in prefills:
                    if seq.start_ns < 0:
                        seq.start_ns = now
                end = now + price.step_ns(plan)
            if prefills and self.events.prefill is not None:
                self.events.prefill(self, prefills, end)
            steps.view[pos] = end
            if self.tracks:
                flight.step_range = end - now, end - now
        else:
            flight.held_up = 0
            first = now
            if price.history is not None and now > flight.ended_ns:
                first += price.history.idle_ns
            if num_steps <= SHORT_RUN and price.write_ends is not None and not plan.prefills:
                end = price.write_ends(plan, num_steps, steps.view, pos, first)
            else:
                durations = self.hardware.run_ns(plan, num_steps)
                durations[0] += first
                _accumulate(durations, 0, None, steps.buffer[pos:last])
                end = steps.view[last - 1]
            if self.tracks:
                ends = steps.view[pos:last].tolist()
                spans = list(map(sub, ends, [now, *ends]))
                flight.step_range = min(spans), max(spans)
        flight.end_ns = end
        heappush(env._queue, (end, self._end_priority, 0, self._end_call))  # type: ignore[misc]
        if self.tracks:
            for track, position in self.tracks:
                track.moved(position, self)

    def cut(self) -> None:
        """End the run in flight at the next step boundary (which may be now)."""
        if self.step_parts.pace is not None:
            self.step_parts.pace.cut(self)
            return
        steps = self.steps
        pos, flight = steps.pos, self._flight
        boundary = bisect_left(steps.view, self.env._now, pos, pos + flight.planned)
        if boundary - pos + 1 < flight.planned:
            flight.planned = boundary - pos + 1
            end = flight.end_ns = steps.view[boundary]
            heappush(self.env._queue, (end, self._end_priority, 0, self._end_call))  # type: ignore[misc]

    def _on_end(self, call: Call) -> None:
        now, flight = self.env._now, self._flight
        if now != flight.end_ns:
            return   # the run was cut
        flight.end_ns = -1
        self._complete(now)
        if self._start is None:
            queue = self.env._queue
            if not queue or queue[0][0] > now:   # no other event at this instant
                self._begin()
            else:
                self.wake()

    def _complete(self, now: int) -> None:
        """Account for the run in flight, which ends now."""
        flight, scheduler, hooked = self._flight, self.scheduler, self._hooked
        plan, count, first = flight.plan, flight.planned, self.num_steps
        assert plan is not None
        if hooked and self.scrapes is not None:
            self.scrapes.ending(now)
        flight.plan = None
        flight.ended_ns = now
        self.num_steps = first + count
        if flight.futile and plan.sampled:
            flight.futile = 0
        if self._asynchronous:
            self._unseen.seen_ns = self.steps.view[self.steps.pos + count - 2] if count > 1 else flight.start_ns
        self.steps.pos += count
        if not plan.decodes and self.pauses is not None:
            self.pauses.append(first)
        if hooked:
            given_up = staying = self._given_up.in_step
            if given_up:
                self._given_up.in_step = []
                staying = self._leave(given_up, IN_STEP, [])
            if self.cache_log is not None:
                self.cache_log.completing = plan
        finished = scheduler.complete(plan, count, first + count - 1, now)
        if hooked and self.cache_log is not None:
            self.cache_log.completing = None
        self._record(plan, first, count, now)
        if hooked:
            for sender in self.step_parts.sends:
                sender.sent(self, plan, count)
            if staying:
                self._given_up.in_step += self._leave(staying, RESULTS, finished)
            if self.scrapes is not None:
                self.scrapes.settled()
        events = self.events
        first_token = events.first_token
        if first_token is not None:
            for seq, _n in plan.prefills:
                going_on = (seq in scheduler.running and seq not in finished) or seq.branches is not None
                if going_on and seq.first_token_ns == now and not seq.transferred and not seq.done:
                    first_token(self, seq)
        for seq in finished:
            if self.parts:
                for part in self.parts:
                    part.done(self, seq)
            events.ended(self, seq)
        if self.tracks:
            for track, position in self.tracks:
                track.moved(position, self)
        if finished and events.room is not None:
            events.room(self)
        if hooked:
            if given_up and not finished and events.room is not None:
                events.room(self)
            if self.step_parts.planner is not None:
                self.step_parts.planner.completed(self)
            if self.scrapes is not None:
                self.scrapes.ended(now)
            self._hooked = self._has_hooks()

    def _record(self, plan: Plan, first: int, count: int, now: int) -> None:
        """Record that `count` steps of `plan` have run, from step number `first` on."""
        scheduler, flight, log = self.scheduler, self._flight, self._runs
        pool, waiting, pos = scheduler.pool, self.stack.at_host, log.pos
        waits, moved, stopped_ns = self._waits, self._moved, 0
        stopped = waits.reason
        if stopped:
            stopped_ns = now - waits.since_ns
            if stopped_ns <= 0:
                stopped = stopped_ns = 0
        sampled, decodes = plan.sampled - plan.again, plan.decode_seqs
        self.emitted += sampled * count
        if scheduler.waiting or scheduler.holding or self._asynchronous:   # in most runs nobody waits
            waiting += len(scheduler.waiting) + len(scheduler.holding) + len(self._unseen.late)
        if not self._lean or plan.preempted or plan.embed_tokens:
            log.write(
                log.buffer, pos, self.index, flight.start_ns, now, first, count, decodes, plan.decode_ctx,
                plan.decode_ctx_max, sampled, decodes + plan.prefill_seqs, waiting, pool.num_blocks - pool.free_blocks,
                stopped, stopped_ns, plan.prefill_seqs, plan.prefill_tokens, plan.prefill_past, plan.prefill_attn,
                len(plan.preempted), plan.embed_tokens, plan.embedded, flight.held_up, plan.lora_tokens,
                plan.lora_adapters,
            )
        elif plan.prefill_seqs:
            log.write_longer_head(
                log.buffer, pos, self.index, flight.start_ns, now, first, count, decodes, plan.decode_ctx,
                plan.decode_ctx_max, sampled, decodes + plan.prefill_seqs, waiting, pool.num_blocks - pool.free_blocks,
                stopped, stopped_ns, plan.prefill_seqs, plan.prefill_tokens, plan.prefill_past, plan.prefill_attn,
            )
        else:
            log.write_head(
                log.buffer, pos, self.index, flight.start_ns, now, first, count, decodes, plan.decode_ctx,
                plan.decode_ctx_max, sampled, decodes, waiting, pool.num_blocks - pool.free_blocks, stopped, stopped_ns,
            )
        if moved.now:
            moved.in_runs.append((len(log), moved.now))
            moved.now = 0
        log.pos = pos = pos + log.size
        if pos == log.limit:
            log.flush()

    def settle(self) -> None:
        """End the simulation now: keep the steps of the run in flight that have ended."""
        plan, count = self._flight.plan, self.steps_done()
        if plan is not None and count:
            self.scheduler.take_blocks(plan, count)
            end = self.steps.view[self.steps.pos + count - 1]
            self.steps.pos += count
            self.num_steps += count
            if not plan.decodes and self.pauses is not None:
                self.pauses.append(self.num_steps - count)
            self._record(plan, self.num_steps - count, count, end)
            self._flight.plan = None
