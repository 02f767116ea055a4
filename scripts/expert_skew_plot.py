"""Draw what uneven routing costs: the time of a step over that with even routing, by skew.

    python scripts/expert_skew_plot.py docs/img/expert-skew.png

The i-th expert of a layer is chosen in proportion to i^-skew (`hermes.hardware.composed.experts`).
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np

from hermes.hardware.base import StepStats
from hermes.hardware.composed import Composed

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the backend

SKEWS = np.linspace(0.0, 2.0, 21)
CASES = {   # label: (model, device, split), decodes of each rank or None, tokens of a prompt of each rank or None
    "Qwen3-235B-A22B, 8 H200, DP8 + EP8": ({"model": "qwen3-235b-a22b", "device": "h200", "dp": 8, "ep": 8}, "C0"),
    "Qwen3-235B-A22B, 8 H200, TP8": ({"model": "qwen3-235b-a22b", "device": "h200", "tp": 8}, "C1"),
    "Mixtral-8x7B, 2 H100, TP2": ({"model": "mixtral-8x7b", "device": "h100-sxm", "tp": 2}, "C2"),
}
STEPS = {
    "8 decodes of 1,000 tokens a rank": StepStats(decode_seqs=8, decode_ctx=8000, decode_ctx_max=1000, sampled=8),
    "64 decodes of 1,000 tokens a rank": StepStats(decode_seqs=64, decode_ctx=64_000, decode_ctx_max=1000, sampled=64),
    "a prompt of 4,096 tokens a rank": StepStats(prefill_seqs=1, prefill_tokens=4096, prefill_attn=8_390_656,
                                                 prefill_max=4096, sampled=1),
}


def main(path: str) -> None:
    figure, panels = plt.subplots(1, len(STEPS), figsize=(11, 3.4), sharey=True, layout="constrained")
    for panel, (title, stats) in zip(panels, STEPS.items(), strict=True):
        for label, (split, colour) in CASES.items():
            times = np.array([Composed(**split, routing_skew=float(skew)).build().step_ns(stats) for skew in SKEWS])
            panel.plot(SKEWS, times / times[0], color=colour, label=label)
            at = int(np.abs(SKEWS - 1.0).argmin())
            one, two = (100 * (times[place] / times[0] - 1) for place in (at, -1))
            print(f"{title}; {label}: {times[0] / 1e6:.2f} ms even, {one:+.1f}% at skew 1, {two:+.1f}% at 2")
        panel.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
        panel.axvline(1.01, color="0.7", linewidth=0.8, linestyle=":", zorder=0)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("skew of the routing")
    panels[0].set_ylabel("time of a step, over even routing")
    panels[0].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
