"""The tables of the RAG placement study, from the rows of its sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hermes.core.stage import ServiceStage
from hermes.scenario.build import build
from hermes.services import PhaseCost
from hermes.study import Context, Point, Table, scenario_of

from .by_hand import embedding_by_hand
from .figures import PARTS

__all__ = [
    "bars", "batches", "by_hand", "clients_of", "index", "joules", "limits", "links", "machines", "moved", "phases",
    "points", "rates", "steady",
]

Clients = dict[str, list[Any]]   # by placement; Any: each kind of client has attributes of its own

FULL_BATCH = 64
FAST = "32 GB/s"
CLIENTS = ("cpu", "gpu", "llm")
HAND = {"Mistral-7B / small CPU": ("mistral-7b", "cpu-small", 32768),
        "E5-Base / A100 + large CPU": ("e5-base", "a100-80gb", 512)}   # model, device, tokens of a piece at most
EMBEDDING_BY_HAND, EMBEDDING_SIMULATED = "embedding by hand, ms", "embedding simulated, ms"
REQUEST_BY_HAND, REQUEST_SIMULATED = "request by hand, ms", "request simulated, ms"


def steady(stable: Any) -> str:
    """Return `point.stable` in words: True, False, or missing if the window is too short to tell."""
    return "window too short" if stable is None or stable != stable else "yes" if stable else "no"


def _dominating(row: pd.Series) -> str:
    parts = {name: row[f"part.{name}"] for name in PARTS}
    name = max(parts, key=lambda key: parts[key])
    return f"{name} ({parts[name] / row['total_s']:.0%})"


def bars(frame: pd.DataFrame) -> Table:
    """The six bars on the fast link, in milliseconds."""
    rows = [
        {"placement": row["case"], **{name: 1e3 * row[f"part.{name}"] for name in PARTS},
         "total": 1e3 * row["total_s"], "TTFT": 1e3 * row["latency.ttft_s.mean"], "dominated by": _dominating(row)}
        for _, row in frame[frame["link"] == FAST].iterrows()
    ]
    digits = dict.fromkeys((*PARTS, "total", "TTFT"), 1) | {"transfer": 3, "communication": 3}
    note = ("Milliseconds, means over the requests, one at a time, 32 GB/s. Embedding, retrieval: service; transfer: "
            "the question's vector; communication: the passages' text to the LLM.")
    return Table("bars", "Latency by part", pd.DataFrame(rows), note, digits)


def points(frame: pd.DataFrame) -> Table:
    """Columns of every point."""
    rows = [
        {"placement": row["case"], "link": row["link"], "KV tokens": row["point.kv_capacity_tokens"],
         "KV peak %": 100 * row["point.kv_peak_share"], "rejected": row["point.rejected"],
         "preemptions": row["point.preemptions"], "stable": steady(row["point.stable"]),
         "steps out of range %": 100 * row["point.out_of_range_share"], "devices": row["point.devices"]}
        for _, row in frame.iterrows()
    ]
    return Table("points", "The points of the bars", pd.DataFrame(rows), "",
                 {"KV peak %": 1, "steps out of range %": 3})


def links(frame: pd.DataFrame) -> Table:
    """The total and the share of the context's transfer on both links."""
    rows = []
    for case, group in frame.groupby("case", sort=False):
        row: dict[str, Any] = {"placement": case}
        for _, point in group.iterrows():
            row |= {f"s, {point['link']}": point["total_s"],
                    f"context us, {point['link']}": 1e6 * point["part.communication"],
                    f"context %, {point['link']}": 100 * point["communication_share"]}
        rows.append(row)
    digits = {name: 5 if "%" in name else 2 if "us" in name else 4 for name in rows[0] if name[-4:] == "GB/s"}
    note = "41 kB of text a request, 10 us of latency included."
    return Table("links", "Two links", pd.DataFrame(rows), note, digits)


def by_hand(frame: pd.DataFrame, tokens: int) -> Table:
    """Embedding times and their factor from flops and bytes, beside the simulation of questions of that length."""
    columns = []
    simulated = {row["case"]: row for _, row in frame.iterrows()}
    for case, (model, device, most) in HAND.items():
        hand = embedding_by_hand(model, device, [most] * (tokens // most) + [tokens % most] * (tokens % most > 0))
        ours = simulated[case]
        columns.append({
            "matrices, GFLOP": hand.flops / 1e9, "matrices, GB": hand.num_bytes / 1e9,
            "arithmetic, ms": 1e3 * hand.arithmetic_s, "memory that shows, ms": 1e3 * hand.exposed * hand.memory_s,
            "attention, ms": 1e3 * hand.attention_s, "norms and activations, ms": 1e3 * hand.vectors_s,
            "kernel launches, ms": 1e3 * hand.launches_s, EMBEDDING_BY_HAND: 1e3 * hand.seconds,
            EMBEDDING_SIMULATED: 1e3 * ours["part.embedding"],
            REQUEST_BY_HAND: 1e3 * (hand.seconds + ours["total_s"] - ours["part.embedding"]),
            REQUEST_SIMULATED: 1e3 * ours["total_s"],
        })
    slow, quick = columns
    rows = [
        {"of one question": name, **{case: found[name] for case, found in zip(HAND, columns, strict=True)},
         "factor": slow[name] / quick[name] if quick[name] else None} for name in slow
    ]
    note = "A request by hand: the embedding by hand, with what the simulation says of retrieval and the LLM."
    digits = dict.fromkeys(HAND, 3) | {"factor": 2}
    return Table("by_hand", f"By hand: questions of {tokens:,} tokens", pd.DataFrame(rows), note, digits)


def moved(frame: pd.DataFrame) -> Table:
    """Return the moved part of the context, and the share of its transfer in the total."""
    names = {"20 * 768 * 4": "vectors of the passages (768 x fp32 each)", "20 * 512 * 4": "text (4 bytes a token)",
             "20 * 512 * 4096 * 2": "input embeddings (4096 x bf16 a token)",
             "20 * 512 * 131072": "keys and values (128 KiB a token)"}
    rows = [
        {"moved": names[row["moved"]], "link": row["link"], "bytes": row["context_bytes"],
         "transfer ms": 1e3 * row["part.communication"], "of the total %": 100 * row["communication_share"],
         "prefill ms": 1e3 * row["part.prefill"], "total s": row["total_s"]}
        for _, row in frame.iterrows()
    ]
    digits = {"transfer ms": 3, "of the total %": 4, "prefill ms": 1, "total s": 4}
    return Table("moved", "What is moved matters", pd.DataFrame(rows),
                 "Prefill is charged in full in all rows; keys and values that move would save most of it.", digits)


def index(frame: pd.DataFrame) -> Table:
    """Variants of the index and a reranker."""
    base = frame.iloc[0]
    rows = [
        {"index": row["case"], "retrieval ms": 1e3 * row["part.retrieval"], "reranking ms": 1e3 * row["part.rerank"],
         "total s": row["total_s"], "against the base %": 100 * (row["total_s"] / base["total_s"] - 1)}
        for _, row in frame.iterrows()
    ]
    digits = {"retrieval ms": 2, "reranking ms": 1, "total s": 3, "against the base %": 2}
    return Table("index", "What the assumptions about retrieval do", pd.DataFrame(rows), "", digits)


def clients_of(context: Context, placements: Sequence[Point]) -> Clients:
    """Return the clients of every placement, built."""
    first = {str(point.columns["case"]): point for point in reversed(placements)}
    cases = dict.fromkeys(str(point.columns["case"]) for point in placements)
    return {case: build(scenario_of(context, first[case], "base.yaml")).clients for case in cases}


def phases(placements: Clients) -> Table:
    """Return flops, bytes and time of every phase, for one question and for a full batch, by dimension and machine."""
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, int]] = set()
    for clients in placements.values():
        for client in clients:
            service = getattr(client, "services", {}).get("retrieve")
            if service is None:
                continue
            key = client.spec.device.name, service.config.dim
            if key in seen:
                continue
            seen.add(key)
            for batch in (1, FULL_BATCH):
                costs: list[PhaseCost] = service.costs([ServiceStage("retrieve", items=batch)])
                rows += [
                    {"machine": key[0], "dimensions": key[1], "batch": batch, "phase": cost.name,
                     "MFLOP": cost.flops / 1e6, "MB": cost.num_bytes / 1e6, "ms": 1e3 * cost.seconds,
                     "bound": cost.bound} for cost in costs
                ]
    return Table("phases", "Phases of a retrieval", pd.DataFrame(rows), "", {"ms": 3, "MFLOP": 1, "MB": 1, "batch": 0})


def _capacity(client: Any, tokens: int) -> float:
    """Return the requests/s that a client without an engine sustains: full batches of mean questions, cores and
    bandwidth shared by the kinds of stage it serves."""
    cores = bandwidth = slowest = 0.0
    for kind, service in client.services.items():
        work = service.work([ServiceStage(kind, tokens=tokens) for _ in range(FULL_BATCH)])
        cores += work.alone_s * work.cores
        bandwidth += work.alone_s * work.bandwidth
        slowest = max(slowest, work.alone_s)   # one batch of a kind at a time
    return FULL_BATCH / max(cores, bandwidth, slowest)


def machines(placements: Clients, tokens: int) -> Table:
    """Memory and rate of every machine of every case."""
    rows: list[dict[str, Any]] = []
    for case, clients in placements.items():
        for client in clients:
            if client.role == "service":
                used = {kind: service.memory_bytes for kind, service in client.services.items()}
                rows.append({
                    "placement": case, "client": client.name, "device": client.spec.device.name,
                    "serves": ", ".join(used), "memory GB": client.spec.memory_bytes / 1e9,
                    "index GB": used.get("retrieve", 0) / 1e9, "weights GB": used.get("embed", 0) / 1e9,
                    "keeps up with requests/s": _capacity(client, tokens),
                })
            elif all(row["client"] != client.name for row in rows):
                pool = client.scheduler.pool
                rows.append({"placement": "all", "client": client.name, "device": "h100-sxm",
                             "serves": f"generate ({pool.num_blocks * pool.block_size:,} KV tokens)",
                             "memory GB": None, "index GB": None, "weights GB": None,
                             "keeps up with requests/s": None})
    digits = {"memory GB": 0, "index GB": 1, "weights GB": 1, "keeps up with requests/s": 2}
    return Table("machines", "Machines: what they hold, what they keep up with", pd.DataFrame(rows),
                 f"Rates: batches of {FULL_BATCH} questions of {tokens:,} tokens.", digits)


def joules(frame: pd.DataFrame) -> Table:
    """Joules per request by client, one request at a time."""
    rows = []
    for _, row in frame[frame["link"] == FAST].iterrows():
        by_client = {f"{name} J": row.get(f"joules.{name}") for name in CLIENTS}
        rows.append({"placement": row["case"], **by_client,
                     "all J": row["energy.total_j"] / row["requests.completed"]})
    note = "Idle time of all machines included; watts of the CPUs are assumed (500 W and 350 W busy, 30% of that idle)."
    return Table("joules", "Energy per request", pd.DataFrame(rows), note,
                 {f"{name} J": 1 for name in (*CLIENTS, "all")})


def rates(frame: pd.DataFrame) -> Table:
    """A stream of requests at every rate: latency, busy machines, stability."""
    rows = [
        {"placement": row["case"], "requests/s": row["rate"], "mean s": row["total_s"],
         "p99 s": row["latency.e2e_s.p99"], "queue s": row["part.queue"],
         **{f"{name} busy %": None if row.get(f"busy.{name}") is None else 100 * row[f"busy.{name}"]
            for name in CLIENTS},
         "KV peak %": 100 * row["point.kv_peak_share"], "rejected": row["point.rejected"],
         "stable": steady(row["point.stable"])}
        for _, row in frame.iterrows()
    ]
    digits = {"requests/s": 2, "mean s": 2, "p99 s": 2, "queue s": 2, "KV peak %": 1} | {
        f"{name} busy %": 0 for name in CLIENTS}
    return Table("rates", "Requests as a stream", pd.DataFrame(rows), "", digits)


def batches(frame: pd.DataFrame) -> Table:
    """Return the effect on the slowest placement of embedding all waiting questions together."""
    rows = [
        {"batch at most": row["max_batch"], "requests/s": row["rate"], "mean s": row["total_s"],
         "p99 s": row["latency.e2e_s.p99"], "cpu busy %": 100 * row["busy.cpu"], "stable": steady(row["point.stable"])}
        for _, row in frame.iterrows()
    ]
    note = "A batch returns together, and arithmetic-bound embedding gains nothing from it."
    return Table("batches", "Mistral-7B on the small CPU: batches of waiting questions", pd.DataFrame(rows), note,
                 {"requests/s": 2, "mean s": 2, "p99 s": 2, "cpu busy %": 0})


def limits(frame: pd.DataFrame, capacity: pd.DataFrame) -> Table:
    """Return the highest rate up to which every simulated one is stable, beside the rate that embedding and retrieval
    sustain."""
    rows = []
    for case, group in frame.groupby("case", sort=False):
        stable = 0.0
        for _, row in group.sort_values("rate").iterrows():
            if steady(row["point.stable"]) != "yes":
                break
            stable = row["rate"]
        mine = capacity[capacity["placement"] == case]["keeps up with requests/s"]
        fastest = max((row for _, row in group.iterrows()), key=lambda row: row["rate"])
        rows.append({"placement": case, "stable up to requests/s": stable,
                     "served at the highest rate": fastest["throughput.requests_per_s"],
                     "embedding and retrieval keep up with": float(mine.min())})
    note = (f"Stable: of the rates that were simulated. Served: requests over the whole run at {frame['rate'].max():g} "
            "requests/s, the time to drain included.")
    return Table("limits", "Highest stable rate", pd.DataFrame(rows), note,
                 {name: 2 for name in rows[0] if name != "placement"})
