"""Study of TeleRAG: lookahead retrieval on a desktop and on a server."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hermes.study import Context, Plot, Report, Table

from . import paper
from .points import CPU, GPU, budget_table, gpu_rate, profile
from .required_times import required_share_times, required_speedup_times
from .runs import Runs

__all__ = ["run"]

SERVER_MODELS = ("llama-3-8b", "llama-2-13b")
DESKTOP_MODELS = ("llama-3.2-3b", "llama-3-8b")

def run(context: Context) -> Report:
    quick = context.quick
    runs = Runs(context, 6 if quick else 16)
    answers = (16, 32, 128) if quick else (16, 32, 64, 128)
    context.say("telerag: overlap")
    budgets = pd.DataFrame(budget_table(64 if quick else 256))
    context.say("telerag: latencies")
    latency = runs.latency(answers)
    desktop = runs.desktop(DESKTOP_MODELS[1:] if quick else DESKTOP_MODELS)
    context.say("telerag: server")
    server = runs.server(SERVER_MODELS[:1] if quick else SERVER_MODELS, (1, 4) if quick else (1, 2, 4, 8))
    context.say("telerag: nprobe, timeline, memory")
    variants = runs.variants()
    nprobes, timeline, memory = runs.nprobes(), runs.timeline(), runs.memory((2, 8, 12))
    context.say("telerag: what would have to be true")
    needs, shares = required_speedup_times(runs, answers), required_share_times(runs)
    tables = [
        Table("overlap", "Overlap at the paper's budgets (RTX 4090, Natural Questions), by family", budgets,
              "Fitted on the figures at 256 clusters, predicted here. Errors in points. Iterative: the ceiling is "
              "what fits the budget over 256; the paper prints more, which clusters kept from earlier rounds "
              "would explain."),
        Table("rates", "Scan rates", _rates(runs, timeline)),
        Table("latency", "End-to-end latency of single queries (RTX 4090, Llama-3.2-3B, NQ)", latency),
        Table("datasets", "Mean speed-up over the six pipelines, by answer length", _datasets(latency),
              "HotpotQA and TriviaQA run with Natural Questions' strengths: an extrapolation, not a prediction."),
        Table("needs", "What the mean speed-up would need (desktop)", needs,
              "Free of charge: retrieval takes no time at all. Scans, answers: how many times as long as here, all "
              "else as it is; then simulated with that rate. On demand over CPU: the paper has 1.03."),
        Table("desktop", f"Budgets from a profiling pass of 64 queries (desktop, answers of {runs.answer} tokens)",
              desktop),
        Table("variants", f"What the assumptions do (desktop, answers of {runs.answer} tokens)", variants),
        Table("nprobe", "Retrieval alone by nprobe (desktop)", nprobes,
              "Ceiling: 1 / (1 - overlap), since CPU time is linear in the missed bytes."),
        Table("timeline", "On-demand fetch, bytes by bytes (HyDE, desktop)", timeline),
        Table("server", "Server (H100): latency, throughput, shares, by batch", server),
        Table("shares", "Retrieval's share at batch 4 (H100, Llama-3-8B)", shares,
              "4 over 1: time at batch 4 over that at batch 1, sums over the pipelines."),
        Table("memory", "What the buffer costs: Llama-3.2-3B, 96 users, answers of 512 tokens", memory),
    ]
    return Report(tables, [
        Plot("overlap-families", "Overlap at the paper's budgets, by family",
             _overlap_plot(budgets, runs.families)),
        Plot("speedup", "Speed-up over CPU retrieval, by answer length", _speedup_plot(latency)),
    ], _findings(budgets, latency, nprobes, server, memory, timeline, runs.families)
        + _needs_findings(needs, shares))


def _rates(runs: Runs, timeline: pd.DataFrame) -> pd.DataFrame:
    probed = float(timeline["GB"].iloc[0])
    rows = []
    for system in ("desktop", "server"):
        for machine, rate in ((CPU[system], runs.rate(system)), (GPU[system], gpu_rate(system))):
            rows.append({"machine": machine, "GB/s": rate / 1e9, "ms for 256 clusters": probed / rate * 1e12,
                         "from": profile().scans[machine].provenance[0]})
    return pd.DataFrame(rows)


def _datasets(latency: pd.DataFrame) -> pd.DataFrame:
    means = latency.groupby("answer")["speed-up"].mean()
    return pd.DataFrame([
        {"dataset": name, "paper": said, **{f"{answer} tokens": mean for answer, mean in means.items()},
         "what": "fitted strengths" if name == "NQ" else "extrapolation: NQ's strengths"}
        for name, said in paper.DATASETS.items()])


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
    axes.legend(ncols=3, fontsize=8)
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


def _gpu_findings(server: pd.DataFrame, timeline: pd.DataFrame) -> list[str]:
    """Relations between the paper's figures of the GPU."""
    ms = timeline.set_index("part")["ms"]
    whole = server[(server["retrieval"] == "resident") & (server["batch"] == 1)].iloc[0]
    implied = whole["generation s"] * 0.105 / (1 - 0.105)
    return [
        f"On demand, {ms['copied over the link']:.0f} ms of copy and {ms['scanned by the GPU']:.1f} ms of scan stand "
        f"against {ms['CPU scan of the same']:.0f} ms on the CPU: the link decides, the GPU's scan does not.",
        f"At 80% of its bandwidth the GPU is {ms['CPU scan of the same'] / ms['scanned by the GPU']:.0f} times as fast "
        f"as the CPU; the paper says 4 to 10. Its 10.5% share of a resident index would be {1e3 * implied:.0f} ms a "
        f"request, where this rate gives {1e3 * whole['retrieval s']:.1f}: its GPU search is not limited by bandwidth.",
    ]


def _findings(budgets: pd.DataFrame, latency: pd.DataFrame, nprobes: pd.DataFrame, server: pd.DataFrame,
              memory: pd.DataFrame, timeline: pd.DataFrame, families: list[str]) -> list[str]:
    iterative = budgets[budgets["pipeline"] == "Iter"].iloc[0]
    means: dict[Any, float] = latency.groupby("answer")["speed-up"].mean().to_dict()
    short, long = min(means), max(means)
    at = nprobes[nprobes["nprobe"] == 256]
    cpu = server[(server["retrieval"] == "offload") & (server["model"] == "Llama-3-8B")].set_index("batch")
    errors = ", ".join(f"{name} {budgets[f'{name} error'].drop(iterative.name).abs().mean():.1f}" for name in families)
    return [
        f"Mean error at the paper's budgets, points, Iterative left out: {errors}.",
        f"Iterative's 3 GB hold {iterative['clusters held']:.0f} of 256 clusters: at most "
        f"{iterative['ceiling %']:.0f}%, where the paper prints {iterative['paper %']:.1f}%.",
        *_gpu_findings(server, timeline),
        f"Mean speed-up on NQ: {means[short]:.2f} with answers of {short} tokens, {means[long]:.2f} with {long}; the "
        "paper: 1.55.",
        f"Retrieval alone at nprobe 256: {at['retrieval speed-up'].min():.1f} to {at['retrieval speed-up'].max():.1f} "
        f"times as fast, under ceilings of {at['ceiling'].min():.1f} to {at['ceiling'].max():.1f}. The paper's 7.21 "
        f"would need an overlap of {100 * (1 - 1 / 7.21):.0f}%, and no time for copy, scan and merge.",
        f"CPU share at batch 1: {cpu['retrieval share %'].iloc[0]:.0f}% (fitted to 41%); at batch 4: "
        f"{cpu['retrieval share %'][4]:.0f}%, the paper 60%.",
        f"A buffer of {memory['buffer GB'].iloc[-1]} GB in place of {memory['buffer GB'].iloc[0]} takes the largest "
        f"batch from {memory['largest batch'].iloc[0]} to {memory['largest batch'].iloc[-1]} and throughput from "
        f"{memory['requests/s'].iloc[0]:.2f} to {memory['requests/s'].iloc[-1]:.2f} requests a second.",
    ]


def _needs_findings(needs: pd.DataFrame, shares: pd.DataFrame) -> list[str]:
    """Conditions for the paper's speed-up and its share at batch 4."""
    found = []
    for row in needs.to_dict("records"):
        said = (f"Answers of {row['answer']} tokens: {row['simulated']:.2f}, and "
                f"{row['lookahead free of charge']:.2f} if lookahead retrieval took no time")
        if pd.notna(row["scans for 1.55, times"]):
            said += (f"; {paper.DATASETS['NQ']} needs CPU scans {row['scans for 1.55, times']:.1f} times as long "
                     f"({row['ms a search then']:.0f} ms a search; simulated: {row['simulated then']:.2f}), with which "
                     f"fetching on demand would take {row['on demand over CPU then']:.2f} of the CPU's time, the paper "
                     f"{paper.ON_DEMAND_SLOWER}")
        found.append(said + ".")
    growth = shares.set_index("case")["generation, 4 over 1"]
    implied = growth[growth.index.str.startswith("paper")]
    says = [f"{value:.2f} ({str(case).split(':')[0].removeprefix('paper, ')})" for case, value in implied.items()]
    return [*found, f"Generation at batch 4 over batch 1 is {growth.iloc[0]:.2f}; the paper's shares imply "
            + ", ".join(says) + " where retrieval is linear in the batch: its two pairs of shares disagree."]
