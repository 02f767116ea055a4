"""KV offload to host memory, as vLLM's OffloadingConnector does it (0.33.0): a part of the chunked scheduler.

A step may start *jobs*, which copy blocks between the device and a host cache (`hermes.memory.host_cache`) while later
steps run. The part decides which; the client gives them their time and calls `job_done` when the engine learns that
they are complete. The rules have numbers in docs/background/kv-offload.md.

- Loads. A waiting sequence whose prompt goes on in the host cache after the device's prefix cache takes blocks for what
  is there, and waits for its load outside the queue. Others overtake it meanwhile.
- Stores. Blocks that a step fills are offered to the host cache in that step.
- Flushes. A step that takes blocks which a store still reads, or preempts their sequence, waits for the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence

from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.memory.fenced import FencedPool
from hermes.memory.host_cache import HostCache, RequestChunks
from hermes.schedulers.base import run_order
from hermes.schedulers.chunked import ENTER, SKIP, WAIT, urgency
from hermes.schedulers.parts import SchedulerPart, Turn, WithParts
from hermes.schedulers.plan import Plan

__all__ = ["HostOffload", "Job"]


class Job:
    """A copy of blocks between device and host.

    Attributes:
        load: Whether it goes to the device.
        keys: Chunks of the host cache.
        blocks: The device's blocks.
        fenced: Whether its sequence has ended, so that others may take these blocks.
    """

    __slots__ = ("blocks", "fenced", "keys", "load", "seq")

    def __init__(self, seq: Generation, *, load: bool, keys: list[Hashable], blocks: list[int], fenced: bool) -> None:
        self.seq, self.load, self.keys, self.blocks, self.fenced = seq, load, keys, blocks, fenced


class _Progress:
    """Progress of one sequence's chunks and jobs.

    Attributes:
        next_chunk: First chunk that has not been offered to the host cache.
        jobs: Jobs under way: one load, or stores.
        held: Blocks that it held when it ended; empty before.
        given_up: Whether its client gave it up.
        over: Whether it has ended and its last chunks were offered.
    """

    __slots__ = ("chunks", "given_up", "held", "jobs", "next_chunk", "over")

    def __init__(self) -> None:
        self.next_chunk = 0
        self.jobs: dict[Job, None] = {}
        self.chunks = RequestChunks()
        self.held: list[int] = []
        self.given_up = self.over = False


class HostOffload(SchedulerPart):
    """See the module's docstring.

    Args:
        host: The host cache.
        blocks_per_chunk: Blocks of one chunk of it.
        prompt_only: Whether blocks with outputs are not stored.
        offers_anew: Whether a preempted request offers all its chunks again.

    Attributes:
        jobs: Under way.
        loaded_tokens: Tokens loaded so far.
    """

    turn = Turn.HOST_MEMORY
    connects = True

    def __init__(self, host: HostCache, *, blocks_per_chunk: int = 1, prompt_only: bool = True,
                 offers_anew: bool = True) -> None:
        self.host = host
        self.blocks_per_chunk = blocks_per_chunk
        self.prompt_only = prompt_only
        self.offers_anew = offers_anew
        self.jobs: dict[Job, None] = {}
        self.loaded_tokens = 0
        self._started: list[Job] = []   # by the plan being made
        self._flushed: list[Job] = []
        self._of_plans: deque[tuple[list[Job], list[Job]]] = deque()   # plans whose jobs were not taken yet
        self._progress: dict[Generation, _Progress] = {}
        self._loading: dict[Generation, None] = {}   # waiting for their load
        self._loaded: dict[Generation, None] = {}    # load complete, blocks not hashed yet
        self._taken_out: list[Generation] = []       # out of the queue in this step, for their load
        self._prefills: dict[Generation, None] = {}  # loading, or in their prompt after their latest step
        self._admitted: dict[Generation, None] = {}  # to the step being planned
        self._to_store: dict[Generation, None] = {}  # running sequences that may have chunks to offer
        self._ended: list[Generation] = []           # since the latest plan
        self._num_first = 0                          # of these, given up while the latest step ran
        self._being_loaded: set[Hashable] = set()
        self._offers_again = False              # the next step offers chunks that found no room
        self._watched = False                   # whether the step being planned has to see each block that it takes
        self._past = 0                          # tokens that the sequence at the head of the queue has in memory

    def attach(self, scheduler: WithParts) -> None:
        super().attach(scheduler)
        pool = scheduler.pool
        assert isinstance(pool, FencedPool)
        self.pool = pool
        self.chunk_tokens = self.blocks_per_chunk * pool.block_size

    # -- steps ---------------------------------------------------------------------------------------------------

    def before_plan(self, max_steps: int) -> int:
        self.pool.taken.clear()
        self._admitted.clear()
        self._watched = bool(self.jobs or self._ended or self._offers_again)
        self._offers_again = False
        if self._watched:
            return 1
        if not self.prompt_only and self.scheduler.group.n:
            return min(max_steps, self._steps_without_store())
        return max_steps

    def after_plan(self, plan: Plan | None) -> Plan | None:
        if plan is not None and (self._watched or not self.prompt_only):
            self.scheduler.take_blocks(plan, 1)   # or a block that this step takes and fills would not be stored
        for seq, _n in () if plan is None else plan.prefills:
            if seq.num_computed < seq.num_tokens:
                self._prefills[seq] = None
            else:
                self._prefills.pop(seq, None)
        self._flush(plan)
        self._store_scheduled(plan)
        self._store_ended()
        self._of_plans.append((self._started, self._flushed))
        self._started, self._flushed = [], []
        if plan is not None and (self.jobs or self._offers_again):
            plan.num_steps = 1
        return plan

    @property
    def unsettled(self) -> bool:
        return bool(self._ended)

    def completed(self, plan: Plan, num_steps: int, finished: Sequence[Generation]) -> None:
        self._end(finished)

    def _end(self, finished: Sequence[Generation]) -> None:
        for seq in finished:
            progress = self._of(seq)
            progress.held = list(self.pool.blocks_of(seq))
            for job in progress.jobs:
                job.fenced = True
            self._to_store.pop(seq, None)
            self._prefills.pop(seq, None)
        self._ended += finished

    def aborted(self, seq: Generation) -> None:
        """End it: what it has computed is offered. Blocks that a load writes stay until it is complete."""
        if seq in self._loading:
            self.scheduler.kept.add(seq)
            del self._loading[seq]
        self._loaded.pop(seq, None)
        if seq in self._progress:
            self._progress[seq].given_up = True
            self._end([seq])

    def left_first(self, seq: Generation) -> None:
        if seq in self._ended:
            self._ended.remove(seq)
            self._ended.insert(self._num_first, seq)
            self._num_first += 1

    def take_jobs(self) -> tuple[list[Job], list[Job]]:
        """Return the jobs that a plan started, and those that have to be complete before its step runs.

        Call it after each `plan`, also if that is None: it returns those of the oldest plan not asked for.
        """
        return self._of_plans.popleft() if self._of_plans else ([], [])

    def job_done(self, job: Job) -> None:
        """Note that the engine knows that a job is complete. Call it after the `complete` of the step in which the
        engine learns it."""
        del self.jobs[job]
        progress = self._progress[job.seq]
        del progress.jobs[job]
        if progress.over and not progress.jobs:
            del self._progress[job.seq]
        if job.load:
            self.host.loaded(job.keys)
            self._being_loaded.difference_update(job.keys)
            if job.seq in self._loading:
                del self._loading[job.seq]
                self._loaded[job.seq] = None
            else:   # it was given up
                self.scheduler.kept.remove(job.seq)
                self.scheduler.release(job.seq)
        else:
            self.host.stored(job.keys)

    def _of(self, seq: Generation) -> _Progress:
        progress = self._progress.get(seq)
        if progress is None:
            progress = self._progress[seq] = _Progress()
        return progress

    def _steps_without_store(self) -> int:
        """Return the steps until a member of the decode group fills a chunk; that step is the first of the next run."""
        group, size = self.scheduler.group, self.chunk_tokens
        return max(1, min(size - (group.clock + seq.base) % size - 1 for seq in group.members))

    # -- loads ---------------------------------------------------------------------------------------------------

    @property
    def skips_for(self) -> int:
        return int(Reason.HOST_LOAD)

    def consider(self, seq: Generation) -> None:
        """Hash the blocks of a complete load, which count as computed from here on."""
        if seq in self._loaded:
            del self._loaded[seq]
            self.pool.commit(seq, seq.num_computed)
            if seq.num_computed == seq.num_tokens:   # the last token gives the first output
                seq.num_computed -= 1

    def entry(self, seq: Generation, num_tokens: int, past: int) -> int:
        self._past = past
        if seq.num_blocks:
            return SKIP if seq in self._loading else ENTER
        found = self._found(seq, past)
        if found is None:
            return SKIP
        if not found:
            return ENTER
        if not self._room_for_load(seq, past + found):
            return WAIT
        self._load(seq, past, found)
        return SKIP

    def admitted(self, seq: Generation) -> None:
        if not seq.num_computed:   # it comes from the queue, not from its load
            self._count_lookup(seq, self._past, 0)
        self._to_store[seq] = None
        self._admitted[seq] = None

    def preempted(self, seq: Generation, returned: int) -> None:
        self._prefills.pop(seq, None)

    def after_admission(self) -> None:
        holding = self.scheduler.holding
        if self._taken_out:
            holding.extend(self._taken_out)
            self._taken_out.clear()
            if self.scheduler.by_priority:
                in_turn = sorted(holding, key=urgency)
                holding.clear()
                holding.extend(in_turn)

    def out_of_blocks(self) -> int | None:
        """Return host loads if sequences whose KV is on its way hold most of the blocks in use."""
        loading = sum(seq.num_blocks for seq in self._loading)
        return int(Reason.HOST_LOAD) if 2 * loading > self.pool.num_blocks - self.pool.free_blocks else None

    def waiting_for_load(self) -> list[Generation]:
        """Return the sequences whose load was started and that were not considered since its end, in order of turn."""
        return [seq for seq in self.scheduler.holding if seq in self._loading or seq in self._loaded]

    def _holders(self) -> Iterator[Generation]:
        """Yield the sequences that hold blocks and still need some: prompts under way, and those that do not run."""
        scheduler = self.scheduler
        for seq in scheduler.partial:
            if seq in self._prefills or (seq in self._admitted and seq.num_computed < seq.num_tokens):
                yield seq
        yield from scheduler.holding
        yield from (seq for seq in scheduler.skipped if seq.num_blocks)
        yield from self._taken_out

    def held_tokens(self, seq: Generation, past: int) -> int:
        """Return the tokens after the first `past` that a load could give a sequence now; nothing counts as used."""
        size, bs, last = self.chunk_tokens, self.pool.block_size, self.blocks_per_chunk - 1
        first, end = past // size, seq.num_tokens // size
        chunk = first
        while chunk < end and self.host.ready(seq.block_key(chunk * self.blocks_per_chunk + last, bs)):
            chunk += 1
        chunk -= self.pool.drop_last_hit
        return max(0, chunk * size - past) if chunk > first else 0

    def _found(self, seq: Generation, past: int) -> int | None:
        """Return the tokens that the host cache has of a waiting sequence after the first `past`; None: ask again in
        the next step. Less than a chunk counts as nothing."""
        progress = self._of(seq)
        if self.offers_anew:   # a preempted request begins again
            progress.next_chunk = 0
        if progress.jobs:
            return None
        size, bs, last = self.chunk_tokens, self.pool.block_size, self.blocks_per_chunk - 1
        first, end = past // size, seq.num_tokens // size
        if end * size - past < size:
            return 0
        pending = False
        busy = chunk = first
        while chunk < end:
            key = seq.block_key(chunk * self.blocks_per_chunk + last, bs)
            ready = self.host.ready(key)
            if ready is None:
                break
            pending |= not ready
            chunk += 1
            if busy == chunk - 1 and key not in self._being_loaded:
                busy = chunk   # up to here no load is under way
        if chunk == first:
            return 0
        if pending:
            return None
        chunk -= self.pool.drop_last_hit
        if chunk * size - past < size:
            return 0
        return None if busy < chunk else chunk * size - past

    def _room_for_load(self, seq: Generation, num_tokens: int) -> bool:
        """Whether the blocks of the first `num_tokens` tokens are free on top of those that prefills and loads under
        way still need: a load holds its blocks without progress and cannot be preempted."""
        pool, scheduler = self.pool, self.scheduler
        spare = scheduler.watermark_blocks if scheduler.running or scheduler._ending else 0
        if scheduler.whole_must_fit and pool.missing_blocks(seq, seq.num_tokens) + spare > pool.free_blocks:
            return False
        # slots of each one's next step with drafts
        drafting = scheduler.draft_tokens and 1 + scheduler.draft_tokens + scheduler.lookahead
        reserved = pool.blocks_for(drafting) + sum(
            max(0, pool.blocks_for(s.num_tokens + drafting) - s.num_blocks) for s in self._holders())
        return pool.missing_blocks(seq, num_tokens) + spare <= pool.free_blocks - reserved

    def _load(self, seq: Generation, past: int, found: int) -> None:
        """Take the blocks of what the host cache has, and start the load. They have no hash before it is complete."""
        pool, size = self.pool, self.chunk_tokens
        self._count_lookup(seq, past, found)
        pool.admit(seq, past + found, past)
        self.scheduler.waiting.pop()
        self._taken_out.append(seq)
        seq.num_computed = past + found
        keys = self._keys(seq, past // size, (past + found) // size)
        progress = self._of(seq)
        progress.next_chunk = (past + found) // size
        self.host.load(keys, past // size, progress.chunks)
        self._being_loaded.update(keys)
        self._loading[seq] = self._prefills[seq] = None
        self.loaded_tokens += found
        blocks = pool.blocks_of(seq)
        self._start(Job(seq, load=True, keys=keys, blocks=blocks[past // pool.block_size:], fenced=False))

    def _count_lookup(self, seq: Generation, past: int, found: int) -> None:
        """Count the chunks that a sequence found in the host cache, and those that it did not."""
        size = self.chunk_tokens
        hits = (past + found) // size - past // size if found else 0
        self.host.hits += hits
        self.host.misses += seq.num_tokens // size - past // size - hits

    def _keys(self, seq: Generation, first: int, end: int) -> list[Hashable]:
        size, bs = self.blocks_per_chunk, self.pool.block_size
        keys: list[Hashable] = [seq.block_key((chunk + 1) * size - 1, bs)
                                for chunk in range(first, end)]
        return keys

    # -- stores and flushes ----------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        self._started.append(job)
        self.jobs[job] = None
        self._of(job.seq).jobs[job] = None

    def _flush(self, plan: Plan | None) -> None:
        """Find the stores whose sequence was preempted, or whose blocks this step has taken."""
        if not self.jobs:
            return
        victims = () if plan is None else plan.preempted
        taken = self.pool.taken
        self._flushed = [job for job in self.jobs if not job.load and (
            job.seq in victims or (job.fenced and not taken.isdisjoint(job.blocks)))]

    def _store_scheduled(self, plan: Plan | None) -> None:
        """Offer the chunks that the sequences of this step fill."""
        if plan is None or not self._to_store:
            return
        chunks = {seq for seq, _n in plan.prefills}
        clock = self.scheduler.group.clock
        for seq in sorted(self._to_store, key=run_order):
            if seq in chunks:   # tokens in flight, and drafts, have no hash yet
                tokens = min(seq.num_computed, seq.num_tokens - self.pool.hash_lookahead)
            elif seq.grouped and plan.decodes:
                tokens = clock + seq.base + 1
            else:
                continue
            if self.prompt_only and tokens > seq.prompt_tokens:
                tokens = seq.prompt_tokens
            self._store(seq, tokens, self.pool.blocks_of(seq), ended=False)
            if self.prompt_only and self._of(seq).next_chunk >= seq.prompt_tokens // self.chunk_tokens:
                del self._to_store[seq]

    def _store_ended(self) -> None:
        """Offer the last chunks of sequences that ended since the latest plan, and make what they used recent."""
        ended, self._ended, self._num_first = self._ended, [], 0
        for seq in ended:
            progress = self._of(seq)
            tokens = seq.num_computed if progress.given_up else max(seq.prompt_tokens, seq.num_tokens - 1)
            most = seq.prompt_tokens if self.prompt_only else seq.num_tokens
            self._store(seq, min(tokens, most), progress.held, ended=True)
        for seq in ended:
            progress = self._progress[seq]
            self.host.end(progress.chunks)
            progress.over = True
            if not progress.jobs:
                del self._progress[seq]

    def _store(self, seq: Generation, num_tokens: int, blocks: list[int], *, ended: bool) -> None:
        """Offer the chunks of the first `num_tokens` tokens that were not offered yet; start a job for the new ones."""
        progress, per_chunk = self._of(seq), self.blocks_per_chunk
        first, end = progress.next_chunk, num_tokens // self.chunk_tokens
        if self.pool.drop_last_hit and not ended and num_tokens > seq.prompt_tokens:
            end -= 1   # rejected drafts may still change what the drafter keeps of it
        if end <= first:
            return
        keys = self._keys(seq, first, end)
        new = self.host.store(keys, first, progress.chunks)
        if new is None:   # offered again in the next step, which matters where offers are counted
            self._offers_again |= self.host.store_threshold > 1
            return
        progress.next_chunk = end
        if not new:
            return
        wanted = set(new)
        source = [block for chunk, key in enumerate(keys, first) if key in wanted
                  for block in blocks[chunk * per_chunk: (chunk + 1) * per_chunk]]
        job = Job(seq, load=False, keys=new, blocks=source, fenced=ended)
        self._start(job)
        if ended and not self.pool.taken.isdisjoint(source):
            self._flushed.append(job)

