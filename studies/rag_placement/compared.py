"""What the paper says of the placements beside the study's figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from hermes.study import Compared

from .figures import PARTS
from .tables import FAST

__all__ = ["compared"]

SLOW = "Mistral-7B / small CPU"
KV = "20 * 512 * 131072"
SMALL = 10.0      # percent of the total, at most: small
SEVERAL = 2.0     # seconds, at least: several
AXIS_S = 3.5      # where the axis of figure 9 ends
WHERE = "Fig. 9"


def compared(bars: pd.DataFrame, moved: pd.DataFrame | None = None) -> list[Compared]:
    """Return the paper's sentences with figures.

    Args:
        bars: The placements on both links, each with several seeds.
        moved: What else may move from retrieval to the LLM.
    """
    slow = _rows(bars, SLOW)
    share = 100 * slow["part.embedding"] / slow["total_s"]
    largest = max(PARTS, key=lambda name: slow.iloc[0][f"part.{name}"])
    own = bars[bars["seed"] == 0]
    text, text_all = (100 * rows["communication_share"] for rows in (own, bars))
    found = [
        Compared(f"{SLOW}: largest part", "embedding", largest,
                 f"{share.iloc[0]:.0f}% of the total; decode is {slow.iloc[0]['part.decode']:.2f} s, retrieval "
                 f"{slow.iloc[0]['part.retrieval']:.3f} s.", where=WHERE, agrees=largest == "embedding"),
        Compared(f"{SLOW}: embedding, % of the total", "dominates", f"{share.iloc[0]:.0f}",
                 "A prefill of 14 GFLOP a token at the assumed share of the CPU's peak.",
                 interval=_interval(share), digits=0, where=WHERE, agrees=bool(share.min() > 50)),
        Compared(f"{SLOW}: total, s", f"several; the axis ends at {AXIS_S:g}", f"{slow.iloc[0]['total_s']:.1f}",
                 f"{slow.iloc[0]['part.embedding']:.1f} s of it are embedding.", interval=_interval(slow["total_s"]),
                 digits=1, where=WHERE, agrees=bool(slow["total_s"].between(SEVERAL, AXIS_S).all())),
    ]
    for model in ("E5-Base", "Mistral-7B"):
        rows = _rows(bars, f"{model} / A100 + large CPU")
        part = 100 * rows["part.embedding"] / rows["total_s"]
        found.append(Compared(
            f"{model} on an A100: embedding, % of the total", "small", f"{part.iloc[0]:.1f}",
            f"{1e3 * rows.iloc[0]['part.embedding']:.1f} ms of {rows.iloc[0]['total_s']:.2f} s; small: at most "
            f"{SMALL:g}%.", interval=_interval(part), digits=1, where=WHERE, agrees=bool(part.max() <= SMALL)))
    found.append(Compared(
        "context moved as text, % of the total", "under 1", f"{text.min():.5f} to {text.max():.5f}",
        f"{bars.iloc[0]['context_bytes'] / 1e3:.0f} kB over 8 to 32 GB/s.", interval=_interval(text_all), digits=5,
        where=WHERE, agrees=bool(text_all.max() < 1)))
    if moved is not None:
        rows = moved[moved["moved"] == KV]
        whole = 100 * rows["communication_share"]
        found.append(Compared(
            "context moved as keys and values, % of the total", "under 1", f"{whole.min():.1f} to {whole.max():.1f}",
            f"{rows.iloc[0]['context_bytes'] / 1e9:.1f} GB over 8 to 32 GB/s, in place of text.", digits=1, where=WHERE,
            agrees=bool(whole.max() < 1)))
    share, share_all = (100 * rows["part.retrieval"] / rows["total_s"] for rows in (own, bars))
    found.append(Compared(
        "retrieval, % of the total", None, _interval(share),
        f"{1e3 * own['part.retrieval'].min():.0f} to {1e3 * own['part.retrieval'].max():.0f} ms, over placements "
        "and links.", interval=_interval(share_all), digits=1, where=WHERE))
    return found


def _rows(bars: pd.DataFrame, case: str) -> pd.DataFrame:
    """Return the rows of a placement on the fast link, the scenario's own seed first."""
    return bars[(bars["case"] == case) & (bars["link"] == FAST)]


def _interval(values: Any) -> tuple[float, float]:
    return float(values.min()), float(values.max())
