"""Study `rag-placement`: on which machine to embed and to retrieve (docs/studies/rag-placement.md).

Sweeps of the scenarios in scenarios/studies/rag-placement: the six placements on two links, one request at a time;
questions of one length, for the comparison by hand; what of the context moves; variants of the index; and the
placements again as streams of requests, until they do not keep up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes.config.yaml_document import load_yaml
from hermes.explore import SweepResults, run_sweep
from hermes.studies import rag_tables as tables
from hermes.studies.base import STUDIES, Context
from hermes.studies.rag_figures import PARTS
from hermes.studies.report import Report, Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RagPlacement"]

TOKENS = 1024         # of a question in the comparison by hand
MEAN_QUESTION = 1155  # mean of the Azure conversation trace
RATES = [0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
QUICK_RATES = [0.2, 0.5, 1.0, 3.0]
REQUESTS, QUICK_REQUESTS = (300, 1000), (40, 150)   # one at a time, and of a stream
SLOW, QUICK = "Mistral-7B / small CPU", "E5-Base / A100 + large CPU"

ASSUMPTIONS = [
    "LLM: Llama-3.1-8B, bf16, on one H100 (fitted profile), chunked batching; questions and answers: Azure "
    "conversations.",
    "Embedding: the whole question; fp32 on the CPUs (60% of peak arithmetic, 80% of bandwidth: assumed), bf16 on the "
    "A100 (factors fitted on that card). E5-Base reads 512 tokens at a time.",
    "Index: 20 billion vectors in 4 million lists, 50 lists probed, 5,000 codes each. 96-byte codes would be 1.9 TB; "
    "32-byte codes with 8-byte identities (800 GB) fit 1 TB beside centroids and model. Vectors are as wide as the "
    "model's.",
    "Coarse search through a tree of sqrt(4 million) groups; one query on one core, which scans 18 GB/s (RAGO). The "
    "table of variants says what a flat search, other codes, shards and a slower scan do.",
    "Cores: 144 (large CPU) and 56 (small), from the peaks at 32 flops a cycle; not given.",
    "Context: 20 passages of 512 tokens, moved as text (4 bytes a token) over a link of 32 or 8 GB/s with 10 us of "
    "latency (assumed). No reranking in the bars; the table of variants has one.",
    "Watts of the CPUs are assumed.",
]


@STUDIES.register("rag-placement")
class RagPlacement:
    """See the module's docstring."""

    title = "RAG placement: two embedding models on a large CPU, a small CPU, and an A100 beside the large CPU"

    def run(self, context: Context) -> Report:
        from hermes.studies.rag_plots import bars_plot, rates_plot

        requests, many = QUICK_REQUESTS if context.quick else REQUESTS
        placements = self._placements(context, "placement", {"workload.requests": [requests]})
        fixed = self._placements(context, "fixed-length", {
            "workload.requests": [5], "network.bandwidth": [tables.FAST],
            "workload.lengths": [{"kind": "fixed", "prompt": TOKENS, "output": 211}],
        })
        streams = self._placements(context, "streams", {
            "workload.requests": [many], "network.bandwidth": [tables.FAST],
            "workload.arrivals.rate": QUICK_RATES if context.quick else RATES,
        }, "stream.yaml")
        moved = self._sweep(context, "moved", {"workload.requests": [max(1, requests // 4)]})
        index = self._sweep(context, "index", {"workload.requests": [max(1, requests // 4)]})
        batch = self._sweep(context, "batch", {
            "workload.requests": [many], "workload.arrivals.rate": [0.1, 0.2],
        })
        bars, machines = placements.frame(), tables.machines(placements, MEAN_QUESTION)
        stream = streams.frame()
        found = [
            tables.bars(bars), tables.links(bars), tables.by_hand(fixed.frame(), TOKENS), tables.moved(moved.frame()),
            tables.phases(placements), tables.index(index.frame()), machines, tables.limits(stream, machines.frame),
            tables.rates(stream), tables.batches(batch.frame()), tables.joules(bars), tables.points(bars),
        ]
        return Report(self.title, ASSUMPTIONS, found, [bars_plot(bars), rates_plot(stream)],
                      _findings(bars, {table.name: table for table in found}))

    def _placements(self, context: Context, name: str, grid: dict[str, Any], base: str = "base.yaml") -> SweepResults:
        return self._sweep(context, name, grid, "placement", base)

    @staticmethod
    def _sweep(context: Context, name: str, grid: dict[str, Any], file: str = "", base: str = "") -> SweepResults:
        """A sweep of the study's folder, called `file` (`name` if empty), with more in its grid, from the scenario
        `base` (its own if empty)."""
        context.say(f"rag-placement: {name}")
        path = context.file(f"{file or name}-sweep.yaml")
        said = dict(load_yaml(path).plain())
        said["grid"] = dict(said.get("grid", {})) | grid
        said["scenario"] = str(path.with_name(base or str(said["scenario"])))
        if "workload.arrivals.rate" in said["grid"]:
            said["columns"] = dict(said.get("columns", {})) | {"workload.arrivals.rate": "rate"}
        return run_sweep(said, context.out / "points" / name, workers=context.workers)


def _row(bars: pd.DataFrame, case: str) -> Any:
    return bars[(bars["case"] == case) & (bars["link"] == tables.FAST)].iloc[0]


def _findings(bars: pd.DataFrame, by_name: dict[str, Table]) -> list[str]:
    slow, quick, mistral = (_row(bars, case) for case in (SLOW, QUICK, "Mistral-7B / A100 + large CPU"))
    factor = {row["of one question"]: row["factor"] for _, row in by_name["by_hand"].frame.iterrows()}
    shares = bars["communication_share"]
    worst = max((row for _, row in by_name["moved"].frame.iterrows()), key=lambda row: row["of the total %"])
    embedding = [row["case"] for _, row in bars[bars["link"] == tables.FAST].iterrows()
                 if max(PARTS, key=lambda name: row[f"part.{name}"]) == "embedding"]
    limits = [f"{row['placement']} {row['stable up to requests/s']:g}"
              for _, row in by_name["limits"].frame.iterrows()]
    return [
        f"Embedding is the largest part for {' and '.join(embedding) or 'none of the placements'}; for the others it "
        "is the LLM's decode.",
        f"{SLOW}: {slow['part.embedding']:.2f} s of {slow['total_s']:.2f} s are embedding "
        f"({slow['part.embedding'] / slow['total_s']:.0%}). The paper: it dominates, several seconds in total.",
        f"On the A100 embedding is {1e3 * quick['part.embedding']:.1f} ms (E5-Base) and "
        f"{1e3 * mistral['part.embedding']:.0f} ms (Mistral-7B): {quick['part.embedding'] / quick['total_s']:.1%} and "
        f"{mistral['part.embedding'] / mistral['total_s']:.1%} of the total. The paper: small.",
        f"Moving the context as text is {shares.min():.5%} to {shares.max():.5%} of the total. The paper: under 1%. As "
        f"{worst['moved']} over {worst['link']} it would be {worst['of the total %']:.1f}%.",
        f"{SLOW} against {QUICK}, questions of {TOKENS:,} tokens: embedding takes "
        f"{factor[tables.EMBEDDING_SIMULATED]:,.0f} times as long (by hand, from flops and bytes: "
        f"{factor[tables.EMBEDDING_BY_HAND]:,.0f}), the whole request {factor[tables.REQUEST_SIMULATED]:.2f} times (by "
        f"hand: {factor[tables.REQUEST_BY_HAND]:.2f}).",
        f"Stable up to, of the simulated rates (requests/s): {', '.join(limits)}.",
    ]
