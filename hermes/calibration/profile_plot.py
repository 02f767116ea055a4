"""Curves of a fitted profile: step time against tokens, batch and context, with the measured range.

Lines are solid inside the profile's measured range and dotted outside; the range of the axis itself is shaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter

from hermes.hardware.base import STEP_STATS, FloatArray, StepStats
from hermes.hardware.polynomial import PolynomialModel
from hermes.hardware.profile import Profile
from hermes.units import NS_PER_S

__all__ = ["decode_step", "plot_profile", "prefill_step"]

PASTS, CONTEXTS, BATCHES, BESIDE = (0, 4096, 32768), (256, 1024, 4096, 16384), (1, 8, 32, 128), (0, 16, 64, 256)
POINTS = 90


def prefill_step(new: int, past: int, decodes: int = 0, context: int = 0) -> StepStats:
    """One sequence with `new` tokens after `past` cached ones, beside `decodes` of that context."""
    return StepStats(
        prefill_seqs=1, prefill_tokens=new, prefill_past=past, prefill_attn=new * past + new * (new + 1) // 2,
        decode_seqs=decodes, decode_ctx=decodes * context, decode_ctx_max=context if decodes else 0,
        sampled=1 + decodes,
    )


def decode_step(batch: int, context: int) -> StepStats:
    """`batch` sequences with `context` cached tokens each."""
    return StepStats(decode_seqs=batch, decode_ctx=batch * context, decode_ctx_max=context, sampled=batch)


def _axis(low: float, high: float) -> list[int]:
    """Return about `POINTS` integers, evenly spaced in their logarithm."""
    return sorted({round(x) for x in np.geomspace(max(1.0, low), high, POINTS)})


class _Curves:
    """Draws lines of one model into a figure's panels."""

    def __init__(self, model: PolynomialModel) -> None:
        self.model = model

    def _times(self, steps: Sequence[StepStats]) -> tuple[FloatArray, FloatArray]:
        """Return milliseconds, and the same with NaN outside the measured range; shape (steps,)."""
        ms = np.array([self.model.step_ns(step) for step in steps]) / NS_PER_S * 1e3
        columns = {name: np.array([getattr(s, name) for s in steps], dtype=np.int64) for name in STEP_STATS}
        outside = self.model.out_of_range(columns, np.ones(len(steps), dtype=np.int64)) > 0
        return ms, np.where(outside, np.nan, ms)

    def panel(
        self, axes: Any, xs: Sequence[int], lines: Sequence[tuple[str, Callable[[int], StepStats]]], title: str,
        label: str, shade: Sequence[float] | None,
    ) -> None:
        """One set of curves over `xs`; a line is its label and the step at an x."""
        if shade:
            axes.axvspan(max(shade[0], xs[0]), shade[1], color="0.9", zorder=0, label="measured range")
        for index, (name, step) in enumerate(lines):
            ms, inside = self._times([step(x) for x in xs])
            color = f"C{index}"
            axes.plot(xs, ms, ":", color=color, linewidth=1)
            axes.plot(xs, inside, "-", color=color, linewidth=1.8, label=name)
        axes.set(title=title, xlabel=label, ylabel="step time, ms", xscale="log", yscale="log", xlim=(xs[0], xs[-1]))
        for axis in (axes.xaxis, axes.yaxis):  # 1,000, not 10^3
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
        axes.grid(True, which="major", alpha=0.4)
        axes.legend(fontsize=8)


def plot_profile(profile: Profile) -> Figure:
    """Draw four panels: prefill against new tokens, mixed steps against new tokens, decode against batch and against
    context."""
    curves = _Curves(PolynomialModel(profile))
    prefill, decode = profile.phases.prefill.range, profile.phases.decode.range
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    tokens = _axis(16, 2 * prefill.get("prefill_tokens", [16, 8192])[1])
    curves.panel(
        panels[0][0], tokens, [(f"{past:,} past", partial(prefill_step, past=past)) for past in PASTS],
        "prefill of one sequence", "new tokens", prefill.get("prefill_tokens"),
    )
    mixed = profile.phases.mixed
    beside = mixed.range if mixed else prefill
    curves.panel(
        panels[0][1], [n for n in tokens if n <= 16384],
        [(f"{d} decodes at 1,024", partial(prefill_step, past=0, decodes=d, context=1024)) for d in BESIDE],
        "prefill and decodes in one step" + ("" if mixed else " (composed)"), "new tokens",
        beside.get("prefill_tokens", beside.get("tokens")),
    )
    batches = _axis(1, 2 * decode.get("decode_seqs", [1, 256])[1])
    curves.panel(
        panels[1][0], batches, [(f"{c:,} context", partial(decode_step, context=c)) for c in CONTEXTS],
        "decode", "sequences", decode.get("decode_seqs"),
    )
    contexts = _axis(64, 2 * decode.get("decode_ctx_max", [64, 32768])[1])
    curves.panel(
        panels[1][1], contexts, [(f"batch of {b}", partial(decode_step, b)) for b in BATCHES],
        "decode", "context of each, tokens", decode.get("decode_ctx_max"),
    )
    source = profile.provenance
    errors = ", ".join(
        f"{name} {part.error.mape:.1%}"
        for name, part in (("prefill", profile.phases.prefill), ("decode", profile.phases.decode), ("mixed", mixed))
        if part is not None and part.error is not None
    )
    figure.suptitle(
        f"{profile.name}: {source.model} on {source.hardware}, TP{source.tensor_parallel}, {source.dtype}"
        + (f"\nheld-out error: {errors}" if errors else "")
    )
    return figure
