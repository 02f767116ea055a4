"""Benchmark of the data structures: the indexed heap at 10^5 entries, an eviction by token-aware LRU, and a submit to
a micro-batch, real (what a scenario's `submit_cost` is) and simulated.

    python -m benchmarks.structures

Means over five repetitions, with their 95% interval and class (`hermes.core.noise`).
"""

from __future__ import annotations

import time

from hermes.core.noise import spread

SUBMITS, REPETITIONS = 20_000, 5


def submit_s() -> float:
    """Return seconds of CPU time to hand one task to a client that waits for its batch to fill."""
    from hermes.clients.service import ServiceClient
    from hermes.core.client import ClientEvents
    from hermes.core.clock import Clock
    from hermes.core.stage import ServiceStage
    from hermes.services import MachineSpec, PerItem

    machine = MachineSpec(8, 0.0, 0.0, 0)
    client = ServiceClient(Clock(), 0, "search", ClientEvents(), {"retrieve": PerItem(per_item=1e-3).build(machine)},
                           machine, max_batch=SUBMITS + 1, per_kind=True, batch_window_ns=10**9)
    tasks = [ServiceStage("retrieve", items=1) for _ in range(SUBMITS)]
    started = time.process_time()
    for task in tasks:
        client.submit(task)
    return (time.process_time() - started) / SUBMITS


def main() -> None:
    """Print the table."""
    from hermes.study import load_study

    study = load_study("datastructures")
    print(study.module("tools").heap_costs(REPETITIONS).markdown())
    print(f"\n{study.module('tools').eviction_costs(REPETITIONS).markdown()}")
    print(f"\n{study.module('service').submit_costs(REPETITIONS).markdown()}")
    submit_s()   # imports
    took = spread(submit_s() for _ in range(REPETITIONS))
    print(f"\na simulated submit to a micro-batch: {1e6 * took.mean:.2f} us +/- {1e6 * took.ci95:.2f}, {took.verdict}")


if __name__ == "__main__":
    main()
