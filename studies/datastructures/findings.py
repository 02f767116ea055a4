"""Findings of the study, from its tables."""

from __future__ import annotations

from typing import Any

__all__ = ["findings"]


def _best(frame: Any, capacity: str) -> str:
    return "; ".join(
        f"{value:,g}: " + " > ".join(f"{row['policy']} {row['tokens saved %']:.1f}%" for _, row in
                                     mine.sort_values("tokens saved %", ascending=False).iterrows())
        for value, mine in frame.groupby(capacity))


def findings(found: dict[str, Any], quick: bool) -> list[str]:
    """Return the findings. found: the frame of each table by its name. quick: Leave out those about fusions, which the
    small corpus does not settle."""
    worst = (found["savings"]["saved %"] - found["savings"]["formula %"]).abs().max()
    lines = [f"1. Blocks of the allocator and the formula differ by {worst:.2g} percentage points at most.",
             f"2. Tokens saved, Zipf contexts, by capacity in percent: {_best(found['zipf'], 'capacity %')}."]
    if "mooncake" in found:
        best = _best(found["mooncake"], "capacity (blocks)")
        lines.append(f"2. Tokens saved, Mooncake, by capacity in blocks: {best}.")
    lines += [*_counts(found), *_batches(found)]
    if "fusion" in found:
        lines += ["4. Fusions: the small corpus of a quick run settles none of them."] if quick else _fusions(found)
        lines.append("5. Queries with the same neighbours: " + "; ".join(
            f"{row.iloc[0]} {row.iloc[1]:.1f}%" for _, row in found["seeds"].iterrows()) + ".")
    for _, row in found["powers"].iterrows():
        lines.append(f"5. {row['measured']}: time grows like {row['time grows like']}^{row['exponent']:.2f} "
                     f"({row['from']:.2f} to {row['to']:.2f}).")
    lines.append("6. Classes of the shipped searches: " + "; ".join(
        f"{row['measured']}: {row['classes']}" for _, row in found["svab"].iterrows()) + ".")
    heap = found["heap"]
    mine = heap[heap["structure"].str.startswith("indexed")]
    took, other = mine["us at 10^5"], heap[heap["structure"] == "sorted list"]["us at 10^5"].iloc[0]
    lines.append(f"7. At 10^5 entries: {took.min():.1f} to {took.max():.1f} us an operation; a sorted list: "
                 f"{other:.1f} us.")
    return lines


def _counts(found: dict[str, Any]) -> list[str]:
    lines = [f"3. Sketches of depth {depth}: at most {mine['above the bound'].max():.3%} of the estimates above the "
             f"bound (allowed: {mine['delta'].iloc[0]:.2%}); below the truth: {int(mine['below the truth'].sum())}."
             for depth, mine in found["sketch"].groupby("depth", sort=False)]
    changed = found["admission"].dropna(subset="P95 change %")
    return lines + [
        f"3. P95 of a fetch at {row['rate/s']}/s, {row['policy']}, {row['memory tier']}: {row['P95 ms']:.1f} ms "
        f"({row['P95 change %']:+.1f}% +/- {row['+/-']:.1f})." for _, row in changed.iterrows()]


def _batches(found: dict[str, Any]) -> list[str]:
    lines, batches, submits = [], found["micro_batches"], found["submits"]
    for rate, mine in batches[batches["submit us"] == 0].groupby("rate/s"):
        least = mine.loc[mine["P95 ms"].idxmin()]
        lines.append(f"3. Micro-batches at {rate}/s: P95 is least ({least['P95 ms']:.1f} ms) with a window of "
                     f"{least['window ms']:g} ms.")
    lines.append(f"3. A submit costs {submits['us a submit'].iloc[0]:.1f} us alone, "
                 f"{submits['us a submit'].iloc[-1]:.1f} us in batches of {submits['batch'].iloc[-1]}.")
    return lines


def _fusions(found: dict[str, Any]) -> list[str]:
    fusion = found["fusion"].set_index("method")["recall@10"]
    both, tests = found["ablation"], found["strength_tests"]
    over_dense = both[both["adds"] == "NASF to dense search"]
    both = both[(both["measure"] == "recall@10") & ~both["adds"].str.startswith("NASF")].set_index("adds")

    def better(other: str, measure: str, words: bool | None = None) -> str:
        mine = tests[(tests["NASF against"] == other) & (tests["measure"] == measure)]
        if words is not None:
            mine = mine[(mine["averaged over"] == "own words") == words]
        up, down = (mine["p"].lt(0.05) & (sign * mine["difference"]).gt(0) for sign in (1, -1))
        return f"better in {up.sum()} and worse in {down.sum()} of {len(mine)}"

    return [
        "4. recall@10: " + ", ".join(f"{name} {value:.3f}" for name, value in fusion.items()) + ".",
        "4. To the naive sum's recall@10 " + "; ".join(
            f"{name} adds {row['difference']:+.3f} ({row['from']:+.3f} to {row['to']:+.3f}, p {row['p']:.2g})"
            for name, row in both.iterrows()) + ".",
        "4. NASF less dense search: " + "; ".join(
            f"{row['measure']} {row['difference']:+.3f} ({row['from']:+.3f} to {row['to']:+.3f}, p {row['p']:.2g})"
            for _, row in over_dense.iterrows()) + ".",
        f"4. NASF against dense search on other corpora, p < 0.05: recall@10 {better('dense', 'recall@10')}; MRR@10 "
        f"{better('dense', 'MRR@10')}.",
        "4. NASF against normalised fusion with equal weights, p < 0.05, recall@10: "
        f"{better('normalised', 'recall@10', True)} corpora whose short queries have noisier embeddings, "
        f"{better('normalised', 'recall@10', False)} whose have not.",
    ]
