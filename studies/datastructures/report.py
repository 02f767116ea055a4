"""Study of seven data structures for serving and retrieval, with one table each.

Parts that need a missing library (bm25s, hnswlib or faiss), or the Mooncake trace (`--data`), are left out, and the
report says so.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from evidence.retrieval import CorpusConfig
from hermes.errors import InputError
from hermes.study import Compared, Context, Plot, Report, Table

from . import memory, retrieval, service, tools
from .figures import compared, eviction
from .findings import findings

__all__ = ["compare", "run"]

CAPACITIES = (2_000, 6_000, 20_000, 60_000)   # of the prefix cache, blocks
SEEDS, QUICK_SEEDS = 5, 2   # of the intervals of eviction


def run(context: Context) -> Report:
    quick = context.quick
    context.say("datastructures: memory")
    zipf = _contexts(context, (0.05, 0.1) if quick else memory.SHARES, tuple(memory.TIER_POLICIES))
    tables, panels, left_out = [memory.savings(), memory.runs_sharing(context), zipf], [zipf], []
    trace = _mooncake(context)
    if trace is None:
        left_out.append("The Mooncake trace: --data names the folder that has mooncake/conversation_trace.jsonl.")
    else:
        tables.append(trace)
        panels.append(trace)
    context.say("datastructures: sketch, admission, micro-batches")
    recency = context["recency"]
    tiers = (service.admission(context, 1000, 2, (10, 30), recency) if quick
             else service.admission(context, 3000, 5, (10, 20, 30), recency))
    tables += [
        tools.eviction_costs(2 if quick else 5),
        memory.sketch_errors(20_000 if quick else 100_000, 3 if quick else 20), tiers,
        service.micro_batches(context, 800 if quick else 6000, (100, 400, 1200), (0, 2, 5, 10)),
        service.submit_costs(2 if quick else 5),
    ]
    plots = [service.admission_plot(tiers)]
    context.say("datastructures: retrieval")
    try:
        found = _retrieval(quick)
        tables += found
        plots.append(retrieval.strengths_plot(next(table for table in found if table.name == "strengths")))
    except InputError as error:
        left_out.append(f"Retrieval: {error}")
    tables += [service.hybrid_runs(context, 1000 if quick else 4000, (100, 400, 800)), retrieval.powers(),
               tools.classes(), tools.heap_comparisons(), tools.heap_costs(2 if quick else 5)]
    policies = Plot("policies", "Tokens that need no prefill, by policy and capacity", memory.policy_plot(panels))
    frames = {table.name: table.frame for table in tables}
    return Report(tables, [policies, *plots], findings(frames, quick), left_out,
                  compared=compared(frames, _repeats(context), context["capacity"], recency, quick))


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change: those of eviction."""
    return eviction(_repeats(context), context["capacity"], context["recency"])


def _repeats(context: Context) -> list[pd.DataFrame]:
    """Return the contexts under LRU and TAMM at the assumed capacity, a frame for each seed, the table's first."""
    return [_contexts(context, (), ("lru", f"tamm {context['recency']}"), 11 + seed).frame
            for seed in range(QUICK_SEEDS if context.quick else SEEDS)]


def _contexts(context: Context, shares: tuple[float, ...], policies: tuple[str, ...], seed: int = 11) -> Table:
    """Return the table of evicted contexts at these shares and at the assumed capacity."""
    return memory.cache_policies(15_000 if context.quick else 60_000, context["zipf"], context["lengths"],
                                 sorted({*shares, context["capacity"] / 100}), policies, seed)


def _retrieval(quick: bool) -> list[Table]:
    config = CorpusConfig(documents=3000, queries=300) if quick else CorpusConfig(queries=1000)
    fusion, ablation, corpus, _ = retrieval.evaluation(config)
    links, efs = ((8, 32), (10, 50, 200)) if quick else ((4, 8, 16, 32), (10, 20, 50, 100, 200))
    return [fusion, ablation, retrieval.graph_sweep(corpus, links, efs, 2 if quick else 5),
            retrieval.hybrid_latency(corpus),
            *(retrieval.strengths(2000, 200, (1, 4), (1.2,)) if quick else
              retrieval.strengths(5000, 600, (1, 2, 4), (1.2, 2.4, 3.6))),
            retrieval.graph_seeds(2000 if quick else 10_000)]


def _mooncake(context: Context) -> Table | None:
    if context.data is None:
        return None
    from hermes.workload.importers import import_trace

    path: Path = context.need_data("mooncake", "conversation_trace.jsonl")
    frame = import_trace("mooncake", path)
    prompts = [(tuple(int(i) for i in ids), int(tokens))
               for ids, tokens in zip(frame["hash_ids"], frame["prompt_tokens"], strict=True)]
    return memory.trace_policies(prompts[:2000] if context.quick else prompts,
                                 CAPACITIES[:2] if context.quick else CAPACITIES)
