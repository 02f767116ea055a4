"""Figures of the paper beside the study's, under the context's assumptions."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from hermes.hardware.descriptions.devices import load_device
from hermes.plugins.telerag import PIPELINE_NAMES
from hermes.plugins.telerag.overlap import make_family, overlap_curve
from hermes.study import Compared

from . import paper
from .points import GPU, Means, profile, sizes_of
from .rates import CPU_MEMORY, FASTEST, mean
from .runs import PIPELINES, Runs

__all__ = ["BATCHES", "SERVER_BUDGETS", "compared", "overlaps", "strengths"]

BATCHES = (1, 2, 4, 8)
DESKTOP, ALONE, H100, SHARES, BUDGETS, SERVER_BUDGETS = (
    "latency, RTX 4090", "retrieval alone, by nprobe", "gain by batch, H100", "share of the latency, H100",
    "overlap by budget, RTX 4090", "overlap by budget, H100")
Pairs = list[tuple[Means, Means]]


def compared(runs: Runs, batches: tuple[int, ...] = BATCHES) -> list[Compared]:
    """Return all figures but the overlaps of `overlaps` and `strengths`, which no assumption changes."""
    return [*_speedups(runs), *_retrieval(runs), *_server(runs, batches), *_rates(runs)]


def _speedup(pairs: Pairs) -> float:
    return mean(cpu.e2e_s / ahead.e2e_s for cpu, ahead in pairs)


def _speedups(runs: Runs) -> list[Compared]:
    """End-to-end, on the desktop."""
    by_set = {name: runs.pairs("compared", dataset=name) for name in paper.DATASETS}
    share = mean(cpu.retrieve_s / cpu.e2e_s for cpu, _ in by_set["NQ"])
    said = paper.SERVER_SHARE["offload"][1]
    found = [
        Compared("speed-up, NQ", paper.DATASETS["NQ"], _speedup(by_set["NQ"]),
                 f"CPU retrieval is {100 * share:.1f}% of the desktop's latency here; made 7.21 times as fast, that "
                 f"gives {_saved(share):.2f}, and {said}%, the paper's share on the server, gives "
                 f"{_saved(said / 100):.2f}.", 2, where=DESKTOP, neutral=1),
        *(Compared(f"speed-up, {name}", paper.DATASETS[name], _speedup(by_set[name]),
                   f"Only the overlaps differ from NQ's: {_overlap(by_set[name]):.1f}% on average and "
                   f"{_overlap(by_set['NQ']):.1f}%.", 2, where=DESKTOP, neutral=1)
          for name in ("HotpotQA", "TriviaQA")),
    ]
    eight = runs.pairs("compared", model="llama-3-8b")
    slower, as_long = (mean(getattr(e[0], part) / getattr(t[0], part) for e, t in zip(eight, by_set["NQ"], strict=True))
                       for part in ("generate_s", "retrieve_s"))
    gains = dict(zip(PIPELINES, map(_ratio, by_set["HotpotQA"]), strict=True))
    best = max(PIPELINES, key=lambda p: gains[p])
    return [
        *found,
        Compared("speed-up, Llama-3-8B, NQ", paper.MEAN_8B, _speedup(eight),
                 f"Generation takes {slower:.1f} times as long as Llama-3.2-3B's, CPU retrieval {as_long:.1f}.", 2,
                 where=DESKTOP, neutral=1),
        *_peaks(runs, by_set["HotpotQA"]),
        Compared("pipeline of the largest speed-up, HotpotQA", "IRG", best,
                 ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items()) + ".", where=DESKTOP,
                 agrees=best == "IRG"),
    ]


def _peaks(runs: Runs, three: Pairs) -> list[Compared]:
    """Return the largest speed-ups. three: HotpotQA with Llama-3.2-3B."""
    sets = {"llama-3.2-3b": three, "llama-3-8b": runs.pairs("compared", model="llama-3-8b", dataset="HotpotQA")}
    found = []
    for (pipeline, model), said in paper.PEAKS.items():
        cpu, ahead = sets[model][PIPELINES.index(pipeline)]
        found.append(Compared(
            f"speed-up, {pipeline}, HotpotQA, {paper.MODELS[model]}", said, cpu.e2e_s / ahead.e2e_s,
            f"CPU retrieval is {_share(cpu):.0f}% of its latency, and {cpu.retrieve_s / ahead.retrieve_s:.1f} times as "
            "fast with lookahead.", 2, where=DESKTOP, neutral=1))
    return found


def _overlap(pairs: Pairs) -> float:
    return 100 * mean(ahead.overlap for _, ahead in pairs)


def _saved(share: float) -> float:
    """Return the speed-up if the part `share` of the latency becomes 7.21 times as fast."""
    return 1 / (1 - share + share / paper.RETRIEVAL_SPEEDUP)


def _ratio(pair: tuple[Means, Means]) -> float:
    return pair[0].e2e_s / pair[1].e2e_s


def _retrieval(runs: Runs) -> list[Compared]:
    """Retrieval alone, on the desktop."""
    pairs = {n: runs.pairs("compared-nprobe", nprobe=n) for n in (128, 256, 512)}
    by_nprobe = {n: mean(cpu.retrieve_s / ahead.retrieve_s for cpu, ahead in found) for n, found in pairs.items()}
    if runs.context["miss_over_baseline"]:
        fit = "The rate of misses is given, not fitted."
    elif by_nprobe[256] < 0.99 * paper.RETRIEVAL_SPEEDUP:
        fit = "No rate of misses is enough: the GPU's scan of the hits takes too long."
    else:
        fit = "The rate of misses is fitted to it."
    cpu, fetch = runs.modes("compared", "desktop", ("offload", "on_demand"))
    return [
        *(Compared(f"retrieval alone, nprobe {n}", paper.RETRIEVAL_SPEEDUP if n == 256 else "lower than at 256", value,
                   fit if n == 256 else _nprobe_why(pairs[n]), 2, where=ALONE, neutral=1 if n == 256 else None,
                   agrees=None if n == 256 else value < by_nprobe[256],
                   qualifier="reversed" if n != 256 else "" if runs.context["miss_over_baseline"] else "fitted")
          for n, value in by_nprobe.items()),
        Compared("best nprobe", paper.NPROBE, max(by_nprobe, key=lambda n: by_nprobe[n]),
                 ", ".join(f"{value:.1f} times as fast at {n}" for n, value in by_nprobe.items()) + ".",
                 where=ALONE),
        Compared("on demand over CPU", paper.ON_DEMAND_SLOWER,
                 mean(f.e2e_s / c.e2e_s for f, c in zip(fetch, cpu, strict=True)),
                 f"HyDE: {1e3 * fetch[0].union_bytes / paper.SETUPS['desktop'].link:.0f} ms of copy and "
                 f"{1e3 * fetch[0].probed_bytes / runs.rates()['desktop'].gpu:.0f} ms of GPU scan against "
                 f"{1e3 * cpu[0].cpu_s:.0f} ms on the CPU.", 2, where=DESKTOP, neutral=1),
    ]


def _nprobe_why(pairs: Pairs) -> str:
    held = 100 * mean(ahead.overlap for _, ahead in pairs)
    return (f"Prefetched clusters are {held:.0f}% of the probed ones, "
            + ("so that the GPU scans almost alone." if held > 80 else "so that the CPU has more than half of the work."
               if held < 50 else "so that GPU and CPU share the work."))


def _server(runs: Runs, batches: tuple[int, ...]) -> list[Compared]:
    """Shares and gains by batch, H100, Llama-3-8B."""
    found = runs.server_points(("llama-3-8b", batch) for batch in batches)
    one, four = found["llama-3-8b", 1], found["llama-3-8b", 4]
    growth = {mode: mean(b.generate_s / a.generate_s for a, b in zip(one[mode], four[mode], strict=True))
              for mode in ("offload", "resident")}
    implied = {mode: 4 * _odds(said[1]) / _odds(said[4]) for mode, said in paper.SERVER_SHARE.items()}
    rates = runs.rates()["server"]
    gains = {batch: _speedup(list(zip(found["llama-3-8b", batch]["offload"], found["llama-3-8b", batch]["lookahead"],
                                      strict=True))) for batch in batches}
    grows = "grows" if gains[batches[-1]] > gains[1] else "falls"
    why = (f"It {grows} with the batch: misses are searched at {rates.miss / 1e9:.0f} GB/s, Faiss's batch at "
           f"{rates.baseline * rates.side_by_side / 1e9:.0f}.")

    def needed(batch: int) -> str:
        if batch not in paper.SERVER_GAIN:
            return why
        cpu, ahead = (found["llama-3-8b", batch][mode] for mode in ("offload", "lookahead"))
        share = mean(p.retrieve_s / p.e2e_s for p in cpu)
        faster = mean(c.retrieve_s / a.retrieve_s for c, a in zip(cpu, ahead, strict=True))
        needs = share / (1 / paper.SERVER_GAIN[batch] - 1 + share)
        return (f"Retrieval alone is {faster:.1f} times as fast here; the paper's gain needs about {needs:.1f} at "
                f"Faiss's share of {100 * share:.0f}%.")

    subq = PIPELINES.index("SubQ")
    last = found["llama-3-8b", batches[-1]]
    reads = one["offload"][PIPELINES.index("Self-RAG")]
    longer = mean(b.retrieve_s / a.retrieve_s for a, b in zip(one["offload"], last["offload"], strict=True))
    rows = []
    for mode, label in (("offload", "CPU"), ("resident", "resident")):
        for batch in (1, 4):
            fitted = batch == 1 and not runs.context["baseline_rate" if mode == "offload" else "gpu_rate"]
            rows.append(Compared(
                f"{label} share, batch {batch}, %", paper.SERVER_SHARE[mode][batch],
                100 * mean(p.retrieve_s / p.e2e_s for p in found["llama-3-8b", batch][mode]),
                "The rate is fitted to it." if fitted else "The rate is given." if batch == 1 else
                f"Generation takes {growth[mode]:.2f} times as long at batch 4; the paper's two shares imply "
                f"{implied[mode]:.2f} if retrieval is linear in the batch.", 1, where=SHARES,
                qualifier="fitted" if fitted else ""))
    return [
        *rows,
        Compared(f"CPU retrieval, batch {batches[-1]} over batch 1", float(batches[-1]), longer,
                 f"Faiss is assumed to scan {rates.side_by_side} of a batch's queries at a time; the paper: linear.",
                 2, where=SHARES, neutral=1, qualifier="given"),
        *(Compared(f"H100 gain, batch {batch}", paper.SERVER_GAIN.get(batch), gains[batch], needed(batch), 2,
                   where=H100, neutral=1) for batch in batches),
        Compared(f"H100 gain, batch {batches[-1]} over batch 1", paper.SERVER_GAIN[8] / paper.SERVER_GAIN[1],
                 gains[batches[-1]] / gains[1], why, 2, where=H100, neutral=1),
        Compared(f"H100 gain, SubQ, batch {batches[-1]}", paper.SERVER_GAIN_SUBQ,
                 _ratio((last["offload"][subq], last["lookahead"][subq])),
                 f"Faiss takes {_share(last['offload'][subq]):.0f}% of its latency, and "
                 f"{mean(map(_share, last['offload'])):.0f}% of the six pipelines' on average.", 2, where=H100,
                 neutral=1),
        *_pipelines(found["llama-3-8b", 1], 1), *_pipelines(last, batches[-1]),
        Compared("retrieval alone, H100, nprobe 256", paper.SERVER_RETRIEVAL,
                 mean(c.retrieve_s / a.retrieve_s for c, a in zip(one["offload"], one["lookahead"], strict=True)),
                 f"Misses are searched at {rates.miss / 1e9:.0f} GB/s, by the desktop's share of its memory's "
                 "bandwidth.", 2, where=ALONE, neutral=1),
        *_resident(found),
        Compared("KV tokens beside a resident index, H100", 20_000, one["resident"][0].kv_capacity_tokens,
                 f"The card has {load_device(GPU['server']).memory / 1e9:.1f} GB here: 61 GB are the index, 1 GB the "
                 "encoder, none is kept free.", where="set-up"),
        Compared("bytes of a probed cluster, MB", paper.PROBED_BYTES / 1e6,
                 reads.probed_bytes / reads.lookups / paper.NPROBE / 1e6,
                 "The bias towards large clusters is fitted to it.", 2, where=BUDGETS, qualifier="fitted"),
    ]


def _pipelines(points: Mapping[str, list[Means]], batch: int) -> list[Compared]:
    """Return the lowest and highest gain of the six pipelines at a batch."""
    if batch not in paper.SERVER_GAIN_RANGE:
        return []
    gains = [_ratio(pair) for pair in zip(points["offload"], points["lookahead"], strict=True)]
    return [Compared(f"H100 gain, batch {batch}, lowest and highest pipeline", paper.SERVER_GAIN_RANGE[batch],
                     (min(gains), max(gains)), ", ".join(
                         f"{name} {gain:.2f}" for name, gain in zip(PIPELINES, gains, strict=True)) + ".", 2,
                     where=H100, neutral=1, cases=tuple(gains))]


def _resident(found: Mapping[tuple[str, int], dict[str, list[Means]]]) -> list[Compared]:
    """Return CPU retrieval over a resident index."""
    rows = []
    for what, said in paper.RESIDENT.items():
        part = "retrieve_s" if what == "retrieval" else "e2e_s"
        for batch, theirs in said.items():
            points = found["llama-3-8b", batch]
            cpu, resident = (mean(getattr(one, part) for one in points[mode]) for mode in ("offload", "resident"))
            rows.append(Compared(
                f"CPU over a resident index, {what}, batch {batch}", theirs, cpu / resident,
                "The paper's figure is arithmetic on its shares" + (", to which the rates are fitted." if batch == 1
                                                                   else "."),
                2, where=SHARES, neutral=1, qualifier="fitted" if batch == 1 else ""))
    return rows


def _share(point: Means) -> float:
    """Percent of the latency that retrieval takes."""
    return 100 * point.retrieve_s / point.e2e_s


def _odds(percent: float) -> float:
    return percent / (100 - percent)


def _rates(runs: Runs) -> list[Compared]:
    """The rates behind the figures above."""
    desktop, server = runs.rates()["desktop"], runs.rates()["server"]
    ratios = sorted(rates.gpu / rates.baseline for rates in (desktop, server))
    part = desktop.miss / CPU_MEMORY["desktop"]
    gpu = server.gpu / load_device(GPU["server"]).memory_bandwidth
    given = runs.context
    if given["miss_over_baseline"]:
        miss = "Given."
    elif desktop.miss >= FASTEST:
        miss = "No rate is enough for 7.21; this is the highest of the search."
    else:
        most = ", more than there is" if part > 1 else ""
        miss = f"From 7.21: {100 * part:.0f}% of the CPU's memory bandwidth{most}."
    other = {"same": "That of the server: `desktop_cpu`.", "bandwidth": "The server's, by the memory's bandwidth.",
             "share": "From 41.1% on the desktop, too."}[given["desktop_cpu"]]
    return [
        Compared("GPU over CPU", paper.GPU_OVER_CPU, (ratios[0], ratios[1]), "Desktop and server, from the shares.", 1,
                 where="search speeds", neutral=1),
        Compared("Faiss, one query, server, GB/s", None, server.baseline / 1e9,
                 "Given." if given["baseline_rate"] else "From 41.1%; one thread.", 1),
        Compared("Faiss, one query, desktop, GB/s", None, desktop.baseline / 1e9, other, 1),
        Compared("misses, desktop, GB/s", None, desktop.miss / 1e9, miss, 0),
        Compared("GPU, server, GB/s", None, server.gpu / 1e9,
                 "Given." if given["gpu_rate"] else f"From 10.5%: {100 * gpu:.0f}% of the H100's memory bandwidth.", 0),
    ]


def overlaps(budgets: pd.DataFrame, kept: float | None = None, where: str = BUDGETS) -> list[Compared]:
    """Return overlaps at the paper's budgets, NQ, in the family that is best on a measured index.

    Args:
        budgets: The rows of `budget_table`.
        where: Table of the paper.
        kept: Iterative's overlap in percent if clusters stay from round to round, where it was simulated.
    """
    rows = []
    for row in budgets.to_dict("records"):
        why = "Predicted from the overlap at 256 clusters."
        if row["pipeline"] == "Self-RAG":
            why = "No rewrite: the budget over the bytes of the probed clusters, to which a bias is fitted."
        elif row["paper %"] > row["ceiling %"]:
            why = (f"The budget holds {row['ceiling %']:.0f}% of 256 clusters"
                   + (f"; with those of earlier rounds kept it is {kept:.1f}%." if kept else "."))
        rows.append(Compared(f"overlap, {row['pipeline']}, {row['budget GB']:g} GB, %", row["paper %"],
                             row["gaussian %"], why, 1, where=where,
                             qualifier="fitted" if row["pipeline"] == "Self-RAG" else ""))
    return rows


def strengths() -> list[Compared]:
    """Return the overlaps at 256 prefetched clusters, to which the strengths of the rewrites are fitted."""
    fit, index = profile().families[0], profile().index
    family, sizes = make_family(fit.family, **fit.shape), sizes_of(profile())
    rows = []
    for dataset, said in paper.OVERLAP_256.items():
        for pipeline, percent in said.items():
            drawn = overlap_curve(family, fit.strengths[dataset][PIPELINE_NAMES[pipeline]], fit.bias, sizes,
                                  [index.nprobe], [index.nprobe], queries=256)
            rows.append(Compared(f"overlap at 256 clusters, {pipeline}, {dataset}, %", percent,
                                 100 * float(drawn.overlap[0, 0]), "The strength of the rewrite is fitted to it.", 1,
                                 where="overlap at 256 clusters", qualifier="fitted"))
    return rows
