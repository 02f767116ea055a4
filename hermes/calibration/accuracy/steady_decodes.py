"""Reference set of steady decoding by batch (`data/h100/ml-energy`): time between tokens of ML.ENERGY's leaderboard.

Its engine's version is not stated; the time that grows with the batch says that it scheduled in step with the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hermes.calibration.accuracy.row import Case, Row
from hermes.hardware import StepStats
from hermes.hardware.composed import Composed
from hermes.units import NS_PER_S

__all__ = ["steady_decodes"]

PROMPT = 200   # tokens; not stated there
LONGEST = 2.0  # of a batch's contexts over their mean
MODELS = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "Qwen/Qwen3-32B": "qwen3-32b"}
CARDS = {"H100": "h100-sxm", "B200": "b200"}


def steady_decodes(data: Path) -> Iterator[Row]:
    """Median time between tokens by batch."""
    table = pd.read_csv(data / "h100" / "ml-energy" / "measured.csv")
    for row in table.to_dict("records"):
        model, card = MODELS[row["model_id"]], CARDS[row["gpu_model"]]
        hardware = Composed(model=model, device=card, tp=int(row["tensor_parallel"]), asynchronous=False).build()
        seqs = round(row["avg_batch_size"])
        context = PROMPT + row["avg_output_len"] / 2
        stats = StepStats(decode_seqs=seqs, decode_ctx=round(seqs * context), decode_ctx_max=round(LONGEST * context),
                          sampled=seqs)
        case = Case("ML.ENERGY", f"{seqs} sequences", "not stated", card, model)
        yield Row(case, "itl", "p50", row["median_itl_ms"] / 1e3, hardware.step_ns(stats) / NS_PER_S)
