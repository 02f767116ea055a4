"""Cost per request by number of clients: calls and time per request, function by function.

    python -m benchmarks.clients_profile [FEW MANY]
    python -m benchmarks.clients_profile --steady CLIENTS ... [--router LOAD]   CPU of a request while all clients serve
    python -m benchmarks.clients_profile --groups N                             CPU of checking N groups of clients
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from pathlib import Path

from benchmarks.core import scenario
from hermes.scenario import load_scenario
from hermes.scenario.build import build

FULL_S, PER_CLIENT = 13.0, 120   # when as many requests are served as arrive; 30 s of arrivals


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


def steady(clients: int, router: str) -> float:
    """Return the CPU microseconds of a request from `FULL_S` to the end of the arrivals."""
    spec = scenario(clients * PER_CLIENT, clients, router=router)
    simulation, marks = build(load_scenario(spec)), list[tuple[float, int, float]]()
    simulation.run(lambda done, total, now_s: marks.append((now_s, done, time.process_time())))
    inside = [mark for mark in marks if FULL_S <= mark[0] <= PER_CLIENT / 4.0]   # 4 requests a second each
    return 1e6 * (inside[-1][2] - inside[0][2]) / (inside[-1][1] - inside[0][1])


def groups(count: int) -> float:
    """Return the CPU seconds of what `hermes validate` does with so many groups of a client, without its start."""
    group = {"model": "llama-3.1-8b", "device": "h100-sxm"}
    spec = scenario(100) | {"clients": [group | {"name": f"group-{number}"} for number in range(count)]}
    began = time.process_time()
    build(load_scenario(spec))
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", type=int, default=[10, 1000])
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--router", default="input_tokens")
    parser.add_argument("--groups", type=int, default=0)
    options = parser.parse_args()
    if options.groups:
        print(f"{options.groups} groups: {groups(options.groups):.1f} s")
    elif options.steady:
        for count in options.clients:
            print(f"{count} clients: {steady(count, options.router):.1f} us a request", flush=True)
    else:
        compare(*options.clients)


def compare(few: int, many: int) -> None:
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
