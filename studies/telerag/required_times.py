"""Stage times that the paper's speed-up and shares would require, and their consequences.

The study fits no parameter to these times and does not use them elsewhere. A search on the CPU takes time linear in the
bytes it scans, so that with scans `k` times as long the latency of every simulated point is known without another
simulation; one simulation checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from . import paper
from .points import Means
from .runs import PIPELINES, Runs, mean

__all__ = ["required_share_times", "required_speedup_times", "solve"]

_MOST = 1e3    # largest factor of the search


def required_speedup_times(runs: Runs, answers: tuple[int, ...]) -> pd.DataFrame:
    """Per answer length, return the simulated mean speed-up, its bounds, and each stage's time at which it would be
    1.55."""
    wanted, rate = paper.DATASETS["NQ"], runs.rate("desktop")
    rows = []
    for answer in answers:
        pairs = runs.pairs("needs", answer=answer)

        def longer_scans(k: float, pairs: list[tuple[Means, Means]] = pairs) -> float:
            return mean(_scans_times(c, k, rate) / _scans_times(a, k, rate) for c, a in pairs)

        def shorter_answers(g: float, pairs: list[tuple[Means, Means]] = pairs) -> float:
            return mean((c.e2e_s - (1 - g) * _answers_s(c)) / (a.e2e_s - (1 - g) * _answers_s(c)) for c, a in pairs)

        factor = solve(longer_scans, wanted, 1.0, _MOST)
        rows.append({
            "answer": answer, "simulated": longer_scans(1.0),
            "lookahead free of charge": mean(c.e2e_s / c.generate_s for c, _ in pairs),
            "no time for answers": shorter_answers(0.0),
            "answers' time for 1.55, times": solve(shorter_answers, wanted, 0.0, 1.0),
            "scans for 1.55, times": factor, **_at_factor(runs, answer, factor, rate),
        })
    return pd.DataFrame(rows)


def _at_factor(runs: Runs, answer: int, factor: float | None, rate: float) -> dict[str, Any]:
    """Return the consequences of scans that take `factor` times as long on the CPU."""
    if factor is None:
        return {"ms a search then": None, "simulated then": None, "on demand over CPU then": None}
    fetch = {("on_demand", p): runs.ask("desktop", p, "on_demand", answer=answer) for p in PIPELINES}
    slow = {(mode, p): runs.ask("desktop", p, mode, answer=answer, cpu_rate=rate / factor)
            for mode in ("offload", "lookahead") for p in PIPELINES}
    found = runs.means(f"needs-{answer}", fetch | slow)
    first = found["offload", PIPELINES[0]]
    search = first.scanned_bytes / first.lookups / (rate / factor)

    def ratio(over: str, under: str) -> float:
        return mean(found[over, p].e2e_s / found[under, p].e2e_s for p in PIPELINES)

    return {"ms a search then": 1e3 * search, "simulated then": ratio("offload", "lookahead"),
            "on demand over CPU then": ratio("on_demand", "offload")}


def required_share_times(runs: Runs) -> pd.DataFrame:
    """Retrieval's share at batch 4 (H100, Llama-3-8B): generation and retrieval at batch 4 over those at batch 1, as
    simulated, as the paper's pairs of shares imply, and as they would have to be."""
    model = "llama-3-8b"
    found = runs.server_points([(model, 1), (model, 4)])
    one, four = found[model, 1], found[model, 4]
    whole, batch = one["offload"], four["offload"]
    rows = [_growth("CPU, simulated", whole, batch, _share(batch)),
            _growth("resident, simulated", one["resident"], four["resident"], _share(four["resident"]))]
    for mode, said in paper.SERVER_SHARE.items():
        rows.append({"case": f"paper, {_name(mode)}: if retrieval is linear in the batch",
                     "share at batch 4 %": said[4],
                     "generation, 4 over 1": 4 * _odds(said[1]) / _odds(said[4]), "retrieval, 4 over 1": 4.0})
    wanted = paper.SERVER_SHARE["offload"][4]
    g = solve(lambda x: _share(batch, generation=x), wanted, 0.1, _MOST)
    r = solve(lambda x: _share(batch, retrieval=x), wanted, 1e-3, 1.0)
    growth = _growth("", whole, batch, wanted)
    if g is not None and r is not None:
        generation, retrieval = "generation, 4 over 1", "retrieval, 4 over 1"
        rows += [growth | {"case": "60% by slower generation", generation: g * growth[generation]},
                 growth | {"case": "60% by faster retrieval", retrieval: r * growth[retrieval]}]
    saved = [(p.scanned_bytes - p.union_bytes) / runs.rate("server") for p in batch]
    once = [p._replace(e2e_s=p.e2e_s - s, retrieve_s=p.retrieve_s - s) for p, s in zip(batch, saved, strict=True)]
    rows.append(_growth("CPU scans each cluster of a batch once", whole, once, _share(once)))
    rows += [
        _again(runs, "windows differ (sigma 0.5)", changes={"workload.pipeline.window_sigma": 0.5}),
        _again(runs, "answers of 128", answer=128), _again(runs, "answers of 16", answer=16),
    ]
    return pd.DataFrame(rows)


def _again(runs: Runs, label: str, **more: Any) -> dict[str, Any]:
    """Other lengths, with the CPU's rate such that its share at batch 1 is 41% again."""
    found = runs.means("shares", {(b, p): runs.ask("server", p, "offload", batch=b, requests=max(4, runs.count // b),
                                                   **more) for b in (1, 4) for p in PIPELINES})
    one, four = ([found[b, p] for p in PIPELINES] for b in (1, 4))
    factor = solve(lambda x: _share(one, retrieval=x), paper.SERVER_SHARE["offload"][1], 1e-2, _MOST) or 1.0
    return _growth(f"{label}, 41% at batch 1 by the CPU's rate", one, four, _share(four, retrieval=factor))


def _growth(label: str, one: list[Means], four: list[Means], share: float) -> dict[str, Any]:
    return {"case": label, "share at batch 4 %": share,
            "generation, 4 over 1": sum(p.generate_s for p in four) / sum(p.generate_s for p in one),
            "retrieval, 4 over 1": sum(p.retrieve_s for p in four) / sum(p.retrieve_s for p in one)}


def _share(points: list[Means], *, generation: float = 1.0, retrieval: float = 1.0) -> float:
    """Percent of the latency that retrieval takes, mean; with both times so many times as long."""
    return 100 * mean(p.retrieve_s * retrieval / (p.retrieve_s * retrieval + p.generate_s * generation) for p in points)


def _odds(percent: float) -> float:
    return percent / (100 - percent)


def _name(mode: str) -> str:
    return {"offload": "CPU"}.get(mode, mode)


def _scans_times(point: Means, factor: float, rate: float) -> float:
    """Latency with the CPU's scans `factor` times as long; the GPU's beside them are shorter anyway."""
    return point.e2e_s + (factor - 1) * point.scanned_bytes / rate


def _answers_s(point: Means) -> float:
    """Return the time of the generations outside any retrieval's window."""
    return max(0.0, point.generate_s - point.windows_s)


def solve(value: Callable[[float], float], target: float, low: float, high: float) -> float | None:
    """Return where a monotone function reaches `target`; None if it does not between `low` and `high`."""
    first, last = value(low), value(high)
    if not min(first, last) <= target <= max(first, last):
        return None
    rising = last >= first
    for _ in range(60):
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        low, high = (middle, high) if (value(middle) < target) == rising else (low, middle)
    return (low + high) / 2
