#!/usr/bin/env python3
"""Check `binds` by experiment: overloads in which every resource is doubled in turn.

    python scripts/binds_check.py [--seed 20261123] [--cases 50] [--only 3,7] [--fleets]

Each case is a scenario drawn by the seed: a client, prefill and decode, or several stages, made short of something. Its
load is a multiple of what it serves. Then each resource is doubled alone, with the same requests, and the truth is
the one that raises the served rate most: requests completed per second, from the first arrival to the last
completion. Where a latency misses its limit at a load that is served, it is the one that shortens the 99th percentile
most. Resources within `TIE` of the best one are equally true, if they help at all.

Twice the compute of an LLM client is hardware that does a step of twice the work in the time of one (its step times are
those of half the batch), not hardware that is twice as fast, which would also halve the time that a sequence holds a
slot and its blocks: with that, compute would be the answer to everything. Twice the compute of a service is twice its
workers.

`--fleets` takes twenty cases with replicas that come and go, crashes and time-outs. Their load is a multiple of what
one replica serves; incidents come at parts of the time of arrivals. Doubled are also the time-outs, and the speed with
which routers notice a crash, and that of start-ups; and requests are bound late, by flow control that holds them while
all replicas are full.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hermes.arrays import IntArray
from hermes.core.record import RunRecord
from hermes.hardware.base import StepStats
from hermes.results.metrics import answer, request_metrics
from hermes.results.results import Results
from hermes.results.slo import SloConfig
from hermes.scenario import load_scenario
from hermes.scenario.build import build

SEED, CASES, NEEDED, TIE = 20261123, 50, 48, 0.01
FLEETS, FLEETS_NEEDED = 20, 18
Data = dict[str, Any]
SMALL = {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}
LARGE = {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}
WIDE = "compute"   # in place of a change of the scenario


@dataclass
class Case:
    """A scenario without its arrivals, and how to double each resource, by `what where` of `binds`."""

    name: str
    data: Data
    doubled: dict[str, Callable[[Data], Any]]
    requests: int = 500
    load: float = 2.5
    rate: float = 0.0  # of arrivals, in place of the load
    missed: str = ""   # a latency that misses its limit, in place of the served rate
    extra: Data = field(default_factory=dict)   # keys of the workload that begin with the overload
    place: Callable[[Data, float], Any] | None = None   # places incidents in the time of arrivals, in s


class Wider:
    """A hardware model that does a step of twice the work in the time of one."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __getattr__(self, name: str) -> Any:
        if name == "write_ends":
            raise AttributeError(name)
        return getattr(self.base, name)

    @staticmethod
    def _half(stats: StepStats) -> StepStats:
        names = ("prefill_seqs", "prefill_tokens", "prefill_past", "prefill_attn", "decode_seqs", "decode_ctx",
                 "sampled")
        return StepStats(**{name: -(-getattr(stats, name) // 2) for name in names}, decode_ctx_max=stats.decode_ctx_max)

    def step_ns(self, stats: StepStats) -> int:
        return int(self.base.step_ns(self._half(stats)))

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        times: IntArray = self.base.run_ns(self._half(stats), num_steps)
        return times


def client(data: Data, name: str) -> Data:
    found: Data = next(one for one in data["clients"] if one["name"] == name)
    return found


def times_two(name: str, *keys: str) -> Callable[[Data], Any]:
    """Return a change that doubles a number under these keys of a client."""
    def change(data: Data) -> None:
        at: Any = client(data, name)
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = at.get(keys[-1], 1) * 2
    return change


def wide(name: str) -> Callable[[Data], Any]:
    return lambda data: (WIDE, name)


def of_llm(name: str, given: Data) -> dict[str, Callable[[Data], Any]]:
    """Return the changes that double the resources of an LLM client."""
    out = {f"compute {name}": wide(name), f"KV memory {name}": times_two(name, "memory", "num_blocks")}
    out[f"slots {name}"] = times_two(name, "scheduler", "max_num_seqs")
    out[f"token budget {name}"] = times_two(name, "scheduler", "max_num_batched_tokens")
    if "max_loras" in given["scheduler"]:
        out[f"adapter slots {name}"] = times_two(name, "scheduler", "max_loras")
    if "kv_offload" in given["memory"]:
        out["host loads " + name] = times_two(name, "memory", "kv_offload", "bandwidth")
    if "max_num_queued_reqs" in given["scheduler"]:
        out[f"queue limit {name}"] = times_two(name, "scheduler", "max_num_queued_reqs")
    return out


# -- cases -------------------------------------------------------------------------------------------------------------


class Draw:
    """Random figures of one case."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = np.random.default_rng([seed, index])

    def of(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def between(self, low: float, high: float) -> float:
        """Return a number drawn evenly on a logarithmic scale."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def whole(self, low: float, high: float) -> int:
        return round(self.between(low, high))


def llm(draw: Draw, name: str = "llm", *, seqs: int = 256, blocks: int = 40_000, budget: int = 2048,
        hardware: Any = None, kind: str = "chunked", **more: Any) -> Data:
    return {"name": name, "hardware": hardware or draw.of(SMALL, LARGE), "memory": {"num_blocks": blocks,
            "kv_bytes_per_token": 131072}, "scheduler": {"kind": kind, "max_num_seqs": seqs,
            "max_num_batched_tokens": budget}, **more}


def workload(draw: Draw, prompt: float, output: float, **more: Any) -> Data:
    prompt, output = int(prompt), max(int(output), 1)
    kind = draw.of("fixed", "lognormal")
    given: Data = {"kind": "fixed", "prompt": prompt, "output": output}
    if kind == "lognormal":
        given = {"kind": "independent", "prompt": {"kind": "lognormal", "mean": prompt, "sigma": 0.4},
                 "output": {"kind": "lognormal", "mean": output, "sigma": 0.4}}
    return {"lengths": given, **more}


def alone(name: str, one: Data, work: Data, **options: Any) -> Case:
    return Case(name, {"workload": work, "clients": [one]}, of_llm("llm", one), **options)


def slots(draw: Draw) -> Case:
    kinds = ("chunked", "chunked", "continuous", "mixed", "sglang", "static")
    one = llm(draw, seqs=draw.whole(2, 24), kind=draw.of(*kinds))
    if one["scheduler"]["kind"] == "sglang":
        one["scheduler"] = {"kind": "sglang", "max_running_requests": one["scheduler"]["max_num_seqs"]}
        case = alone("slots", one, workload(draw, draw.whole(50, 600), draw.whole(40, 200)))
        case.doubled = {label: change for label, change in case.doubled.items() if "budget" not in label}
        case.doubled["slots llm"] = times_two("llm", "scheduler", "max_running_requests")
        return case
    return alone("slots", one, workload(draw, draw.whole(50, 600), draw.whole(40, 200)))


def blocks(draw: Draw) -> Case:
    prompt, output = draw.whole(100, 1500), draw.whole(50, 300)
    one = llm(draw, blocks=max(draw.whole(3, 24), 5) * -(-(prompt + output) // 16) * 3 // 2,
              kind=draw.of("chunked", "chunked", "continuous", "mixed"))
    return alone("blocks", one, workload(draw, prompt, output))


def saturated(draw: Draw) -> Case:
    """Large batches: slots or blocks stop admission where the hardware has no more to give."""
    seqs = draw.whole(64, 512)
    one = llm(draw, seqs=seqs, hardware=LARGE if seqs > 128 else draw.of(SMALL, LARGE))
    return alone("large batch", one, workload(draw, draw.whole(100, 900), draw.whole(60, 250)), requests=1500)


def prompts(draw: Draw) -> Case:
    """Prompts of many tokens and short answers: the token budget stops, or the hardware."""
    one = llm(draw, budget=draw.of(128, 256, 512, 2048, 4096), kind=draw.of("chunked", "chunked", "continuous"))
    return alone("prompts", one, workload(draw, draw.whole(600, 3000), draw.whole(2, 12)))


def budget(draw: Draw) -> Case:
    one = llm(draw, budget=draw.whole(16, 64), seqs=draw.of(16, 128))
    one["scheduler"]["max_num_seqs"] = min(one["scheduler"]["max_num_seqs"], one["scheduler"]["max_num_batched_tokens"])
    return alone("token budget", one, workload(draw, draw.whole(100, 600), draw.whole(4, 20)), requests=300)


def adapters(draw: Draw) -> Case:
    one = llm(draw, hardware=SMALL, model="llama-3.1-8b")
    one["scheduler"]["max_loras"] = draw.whole(1, 4)
    return alone("adapters", one, workload(draw, draw.whole(50, 400), draw.whole(40, 200),
                                           adapters={"count": draw.whole(20, 60)}), requests=400)


def split(draw: Draw, name: str, *, prompt: int, output: int, prefill: Data, decode: Data, bandwidth: float) -> Case:
    first = llm(draw, "prefill", hardware=SMALL, role="prefill", **prefill)
    second = llm(draw, "decode", hardware=SMALL, role="decode", **decode)
    data = {"workload": workload(draw, prompt, output), "clients": [first, second],
            "network": {"kind": "link", "bandwidth": bandwidth, "shared": True}}

    def faster(data: Data) -> None:
        data["network"]["bandwidth"] *= 2

    return Case(name, data, {**of_llm("prefill", first), **of_llm("decode", second), "link": faster})


def prefill(draw: Draw) -> Case:
    return split(draw, "prefill", prompt=draw.whole(800, 3000), output=draw.whole(5, 30), prefill={}, decode={},
                 bandwidth=100e9)


def decode(draw: Draw) -> Case:
    short: Data = {"seqs": draw.whole(4, 16)} if draw.of(True, False) else {"blocks": draw.whole(150, 500)}
    return split(draw, "decode", prompt=draw.whole(100, 500), output=draw.whole(100, 250), prefill={}, decode=short,
                 bandwidth=100e9)


def handover(draw: Draw) -> Case:
    return split(draw, "hand-over", prompt=draw.whole(500, 2000), output=draw.whole(20, 60), prefill={}, decode={},
                 bandwidth=draw.between(3e8, 1.2e9))


def host(draw: Draw) -> Case:
    tokens = draw.whole(1200, 3000)
    one = llm(draw, hardware=SMALL, model="llama-3.1-8b", blocks=draw.whole(1200, 2500))
    one["memory"] |= {"prefix_caching": True, "kv_offload": {"cpu_bytes_to_use": "400 GiB",
                                                            "bandwidth": draw.between(1.5e9, 6e9)}}
    one["scheduler"]["async_scheduling"] = False
    work = workload(draw, tokens + draw.whole(20, 200), draw.whole(10, 40), prefixes={"groups": 60, "tokens": tokens})
    work["lengths"] = {"kind": "fixed", "prompt": tokens + 100, "output": draw.whole(10, 40)}
    return alone("host loads", one, work, requests=700)


STAGES = ("tokenize", "embed", "retrieve", "rerank")


def stages(draw: Draw, slow: str = "", *, name: str = "", close: bool = False) -> Case:
    """A tokenizer, an embedder, a retriever, a reranker and an LLM; one of them slow, or all of random speeds."""
    kinds = [kind for kind in STAGES if kind == slow or draw.of(True, True, False)] or ["rerank"]
    if close:
        kinds = ["retrieve", "rerank"]
    graph: Data = {}
    before = None
    for kind in [*kinds, "answer"]:
        graph[kind] = {"kind": "generate" if kind == "answer" else kind}
        if before is not None:
            graph[kind]["after"] = before
        before = kind
    one = llm(draw, hardware=SMALL, seqs=draw.whole(16, 128))
    services, doubled = [], of_llm("llm", one)
    rate = draw.between(4.0, 12.0)   # tasks/s that a slow service can do
    for kind in kinds:
        speed = rate * (1.0 if kind == slow else draw.between(1.02, 1.1) if close else draw.between(3.0, 8.0))
        if not slow and not close:
            speed = draw.between(4.0, 60.0)
        cores = draw.of(1, 2, 4)
        services.append({"kind": "processing" if kind == "tokenize" else "rag", "name": f"{kind}r", "cores": cores,
                         **({} if kind == "tokenize" else {"max_batch": draw.of(4, 16)}),
                         "serves": {kind: {"kind": "per_item", "per_item": cores / speed}}})
        doubled[f"compute {kind}r"] = times_two(f"{kind}r", "count")
    work = workload(draw, draw.whole(50, 300), draw.whole(10, 60), pipeline="steps")
    return Case(name or slow or "stages", {"workload": work, "pipelines": {"steps": {"stages": graph}},
                                           "clients": [*services, one]}, doubled)


def queue_limit(draw: Draw) -> Case:
    one, limit = llm(draw), draw.whole(2, 12)
    one["scheduler"]["max_num_queued_reqs"] = limit
    if draw.of(True, False, False):
        one["scheduler"]["max_num_seqs"] = max(limit // 3, 1)
    return alone("queue limit", one, workload(draw, draw.whole(50, 300), draw.whole(40, 150)), load=4.0)


def patience(draw: Draw) -> Case:
    one = llm(draw, hardware=SMALL, seqs=draw.whole(4, 16))
    work = workload(draw, draw.whole(50, 300), draw.whole(60, 150))
    case = alone("patience", one, work)
    case.extra = {"patience": {"first_token": draw.between(1.0, 3.0)}}

    def longer(data: Data) -> None:
        data["workload"]["patience"]["first_token"] *= 2

    case.doubled["patience llm"] = longer
    return case


def front_end(draw: Draw) -> Case:
    one = llm(draw, hardware=SMALL, request_overhead={"mode": "overlapped", "generate": draw.between(0.05, 0.25)})
    case = alone("front end", one, workload(draw, draw.whole(50, 300), draw.whole(10, 60)))

    def faster(data: Data) -> None:
        client(data, "llm")["request_overhead"]["generate"] /= 2

    case.doubled["front end llm"] = faster
    return case


def missed(draw: Draw) -> Case:
    """A load that the client serves, with a TPOT or TTFT that is too long."""
    if draw.of(True, False):
        one = llm(draw, hardware=LARGE)
        return alone("missed TPOT", one, workload(draw, draw.whole(400, 1500), draw.whole(100, 250)), load=0.6,
                     missed="tpot", requests=800)
    one = llm(draw, seqs=draw.whole(4, 12))
    return alone("missed TTFT", one, workload(draw, draw.whole(100, 600), draw.whole(60, 150)), load=0.85,
                 missed="ttft", requests=800)


def tier(draw: Draw) -> Case:
    """Prefixes in a store outside the devices, which is slow to read."""
    tokens = draw.whole(1500, 3000)
    one = llm(draw, hardware=SMALL, model="llama-3.1-8b", device="h100-sxm", blocks=3000)
    one["memory"]["prefix_caching"] = True
    bandwidth = draw.between(1.5e9, 3e9)
    one["tiers"] = {"levels": [{"name": "store", "capacity": "2 TB", "bandwidth": bandwidth}]}
    work = {"lengths": {"kind": "fixed", "prompt": tokens + 100, "output": draw.whole(10, 30)},
            "prefixes": {"groups": 60, "tokens": tokens}}
    # an overload of the store alone: many prefixes are there when they come again
    case = alone("tier", one, work, requests=700, rate=2.0 * bandwidth / (tokens * 131072))

    def faster(data: Data) -> None:
        client(data, "llm")["tiers"]["levels"][0]["bandwidth"] *= 2

    case.doubled["tier"] = faster
    return case


def tie_in_batch(draw: Draw) -> Case:
    """Slots and blocks for about the same number of sequences."""
    prompt, output, seqs = draw.whole(100, 400), draw.whole(60, 150), draw.whole(6, 16)
    one = llm(draw, seqs=seqs, blocks=round(draw.between(0.93, 1.07) * seqs * ((prompt + output) // 16 + 1)))
    return alone("tie of slots and blocks", one, workload(draw, prompt, output))


def tie_of_stages(draw: Draw) -> Case:
    return stages(draw, "retrieve", name="tie of stages", close=True)


def behind_hop(draw: Draw) -> Case:
    """A gateway of little capacity before clients with room."""
    case = alone("hop", llm(draw, hardware=SMALL, seqs=128), workload(draw, draw.whole(50, 300), draw.whole(10, 60)))
    case.data["gateway"] = {"capacity": draw.between(2.0, 8.0), "replicas": draw.of(1, 2), "delay": 0.002}
    return with_limits(case, {"capacity gateway": ("capacity",)})


def wide_hop(draw: Draw) -> Case:
    """A gateway with room before a client without."""
    case = slots(draw)
    case.name, case.data["gateway"] = "wide hop", {"capacity": 5000.0, "delay": 0.002}
    return with_limits(case, {"capacity gateway": ("capacity",)})


def with_limits(case: Case, limits: dict[str, tuple[str, ...]]) -> Case:
    """Add changes that double numbers of the gateway."""
    def twice(keys: tuple[str, ...], data: Data) -> None:
        at: Any = data["gateway"]
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] *= 2

    case.doubled |= {label: partial(twice, keys) for label, keys in limits.items()}
    return case


def held(case: Case, name: str, detector: Data, *keys: str, ceiling: float = 1.0) -> Case:
    """Put flow control before the clients of a case; `keys` lead to its limit."""
    case.name, case.data["gateway"] = name, {"flow_control": {"detector": detector, "ttl": "10 h"}}
    if ceiling < 1:
        case.data["gateway"]["classes"] = {"batch": {"priority": -1, "ceiling": ceiling}}
        case.data["workload"]["classes"] = {"values": ["batch"]}
    return with_limits(case, {"flow control llm": keys})


def few_in_flight(draw: Draw) -> Case:
    """Flow control that lets few requests be in flight at clients with room."""
    one = llm(draw, seqs=256)
    case = alone("", one, workload(draw, draw.whole(50, 400), draw.whole(40, 150)))
    return held(case, "few in flight", {"kind": "concurrency", "limit": draw.whole(2, 12)},
                "flow_control", "detector", "limit")


def low_ceiling(draw: Draw) -> Case:
    """A ceiling that keeps most of a client free."""
    case = alone("", llm(draw, seqs=256), workload(draw, draw.whole(50, 400), draw.whole(40, 150)))
    return held(case, "low ceiling", {"kind": "concurrency", "limit": 100}, "classes", "batch", "ceiling",
                ceiling=draw.between(0.03, 0.12))


def held_from_full(draw: Draw) -> Case:
    """Flow control before a client that is full: its requests wait at the gateway."""
    detector = draw.of({"kind": "utilization", "queue": 5.0}, {"kind": "concurrency", "limit": 100})
    key = "limit" if detector["kind"] == "concurrency" else "queue"
    return held(draw.of(slots, prompts)(draw), "held from full", detector, "flow_control", "detector", key)


def in_flight(draw: Draw) -> Case:
    """Flow control before large batches: its limit binds, or the hardware that has no more to give."""
    case = saturated(draw)
    case.requests = 900
    return held(case, "in flight", {"kind": "concurrency", "limit": draw.whole(24, 400)},
                "flow_control", "detector", "limit")


def held_for_blocks(draw: Draw) -> Case:
    """Flow control that sees a client without blocks."""
    return held(blocks(draw), "held for blocks", {"kind": "utilization", "queue": 5.0},
                "flow_control", "detector", "queue")


FAMILIES: list[tuple[Callable[[Draw], Case], int]] = [
    (slots, 4), (blocks, 3), (saturated, 3), (prompts, 3), (budget, 2), (adapters, 3), (prefill, 2), (decode, 3),
    (handover, 2), (host, 1), (lambda draw: stages(draw, "rerank"), 2), (lambda draw: stages(draw, "retrieve"), 1),
    (lambda draw: stages(draw, "embed"), 1), (lambda draw: stages(draw, "tokenize"), 1), (stages, 1), (queue_limit, 1),
    (missed, 2), (tier, 1), (patience, 1), (front_end, 1), (tie_in_batch, 1), (tie_of_stages, 1),
    (behind_hop, 2), (wide_hop, 1), (few_in_flight, 2), (low_ceiling, 1), (held_from_full, 2), (in_flight, 1),
    (held_for_blocks, 1),
]


# -- fleets and incidents ----------------------------------------------------------------------------------------------


def fleet(case: Case, count: int, start: int, *, start_up: float = 20.0, router: str = "least_loaded", **options: Any
          ) -> Case:
    """Make a fleet of the client of a case: so many slots, of which some are ready from the start."""
    client(case.data, "llm").update(count=count, fleet={"start": start, "start_up": {"total": start_up}, **options})
    case.data["router"] = {"kind": router, **({"load": "requests"} if router == "least_loaded" else {})}
    case.requests = 600

    def later(data: Data) -> None:
        data["gateway"] = {**data.get("gateway", {}), "flow_control": {"ttl": "10 h"}}
        data["gateway"].pop("queue", None)   # that of flow control takes its place

    case.doubled["early binding llm"] = later
    return case


def few_of_many(draw: Draw) -> Case:
    """Few replicas of many slots; the others never start."""
    case = draw.of(slots, blocks, prompts)(draw)
    fleet(case, 8, draw.of(1, 1, 2), router=draw.of("round_robin", "least_loaded"))
    case.name, case.load = "few of many", 4.0
    return case


def short_of(draw: Draw, output: int = 60) -> Case:
    """A replica with few slots, or that computes long prompts."""
    if draw.of(True, False):
        return alone("", llm(draw, seqs=draw.whole(6, 20), hardware=SMALL), workload(draw, draw.whole(50, 300), output))
    return alone("", llm(draw, hardware=SMALL), workload(draw, draw.whole(1500, 3000), draw.whole(5, 20)))


def come_late(draw: Draw) -> Case:
    """All requests come to one replica; many others are ready when most are bound."""
    case, many = short_of(draw), draw.of(4, 6, 8)
    fleet(case, many, 1)
    case.name, case.load, ready = "come late", draw.between(3.0, 8.0), draw.between(0.7, 0.95)

    def place(data: Data, span: float) -> None:
        client(data, "llm")["fleet"] |= {"start_up": {"total": 0.0}, "autoscaler": {
            "kind": "schedule", "changes": [{"at": ready * span, "replicas": many}]}}

    case.place = place
    return case


def noticed_late(draw: Draw) -> Case:
    """A replica goes down, and routers send it requests for long; retries go there, too."""
    case, many, at = short_of(draw), draw.of(3, 4), draw.between(0.2, 0.4)
    fleet(case, many, many, router=draw.of("least_loaded", "round_robin"))
    case.data["gateway"] = {"retries": draw.of(0, 1)}
    case.name, case.load, noticed = "noticed late", 0.5 * many, draw.between(0.2, 0.4)

    def place(data: Data, span: float) -> None:
        client(data, "llm")["fleet"] |= {
            "start_up": {"total": span}, "crashes": [{"at": at * span, "replica": 1}],
            "probe": {"period": noticed * span / 3, "failures": 3, "delay": 0, "offset": 0}}

    def sooner(data: Data) -> None:
        client(data, "llm")["fleet"]["probe"]["period"] /= 2

    case.place, case.doubled["dead replica llm"] = place, sooner
    return case


def crash_of_full(draw: Draw) -> Case:
    """One of two replicas goes down, which is noticed at once; the other is overloaded."""
    case = short_of(draw)
    fleet(case, 2, 2)
    case.data["gateway"] = {"retries": 5}
    case.name, case.load = "crash of full", 2.6

    def place(data: Data, span: float) -> None:
        client(data, "llm")["fleet"] |= {"start_up": {"total": 4 * span}, "probe": {"period": 0.01, "delay": 0},
                                         "crashes": [{"at": 0.2 * span, "replica": 0}]}

    case.place = place
    return case


def time_outs(case: Case, limit: float) -> Case:
    """Give clients a time-out, of which twice as much is one more resource."""
    case.extra = {"retry": {"kind": "openai", "per_try": limit, "retries": 0}}

    def longer(data: Data) -> None:
        data["workload"]["retry"]["per_try"] *= 2

    case.doubled["time-outs llm"] = longer
    return case


def timed_out(draw: Draw) -> Case:
    """Clients of an overload wait for a few seconds."""
    case = time_outs(fleet(short_of(draw), 4, 1, router="round_robin"), draw.between(4.0, 8.0))
    case.name, case.load = "timed out", draw.between(2.0, 3.0)
    return case


def storm(draw: Draw) -> Case:
    """A burst in which clients wait in vain, before a long time in which all are served."""
    case = time_outs(fleet(short_of(draw), 4, 2), draw.between(4.0, 6.0))
    case.name, case.requests, case.load = "storm", 1200, 2.0

    def place(data: Data, span: float) -> None:
        rate = data["workload"]["arrivals"]["rate"]
        data["workload"]["arrivals"] = {"kind": "profile", "every": span / 6, "rates": [
            0.5 * rate, 3.0 * rate, 0.6 * rate, 0.6 * rate, 0.6 * rate, 0.6 * rate]}

    case.place = place
    return case


def too_short(draw: Draw) -> Case:
    """A time-out below the time that long answers take without any queue."""
    one = llm(draw, hardware=SMALL)
    case = alone("", one, {"lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 50, "max": 200},
                                       "output": {"kind": "uniform", "min": 20, "max": 600}}})
    case = time_outs(fleet(case, 4, 2), draw.between(1.5, 2.5))
    case.name, case.load = "too short", 0.3
    return case


def from_zero(draw: Draw) -> Case:
    """Requests wait at the gateway for the first replica."""
    case = short_of(draw)
    fleet(case, 4, 0)
    case.data["gateway"] = {"queue": {"ttl": "10 h"}}
    case.name, case.load = "from zero", 1.5

    def place(data: Data, span: float) -> None:
        client(data, "llm")["fleet"] |= {"start_up": {"total": 2 * span}, "autoscaler": {
            "kind": "schedule", "changes": [{"at": 0, "replicas": 4}]}}

    def faster(data: Data) -> None:
        client(data, "llm")["fleet"]["start_up"]["total"] /= 2

    case.place, case.doubled["replicas llm"] = place, faster
    return case


def drained(draw: Draw) -> Case:
    """Most replicas are let go while requests come as before."""
    case = short_of(draw)
    fleet(case, 4, 4)
    case.name, case.load = "drained", 2.5

    def place(data: Data, span: float) -> None:
        client(data, "llm")["fleet"]["autoscaler"] = {"kind": "schedule",
                                                      "changes": [{"at": 0.2 * span, "replicas": 1}]}

    case.place = place
    return case


OF_FLEETS: list[tuple[Callable[[Draw], Case], int]] = [
    (few_of_many, 3), (come_late, 4), (noticed_late, 3), (crash_of_full, 2), (timed_out, 2), (storm, 2), (too_short, 1),
    (from_zero, 1), (drained, 2),
]


def cases(seed: int, count: int, families: list[tuple[Callable[[Draw], Case], int]] = FAMILIES) -> list[Case]:
    """Return the cases of a seed: as many of each family as it says, and drawn ones beyond."""
    makers = [make for make, number in families for _ in range(number)]
    return [makers[index % len(makers)](Draw(seed, index)) for index in range(count)]


# -- the experiment ----------------------------------------------------------------------------------------------------


def simulate(data: Data, widened: str = "") -> tuple[RunRecord, Any]:
    """Return the record of a scenario, with the hardware of one group widened, and the scenario."""
    scenario = load_scenario(data)
    simulation = build(scenario)
    for one in simulation.clients if widened else ():
        if one.name == widened or one.name.rpartition("-")[0] == widened:
            one.hardware = Wider(one.hardware)  # type: ignore[attr-defined]
            one._price.write_ends = one._price.step_ns = None  # type: ignore[attr-defined]
    return simulation.run(), scenario


def speed(record: RunRecord, metric: str) -> float:
    """Return the inverse of the 99th percentile of a latency, in 1/s."""
    metrics = request_metrics(record, answer(record))
    values = {"ttft": metrics.ttft_ns / 1e9, "tpot": metrics.tpot_s}[metric]
    return 1.0 / float(np.percentile(values[(record.finish_ns > 0) & np.isfinite(values)], 99))


def served(record: RunRecord) -> float:
    """Return requests completed per second, from the first arrival to the last completion."""
    return float((record.finish_ns > 0).sum() / (int(record.finish_ns.max()) - int(record.arrival_ns.min())) * 1e9)


@dataclass
class Outcome:
    case: Case
    gains: dict[str, float]   # resource -> served rate over that of the overload
    said: str
    found: Data

    @property
    def truth(self) -> set[str]:
        best = max(self.gains.values())
        return {label for label, gain in self.gains.items() if gain >= best * (1 - TIE) and gain > 1 + TIE}

    @property
    def right(self) -> bool:
        kind = self.said.partition(" ")[0]
        return self.said in self.truth or (kind in ("link", "tier") and kind in self.truth)


def experiment(case: Case) -> Outcome:
    """Overload a case, ask what binds, and double each resource in turn."""
    data = copy.deepcopy(case.data)
    at_once = copy.deepcopy(data)
    for one in at_once["clients"]:
        one.get("scheduler", {}).pop("max_num_queued_reqs", None)
        if one.pop("fleet", None):
            one["count"] = 1
    at_once["workload"] |= {"requests": case.requests // 2, "arrivals": {"kind": "at_once"}}
    record, _ = simulate(at_once)
    capacity = (case.requests // 2) / (int(record.finish_ns.max()) / 1e9)
    data["workload"] |= {"requests": case.requests, **case.extra,
                         "arrivals": {"kind": "poisson", "rate": case.rate or case.load * capacity}}
    if case.place is not None:
        case.place(data, case.requests / (case.rate or case.load * capacity))
    record, scenario = simulate(data)
    judge = partial(speed, metric=case.missed) if case.missed else served
    base = judge(record)
    slo = SloConfig.model_validate({case.missed: 0.7 / base}) if case.missed else scenario.slo
    found = Results(record, slo=slo).summary["binds"]
    gains = {}
    for label, change in case.doubled.items():
        changed = copy.deepcopy(data)
        widened = change(changed)
        gains[label] = judge(simulate(changed, widened[1] if widened else "")[0]) / base
    said = f"{found['what']} {found['where']}" if found["where"] else found["what"]
    return Outcome(case, gains, said, found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--fleets", action="store_true", help="cases with fleets and incidents")
    parser.add_argument("--only", default="", help="numbers of cases, from 0")
    options = parser.parse_args()
    chosen = [int(part) for part in options.only.split(",") if part]
    families, all_cases, needed = (OF_FLEETS, FLEETS, FLEETS_NEEDED) if options.fleets else (FAMILIES, CASES, NEEDED)
    right = count = 0
    for number, case in enumerate(cases(options.seed, options.cases or all_cases, families)):
        if chosen and number not in chosen:
            continue
        outcome = experiment(case)
        count, right = count + 1, right + outcome.right
        order = sorted(outcome.gains.items(), key=lambda item: -item[1])[:3]
        print(f"{number:2d} {case.name:24s} {'ok  ' if outcome.right else 'MISS'} binds: {outcome.said:32s} "
              + ", ".join(f"{label} x{gain:.2f}" for label, gain in order), flush=True)
    print(f"{right} of {count}")
    return 0 if right >= count * needed / all_cases else 1


if __name__ == "__main__":
    sys.exit(main())
