"""Designs of the study, scenario of a point, and figures kept of each. An edit simulates all points again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.hardware.descriptions.models import load_model
from hermes.results import Results
from hermes.results.figures.stability import GROWTH, NOISE
from hermes.scenario.loading import load_document
from hermes.study import Point
from hermes.study.figures import point_figures
from hermes.sums import float_sum
from hermes.units import parse_bandwidth, parse_bytes
from hermes.workload.contexts import zipf_weights

__all__ = [
    "DESIGNS", "MODES", "QUANTILES", "Setup", "at_rate", "context_bytes", "dcn_used", "extract", "hit_share",
    "scenario", "store_of", "verdict",
]

DESIGNS = {"recompute": "base", "A": "a", "B": "b", "C": "c", "C+DCN": "c-dcn"}
MODES = ("expected", "computed", "contention")
QUANTILES = np.linspace(0, 1, 51)
_MODEL = "llama-3.1-70b"


@dataclass(frozen=True)
class Setup:
    """Parameters of a point.

    Args:
        mode: "expected" (the formula), "computed" (hits by the formula; misses are drawn, and computed by the LLM
            clients) or "contention" (stateful tiers).
        keys: Number of different contexts.
        zipf: Exponent of Zipf's law for shared contexts.
    """

    design: str
    past: int
    population: str = "private"
    kv_bits: int = 8
    mode: str = "contention"
    rate: float = 240.0
    requests: int = 14_400
    overlap: bool = False
    keys: int = 20_000
    zipf: float = 1.0

    @property
    def label(self) -> str:
        extra = " overlap" if self.overlap else ""
        return (f"{self.design} {self.past} {self.population} kv{self.kv_bits} {self.mode} {self.rate:.6g}/s "
                f"{self.requests}{extra}")

    def point(self, folder: Path, seed: int | None = None) -> Point:
        """Return the point that simulates it; folder: of the scenarios."""
        data = scenario(self, folder)
        keys = ("name", "workload", "clients", "routers", "network")
        return Point(self.label, {key: data[key] for key in keys if key in data}, seed=seed)


def store_of(setup: Setup, folder: Path) -> dict[str, Any] | None:
    """Return the stores of a design: number, bytes and bytes/s of each; None for recomputing."""
    clients = load_document(folder / f"{DESIGNS[setup.design]}.yaml").plain()["clients"]
    for client in clients:
        if client.get("kind") == "kv_retrieval":
            tier = client["tiers"]["levels"][0]
            return {"stores": client["count"], "capacity": parse_bytes(tier["capacity"]),
                    "bandwidth": parse_bandwidth(tier["bandwidth"])}
    return None


def dcn_used(setup: Setup, store: dict[str, Any], folder: Path) -> float | None:
    """Return the share of the racks' links to the core that fetches at the study's rate use, each way; None without
    links."""
    links = load_document(folder / f"{DESIGNS[setup.design]}.yaml").plain().get("network", {}).get("links", [])
    if not links:
        return None
    crossing = setup.rate * hit_share(setup, store) * (1 - 1 / len(links)) * context_bytes(setup)
    return float(crossing / float_sum(parse_bandwidth(link["bandwidth"]) for link in links))


def context_bytes(setup: Setup) -> float:
    """Return the bytes of one past context."""
    per_token: int = load_model(_MODEL).kv_bytes_per_token(setup.kv_bits / 8)
    return float(setup.past * per_token)


def hit_share(setup: Setup, store: dict[str, Any]) -> float:
    """Return the hit rate of fetches if the stores hold the most popular contexts.

    Private contexts lie in one store each, and so do shared ones if every request asks the store that keeps its context
    (C+DCN); otherwise every store holds the most popular shared ones for itself.
    """
    fit = int(store["capacity"] // context_bytes(setup))
    if setup.population == "private":
        return min(1.0, float(fit * store["stores"] / setup.keys))
    if setup.design == "C+DCN":
        fit *= store["stores"]
    return min(1.0, float(zipf_weights(setup.keys, setup.zipf)[:fit].sum()))


def scenario(setup: Setup, folder: Path) -> dict[str, Any]:
    """Return the scenario of a setup: the design's file with the setup's own values."""
    path = folder / f"{DESIGNS[setup.design]}.yaml"
    data: dict[str, Any] = load_document(path).plain()
    data["name"] = f"remote-kv {setup.label}"
    workload = data["workload"]
    workload["requests"] = setup.requests
    workload["arrivals"]["rate"] = setup.rate
    workload["contexts"] |= {"population": setup.population, "keys": setup.keys, "zipf": setup.zipf,
                             "tokens": {"kind": "fixed", "tokens": setup.past}}
    data["clients"][0]["memory"]["kv_bits"] = setup.kv_bits
    if setup.design == "recompute":
        return data
    home = setup.population == "private" or setup.design == "C+DCN"
    if not home:
        data["routers"]["fetch_kv"] = {"kind": "round_robin"}
    store = data["clients"][1]
    store["tiers"]["overlap"] = setup.overlap
    store |= {"kv_bits": setup.kv_bits, "start": "home" if home else "popular"}
    if setup.mode != "contention":
        found = store_of(setup, folder)
        assert found is not None
        store |= {"mode": "expected", "start": "empty",
                  "misses": "averaged" if setup.mode == "expected" else "recompute"}
        store["tiers"]["levels"][0]["hit_rate"] = hit_share(setup, found)
    return data


def extract(results: Results) -> dict[str, Any]:
    """Return figures beyond the summary: quantiles of E2E (`e2e_000` .. `e2e_100`), and of the fetches."""
    record, metrics = results.record, results.metrics
    done = record.status == STATUS_COMPLETED
    e2e = np.quantile(metrics.e2e_ns[done] / 1e9, QUANTILES) if done.any() else np.full(len(QUANTILES), np.nan)
    figures = {f"point.{name}": value for name, value in point_figures(results).items()}
    figures |= {f"e2e_{round(100 * q):03d}": float(v) for q, v in zip(QUANTILES, e2e, strict=True)}
    kinds = record.stage_kinds
    if "fetch_kv" in kinds:
        rows = record.stages["kind"] == kinds.index("fetch_kv")
        took = (record.stages["end_ns"] - record.stages["assigned_ns"])[rows] / 1e9
        figures |= {"fetch.mean_s": float(took.mean()), "fetch.p99_s": float(np.quantile(took, 0.99)),
                    "fetch.found": float((record.stages["cached_tokens"][rows] > 0).mean())}
    return figures


def verdict(row: dict[str, Any], unloaded_s: float) -> bool | None:
    """Whether a point is stable, by the rule of `hermes.results.figures.stability`. The E2E of an empty system is the
    time that the window's quarters must exceed (with shared bandwidth, time in service grows with the load)."""
    early, late = row["point.in_system_early"], row["point.in_system_late"]
    if row["point.window_s"] / 4 < unloaded_s:
        return None
    return bool(late <= GROWTH * early + NOISE * np.sqrt(max(early, 1.0)))


def at_rate(setup: Setup, rate: float, seconds: float) -> Setup:
    """Return the same setup at another rate, for at least this long."""
    return replace(setup, rate=float(f"{rate:.4g}"), requests=max(400, round(rate * seconds)))
