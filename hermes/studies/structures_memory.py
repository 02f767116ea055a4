"""Study `datastructures`, memory: shared pages, eviction, counts in a sketch, admission, warming and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hermes.content import HashedPrompt, TokenPrompt
from hermes.memory import BlockPool, PrefixBlockPool, RankedPrefixPool
from hermes.memory.common import CommonPrompt
from hermes.memory.eviction import EVICTION
from hermes.memory.pages import shared_savings
from hermes.memory.sketch import CountMinSketch
from hermes.memory.tiers import Store
from hermes.studies.report import Table

__all__ = ["admission", "cache_policies", "micro_batches", "policy_plot", "runs_sharing", "savings", "sketch_errors",
           "trace_policies"]

TOTAL, SEQUENCES = 1000, 100
TIER_POLICIES = ("lru", "fifo", "lfu", "gdsf", "tamm")
PREFIX_POLICIES: tuple[Any, ...] = ("lru", "lfu", "gdsf", "tamm")


@dataclass(eq=False)
class _Prompt:
    """A sequence as a pool of blocks sees it."""

    content: Any
    num_tokens: int
    num_blocks: int = 0
    num_computed: int = 0
    prompt_tokens: int = 0   # nobody asks here
    common: CommonPrompt | None = None

    def block_key(self, index: int, block_size: int) -> object:
        key = self.content.block_key(index, block_size)
        return (id(self), index) if key is None else key


def savings() -> Table:
    """Blocks that 100 sequences of 1,000 tokens take of a prefix cache, by the tokens they have in common."""
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


def runs_sharing(folder: Path) -> Table:
    """What two runs report of sharing."""
    from hermes.api import simulate

    rows = []
    for name in ("shared-prompt", "branches"):
        found = simulate(folder / f"{name}.yaml").summary
        sharing = found["sharing"]
        rows.append({"run": name, "saved blocks": sharing["saved_blocks"], "used then": sharing["used_blocks"],
                     "saved %": 100 * sharing["saved_share"], "copied": sharing["copied_blocks"],
                     "rejected": found["requests"]["rejected"]})
    return Table("runs_sharing", "1. What a run reports: prompts that begin alike, and branches that copy on write",
                 pd.DataFrame(rows), "At the moment of most sharing; generated tokens are part of what is used.",
                 {"saved %": 2})


def cache_policies(accesses: int) -> Table:
    """Whole contexts of unequal length by a Zipf law, under every policy of the tiers."""
    rng = np.random.default_rng(11)
    tokens = np.clip(np.rint(rng.lognormal(6.6, 1.0, 2000)), 16, 32_768).astype(int)   # mean about 1,200
    weights = 1 / np.arange(1, 2001) ** 0.9
    keys = rng.choice(2000, accesses, p=weights / weights.sum())
    rows = []
    for share in (0.02, 0.05, 0.1, 0.2, 0.4):
        for policy in TIER_POLICIES:
            store = Store(int(share * tokens.sum()), EVICTION.get(policy)())
            saved = 0
            for key in keys.tolist():
                size = int(tokens[key])
                if store.get(key) is None:
                    store.put(key, size)
                else:
                    saved += size
            rows.append({"capacity %": 100 * share, "policy": policy, "hit %": 100 * store.hits / accesses,
                         "tokens saved %": 100 * saved / int(tokens[keys].sum()), "refused": store.refused})
    return Table("zipf", f"2. Eviction: {accesses:,} accesses to 2,000 contexts, Zipf 0.9, lengths lognormal",
                 pd.DataFrame(rows), "Capacity in tokens, as a share of all contexts together. No clock.",
                 {"hit %": 1, "tokens saved %": 1})


def trace_policies(prompts: Sequence[tuple[tuple[int, ...], int]], capacities: Sequence[int]) -> Table:
    """A trace of (block hashes, tokens) through the prefix cache, one prompt after the other."""
    rows = []
    for capacity in capacities:
        for policy in PREFIX_POLICIES:
            pool: BlockPool = PrefixBlockPool(capacity, 512) if policy == "lru" else RankedPrefixPool(
                capacity, 512, policy=policy)
            found = blocks = prompts_hit = total = 0
            for ids, tokens in prompts:
                prompt = _Prompt(HashedPrompt(ids, 512), tokens)
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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(tables), 3.8), layout="constrained")
    for axis, table in zip(np.atleast_1d(figure.subplots(1, len(tables))), tables, strict=True):
        capacity = table.frame.columns[0]
        for policy, mine in table.frame.groupby("policy", sort=False):
            axis.plot(mine[capacity], mine["tokens saved %"], marker="o", markersize=3, label=str(policy))
        axis.set(xlabel=capacity, ylabel="tokens saved %", xscale="log", title=table.name)
        ticks = sorted(set(table.frame[capacity]))
        axis.set_xticks(ticks, [f"{value:,g}" for value in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    return figure


def sketch_errors(counts: int, sketches: int) -> Table:
    """How far estimates lie above the truth, against the bounds: width 2048, depth 4."""
    rng = np.random.default_rng(12)
    rows = []
    for label, exponent in (("even", 0.0), ("Zipf 0.9", 0.9), ("Zipf 1.2", 1.2)):
        weights = 1 / np.arange(1, 20_001) ** exponent
        outside, low, worst = [], 0, 0.0
        for seed in range(sketches):
            keys = rng.choice(20_000, counts, p=weights / weights.sum())
            sketch = CountMinSketch(seed=seed)
            sketch.add_many(keys)
            true = np.bincount(keys, minlength=20_000)
            seen = np.flatnonzero(true)[::7]
            error = np.array([sketch.estimate(key) for key in seen.tolist()]) - true[seen]
            outside.append(float((error > sketch.epsilon * counts).mean()))
            low, worst = low + int((error < 0).sum()), max(worst, float(error.max()) / counts)
        rows.append({"keys": label, "counts": counts, "epsilon": sketch.epsilon, "worst error / counts": worst,
                     "above the bound": float(np.mean(outside)), "delta": sketch.delta, "below the truth": low})
    return Table("sketch", f"3. Count-Min sketch, {sketches} of them: errors against the bound", pd.DataFrame(rows),
                 digits={"epsilon": 5, "worst error / counts": 5, "above the bound": 5, "delta": 4})


VARIANTS: dict[str, list[str]] = {
    "everything comes in": [],
    "admission": ["clients.1.tiers.0.admission=frequency"],
    "warming": ["clients.1.warming={every: 100, entries: 150}"],
    "admission + warming": ["clients.1.tiers.0.admission=frequency", "clients.1.warming={every: 100, entries: 150}"],
}


def admission(folder: Path, requests: int) -> Table:
    """Time to fetch a chunk, with and without admission and warming."""
    from hermes.api import simulate

    rows = []
    for policy in ("lru", "tamm"):
        for name, overrides in VARIANTS.items():
            found = simulate(folder / "chunks.yaml", overrides=[
                f"workload.requests={requests}", f"clients.1.tiers.0.policy={policy}", *overrides]).summary
            fetch, memory = found["stages"]["fetch_kv"]["service_s"], found["tiers"]["memory"]
            rows.append({
                "policy": policy, "memory tier": name, "hit %": 100 * memory["hit_rate"],
                "mean ms": 1e3 * fetch["mean"],
                "P50 ms": 1e3 * fetch["p50"], "P95 ms": 1e3 * fetch["p95"], "written GB": memory["written_bytes"] / 1e9,
                "peak share": memory["peak_share"], "rejected": found["requests"]["rejected"],
            })
    frame = pd.DataFrame(rows)
    base = frame.groupby("policy")["P95 ms"].transform("first")
    frame.insert(6, "P95 change %", 100 * (frame["P95 ms"] / base - 1))
    return Table("admission", "3. Retrieval of KV chunks (Zipf 0.9): memory of 16 GB over a disk", frame,
                 "The paper hopes for a P95 20 to 30% lower.", {"hit %": 1, "P95 change %": 1, "peak share": 3})


def micro_batches(folder: Path, requests: int, rates: Sequence[int], windows_ms: Sequence[float]) -> Table:
    """Retrieval latency (waiting for the batch included) against the window, with and without a cost per submit."""
    from hermes.api import simulate

    rows = []
    for rate in rates:
        for window in windows_ms:
            for cost_us in (0, 20):
                results = simulate(folder / "micro-batches.yaml", overrides=[
                    f"workload.requests={requests}", f"workload.arrivals.rate={rate} /s",
                    f"clients.0.batch_window={window} ms", f"clients.0.submit_cost={cost_us} us"])
                stages = results.record.stages
                mine = stages["kind"] == results.record.stage_kinds.index("retrieve")
                took = (stages["end_ns"] - stages["assigned_ns"])[mine] / 1e6
                batches = len(np.unique(stages["start_ns"][mine]))
                rows.append({"rate/s": rate, "window ms": window, "submit us": cost_us,
                             "mean batch": mine.sum() / batches, "P50 ms": float(np.percentile(took, 50)),
                             "P95 ms": float(np.percentile(took, 95))})
    return Table("micro_batches", "3. Micro-batches in front of retrieval (IVF-PQ on a large CPU, at most 32 a batch)",
                 pd.DataFrame(rows), "Waiting for the batch is part of the latency.", {"mean batch": 2})
