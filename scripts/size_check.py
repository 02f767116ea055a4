"""Compare `hermes size` with a scan of all numbers of clients, over the same candidates.

    python scripts/size_check.py [--model M] [--workload W] [--rate R] [--slo S] [--device D,D] [--workers N]

For each layout: the fewest clients that the command finds, and those of a scan: every number of mixed clients from one
to the answer, and every split into prefill and decode clients with up to `--below` clients less than the answer. A
layout without an answer is scanned up to the most devices allowed, at its largest. Exit code 1 if a scan finds a
layout with more than one client less, or one where the command finds none.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hermes.explore.objective import missed, slo_overrides
from hermes.explore.size import Found, Sizing, changes, size
from hermes.explore.size.files import from_options
from hermes.explore.size.layouts import Kind
from hermes.explore.sweep.executor import of_workers
from hermes.explore.trials import Trials


def candidates(found: Found, most: int, below: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of clients to scan, fewest first."""
    top = most if found.best is None else sum(found.best.clients)
    if found.layout == "mixed":
        yield from ((count,) for count in range(top if found.best is None else 1, top + 1))
        return
    for total in range(top if found.best is None else max(2, top - below), top + (found.best is None)):
        yield from ((prefill, total - prefill) for prefill in range(1, total))


def scan(sizing: Sizing, found: Found, trials: Trials, most: int, below: int) -> tuple[tuple[int, ...] | None, int]:
    """Return the fewest clients that meet the SLO, None if none of the candidates do, and how many were simulated."""
    wanted: dict[str, tuple[int, ...]] = {
        f"{found.kind.name} {numbers}": numbers for numbers in candidates(found, most, below)}
    rows = trials.run({label: (changes(sizing.document["clients"], found.kind, numbers), sizing.scenario.seed)
                       for label, numbers in wanted.items()})
    met = [numbers for label, numbers in wanted.items() if missed(rows[label]) is None]
    return min(met, key=sum, default=None), len(wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--workload", default="azure-conv-2023")
    parser.add_argument("--rate", default="50/s")
    parser.add_argument("--slo", default="ttft_p99=1s,tpot_p99=50ms")
    parser.add_argument("--device", default="h100-sxm,l40s")
    parser.add_argument("--max-devices", type=int, default=64)
    parser.add_argument("--below", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    start = from_options(given.model, given.workload, given.rate, slo_overrides(given.slo))
    wrong = 0
    with TemporaryDirectory() as folder, closing(of_workers(given.workers)) as executor:
        begun = time.perf_counter()
        sizing = size(start.document, devices=given.device.split(","), max_devices=given.max_devices, executor=executor)
        print(f"hermes size: {len(sizing.tried)} simulations, {time.perf_counter() - begun:.1f} s")
        for place, found in enumerate(sizing.found):
            trials = Trials(f"scan {place}", sizing.scenario, Path(folder) / str(place), executor)
            best, runs = scan(sizing, found, trials, given.max_devices // found.kind.devices, given.below)
            mine = None if found.best is None else sum(found.best.clients)
            worse = best is not None and (mine is None or mine - sum(best) > 1)
            wrong += worse
            print(f"{_said(found.kind, found.layout):22} command {_clients(found.best and found.best.clients):8} "
                  f"scan {_clients(best, mine):16} {runs:4} simulations{'  WRONG' if worse else ''}", flush=True)
    return 1 if wrong else 0


def _said(kind: Kind, layout: str) -> str:
    return f"{kind.name} {layout}"


def _clients(numbers: tuple[int, ...] | None, mine: int | None = None) -> str:
    if numbers is None:
        return "none" if mine is None else "none with fewer"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}P/{numbers[1]}D"


if __name__ == "__main__":
    sys.exit(main())
