"""Shared pages, eviction, and counts in a sketch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hermes.core.block_hashes import HashedPrompt, NameRuns, TokenPrompt, name_runs
from hermes.core.common_prompt import CommonPrompt
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.memory.eviction import EVICTION, EvictionPolicy, Recency
from hermes.memory.pages import shared_savings
from hermes.memory.prefix_eviction import RankedPrefixPool, TammPrefixPool
from hermes.memory.size_aware import Tamm
from hermes.memory.sketch import CountMinSketch
from hermes.memory.tiers import Store
from hermes.study import Context, Point, Table, run_points

__all__ = [
    "RECENCIES", "SHARES", "TIER_POLICIES", "cache_policies", "copied_pages", "policy_plot", "runs_sharing", "savings",
    "sketch_errors", "trace_policies",
]

TOTAL, SEQUENCES = 1000, 100
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)   # capacities, as a share of all contexts together
RECENCIES: tuple[Recency, ...] = ("rank", "age", "counter")
# name in the tables -> a new policy of a tier
TIER_POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    **{name: EVICTION.get(name) for name in ("lru", "fifo", "lfu", "gdsf")},
    **{f"tamm {recency}": partial(Tamm, recency) for recency in RECENCIES},
}
# the same for a prefix cache
PREFIX_POLICIES: dict[str, Callable[..., BlockPool]] = {
    "lru": PrefixBlockPool, **{name: partial(RankedPrefixPool, policy=name) for name in ("fifo", "lfu", "gdsf")},
    **{f"tamm {recency}": partial(TammPrefixPool, recency=recency) for recency in RECENCIES},
}


@dataclass(eq=False)
class _Prompt:
    """A sequence as a pool of blocks sees it."""

    content: Any
    num_tokens: int
    num_blocks: int = 0
    num_computed: int = 0
    grouped: bool = False
    prompt_tokens: int = 0   # unused here
    common: CommonPrompt | None = None

    def block_key(self, index: int, block_size: int) -> object:
        key = self.content.block_key(index, block_size)
        return (id(self), index) if key is None else key

    @property
    def own_name(self) -> int:
        return id(self)

    def name_runs(self, block_size: int) -> NameRuns:
        return name_runs(self.content, block_size)


def savings() -> Table:
    """Blocks of a prefix cache for 100 sequences of 1,000 tokens, by the number of common tokens."""
    rows = []
    for page in (16, 512):
        for prefix in (100, 200, 500, 800):
            alone = SEQUENCES * -(-TOTAL // page)
            pool = PrefixBlockPool(alone, page)
            for seq in range(SEQUENCES):
                pool.admit(_Prompt(TokenPrompt([*range(prefix), *([10**6 + seq] * (TOTAL - prefix))]), TOTAL), TOTAL)
            used = pool.num_blocks - pool.free_blocks
            rows.append({
                "page": page, "prefix": prefix, "blocks alone": alone, "blocks": used,
                "saved %": 100 * (1 - used / alone),
                "formula %": 100 * shared_savings(prefix, TOTAL, SEQUENCES, page),
                "paper's p/1000 (N-1)/N %": 100 * prefix / TOTAL * (SEQUENCES - 1) / SEQUENCES,
            })
    return Table("savings", "1. Blocks saved by sharing a prefix: 100 sequences of 1,000 tokens", pd.DataFrame(rows),
                 "formula: floor(p / page) (N - 1) / (N ceil(1000 / page)).",
                 {"saved %": 2, "formula %": 2, "paper's p/1000 (N-1)/N %": 2})


def copied_pages(changed: int = 10, common: int = 1024, own: int = 512, page: int = 16) -> int:
    """Return the blocks of 100 sequences with a common prompt, some of which change its last tokens.

    Each sequence ends with a page of its own, as a request that generates does; these pages are not counted.
    """
    pool = PrefixBlockPool(SEQUENCES * (common // page + 1), page)
    for seq in range(SEQUENCES):
        tail = (own if seq < changed else 0) + page
        tokens = [*range(common + page - tail), *([10**6 + seq] * tail)]
        pool.admit(_Prompt(TokenPrompt(tokens), len(tokens)), len(tokens))
    return pool.num_blocks - pool.free_blocks - SEQUENCES


def runs_sharing(context: Context) -> Table:
    """Sharing as two runs report it."""
    rows = []
    for name in ("shared-prompt", "branches"):
        found = run_points(context, name, [Point(name)], scenario=f"{name}.yaml").iloc[0]
        rows.append({"run": name, "saved blocks": found["sharing.saved_blocks"],
                     "used then": found["sharing.used_blocks"], "saved %": 100 * found["sharing.saved_share"],
                     "copied": found["sharing.copied_blocks"], "rejected": found["requests.rejected"]})
    return Table("runs_sharing", "1. What a run reports: prompts that begin alike, and branches that copy on write",
                 pd.DataFrame(rows), "At the moment of most sharing; generated tokens are part of what is used.",
                 {"saved %": 2})


def cache_policies(
    accesses: int, zipf: float = 0.9, spread: float = 1.0, shares: Sequence[float] = SHARES,
    policies: Sequence[str] = tuple(TIER_POLICIES), seed: int = 11,
) -> Table:
    """Whole contexts of unequal length by a Zipf law, under every policy of the tiers.

    spread: Standard deviation of the logarithm of the lengths.
    """
    rng = np.random.default_rng(seed)
    tokens = np.clip(np.rint(rng.lognormal(6.6, spread, 2000)), 16, 32_768).astype(int)   # mean about 1,200
    weights = 1 / np.arange(1, 2001) ** zipf
    keys = rng.choice(2000, accesses, p=weights / weights.sum())
    rows = []
    for share in shares:
        for policy in policies:
            store = Store(int(share * tokens.sum()), TIER_POLICIES[policy]())
            found, used = np.zeros(accesses, dtype=bool), np.zeros(accesses)
            for i, key in enumerate(keys.tolist()):
                found[i] = store.get(key) is not None
                if not found[i]:
                    store.put(key, int(tokens[key]))
                used[i] = store.used_bytes
            asked = tokens[keys]
            quarters = [100 * asked[part][found[part]].sum() / asked[part].sum()
                        for part in (slice(accesses // 4, accesses // 2), slice(-(accesses // 4), None))]
            rows.append({"capacity %": round(100 * share, 6), "policy": policy, "hit %": 100 * store.hits / accesses,
                         "tokens saved %": 100 * asked[found].sum() / asked.sum(), "2nd quarter %": quarters[0],
                         "4th quarter %": quarters[1],
                         "budget in use %": 100 * used[accesses // 4:].mean() / store.capacity_bytes,
                         "refused": store.refused})
    return Table("zipf", f"2. Eviction: {accesses:,} accesses to 2,000 contexts, Zipf {zipf:g}, lengths lognormal",
                 pd.DataFrame(rows), "Capacity in tokens, as a share of all contexts together. No clock. Quarters of "
                 "the accesses: tokens saved in the second and in the last; budget in use: from the second on.",
                 {"hit %": 1, "tokens saved %": 1, "2nd quarter %": 1, "4th quarter %": 1, "budget in use %": 1})


def trace_policies(prompts: Sequence[tuple[tuple[int, ...], int]], capacities: Sequence[int]) -> Table:
    """A trace of (block hashes, tokens) through the prefix cache, one prompt after the other."""
    rows = []
    for capacity in capacities:
        for policy, make in PREFIX_POLICIES.items():
            pool = make(capacity, 512)
            found = blocks = prompts_hit = total = 0
            for ids, tokens in prompts:
                prompt = _Prompt(HashedPrompt(ids, 512, tokens), tokens)
                total += tokens
                blocks += tokens // 512
                if pool.blocks_for(tokens) > capacity:
                    continue
                hit = pool.hit_tokens(prompt)
                found, prompts_hit = found + hit, prompts_hit + (hit > 0)
                pool.admit(prompt, tokens)
                pool.free(prompt)
            rows.append({"capacity (blocks)": capacity, "policy": policy, "hit %": 100 * found / 512 / blocks,
                         "tokens saved %": 100 * found / total,
                         "prompts with a hit %": 100 * prompts_hit / len(prompts)})
    return Table("mooncake", f"2. Eviction in the prefix cache: {len(prompts):,} prompts, Mooncake conversation trace",
                 pd.DataFrame(rows), "Blocks of 512 tokens, one prompt at a time: a bound for caches on the clock.",
                 {"hit %": 2, "tokens saved %": 2, "prompts with a hit %": 1})


def policy_plot(tables: Sequence[Table]) -> Any:
    """Tokens saved against capacity, a panel for each workload."""
    figure = Figure(figsize=(5.2 * len(tables), 4.2), layout="constrained")
    for axis, table in zip(np.atleast_1d(figure.subplots(1, len(tables))), tables, strict=True):
        capacity = table.frame.columns[0]
        for policy, mine in table.frame.groupby("policy", sort=False):
            # LRU is wide: TAMM by rank lies on it nearly everywhere
            axis.plot(mine[capacity], mine["tokens saved %"], "--" if str(policy).startswith("tamm") else "-",
                      linewidth=5.0 if policy == "lru" else 1.6, alpha=0.5 if policy == "lru" else 1.0, marker="o",
                      markersize=3, label=str(policy))
        axis.set(xlabel=capacity, ylabel="tokens saved %", xscale="log", title=table.name)
        ticks = sorted(set(table.frame[capacity]))
        axis.set_xticks(ticks, [f"{value:,g}" for value in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), frameon=False, ncols=4, loc="outside upper center")
    return figure


def sketch_errors(counts: int, sketches: int) -> Table:
    """Error of estimates above the truth, against the bounds: width 2048; depth 4, and 1, where the bound is tight
    enough to be approached."""
    rng = np.random.default_rng(12)
    rows = []
    for label, exponent in (("even", 0.0), ("Zipf 0.9", 0.9), ("Zipf 1.2", 1.2)):
        weights = 1 / np.arange(1, 20_001) ** exponent
        drawn = [rng.choice(20_000, counts, p=weights / weights.sum()) for _ in range(sketches)]
        for depth in (4, 1):
            outside, low, worst = [], 0, 0.0
            for seed, keys in enumerate(drawn):
                sketch = CountMinSketch(depth=depth, seed=seed)
                sketch.add_many(keys)
                true = np.bincount(keys, minlength=20_000)
                seen = np.flatnonzero(true)[::7]
                error = np.array([sketch.estimate(key) for key in seen.tolist()]) - true[seen]
                outside.append(float((error > sketch.epsilon * counts).mean()))
                low, worst = low + int((error < 0).sum()), max(worst, float(error.max()) / counts)
            rows.append({"keys": label, "depth": depth, "counts": counts, "epsilon": sketch.epsilon,
                         "worst error / counts": worst, "above the bound": float(np.mean(outside)),
                         "delta": sketch.delta, "below the truth": low})
    return Table("sketch", f"3. Count-Min sketch, width 2048, {sketches} of each kind: errors against the bound",
                 pd.DataFrame(rows), "Above the bound: estimates more than epsilon x counts too high; up to delta.",
                 {"epsilon": 5, "worst error / counts": 5, "above the bound": 5, "delta": 4})
