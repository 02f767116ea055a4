"""The points of the study `remote-kv`: designs, what a point changes in them, and the figures kept of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hermes.core.record import STATUS_COMPLETED
from hermes.errors import HermesError
from hermes.explore import run_sweep
from hermes.hardware.models import load_model
from hermes.results import Results
from hermes.results.stability import GROWTH, NOISE
from hermes.scenario.loading import load_document
from hermes.studies.base import Context
from hermes.studies.figures import point_figures
from hermes.units import parse_bandwidth, parse_bytes
from hermes.workload.contexts import zipf_weights

__all__ = [
    "DESIGNS", "QUANTILES", "RATE", "Point", "at_rate", "context_bytes", "dcn_used", "extract", "hit_share",
    "run_points", "store_of", "verdict",
]

DESIGNS = {"recompute": "base", "A": "a", "B": "b", "C": "c", "C+DCN": "c-dcn"}
RATE = 240.0                              # requests/s of the study
KEYS = {"private": 20_000, "shared": 10_000}
QUANTILES = np.linspace(0, 1, 51)
_MODEL = "llama-3.1-70b"


@dataclass(frozen=True)
class Point:
    """One simulation. mode: "contention" (stateful tiers) or "expected" (the formula)."""

    design: str
    past: int
    population: str = "private"
    kv_bits: int = 8
    mode: str = "contention"
    rate: float = RATE
    requests: int = 14_400
    overlap: bool = False

    @property
    def label(self) -> str:
        extra = " overlap" if self.overlap else ""
        return (f"{self.design} {self.past} {self.population} kv{self.kv_bits} {self.mode} {self.rate:.6g}/s "
                f"{self.requests}{extra}")


def store_of(point: Point, folder: Path) -> dict[str, Any] | None:
    """Stores of a design: how many, bytes and bytes/s of each; None for recomputing."""
    clients = load_document(folder / f"{DESIGNS[point.design]}.yaml").plain()["clients"]
    for client in clients:
        if client.get("kind") == "kv_retrieval":
            tier = client["tiers"][0]
            return {"stores": client["count"], "capacity": parse_bytes(tier["capacity"]),
                    "bandwidth": parse_bandwidth(tier["bandwidth"])}
    return None


def dcn_used(point: Point, store: dict[str, Any], folder: Path) -> float | None:
    """Share of the racks' links to the core that fetches at the study's rate ask for, each way; None without them."""
    links = load_document(folder / f"{DESIGNS[point.design]}.yaml").plain().get("network", {}).get("links", [])
    if not links:
        return None
    crossing = RATE * hit_share(point, store) * (1 - 1 / len(links)) * context_bytes(point)
    return float(crossing / sum(parse_bandwidth(link["bandwidth"]) for link in links))


def context_bytes(point: Point) -> float:
    """Bytes of one past context."""
    per_token: int = load_model(_MODEL).kv_bytes_per_token(point.kv_bits / 8)
    return float(point.past * per_token)


def hit_share(point: Point, store: dict[str, Any]) -> float:
    """Share of the fetches that find their context if the stores hold those asked for most.

    Private contexts lie in one store each, and so do shared ones where every request asks the store that keeps its
    context (C+DCN); else every store holds the most popular shared ones for itself.
    """
    fit = int(store["capacity"] // context_bytes(point))
    keys = KEYS[point.population]
    if point.population == "private":
        return min(1.0, float(fit * store["stores"] / keys))
    if point.design == "C+DCN":
        fit *= store["stores"]
    return min(1.0, float(zipf_weights(keys, 1.0)[:fit].sum()))


def document(point: Point, folder: Path) -> dict[str, Any]:
    """The scenario of a point, as the design's file says with the point's own values in place."""
    path = folder / f"{DESIGNS[point.design]}.yaml"
    data: dict[str, Any] = load_document(path).plain()
    data["name"] = f"remote-kv {point.label}"
    workload = data["workload"]
    workload["requests"] = point.requests
    workload["arrivals"]["rate"] = point.rate
    workload["contexts"] |= {"population": point.population, "keys": KEYS[point.population],
                             "tokens": {"kind": "fixed", "tokens": point.past}}
    data["clients"][0]["memory"]["kv_bits"] = point.kv_bits
    if point.design == "recompute":
        return data
    home = point.population == "private" or point.design == "C+DCN"
    if not home:
        data["routers"]["fetch_kv"] = {"kind": "round_robin"}
    store = data["clients"][1]
    store |= {"kv_bits": point.kv_bits, "overlap": point.overlap, "start": "home" if home else "popular"}
    if point.mode == "expected":
        found = store_of(point, folder)
        assert found is not None
        store |= {"mode": "expected", "start": "empty"}
        store["tiers"][0]["hit_rate"] = hit_share(point, found)
    return data


def extract(results: Results) -> dict[str, Any]:
    """Figures of a point beyond its summary: quantiles of E2E (`e2e_000` .. `e2e_100`), and of the fetches."""
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


def run_points(points: list[Point], context: Context, folder: str) -> list[dict[str, Any]]:
    """The figures of every point, in order. Points that have been run before, in this folder, are not run again."""
    wanted = list(dict.fromkeys(points))
    cases = []
    for point in wanted:
        data = document(point, context.file("base.yaml").parent)
        keys = ("name", "workload", "clients", "routers", "network")
        cases.append({"label": point.label, "set": {key: data[key] for key in keys if key in data}})
    sweep = {"name": f"remote-kv {folder}", "scenario": str(context.file("base.yaml")), "cases": cases,
             "extract": f"{__name__}:extract"}
    context.say(f"{folder}: {len(cases)} points")
    swept = run_sweep(sweep, context.out / folder, workers=context.workers)
    for number, reason in swept.failed().items():
        raise HermesError(f"point {number} of {folder} ({wanted[number].label}) failed: {reason}")
    rows: dict[str, Any] = {row["case"]: row for row in swept.frame().to_dict("records")}
    return [rows[point.label] for point in points]


def verdict(row: dict[str, Any], unloaded_s: float) -> bool | None:
    """Whether a point keeps up, by the rule of `hermes.results.stability`, with the E2E of an empty system as the time
    that the window's quarters have to exceed (with shared bandwidth, time in service grows with the load)."""
    early, late = row["point.in_system_early"], row["point.in_system_late"]
    if row["point.window_s"] / 4 < unloaded_s:
        return None
    return bool(late <= GROWTH * early + NOISE * np.sqrt(max(early, 1.0)))


def at_rate(point: Point, rate: float, seconds: float) -> Point:
    """The same point at another rate, for at least so long."""
    return replace(point, rate=float(f"{rate:.4g}"), requests=max(400, round(rate * seconds)))
