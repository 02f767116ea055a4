"""Sweeps: one scenario in many variants, run in worker processes, stored in a folder that can be continued.

    from hermes import open_sweep, run_sweep

    results = run_sweep("sweep.yaml", "out", workers=2)   # a file, a built-in name or a dict
    frame = results.frame()                               # one DataFrame, a row per point

    hermes sweep sweep.yaml -o out --workers 2            # the same on the command line

Keys of a sweep (`hermes.explore.sweep.config.SweepConfig`):

    scenario: batching/chunked            a file relative to the sweep, a built-in name, or the scenario itself
    cases:                                configurations that differ in more than one value; column `case`
      - {label: static, set: {clients.0.scheduler: {kind: static}}}
    grid: {workload.arrivals.rate: [1 /s, 2 /s]}      every combination of values; a value may be any YAML
    zip: {a.b: [1, 2], a.c: [3, 4]}                   stepped through together; a list for several groups
    seeds: 3                              repeats: a number, or a list of seeds; equal seeds, equal workloads
    columns: {workload.arrivals.rate: rate}           names of columns
    extract: module:function              Results -> flat dict of more figures, computed in the worker
    keep: summary                         or `requests` (`results.requests(i)`), or `all` (`results.results(i)`)

Paths are those of `--set`: `clients.0.count`. `run_sweep(..., overrides=["workload.requests=100"])`, `--set` on the
command line, changes the scenario of all points, for a smaller version of the same sweep.

Calling `run_sweep` again with the same folder continues: it runs new points and keeps unchanged ones (by a hash of
scenario, data files, code and `extract`). Failed points are rows with status "failed" (`results.failed()`). Sweeps that
ship are in a folder `sweeps` below scenarios/, or are named `...sweep.yaml`; otherwise they would be listed as
scenarios.
"""

from hermes.explore.sweep.config import Sweep, SweepConfig, load_sweep
from hermes.explore.sweep.editor_schema import sweep_schema
from hermes.explore.sweep.executor import Executor
from hermes.explore.sweep.planning import Plan
from hermes.explore.sweep.results import SweepResults, open_sweep
from hermes.explore.sweep.runner import plan_sweep, run_sweep

__all__ = [
    "Executor", "Plan", "Sweep", "SweepConfig", "SweepResults", "load_sweep", "open_sweep", "plan_sweep", "run_sweep",
    "sweep_schema",
]
