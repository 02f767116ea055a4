"""Readings of an LLM client: loads for routers, views for pipelines, and its figures for the record.

Nothing here changes a client, except that reading its KV memory counts the blocks of steps that have started.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hermes.arrays import FloatArray, IntArray
from hermes.clients.block_time import block_ns_of_client
from hermes.clients.llm_state import ANY_LENGTH, Flight, Limits, MovedBlocks, StepParts, Unseen, Waits
from hermes.compiled import check_overrides, mypyc_attr
from hermes.core.client import ClientView, LoadLine
from hermes.core.clock import Clock
from hermes.core.columns import StepLog
from hermes.core.generation import Generation, token_delay_ns
from hermes.core.record import MachineInfo, SharingInfo
from hermes.core.scraped import EngineLimits, EngineState, ForwardPass
from hermes.core.stage import Stage
from hermes.hardware.base import HardwareModel, StepStats
from hermes.schedulers.base import LLMScheduler

if TYPE_CHECKING:
    from hermes.clients.cache_events import ClientCacheLog
    from hermes.clients.kv_tier import Tier
    from hermes.clients.scrapes import Scrapes
    from hermes.core.engine_readings import Adapters
    from hermes.schedulers.host_offload import HostOffload

__all__ = ["LLMReadings"]


@mypyc_attr(allow_interpreted_subclasses=True)
class LLMReadings:
    """Base of `LLMClient`, which sets these fields."""

    __slots__ = ()

    env: Clock
    index: int
    name: str
    model: str
    scheduler: LLMScheduler
    hardware: HardwareModel
    steps: StepLog
    pauses: list[int] | None
    num_steps: int
    returns_together: bool   # all answers of a batch
    input_tokens: int
    output_tokens: int
    num_assigned: int
    emitted: int
    tiers: Iterable[Tier]   # stores of KV outside its devices
    scrapes: Scrapes | None
    cache_log: ClientCacheLog | None
    out_of_range_tasks = 0
    _flight: Flight
    limits: Limits
    step_parts: StepParts
    _moved: MovedBlocks
    _unseen: Unseen
    _waits: Waits

    def __init_subclass__(cls) -> None:
        check_overrides(cls)

    def _catch_up(self) -> int:
        """Take the blocks of all steps that have started (a run takes them when it ends); return the free blocks."""
        if self._flight.plan is not None:
            self.scheduler.take_blocks(self._flight.plan, self._steps_started())
        return self.scheduler.pool.free_blocks

    def catch_up_cache(self) -> None:
        """Take the blocks of all steps that have started, unless that cannot change what its prefix cache holds."""
        plan = self._flight.plan
        if plan is not None and self.scheduler.may_change_cache(plan, self._flight.planned):
            self.scheduler.take_blocks(plan, self._steps_started())

    def decode_clock(self) -> int:
        """Return the number of decode steps of the scheduler's group so far."""
        return self.scheduler.group.clock

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, including those that no plan has seen yet."""
        return self.scheduler.num_waiting + len(self._unseen.late)

    @property
    def takes_over_kv(self) -> bool:
        """Whether its scheduler can continue a generation that another client began."""
        return self.scheduler.takes_over_kv

    @property
    def max_model_len(self) -> int:
        """Return the limit of prompt plus output tokens, `ANY_LENGTH` without one."""
        return self.limits.max_model_len

    def steps_done(self) -> int:
        """Return the steps of the run in flight that have ended."""
        flight, steps = self._flight, self.steps
        if flight.plan is None:
            return 0
        return bisect_right(steps.view, self.env._now, steps.pos, steps.pos + flight.planned) - steps.pos

    def _steps_started(self) -> int:
        """Return the steps of the run in flight that have started. At a step's end the next one has not."""
        steps, planned = self.steps, self._flight.planned
        if planned == 1:
            return 1
        return bisect_left(steps.view, self.env._now, steps.pos, steps.pos + planned - 1) - steps.pos + 1

    def seek_answers(self) -> None:
        """See `hermes.core.client.Streaming`."""
        self.scheduler.group.sought = True

    def sent_tokens(self, stage: Generation) -> tuple[int, int]:
        """See `hermes.core.client.Streaming`. Answers of a batch that returns together come with its end."""
        if stage.first_step < 0 or self.returns_together:
            return 0, -1
        done, now, plan, pauses = self.steps_done(), self.env._now, self._flight.plan, self.pauses or []
        clock = self.scheduler.group.clock + (done if plan is not None and plan.decodes else 0)
        sent = self.num_steps + done
        while sent and self._sent_ns(sent - 1) > now:   # the front end has its tokens still
            sent -= 1
        segments = [*(stage.segments or ())]
        if stage.emit_step >= 0:
            segments.append((stage.emit_step, stage.join_tick, clock))
        count, last = 0, -1
        for emit, start, stop in segments:
            if 0 <= emit < sent:
                count, last = count + 1, emit
            stop = min(stop, sent - bisect_left(pauses, sent))
            step = stop - 1 + bisect_right(range(len(pauses)), stop - 1, key=lambda i: pauses[i] - i)
            if stop > start:
                count, last = count + stop - start, step
        return min(count, stage.target_tokens - stage.given), self._sent_ns(last) if count else -1

    def _sent_ns(self, step: int) -> int:
        """Return when users have the tokens of a step."""
        return self.steps.before(self.num_steps - step) + token_delay_ns(self, step)  # type: ignore[arg-type]

    @property
    def stalls(self) -> list[tuple[int, int, int]]:
        """Return reason, start and end of the waits outside steps."""
        return self._waits.stalls

    @property
    def moved_in_run(self) -> list[tuple[int, int]]:
        """Return (row of the table of runs, blocks x ns) of blocks taken or freed from outside during a run."""
        return self._moved.in_runs

    @property
    def peak_blocks(self) -> int:
        """Return the most blocks in use before some were freed from outside."""
        return self._moved.peak

    # -- what an engine publishes ----------------------------------------------------------------------------------

    def engine_state(self) -> EngineState:
        """Return its last step and its queue as of now. `watch_passes` was called before."""
        prefill = decode = 0
        scheduler, scrapes = self.scheduler, self.scrapes
        assert scrapes is not None
        if self.num_waiting:
            for seq in (*scheduler.waiting, *scheduler.holding, *(seq for _, seq in self._unseen.late)):
                if seq.num_blocks or seq.num_tokens > seq.prompt_tokens:
                    decode += seq.num_tokens
                else:
                    prefill += seq.prompt_tokens
        if not scheduler.running:
            return EngineState(ForwardPass(), prefill, decode)
        ended = self.steps_done()
        return EngineState(scrapes.pass_in_flight(ended) if ended else scrapes.last_pass, prefill, decode)

    def engine_limits(self) -> EngineLimits:
        """Return its limits."""
        scheduler, longest = self.scheduler, self.limits.max_model_len
        pool = scheduler.pool
        return EngineLimits(pool.num_blocks * pool.block_size, None if longest >= ANY_LENGTH else longest,
                            scheduler.max_num_batched_tokens, scheduler.max_num_seqs)

    # -- the record ------------------------------------------------------------------------------------------------

    def out_of_range_steps(self, runs: dict[str, IntArray]) -> int:
        """Return the number of steps outside the range that its hardware was measured on."""
        return int(self.hardware.out_of_range(runs, runs["num_steps"]).sum())

    def step_growth(self, runs: dict[str, IntArray]) -> FloatArray:
        """Return how its step times grow with their work; see `hermes.clients.step_growth.step_growth`."""
        budget = self.scheduler.max_num_batched_tokens
        full = (runs["prefill_tokens"] + runs["decode_seqs"] >= budget) & (runs["preempted"] == 0)
        from hermes.clients.step_growth import step_growth  # once, after the run

        return step_growth(self.hardware, runs | {"at_budget": full.astype("int64")})

    def block_ns(
        self, runs: dict[str, IntArray], stages: dict[str, IntArray], rows: IntArray,
        gaps: dict[int, list[tuple[int, int, int]]], decode: int, ticks: IntArray | None,
    ) -> IntArray:
        """Return KV blocks in use times ns of each run; see `hermes.clients.block_time.block_ns_of_client`."""
        return block_ns_of_client(self, runs, stages, rows, gaps, decode, ticks)

    def sharing_info(self) -> SharingInfo | None:
        """Return what its sequences shared of their memory, or None."""
        pool = self.scheduler.pool
        if not pool.peak_shared_blocks:
            return None
        return SharingInfo(self.index, pool.peak_shared_blocks, pool.used_at_peak, pool.copied_blocks)

    def machine_info(self) -> MachineInfo | None:
        """Return None: it does not share its devices."""
        return None

    # -- load, as of now -------------------------------------------------------------------------------------------

    def view(self) -> ClientView:
        """Return the state that a pipeline sees (`request.view`). Steps in flight have taken their blocks."""
        self._catch_up()
        scheduler, pool, limits = self.scheduler, self.scheduler.pool, self.limits
        late = [seq for _, seq in self._unseen.late]
        asked = sum(max(0, pool.blocks_for(seq.num_tokens) - seq.num_blocks)
                    for group in (scheduler.partial, scheduler.holding, scheduler.waiting, late) for seq in group)
        size = pool.block_size
        return ClientView(
            self.name, self.model, pool.num_blocks * size, pool.free_blocks * size, (pool.free_blocks - asked) * size,
            size, len(scheduler.running), scheduler.num_waiting + len(late), scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens, limits.unreserved_kv_tokens,
            limits.max_model_len if limits.max_model_len < ANY_LENGTH else None,
        )

    def cached_tokens(self, stage: Stage) -> int:
        """Return the tokens of a prompt in its memory; see `hermes.core.engine_readings`."""
        if not isinstance(stage, Generation):   # it embeds with an adapter: its blocks are its own
            return 0
        self.catch_up_cache()
        return self.scheduler.pool.held_tokens(stage)

    def host_tokens(self, stage: Stage, past: int) -> int:
        """Return the tokens of a prompt in host memory after the first `past`; see `hermes.core.engine_readings`."""
        offload = self._host_offload()
        return offload.held_tokens(stage, past) if offload is not None and isinstance(stage, Generation) else 0

    def caches_in_host(self) -> bool:
        """Return whether it keeps KV in host memory too."""
        return self._host_offload() is not None

    def _host_offload(self) -> HostOffload | None:
        from hermes.schedulers.host_offload import HostOffload  # few routers ask
        from hermes.schedulers.parts import WithParts, part_of

        scheduler = self.scheduler
        return part_of(scheduler, HostOffload) if isinstance(scheduler, WithParts) else None

    def step_estimate_ns(self, prompt_tokens: int, past_tokens: int, decode_seqs: int, decode_tokens: int) -> int:
        """Return how long a step takes; see `hermes.core.engine_readings`."""
        attended = prompt_tokens * past_tokens + prompt_tokens * (prompt_tokens + 1) // 2
        longest = -(-decode_tokens // decode_seqs) if decode_seqs else 0
        return self.hardware.step_ns(StepStats(
            int(prompt_tokens > 0), prompt_tokens, past_tokens, attended, decode_seqs, decode_tokens, longest,
            decode_seqs + (prompt_tokens > 0), prefill_max=prompt_tokens))

    def adapters(self) -> Adapters:
        """Return its LoRA adapters; see `hermes.core.engine_readings`."""
        from hermes.core.engine_readings import Adapters  # few routers ask
        from hermes.schedulers.adapters import AdapterSlots, adapter_of
        from hermes.schedulers.parts import WithParts, part_of

        scheduler = self.scheduler
        slots = part_of(scheduler, AdapterSlots) if isinstance(scheduler, WithParts) else None
        waiting = [*scheduler.holding, *scheduler.waiting, *(seq for _, seq in self._unseen.late)]
        running, queued = ({n for seq in seqs if (n := adapter_of(seq))} for seqs in (scheduler.running, waiting))
        return Adapters(running, queued, None if slots is None else slots.max_loras)

    def load(self, kind: str) -> int:
        """Return one of the loads `hermes.clients.base.LOADS`:

        - `input_tokens`, `output_tokens`: of the requests assigned and not done
        - `requests`: number of these requests
        - `kv_tokens`: tokens in KV memory, those of started steps included
        - `tokens_left`: output tokens not emitted yet
        """
        if kind == "tokens_left":   # the load that routers read most
            left, flight = self.output_tokens - self.emitted, self._flight
            plan = flight.plan
            if plan is None or not plan.sampled:
                return left
            log, pos = self.steps, self.steps.pos   # `steps_done`, inlined
            ended = bisect_right(log.view, self.env._now, pos, pos + flight.planned) - pos
            return left - (plan.sampled - plan.again) * ended
        if kind == "input_tokens":
            return self.input_tokens
        if kind == "output_tokens":
            return self.output_tokens
        if kind == "requests":
            return self.num_assigned
        base, per_step, _start, _unit, steps = self.load_line(kind)
        return base + per_step * self._steps_started() if steps else base

    def load_line(self, kind: str) -> LoadLine:
        """Return how a load changes with steps (see `LoadLine`)."""
        flight = self._flight
        plan = flight.plan
        if kind == "kv_tokens":
            base = self.scheduler.tokens_cached()
            if plan is None or not plan.decodes:
                return LoadLine(base)
            return LoadLine(base, self.scheduler.num_decoding, flight.start_ns, flight.step_range[1], flight.planned)
        if kind == "requests":
            return LoadLine(self.num_assigned)
        base = self.output_tokens - self.emitted
        if plan is None:
            return LoadLine(base)
        return LoadLine(base, plan.again - plan.sampled, flight.start_ns, flight.step_range[0], flight.planned)
