"""Time of a retrieval-augmented request by part: the bars of the RAG placement study."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.results import Results
from hermes.study.figures import point_figures
from hermes.units import NS_PER_S

__all__ = ["PARTS", "figures", "parts_ns"]

PARTS = ("embedding", "transfer", "retrieval", "communication", "prefill", "decode", "queue")
SERVED = {"embed": "embedding", "retrieve": "retrieval", "rerank": "rerank"}


def parts_ns(record: RunRecord) -> dict[str, npt.NDArray[np.int64]]:
    """Return nanoseconds of every completed request by part, each of shape (completed requests,). They add up to its
    latency.

    - Embedding, retrieval (and reranking): from start to end on their clients.
    - Prefill: from the answer's start to its first token; decode: from there to its last.
    - Transfer: the question's vector to a client without an engine; communication: the passages to the LLM; both
      include waiting for bandwidth.
    - Queue: the rest.
    """
    n = len(record.arrival_ns)
    sums = {name: np.zeros(n, dtype=np.int64) for name in (*PARTS[:-1], "rerank")}
    stages = record.stages
    for code, kind in enumerate(record.stage_kinds):
        mine = stages["kind"] == code
        request, start, end = (stages[name][mine] for name in ("request", "start_ns", "end_ns"))
        if kind in SERVED:
            np.add.at(sums[SERVED[kind]], request, end - start)
        elif kind == "generate":
            first = stages["first_token_ns"][mine]
            np.add.at(sums["prefill"], request, first - start)
            np.add.at(sums["decode"], request, end - first)
    to_llm = np.array([client.role != "service" for client in record.clients])[record.transfers["dst"]]
    took = record.transfers["end_ns"] - record.transfers["start_ns"]
    for name, chosen in (("transfer", ~to_llm), ("communication", to_llm)):
        np.add.at(sums[name], record.transfers["request"][chosen], took[chosen])
    sums["queue"] = record.finish_ns - record.arrival_ns - sum(sums.values())
    done = record.status == STATUS_COMPLETED
    return {name: values[done] for name, values in sums.items()}


def figures(results: Results) -> dict[str, Any]:
    """Return flat figures of one run, for `extract`: mean seconds by part (`part.*`), latency, the share of the
    context's transfer, bytes moved to the LLM per request, by client its busy share (`busy.*`) and joules per request
    (`joules.*`), and `point_figures`."""
    record, summary = results.record, results.summary
    parts = parts_ns(record)
    total = sum(values.astype(np.float64) for values in parts.values())
    mean = {f"part.{name}": float(values.mean()) / NS_PER_S for name, values in parts.items()}
    whole = float(np.mean(total)) / NS_PER_S
    to_llm = np.array([client.role != "service" for client in record.clients])[record.transfers["dst"]]
    completed = max(1, int(summary["requests"]["completed"]))
    moved = float(record.transfers["bytes"][to_llm].sum()) / completed
    return {
        **mean, "total_s": whole, "communication_share": mean["part.communication"] / whole, "context_bytes": moved,
        "mean_prompt_tokens": float(record.prompt_tokens.mean()),
        **{f"busy.{name}": client["utilisation"] for name, client in summary["clients"].items()},
        **{f"joules.{name}": client["energy_j"] / completed for name, client in summary["clients"].items()},
        **{f"point.{name}": value for name, value in point_figures(results).items()},
    }
