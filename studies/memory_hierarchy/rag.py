"""RAG: memories for the retrieval index, and what KV outside the devices finds on the RAGPulse day."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from hermes.hardware.descriptions.memories import load_memory
from hermes.results import Results
from hermes.study import Context, Point, run_points

from .points import ALONE, DESIGNS, Design

__all__ = ["INDEX_GB", "accesses", "index_places", "rag_figures", "shared_kv"]

VECTORS, LINKS, EF, NEW = 200e6, 16, 64, 0.2      # of the scenario's HNSW index
INDEX_GB = VECTORS * (768 * 4 + 8 + (2 * LINKS + LINKS / (LINKS - 1)) * 4) / 1e9
HOST_BYTES_PER_S = 768e9                          # of the index's machine, cpu-large
# place -> (memory that its bytes cost as, bytes/s, seconds of an access, seconds of the network)
PLACES = {
    "host DRAM": ("host-ddr5", 768e9, 90e-9, 0.0),
    "CXL modules": ("cxl-expander", 144e9, 315e-9, 0.0),       # 2 to 5 times local DRAM: 3.5
    "CXL box": ("cxl-box", 60e9, 596e-9, 0.0),
    "DRAM of another rack": ("host-ddr5", 768e9, 90e-9, 20e-3),
    "flash": ("dcn-flash", 14e9, 50e-6, 0.0),                  # tens of microseconds
}


def accesses() -> float:
    """Return the vectors and lists of links that a search waits for, by hand."""
    upper = math.log(VECTORS) / math.log(LINKS) / (1 - math.exp(-1 / math.log(LINKS)))
    return upper * (LINKS + 1) + EF * 2 * LINKS * NEW + EF


def rag_figures(results: Results) -> dict[str, Any]:
    """Return TTFT, s, and the share of prompt tokens found; retrieval_s: mean time of the retrieve stage."""
    record = results.record
    rows = record.stages["kind"] == record.stage_kinds.index("retrieve")
    spent = (record.stages["end_ns"] - record.stages["assigned_ns"])[rows]
    ttft = results.metrics.ttft_ns / 1e9
    return {"ttft_p50": float(np.percentile(ttft, 50)), "ttft_p90": float(np.percentile(ttft, 90)),
            "retrieval_s": float(spent.mean()) / 1e9, "hits": results.summary["cache"]["hit_rate"]}


def index_places(context: Context) -> pd.DataFrame:
    """Return for each place of the index its time, by hand and simulated, its share of the TTFT, and its dollars."""
    points = []
    for place, (_, bandwidth, access, network) in PLACES.items():
        service = {"kind": "hnsw", "vectors": round(VECTORS), "dim": 768, "access_latency": access,
                   "bandwidth_share": 0.8 * bandwidth / HOST_BYTES_PER_S}
        settings: dict[str, Any] = {"clients.0.tiers": None, "clients.1.serves.retrieve": service}
        if network:   # there and back
            settings |= {"network": {"kind": "link", "bandwidth": "48 GB/s", "latency": f"{network:g} s"},
                         "pipelines.rag.stages.answer.input_bytes": 41_000}
        points.append(Point(f"index, {place}", settings, {"place": place}, context["seed"]))
    frame = run_points(context, "index", points, scenario="rag.yaml", extract=rag_figures)
    rows = []
    for row in frame.to_dict("records"):
        memory, _, access, network = PLACES[row["place"]]
        price = load_memory(memory).dollars_per_gb
        whole = price if price is not None else (load_memory("host-ddr5").dollars_per_gb or 0) * context["cxl_premium"]
        rows.append({"index in": row["place"], "waits by hand, ms": 1e3 * (accesses() * access + network),
                     "search, ms": 1e3 * (row["retrieval_s"] + network), "TTFT p50, ms": 1e3 * row["ttft_p50"],
                     "of TTFT %": 100 * (row["retrieval_s"] + network) / row["ttft_p50"],
                     "$": INDEX_GB * whole * context["price_factor"]})
    return pd.DataFrame(rows)


def shared_kv(context: Context) -> pd.DataFrame:
    """Return what memories for KV find on the RAGPulse day, with requests dealt out in turn."""
    designs: list[Design] = [ALONE, DESIGNS["host 256"], DESIGNS["rack pool"]]
    points = [Point(f"kv, {design.name}", {"clients.0.tiers.levels": design.levels(context)} if design.stores
                    else {"clients.0.tiers": None}, {"design": design.name}, context["seed"]) for design in designs]
    frame = run_points(context, "rag-kv", points, scenario="rag.yaml", extract=rag_figures)
    return pd.DataFrame({"KV in": frame["design"], "found %": 100 * frame["hits"],
                         "TTFT p50, ms": 1e3 * frame["ttft_p50"], "TTFT p90, ms": 1e3 * frame["ttft_p90"]})
