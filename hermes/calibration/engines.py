"""Calibration engines that come with hermes; importing this module registers their planners."""

from __future__ import annotations

from hermes.calibration import torch_plan, vllm_plan
from hermes.calibration.plan import ENGINES, Planner

__all__ = ["planner"]

BUILT_IN = (torch_plan, vllm_plan)


def planner(name: str) -> Planner:
    """Return the planner of an engine. Raises `InputError` for an unregistered name."""
    found: Planner = ENGINES.get(name)()
    return found
