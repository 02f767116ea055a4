"""Tables of the study: simulated figures beside the paper's, and arithmetic on single figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hermes.clients.overhead import load_overhead
from hermes.study import Table
from hermes.sums import float_sum

from .points import ARRIVALS, BIN_S, IBS, MODELS, MODES, PHASE_S, PHASES_S, SPLIT, SPLITS, USERS

__all__ = [
    "PAPER", "PAPER_MODELS", "Rows", "below", "busy_table", "cell_table", "employed_table", "fit_table", "gain",
    "gain_table", "latency", "latency_table", "mix_table", "model_table", "overhead_cost", "overhead_table",
    "phase_table", "phases_s", "points_table", "ratio", "served",
]

Rows = dict[str, dict[str, Any]]
COLUMNS = ("embed/s", "gen/s", "normalised")
LOAD = ("load", "overhead", "system")
# percent embeddings -> system -> (embeddings/s, generations/s, normalised), Mistral-7B on four GPUs
PAPER: dict[int, dict[str, tuple[float, float, float]]] = {
    90: {SPLIT: (15.64, 1.49, 18.02), IBS: (58.80, 7.00, 70.07)},
    50: {SPLIT: (12.54, 11.97, 32.89), IBS: (25.32, 26.24, 69.93)},
    10: {SPLIT: (5.10, 29.56, 55.35), IBS: (4.20, 39.10, 70.67)},
}
# model -> percent embeddings -> system -> the same
PAPER_MODELS: dict[str, dict[int, dict[str, tuple[float, float, float]]]] = {
    "qwen2-7b": {90: {SPLIT: (13.23, 1.72, 16.15), IBS: (40.90, 4.40, 48.38)},
                 50: {SPLIT: (10.72, 10.08, 27.86), IBS: (26.80, 25.93, 70.88)},
                 10: {SPLIT: (2.81, 27.76, 50.00), IBS: (6.20, 48.23, 88.19)}},
    "llama-3.1-8b": {90: {SPLIT: (13.43, 1.32, 15.67), IBS: (56.46, 5.90, 66.49)},
                     50: {SPLIT: (10.18, 9.95, 27.10), IBS: (34.60, 37.50, 98.35)},
                     10: {SPLIT: (3.06, 25.63, 46.63), IBS: (4.23, 47.32, 84.67)}},
}


def served(row: dict[str, Any]) -> tuple[float, float, float]:
    """Embeddings/s, generations/s and normalised throughput of a point's measured window."""
    rates = [row.get(f"measured.served.{kind}.per_s") for kind in ("embed", "generate")]
    embeds, generations = (0.0 if rate is None or rate != rate else float(rate) for rate in rates)
    return embeds, generations, float(row["measured.weighted_per_s"])


def fit_table(profile: str) -> Table:
    """The two fitted overheads, in either reading."""
    found = load_overhead(profile)
    rows = [{"serving overhead": mode, "ms per embedding": getattr(found, mode).embed * 1e3,
             "ms per generation": getattr(found, mode).generate * 1e3} for mode in MODES]
    return Table("fit", "Fitted to 21.9 embeddings/s and 12.9 generations/s of one saturated GPU", pd.DataFrame(rows),
                 "hermes fit-overhead studies/orthrus/single --embed 21.9 --generate 12.9. Nothing else is fitted.",
                 {"ms per embedding": 2, "ms per generation": 2})


def cell_table(rows: Rows, system: str) -> Table:
    """Each cell of the paper's table for one system: ours, theirs, the error."""
    out = []
    for mode in MODES:
        for percent, paper in PAPER.items():
            ours = served(rows[f"mix {system} {percent} {mode}"])
            line: dict[str, Any] = {"overhead": mode, "embed:gen": ratio(percent)}
            for name, mine, theirs in zip(COLUMNS, ours, paper[system], strict=True):
                line |= {name: mine, f"paper {name}": theirs, f"error {name} %": 100 * (mine / theirs - 1)}
            out.append(line)
    digits = {column: 1 if column.startswith("error") else 2 for column in out[0] if column not in (
        "overhead", "embed:gen")}
    name = "orthrus" if system == IBS else "split"
    return Table(f"mistral-{name}", f"Mistral-7B, {system}", pd.DataFrame(out), "", digits)


def gain(rows: Rows, system: str, percent: int, mode: str) -> float:
    """Normalised throughput of Orthrus IBS over that of a system."""
    ours, theirs = (served(rows[f"mix {one} {percent} {mode}"])[2] for one in (IBS, system))
    return ours / theirs


def gain_table(rows: Rows, seeded: list[Rows], mixes: tuple[int, ...], mode: str) -> Table:
    """Normalised throughput of Orthrus IBS over each SplitGPU per mix; seeded: the points at other seeds."""
    out = []
    for percent in mixes:
        line: dict[str, Any] = {"embed:gen": f"{percent}:{100 - percent}",
                                IBS: served(rows[f"mix {IBS} {percent} {mode}"])[2]}
        for system in SPLITS:
            every = [gain(one, system, percent, mode) for one in (rows, *seeded)]
            line[f"over {system}"] = every[0]
            if seeded:
                line[f"over {system}, seeds"] = f"{min(every):.2f} to {max(every):.2f}"
        paper = PAPER.get(percent)
        line[f"paper, {SPLIT}"] = paper[IBS][2] / paper[SPLIT][2] if paper else None
        line[f"paper's Orthrus over our {SPLIT}"] = (
            paper[IBS][2] / served(rows[f"mix {SPLIT} {percent} {mode}"])[2] if paper else None)
        out.append(line)
    return Table("gain", f"Normalised throughput, {IBS} over each SplitGPU ({mode} overhead)", pd.DataFrame(out),
                 "Below 1 a split is ahead.", {column: 2 for column in out[0] if column != "embed:gen"})


def employed_table(rows: Rows, clients: tuple[int, ...], users: int = USERS) -> Table:
    """Number of clients that the paper's SplitGPU rates can keep busy: by Little's law a closed loop has them all."""
    curves = {}
    for kind in ("embed", "generate"):
        found = [served(rows[f"single {kind} {n} plain"]) for n in clients]
        rate = [0.0, *(one[0 if kind == "embed" else 1] for one in found)]
        curves[kind] = np.maximum.accumulate(np.array(rate))
    counts = np.array([0, *clients], dtype=float)
    out = []
    for percent, paper in PAPER.items():
        embeds, generations, _ = paper[SPLIT]
        at_embed = float(np.interp(embeds, curves["embed"], counts))
        at_generate = 3 * float(np.interp(generations / 3, curves["generate"], counts))
        total = at_embed + at_generate
        out.append({
            "embed:gen": ratio(percent), "embed/s per GPU": embeds, "of": curves["embed"][-1],
            "gen/s per GPU": generations / 3, "of ": curves["generate"][-1], "clients at work": total,
            "a closed loop of 512": "cannot" if total < users / 2 else "can",
        })
    return Table(
        "employed", "The paper's SplitGPU cells: clients that such rates keep at work", pd.DataFrame(out),
        "A client of a closed loop without think time is always at one of the GPUs. A GPU that serves a rate below "
        "its highest has as many requests in it as the rate calls for (the curve of one GPU, 1 to 256 clients); more "
        "would be served faster. Where both kinds of GPU together hold far fewer than 512, the other clients are "
        "nowhere: no closed loop does that, whatever the times are.",
        {"embed/s per GPU": 2, "of": 2, "gen/s per GPU": 2, "of ": 2, "clients at work": 0})


def mix_table(rows: Rows, systems: list[str], mixes: tuple[int, ...], mode: str) -> Table:
    """Normalised throughput by mix."""
    out = [{"system": system,
            **{f"{percent}%": served(rows[f"mix {system} {percent} {mode}"])[2] for percent in mixes}}
           for system in systems]
    return Table("mix", f"Normalised throughput by share of embeddings ({mode} overhead)", pd.DataFrame(out), "",
                 {f"{percent}%": 2 for percent in mixes})


def latency_table(rows: Rows, systems: list[str], mixes: tuple[int, ...], mode: str, modes: tuple[str, ...]) -> Table:
    """Latency per kind of every system, and IBS beside it: the burst under each of `modes`, closed loops under
    `mode`."""
    loads = [("burst", f"burst {{}} {one}", one) for one in modes]
    loads += [(f"closed loop {ratio(percent)}", f"mix {{}} {percent} {mode}", mode) for percent in mixes]
    out = []
    for load, label, reading in loads:
        for system in systems:
            line: dict[str, Any] = {"load": load, "overhead": reading, "system": system}
            line |= {f"{kind} {name} s": latency(rows[label.format(system)], kind, name)
                     for kind in ("embed", "generate") for name in ("p50", "p99")}
            if system != IBS:
                line |= {f"IBS {kind} {name} %": below(rows, label, kind, name, system)
                         for kind in ("embed", "generate") for name in ("p50", "p99")}
            out.append(line)
    return Table("latency", f"Latency of both kinds, and how far {IBS}'s is below each system's", pd.DataFrame(out),
                 "IBS %: below zero, IBS is later. The paper prints its burst in ms, which decoding 512 tokens cannot "
                 "be: only ratios are compared.",
                 {column: 2 if column.endswith(" s") else 1 for column in line if column not in LOAD})


def latency(row: dict[str, Any], kind: str, name: str) -> float:
    """Seconds of a point's requests of one kind (embed or generate); name: p50, p99."""
    return float(row[f"measured.served.{kind}.latency_s.{name}"])


def below(rows: Rows, label: str, kind: str, name: str, system: str) -> float:
    """Percent by which a latency of IBS is below that of a system. label: of the points, with {} for the system."""
    return 100 * (1 - latency(rows[label.format(IBS)], kind, name) / latency(rows[label.format(system)], kind, name))


def phases_s(row: dict[str, Any]) -> float:
    """Seconds of the three phases together."""
    return float_sum(float(row[f"phase.{i}"]) for i in range(3))


def phase_table(rows: Rows, systems: list[str], modes: tuple[str, ...]) -> Table:
    """Time of each of the three phases, and accelerators busy while requests are in the system."""
    out = []
    for arrivals in ARRIVALS:
        for mode in modes:
            for system in systems:
                row = rows[f"phases {arrivals} {system} {mode}"]
                out.append({
                    "arrivals": arrivals, "overhead": mode, "system": system,
                    "10% embed s": row["phase.0"], "50% s": row["phase.1"], "90% s": row["phase.2"],
                    "all s": phases_s(row),
                    "IBS sooner %": 100 * (1 - phases_s(rows[f"phases {arrivals} {IBS} {mode}"]) / phases_s(row)),
                    "active s": row["active_s"], "utilisation %": 100 * row["utilisation"],
                    "with the stack %": 100 * row["occupied"],
                    "embed p50 s": row["measured.served.embed.latency_s.p50"],
                    "gen p50 s": row["measured.served.generate.latency_s.p50"],
                })
    return Table("phases", "Three phases of 60 s, 1,000 requests each: times, and accelerators busy", pd.DataFrame(out),
                 "A phase takes from its start to the end of its last request. Active: at least one request in the "
                 "system; utilisation: steps, as a share of the active time of all GPUs; with the stack: and the time "
                 "in which the serving stack holds a GPU up.",
                 {column: 1 for column in out[0] if column not in ("arrivals", "overhead", "system")})


def busy_table(rows: Rows, systems: list[str], mode: str) -> Table:
    """Accelerators busy in each of the three phases, by group where a system has two."""
    out = []
    per_phase = PHASE_S // BIN_S
    for arrivals in ARRIVALS:
        for system in systems:
            row = rows[f"phases {arrivals} {system} {mode}"]
            split = row.get("busy.embed.000") == row.get("busy.embed.000") and row.get("busy.embed.000") is not None
            for group in ("embed", "generate", "all") if split else ("all",):
                series = [float(row[f"busy.{group}.{i:03d}"]) for i in range(PHASES_S // BIN_S)]
                first, second, third = (float(np.mean(series[k * per_phase:(k + 1) * per_phase])) for k in range(3))
                out.append({"arrivals": arrivals, "system": system, "GPUs": group, "10% embed": first, "50%": second,
                            "90%": third})
    return Table("busy", f"Three phases: accelerators busy in the 60 s of each ({mode} overhead)", pd.DataFrame(out),
                 "Busy: steps, without the time in which the serving stack holds a GPU up.",
                 {"10% embed": 2, "50%": 2, "90%": 2})


def overhead_cost(rows: Rows, kind: str, n: int) -> float:
    """Percent by which one GPU with `n` clients serves requests of one kind faster in an engine for that kind alone."""
    plain, ours = (served(rows[f"single {kind} {n} {which}"])[kind == "generate"] for which in ("plain", "orthrus"))
    return 100 * (plain / ours - 1)


def overhead_table(rows: Rows, clients: tuple[int, ...]) -> Table:
    """One GPU with one kind only: the cost of serving it in an engine for both."""
    out = []
    for n in clients:
        line: dict[str, Any] = {"clients": n}
        for kind, index in (("embed", 0), ("generate", 1)):
            plain, ours = (served(rows[f"single {kind} {n} {which}"])[index] for which in ("plain", "orthrus"))
            line |= {f"{kind}/s plain": plain, f"{kind}/s Orthrus": ours,
                     f"{kind} overhead %": overhead_cost(rows, kind, n)}
        out.append(line)
    return Table("overhead", "One GPU, one kind of request: Orthrus against an engine for that kind alone",
                 pd.DataFrame(out), "Plain: the adapter merged into the weights; generations by the chunked scheduler.",
                 {column: 2 for column in out[0] if column != "clients"})


def model_table(rows: Rows, mode: str) -> Table:
    """Other models: rates of SplitGPU 1:3 and Orthrus IBS, and the paper's sums of Orthrus."""
    out = []
    for model, sums in PAPER_MODELS.items():
        for percent, paper in sums.items():
            line: dict[str, Any] = {"model": model, "LoRA rank": MODELS[model], "embed:gen": ratio(percent)}
            for system in (SPLIT, IBS):
                ours = served(rows[f"model {model} {system} {percent} {mode}"])
                line |= {f"{system} {name}": value for name, value in zip(COLUMNS, ours, strict=True)}
            out.append(line | {"paper": paper[IBS][2], "error %": 100 * (ours[2] / paper[IBS][2] - 1)})
    digits = {column: 2 for column in out[0] if column not in ("model", "LoRA rank", "embed:gen")}
    return Table("models", f"Other models ({mode} overhead)", pd.DataFrame(out),
                 "Overheads per request as fitted for Mistral-7B: the stack is the same. paper: Orthrus, normalised.",
                 digits | {"error %": 1})


def points_table(rows: Rows) -> Table:
    """Columns of every point."""
    out = [{
        "point": label, "KV tokens per GPU": row["point.kv_capacity_per_client_tokens"],
        "peak KV": row["point.kv_peak_share"], "rejected": row["point.rejected"], "preempted": row["point.preemptions"],
        "stable": "closed loop" if label.startswith(("mix", "single", "model")) else row["point.stable"],
    } for label, row in rows.items()]
    return Table("points", "Every point: KV capacity, peak use, rejections, stability", pd.DataFrame(out),
                 "A closed loop is stable by construction. A burst has no arrivals over time to judge by.",
                 {"peak KV": 2})


def ratio(percent: int) -> str:
    """Return a mix as embed:gen."""
    return f"{percent // 10}:{10 - percent // 10}"
