"""The unit-cost model of the Orthrus derivation: an embedding takes 1 step and 1 unit of memory, a generation F steps
and F units, and there are L units. One token is one block; every step takes one unit of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from hermes.memory import BlockPool
from hermes.plugins.orthrus import HeterogeneousConfig
from hermes.testing.schedulers import Request, ServedSteps, serve

EMBED_FIRST, GENERATE_FIRST, MIXED = "embeddings first", "generations first", "mixed"


def requests(w_e: int, w_g: int, f: int, order: str, seed: int = 0) -> list[Request]:
    """All at step 0, in this order of arrival."""
    kinds = [True] * w_e + [False] * w_g
    if order == GENERATE_FIRST:
        kinds.reverse()
    elif order == MIXED:
        kinds = np.random.default_rng(seed).permutation(kinds).tolist()
    return [Request(0, 1, f, embed=embed) for embed in kinds]


def simulated(arrivals: list[Request], units: int, **options: Any) -> tuple[int, ServedSteps]:
    """(steps, what happened) of these requests on `units` units of memory."""
    config = HeterogeneousConfig(
        max_num_seqs=1 << 20, max_num_batched_tokens=1 << 20, reservation="up_front", **options)
    served = serve(config.build(BlockPool(units, 1), every_step=False), arrivals, longest_run=1000)
    assert len(served.finished) == len(arrivals)
    return len(served.stats), served


def homogeneous_bound(w_e: int, w_g: int, f: int, units: int) -> int:
    """The spec's T_homo."""
    return -(-w_e // units) + -(-f * w_g // (units // f))


def area_bound(w_e: int, w_g: int, f: int, units: int) -> int:
    """The spec's T_hetero: unit-steps of work over units."""
    return -(-(w_e + f * f * w_g) // units)


def mean_latency(served: ServedSteps) -> float:
    """Steps from arrival (all at 0) to the end, over all requests."""
    return float(np.mean([step for step, _ in served.finished]))
