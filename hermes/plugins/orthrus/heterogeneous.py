"""Scheduler of mixed batches of embeddings and generations (Orthrus): one forward pass serves both.

A step holds every decode, chunks of generation prompts and chunks of embedding prompts. An embedding is a sequence that
ends with its prompt: it samples nothing, and its last hidden states are pooled on the way (mean pooling keeps a running
sum and a count, last-token pooling the last state). So a chunked embedding keeps one vector, and not the hidden states
of its earlier chunks. Its KV stays until it is done, since later chunks attend to earlier ones.

A slot policy (`hermes.plugins.orthrus.slots`) decides how many requests of each kind may start. Within a kind, requests
start in order of arrival; of the two queue heads that have a slot, the earlier arrival starts first. If a head with a
slot finds no memory, later arrivals wait behind it, so that neither kind takes the memory that the other waits for.
Only an embedding that ends in the step it starts in may pass the head, since it delays no other request. A step's token
budget goes first to the decodes, then to the one prompt in progress, then to starting requests.

There is no starvation: a request ends within 2 n s steps of its arrival.

- n: requests in the system at its arrival, itself included.
- s: the most steps that any served request takes alone, ceil(tokens / room) + outputs. tokens are those of prompt and
  outputs (all may have to be computed again); room = max_num_batched_tokens - max_num_seqs + 1.

Proof: take the earliest arrival that is not done. All requests of its kind that started before it are done, so it has a
slot. It waits at most until the running requests of the other kind have ended (s steps: later arrivals do not start
meanwhile, or end at once). Then it runs. It is not preempted, since victims are the latest arrivals, and not overtaken
in the budget, since at most one prompt is in progress (s steps again). Later arrivals change none of this. If kinds
alternate, the bound doubles. With `batches: oldest` it does not hold: see below.

Each request has notes (`NOTES`): the slots that its kind had in the step in which it started, and how many of them were
in use then, its own included.

`batches: drain`, `alternate` and `oldest` are three readings of serving both kinds from one queue without mixing them,
in order of arrival:

- `drain`: the batch of one kind drains before the other starts.
- `alternate`: all run, and steps of the two kinds alternate.
- `oldest`: each step is of the kind of the oldest waiting request, and starts the waiting requests up to the first of
  the other kind. Running generations decode in steps of their kind only, so they pause while embeddings are the oldest.
  Embeddings that arrive faster than they are served stop them for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from numbers import Integral
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from hermes.config import Named
from hermes.errors import InputError
from hermes.plugins.orthrus.slots import SLOTS, BatchState, Resource, SlotPolicy
from hermes.schedulers import SCHEDULERS, BlockPool, Generation, LLMScheduler, Plan, Reason, SchedulerConfig, run_order

__all__ = ["HeterogeneousConfig", "HeterogeneousScheduler"]

EMBED, GENERATE = 0, 1
BOTH = (EMBED, GENERATE)
NOTES = (("embed_slots", "embed_slots_used"), ("generate_slots", "generate_slots_used"))   # by kind


@SCHEDULERS.register("heterogeneous")
class HeterogeneousConfig(SchedulerConfig):
    """Scheduler that batches embeddings and generations together (Orthrus), or one kind per step for comparison."""

    kind: Literal["heterogeneous"] = "heterogeneous"
    max_num_batched_tokens: int = Field(default=2048, ge=1, le=2**31)
    """Token budget of a step."""
    max_num_seqs: int = Field(default=256, ge=1, le=2**31)
    """Most sequences running at once, embeddings included."""
    slots: Annotated[str, Named(SLOTS)] = "fcfs"
    """Slot policy, which divides the places of the batch between the kinds: `fcfs`, in order of arrival; `ibs`, in
    proportion to the queues; or a registered one."""
    batches: Literal["mixed", "drain", "alternate", "oldest"] = "mixed"
    """Kinds in a step: `mixed`, both; or one, in order of arrival: `drain` ends the batch of one kind before the other
    starts, `alternate` changes the kind from step to step, `oldest` takes the kind of the oldest waiting request, and
    running generations pause while that is an embedding."""
    serves: list[Literal["embed", "generate"]] = Field(default=["embed", "generate"], min_length=1)
    """Kinds of stage served."""
    reservation: Literal["on_demand", "up_front"] = "on_demand"
    """Reservation of KV blocks: for the prompt first and then as tokens come, or for the whole answer at once."""

    @field_validator("serves")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise InputError("every kind once", value)
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(f"at least max_num_seqs ({self.max_num_seqs}): a token for each decode",
                             self.max_num_batched_tokens, field="max_num_batched_tokens")
        if self.batches != "mixed" and self.slots != "fcfs":
            raise InputError(f"fcfs, with batches: {self.batches}", self.slots, field="slots")
        return self

    def build(self, pool: BlockPool, *, every_step: bool) -> HeterogeneousScheduler:
        return HeterogeneousScheduler(self, pool)


def kind_of(seq: Generation) -> int:
    """Return EMBED or GENERATE."""
    return GENERATE if seq.target_tokens else EMBED


class KindQueues:
    """Waiting requests, first come first served within each kind. Preempted ones return to the front of their queue."""

    def __init__(self) -> None:
        self.queues: tuple[deque[Generation], deque[Generation]] = (deque(), deque())

    def push(self, seq: Generation) -> None:
        self.queues[kind_of(seq)].append(seq)

    def push_preempted(self, seq: Generation) -> None:
        self.queues[kind_of(seq)].appendleft(seq)

    def first(self, kinds: tuple[int, ...]) -> Generation | None:
        """Return the head of these kinds that arrived first."""
        heads = [self.queues[kind][0] for kind in kinds if self.queues[kind]]
        return min(heads, key=_arrival) if heads else None

    def peek(self) -> Generation:
        seq = self.first(BOTH)
        if seq is None:
            raise IndexError("no request waits")
        return seq

    def pop(self) -> Generation:
        return self.queues[kind_of(self.peek())].popleft()

    def remove(self, seq: Generation) -> None:
        self.queues[kind_of(seq)].remove(seq)

    def __len__(self) -> int:
        return len(self.queues[EMBED]) + len(self.queues[GENERATE])

    def __iter__(self) -> Iterator[Generation]:
        return iter(sorted(chain(*self.queues), key=_arrival))


class HeterogeneousScheduler(LLMScheduler):
    """Scheduler described in the module's docstring."""

    takes_over_kv = False
    waiting: KindQueues

    def __init__(self, config: HeterogeneousConfig, pool: BlockPool) -> None:
        self.up_front = config.reservation == "up_front"
        super().__init__(
            pool, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
            grows=not self.up_front,
        )
        self.waiting = KindQueues()
        self.batches = config.batches
        # of the class for most schedulers; here by configuration
        self.stages = frozenset(config.serves)  # type: ignore[misc]
        self.ticks_every_step = config.batches not in ("alternate", "oldest")  # type: ignore[misc]  # these pause decodes
        self.policy: SlotPolicy = SLOTS.get(config.slots)()
        self.num_running = [0, 0]       # by kind
        self._in_system = [0, 0]        # by kind: number running or waiting, and blocks they need
        self._blocks_needed = [0, 0]
        self._last = GENERATE           # kind of the latest step, for `alternate`

    # -- arrivals ------------------------------------------------------------------------------------------------

    def can_ever_fit(self, seq: Generation) -> str | None:
        if seq.branches is not None:
            return "generations with branches are not served in heterogeneous batches"
        if seq.target_tokens:
            return super().can_ever_fit(seq)
        need = self.pool.blocks_for(seq.prompt_tokens)
        if need > self.pool.num_blocks:
            return (f"needs {need} KV blocks of {self.pool.block_size} tokens for {seq.prompt_tokens} tokens to embed, "
                    f"the client has {self.pool.num_blocks}")
        return None

    def enqueue(self, seq: Generation) -> None:
        kind = kind_of(seq)
        self._in_system[kind] += 1
        self._blocks_needed[kind] += self._blocks_reserved(seq)
        self.waiting.push(seq)

    def wants_cut(self, seq: Generation) -> bool:
        return len(self.running) < self.max_num_seqs

    def _tokens_reserved(self, seq: Generation) -> int:
        """Return the tokens whose blocks are taken when `seq` starts."""
        if self.up_front and seq.target_tokens:
            return seq.prompt_tokens + seq.target_tokens - 1
        return seq.num_tokens

    def _blocks_reserved(self, seq: Generation) -> int:
        """Return the blocks that `seq` holds from its start to its end; 0 if unknown."""
        return self.pool.blocks_for(self._tokens_reserved(seq)) if self.up_front else 0

    # -- steps ---------------------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        if self.group.n and not self.partial and not self.waiting:
            run = self.decode_run(max_steps)
            if run is not None:
                self._last = GENERATE
                return run
        if not self.running and not self.waiting:
            return None
        plan = Plan()
        if self.batches == "alternate":
            self._one_kind(plan, max_steps)
        elif self.batches == "oldest":
            self._oldest_kind(plan, max_steps)
        else:
            self._fill(plan, BOTH, max_steps)
        return plan if plan.prefills or plan.decodes or plan.preempted else None

    def _one_kind(self, plan: Plan, max_steps: int) -> None:
        """Plan a step of the kind whose turn it is, or of the other kind if that one has no work."""
        for kind in (1 - self._last, self._last):
            other = 1 - kind
            contested = bool(self.waiting.queues[other] or len(self.partial) or self.num_running[other])
            self._fill(plan, (kind,), 1 if kind != self._last and contested else max_steps)
            if plan.prefills or plan.decodes:
                self._last = kind
                return

    def _oldest_kind(self, plan: Plan, max_steps: int) -> None:
        """Plan a step of the kind of the prompt in progress, else of the oldest waiting request; of the other kind if
        that one finds no place or memory."""
        first = next(iter(self.partial), None) or self.waiting.first(BOTH)
        oldest = GENERATE if first is None else kind_of(first)
        for kind in (oldest, 1 - oldest):
            self._fill(plan, (kind,), max_steps)
            if plan.prefills or plan.decodes:
                return

    def _fill(self, plan: Plan, kinds: tuple[int, ...], max_steps: int) -> None:
        """Plan decodes, the prompt in progress, and new starts; of these kinds only."""
        group, budget = self.group, self.max_num_batched_tokens
        if GENERATE in kinds and group.n:
            self._make_room(plan)
            if group.n:
                plan.decodes = True
                self.take_blocks(plan, 1)
                budget -= group.n
        for seq in sorted(self.partial, key=run_order) if len(self.partial) > 1 else list(self.partial):
            if budget > 0 and kind_of(seq) in kinds:
                budget -= self._chunk(seq, plan, seq.num_computed, budget)
        if budget > 0 and self.waiting and not plan.preempted:
            self._start(plan, kinds, budget)
        if plan.decodes:
            self.plan_decodes(plan)
            if not plan.prefills and not plan.preempted:   # no request can start before another is done
                plan.num_steps = max(1, self.steps_of_run(max_steps))   # blocks of the first step are taken already

    def _make_room(self, plan: Plan) -> None:
        """Preempt the latest arrivals until every decode has its block."""
        while self.group.grows and self.group.n and self.group.blocks_for(1) > self.pool.free_blocks:
            victim = max(self.running, key=_arrival)
            self.num_running[kind_of(victim)] -= 1
            self.preempt(victim, plan)

    def _chunk(self, seq: Generation, plan: Plan, past: int, budget: int) -> int:
        """Compute as much of a prompt as the budget allows; its blocks are reserved. Returns the number of tokens."""
        n = min(seq.num_tokens - past, budget)
        self.pool.commit(seq, past + n)
        plan.add_prefill(seq, n, past)
        seq.num_computed = past + n
        return n

    def _start(self, plan: Plan, kinds: tuple[int, ...], budget: int) -> None:
        """Start requests that have a slot, as long as tokens, places and memory last."""
        pool, waiting, num_running = self.pool, self.waiting, self.num_running
        slots = self._slots()
        blocked = False   # the head finds no memory; only an embedding that ends in this step may pass it
        while budget > 0 and len(self.running) < self.max_num_seqs:
            seq = waiting.first(tuple(kind for kind in kinds if num_running[kind] < slots[kind]))
            if seq is None or not self._in_turn(seq):
                self.stopped = int(Reason.SLOTS if seq is None and not blocked else
                                   Reason.KV_MEMORY if blocked else Reason.BATCH_ENDS)
                return
            need = self._tokens_reserved(seq)
            past = pool.hit_tokens(seq)
            if blocked and (seq.target_tokens or seq.num_tokens - past > budget):
                return
            if pool.missing_blocks(seq, need) > pool.free_blocks:
                self.stopped = int(Reason.KV_MEMORY)
                if blocked:
                    return
                blocked, kinds = True, tuple(kind for kind in kinds if kind != kind_of(seq))
                continue
            pool.admit(seq, need, past + min(seq.num_tokens - past, budget))
            waiting.remove(seq)
            self.running[seq] = self.partial[seq] = None
            num_running[kind_of(seq)] += 1
            seq.run_order = self.num_admissions
            self.num_admissions += 1
            if seq.start_ns < 0:
                seq.cached_tokens = past
                if seq.request is not None:
                    kind = kind_of(seq)
                    had, used = NOTES[kind]
                    seq.request.note(had, slots[kind])
                    seq.request.note(used, num_running[kind])
            budget -= self._chunk(seq, plan, past, budget)
        if not blocked:
            self.stopped = int(Reason.SLOTS if len(self.running) >= self.max_num_seqs else Reason.TOKEN_BUDGET)

    def _in_turn(self, seq: Generation) -> bool:
        """Whether a waiting request may join a step of its kind: those in strict order of arrival are the oldest, and
        with `drain` wait until no request of the other kind runs."""
        if self.batches not in ("drain", "oldest"):
            return True
        other_runs = self.batches == "drain" and self.num_running[1 - kind_of(seq)]
        return not other_runs and seq is self.waiting.peek()

    def _slots(self) -> tuple[int, int]:
        resources = [Resource(self.max_num_seqs)]
        if self.up_front:
            embedding, generation = (
                self._blocks_needed[kind] / self._in_system[kind] if self._in_system[kind] else 1.0 for kind in BOTH
            )
            resources.append(Resource(self.pool.num_blocks, embedding, generation))
        embeddings, generations = self.waiting.queues
        waiting = len(embeddings), len(generations)
        found = self.policy.slots(BatchState(
            *waiting, self.num_running[EMBED], self.num_running[GENERATE], tuple(resources)))
        if not _are_slots(found, waiting, idle=not self.running):
            raise InputError("embeddings and generations, whole numbers, with one for a kind that waits if nothing "
                             f"runs (waiting: {waiting[0]}, {waiting[1]}), from slot policy "
                             f"{type(self.policy).__name__}", found, field="scheduler.slots")
        return found

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        finished = super().complete(plan, num_steps, step, now_ns)
        for seq in finished:
            kind = kind_of(seq)
            self.num_running[kind] -= 1
            self._in_system[kind] -= 1
            self._blocks_needed[kind] -= self._blocks_reserved(seq)
        return finished


def _are_slots(found: object, waiting: tuple[int, int], *, idle: bool) -> bool:
    """Whether a policy has given two numbers with which a request can start sooner or later. idle: None runs."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(n, Integral) for n in found)):
        return False
    return min(found) >= 0 and (not idle or any(n and queue for n, queue in zip(found, waiting, strict=True)))


def _arrival(seq: Generation) -> int:
    return seq.arrival_order
