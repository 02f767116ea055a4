"""Contract suites for LLM schedulers and packing policies.

Inherit it in a test module, give `make()`, and pytest checks what clients rely on:

    class TestMyScheduler(SchedulerContract):
        def make(self, pool, every_step):
            return MyConfig(max_num_seqs=8).build(pool, every_step=every_step)

The scheduler is driven as `hermes.clients.LLMClient` drives it, in runs of steps that arrivals may cut, but without a
clock or hardware: time is counted in steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from hermes.compiled import is_compiled
from hermes.core.block_hashes import GroupPrefix
from hermes.core.branches import branch_into
from hermes.core.generation import Embedding, Generation
from hermes.core.stage import ServiceStage
from hermes.hardware.base import STEP_STATS
from hermes.memory.blocks import BlockPool
from hermes.memory.prefix import PrefixBlockPool
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.schedulers.plan import Plan

__all__ = ["PackingContract", "Request", "SchedulerContract", "ServedSteps", "serve"]

_STATS = tuple(sorted(STEP_STATS))
OTHER_BRANCH = 1000
_MAX_IDLE = 5   # consecutive plans that only preempt


@dataclass(frozen=True)
class Request:
    """A request of the contract's workload.

    Args:
        step: Its arrival, in steps from the start.
        kv: Whether its prompt's KV comes with it.
        branches: Tokens of several answers, in place of one.
        embed: Whether it ends with its prompt, without an answer.
    """

    step: int
    prompt: int
    output: int
    priority: int = 0
    group: int = -1
    shared: int = 0
    kv: bool = False
    branches: tuple[int, ...] = ()
    embed: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """Return the tokens of its answers."""
        return (0,) if self.embed else self.branches or (self.output,)


@dataclass
class ServedSteps:
    """Record of a scheduler's steps, independent of their grouping into runs.

    A sequence has its request's number; branches after the first add that many times `OTHER_BRANCH`.
    """

    stats: list[tuple[int, ...]] = field(default_factory=list)
    prefills: list[list[tuple[int, int]]] = field(default_factory=list)   # (request, new tokens)
    preempted: list[tuple[int, list[int]]] = field(default_factory=list)  # (step, requests)
    finished: list[tuple[int, int]] = field(default_factory=list)         # (after how many steps, request)
    refused: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)            # request -> steps of its tokens
    sampled: int = 0


def serve(scheduler: LLMScheduler, requests: list[Request], *, longest_run: int) -> ServedSteps:
    """Drive `scheduler` through `requests` (in order of arrival), in runs of at most `longest_run` steps."""
    return _Drive(scheduler, requests, longest_run).run()


class _Drive:
    def __init__(self, scheduler: LLMScheduler, requests: list[Request], longest_run: int) -> None:
        self.scheduler, self.requests, self.longest_run = scheduler, requests, longest_run
        self.served = ServedSteps()
        self.numbers: dict[Generation, int] = {}
        self.ticks: list[int] = []            # number of steps in which the decode group advanced
        self.knocking: list[Generation] = []    # requests whose KV found no memory yet
        self.next, self.steps, self.open = 0, 0, 0
        self.skipped = 0    # idle time, in steps

    def run(self) -> ServedSteps:
        requests, idle = self.requests, 0
        while self.next < len(requests) or self.open:
            while self.next < len(requests) and self._due() <= 0:
                self._arrive()
            plan = self.scheduler.plan(self.longest_run)
            self._count_blocks()
            if plan is not None and (plan.prefills or plan.decodes):
                idle = 0
                self._steps(plan)
                continue
            if plan is not None:   # only preemptions: no step, and the next plan follows at once
                self._preempted(plan)
                self.scheduler.complete(plan, 1, -1, 0)
                idle += 1
                assert idle <= _MAX_IDLE, "the scheduler preempts again and again without a step"
                continue
            if self.next == len(requests):
                assert not self.open, f"{self.open} sequences wait for ever: {self._left()}"
            else:
                self.skipped += self._due()
        plan = self.scheduler.plan(self.longest_run)
        if plan is not None and plan.drafts:   # a batch that was in flight when its sequences ended
            assert not self.scheduler.complete(plan, 1, self.steps, self.steps + 1)
            plan = self.scheduler.plan(self.longest_run)
        assert plan is None, "a plan exists without a sequence to serve"
        return self.served

    def _count_blocks(self) -> None:
        pool = self.scheduler.pool
        assert 0 <= pool.free_blocks <= pool.num_blocks, f"{pool.free_blocks} of {pool.num_blocks} blocks free"

    def _due(self) -> int:
        """Return the steps until the next request arrives."""
        return self.requests[self.next].step - self.skipped - self.steps

    def _left(self) -> list[int]:
        done = {number for _, number in self.served.finished}
        return [number for number in self.numbers.values() if number not in done]

    def _number(self, seq: Generation) -> int:
        """Return the number of a sequence."""
        if seq.branch < 0:
            return self.numbers[seq]
        assert seq.branches is not None
        return self.numbers[seq.branches.lead] + OTHER_BRANCH * seq.branch

    def _arrive(self, plan: Plan | None = None, ended: int = 0) -> bool:
        """The next request arrives while a plan is in flight, after `ended` of its steps. Return whether to cut the
        plan."""
        request, number, scheduler = self.requests[self.next], self.next, self.scheduler
        self.next += 1
        content = GroupPrefix(request.group, request.shared) if request.group >= 0 else None
        order = OTHER_BRANCH * number   # branches have numbers of their own
        seq: Any = Generation(request.prompt, request.output, request.priority, arrival_order=order, content=content)
        if request.branches:
            branch_into(seq, request.branches)
        if request.embed:
            stage = ServiceStage("embed", tokens=request.prompt, priority=request.priority)
            stage.arrival_order, stage.content = order, content
            seq = Embedding(stage)
        reason = scheduler.can_ever_fit(seq)
        if reason is not None:
            assert reason.strip(), "a refusal without a reason"
            self.served.refused[number] = reason
            return False
        self.numbers[seq] = number
        taken_over = _taken_over(request, scheduler)
        self.open += request.embed or sum(tokens > taken_over for tokens in request.outputs)
        if taken_over:
            seq.transferred, seq.given = True, 1
            seq.num_computed, seq.num_tokens = request.prompt, request.prompt + 1
            if plan is not None:   # the blocks of these steps are taken by now
                scheduler.take_blocks(plan, ended)
            if self.knocking or not scheduler.reserve(seq):
                self.knocking.append(seq)
                return False
            scheduler.enqueue(seq)
            return True   # the rest of the run may lack blocks now
        scheduler.enqueue(seq)
        return plan is not None and scheduler.wants_cut(seq)

    def _preempted(self, plan: Plan) -> None:
        if plan.preempted:
            self.served.preempted.append((self.steps, [self._number(s) for s in plan.preempted]))

    def _steps(self, plan: Plan) -> None:
        """Run the planned steps; arrivals meanwhile may cut them."""
        self._check(plan)
        self._preempted(plan)
        # A step of one token after the prompt is a decode, whether the scheduler lists it or has it in its group.
        prefills = [(self._number(s), n) for s, n in plan.prefills if n > 1 or s.num_computed <= s.prompt_tokens]
        values = {name: getattr(plan, name) for name in _STATS}
        count = plan.num_steps
        while self.next < len(self.requests) and self._due() < count:
            ended = max(1, self._due())
            if self._arrive(plan, ended) and ended < count:
                count = ended
        served = self.served
        for j in range(count):
            moving = {"decode_ctx": j * plan.decode_seqs, "decode_ctx_max": j if plan.decode_seqs else 0}
            served.stats.append(tuple(values[name] + moving.get(name, 0) for name in _STATS))
            served.prefills.append(prefills)
        if plan.decodes:
            self.ticks += range(self.steps, self.steps + count)
        self.steps += count
        finished = self.scheduler.complete(plan, count, self.steps - 1, self.steps)
        served.sampled += (plan.sampled - plan.again) * count   # with drafts it is known only now
        for seq in finished:
            number = self._number(seq)
            served.finished.append((self.steps, number))
            served.tokens[number] = self._tokens(seq)
            self._count_blocks()
            self.scheduler.release(seq)
            self._count_blocks()
            self.open -= 1
            while self.knocking and self.scheduler.reserve(self.knocking[0]):
                self.scheduler.enqueue(self.knocking.pop(0))

    def _check(self, plan: Plan) -> None:
        assert plan.num_steps >= 1
        assert plan.num_steps <= self.longest_run
        assert not plan.prefills or plan.num_steps == 1, "a run of several steps has no prefills"
        assert all(n >= 1 for _, n in plan.prefills), "a sequence is scheduled for no tokens"
        seqs = [seq for seq, _ in plan.prefills]
        assert len(set(seqs)) == len(seqs), "a sequence is scheduled twice in a step"
        assert plan.prefill_seqs + plan.decode_seqs <= self.scheduler.max_num_seqs, "more sequences than slots"
        assert plan.prefill_seqs + plan.decode_seqs >= 1
        assert plan.prefill_tokens >= plan.prefill_seqs
        others = sum(seq.width - 1 for seq in seqs)   # branches that start
        assert 0 <= plan.sampled <= plan.prefill_seqs + plan.decode_seqs + others + plan.drafts
        assert plan.decode_ctx_max <= plan.decode_ctx

    def _tokens(self, seq: Generation) -> list[int]:
        """Return the steps that gave a finished sequence its tokens, as the scheduler recorded them in it."""
        scheduler, first, wanted = self.scheduler, seq.first_step, seq.target_tokens - seq.given
        if not wanted:
            assert first == -1
            return []
        assert 0 <= first < self.steps
        if scheduler.returns_together:
            return list(range(first, first + wanted))
        if seq.segments is None:
            if scheduler.ticks_every_step:
                return list(range(first, self.steps))
            later = [step for step in self.ticks if step > first]
            return [first, *later[len(later) - wanted + 1 :]]
        found: list[int] = []
        for emitted, start, stop in [*seq.segments, (seq.emit_step, seq.join_tick, scheduler.group.clock)]:
            found += [emitted] if emitted >= 0 else []
            found += range(start, stop) if scheduler.ticks_every_step else self.ticks[start:stop]
        return found


def _taken_over(request: Request, scheduler: LLMScheduler) -> bool:
    """Whether another client has computed a request's prompt and first tokens."""
    return request.kv and max(request.outputs) > 1 and scheduler.takes_over_kv


class SchedulerContract(ABC):
    """Properties of every LLM scheduler. Inherit it and give `make()`."""

    examples: ClassVar[int] = 60
    """Number of random workloads per test."""

    kinds: ClassVar[tuple[str, ...]] = ("generate",)
    """Kinds of stage the scheduler serves; with `embed`, about half of the requests are embeddings."""

    branches: ClassVar[bool] = True
    """Whether it serves generations of several branches."""

    drafts: ClassVar[bool] = False
    """Whether a step may give a sequence several tokens, and one more step follow the last token (speculation)."""

    @abstractmethod
    def make(self, pool: BlockPool, every_step: bool) -> LLMScheduler:
        """Return a new scheduler over `pool`. every_step: it is asked for one step at a time."""

    def cases(self) -> Iterator[tuple[dict[str, Any], list[Request]]]:
        """Yield random memories, tight and roomy, with and without prefix cache, and workloads for them."""
        rng = np.random.default_rng(11)
        for i in range(self.examples):
            block_size = int(rng.choice([1, 2, 4, 16]))
            tokens = int(rng.choice([40, 70, 120, 5000]))
            memory = {"num_blocks": -(-tokens // block_size), "block_size": block_size, "caching": bool(i % 2)}
            gaps = rng.choice([0, 0, 1, 3, 20], int(rng.integers(1, 25)))
            requests = [self._request(rng, int(step)) for step in np.cumsum(gaps)]
            if not self.branches:
                requests = [replace(r, branches=()) for r in requests]
            if "embed" in self.kinds:   # from a stream of its own: the other draws stay the same
                requests = [replace(r, embed=True, branches=()) if which else r for r, which in zip(
                    requests, np.random.default_rng(i).integers(0, 2, len(requests)), strict=True)]
            yield memory, requests

    @staticmethod
    def _request(rng: np.random.Generator, step: int) -> Request:
        prompt, group = int(rng.integers(1, 40)), int(rng.integers(-1, 2))
        return Request(
            step, prompt, int(rng.integers(1, 25)), int(rng.integers(0, 3)), group,
            int(rng.integers(0, prompt + 1)) if group >= 0 else 0, bool(rng.random() < 0.2),
            tuple(rng.integers(1, 25, int(rng.integers(2, 6))).tolist()) if rng.random() < 0.2 else (),
        )

    @staticmethod
    def pool(num_blocks: int, block_size: int, caching: bool) -> BlockPool:
        """Return a pool that refuses to hand out blocks it lacks, or to take back more than it gave."""
        base: Any = PrefixBlockPool if caching else BlockPool
        if is_compiled(base):   # it would not see the property; `serve` looks between its calls
            plain: BlockPool = base(num_blocks, block_size)
            return plain

        def change(self: Any, free: int) -> None:
            assert 0 <= free <= self.num_blocks, f"{free} of {self.num_blocks} blocks free"
            self.checked_free = free

        checked = type(base.__name__, (base,), {"free_blocks": property(lambda self: self.checked_free, change)})
        made: BlockPool = checked(num_blocks, block_size)
        return made

    def served(
        self, memory: dict[str, Any], requests: list[Request], *, every_step: bool
    ) -> tuple[ServedSteps, LLMScheduler]:
        scheduler = self.make(self.pool(**memory), every_step)
        return serve(scheduler, requests, longest_run=1 if every_step else 1000), scheduler

    def both(self) -> Iterator[tuple[list[Request], ServedSteps, LLMScheduler]]:
        """Yield every case in runs and in single steps."""
        for memory, requests in self.cases():
            for every_step in (False, True):
                yield requests, *self.served(memory, requests, every_step=every_step)

    def test_runs_equal_single_steps(self) -> None:
        for memory, requests in self.cases():
            runs, _ = self.served(memory, requests, every_step=False)
            steps, _ = self.served(memory, requests, every_step=True)
            assert runs == steps, f"{memory} {requests}"

    def test_nothing_is_lost(self) -> None:
        served_any = False
        for requests, served, _ in self.both():
            finished = [number for _, number in served.finished]
            assert len(finished) == len(set(finished)), "a sequence finished twice"
            assert {number % OTHER_BRANCH for number in finished} | {*served.refused} == set(range(len(requests)))
            served_any = served_any or bool(finished)
        assert served_any, "every request of every case was refused"

    def test_tokens_out_are_tokens_asked(self) -> None:
        for requests, served, scheduler in self.both():
            for number, request in enumerate(requests):
                taken_over = _taken_over(request, scheduler)
                alive = [i for i, tokens in enumerate(request.outputs) if tokens > taken_over or request.embed]
                # The first branch keeps the request's number.
                mine = [steps for n, steps in served.tokens.items() if n % OTHER_BRANCH == number]
                wanted = [] if number in served.refused else [request.outputs[i] - taken_over for i in alive]
                assert sorted(map(len, mine)) == sorted(wanted), f"request {number}: tokens in steps {mine}"
                assert all(steps == sorted(steps if self.drafts else set(steps)) for steps in mine), (
                    f"request {number}: tokens in steps {mine}")
            assert served.sampled == sum(len(steps) for steps in served.tokens.values())

    def test_blocks_are_conserved(self) -> None:
        for _, _, scheduler in self.both():
            assert scheduler.pool.free_blocks == scheduler.pool.num_blocks, "blocks were kept"

    def test_nothing_is_left_behind(self) -> None:
        for _, _, scheduler in self.both():
            assert scheduler.num_waiting == len(scheduler.running) == len(scheduler.partial) == 0
            assert scheduler.tokens_cached() == scheduler.num_decoding == scheduler.group.n == 0

    def test_an_empty_scheduler_has_no_plan(self) -> None:
        for memory, _ in self.cases():
            assert self.make(self.pool(**memory), False).plan(100) is None

    def test_planning_ahead_does_not_depend_on_memory(self) -> None:
        made = [self.make(self.pool(**memory), step) for memory, _ in self.cases() for step in (False, True)]
        assert len({scheduler.asynchronous for scheduler in made}) == 1

    def test_a_refusal_depends_on_the_sequence_alone(self) -> None:
        """A client with no other work can serve, at any time, every request that it can serve at all."""
        for memory, requests in self.cases():
            scheduler = self.make(self.pool(**memory), False)
            for request in requests:
                seq = Generation(request.prompt, request.output, request.priority)
                if scheduler.can_ever_fit(seq) is None:
                    alone, _ = self.served(memory, [Request(0, request.prompt, request.output)], every_step=False)
                    assert alone.finished, f"{request} was accepted and not served"
                    smaller = Generation(max(1, request.prompt - 1), request.output)
                    assert scheduler.can_ever_fit(smaller) is None, "a shorter prompt is refused"


class PackingContract(SchedulerContract):
    """Properties of every packing policy: the contract of schedulers with the policy in their place. Inherit it and
    name the policy."""

    policy: ClassVar[str]

    def make(self, pool: BlockPool, every_step: bool) -> LLMScheduler:
        config = ChunkedConfig(policy=self.policy, max_num_batched_tokens=20, max_num_seqs=4)
        return config.build(pool, every_step=every_step)
