"""Decode group: sequences that decode in lockstep, advanced k steps at a cost independent of their number.

Between changes of a batch, every decoding sequence gains one token a step. The group keeps a clock that counts those
steps, and each sequence stores its offset from that clock: `num_computed = clock + base`. The group keeps aggregates:
sums, the longest context, the next completion, and the blocks that the next steps take.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import attrgetter

from hermes.core.generation import Generation
from hermes.memory.blocks import BlockPool

__all__ = ["DecodeGroup"]

_run_order = attrgetter("run_order")


class DecodeGroup:
    """`n` sequences with `ctx` cached tokens in total. A sequence leaves by finishing (`pop_finished`) or `remove`.

    Attributes:
        crossing: crossing[r] counts the sequences that take a new block in a step at which clock % block_size == r
            (before the step), because their cached tokens then fill whole blocks. The list is stored twice over, so
            that any window of less than block_size steps is one slice.
        grows: Whether members take blocks as they decode; otherwise they have enough.
        heap: (clock at completion, admission, sequence); a member that left otherwise keeps its entry for a while.
        pool: Prefix cache in which members' blocks are hashed; None without one, or if the group takes no blocks.
        in_flight: Tokens at the end of each member that are not known yet (1 with asynchronous scheduling).
        keeps_stopped: Whether a member that a stop token ends stays for one step more: the scheduler takes it out.
        sought: Whether all members' answers may be looked up: a gateway lets requests go on with what they have so far.
        max_base, max_known: Largest base of the members, while it is known; `longest` finds it.
        looked_up: Members whose answers other sequences may look up while they are written. Blocks of other members are
            hashed when they leave the group, unless the pool is `by_block` (then `late` is None).
        filling: filling[r] has those of them that fill a block in the step after which clock % block_size == r.
    """

    __slots__ = (
        "block_size", "clock", "crossing", "ctx", "filling", "grows", "heap", "in_flight", "keeps_stopped", "late",
        "looked_up", "max_base", "max_known", "members", "n", "pool", "sought",
    )

    def __init__(
        self, block_size: int, *, grows: bool = True, pool: BlockPool | None = None, in_flight: int = 0,
        keeps_stopped: bool = False,
    ) -> None:
        self.block_size = block_size
        self.grows = grows
        self.pool = pool if grows else None
        self.late = None if pool is None or pool.by_block else self.pool
        self.in_flight = in_flight
        self.keeps_stopped = keeps_stopped
        self.sought = False
        self.looked_up: dict[Generation, None] = {}
        self.filling: list[dict[Generation, None]] = [{} for _ in range(block_size)]
        self.clock = 0
        self.n = 0
        self.ctx = 0
        self.crossing = [0] * (2 * block_size)
        self.members: dict[Generation, None] = {}
        self.heap: list[tuple[int, int, Generation]] = []
        self.max_base = 0
        self.max_known = False

    def add(self, seq: Generation) -> None:
        """Add a sequence with `num_computed == num_tokens - 1`."""
        computed = seq.num_computed
        clock = self.clock
        base = computed - clock
        seq.base = base
        seq.grouped = True
        finish = seq.prompt_tokens + seq.target_tokens - 1 - base
        if finish == clock:   # it has its last token, but is in the next step all the same
            finish += 1
        seq.finish_clock = finish
        heappush(self.heap, (finish, seq.run_order, seq))
        self.members[seq] = None
        self.n += 1
        self.ctx += computed
        bs = self.block_size
        phase = -base % bs
        crossing = self.crossing
        crossing[phase] += 1
        crossing[phase + bs] += 1
        if self.n == 1:
            self.max_base, self.max_known = base, True
        elif base > self.max_base:
            self.max_base = base
        if self.pool is not None and (self.sought or (seq.content is not None and not self.pool.answers_alone(seq))):
            self.looked_up[seq] = self.filling[(self.in_flight - base) % bs][seq] = None

    def _leave(self, seq: Generation) -> int:
        """Take `seq` out of the aggregates; return its computed tokens."""
        base = seq.base
        computed = self.clock + base
        seq.grouped = False
        del self.members[seq]
        self.n -= 1
        self.ctx -= computed
        bs = self.block_size
        phase = -base % bs
        self.crossing[phase] -= 1
        self.crossing[phase + bs] -= 1
        if base == self.max_base:
            self.max_known = False
        return computed

    def end_with_next(self, seq: Generation) -> None:
        """Let the next token of a member be its last."""
        seq.finish_clock = self.clock + 1
        heappush(self.heap, (seq.finish_clock, seq.run_order, seq))

    def remove(self, seq: Generation) -> None:
        """Take out a sequence that has not finished, and update its own counts."""
        computed = self._leave(seq)
        self._restore(seq, computed)

    def _restore(self, seq: Generation, computed: int) -> None:
        seq.num_computed = computed
        seq.num_tokens = computed + 1
        if self.grows:
            seq.num_blocks = -(-computed // self.block_size)
        if seq in self.looked_up:
            del self.looked_up[seq], self.filling[(self.in_flight - seq.base) % self.block_size][seq]
        if self.late is not None:
            self.late.commit(seq, computed - self.in_flight)

    def clear(self) -> list[Generation]:
        """Take out all members (in order of admission), and update their own counts."""
        members = sorted(self.members, key=_run_order)
        clock, bs, grows = self.clock, self.block_size, self.grows
        hashed = bool(self.looked_up) or self.late is not None
        for seq in members:
            computed = clock + seq.base
            if hashed:
                self._restore(seq, computed)
            else:   # `_restore`, inlined
                seq.num_computed = computed
                seq.num_tokens = computed + 1
                if grows:
                    seq.num_blocks = -(-computed // bs)
            seq.grouped = False
        self.members.clear()
        self.heap.clear()
        self.n = self.ctx = 0
        self.crossing = [0] * (2 * self.block_size)
        return members

    @property
    def longest(self) -> int:
        """Cached tokens of the longest member; 0 without members."""
        if not self.n:
            return 0
        if not self.max_known:
            self.max_base = max([s.base for s in self.members])
            self.max_known = True
        return self.clock + self.max_base

    def steps_to_finish(self) -> int:
        """Return the steps until the first member finishes."""
        heap = self.heap
        while True:
            finish, order, seq = heap[0]
            if seq.grouped and seq.finish_clock == finish and seq.run_order == order:
                return finish - self.clock
            heappop(heap)   # an entry of a member that left earlier

    def blocks_for(self, num_steps: int) -> int:
        """Return the blocks that the next `num_steps` steps take."""
        bs = self.block_size
        if num_steps == 1:
            return self.crossing[self.clock % bs]
        whole, rest = divmod(num_steps, bs)
        total = whole * self.n
        if rest:
            start = self.clock % bs
            total += sum(self.crossing[start : start + rest])
        return total

    def steps_that_take(self, first: int, last: int) -> list[int]:
        """Return the steps from `first` up to `last`, the next one being 0, that take blocks."""
        bs = self.block_size
        taking = self.crossing[(self.clock + first) % bs:][:min(bs, last - first)]
        phases = [first + phase for phase, taken in enumerate(taking) if taken]
        return phases if last - first <= bs else [step for phase in phases for step in range(phase, last, bs)]

    def steps_within(self, num_steps: int, free_blocks: int) -> int:
        """Return how many of the next `num_steps` steps can run on `free_blocks` free blocks."""
        bs, n = self.block_size, self.n
        if (num_steps // bs + 1) * n <= free_blocks:
            return num_steps
        if self.blocks_for(num_steps) <= free_blocks:
            return num_steps
        whole = free_blocks // n
        left = free_blocks - whole * n
        steps = whole * bs
        start = self.clock % bs
        for taken in self.crossing[start : start + bs]:
            if taken > left:
                break
            left -= taken
            steps += 1
        return min(steps, num_steps)

    def fills(self, first: int, last: int) -> list[tuple[int, int, Generation, int]]:
        """Return the members in `looked_up` that fill blocks in the steps after `first` up to `last`.

        Items are (step, order of admission, sequence, its tokens known then), in this order.
        """
        bs, found = self.block_size, []
        for step in range(first + 1, min(last, first + bs) + 1):
            for seq in self.filling[(self.clock + step) % bs]:
                known = self.clock + seq.base - self.in_flight
                for later in range(step, last + 1, bs):
                    found.append((later, seq.run_order, seq, known + later))
        found.sort()
        return found

    def advance(self, num_steps: int) -> None:
        """Advance the group by `num_steps` steps."""
        self.clock += num_steps
        self.ctx += self.n * num_steps

    def pop_finished(self) -> list[Generation]:
        """Remove and return the members that are complete, in order of admission, with their own counts updated.

        One that a stop token ends stays, if the group `keeps_stopped`.
        """
        heap, clock, bs = self.heap, self.clock, self.block_size
        done: list[Generation] = []
        while heap and heap[0][0] <= clock:
            finish, order, seq = heappop(heap)
            if seq.grouped and seq.finish_clock == finish and seq.run_order == order:
                if self.keeps_stopped and seq.stops_early:
                    seq.finish_clock = clock + 1
                    heappush(heap, (clock + 1, order, seq))
                    done.append(seq)
                    continue
                # `remove`, inlined: every sequence passes here.
                base = seq.base
                computed = clock + base
                seq.grouped = False
                del self.members[seq]
                self.n -= 1
                self.ctx -= computed
                phase = -base % bs
                crossing = self.crossing
                crossing[phase] -= 1
                crossing[phase + bs] -= 1
                if base == self.max_base:
                    self.max_known = False
                seq.num_computed = computed
                seq.num_tokens = computed + 1
                if self.grows:
                    seq.num_blocks = -(-computed // bs)
                if self.pool is not None:
                    if seq in self.looked_up:
                        del self.looked_up[seq], self.filling[(self.in_flight - base) % bs][seq]
                    if self.late is not None:
                        self.late.commit(seq, computed - self.in_flight)
                done.append(seq)
        return done
