"""SGLang's scheduler without overlap scheduling (docs/background/sglang.md; the rules' numbers are of that page).

A step is a prefill batch if one can be made, and a decode batch of all running requests otherwise. Which waiting
requests join depends on memory that running ones may still need: the new-token ratio estimates it. When a decode batch
lacks memory, requests are retracted: they lose their KV and wait at the end of the queue.

Decode batches come in runs: until a request is done, blocks run out or must be evicted, or a waiting request may join.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import itemgetter
from typing import TYPE_CHECKING

from hermes.compiled import mypyc_attr
from hermes.core.generation import Generation
from hermes.core.reasons import Reason
from hermes.errors import HermesError
from hermes.memory.blocks import BlockPool
from hermes.memory.radix import Node, RadixPool, RadixTree, runs_of
from hermes.schedulers.base import AT_REST, DOWN, IN_STEP, LLMScheduler, run_order
from hermes.schedulers.plan import Plan
from hermes.sums import float_sum

if TYPE_CHECKING:
    from hermes.schedulers.sglang_config import SglangConfig

__all__ = ["Budget", "SglangScheduler"]

CLIP_MAX_NEW_TOKENS = 4096        # of one request, in reservations
LONGEST_SORTED_QUEUE = 128        # longer ones are served in order of arrival, whatever the policy
REFRESH_INTERVAL = 32             # prefill passes between uses of waiting prompts' prefixes
KNOWN = 1 << 30                   # plans since a request was given up, once it waits for its last token
FEW_TOKENS = 32                   # a match of no more counts as none for the order within a batch


class Budget:
    """Budget left of a prefill batch, in tokens (rules 6 to 8).

    Attributes:
        total: Reserved in memory, including what requests may still generate.
        current: Reserved in memory for prompts alone.
        input: Left of `max_prefill_tokens`.
        chunk: Left of `chunked_prefill_size`; None without chunked prefill.
        states: (tokens to generate, tokens held) of all requests, once `_fits_to_the_end` has needed them.
    """

    __slots__ = ("chunk", "current", "input", "page", "pool", "states", "total")

    def __init__(self, pool: BlockPool, reserved: float, decodes: int, prefill: int, chunk: int | None) -> None:
        self.pool, self.page = pool, pool.block_size
        self.total, self.current = decodes + reserved, decodes
        self.input = prefill - decodes
        self.chunk = None if chunk is None else chunk - decodes
        self.states: list[tuple[int, int]] | None = None

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    @property
    def left(self) -> float:
        """Tokens of memory that no request has and none may need."""
        return self.pool.free_blocks * self.page - self.total

    @property
    def left_now(self) -> int:
        return self.pool.free_blocks * self.page - self.current

    @property
    def memory_spent(self) -> bool:
        return self.left <= 0 or self.left_now <= 0

    @property
    def batch_spent(self) -> bool:
        return self.input <= 0 or (self.chunk is not None and self.chunk <= 0)

    def take(self, tokens: int, later: int) -> None:
        """Charge a request that joins with `tokens` new ones and may generate `later`."""
        tokens = self.pages(tokens)
        self.total += tokens + self.page + later
        self.current += tokens + self.page
        self.input -= tokens
        if self.chunk is not None:
            self.chunk -= tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class SglangScheduler(LLMScheduler):
    """See the module's docstring. every_step: plan single decode batches.

    Attributes:
        chunk: The request whose prompt is computed in part.
        full: No waiting request is tried before a running one leaves (SGLang's `batch_is_full`).
        ratio: New-token ratio.
    """

    ticks_every_step = False
    takes_over_kv = False
    splits = False
    ending: dict[Generation, bool] = {}   # with overlap: ended in the batch in flight

    def __init__(self, config: SglangConfig, pool: BlockPool, *, every_step: bool = False) -> None:
        super().__init__(pool, max_num_seqs=config.max_running_requests,
                         max_num_batched_tokens=config.max_num_batched_tokens)
        self.group.pool = self.group.late = None   # answers enter the tree in `complete`
        self.tree = pool if isinstance(pool, RadixPool) else None
        self.every_step = every_step
        self.chunk_size = config.chunked_prefill_size if config.chunked_prefill_size > 0 else None
        self.max_prefill_tokens = config.max_prefill_tokens
        self.mixed = config.enable_mixed_chunk and self.chunk_size is not None
        self.ignore_eos = config.ignore_eos
        self.asked = config.max_new_tokens or 0
        cached_only = config.schedule_policy in ("lpm", "dfs-weight")
        self.policy = "fcfs" if cached_only and self.tree is None else config.schedule_policy
        self.init_ratio = min(config.init_new_token_ratio * config.schedule_conservativeness, 1.0)
        self.min_ratio = min(self.init_ratio * config.min_new_token_ratio_factor, 1.0)
        self.decay = (self.init_ratio - self.min_ratio) / config.new_token_ratio_decay_steps
        self.retract_steps = config.retract_decode_steps
        self.ratio = self.init_ratio
        self.chunk: Generation | None = None
        self.full = False
        self._passes = 0       # of the waiting queue, for the refresh of its prefixes
        self._first = 0        # order of the first running request, for mixed batches
        self.decays = False   # the plan in flight lowers the ratio
        self._given_up: dict[Generation, int] = {}   # sequences that were given up, and the plans made since
        self._asked: dict[Generation, int] = {}      # of those that end with their next token: what they asked for

    # -- arrivals ------------------------------------------------------------------------------------------------

    def can_ever_fit(self, seq: Generation) -> str | None:
        if seq.branches is not None:
            return "has several branches, which this scheduler does not serve"
        most = self._most_new_tokens(seq)
        if seq.target_tokens > most:
            return (f"needs {seq.target_tokens} output tokens after {seq.prompt_tokens} prompt tokens, the client's "
                    f"memory ({self.pool.num_blocks * self.pool.block_size} tokens) leaves {max(most, 0)}")
        return None

    def _most_new_tokens(self, seq: Generation) -> int:
        """Return the tokens that memory leaves to a request that runs alone (rule 2)."""
        page = self.pool.block_size
        whole = (self.pool.num_blocks - self.pool.blocks_for(seq.prompt_tokens)) * page
        return whole - page - 1 - (self.ignore_eos and self.tree is None)

    def max_new_tokens(self, seq: Generation) -> int:
        """Return the tokens that a request asks for, as far as memory allows."""
        if self._asked and seq in self._asked:
            return self._asked[seq]
        wanted = 0 if self.ignore_eos else self.asked or seq.max_new_tokens
        asked = max(wanted, seq.target_tokens)
        return min(asked, self._most_new_tokens(seq)) if asked > seq.target_tokens else asked

    def wants_cut(self, seq: Generation) -> bool:
        return not self.full and self.group.n < self.max_num_seqs

    def stop_of_arrival(self) -> int:
        return self.stopped if self.full else int(Reason.SLOTS)

    # -- steps ---------------------------------------------------------------------------------------------------

    def plan(self, max_steps: int) -> Plan | None:
        group = self.group
        if (self.waiting and not self.full) or self.chunk is not None or (self.waiting and not group.n):
            plan = Plan()
            self._prefill_batch(plan)
            if plan.prefills:
                return plan
        if group.n:
            return self._decode_batch(max_steps)
        self.ratio = self.init_ratio   # SGLang's `on_idle`
        return None

    def _decode_batch(self, max_steps: int) -> Plan:
        """Plan decode batches of all running requests (rules 9 to 11)."""
        group = self.group
        if not self._fits(group.blocks_for(1)):
            plan = Plan()
            self._retract(plan)
            self.decays = False
            self._make_room(group.n)
            self.plan_decodes(plan)
            return plan
        self.decays = True
        if self.pool.block_size > 1:
            self._make_room(group.n)
        plan = self._run
        plan.decode_seqs = plan.sampled = group.n
        plan.decode_ctx = group.ctx
        plan.decode_ctx_max = group.longest
        plan.num_steps = 1 if self.every_step or (self.waiting and not self.full) else self._steps(max_steps)
        plan.taken = 0
        return plan

    def _steps(self, max_steps: int) -> int:
        """Return the decode batches until a request is done, or blocks must be evicted or run out."""
        group, pool = self.group, self.pool
        steps = min(group.steps_to_finish(), max_steps)
        if self.tree is None or not self.tree.tree.evictable:
            return group.steps_within(steps, pool.free_blocks)
        if steps > 1:   # each batch asks for a block of each request, whether it needs one or not
            steps = 1 + group.steps_within(steps - 1, max(0, self.tree.available - group.n))
        return steps

    def _make_room(self, num_blocks: int) -> None:
        if self.tree is not None:
            self.tree.make_room(num_blocks)

    def _fits(self, num_blocks: int) -> bool:
        """Whether so many blocks are free, after evicting as many as that takes."""
        if self.tree is None:
            return num_blocks <= self.pool.free_blocks
        self.tree.make_room(num_blocks)
        return num_blocks <= self.tree.available

    # -- prefill batches -----------------------------------------------------------------------------------------

    def _prefill_batch(self, plan: Plan) -> None:
        """Add the chunked request, then waiting requests in order (rules 3 to 8)."""
        waiting, running = self.waiting, self.num_running
        if not running:
            self.full = False
        if (self.full or not waiting) and self.chunk is None:
            return
        slots = self.max_num_seqs - running
        if slots <= 0 and self.chunk is None:
            self.full, self.stopped = True, int(Reason.SLOTS)
            return
        self._sort_waiting()
        decodes = running if self.mixed else 0
        budget = Budget(self.pool, self._reserved(), decodes, self.max_prefill_tokens, self.chunk_size)
        joined: list[tuple[Generation, int]] = []
        if self.chunk is not None:
            joined.append(self._next_chunk(self.chunk, budget))
        while waiting and (budget.memory_spent or not budget.batch_spent):
            if len(joined) >= slots:
                self.full, self.stopped = True, int(Reason.SLOTS)
            if self.full:
                break
            if not self._join(waiting.peek(), budget, joined):
                break
            if budget.memory_spent:
                self.full, self.stopped = True, int(Reason.KV_MEMORY)
                break
        else:
            self.stopped = int(Reason.TOKEN_BUDGET)
        if joined:
            self._allocate(plan, joined)

    @property
    def num_running(self) -> int:
        """Running requests, as far as the engine knows at this point."""
        return self.group.n

    def _outputs(self) -> list[tuple[Generation, int]]:
        """Return the running requests in order, and their output tokens, as far as the engine knows."""
        clock = self.group.clock
        return [(seq, clock + seq.base + 1 - seq.prompt_tokens) for seq in self.group.members]

    def _reserved(self) -> float:
        """Return the tokens that running requests may still generate, as the ratio estimates them."""
        ratio = 1.0 if self.ignore_eos else self.ratio
        asked = self.max_new_tokens
        # in running order: the sum is one of floats
        return float_sum([min(asked(seq) - outputs, CLIP_MAX_NEW_TOKENS) * ratio for seq, outputs in self._outputs()])

    def _next_chunk(self, seq: Generation, budget: Budget) -> tuple[Generation, int]:
        """Charge the next part of the chunked request, or its rest."""
        assert budget.chunk is not None
        limit = min(budget.chunk, int(budget.left))
        if limit <= 0:   # it goes on, to give back its memory one day
            limit = budget.chunk
        rest = seq.num_tokens - seq.num_computed
        if rest > limit:
            budget.take(limit, 0)
            return seq, limit
        self.chunk = None
        budget.take(rest, min(self.max_new_tokens(seq), CLIP_MAX_NEW_TOKENS))
        return seq, rest

    def _join(self, seq: Generation, budget: Budget, joined: list[tuple[Generation, int]]) -> bool:
        """Let the head of the queue join, whole or in part; return False, without any change, if it does not fit."""
        node, page = None, budget.page
        past = 0
        if self.tree is not None:
            node = self.tree.match(seq, seq.num_tokens - 1)
            past = node.hi * page
        n = seq.num_tokens - past
        asked = self.max_new_tokens(seq)
        if self.ignore_eos and node is None:
            fits = self._fits_to_the_end(seq, n, budget, joined)
        else:
            more = min(max(asked - (seq.num_tokens - seq.prompt_tokens), 0), CLIP_MAX_NEW_TOKENS)
            pinned = 0 if self.tree is None or node is None else self.tree.tree.idle_blocks(node) * page
            fits = n + more + page < budget.left - pinned
        self.stopped = int(Reason.TOKEN_BUDGET)   # if one of the next two does not fit
        if not fits:
            self.full, self.stopped = bool(joined) or self.num_running > 0, int(Reason.KV_MEMORY)
            return False
        later = min(asked, CLIP_MAX_NEW_TOKENS)
        if budget.chunk is None:
            if joined and budget.pages(n) >= budget.input and not (self.ignore_eos and node is None):
                return False
        elif (n if self.ignore_eos and node is None else budget.pages(n)) > budget.chunk:
            n = budget.chunk if self.ignore_eos and node is None else budget.chunk // page * page
            if n <= 0:
                return False
            self.chunk, later = seq, 0
        self.admit(seq)
        if self.tree is not None and node is not None:
            self.tree.hold(seq, node)
        if seq.start_ns < 0:
            seq.cached_tokens = past
        seq.num_computed = past
        budget.take(n, later)
        joined.append((seq, n))
        return True

    def _fits_to_the_end(self, seq: Generation, n: int, budget: Budget, joined: list[tuple[Generation, int]]) -> bool:
        """Whether every request can generate all its tokens, one completion after the other (rule 7)."""
        need = budget.pages(n) + budget.page
        if need > min(budget.left_now, budget.left):
            return False
        mine = (self.max_new_tokens(seq) - (seq.num_tokens - seq.prompt_tokens), seq.num_tokens)
        states = budget.states
        if states is None:
            states = [mine]
            states += [(self.max_new_tokens(one) - outputs, one.prompt_tokens + outputs)
                       for one, outputs in self._outputs()]
            states += [(self.max_new_tokens(one) - (one.num_tokens - one.prompt_tokens), one.num_tokens)
                       for one, _ in joined]
            states = sorted((state for state in states if state[0] > 0), key=itemgetter(0))
            budget.states = states
        else:
            # SGLang puts one that goes on longer than all others before the last of them
            place = next((i for i, state in enumerate(states) if mine[0] <= state[0]), max(0, len(states) - 1))
            states.insert(place, mine)
        free = budget.left_now - need
        for i, (left, held) in enumerate(states):
            others = len(states) - i
            if free - left * others <= others:
                return False
            free += held
        return True

    def _allocate(self, plan: Plan, joined: list[tuple[Generation, int]]) -> None:
        """Take the blocks of a prefill batch, and let running requests join it if they may (rule 12)."""
        pool, page = self.pool, self.pool.block_size
        tokens = sum(n for _, n in joined)
        self._make_room(tokens if page == 1 else -(-(tokens + len(joined) * page) // page))
        for seq, n in joined:
            past = seq.num_computed
            if not pool.grow(seq, past + n):
                raise HermesError("SGLang would stop here: a prefill batch lacks KV memory that running requests have "
                                  "taken; raise schedule_conservativeness")
            plan.add_prefill(seq, n, past)
            seq.num_computed = past + n
        if self.mixed:
            self._mix(plan)

    def _mix(self, plan: Plan) -> None:
        """Let running requests decode in a prefill batch if their blocks fit."""
        group = self.group
        if group.n and self._fits(group.blocks_for(1)):
            if self.pool.block_size > 1:
                self._make_room(group.n)
            self.plan_decodes(plan)
            self.decays = False

    # -- order of the queue --------------------------------------------------------------------------------------

    def _sort_waiting(self) -> None:
        """Sort the waiting queue, and use the prefixes of its prompts now and then (rule 3)."""
        waiting, tree = self.waiting, self.tree
        if not waiting:
            return
        policy = self.policy
        if policy == "lpm" and len(waiting) > LONGEST_SORTED_QUEUE:
            policy = "fcfs"
        if policy == "lof":
            self._put_back(sorted(waiting, key=lambda seq: -self.max_new_tokens(seq)))
        if tree is None:
            return
        if policy in ("lpm", "dfs-weight"):
            self._sort_by_prefix(policy, tree)
            return
        if self._passes % REFRESH_INTERVAL == 0:
            for seq in reversed(list(waiting)[:LONGEST_SORTED_QUEUE]):
                tree.match(seq, seq.num_tokens)
        self._passes += 1

    def _put_back(self, order: list[Generation]) -> None:
        while self.waiting:
            self.waiting.pop()
        for seq in order:
            self.waiting.push(seq)

    def _sort_by_prefix(self, policy: str, tree: RadixPool) -> None:
        """Sort by the match in the tree. Of waiting prompts that begin alike and match little, only the first counts:
        the others would compute what it computes."""
        page, early = self.pool.block_size, RadixTree()
        keys: dict[Generation, float] = {}
        nodes: dict[Generation, Node] = {}
        for seq in self.waiting:
            node = nodes[seq] = tree.match(seq, seq.num_tokens)
            matched = node.hi * page
            keys[seq] = -min(matched, seq.num_tokens - 1)
            if matched <= FEW_TOKENS:
                runs = runs_of(seq, 1)
                if early.match(runs, seq.num_tokens).hi >= FEW_TOKENS:
                    keys[seq] = float("inf")
                else:
                    early.insert(runs, seq.num_tokens)
        if policy == "lpm":
            self._put_back(sorted(self.waiting, key=keys.__getitem__))
        else:
            self._put_back(_depth_first(tree.tree.root, nodes))

    # -- retraction ----------------------------------------------------------------------------------------------

    def _retract(self, plan: Plan, over: Collection[Generation] = ()) -> None:
        """Retract the requests with the fewest output tokens, of those the longest prompts, until the others fit.

        over: Requests that decode outside the group (overlap scheduling).
        """
        group, page = self.group, self.pool.block_size
        order = sorted([*group.clear(), *over], key=run_order)
        order.sort(key=lambda seq: (self._known_outputs(seq), -seq.prompt_tokens), reverse=True)
        retracted = 0
        while not retracted or not self._fits(sum(one.num_computed % page == 0 for one in order)):
            assert len(order) > 1, "a request alone lacks memory, although it was accepted"
            seq = order.pop()
            retracted += 1
            if seq in over:
                self._end_early(seq)
            else:
                self._take_back(seq, plan)
            self._make_room(-(-len(order) * self.retract_steps // page))
        tokens = asked = 0
        for seq in order:
            seq.run_order = self.num_admissions
            self.num_admissions += 1
            if seq not in over:
                group.add(seq)
            tokens += self._known_outputs(seq)
            asked += self.max_new_tokens(seq)
        self.ratio = min(1.0, (tokens + self.retract_steps * len(order)) / (asked + 1))
        self.full, self.stopped = False, int(Reason.KV_MEMORY)

    def _take_back(self, seq: Generation, plan: Plan) -> None:
        """Free the blocks of a request taken out of the group; it waits behind the others."""
        del self.running[seq]
        self._lose_in_flight(seq)
        self._close_segment(seq)
        self.pool.free(seq)
        seq.num_computed = 0
        seq.preemptions += 1
        self.num_preemptions += 1
        plan.preempted.append(seq)
        self.waiting.push(seq)

    def _end_early(self, seq: Generation) -> None:
        """Free the blocks of a request that has ended, unknown to the engine."""
        raise AssertionError("the results of all batches are known")

    def _known_outputs(self, seq: Generation) -> int:
        """Return the output tokens of a request outside the group, as far as the engine knows."""
        return seq.num_tokens - seq.prompt_tokens

    def _lose_in_flight(self, seq: Generation) -> None:
        """Drop the token of a retracted request that the batch in flight computes; here, none does."""

    # -- requests that are given up (rule 25) ----------------------------------------------------------------------

    def _knows(self, seq: Generation) -> bool:
        """Whether the engine knows, when it plans the next batch, that a sequence is given up."""
        return self._given_up.get(seq, -1) >= int(self.asynchronous)

    def leave(self, seq: Generation, when: int) -> bool:
        if when != DOWN and (when != AT_REST or not self.asynchronous):
            self._given_up.setdefault(seq, 0)
            if when == IN_STEP or self._stays(seq):
                return False
        return super().leave(seq, when)

    def _stays(self, seq: Generation) -> bool:
        """Whether the engine goes on with a sequence that was given up, now that the results of a batch are known."""
        if seq in self.running and seq is not self.chunk:
            if seq not in self._asked:
                self._end_with_next(seq)
            if self._knows(seq):
                self._given_up[seq] = KNOWN
            return True
        if seq in self.ending:
            return False
        return not self._knows(seq) or (self._given_up[seq] == KNOWN and self.has(seq))   # or it is yet to be queued

    def _end_with_next(self, seq: Generation) -> None:
        """Let a running sequence end with its next token, as with a stop token."""
        self._asked[seq] = self.max_new_tokens(seq)
        tokens = self.group.clock + seq.base + 1 if seq.grouped else seq.num_tokens
        seq.target_tokens = tokens - seq.prompt_tokens + 1
        if seq.grouped:
            self.group.end_with_next(seq)

    def _take_out(self, seq: Generation) -> None:
        if seq is self.chunk:
            self.chunk = None
        super()._take_out(seq)

    def release(self, seq: Generation) -> None:
        super().release(seq)
        if self._given_up:
            self._given_up.pop(seq, None)
            self._asked.pop(seq, None)

    # -- results -------------------------------------------------------------------------------------------------

    def complete(self, plan: Plan, num_steps: int, step: int, now_ns: int) -> list[Generation]:
        group, prefills = self.group, plan.prefills
        if plan.decodes and self.decays:
            for _ in range(num_steps):
                self.ratio = max(self.ratio - self.decay, self.min_ratio)
        if prefills:
            if plan.decodes:   # a mixed batch: its prompts come first in running order
                self._first -= len(prefills)
                for place, (seq, _n) in enumerate(prefills):
                    seq.run_order = self._first + place
            if self.chunk is not None or plan.decodes or not group.n:
                self.full = False   # SGLang: the batch lost a request, or takes the place of the running one
        running = list(group.members) if prefills and plan.decodes else None
        finished = super().complete(plan, num_steps, step, now_ns)
        if running is not None:
            self._first_in_order(running)
        self._results(prefills, finished)
        return finished

    def _results(self, prefills: list[tuple[Generation, int]], finished: list[Generation]) -> None:
        """Process the results of a batch."""
        if finished:
            self.full = False
        if self.tree is not None:
            self._checkpoint(prefills, finished)

    def _first_in_order(self, running: list[Generation]) -> None:
        """Put the members of the decode group that joined before those that ran."""
        members = self.group.members
        for seq in running:
            if seq in members:
                del members[seq]
                members[seq] = None

    def _checkpoint(self, prefills: list[tuple[Generation, int]], finished: list[Generation]) -> None:
        """Put what was computed into the tree, in the order of the batch, the unfinished chunk last."""
        tree = self.tree
        assert tree is not None
        chunk = None
        for seq, _n in prefills:
            if seq is self.chunk:
                chunk = seq
            else:
                tree.commit(seq, seq.num_computed)
        done = {seq for seq, _n in prefills}
        for seq in finished:
            if seq not in done:
                tree.commit(seq, seq.num_computed)
        if chunk is not None and not self._knows(chunk):
            tree.commit(chunk, chunk.num_computed)


def _depth_first(root: Node, nodes: dict[Generation, Node]) -> list[Generation]:
    """Return sequences in depth-first order of their nodes, the child with the most of them first."""
    of_node: dict[Node, list[Generation]] = {}
    for seq, node in nodes.items():
        of_node.setdefault(node, []).append(seq)

    weights: dict[Node, int] = {}

    def weigh(node: Node) -> int:
        # a path counts a child's own weight, as SGLang does: the sum of its subtree
        weights[node] = len(of_node.get(node, ())) + sum([weigh(child) for child in node.children.values()])
        return weights[node]

    order: list[Generation] = []

    def visit(node: Node) -> None:
        for child in sorted(node.children.values(), key=lambda child: -weights[child]):
            visit(child)
        order.extend(of_node.get(node, ()))

    weigh(root)
    visit(root)
    return order
