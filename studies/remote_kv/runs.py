"""Setups under the study's assumptions, and their simulation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.study import Context, run_points

from .points import DESIGNS, MODES, Setup, extract, verdict

__all__ = ["PASTS", "POPULATIONS", "Found", "Unloaded", "folder", "grid", "setup_of", "simulate", "unloaded"]

PASTS = (4096, 24576)
POPULATIONS = ("private", "shared")
Unloaded = dict[tuple[str, int], float]   # (design, past) -> mean E2E of an empty system, s


@dataclass
class Found:
    """A setup with its figures."""

    setup: Setup
    row: dict[str, Any]
    stable: bool | None

    def get(self, key: str) -> Any:
        return self.row.get(key)


def setup_of(context: Context, design: str, past: int, population: str = "private", **more: Any) -> Setup:
    """Return a setup under the assumptions of the study."""
    corpus = context["corpus_tokens"]
    keys = round(corpus / past) if corpus else context["users" if population == "private" else "documents"]
    assumed = {"rate": context["rate"], "keys": max(1, keys), "zipf": context["zipf"], "kv_bits": context["kv_bits"]}
    return Setup(design, past, population, **assumed | more)


def folder(context: Context) -> Path:
    """Return the folder of the designs' scenarios."""
    return context.file("base.yaml").parent


def simulate(context: Context, name: str, setups: list[Setup]) -> list[dict[str, Any]]:
    """Return the figures of each setup."""
    points = [setup.point(folder(context)) for setup in setups]
    frame = run_points(context, name, points, scenario="base.yaml", extract=extract)
    rows: list[dict[str, Any]] = frame.to_dict("records")   # type: ignore[assignment]
    return rows


def unloaded(context: Context) -> Unloaded:
    """Return the mean E2E of each design with the system to itself: one request every ten seconds."""
    setups = [setup_of(context, design, past, rate=0.1, requests=60) for design in DESIGNS for past in PASTS]
    rows = simulate(context, "unloaded", setups)
    return {(s.design, s.past): row["latency.e2e_s.mean"] for s, row in zip(setups, rows, strict=True)}


def grid(context: Context, empty: Unloaded) -> list[Found]:
    """Return every design in every mode at the study's rate. Recomputing is the same in all modes and populations."""
    requests = round(context["rate"] * (7 if context.quick else 32))
    setups = [
        setup_of(context, design, past, population, mode=mode, requests=requests)
        for population in POPULATIONS for past in PASTS for design in DESIGNS for mode in MODES
        if design != "recompute" or (mode == "contention" and population == "private")
    ]
    rows = simulate(context, "points", setups)
    return [Found(s, row, verdict(row, empty[s.design, s.past])) for s, row in zip(setups, rows, strict=True)]
