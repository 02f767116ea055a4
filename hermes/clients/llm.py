"""The LLM client: a scheduler and its KV memory over a hardware model, on the clock.

A client works in runs of steps. It gets a plan from its scheduler, gets the plan's duration with one call to its
hardware model, and sleeps until the run ends. An event that may change the batch cuts the run at the next step
boundary.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hermes.clients.llm_readings import ANY_LENGTH, LLMReadings
from hermes.clients.parts import ClientPart
from hermes.compiled import mypyc_attr
from hermes.core.client import ClientEvents, Track
from hermes.core.clock import ARRIVAL, START, STEP_END, Clock, Tick
from hermes.core.columns import RowLog, StepLog
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.hardware.base import HardwareModel, WriteEnds
from hermes.hardware.config import history_of, write_ends_of
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.plan import Plan

if TYPE_CHECKING:
    from hermes.clients.drafting import Drafter
    from hermes.hardware.history import StepHistory

__all__ = ["HostThread", "LLMClient"]

_accumulate = np.add.accumulate
ANY_TIME = 1 << 62
FUTILE = 2       # sequences that preempt themselves alone this often in a row will make no progress
SHORT_RUN = 12   # up to this many steps a hardware model may price one by one: faster than numpy
FRONT_END, KV_MEMORY = int(Reason.FRONT_END), int(Reason.KV_MEMORY)
MAX_RUN = 256    # longest run priced at once; a longer one continues in the next


class HostThread:
    """The serving stack's thread, which handles one request after the other, for all clients of one engine."""

    __slots__ = ("free_ns",)

    def __init__(self) -> None:
        self.free_ns = 0   # when it is free again


@mypyc_attr(allow_interpreted_subclasses=True)
class LLMClient(LLMReadings):
    """See the module's docstring and `hermes.clients.base.Client`.

    Args:
        role: "both", "prefill" (gives the first token, then hands the KV over) or "decode" (takes KV over).
        overhead_ns: Time of the serving stack per request, by kind of stage (`hermes.clients.overhead`).
        overlapped: Whether that time overlaps with the steps.
        drafter: Prices steps in place of the hardware model (speculative decoding).
        parts: What the deployment adds to requests' way in and out (`hermes.clients.parts`).
        frontend_ns: Front-end time before the engine, before it per prompt token, and after it
            (`hermes.clients.frontend`).
    """

    __slots__ = (
        "_aborts", "_ahead", "_at_host", "_before_ns", "_drafter", "_end", "_end_priority", "_ended", "_ended_ns",
        "_fits", "_futile", "_gone", "_held_up", "_history", "_late", "_max_run", "_moved",
        "_overhead_ns", "_overlapped", "_plan", "_planned", "_runs", "_seen_ns", "_stalled_ns", "_start", "_start_ns",
        "_step_range", "_stopped", "_stopped_ns", "_token_ns", "_write_ends", "after_ns", "emitted", "env", "events",
        "hardware", "host", "index", "input_tokens", "kv_bytes_per_token", "max_model_len", "model", "moved_in_run",
        "name", "num_assigned", "num_layers", "num_steps", "output_tokens", "parts", "peak_blocks", "platform", "role",
        "scheduler", "stages", "stalls", "steps", "ticks", "tiers", "tracks", "unreserved_kv_tokens",
    )

    def __init__(
        self, env: Clock, index: int, name: str, scheduler: LLMScheduler, hardware: HardwareModel, runs: RowLog,
        events: ClientEvents, *, model: str = "", role: str = "both", platform: str = "", every_step: bool = False,
        overhead_ns: dict[str, int] | None = None, overlapped: bool = False,
        frontend_ns: tuple[int, float, int] = (0, 0.0, 0), drafter: Drafter | None = None,
        parts: tuple[ClientPart, ...] = (),
    ) -> None:
        self.env, self.index, self.name = env, index, name
        self.scheduler, self.hardware = scheduler, hardware
        self._write_ends: WriteEnds | None = write_ends_of(hardware)
        self.model, self.role, self.platform = model, role, platform
        generations = {"both": ("generate", "prefill", "decode"), "prefill": ("generate", "prefill"),
                       "decode": ("decode",)}[role]
        served = scheduler.stages
        self.stages = served.difference(("generate",)) if role != "decode" else frozenset()
        if "generate" in served:
            self.stages |= frozenset(generations)
        self.events = events
        self.steps = StepLog()
        self.ticks: list[int] | None = None if scheduler.ticks_every_step else []
        self.num_steps = 0                # steps completed
        self.tiers = ()
        self.tracks: list[tuple[Track, int]] = []   # (keeper of load bounds, this client's position in its list)
        self.input_tokens = self.output_tokens = self.num_assigned = 0
        self.emitted = 0                  # tokens emitted by sequences that are not finished
        self.kv_bytes_per_token = 0.0     # whole client, all layers; the client's configuration sets it for transfers
        self.unreserved_kv_tokens: int | None = None   # likewise, for views
        self.num_layers = 1
        self.max_model_len = ANY_LENGTH   # limit of prompt plus output tokens; set by its configuration
        self._runs = runs
        self._max_run = 1 if every_step else MAX_RUN
        self._plan: Plan | None = None
        self._fits = (0, 0)               # a prompt and an output known to fit; smaller ones fit too
        self._planned = 0                 # steps of the run in flight
        # Asynchronous scheduling: (arrival, sequence) pairs that no plan has seen yet, and the start of the step in
        # flight or of the one just ended: the next plan sees arrivals up to then. ANY_TIME if no step is in flight.
        self._ahead = scheduler.asynchronous
        self._late: list[tuple[int, Generation]] = []
        self._seen_ns = ANY_TIME
        self._start_ns = 0
        self._step_range = (1, 1)         # shortest and longest step of the run in flight
        self._end: Tick | None = None
        self._ended = self._on_end        # bound once
        self._end_priority = STEP_END + index
        self._start: Tick | None = None
        self._overhead_ns = overhead_ns or None
        self._overlapped = overlapped and self._overhead_ns is not None
        self._before_ns, self._token_ns, self.after_ns = frontend_ns
        self._drafter = drafter
        self.parts = parts
        self._history: StepHistory | None = history_of(hardware)
        self._ended_ns = -1               # end of the latest run
        self._held_up = 0                 # of the run in flight: time in which the serving stack delays it
        # Of the run in flight: the `Reason` for which sequences wait (0: none does), and since when.
        self._stopped = self._stopped_ns = 0
        self._stalled_ns = -1             # since when no step runs although sequences wait
        self.stalls: list[tuple[int, int, int]] = []   # `Reason`, start and end of waits outside steps
        # Blocks taken or freed from outside during a run: correction to the run's final blocks times its length (row of
        # the table of runs, blocks x ns), and the most blocks in use before some were freed.
        self._moved = 0
        self.moved_in_run: list[tuple[int, int]] = []
        self.peak_blocks = 0
        self.host = HostThread()          # overlapped: the thread of the serving stack
        self._at_host = 0                 # requests waiting for it
        self._aborts: list[Generation] = []    # sequences given up while the step in flight runs
        self._gone: set[Generation] = set()    # those given up before the engine had them
        self._futile = 0                  # times in a row that a sequence running alone has preempted itself

    # -- arrivals ------------------------------------------------------------------------------------------------

    def refusal(self, stage: Generation) -> str | None:
        prompt, output = self._fits
        if stage.prompt_tokens <= prompt and stage.target_tokens <= output and stage.branches is None:
            return self._refused_by_part(stage) if self.parts else None
        if stage.prompt_tokens + stage.target_tokens > self.max_model_len:   # as `vllm serve` does
            return (f"{stage.prompt_tokens} prompt and {stage.target_tokens} output tokens are more than its "
                    f"max_model_len of {self.max_model_len}")
        reason = self.scheduler.can_ever_fit(stage)
        if reason is None and stage.prompt_tokens >= prompt and stage.target_tokens >= output:
            self._fits = stage.prompt_tokens, stage.target_tokens
        return self._refused_by_part(stage) if reason is None and self.parts else reason

    def _refused_by_part(self, stage: Generation) -> str | None:
        for part in self.parts:
            reason: str | None = part.refusal(self, stage)
            if reason is not None:
                return reason
        return None

    def submit(self, stage: Generation) -> None:
        """Take a sequence (with its KV, if `stage.transferred`)."""
        if self.parts:
            for part in self.parts:
                part.submitted(self, stage)
        if (self._before_ns or self._token_ns) and not stage.transferred:
            ready = self.env._now + self._before_ns + round(self._token_ns * stage.prompt_tokens)
            self.env.tick_at(ready, ARRIVAL, lambda tick: self._accept(stage))
        else:
            self._accept(stage)

    def _accept(self, stage: Generation, first: int = 0) -> None:
        """Take a sequence into the engine, once the parts from number `first` on let it through."""
        if self._gone and stage in self._gone:
            self._gone.remove(stage)
            return
        if self.parts:
            for number in range(first, len(self.parts)):
                if self.parts[number].keeps(self, stage, partial(self._accept, stage, number + 1)):
                    return
        if stage.max_new_tokens:   # otherwise it ends with the tokens that it asked for, as a prefill alone does
            left = self.max_model_len - stage.prompt_tokens
            if left < stage.max_new_tokens:
                stage.max_new_tokens = left
            stage.stops_early = (
                stage.target_tokens < stage.max_new_tokens and not stage.hands_over and self.role != "prefill")
        if self._overlapped and not stage.transferred:
            self._to_host(stage)
        else:
            self._take(stage)

    def _to_host(self, stage: Generation) -> None:
        """Process a request in the serving stack's thread before the scheduler sees it."""
        def done(tick: Tick) -> None:
            self._at_host -= 1
            self._take(stage)

        assert self._overhead_ns is not None
        now, stalls = self.env._now, self.stalls
        host = self.host
        if host.free_ns > now:   # behind another request
            if stalls and stalls[-1][0] == FRONT_END and stalls[-1][2] >= now:
                now = stalls.pop()[1]
            stalls.append((FRONT_END, now, host.free_ns))
        host.free_ns = max(host.free_ns, self.env._now) + self._overhead_ns.get(stage.kind, 0)
        self._at_host += 1
        self.env.tick_at(host.free_ns, ARRIVAL, done)

    def _take(self, stage: Generation) -> None:
        scheduler = self.scheduler
        if self._ahead:
            self._late.append((self.env._now, stage))
        else:
            if stage.branches is not None:
                free = self._catch_up()   # branches whose KV has come take blocks
                scheduler.enqueue(stage)
                self._note_moved(free)
            else:
                scheduler.enqueue(stage)
        if self._plan is None:
            self.wake()
        elif self._planned > 1:
            if scheduler.wants_cut(stage):
                self.cut()
            elif not self._stopped:
                self._stop_from_next_step()

    def _stop_from_next_step(self) -> None:
        """Note that a sequence which has just arrived waits for the end of the run in flight."""
        view, pos = self.steps.view, self.steps.pos
        boundary = bisect_left(view, self.env._now, pos, pos + self._planned) + self._ahead   # its plan knows of it
        if boundary < pos + self._planned - 1:
            self._stopped, self._stopped_ns = self.scheduler.stop_of_arrival(), view[boundary]

    def _note_stop(self, plan: Plan | None) -> None:
        """Note why sequences wait beside a plan that starts now, and the wait that it ends."""
        now, scheduler = self.env._now, self.scheduler
        waits, stopped = scheduler.num_waiting, scheduler.stopped
        if self._stalled_ns >= 0:
            if now > self._stalled_ns:
                self.stalls.append((self._stopped, self._stalled_ns, now))
            self._stalled_ns = -1
        if stopped < 0 and waits:
            stopped = KV_MEMORY if plan is None else scheduler.limit_of(plan)
        self._stopped, self._stopped_ns = stopped if waits else 0, now
        if plan is None and waits:
            self._stalled_ns = now

    def reserve(self, stage: Generation) -> bool:
        """Take memory for KV that is about to arrive; return False if there is not enough."""
        free = self._catch_up()
        taken = self.scheduler.reserve(stage)
        self._note_moved(free)
        if taken and self._plan is not None and self._planned > 1:
            self.cut()   # the rest of the run may lack its blocks now
        return taken

    def _note_moved(self, free_before: int) -> None:
        """Account for blocks taken or freed from outside, possibly in the middle of a run."""
        pool, group, plan = self.scheduler.pool, self.scheduler.group, self._plan
        ended = 0 if plan is None or self._planned == 1 else self.steps_done()
        if plan is None or not ended or pool.free_blocks == free_before:
            return
        since = self.steps.view[self.steps.pos + ended - 1] - self._start_ns
        self._moved += (free_before - pool.free_blocks) * since
        used = pool.num_blocks - free_before
        if plan.decodes and group.grows:   # at the end of the latest step; the one in flight has taken its blocks
            used -= group.blocks_for(self._steps_started()) - group.blocks_for(ended)
        self.peak_blocks = max(self.peak_blocks, used)

    def forget(self, stage: Generation) -> None:
        """Return the blocks of a sequence that this step has completed to the pool."""
        self.scheduler.release(stage)

    def release(self, stage: Generation) -> None:
        """Free KV that was kept for a transfer: waiting sequences may be admitted."""
        free = self._catch_up()
        self.scheduler.release(stage)
        self._note_moved(free)
        self.memory_freed()

    def memory_freed(self) -> None:
        """Handle blocks that were freed from outside the steps."""
        if self.scheduler.num_waiting:
            if self._plan is None:
                self.wake()
            elif self._planned > 1:
                self.cut()
        if self.events.room is not None:
            self.events.room(self)

    def abort(self, stage: Generation) -> None:
        """Cancel a sequence whose client has given up, as the engine's abort does.

        It leaves when the step in flight has ended, and its blocks are free then, before those of the sequences that
        end in this step. With asynchronous scheduling the next step is planned by then, and computes it once more.
        """
        seen_ns = self._seen_ns if self._plan is None else self._start_ns   # by the next plan
        late = [item for item in self._late if item[1] is stage]
        if late and late[0][0] > seen_ns:
            self._late.remove(late[0])
            if not self._late and self._stopped_ns > self.env._now:
                self._stopped = 0   # no other sequence would have waited
            self.events.aborted(self, stage)
        elif not late and stage not in self.scheduler.running and stage not in self.scheduler.waiting:
            self._gone.add(stage)   # the front end or the host has it
            self.events.aborted(self, stage)
        elif self._plan is None and not (self._ahead and self._ended_ns == self.env._now):
            self._leave(stage)
            self.memory_freed()
        elif self._plan is None:
            self.scheduler.abort_between(stage)   # the next step, which was planned when this one began, computes it
            self.events.aborted(self, stage)
        else:
            self._aborts.append(stage)
            if self._planned > 1:
                self.cut()

    def _leave(self, stage: Generation) -> None:
        """Take a sequence that was given up out of the engine, between two steps."""
        self.scheduler.abort(stage)
        self.events.aborted(self, stage)


    def wake(self) -> None:
        """Start a step after all other events of this instant."""
        if self._start is None:
            self._start = self.env.tick_at(self.env._now, START + self.index, self._on_start)

    @property
    def idle(self) -> bool:
        """Whether no step runs or is about to start at this instant, or the running ones make no progress."""
        return ((self._plan is None and self._start is None) or self.stuck) and not self.parts_wait()

    def parts_wait(self) -> bool:
        """Whether a part keeps requests back."""
        return bool(self.parts) and any(part.waits() for part in self.parts)

    @property
    def stuck(self) -> bool:
        """Whether steps make no progress: a sequence alone preempts itself again and again."""
        return self._futile >= FUTILE

    def _gave_up_alone(self) -> None:
        """Handle a sequence that preempted itself while running alone. If that repeats (each first chunk fits, the rest
        never does, because KV that waits to move holds the memory), tell the KV transfer that this client is stuck."""
        self._futile += 1
        if self._futile >= FUTILE and self.events.room is not None:
            self.events.room(self)

    # -- runs of steps -------------------------------------------------------------------------------------------

    def _on_start(self, tick: Tick) -> None:
        self._start = None
        if self._plan is None:
            self._begin()

    def _plan_in_view(self, seen_ns: int) -> Plan | None:
        """Return the scheduler's plan for the sequences that had arrived by `seen_ns`."""
        late, scheduler = self._late, self.scheduler
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
        late = self._late
        plan = self._plan_in_view(self._seen_ns) if late else self.scheduler.plan(self._max_run)
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
            self._seen_ns = ANY_TIME
        return plan

    def _begin(self) -> None:
        plan = self._next_plan()
        self._note_stop(plan)
        if plan is None:
            return
        now = self._start_ns = self.env._now
        self._plan = plan
        steps = self.steps
        num_steps = self._planned = plan.num_steps
        pos = steps.pos
        last = pos + num_steps
        if last > steps.size:
            steps.reserve(num_steps)
            pos, last = 0, num_steps
        if num_steps == 1:
            held_up, overhead = 0, None if self._overlapped else self._overhead_ns
            for seq, _n in plan.prefills:
                if seq.start_ns < 0:
                    seq.start_ns = now
                    if overhead is not None and not seq.transferred:
                        held_up += overhead.get(seq.kind, 0)
            self._held_up = held_up
            ns = self.hardware.step_ns(plan) if self._drafter is None else self._drafter.step_ns(plan)
            history = self._history
            if history is not None:
                if plan.prefill_tokens:
                    ns = history.step_ns(plan, ns, now)
                if now > self._ended_ns:
                    ns += history.idle_ns
            end = now + held_up + ns
            if plan.prefills and self.events.prefill is not None:
                self.events.prefill(self, plan.prefills, end)
            steps.view[pos] = end
            if self.tracks:
                self._step_range = end - now, end - now
        else:
            self._held_up = 0
            first = now
            if self._history is not None and now > self._ended_ns:
                first += self._history.idle_ns
            if num_steps <= SHORT_RUN and self._write_ends is not None and not plan.prefills:
                end = self._write_ends(plan, num_steps, steps.view, pos, first)
            else:
                durations = self.hardware.run_ns(plan, num_steps)
                durations[0] += first
                _accumulate(durations, 0, None, steps.buffer[pos:last])
                end = steps.view[last - 1]
            if self.tracks:
                ends = steps.view[pos:last].tolist()
                spans = [b - a for a, b in pairwise([now, *ends])]
                self._step_range = min(spans), max(spans)
        self._end = self.env.tick_at(end, self._end_priority, self._ended)
        if self.tracks:
            for track, position in self.tracks:
                track.moved(position, self)
    def cut(self) -> None:
        """End the run in flight at the next step boundary (which may be now)."""
        steps = self.steps
        pos = steps.pos
        boundary = bisect_left(steps.view, self.env._now, pos, pos + self._planned)
        if boundary - pos + 1 < self._planned:
            self._planned = boundary - pos + 1
            self._end = self.env.tick_at(steps.view[boundary], self._end_priority, self._ended)

    def _on_end(self, tick: Tick) -> None:
        if tick is not self._end:
            return   # the run was cut
        self._end = None
        now = self.env._now
        self._complete(now)
        if self._start is None:
            queue = self.env._queue
            if not queue or queue[0][0] > now:   # no other event at this instant
                self._begin()
            else:
                self.wake()

    def _complete(self, now: int) -> None:
        """Account for the run in flight, which ends now."""
        plan, count = self._plan, self._planned
        assert plan is not None
        self._plan = None
        self._ended_ns = now
        scheduler = self.scheduler
        first = self.num_steps
        self.num_steps = first + count
        if self._futile and plan.sampled:
            self._futile = 0
        if self._ahead:
            self._seen_ns = self.steps.view[self.steps.pos + count - 2] if count > 1 else self._start_ns
        self.steps.pos += count
        if self.ticks is not None and plan.decodes:
            self.ticks.extend(range(first, first + count))
        given_up, self._aborts = self._aborts, []
        if given_up and scheduler.aborts_first:
            for seq in given_up:
                scheduler.abort_in_step(seq, [])
                self.events.aborted(self, seq)
        finished = scheduler.complete(plan, count, first + count - 1, now)
        self._record(plan, first, count, now)
        if given_up and not scheduler.aborts_first:
            for seq in given_up:
                scheduler.abort_in_step(seq, finished)
                self.events.aborted(self, seq)
        first_token = self.events.first_token
        if first_token is not None:
            for seq, _n in plan.prefills:
                going_on = (seq in scheduler.running and seq not in finished) or seq.branches is not None
                if going_on and seq.first_token_ns == now and not seq.transferred:
                    first_token(self, seq)
        for seq in finished:
            if self.parts:
                for part in self.parts:
                    part.done(self, seq)
            self.events.ended(self, seq)
        if self.tracks:
            for track, position in self.tracks:
                track.moved(position, self)
        if finished and self.events.room is not None:
            self.events.room(self)

    def _record(self, plan: Plan, first: int, count: int, now: int) -> None:
        """Record that `count` steps of `plan` have run, from step number `first` on."""
        scheduler = self.scheduler
        stopped = self._stopped if self._stopped_ns < now else 0
        sampled = plan.sampled - plan.again
        self.emitted += sampled * count
        pool, log, waiting = scheduler.pool, self._runs, self._at_host
        if scheduler.waiting or scheduler.holding or self._late:   # most runs have nobody waiting: no calls then
            waiting += len(scheduler.waiting) + len(scheduler.holding) + len(self._late)
        log.write(
            log.buffer, log.pos, self.index, self._start_ns, now, first, count, plan.prefill_seqs, plan.prefill_tokens,
            plan.prefill_past, plan.prefill_attn, plan.decode_seqs, plan.decode_ctx, plan.decode_ctx_max, sampled,
            plan.decode_seqs + plan.prefill_seqs,
            waiting, pool.num_blocks - pool.free_blocks, len(plan.preempted) if plan.preempted else 0,
            plan.embed_tokens, plan.embedded, self._held_up, stopped, now - self._stopped_ns if stopped else 0,
            plan.lora_tokens, plan.lora_adapters,
        )
        if self._moved:
            self.moved_in_run.append((len(log), self._moved))
            self._moved = 0
        log.pos += log.size
        if log.pos == log.limit:
            log.flush()

    def settle(self) -> None:
        """End the simulation now: keep the steps of the run in flight that have ended."""
        plan, count = self._plan, self.steps_done()
        if plan is not None and count:
            self.scheduler.take_blocks(plan, count)
            end = self.steps.view[self.steps.pos + count - 1]
            self.steps.pos += count
            self.num_steps += count
            if self.ticks is not None and plan.decodes:
                self.ticks.extend(range(self.num_steps - count, self.num_steps))
            self._record(plan, self.num_steps - count, count, end)
            self._plan = None
