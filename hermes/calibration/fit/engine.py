"""The engine's own time of each step, from measured steps of a whole engine and the terms of its kernels.

    measured step = scheduling and output (`overhead_s`) + kernels (the composed model) + what is left

The first part is `host`: fixed, and for each sequence; it hides behind the device where scheduling is asynchronous.
What is left is `exposed`: input tensors, the launch, the sampler without its sort (the collectors sample greedily);
more (`uncaptured`) in steps beyond the largest captured one. Both are fitted without negative figures, on errors
relative to the whole step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.calibration.comparison import Errors, compare_times
from hermes.calibration.fit.estimators import HUBER, solve
from hermes.calibration.fit.kernels import BesideFit, model_of
from hermes.calibration.steps import MeasuredSteps
from hermes.calibration.terms import MeasuredTerms
from hermes.errors import InputError
from hermes.hardware.base import BATCH_STATS, StepStats
from hermes.hardware.composed import captured_sizes
from hermes.hardware.composed_terms import ComposedModel
from hermes.hardware.engines import StepTime
from hermes.hardware.kernel_tables import KernelTables
from hermes.units import NS_PER_S

__all__ = ["EngineFit", "fit_engine"]

FEWEST_STEPS = 8


@dataclass(frozen=True)
class EngineFit:
    """The engine's own time, and how far a step made of kernels and it is off the measured one."""

    step: StepTime
    errors: Errors
    unexplained: float
    """Median share of a step that the kernels leave to the engine; below 0 the tables are too slow."""


def fit_engine(steps: MeasuredSteps, terms: MeasuredTerms, tables: KernelTables, beside: BesideFit | None) -> EngineFit:
    """Return the engine's own time. Raises `InputError` for steps of another model or without `overhead_s`."""
    header, measured = steps.header, terms.header
    for field, ours, theirs in (("model", measured.model.name, header.model), ("dtype", measured.dtype, header.dtype)):
        if ours != theirs:
            raise InputError(f"steps of the measured terms ({ours})", theirs, field=f"--steps: {field}")
    if header.tensor_parallel not in measured.tensor_parallel:
        raise InputError(f"steps of tensor parallelism {', '.join(map(str, measured.tensor_parallel))}, as the terms",
                         header.tensor_parallel, field="--steps: tensor_parallel")
    rows = steps.usable()
    rows = rows[np.isfinite(rows["overhead_s"])]
    if len(rows) < FEWEST_STEPS:
        raise InputError(f"at least {FEWEST_STEPS} steps with overhead_s", len(rows), field="--steps")
    sizes = captured_sizes(StepTime().largest_graph) if measured.description.type == "gpu" else ()
    model = model_of(terms, tables, header.tensor_parallel, beside, sizes)
    seconds, overhead = rows["time_s"].to_numpy(), rows["overhead_s"].to_numpy()
    seqs = (rows["prefill_seqs"] + rows["decode_seqs"]).to_numpy(np.float64)
    tokens, sampled = rows["prefill_tokens"] + rows["decode_seqs"], rows["sampled"].to_numpy(np.float64)
    kernels = np.array([_kernels_s(model, StepStats(**stats)) for stats in rows[list(BATCH_STATS)].to_dict("records")])
    weights = 1.0 / seconds**2
    ones = np.ones(len(rows))
    host, host_per_seq = solve(np.column_stack([ones, seqs]), overhead, weights, relative=False, huber=HUBER)
    beyond = (tokens > sizes[-1]).to_numpy(np.float64) if sizes else np.zeros(len(rows))
    features, left = np.column_stack([ones, sampled, beyond]), seconds - overhead - kernels
    exposed, per_seq, uncaptured = solve(features, left, weights, relative=False, huber=HUBER)
    step = StepTime(
        exposed=float(exposed), exposed_per_seq=float(per_seq), uncaptured=float(uncaptured), host=float(host),
        host_per_seq=float(host_per_seq), largest_graph=sizes[-1] if sizes else 0,
        source=f"{len(rows)} steps of {header.engine} {header.engine_version} on {header.hardware}, {header.date}, "
               "less the kernels' times")
    ours = kernels + features @ np.array([exposed, per_seq, uncaptured]) + host + host_per_seq * seqs
    return EngineFit(step, compare_times(ours, seconds), float(np.median(left / seconds)))


def _kernels_s(model: ComposedModel, stats: StepStats) -> float:
    return sum(ns for term, ns in model.terms_ns(stats).items() if term != "sampling") / NS_PER_S
