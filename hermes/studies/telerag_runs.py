"""Study `telerag`: the simulations of each table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import pandas as pd

from hermes.clients.llm import LLMClient
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.studies import telerag_paper as paper
from hermes.studies.base import Context
from hermes.studies.telerag_points import CPU, ENCODER_BYTES, Point, gpu_rate, profile, simulate_point, tokens_in

__all__ = ["Runs", "mean"]

PIPELINES = tuple(paper.BUDGET_GB)
WHOLE_INDEX = {"clients.3.memory.reserved": paper.TOTAL_BYTES + ENCODER_BYTES, "clients.3.memory.utilization": 1.0}


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean."""
    found = list(values)
    return sum(found) / len(found)


class Runs:
    """Simulations, `count` requests each; equal ones are run once."""

    def __init__(self, context: Context, count: int) -> None:
        self.context, self.count = context, count
        self._known: dict[str, Point] = {}

    @cached_property
    def families(self) -> list[str]:
        """Their names in the profile, the best first."""
        return [fitted.name for fitted in profile().families]

    def point(self, system: str, pipeline: str, mode: str, **more: Any) -> Point:
        key = f"{system} {pipeline} {mode} {sorted(more.items())}"
        if key not in self._known:
            self._known[key] = simulate_point(self.context, system, pipeline, mode,
                                              **{"requests": self.count, **more})
        return self._known[key]

    def latency(self, answers: tuple[int, ...]) -> pd.DataFrame:
        rows = []
        for answer in answers:
            for pipeline in PIPELINES:
                cpu = self.point("desktop", pipeline, "offload", answer=answer)
                ahead = self.point("desktop", pipeline, "lookahead", answer=answer)
                rows.append({
                    "answer": answer, "pipeline": pipeline, "window tokens": tokens_in(pipeline), "CPU s": cpu.e2e_s,
                    "lookahead s": ahead.e2e_s, "speed-up": cpu.e2e_s / ahead.e2e_s,
                    "CPU share %": 100 * cpu.retrieve_s / cpu.e2e_s,
                    "retrieval speed-up": cpu.retrieve_s / ahead.retrieve_s, "overlap %": 100 * ahead.overlap,
                    "copied GB": ahead.copied_bytes / 1e9, "peak buffer GB": ahead.peak_buffer / 1e9,
                    "KV capacity tokens": ahead.figures["kv_capacity_tokens"],
                    "peak KV %": 100 * ahead.figures["kv_peak_share"], "rejected": ahead.figures["rejected"],
                })
        return pd.DataFrame(rows)

    def desktop(self, models: tuple[str, ...]) -> pd.DataFrame:
        """Budgets from a profiling pass of 64 queries in the same run, beside those given."""
        rows = []
        for model in models:
            for pipeline in PIPELINES:
                cpu = self.point("desktop", pipeline, "offload", model=model)
                setup = paper.SETUPS["desktop"]
                passed = self.point("desktop", pipeline, "lookahead", model=model, budget="profiled",
                                    requests=64 + self.count)
                budget = min(setup.link * cpu.window_s, setup.buffers[_buffer_of(pipeline, model)])
                ahead = self.point("desktop", pipeline, "lookahead", model=model, budget=budget)
                rows.append({
                    "model": paper.MODELS[model], "pipeline": pipeline,
                    "paper's budget GB": paper.BUDGET_GB[pipeline] if model == "llama-3.2-3b" else None,
                    "window ms": 1e3 * cpu.window_s, "profiled GB": budget / 1e9,
                    "copied GB, 64 queries profiled": passed.peak_buffer / 1e9,
                    "overlap %": 100 * passed.overlap, "CPU s": cpu.e2e_s, "lookahead s": ahead.e2e_s,
                    "speed-up": cpu.e2e_s / ahead.e2e_s, "KV capacity tokens": ahead.figures["kv_capacity_tokens"],
                    "peak KV %": 100 * ahead.figures["kv_peak_share"], "rejected": ahead.figures["rejected"],
                })
        return pd.DataFrame(rows)

    def server_points(self, model: str, batch: int) -> dict[str, list[Point]]:
        """Each way of retrieval, the six pipelines in order."""
        few = max(4, self.count // batch)
        setup = paper.SETUPS["server"]
        found: dict[str, list[Point]] = {"offload": [], "lookahead": []}
        for pipeline in PIPELINES:
            cpu = self.point("server", pipeline, "offload", model=model, batch=batch, requests=few)
            # what a profiling pass finds: the link's bytes in a mean window, at most the buffer
            budget = min(setup.buffers[model], setup.link * cpu.window_s)
            found["offload"].append(cpu)
            found["lookahead"].append(self.point(
                "server", pipeline, "lookahead", model=model, batch=batch, requests=few, budget=budget))
        if model == "llama-3-8b":
            found["resident"] = [
                self.point("server", p, "resident", model=model, batch=batch, requests=few, changes=WHOLE_INDEX)
                for p in PIPELINES]
        return found

    def server(self, models: tuple[str, ...], batches: tuple[int, ...]) -> pd.DataFrame:
        rows = []
        for model in models:
            for batch in batches:
                found = self.server_points(model, batch)
                rows += [_server_row(paper.MODELS[model], batch, mode, points, found["offload"])
                         for mode, points in found.items()]
        return pd.DataFrame(rows)

    def variants(self) -> pd.DataFrame:
        """Mean speed-up, and retrieval's, over the six pipelines."""
        slow = {"clients.2.serves.gpu_search.rate": 7 * (profile().scans[CPU["desktop"]].rate or 0.0)}
        cases: dict[str, dict[str, Any]] = {
            "as above": {}, "GPU scans 7 times as fast as the CPU": {"changes": slow},
            "windows differ (sigma 0.5)": {"changes": {"workload.pipeline.window_sigma": 0.5}},
            "the same, late copies given up": {"changes": {"workload.pipeline.window_sigma": 0.5,
                                                           "workload.pipeline.late": "give_up"}},
            "clusters kept between rounds": {"changes": {"workload.pipeline.keep": True}},
        }
        others = self.families[1:]
        cases |= {f"family {name}": {"family": name} for name in (others[-1:] if self.context.quick else others)}
        rows = []
        for label, more in cases.items():
            pairs = {p: [self.point("desktop", p, mode, **more) for mode in ("offload", "lookahead")]
                     for p in PIPELINES}
            rows.append({
                "variant": label, "speed-up": mean(c.e2e_s / a.e2e_s for c, a in pairs.values()),
                "retrieval speed-up": mean(c.retrieve_s / a.retrieve_s for c, a in pairs.values()),
                "overlap %": 100 * mean(a.overlap for _, a in pairs.values()),
                "Iterative's overlap %": 100 * pairs["Iter"][1].overlap,
            })
        return pd.DataFrame(rows)

    def nprobes(self) -> pd.DataFrame:
        rows = []
        for nprobe in (128, 256, 512):
            for pipeline in ("HyDE", "SubQ", "Iter"):
                cpu = self.point("desktop", pipeline, "offload", nprobe=nprobe)
                ahead = self.point("desktop", pipeline, "lookahead", nprobe=nprobe)
                rows.append({"nprobe": nprobe, "pipeline": pipeline, "overlap %": 100 * ahead.overlap,
                             "retrieval speed-up": cpu.retrieve_s / ahead.retrieve_s,
                             "ceiling": 1 / max(1e-9, 1 - ahead.overlap),
                             "overlap for 7.21 %": 100 * (1 - 1 / paper.RETRIEVAL_SPEEDUP)})
        return pd.DataFrame(rows)

    def timeline(self) -> pd.DataFrame:
        fetch, cpu = self.point("desktop", "HyDE", "on_demand"), self.point("desktop", "HyDE", "offload")
        scans = load_scenario(self.context.file("desktop.yaml")).clients[2].serves["gpu_search"]
        rate = profile().scans[CPU["desktop"]].rate or 0.0
        rows = [
            ("probed clusters", fetch.probed_bytes, None),
            ("copied over the link", fetch.union_bytes, fetch.union_bytes / paper.SETUPS["desktop"].link),
            ("scanned by the GPU", fetch.probed_bytes, fetch.probed_bytes / gpu_rate("desktop") + scans.fixed),
            ("retrieval, simulated", None, fetch.retrieve_s),
            ("CPU scan of the same", cpu.scanned_bytes, cpu.scanned_bytes / rate),
            ("end to end, on demand", None, fetch.e2e_s), ("end to end, CPU", None, cpu.e2e_s),
        ]
        return pd.DataFrame([{"part": name, "GB": None if n is None else n / 1e9, "ms": None if s is None else 1e3 * s}
                             for name, n, s in rows])

    def memory(self, buffers: tuple[int, ...]) -> pd.DataFrame:
        """Throughput as the buffer takes KV memory away."""
        rows = []
        for gigabytes in buffers:
            content = load_scenario(self.context.file("kv-pressure.yaml")).model_dump()
            content["clients"][3]["memory"]["reserved"] = gigabytes * 10**9 + ENCODER_BYTES
            content["clients"][0]["buffer"] = gigabytes * 10**9
            content["clients"][0]["index"] = profile().cluster_model().model_dump()
            if self.context.quick:
                content["workload"][0]["requests"] = 96
            checked = load_scenario(content)
            simulation = build(checked)
            record = simulation.run()
            seconds = (record.finish_ns.max() - record.arrival_ns.min()) / 1e9
            runs = record.runs
            engine = simulation.clients[3]
            assert isinstance(engine, LLMClient)
            pool = engine.scheduler.pool
            rows.append({
                "buffer GB": gigabytes, "KV capacity tokens": pool.num_blocks * pool.block_size,
                "peak KV %": 100 * runs["used_blocks"].max() / pool.num_blocks,
                "largest batch": int(runs["decode_seqs"].max()), "requests/s": len(record.finish_ns) / seconds,
                "preemptions": int(runs["preempted"].sum()),
            })
        return pd.DataFrame(rows)


def _buffer_of(pipeline: str, model: str) -> str:
    return paper.SELF_RAG_MODEL[model] if pipeline == "Self-RAG" else model


def _server_row(model: str, batch: int, mode: str, points: list[Point], cpu: list[Point]) -> dict[str, Any]:
    return {
        "model": model, "batch": batch, "retrieval": mode, "latency s": mean(p.e2e_s for p in points),
        "queries/s": batch * mean(1 / p.e2e_s for p in points),
        "speed-up": mean(c.e2e_s / p.e2e_s for c, p in zip(cpu, points, strict=True)),
        "generation s": mean(p.generate_s for p in points), "retrieval s": mean(p.retrieve_s for p in points),
        "retrieval share %": 100 * mean(p.retrieve_s / p.e2e_s for p in points),
        "overlap %": 100 * mean(p.overlap for p in points),
        "KV capacity tokens": points[0].figures["kv_capacity_tokens"],
        "peak KV %": 100 * max(p.figures["kv_peak_share"] for p in points),
        "rejected": sum(p.figures["rejected"] for p in points),
    }
