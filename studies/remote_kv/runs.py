"""Setups under the study's assumptions, and their simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hermes.study import Context, run_points

from .points import DESIGNS, Setup, extract, verdict

__all__ = ["PASTS", "POPULATIONS", "Found", "Unloaded", "folder", "grid", "setup_of", "simulate", "unloaded"]

PASTS = (4096, 24576)
POPULATIONS = ("private", "shared")
SEEDS = (0, 1, 2)   # quick: the first
Unloaded = dict[tuple[str, int], float]   # (design, past) -> mean E2E of an empty system, s


@dataclass
class Found:
    """A setup with its figures, a row for each seed. stable: False if it is not with some seed."""

    setup: Setup
    rows: list[dict[str, Any]]
    stable: bool | None

    @property
    def t90(self) -> list[float]:
        """The 90th percentile of E2E with each seed, s."""
        return [float(row["latency.e2e_s.p90"]) for row in self.rows]

    def mean(self, key: str) -> Any:
        """Return the mean of a figure over the seeds; None if they have none."""
        values = [row[key] for row in self.rows if row.get(key) is not None]
        return float(np.mean(values)) if values else None


def setup_of(context: Context, design: str, past: int, population: str = "private", **more: Any) -> Setup:
    """Return a setup under the assumptions of the study."""
    tokens, contexts = (context["private_tokens"], context["users"]) if population == "private" else (
        context["shared_tokens"], context["documents"])
    assumed = {"rate": context["rate"], "keys": max(1, round(tokens / past)) if tokens else contexts,
               "zipf": context["zipf"], "kv_bits": context["kv_bits"]}
    return Setup(design, past, population, **assumed | more)


def folder(context: Context) -> Path:
    """Return the folder of the designs' scenarios."""
    return context.file("base.yaml").parent


def simulate(
    context: Context, name: str, setups: list[Setup], seeds: Sequence[int | None] = (None,),
) -> list[dict[str, Any]]:
    """Return the figures of each setup with each seed."""
    points = [setup.point(folder(context), seed) for setup in setups for seed in seeds]
    frame = run_points(context, name, points, scenario="base.yaml", extract=extract)
    rows: list[dict[str, Any]] = frame.to_dict("records")   # type: ignore[assignment]
    return rows


def unloaded(context: Context) -> Unloaded:
    """Return the mean E2E of each design with the system to itself: one request every ten seconds."""
    setups = [setup_of(context, design, past, rate=0.1, requests=60) for design in DESIGNS for past in PASTS]
    rows = simulate(context, "unloaded", setups)
    return {(s.design, s.past): row["latency.e2e_s.mean"] for s, row in zip(setups, rows, strict=True)}


def grid(context: Context, empty: Unloaded, modes: Sequence[str]) -> list[Found]:
    """Return every design in these modes at the study's rate. Recomputing is the same in all modes and populations."""
    requests = round(context["rate"] * context["window_s"])
    setups = [
        setup_of(context, design, past, population, mode=mode, requests=requests)
        for population in POPULATIONS for past in PASTS for design in DESIGNS for mode in modes
        if design != "recompute" or (mode == modes[0] and population == "private")
    ]
    setups = [replace(setup, mode="contention") if setup.design == "recompute" else setup for setup in setups]
    seeds = SEEDS[:1] if context.quick else SEEDS
    rows = simulate(context, "points", setups, seeds)
    found = []
    for place, setup in enumerate(setups):
        mine = rows[place * len(seeds):][:len(seeds)]
        stable = [verdict(row, empty[setup.design, setup.past]) for row in mine]
        found.append(Found(setup, mine, False if False in stable else None if None in stable else True))
    return found
