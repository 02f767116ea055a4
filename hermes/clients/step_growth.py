"""Growth of step times with the batch: a sample of a client's steps priced with twice and with half their work.

Results tell from it what would serve more of the work that waits: more of the resource that stopped admission (slots,
blocks, ...), or hardware that computes more in the same time. Hardware models are pure functions, so it is computed
once, after the run.
"""

from __future__ import annotations

import numpy as np

from hermes.arrays import FloatArray
from hermes.core.client import Columns
from hermes.core.reasons import Reason
from hermes.hardware.base import HardwareModel, StepStats
from hermes.hardware.config import prices

__all__ = ["step_growth"]

SAMPLE = 64       # runs of steps for each reason
SCALED = ("prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx", "sampled",
          "embed_tokens", "embedded", "lora_tokens")
AS_THEY_ARE = ("decode_ctx_max", "lora_adapters", "stopped")


def step_growth(hardware: HardwareModel, columns: Columns) -> FloatArray:
    """Return (time of twice the work, time of half the work) over the time of the work, shape (reasons, 2).

    By the `Reason` for which sequences waited; steps at the token budget count for that. NaN where no step ran.

    Args:
        hardware: The client's hardware model.
        columns: The client's rows of the table of runs, with `at_budget`.
    """
    out = np.full((len(Reason), 2), np.nan)
    if not len(columns["client"]) or not prices(hardware, "step_ns"):
        return out
    reason = np.where(columns["at_budget"] > 0, int(Reason.TOKEN_BUDGET), columns["stopped"])
    for code in np.unique(reason).tolist():
        rows = np.flatnonzero((reason == code) & (columns["prefill_tokens"] + columns["decode_seqs"] > 0))
        if not len(rows):
            continue
        upto = np.cumsum((columns["end_ns"] - columns["start_ns"])[rows])   # rows by their share of the time
        chosen = rows[np.searchsorted(upto, (np.arange(SAMPLE) + 0.5) / SAMPLE * upto[-1])]
        distinct, places = np.unique(chosen, return_inverse=True)   # a long run is chosen several times
        each = zip(*(columns[name][distinct].tolist() for name in (*SCALED, *AS_THEY_ARE)), strict=True)
        times = np.array([[hardware.step_ns(_scaled(row, *share)) for share in ((1, 1), (2, 1), (1, 2))]
                          for row in each])
        times = times[places]
        out[code] = (times[:, 1:] / times[:, :1]).mean(axis=0)   # each row stands for an equal part of the time
    return out


def _scaled(row: tuple[int, ...], times: int, over: int) -> StepStats:
    """Return a batch, given by `SCALED` and `AS_THEY_ARE`, with `times / over` of its work, rounded up."""
    given = {name: -(-value * times // over) for name, value in zip(SCALED, row, strict=False)}
    decode_ctx_max, adapters, stopped = row[len(SCALED):]
    if stopped == Reason.ADAPTERS:   # their slots are what there would be more of
        adapters = -(-adapters * times // over)
    return StepStats(**given, decode_ctx_max=decode_ctx_max, lora_adapters=adapters)
