"""Benchmark of sweeps: time to start, overhead of a point, gain of a second worker, memory of the driver.

    python -m benchmarks.sweeps [--json FILE] [--only CASE ...]

Every measurement runs in a process of its own. The scenario is `quickstart` with fewer requests. Figures:

- `sweep_start_s_1`, `sweep_start_s_2`: seconds from the call of `run_sweep` until each of 1 or 2 workers has begun its
  first point. hermes is imported before; the median of several processes.
- `sweep_overhead_ms`: CPU of driver and workers together per point, minus the CPU of `build`, `run` and `summary` of
  the same resolved scenarios in one warm process. The CPU per point is the slope between two sweeps of different
  numbers of points, on one worker: the start is not in it. The median of several pairs.
- `sweep_workers_ratio`: seconds of a sweep on 1 worker over seconds on 2 workers that have started and are warm, with
  points of about 0.3 s; each sweep is checked, run and written whole. The median of several pairs. A busy machine
  lowers it: `sweep_workers_share` is the share of two cores that this benchmark got while the sweep ran on 2 workers.
- `sweep_driver_growth_bytes`: RSS of the driver when 10,000 cheap points have an outcome, minus its RSS when the first
  100 of them have one. `sweep_driver_whole_growth_bytes`: peak RSS of a driver of 10,000 points minus that of a driver
  of 100, which counts the plan and the table of results, too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes.explore import Sweep
    from hermes.results import Results

CHEAP, LONG = 20, 2_500   # requests of a point: a few ms, and about 0.3 s
FEW, MANY = 50, 350       # points of the sweeps that the overhead is the slope between
POINTS = 40               # of the sweep on 1 and 2 workers
GROWTH = (100, 10_000)


def where(results: Results) -> dict[str, float]:
    """Return the process of a point, and when it began (extracted by the sweeps of `start`)."""
    return {"pid": os.getpid(), "began_s": time.monotonic() - results.meta["wall_s"]}


def sweep(points: int, requests: int, extract: str | None = None, first: int = 0) -> Sweep:
    """Return a sweep over the seeds of a point, beside this file."""
    from hermes.explore import load_sweep

    document: dict[str, Any] = {"scenario": {"extends": "quickstart"}, "grid": {"workload.requests": [requests]},
                                "seeds": list(range(first, first + points)), "extract": extract}
    return replace(load_sweep(document), folder=Path(__file__).parent)


def start(workers: int) -> dict[str, float]:
    """Return the seconds until each worker has begun a point."""
    from hermes.explore import run_sweep

    with TemporaryDirectory() as folder:
        began = time.monotonic()
        frame = run_sweep(sweep(30, LONG // 5, "sweeps:where"), folder, workers=workers).frame()
    first = frame.groupby("pid")["began_s"].min()
    if len(first) < workers:
        raise SystemExit(f"{len(first)} of {workers} workers had a point")
    return {"seconds": float(first.max()) - began}


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its ended children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def swept(points: int) -> dict[str, float]:
    """Return the CPU seconds of a sweep on one worker."""
    from hermes.explore import run_sweep

    with TemporaryDirectory() as folder:
        begun = _cpu_s()
        run_sweep(sweep(points, CHEAP), folder, workers=1)
        return {"cpu_s": _cpu_s() - begun}


def bare(points: int) -> dict[str, float]:
    """Return the CPU seconds of `build`, `run` and `summary` of a sweep's scenarios, the first of them left out."""
    import gc

    from hermes.explore.sweep.points import points as points_of
    from hermes.explore.sweep.points import scenario
    from hermes.results import Results
    from hermes.scenario.build import build

    read = sweep(points + 1, CHEAP)
    cpu = []
    for point in points_of(read):
        checked = scenario(read, point)
        gc.collect()
        begun = time.process_time()
        assert Results(build(checked).run(), {}, checked.slo, checked.measure).summary
        cpu.append(time.process_time() - begun)
    return {"cpu_s": sum(cpu[1:])}


def ratio(_: int) -> dict[str, float]:
    """Return the seconds of a sweep on 1 and on 2 warm workers, and the share of two cores that the second had."""
    from hermes.explore import run_sweep
    from hermes.explore.sweep.executor import of_workers

    found: dict[str, float] = {}
    for workers in (1, 2):
        with TemporaryDirectory() as folder, closing(of_workers(workers)) as executor:
            run_sweep(sweep(30, LONG // 5, first=1000), Path(folder) / "warm", executor=executor)
            begun = time.perf_counter()
            done = run_sweep(sweep(POINTS, LONG), Path(folder) / "out", executor=executor)
            found[f"seconds_{workers}"] = time.perf_counter() - begun
            found[f"cpu_{workers}"] = float(done.journal()["cpu_s"].sum())
    return found | {"share": found["cpu_2"] / 2 / found["seconds_2"]}


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(points: int) -> dict[str, float]:
    """Return the peak RSS of a driver, and its RSS after the first 100 and after all points."""
    from hermes.core.noise import peak_rss_bytes
    from hermes.explore import run_sweep

    seen: dict[int, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what == "run" and done in GROWTH:
            seen[done] = _rss_bytes()

    with TemporaryDirectory() as folder:
        run_sweep(sweep(points, 1), folder, workers=1, progress=progress)
    return {"grown": float(seen[points] - seen[GROWTH[0]]), "peak": float(peak_rss_bytes())}


MEASURES: Mapping[str, Callable[[int], dict[str, float]]] = {
    "start": start, "swept": swept, "bare": bare, "ratio": ratio, "memory": memory,
}


def measured(name: str, number: int = 0) -> dict[str, float]:
    """Return a measurement from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sweeps", "--measure", name, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def start_figures(repeats: int) -> dict[str, float]:
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for workers, found in seconds.items():
            found.append(measured("start", workers)["seconds"])
    return {f"sweep_start_s_{workers}": statistics.median(found) for workers, found in seconds.items()}


def overhead_figures(repeats: int) -> dict[str, float]:
    found = []
    for _ in range(repeats):
        few, many, alone = measured("swept", FEW), measured("swept", MANY), measured("bare", FEW)
        found.append(((many["cpu_s"] - few["cpu_s"]) / (MANY - FEW), alone["cpu_s"] / FEW))
    return {
        "sweep_overhead_ms": 1e3 * statistics.median(whole - alone for whole, alone in found),
        "sweep_point_ms": 1e3 * statistics.median(whole for whole, _ in found),
        "sweep_bare_ms": 1e3 * statistics.median(alone for _, alone in found),
    }


def workers_figures(repeats: int) -> dict[str, float]:
    found = [measured("ratio") for _ in range(repeats)]
    return {
        "sweep_workers_ratio": statistics.median(f["seconds_1"] / f["seconds_2"] for f in found),
        "sweep_workers_share": statistics.median(f["share"] for f in found),
        "sweep_workers_s_1": statistics.median(f["seconds_1"] for f in found),
        "sweep_workers_s_2": statistics.median(f["seconds_2"] for f in found),
    }


def growth_figures(_: int) -> dict[str, float]:
    few, many = (measured("memory", points) for points in GROWTH)
    return {"sweep_driver_growth_bytes": many["grown"],
            "sweep_driver_whole_growth_bytes": many["peak"] - few["peak"]}


CASES: Mapping[str, Callable[[int], dict[str, float]]] = {
    "start": start_figures, "overhead": overhead_figures, "workers": workers_figures, "growth": growth_figures,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures as flat JSON")
    parser.add_argument("--only", nargs="*", metavar="CASE", choices=list(CASES), help="these cases only")
    parser.add_argument("--repeats", type=int, default=5, help="processes per measurement (default: %(default)s)")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(MEASURES[options.measure[0]](int(options.measure[1]))))
        return
    flat: dict[str, float] = {}
    for name in options.only or CASES:
        found = CASES[name](options.repeats)
        for key, value in found.items():
            print(f"{key}: {value / 1e6:.1f} MB" if key.endswith("_bytes") else f"{key}: {value:.2f}", flush=True)
        flat |= found
    if options.json:
        Path(options.json).write_text(json.dumps(flat, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"written to {options.json}")


if __name__ == "__main__":
    main()
