"""A prefix cache in segments and the reference, driven side by side by random operations.

Sequences arrive, are looked up, admitted, computed in chunks, decode alone or in a group, split into branches, end or
are preempted. After each operation the whole state of both pools is compared: the free queue block by block, which of
several equal blocks is the oldest, who holds what, and every count that anybody reads.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from hermes.core.block_hashes import GroupPrefix, HashedPieces, HashedPrompt, NameRuns
from hermes.core.branches import branch_into
from hermes.core.generation import Generation
from hermes.memory import PrefixBlockPool
from hermes.memory.reference import ReferencePrefixPool

MAX_PROMPT, MAX_ANSWER = 40, 30
PER_WORLD = 200   # operations


class Talk:
    """A text that everybody begins with, then that of one conversation, answers included."""

    def __init__(self, session: int, system: int) -> None:
        self.session, self.system = session, system

    def block_key(self, index: int, block_size: int) -> object:
        return ("group", 0, index) if (index + 1) * block_size <= self.system else ("talk", self.session, index)

    def name_runs(self, block_size: int) -> NameRuns:
        return (("group", 0), self.system // block_size), (("talk", self.session), 1 << 40)


class Keyed:
    """A content that only has keys; those before `fork` are the same for all."""

    def __init__(self, number: int, fork: int, tokens: int) -> None:
        self.number, self.fork, self.tokens = number, fork, tokens

    def block_key(self, index: int, block_size: int) -> object:
        end = (index + 1) * block_size
        return ("key", self.number if end > self.fork else 0, index) if end <= self.tokens else None


def contents(rng: random.Random, prompt: int) -> Any:
    """What a new prompt has in common with others."""
    kind = rng.choice(("nothing", "group", "group", "hashed", "hashed", "pieces", "talk", "keyed"))
    shared = rng.randint(0, prompt)
    if kind == "group":
        return GroupPrefix(rng.randint(0, 2), rng.choice((shared, prompt)))
    if kind == "hashed":
        unit, group = rng.choice((1, 4, 6, 16)), rng.randint(0, 1)
        blocks = -(-prompt // unit)
        ids = [10 * group + b % 7 if b * unit < shared else 1000 + rng.randint(0, 3) for b in range(blocks)]
        return HashedPrompt(tuple(ids[: rng.choice((blocks, blocks, blocks // 2))]), unit, prompt)
    if kind == "pieces":   # of unequal lengths: those up to `shared` are the same for all of a group
        group, lengths = rng.randint(0, 1), random.Random(7)
        ends: list[int] = []
        while (ends[-1] if ends else 0) < prompt:
            ends.append((ends[-1] if ends else 0) + lengths.randint(1, 9))
        ids = [100 + 50 * group + i if end <= shared else 2000 + 50 * rng.randint(0, 2) + i
               for i, end in enumerate(ends)]
        return HashedPieces(tuple(ids), tuple(ends), prompt)
    if kind == "talk":
        return Talk(rng.randint(0, 2), rng.choice((0, 7, 12)))
    if kind == "keyed":
        return Keyed(rng.randint(1, 2), shared, prompt)
    return None


class Pair:
    """One sequence, once for each pool."""

    def __init__(self, ours: Generation, theirs: Generation) -> None:
        self.ours, self.theirs = ours, theirs
        self.steps = 0           # decoded in the group, not told to the sequences
        self.looked_up = False   # in the group: others may look up what it writes

    def __iter__(self) -> Any:
        return iter((self.ours, self.theirs))


class World:
    """Both pools, and the sequences that know them. `operate` does something; `compare` asserts that they agree."""

    def __init__(self, seed: int, pool_type: type[PrefixBlockPool] = PrefixBlockPool) -> None:
        self.rng = rng = random.Random(seed)
        self.block_size = rng.choice((1, 2, 3, 4, 5))
        num_blocks = rng.choice((6, 12, 20, 40)) * (2 if self.block_size < 3 else 1)
        front = rng.random() < 0.6
        self.ours = pool_type(num_blocks, self.block_size, unhashed_to_front=front)
        self.theirs = ReferencePrefixPool(num_blocks, self.block_size, unhashed_to_front=front)
        self.in_flight = rng.choice((0, 0, 1))
        self.waiting: list[Pair] = []
        self.running: list[Pair] = []
        self.group: list[Pair] = []
        self.count = 0
        self.texts: list[Any] = []   # of the latest prompts
        self.done: Counter[str] = Counter()
        self.latest = ""
        self.capacity = num_blocks * self.block_size

    # -- operations ------------------------------------------------------------------------------------------------

    def operate(self) -> None:
        """One operation; those that find nothing to do do not count."""
        while True:
            self.latest = str(self.rng.choices(*OPERATIONS)[0])
            if getattr(self, self.latest)() is not False:
                self.done[self.latest] += 1
                return

    def arrive(self) -> Any:
        if len(self.waiting) >= 4:
            return False
        rng = self.rng
        prompt = rng.randint(1, min(MAX_PROMPT, self.capacity - 1))
        if rng.random() < 0.4:   # whole blocks: the last is never found, so that it exists twice
            prompt = max(1, prompt // self.block_size) * self.block_size
        content = contents(rng, prompt)
        if self.texts and rng.random() < 0.5:
            content = rng.choice(self.texts)   # of another prompt, maybe a longer or a shorter one
        self.texts = [content, *self.texts[:3]]
        self.wait(prompt, content)
        return None

    def wait(self, prompt: int, content: Any) -> Pair:
        self.count += 100
        pair = Pair(*(Generation(prompt, MAX_ANSWER, arrival_order=self.count, content=content) for _ in range(2)))
        self.waiting.append(pair)
        return pair

    def admit(self) -> Any:
        if not self.waiting:
            return False
        pair = self.rng.choice(self.waiting)
        ours, theirs = pair
        hit = self.same("hit_tokens", pair)
        tokens = min(hit + self.rng.choice((1, 3, 8, 100)), ours.num_tokens)
        extra = self.rng.choice((0, 0, 0, 3))   # memory for the answer, reserved with the prompt
        if self.same("missing_blocks", pair, tokens + extra) > self.theirs.free_blocks:
            return False
        known = tokens if self.rng.random() < 0.3 else None
        self.ours.admit(ours, tokens + extra, known)
        self.theirs.admit(theirs, tokens + extra, known)
        self.waiting.remove(pair)
        self.running.append(pair)
        self.computed(pair, tokens)
        return None

    def computed(self, pair: Pair, tokens: int) -> None:
        for seq in pair:
            seq.num_computed = tokens
            if tokens == seq.num_tokens:
                seq.num_tokens += 1

    def go_on(self) -> Any:
        """A chunk of a prompt, or a token; the last may be in flight."""
        if not self.running:
            return False
        pair = self.rng.choice(self.running)
        ours, theirs = pair
        tokens = min(ours.num_computed + self.rng.choice((1, 1, 2, 5, 30)), ours.num_tokens)
        known = ours.num_computed if self.in_flight and ours.num_computed >= ours.prompt_tokens else None
        fits = self.ours.grow(ours, tokens, known)
        assert fits == self.theirs.grow(theirs, tokens, known)
        if fits:
            self.computed(pair, tokens)
        return fits

    def tell(self) -> Any:
        """The token in flight is known now."""
        if not self.running:
            return False
        ours, theirs = self.rng.choice(self.running)
        if ours.num_blocks < self.ours.blocks_for(ours.num_computed):
            return False
        self.ours.commit(ours, ours.num_computed)
        self.theirs.commit(theirs, theirs.num_computed)
        return None

    def join(self) -> Any:
        """A sequence with all its tokens but the last computed joins the group."""
        pair = next((p for p in self.running if p.ours.num_computed == p.ours.num_tokens - 1
                     and p.ours.num_computed >= p.ours.prompt_tokens
                     and p.ours.num_blocks == self.ours.blocks_for(p.ours.num_computed)), None)
        if pair is None:
            return False
        for pool, seq in zip((self.ours, self.theirs), pair, strict=True):
            pool.commit(seq, seq.num_computed - self.in_flight)
        alone = self.ours.answers_alone(pair.ours)
        assert alone == self.theirs.answers_alone(pair.theirs)
        pair.looked_up, pair.steps = not alone, 0
        self.running.remove(pair)
        self.group.append(pair)
        return None

    def run(self) -> Any:
        """The group decodes some tokens each, as `LLMScheduler.take_blocks` tells the pools."""
        steps = self.rng.choice((1, 1, 2, 7))
        bs = self.block_size
        ends = {pair: pair.ours.num_computed + pair.steps for pair in self.group}
        blocks = sum(-(-(end + steps) // bs) + -end // bs for end in ends.values())
        if not ends or blocks > self.theirs.free_blocks:
            return False
        self.ours.take(blocks)
        filled = []
        for pair, end in ends.items():
            after = end + steps
            self.theirs.grow(pair.theirs, after, 0 if pair.looked_up else after - self.in_flight)
            pair.steps += steps
            if pair.looked_up:
                known = end - self.in_flight
                filled += [(tokens - known, i, pair, tokens) for i, tokens in
                           ((pair.ours.arrival_order, t) for t in range(known + 1, known + steps + 1))
                           if tokens % bs == 0]
        for _step, _order, pair, tokens in sorted(filled, key=lambda fill: fill[:2]):
            self.ours.commit(pair.ours, tokens)
            self.theirs.commit(pair.theirs, tokens)
        return None

    def leave_group(self) -> Any:
        if not self.group:
            return False
        pair = self.group.pop(self.rng.randrange(len(self.group)))
        for seq in pair:
            seq.num_computed += pair.steps
            seq.num_tokens = seq.num_computed + 1
            seq.num_blocks = self.ours.blocks_for(seq.num_computed)
        self.ours.commit(pair.ours, pair.ours.num_computed - self.in_flight)
        self.running.append(pair)
        return None

    def leave(self) -> Any:
        """Finish, or be preempted and wait again with the outputs kept."""
        if not self.running:
            return False
        pair = self.rng.choice(self.running)
        self.end(pair)
        if self.rng.random() < 0.4 and pair.ours.num_tokens < self.capacity:
            self.waiting.append(pair)
        return None

    def reserve(self) -> Any:
        """Memory for KV that is going to arrive over the network."""
        pair = next((p for p in self.waiting if not p.ours.num_computed), None)
        if pair is None:
            return False
        fits = self.ours.grow(pair.ours, pair.ours.num_tokens)
        assert fits == self.theirs.grow(pair.theirs, pair.theirs.num_tokens)
        if fits:
            self.waiting.remove(pair)
            self.running.append(pair)
            self.computed(pair, pair.ours.num_tokens)
        return fits

    def doubles(self) -> Any:
        """The same text twice, since its KV comes over the network, the younger one longer; a third is in between."""
        first, more = self.rng.randint(1, 4), self.rng.randint(2, 5)
        bs = self.block_size
        if 2 * first + more > self.theirs.free_blocks or len(self.waiting) >= 4:
            return False
        content = GroupPrefix(self.rng.randint(0, 2), (first + more) * bs)
        for blocks in (first, first + more):
            pair = self.wait(blocks * bs, content)
            self.waiting.remove(pair)
            for pool, seq in zip((self.ours, self.theirs), pair, strict=True):
                assert pool.grow(seq, seq.num_tokens)
            self.running.append(pair)
            self.computed(pair, blocks * bs)
            if self.rng.random() < 0.6:
                self.end(pair)
        self.wait(self.rng.randint(first + 1, first + more) * bs, content)
        return None

    def branch(self) -> Any:
        """A sequence with its whole prompt splits up."""
        leads = [p for p in self.running if p.ours.num_computed >= p.ours.prompt_tokens
                 and p.ours.branches is None and p.ours.num_tokens == p.ours.num_computed + 1]
        if not leads:
            return False
        lead = max(leads, key=lambda p: p.ours.num_computed - p.ours.prompt_tokens)   # with most of an answer
        follow_up = lead.ours.num_computed + 2 * self.block_size
        if self.rng.random() < 0.6 and lead.ours.content is not None and follow_up < self.capacity:
            self.same("hit_tokens", self.wait(follow_up, lead.ours.content))   # just before blocks are split
        outputs = tuple(self.rng.randint(2, MAX_ANSWER) for _ in range(self.rng.randint(2, 3)))
        others = [branch_into(seq, outputs).branches.split(seq) for seq in lead]
        if self.rng.random() < 0.3:   # what the lead writes from here on is not what its content said
            content = GroupPrefix(self.rng.randint(0, 2), 0) if self.rng.random() < 0.5 else None
            lead.ours.content = lead.theirs.content = content
        self.ours.relate(lead.ours, [])
        self.theirs.relate(lead.theirs, [])
        for pair in (Pair(*both) for both in zip(*others, strict=True)):
            self.ours.share(lead.ours, pair.ours)
            self.theirs.share(lead.theirs, pair.theirs)
            self.running.append(pair)
            if self.rng.random() < 0.4:   # for one that has all its tokens, no more is taken at once
                continue
            fits = self.ours.grow(pair.ours, pair.ours.num_computed)
            assert fits == self.theirs.grow(pair.theirs, pair.theirs.num_computed)
            if not fits:
                self.end(pair)
        if self.rng.random() < 0.4:
            self.end(lead)
        return None

    def end(self, pair: Pair) -> None:
        self.running.remove(pair)
        self.ours.free(pair.ours)
        self.theirs.free(pair.theirs)
        for seq in pair:
            seq.num_computed = 0

    # -- comparison ------------------------------------------------------------------------------------------------

    def same(self, question: str, pair: Pair, *arguments: int) -> int:
        answers = [getattr(pool, question)(seq, *arguments)
                   for pool, seq in zip((self.ours, self.theirs), pair, strict=True)]
        assert answers[0] == answers[1], f"{question}{arguments}: {answers[0]}, the reference says {answers[1]}"
        return int(answers[0])

    def compare(self) -> None:
        for name in ("free_blocks", "shared_blocks", "peak_shared_blocks", "used_at_peak", "copied_blocks"):
            ours, theirs = getattr(self.ours, name), getattr(self.theirs, name)
            assert ours == theirs, f"{name}: {ours}, the reference has {theirs}"
        mine, reference = in_segments(self.ours), block_by_block(self.theirs)
        for pair in self.group:
            self.forget_unnamed(pair, reference["carriers"])
        for what in mine:
            assert mine[what] == reference[what], f"{what}: {mine[what]}, the reference has {reference[what]}"
        for pair in self.running:
            assert pair.ours.num_blocks == pair.theirs.num_blocks
        for pair in self.running:
            held = in_chain(self.ours, pair.ours, mine["carriers"])
            assert held == in_list(self.theirs, pair.theirs), f"blocks of {pair.ours.arrival_order}: {held}"
        for pair in self.waiting[-1:]:
            if self.rng.random() < 0.2:   # the answer depends on its tokens, whatever was asked before
                self.with_tokens(pair, max(1, pair.ours.num_tokens - self.block_size))
            self.same("hit_tokens", pair)
            self.same("missing_blocks", pair, pair.ours.num_tokens)


    def with_tokens(self, pair: Pair, tokens: int) -> None:
        self.same("hit_tokens", pair)
        before = pair.ours.num_tokens
        pair.ours.num_tokens = pair.theirs.num_tokens = tokens
        self.same("hit_tokens", pair)
        pair.ours.num_tokens = pair.theirs.num_tokens = before

    def forget_unnamed(self, pair: Pair, carriers: dict[Any, list[int]]) -> None:
        """What a member of the group wrote is hashed when it leaves. Nobody can tell: nothing of its key is younger."""
        ours, theirs = pair
        for index in range(self.ours._chains[ours].end, self.theirs._committed.get(theirs, 0)):
            assert not pair.looked_up, "others may look this up, and it is not hashed"
            assert carriers[ours.arrival_order, index].pop() == 1
            if not carriers[ours.arrival_order, index]:
                del carriers[ours.arrival_order, index]


OPERATIONS = (
    ("arrive", "admit", "go_on", "tell", "join", "run", "leave_group", "leave", "reserve", "branch",
     "doubles"),
    (6, 8, 8, 1, 4, 6, 3, 5, 2, 3, 1),
)


def key(name: Any, index: int) -> Any:
    """The block key that (name, index) stands for."""
    if not isinstance(name, tuple):
        return name, index
    return name if name[0] == "key" else (*name, index)


def block_by_block(pool: ReferencePrefixPool) -> dict[str, Any]:
    """Free queue as (key, how many carriers of this key are older), None without a hash; holders by carrier."""
    lists = {k: [c] if isinstance(c, int) else c for k, c in pool._cached.items()}
    queue = [None if pool._key_of[b] is None else (pool._key_of[b], lists[pool._key_of[b]].index(b))
             for b in pool._queue]
    return {"queue": queue, "carriers": {k: [pool._refs[b] for b in c] for k, c in lists.items()}}


def in_list(pool: ReferencePrefixPool, seq: Generation) -> list[Any]:
    found: list[Any] = []
    for block in pool._blocks[seq]:
        k = pool._key_of[block]
        carriers = pool._cached.get(k)
        found.append(None if k is None else (k, 0 if isinstance(carriers, int) else carriers.index(block)))  # type: ignore[union-attr]
    return found


def in_segments(pool: PrefixBlockPool) -> dict[str, Any]:
    """The same of a pool in segments."""
    carriers: dict[Any, list[int]] = defaultdict(list)
    ordinal: dict[tuple[int, int], tuple[Any, int]] = {}
    for name, known in pool._index.by_name.items():
        for segment in known if isinstance(known, list) else [known]:
            assert segment.name == name
            assert segment.lo < segment.hi, "an empty segment"
            for index in range(segment.lo, segment.hi):
                k = key(name, index)
                ordinal[id(segment), index] = k, len(carriers[k])
                carriers[k].append(segment.refs)
    queue: list[Any] = [None] * pool._num_unhashed
    for segment in pool._queue:
        assert segment.refs == 0, "somebody holds a segment of the free queue"
        assert segment.after.before is segment, "the ring is broken"
        queue += [None if segment.name is None else ordinal[id(segment), index]
                  for index in reversed(range(segment.lo, segment.hi))]
    return {"queue": queue, "carriers": dict(carriers)}


def in_chain(pool: PrefixBlockPool, seq: Generation, carriers: Any) -> list[Any]:
    chain = pool._chains[seq]
    found: list[Any] = []
    for segment in chain.segments():
        known = pool._index.by_name[segment.name]
        for index in range(segment.lo, segment.hi):
            older = 0
            for other in known if isinstance(known, list) else [known]:
                if other is segment:
                    break
                older += other.lo <= index < other.hi
            found.append((key(segment.name, index), older))
    assert len(found) == chain.end, "a chain with a hole"
    return found + [None] * (seq.num_blocks - chain.end)


def drive(seeds: range, operations: int, pool_type: type[PrefixBlockPool] = PrefixBlockPool) -> Counter[str]:
    """Worlds of these seeds, so many operations each; how often which operation did something."""
    done: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, pool_type)
        for number in range(operations):
            try:
                world.operate()
                world.compare()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, operation {number} ({world.latest}): {error}") from error
        done.update(world.done)
    return done


if __name__ == "__main__":   # python tests/memory/pool_pair.py OPERATIONS [FIRST_SEED]: any number of them
    import sys

    count, first = int(float(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    for low in range(0, count // PER_WORLD, 1000):
        worlds = min(1000, count // PER_WORLD - low)
        drive(range(first + low, first + low + worlds), PER_WORLD)
        print(f"{(low + worlds) * PER_WORLD:,} operations: the pools agree", flush=True)
