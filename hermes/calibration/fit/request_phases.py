"""What each request of a simulation waited for, as sums over steps: the rows of a fit to request times.

The time from arrival to first token is the front end plus the steps from arrival to the one that gave that token (the
first of them in part); the time from first to last token is the steps between. With `StepAdjustment` a step is

    fixed + per_seq * sequences + prompts * a + decodes * b

where a and b are the hardware model's own times, divided between the phases as `hermes.hardware.fitted.adjusted` does.
So a phase is a sum of six known columns times the six figures of `NAMES`. Where earlier steps made a step longer
(clocks under load, `hermes.hardware.history`), its columns are longer by as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hermes.arrays import FloatArray, IntArray
from hermes.core.record import STATUS_COMPLETED, RunRecord
from hermes.hardware.base import BATCH_STATS, HardwareModel, StepStats
from hermes.hardware.fitted.adjusted import AdjustedModel, StepAdjustment, decodes_alone, prompts_alone
from hermes.units import NS_PER_S

__all__ = ["NAMES", "Phases", "phases_of"]

NAMES = ("front_end_s", "per_prompt_token_s", "fixed_s", "per_seq_s", "prompts", "decodes")
_STATS = (*BATCH_STATS, "embed_tokens", "embedded")


@dataclass(frozen=True)
class Phases:
    """Rows for the requests that completed with one stage and a first token.

    Attributes:
        request: Numbers, shape (requests,).
        first, rest: Columns `NAMES` of the time to the first token and from there to the last, shape (requests, 6).
        ttft_s, rest_s: The simulated times themselves, shape (requests,).
    """

    request: IntArray
    first: FloatArray
    rest: FloatArray
    ttft_s: FloatArray
    rest_s: FloatArray


def phases_of(record: RunRecord, hardware: HardwareModel, before_s: float, per_token_s: float) -> Phases:
    """Return the rows of a simulation whose clients share one hardware model.

    before_s, per_token_s: Its front end before the engine, fixed and for each prompt token.
    """
    stages = record.stages
    once = np.bincount(stages["request"], minlength=len(record.status)) == 1
    completed = record.status[stages["request"]] == STATUS_COMPLETED
    rows = np.flatnonzero(completed & once[stages["request"]] & (stages["first_token_ns"] >= 0))
    first, rest = np.zeros((len(rows), len(NAMES))), np.zeros((len(rows), len(NAMES)))
    ttft, decode = np.zeros(len(rows)), np.zeros(len(rows))
    for client, ends in enumerate(record.step_ends):
        mine = np.flatnonzero(stages["client"][rows] == client)
        if not len(mine):
            continue
        starts, sums = _steps(record, client, ends, hardware)
        stage = rows[mine]
        request = stages["request"][stage]
        tokens = record.prompt_tokens[request]
        arrival = record.arrival_ns[request]
        ready = arrival + np.rint((before_s + per_token_s * tokens) * NS_PER_S).astype(np.int64)
        head, last = stages["first_step"][stage], stages["last_step"][stage]
        begin = np.minimum(np.searchsorted(ends, ready, side="right"), head)
        length = np.maximum(ends[begin] - starts[begin], 1)
        part = np.clip((ends[begin] - ready) / length, 0.0, 1.0)   # of the step during which it came
        first[mine, 0], first[mine, 1] = 1.0, tokens
        first[mine, 2:] = sums[head + 1] - sums[begin + 1] + part[:, None] * (sums[begin + 1] - sums[begin])
        rest[mine, 2:] = sums[last + 1] - sums[head + 1]
        after = record.after_ns[client] if record.after_ns else 0
        ttft[mine] = (ends[head] + after - arrival) / NS_PER_S
        decode[mine] = (ends[last] - ends[head]) / NS_PER_S
    return Phases(stages["request"][rows], first, rest, ttft, decode)


def _steps(record: RunRecord, client: int, ends: IntArray, hardware: HardwareModel) -> tuple[IntArray, FloatArray]:
    """Return the start of each step, and the sums up to each step of (1, sequences, prompts' seconds, decodes'
    seconds): shapes (steps,) and (steps + 1, 4)."""
    base, change = ((hardware.base, hardware.change) if isinstance(hardware, AdjustedModel)
                    else (hardware, StepAdjustment()))
    figures = np.array([change.fixed, change.per_seq, change.prompts, change.decodes])
    steps = np.zeros((len(ends), 4))
    starts = np.empty_like(ends)
    starts[:1], starts[1:] = 0, ends[:-1]
    runs = record.runs
    for run in np.flatnonzero(runs["client"] == client).tolist():
        low, count = int(runs["first_step"][run]), int(runs["num_steps"][run])
        starts[low] = runs["start_ns"][run]
        stats = StepStats(**{name: int(runs[name][run]) for name in _STATS})
        whole = base.run_ns(stats, count) / NS_PER_S
        part = steps[low:low + count]
        part[:, 0], part[:, 1] = 1.0, stats.prefill_seqs + stats.decode_seqs
        if not stats.decode_seqs:
            part[:, 2] = whole
        elif not stats.prefill_tokens:
            part[:, 3] = whole
        elif change.prompts >= change.decodes:
            part[:, 2] = base.step_ns(prompts_alone(stats)) / NS_PER_S
            part[:, 3] = whole - part[:, 2]
        else:
            part[:, 3] = base.run_ns(decodes_alone(stats), count) / NS_PER_S
            part[:, 2] = whole - part[:, 3]
        own = float(part[0] @ figures)
        if own > 0.0 and stats.prefill_tokens and starts[low] == ends[low - 1]:   # not the first step of an idle engine
            part[:1] *= (ends[low] - starts[low]) / NS_PER_S / own
    return starts, np.concatenate((np.zeros((1, 4)), np.cumsum(steps, axis=0)))
