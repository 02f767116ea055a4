"""The figures of a run by name, for `hermes plot --kind` and `Results.plot`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.errors import InputError, suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hermes.results.results import Results

__all__ = ["FIGURES", "drawn"]

FIGURES = ("breakdown", "latency", "utilisation", "clients", "queue")


def drawn(results: Results, kind: str) -> Figure:
    """Draw a figure of a run: where time goes (breakdown), latency distributions, utilisation, clients or queues over
    time. Raises `InputError` for an unknown kind."""
    from hermes.results import breakdown_plots, plots

    draw: dict[str, Callable[[Results], Figure]] = {
        "breakdown": breakdown_plots.breakdown, "latency": plots.latency_cdf,
        "utilisation": breakdown_plots.utilisation, "clients": plots.client_timeseries, "queue": plots.queue,
    }
    if kind not in draw:
        raise InputError(f"one of {', '.join(FIGURES)}", kind, field="kind", suggestion=suggest(kind, FIGURES))
    return draw[kind](results)
