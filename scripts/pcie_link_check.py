"""Fit the PCIe link to one of two recorded runs and predict the other with it, both ways.

    python scripts/pcie_link_check.py DATA

DATA holds `vllm-runs` of two RTX PRO 6000 without peer access: Qwen3-32B with two tensor-parallel devices (all-reduces)
and Qwen3-30B-A3B with two data-parallel ranks that share the experts (all-gathers and reduce-scatters). Latency and bus
bandwidth of the link are all that is fitted; the errors squared are those of the means and percentiles of TTFT, TPOT
and E2E. Printed are the errors with the shipped links, and with each fit on both runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from evidence.accuracy.recorded import recorded_runs

RUNS = {"32B TP2": "rtxpro6000-qwen3-32b-tp2", "30B-A3B DP2+EP2": "rtxpro6000-qwen3-30b-a3b-dp2-ep2"}
START = (32e-6, 15e9)
SHOWN = ("ttft mean", "ttft p90", "tpot mean", "tpot p99", "e2e mean", "e2e p99")


def errors(data: Path, run: str, link: dict[str, Any] | str) -> dict[str, float]:
    return {f"{row.metric} {row.stat}": row.error for row in recorded_runs(data, only=run, link=link)}


def fitted(data: Path, run: str) -> dict[str, float]:
    def link(logs: np.ndarray) -> dict[str, float]:
        latency, bandwidth = np.exp(logs) * START
        return {"latency": float(latency), "latency_per_doubling": 0.0, "bandwidth": float(bandwidth)}

    def loss(logs: np.ndarray) -> float:
        return sum(error**2 for error in errors(data, run, link(logs)).values())

    found = minimize(loss, np.zeros(2), method="Nelder-Mead",
                     options={"xatol": 0.01, "fatol": 1e-6, "maxfev": 80,
                              "initial_simplex": [[0, 0], [0.5, 0], [0, 0.5]]})
    return link(found.x)


def main(folder: str) -> None:
    data = Path(folder)
    print(f"{'link':34} {'run':16} " + " ".join(f"{name:>10}" for name in SHOWN))
    links: dict[str, dict[str, float] | str] = {name: name for name in ("rtx-pro-6000-pair", "pcie-host-memory",
                                                                        "pcie-peer")}
    for name, run in RUNS.items():
        found = fitted(data, run)
        links[f"{name}: {1e6 * found['latency']:.1f} us, {found['bandwidth'] / 1e9:.1f} GB/s"] = found
    for said, link in links.items():
        for name, run in RUNS.items():
            found_errors = errors(data, run, link)
            print(f"{said:34} {name:16} " + " ".join(f"{100 * found_errors[one]:+9.1f}%" for one in SHOWN))


if __name__ == "__main__":
    main(*sys.argv[1:])
