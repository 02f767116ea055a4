"""Record what Dynamo's planner decides on drawn states, for the tests.

    PYTHON scripts/record_planner_decisions.py SEED COUNT > FILE

PYTHON is an interpreter that has ai-dynamo 1.6.1 and ai-dynamo-runtime; it needs no cluster. Each line has a state,
with workers that start, budgets and both roles, and what `PlannerScalingState.advance_load` wants (null: no decision).
The targets `throughput` and `latency` ask no performance model: AISimulate, which has no public wheel, is left out.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from types import ModuleType
from typing import Any

CONTEXT, KV, BATCHED = 4096, 10_000, 2048
MODES = {"agg": ("both",), "decode": ("decode",), "prefill": ("prefill",), "disagg": ("prefill", "decode")}


class Unused:
    """Stands for what is imported, and not called."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


def without_models() -> None:
    """Let the planner be imported without the package of its performance models."""
    for name in ("aisimulate_core", "aisimulate_core.sdk"):
        module = ModuleType(name)
        module.__getattr__ = lambda _: Unused   # type: ignore[method-assign]
        sys.modules.setdefault(name, module)


def drawn(draw: random.Random) -> dict[str, Any]:
    """Return a state."""
    mode = draw.choice(list(MODES))
    target = draw.choice(["throughput", "latency"])
    groups = {}
    for role in MODES[mode]:
        level = draw.choice([0.0, 0.05, 0.09, 0.2, 0.45, 0.55, 0.7, 0.95, 1.1])
        ready = draw.randint(1, 5)
        groups[role] = {
            "starting": draw.choice([0, 0, 1, 2]), "devices": draw.choice([1, 1, 2, 4]),
            "engines": [{"decode_kv_tokens": int(KV * level * draw.choice([1, 0.9, 0.97])),
                         "queued_decode_tokens": draw.choice([0, 0, 100, 500]),
                         "queued_prefill_tokens": draw.choice([0, 0, int(CONTEXT * level), 300])}
                        for _ in range(ready)]}
    return {"mode": mode, "target": target, "min": draw.choice([1, 1, 2]), "budget": draw.choice([None, 4, 8, 16]),
            "context_length": CONTEXT, "kv_tokens": KV, "groups": groups}


def decided(case: dict[str, Any]) -> dict[str, int] | None:
    """Return the workers that the planner wants, by role, where it has decided."""
    from dynamo.common.forward_pass_metrics import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
    from dynamo.planner.config.planner_config import PlannerConfig
    from dynamo.planner.core.state_machine import PlannerScalingState
    from dynamo.planner.core.types import EngineCapabilities, FpmObservations, WorkerCapabilities, WorkerCounts

    groups = {("decode" if role == "both" else role): group for role, group in case["groups"].items()}
    config = PlannerConfig(mode=case["mode"], optimization_target=case["target"], served_model_name="m",
                           min_endpoint=case["min"], max_gpu_budget=-1 if case["budget"] is None else case["budget"])
    state = PlannerScalingState(config, WorkerCapabilities(**{
        role: EngineCapabilities(num_gpu=group["devices"], max_num_batched_tokens=BATCHED, context_length=CONTEXT,
                                 max_kv_tokens=KV) for role, group in groups.items()}))
    busy = any(group["starting"] for group in groups.values())
    counts: dict[str, Any] = {}
    for role, group in groups.items():
        counts[f"ready_num_{role}"] = len(group["engines"])
        counts[f"pending_num_{role}"] = group["starting"]
        counts[f"{role}_scaling_in_progress"] = busy
    state.observe_worker_counts(WorkerCounts(**counts))
    found = state.advance_load(FpmObservations(**{role: {(f"{role}{n}", 0): ForwardPassMetrics(
        worker_id=f"{role}{n}",
        scheduled_requests=ScheduledRequestMetrics(sum_decode_kv_tokens=one["decode_kv_tokens"]),
        queued_requests=QueuedRequestMetrics(sum_prefill_tokens=one["queued_prefill_tokens"],
                                             sum_decode_kv_tokens=one["queued_decode_tokens"]))
        for n, one in enumerate(group["engines"])} for role, group in groups.items()}))
    if found is None:
        return None
    wanted = {role: getattr(found, f"num_{'decode' if role == 'both' else role}") for role in case["groups"]}
    return {role: workers for role, workers in wanted.items() if workers is not None}


def main() -> None:
    """Write the lines."""
    seed, count = sys.argv[1], int(sys.argv[2])
    without_models()
    logging.disable(logging.CRITICAL)
    draw = random.Random(seed)
    lines = 0
    while lines < count:
        case = drawn(draw)
        least = sum(case["min"] * group["devices"] for group in case["groups"].values())
        if case["budget"] is not None and least > case["budget"]:
            continue   # refused when it starts
        print(json.dumps({**case, "wanted": decided(case)}))
        lines += 1


if __name__ == "__main__":
    main()
