"""Simulations of each table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from hermes.results import Results
from hermes.scenario import load_scenario
from hermes.study import Context, Point, run_points

from . import paper
from .points import ENCODER_BYTES, Ask, Means, Rates, ask, extract, profile, tokens_in
from .rates import fit_rates, mean

__all__ = ["PIPELINES", "Runs"]

K = TypeVar("K", bound=Hashable)

PIPELINES = tuple(paper.BUDGET_GB)
USUAL = {"late": "wait", "window_sigma": 0.0}   # a pipeline's own values
WHOLE_INDEX = {"clients.3.memory.reserved": paper.TOTAL_BYTES + ENCODER_BYTES, "clients.3.memory.utilization": 1.0}


class Runs:
    """Simulations of `count` requests; equal ones run once. Answers have `answer` tokens if no length is given.

    Args:
        seed: Of queries, rounds and cluster sizes.
        rates: By system, for answers of the assumed length; None: fitted.
    """

    def __init__(self, context: Context, count: int, seed: int = 0, rates: dict[str, Rates] | None = None) -> None:
        self.context, self.count, self.answer, self.seed = context, count, int(context["answer_tokens"]), seed
        self._known: dict[Ask, Means] = {}
        self._rates: dict[int, dict[str, Rates]] = {} if rates is None else {self.answer: rates}
        self._assumed = {f"workload.pipeline.{name}": context[name] for name, usual in USUAL.items()
                         if context[name] != usual}

    @cached_property
    def families(self) -> list[str]:
        """Names of the families in the profile, the best first."""
        return [fitted.name for fitted in profile().families]

    def rates(self, answer: int | None = None) -> dict[str, Rates]:
        """Return the scan rates by system, fitted for answers of `answer` tokens."""
        answer = self.answer if answer is None else answer
        if answer not in self._rates:
            self._rates[answer] = fit_rates(self, answer)
        return self._rates[answer]

    def ask(self, system: str, pipeline: str, mode: str, **more: Any) -> Ask:
        """Return a simulation of this study; more: as of `points.ask`. Rates are those of its answer length if none are
        given."""
        answer = more.get("answer", self.answer)
        if "rates" not in more:
            more["rates"] = self.rates(answer)[system]
        more["changes"] = {**self._assumed, **more.get("changes", {}), **(WHOLE_INDEX if mode == "resident" else {})}
        return ask(system, pipeline, mode, **{"requests": self.count, "answer": answer, "seed": self.seed} | more)

    def means(self, name: str, asks: Mapping[K, Ask]) -> dict[K, Means]:
        """Return the means of each. New ones are simulated together, in a folder `name` by system."""
        for system in paper.SETUPS:
            new = [one for one in dict.fromkeys(asks.values()) if one.system == system and one not in self._known]
            if new:
                frame = run_points(self.context, f"{name}-{system}", [one.point() for one in new],
                                   scenario=f"{system}.yaml", extract=extract)
                self._known |= zip(new, map(Means.of, frame.to_dict("records")), strict=True)
        return {key: self._known[one] for key, one in asks.items()}

    def pairs(self, name: str, **more: Any) -> list[tuple[Means, Means]]:
        """On the desktop, by pipeline: retrieval on the CPU, and lookahead."""
        cpu, ahead = self.modes(name, "desktop", ("offload", "lookahead"), **more)
        return list(zip(cpu, ahead, strict=True))

    def modes(self, name: str, system: str, modes: tuple[str, ...], **more: Any) -> list[list[Means]]:
        """By mode of retrieval, the six pipelines in order."""
        found = self.means(name, {(p, mode): self.ask(system, p, mode, **more) for p in PIPELINES for mode in modes})
        return [[found[p, mode] for p in PIPELINES] for mode in modes]

    def latency(self, answers: tuple[int, ...]) -> pd.DataFrame:
        found = self.means("latency", {
            (answer, p, mode): self.ask("desktop", p, mode, answer=answer)
            for answer in answers for p in PIPELINES for mode in ("offload", "lookahead")})
        rows = []
        for answer in answers:
            for pipeline in PIPELINES:
                cpu, ahead = found[answer, pipeline, "offload"], found[answer, pipeline, "lookahead"]
                rows.append({
                    "answer": answer, "pipeline": pipeline, "window tokens": tokens_in(pipeline), "CPU s": cpu.e2e_s,
                    "lookahead s": ahead.e2e_s, "speed-up": cpu.e2e_s / ahead.e2e_s,
                    "CPU share %": 100 * cpu.retrieve_s / cpu.e2e_s,
                    "retrieval speed-up": cpu.retrieve_s / ahead.retrieve_s, "overlap %": 100 * ahead.overlap,
                    "copied GB": ahead.copied_bytes / 1e9, "peak buffer GB": ahead.peak_buffer / 1e9,
                    "KV capacity tokens": ahead.kv_capacity_tokens, "peak KV %": 100 * ahead.kv_peak_share,
                    "rejected": ahead.rejected,
                })
        return pd.DataFrame(rows)

    def desktop(self, models: tuple[str, ...]) -> pd.DataFrame:
        """Budgets from a profiling pass of 64 queries in the same run, beside those given."""
        each = [(model, pipeline) for model in models for pipeline in PIPELINES]
        setup = paper.SETUPS["desktop"]
        cpus = self.means("desktop", {(m, p): self.ask("desktop", p, "offload", model=m) for m, p in each})
        budgets = {(m, p): min(setup.link * cpus[m, p].window_s, setup.buffers[_buffer_of(p, m)]) for m, p in each}
        found = self.means("desktop-ahead", {
            **{("passed", m, p): self.ask("desktop", p, "lookahead", model=m, budget="profiled",
                                          requests=64 + self.count) for m, p in each},
            **{("ahead", m, p): self.ask("desktop", p, "lookahead", model=m, budget=budgets[m, p]) for m, p in each}})
        rows = []
        for model, pipeline in each:
            cpu, passed = cpus[model, pipeline], found["passed", model, pipeline]
            ahead = found["ahead", model, pipeline]
            rows.append({
                "model": paper.MODELS[model], "pipeline": pipeline,
                "paper's budget GB": paper.BUDGET_GB[pipeline] if model == "llama-3.2-3b" else None,
                "window ms": 1e3 * cpu.window_s, "profiled GB": budgets[model, pipeline] / 1e9,
                "copied GB, 64 queries profiled": passed.peak_buffer / 1e9,
                "overlap %": 100 * passed.overlap, "CPU s": cpu.e2e_s, "lookahead s": ahead.e2e_s,
                "speed-up": cpu.e2e_s / ahead.e2e_s, "KV capacity tokens": ahead.kv_capacity_tokens,
                "peak KV %": 100 * ahead.kv_peak_share, "rejected": ahead.rejected,
            })
        return pd.DataFrame(rows)

    def server_points(self, pairs: Iterable[tuple[str, int]]) -> dict[tuple[str, int], dict[str, list[Means]]]:
        """Of each model and batch: each mode of retrieval, the six pipelines in order."""
        setup, pairs = paper.SETUPS["server"], list(pairs)

        def asked(mode: str, model: str, batch: int, pipeline: str, **more: Any) -> Ask:
            return self.ask("server", pipeline, mode, model=model, batch=batch, requests=max(4, self.count // batch),
                            **more)

        each = [(model, batch, p) for model, batch in pairs for p in PIPELINES]
        cpus = self.means("server", {key: asked("offload", *key) for key in each})
        # result of a profiling pass: the link's bytes in a mean window, at most the buffer
        found = self.means("server-ahead", {
            **{("lookahead", *key): asked("lookahead", *key, budget=min(
                setup.buffers[key[0]], setup.link * cpus[key].window_s)) for key in each},
            **{("resident", *key): asked("resident", *key) for key in each
               if key[0] == "llama-3-8b"}})
        return {
            (model, batch): {"offload": [cpus[model, batch, p] for p in PIPELINES]} | {
                mode: [found[mode, model, batch, p] for p in PIPELINES] for mode in ("lookahead", "resident")
                if (mode, model, batch, PIPELINES[0]) in found}
            for model, batch in pairs}

    def server(self, models: tuple[str, ...], batches: tuple[int, ...]) -> pd.DataFrame:
        every = self.server_points((model, batch) for model in models for batch in batches)
        return pd.DataFrame([
            _server_row(paper.MODELS[model], batch, mode, points, found["offload"])
            for (model, batch), found in every.items() for mode, points in found.items()])

    def variants(self) -> pd.DataFrame:
        """Mean speed-up, and retrieval's, over the six pipelines."""
        differ = {"workload.pipeline.window_sigma": 0.5}
        cases: dict[str, dict[str, Any]] = {
            "as above": {},
            "windows differ (sigma 0.5)": {"changes": differ},
            "the same, late copies given up": {"changes": differ | {"workload.pipeline.late": "give_up"}},
            "clusters kept between rounds": {"changes": {"workload.pipeline.keep": True}},
        }
        others = self.families[1:]
        cases |= {f"family {name}": {"family": name} for name in (others[-1:] if self.context.quick else others)}
        found = self.means("variants", {
            (label, p, mode): self.ask("desktop", p, mode, **more)
            for label, more in cases.items() for p in PIPELINES for mode in ("offload", "lookahead")})
        rows = []
        for label in cases:
            pairs = [(found[label, p, "offload"], found[label, p, "lookahead"]) for p in PIPELINES]
            rows.append({
                "variant": label, "speed-up": mean(c.e2e_s / a.e2e_s for c, a in pairs),
                "retrieval speed-up": mean(c.retrieve_s / a.retrieve_s for c, a in pairs),
                "overlap %": 100 * mean(a.overlap for _, a in pairs),
                "Iterative's overlap %": 100 * found[label, "Iter", "lookahead"].overlap,
            })
        return pd.DataFrame(rows)

    def answers(self, lengths: tuple[int, ...]) -> pd.DataFrame:
        """Means over the pipelines by answer length: with the rates fitted for it, and with those of the assumed
        one."""
        rows = []
        for answer in lengths:
            for label, rates in (("for this answer", self.rates(answer)), ("for the assumed one", self.rates())):
                desktop, server = rates["desktop"], rates["server"]
                cpu, ahead, fetch = self.modes("answers", "desktop", ("offload", "lookahead", "on_demand"),
                                               answer=answer, rates=desktop)
                (whole,) = self.modes("answers", "server", ("offload",), answer=answer, rates=server)
                rows.append({
                    "answer": answer, "rates fitted": label, "Faiss GB/s": server.baseline / 1e9,
                    "misses GB/s": desktop.miss / 1e9, "GPU GB/s": server.gpu / 1e9,
                    "CPU share, server %": 100 * mean(p.retrieve_s / p.e2e_s for p in whole),
                    "CPU share, desktop %": 100 * mean(p.retrieve_s / p.e2e_s for p in cpu),
                    "speed-up": mean(c.e2e_s / a.e2e_s for c, a in zip(cpu, ahead, strict=True)),
                    "retrieval speed-up": mean(c.retrieve_s / a.retrieve_s for c, a in zip(cpu, ahead, strict=True)),
                    "on demand over CPU": mean(f.e2e_s / c.e2e_s for f, c in zip(fetch, cpu, strict=True)),
                })
        return pd.DataFrame(rows)

    def nprobes(self) -> pd.DataFrame:
        rows = []
        for nprobe in (128, 256, 512):
            for pipeline, (cpu, ahead) in zip(PIPELINES, self.pairs("nprobe", nprobe=nprobe), strict=True):
                rows.append({"nprobe": nprobe, "pipeline": pipeline, "overlap %": 100 * ahead.overlap,
                             "CPU ms": 1e3 * cpu.retrieve_s, "lookahead ms": 1e3 * ahead.retrieve_s,
                             "retrieval speed-up": cpu.retrieve_s / ahead.retrieve_s})
        return pd.DataFrame(rows)

    def timeline(self) -> pd.DataFrame:
        found = self.means("timeline", {mode: self.ask("desktop", "HyDE", mode) for mode in ("on_demand", "offload")})
        fetch, cpu = found["on_demand"], found["offload"]
        scans = load_scenario(self.context.file("desktop.yaml")).clients[2].serves["gpu_search"]
        gpu = self.rates()["desktop"].gpu
        rows = [
            ("probed clusters", fetch.probed_bytes, None),
            ("copied over the link", fetch.union_bytes, fetch.union_bytes / paper.SETUPS["desktop"].link),
            ("scanned by the GPU", fetch.probed_bytes, fetch.probed_bytes / gpu + scans.fixed),
            ("retrieval, simulated", None, fetch.retrieve_s),
            ("CPU scan of the same", cpu.probed_bytes, cpu.cpu_s),
            ("end to end, on demand", None, fetch.e2e_s), ("end to end, CPU", None, cpu.e2e_s),
        ]
        return pd.DataFrame([{"part": name, "GB": None if n is None else n / 1e9, "ms": None if s is None else 1e3 * s}
                             for name, n, s in rows])

    def memory(self, buffers: tuple[int, ...]) -> pd.DataFrame:
        """Throughput when the buffer takes KV memory away."""
        few = {"workload.requests": 96} if self.context.quick else {}
        points = [Point(f"{gigabytes} GB", {
            "clients.3.memory.reserved": gigabytes * 10**9 + ENCODER_BYTES, "clients.0.buffer": gigabytes * 10**9,
            "clients.0.index": profile().cluster_model().model_dump(), **few,
        }, {"buffer GB": gigabytes}) for gigabytes in buffers]
        frame = run_points(self.context, "memory", points, scenario="kv-pressure.yaml", extract=memory_figures)
        return frame[["buffer GB", "KV capacity tokens", "peak KV %", "largest batch", "requests/s", "preemptions"]]


def memory_figures(results: Results) -> dict[str, Any]:
    """Capacity and use of the KV memory, batches, and throughput of the LLM."""
    record = results.record
    seconds = (record.finish_ns.max() - record.arrival_ns.min()) / 1e9
    runs, engine = record.runs, record.clients[3]
    return {
        "KV capacity tokens": engine.num_blocks * engine.block_size,
        "peak KV %": 100 * runs["used_blocks"].max() / engine.num_blocks,
        "largest batch": int(runs["decode_seqs"].max()), "requests/s": len(record.finish_ns) / seconds,
        "preemptions": int(runs["preempted"].sum()),
    }


def _buffer_of(pipeline: str, model: str) -> str:
    return paper.SELF_RAG_MODEL[model] if pipeline == "Self-RAG" else model


def _server_row(model: str, batch: int, mode: str, points: list[Means], cpu: list[Means]) -> dict[str, Any]:
    return {
        "model": model, "batch": batch, "retrieval": mode, "latency s": mean(p.e2e_s for p in points),
        "queries/s": batch * mean(1 / p.e2e_s for p in points),
        "speed-up": mean(c.e2e_s / p.e2e_s for c, p in zip(cpu, points, strict=True)),
        "generation s": mean(p.generate_s for p in points), "retrieval s": mean(p.retrieve_s for p in points),
        "retrieval share %": 100 * mean(p.retrieve_s / p.e2e_s for p in points),
        "overlap %": 100 * mean(p.overlap for p in points),
        "KV capacity tokens": points[0].kv_capacity_tokens,
        "peak KV %": 100 * max(p.kv_peak_share for p in points),
        "rejected": sum(p.rejected for p in points),
    }
