"""Study of TeleRAG: lookahead retrieval on a desktop and on a server."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from hermes.hardware.descriptions.devices import load_device
from hermes.study import Compared, Context, Plot, Report, Table

from ..common.seeds import with_spread
from . import paper
from .compared import BATCHES, SERVER_BUDGETS, compared, overlaps, strengths
from .points import CPU, GPU, budget_table
from .rates import CPU_MEMORY
from .runs import Runs

__all__ = ["compare", "run"]

SERVER_MODELS = ("llama-3-8b", "llama-2-13b")
COUNT = 16             # requests of a simulation
SEEDS = (1, 2, 3, 4)   # besides 0, for intervals; at the rates of seed 0
DESKTOP_MODELS = ("llama-3.2-3b", "llama-3-8b")


def run(context: Context) -> Report:
    quick = context.quick
    runs = _runs(context)
    answers = (8, 32) if quick else (4, 8, 16, 32, 64, 128)
    context.say("telerag: overlap")
    budgets = pd.DataFrame(budget_table())
    server_budgets = pd.DataFrame(budget_table(paper.SERVER_BUDGET_GB, paper.OVERLAP_AT_SERVER_BUDGET))
    context.say("telerag: rates, figures of the paper")
    variants = runs.variants()
    kept = float(variants.loc[variants["variant"] == "clusters kept between rounds", "Iterative's overlap %"].iloc[0])
    seeds = () if quick else SEEDS
    figures = [
        *with_spread(compared(runs), [compared(Runs(context, COUNT, seed, runs.rates())) for seed in seeds]),
        *overlaps(budgets, kept), *overlaps(server_budgets, where=SERVER_BUDGETS), *strengths()]
    context.say("telerag: latencies")
    lengths, latency = runs.answers(answers), runs.latency(answers)
    desktop = runs.desktop(DESKTOP_MODELS[1:] if quick else DESKTOP_MODELS)
    context.say("telerag: server")
    server = runs.server(SERVER_MODELS[:1] if quick else SERVER_MODELS, BATCHES)
    context.say("telerag: nprobe, timeline, memory")
    nprobes, timeline, memory = runs.nprobes(), runs.timeline(), runs.memory((2, 8, 12))
    tables = [
        Table("overlap", "Overlap at the paper's budgets (RTX 4090, Natural Questions), by family", budgets,
              "Fitted on the figures at 256 clusters, predicted here. Errors in points. Iterative: the ceiling is "
              "what fits the budget over 256; the paper prints more, which clusters kept from earlier rounds "
              "would explain."),
        Table("rates", "Scan rates", _rates(runs, timeline)),
        Table("answers", "Answer lengths (RTX 4090, Llama-3.2-3B, NQ; rates from the H100's shares)", lengths,
              "Rates fitted for this answer: the three figures hold at each length. For the assumed one: the rates of "
              f"answers of {runs.answer} tokens, so that the server's share is another."),
        Table("latency", "End-to-end latency of single queries (RTX 4090, Llama-3.2-3B, NQ)", latency),
        Table("desktop", f"Budgets from a profiling pass of 64 queries (desktop, answers of {runs.answer} tokens)",
              desktop),
        Table("variants", f"What else the model could do (desktop, answers of {runs.answer} tokens)", variants),
        Table("nprobe", "Retrieval alone by nprobe (desktop)", nprobes,
              "Paper: 7.21 at 256, its best; miss_rate is fitted to the mean of that."),
        Table("timeline", "On-demand fetch, bytes by bytes (HyDE, desktop)", timeline),
        Table("server", "Server (H100): latency, throughput, shares, by batch", server),
        Table("memory", "What the buffer costs: Llama-3.2-3B, 96 users, answers of 512 tokens", memory),
    ]
    return Report(tables, [
        Plot("overlap-families", "Overlap at the paper's budgets, by family",
             _overlap_plot(budgets, runs.families)),
        Plot("speedup", "Speed-up over CPU retrieval, by answer length", _speedup_plot(latency)),
        Plot("h100-gain", "Gain over CPU retrieval by batch (H100, Llama-3-8B)", _gain_plot(server)),
    ], _findings(budgets, lengths, nprobes, memory, figures, runs), compared=figures)


def compare(context: Context) -> list[Compared]:
    """Return the figures that the assumptions change."""
    return compared(_runs(context))


def _runs(context: Context) -> Runs:
    return Runs(context, COUNT)


def _rates(runs: Runs, timeline: pd.DataFrame) -> pd.DataFrame:
    probed = float(timeline["GB"].iloc[0])
    rows = []
    for system, rates in runs.rates().items():
        for machine, search, rate in (
            (CPU[system], "Faiss, one query", rates.baseline), (CPU[system], "missed clusters", rates.miss),
            (GPU[system], "GPU", rates.gpu),
        ):
            memory = CPU_MEMORY[system] if machine == CPU[system] else load_device(machine).memory_bandwidth
            rows.append({"machine": machine, "search": search, "GB/s": rate / 1e9,
                         "of the memory's bandwidth %": 100 * rate / memory,
                         "ms for 256 clusters": probed / rate * 1e12})
    return pd.DataFrame(rows)


def _overlap_plot(budgets: pd.DataFrame, names: list[str]) -> Figure:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / (len(names) + 1)
    for i, column in enumerate(["paper", *names]):
        places = [x + (i - len(names) / 2) * width for x in range(len(budgets))]
        axes.bar(places, budgets[f"{column} %"], width, label=column)
    axes.plot(range(len(budgets)), budgets["ceiling %"], "k_", markersize=30, label="ceiling")
    axes.set_xticks(range(len(budgets)), [f"{p}\n{b:g} GB" for p, b in
                                          zip(budgets["pipeline"], budgets["budget GB"], strict=True)])
    axes.set(ylabel="overlap (%)", ylim=(0, 119))
    axes.legend(ncols=3, fontsize=8, markerscale=0.6)
    return figure


def _speedup_plot(latency: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for pipeline, rows in latency.groupby("pipeline", sort=False):
        axes.plot(rows["answer"], rows["speed-up"], "o-", label=pipeline)
    mean = latency.groupby("answer")["speed-up"].mean()
    axes.plot(mean.index, mean, "k--", label="mean")
    axes.axhline(paper.DATASETS["NQ"], color="grey", linestyle=":", label="paper, mean on NQ")
    axes.set(xlabel="tokens of the answer", ylabel="speed-up over CPU retrieval", xscale="log", ylim=(1, None))
    axes.set_xticks(mean.index, [str(a) for a in mean.index])
    axes.minorticks_off()
    axes.legend(fontsize=8, ncols=2)
    return figure


def _gain_plot(server: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for mode, rows in server[server["model"] == "Llama-3-8B"].groupby("retrieval", sort=False):
        if mode != "offload":
            axes.plot(rows["batch"], rows["speed-up"], "o-", label=f"{mode}, here")
    axes.plot(list(paper.SERVER_GAIN), list(paper.SERVER_GAIN.values()), "k:s", label="lookahead, paper")
    axes.set(xlabel="batch", ylabel="gain over CPU retrieval", xscale="log", ylim=(1, None))
    batches = sorted(server["batch"].unique())
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    return figure


def _findings(budgets: pd.DataFrame, lengths: pd.DataFrame, nprobes: pd.DataFrame, memory: pd.DataFrame,
              figures: list[Compared], runs: Runs) -> list[str]:
    iterative = budgets[budgets["pipeline"] == "Iter"].iloc[0]
    families = runs.families
    errors = ", ".join(f"{name} {budgets[f'{name} error'].drop(iterative.name).abs().mean():.1f}" for name in families)
    own = lengths[lengths["rates fitted"] == "for this answer"]
    kept = lengths[lengths["rates fitted"] != "for this answer"]
    at = nprobes[nprobes["nprobe"] == paper.NPROBE].set_index("pipeline")["retrieval speed-up"]
    most = own[own["misses GB/s"] <= CPU_MEMORY["desktop"] / 1e9]["answer"]
    return [
        _server_gain(figures),
        f"Mean error at the paper's budgets, points, Iterative left out: {errors}.",
        f"Iterative's 3 GB hold {iterative['clusters held']:.0f} of 256 clusters: at most "
        f"{iterative['ceiling %']:.0f}%, where the paper prints {iterative['paper %']:.1f}%.",
        f"Mean speed-up on NQ (paper {paper.DATASETS['NQ']}): {own['speed-up'].min():.2f} to "
        f"{own['speed-up'].max():.2f} by answer length with rates fitted for each; {kept['speed-up'].min():.2f} to "
        f"{kept['speed-up'].max():.2f} with the rates of answers of {runs.answer} tokens.",
        (f"Answers of {most.min()} tokens and more need no faster search of misses than the CPU's memory delivers "
         f"({CPU_MEMORY['desktop'] / 1e9:g} GB/s); shorter ones do." if len(most) else
         "Every answer length needs a faster search of misses than the CPU's memory delivers."),
        "Retrieval alone at nprobe 256, by pipeline: "
        + ", ".join(f"{name} {value:.1f}" for name, value in at.items()) + ".",
        f"A buffer of {memory['buffer GB'].iloc[-1]} GB in place of {memory['buffer GB'].iloc[0]} takes the largest "
        f"batch from {memory['largest batch'].iloc[0]} to {memory['largest batch'].iloc[-1]} and throughput from "
        f"{memory['requests/s'].iloc[0]:.2f} to {memory['requests/s'].iloc[-1]:.2f} requests a second.",
    ]


def _server_gain(figures: list[Compared]) -> str:
    """The gain on the server at the largest batch beside the paper's."""
    last = next(one for one in figures if one.name == f"H100 gain, batch {BATCHES[-1]}")
    said, here = paper.SERVER_GAIN[BATCHES[-1]], last.here
    assert isinstance(here, float)
    return (f"H100, batch {BATCHES[-1]}: gain {here:.2f}"
            + (f" ({last.text(last.interval)} over seeds)" if last.interval else "")
            + f", {here / said:.1f} times the paper's {said}.")
