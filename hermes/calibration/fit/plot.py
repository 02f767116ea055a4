"""Figure of a fit: predicted against measured times of held-out configurations, and the relative errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hermes.calibration.fit.profile import FitResult
from hermes.config.writing import replacing
from hermes.results.charts import PALETTE, Axis, Chart, Layer, Panel

__all__ = ["chart_of", "save_plot"]

COLOURS = dict(zip(("prefill", "decode", "mixed"), PALETTE, strict=False))
HEIGHT = 260


def chart_of(result: FitResult) -> Chart:
    """Return two panels, a point for every held-out step: its predicted time, and the relative error."""
    rows = result.held_out
    measured, predicted = 1e3 * rows["seconds"].to_numpy(), 1e3 * rows["predicted"].to_numpy()
    points = pd.DataFrame({"x": measured, "y": predicted, "series": rows["phase"].to_numpy()})
    low, high = np.minimum(measured, predicted).min() / 1.15, np.maximum(measured, predicted).max() * 1.15
    errors = points.assign(y=predicted / measured - 1)
    across = Axis("measured (ms)", "log", (low, high))
    parts = ((phase, getattr(result.profile.phases, phase)) for phase in COLOURS)
    said = ", ".join(f"{phase} {part.error.mape:.2%} (worst {part.error.worst:.1%})" for phase, part in parts
                     if part is not None and part.error is not None)
    return Chart(result.profile.name, f"Mean absolute relative errors on held-out configurations: {said}.", [
        Panel("Predicted against measured step times", across, Axis("predicted (ms)", "log", (low, high)), [
            Layer("dash", pd.DataFrame({"x": [low, high], "y": [low, high]})), Layer("point", points),
        ], height=HEIGHT, legend=True, colours=COLOURS),
        Panel("Relative errors", across, Axis("predicted over measured, less 1", percent=True), [
            Layer("rule", pd.DataFrame({"y": [0.0]})), Layer("point", errors),
        ], height=HEIGHT, colours=COLOURS),
    ])


def save_plot(result: FitResult, path: Path) -> None:
    """Write the figure as PNG; same fit, same bytes."""
    from hermes.results.plots import image

    with replacing(path) as temporary:
        temporary.write_bytes(image(chart_of(result), "png"))
