"""Plans of points that need no model: links and indices (`hermes-plan/1` like those of engines).

The session that measures them and the driver that watches it are those of the LLM engines; they know of a point its
`name`, `level` and `estimate_s` only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hermes.errors import InputError

if TYPE_CHECKING:
    from hermes.calibration.driver import Progress
    from hermes.calibration.plan import Plan

__all__ = ["PointPlan", "measure"]


@dataclass(frozen=True)
class PointPlan:
    """A plan as its collector reads it: `format`, `collector`, `points`, and what the collector asks for."""

    content: dict[str, Any]

    @property
    def points(self) -> list[dict[str, Any]]:
        """What is measured, in order."""
        return list(self.content["points"])

    @property
    def collector(self) -> str:
        """Module that measures it."""
        return str(self.content["collector"])

    @property
    def estimate_s(self) -> float:
        """Seconds all points will take, warm-up included: rough."""
        return float(self.content.get("warmup_s", 0.0)) + sum(float(p.get("estimate_s", 0.0)) for p in self.points)

    def save(self, path: Path) -> None:
        """Write it where a collector finds it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")


def measure(
    plan: PointPlan, output: Path, *, python: str | None, budget_s: float | None,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Path, Progress, bool]:
    """Run the plan's collector: (journal, progress, whether every point is there).

    Plan and journal lie beside `output`; an interrupted run continues. Raises `InputError`.
    """
    from hermes.calibration.driver import collect

    plan_file, journal = output.with_suffix(".plan.json"), output.with_suffix(".journal.jsonl")
    if output.suffix not in (".yaml", ".yml"):
        raise InputError("a file name that ends in .yaml", str(output), field="--output")
    plan.save(plan_file)
    # of a plan, the driver uses what PointPlan has
    progress, complete = collect(
        cast("Plan", plan), plan_file, journal, python=python, budget_s=budget_s, on_progress=on_progress)
    return journal, progress, complete
