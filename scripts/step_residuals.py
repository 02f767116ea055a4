"""What earlier steps make of a step: measured less priced milliseconds, by the time since the last step with a prompt.

    python scripts/step_residuals.py DATA

DATA holds h100/residency-vllm with its engine steps (see `hermes accuracy`). Priced are the terms alone, without the
clocks that `hermes.hardware.history` adds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from hermes.hardware import StepStats
from hermes.hardware.composed import Composed

EDGES_MS = [-1e9, 2, 9, 13, 20, 30, 50, 80, 120, 200, 1e9]
CELLS = ("agg_2rps-vanilla", "1T_agg_2rps-vanilla")


def main() -> None:
    """Print a line for each cell and span of time."""
    model = Composed(model="qwen3-14b", device="h100-sxm", engine="vllm-0.23").build()
    for cell in CELLS:
        steps = pd.read_parquet(Path(sys.argv[1]) / "h100" / "residency-vllm" / f"engine-steps-{cell}.parquet")
        last, rows = -1e9, []
        for step in steps.sort_values("t_s").to_dict("records"):
            since = 1e3 * (step["t_s"] - last) - step["gap_ms"]
            if step["prefill_seqs"]:
                last = step["t_s"]
            if step["prefill_seqs"] == 1:
                tokens, decodes = int(step["prefill_tokens"]), int(step["decode_seqs"])
                priced = model.step_ns(StepStats(
                    prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2, prefill_max=tokens,
                    decode_seqs=decodes, decode_ctx=int(step["decode_ctx"]), decode_ctx_max=int(step["decode_ctx_max"]),
                    sampled=decodes + 1))
                rows.append((since, step["gap_ms"] - priced / 1e6))
        found = pd.DataFrame(rows, columns=["since_ms", "residual_ms"])
        spans = found.groupby(pd.cut(found["since_ms"], EDGES_MS), observed=True)["residual_ms"].agg(["size", "median"])
        print(f"{cell}\n{spans.round(2).to_string()}")


if __name__ == "__main__":
    main()
