"""Study `datastructures`: seven structures for serving and retrieval, a figure of each.

Parts that need a library that is not installed (bm25s, hnswlib or faiss), or the Mooncake trace (`--data`), are left
out, and the report says so. docs/studies/datastructures.md says what was found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.errors import InputError
from hermes.rag.evaluation import CorpusConfig
from hermes.studies import structures_memory as memory
from hermes.studies import structures_retrieval as retrieval
from hermes.studies import structures_tools as tools
from hermes.studies.base import STUDIES, Context
from hermes.studies.report import Plot, Report, Table

__all__ = ["DataStructures"]

CAPACITIES = (2_000, 6_000, 20_000, 60_000)

ASSUMPTIONS = [
    "Savings are counted in blocks of the allocator, never in memory of the process.",
    "Zipf workloads and the judged corpus are generated. The corpus is not FIQA: a document is relevant if it is about "
    "all that a query asks for, which neither scorer sees; its figures are not comparable with FIQA's.",
    "Times of operations are CPU times of the machine that runs this; times of searches are shipped measurements.",
]


@STUDIES.register("datastructures")
class DataStructures:
    """See the module's docstring."""

    title = "Data structures: shared pages, eviction, sketches, fused retrieval, seeded graphs, variance, a heap"

    def run(self, context: Context) -> Report:
        quick, folder = context.quick, context.file("chunks.yaml").parent
        context.say("datastructures: memory")
        zipf = memory.cache_policies(15_000 if quick else 60_000)
        tables, panels, left_out = [memory.savings(), memory.runs_sharing(folder), zipf], [zipf], []
        trace = self._mooncake(context)
        if trace is None:
            left_out.append("The Mooncake trace: --data names the folder that has mooncake/conversation_trace.jsonl.")
        else:
            tables.append(trace)
            panels.append(trace)
        context.say("datastructures: sketch, admission, micro-batches")
        tables += [
            memory.sketch_errors(20_000 if quick else 100_000, 3 if quick else 20),
            memory.admission(folder, 1500 if quick else 6000),
            memory.micro_batches(folder, 1500 if quick else 6000, (100, 400, 1200), (0, 2, 5, 10)),
        ]
        context.say("datastructures: retrieval")
        try:
            tables += self._retrieval(quick)
        except InputError as error:
            left_out.append(f"Retrieval: {error}")
        tables += [retrieval.powers(), tools.classes(), tools.heap_costs(3 if quick else 5)]
        found = {table.name: table.frame for table in tables}
        plot = Plot("policies", "Tokens that need no prefill, by policy and capacity", memory.policy_plot(panels))
        return Report(self.title, ASSUMPTIONS + left_out, tables, [plot], _findings(found))

    @staticmethod
    def _retrieval(quick: bool) -> list[Table]:
        config = CorpusConfig(documents=3000, queries=300) if quick else CorpusConfig(queries=1000)
        fusion, ablation, corpus, _ = retrieval.evaluation(config)
        links, efs = ((8, 32), (10, 50, 200)) if quick else ((4, 8, 16, 32), (10, 20, 50, 100, 200))
        return [fusion, ablation, retrieval.graph_sweep(corpus, links, efs), retrieval.hybrid_latency(corpus),
                retrieval.graph_seeds(2000 if quick else 10_000)]

    @staticmethod
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


def _best(frame: Any, capacity: str) -> str:
    return "; ".join(
        f"{value:,g}: " + " > ".join(f"{row['policy']} {row['tokens saved %']:.1f}%" for _, row in
                                     mine.sort_values("tokens saved %", ascending=False).iterrows())
        for value, mine in frame.groupby(capacity))


def _findings(found: dict[str, Any]) -> list[str]:
    worst = (found["savings"]["saved %"] - found["savings"]["formula %"]).abs().max()
    lines = [f"1. Blocks of the allocator and the formula differ by {worst:.2g} percentage points at most.",
             f"2. Tokens saved, Zipf contexts, by capacity in percent: {_best(found['zipf'], 'capacity %')}."]
    if "mooncake" in found:
        best = _best(found["mooncake"], "capacity (blocks)")
        lines.append(f"2. Tokens saved, Mooncake, by capacity in blocks: {best}.")
    sketch, tiers, batches = found["sketch"], found["admission"], found["micro_batches"]
    lines.append(f"3. Estimates above the bound: {sketch['above the bound'].max():.4%} at most (allowed: "
                 f"{sketch['delta'].iloc[0]:.2%}); below the truth: {int(sketch['below the truth'].sum())}.")
    lines += [f"3. P95 of a fetch, {row['policy']}, {row['memory tier']}: {row['P95 ms']:.1f} ms "
              f"({row['P95 change %']:+.1f}%)." for _, row in tiers.iterrows() if row["P95 change %"]]
    for rate, mine in batches[batches["submit us"] == 0].groupby("rate/s"):
        least = mine.loc[mine["P95 ms"].idxmin()]
        lines.append(f"3. Micro-batches at {rate}/s: P95 is least ({least['P95 ms']:.1f} ms) with a window of "
                     f"{least['window ms']:g} ms.")
    if "fusion" in found:
        fusion = found["fusion"].set_index("method")["recall@10"]
        both = found["ablation"]
        both = both[(both["measure"] == "recall@10")].set_index("adds")
        lines += [
            "4. recall@10: " + ", ".join(f"{name} {value:.3f}" for name, value in fusion.items()) + ".",
            "4. To the naive sum's recall@10 " + "; ".join(
                f"{name} adds {row['difference']:+.3f} ({row['from']:+.3f} to {row['to']:+.3f})"
                for name, row in both.iterrows()) + ".",
            f"5. The same seed and order: {found['seeds'].iloc[0, 1]:.0f}% of the queries have the same neighbours.",
        ]
    for _, row in found["powers"].iterrows():
        lines.append(f"5. {row['measured']}: time grows like {row['time grows like']}^{row['exponent']:.2f} "
                     f"({row['from']:.2f} to {row['to']:.2f}).")
    heap = found["heap"]
    mine = heap[heap["structure"].str.startswith("indexed")]
    took, other = mine["us at 10^5"], heap[heap["structure"] == "sorted list"]["us at 10^5"].iloc[0]
    lines.append(f"7. At 10^5 entries: {took.min():.1f} to {took.max():.1f} us an operation; a sorted list: "
                 f"{other:.1f} us.")
    return lines
