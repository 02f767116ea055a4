"""Profile of the cost per request by number of clients: calls and time per request, function by function."""

from __future__ import annotations

import cProfile
import pstats
import sys
from pathlib import Path

from benchmarks.core import scenario
from hermes.scenario import load_scenario
from hermes.scenario.build import build


def profile(clients: int, per_client: int = 200) -> dict[str, tuple[float, float]]:
    """Return function -> (calls, own microseconds) per request."""
    requests = clients * per_client
    simulation = build(load_scenario(scenario(requests, clients, router="input_tokens")))
    profiler = cProfile.Profile()
    profiler.runcall(simulation.run)
    rows = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return {
        f"{name} ({Path(file).name})": (row[0] / requests, 1e6 * row[2] / requests)
        for (file, _line, name), row in rows.items()
    }


def main() -> None:
    few, many = (int(a) for a in (sys.argv[1:] + ["10", "1000"][len(sys.argv) - 1 :])[:2])
    a, b = profile(few), profile(many)
    nothing = (0.0, 0.0)
    print(f"{'per request':52} {'calls':>7} -> {'calls':>7} {'us':>7} -> {'us':>7}   ({few} -> {many} clients)")
    for name in sorted(b, key=lambda n: -b[n][1])[:25]:
        (calls_a, us_a), (calls_b, us_b) = a.get(name, nothing), b[name]
        print(f"{name:52} {calls_a:7.2f} -> {calls_b:7.2f} {us_a:7.2f} -> {us_b:7.2f}")
    totals = [sum(v[i] for v in part.values()) for i in (0, 1) for part in (a, b)]
    print(f"{'all':52} {totals[0]:7.2f} -> {totals[1]:7.2f} {totals[2]:7.2f} -> {totals[3]:7.2f}")


if __name__ == "__main__":
    main()
