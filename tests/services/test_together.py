"""Services on clients: what shares a machine, which watts it draws, model-based filters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hermes.api import simulate
from hermes.clients.machine import Machine
from hermes.core.clock import Clock
from hermes.core.stage import ServiceStage
from hermes.hardware.descriptions.models import load_model
from hermes.results import Results
from hermes.services import MachineSpec, Work
from hermes.services.ivf_pq import IvfPq

LLM = {
    "name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm",
    "hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
}
INDEX = {"kind": "ivf_pq", "vectors": 10**10, "code_bytes": 48, "coarse": "two_level"}


def e5(device: str, dtype: str = "bf16") -> dict[str, Any]:
    return {"kind": "encoder", "hardware": {"kind": "roofline", "model": "e5-base", "device": device, "dtype": dtype}}


def run(clients: list[dict[str, Any]], stages: dict[str, Any], *, requests: int = 50, rate: float = 2.0) -> Results:
    return simulate({
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate}, "pipeline": "p",
                     "lengths": {"kind": "fixed", "prompt": 400, "output": 20}},
        "pipelines": {"p": {"stages": stages}}, "clients": [LLM, *clients],
    })


EMBED_FIND = {
    "embed": {"kind": "embed"}, "find": {"kind": "find", "after": "embed"},
    "answer": {"kind": "generate", "after": "find", "prompt": "prompt + 1000"},
}


def test_batches_on_one_machine_contend_by_hand():
    """An embedding on all cores with a fifth of the bandwidth, and a scan on one core of 64 with half of it: cores give
    the embedding 63/64 while both run."""
    env, ends = Clock(), {}
    machine = Machine(env, 0)
    works = {"embed": Work(0.1, 1.0, 0.2, 0.08, 0.02), "scan": Work(0.05, 1 / 64, 0.5, 0.0, 0.02)}
    for name, work in works.items():
        machine.start(work, lambda name=name: ends.update({name: env._now}))
    env.drain()
    rate = 1 / (1 + 1 / 64)     # both use cores, and those are short: 1 + 1/64 of them
    assert ends["scan"] == pytest.approx(0.05e9 / rate, abs=2)
    assert ends["embed"] == pytest.approx(0.05e9 / rate + 0.05e9, abs=4)
    # three scans that each take half of the bandwidth alone: two thirds of their speed
    env, late = Clock(), []
    machine = Machine(env, 0)
    for _ in range(3):
        machine.start(Work(0.3, 0.1, 0.5), lambda: late.append(env._now))
    env.drain()
    assert late == pytest.approx([0.45e9] * 3, abs=2)
    assert machine.busy_ns == pytest.approx(0.45e9, abs=2)


def test_stages_of_one_client_contend_and_those_of_two_do_not():
    """A flat coarse search of 12 GB on one core and an embedding on all cores of the same machine."""
    index = {**INDEX, "coarse": "flat", "threads_per_query": 64}
    stages = {
        "embed": {"kind": "embed", "tokens": 4096}, "find": {"kind": "find"},
        "answer": {"kind": "generate", "after": ["embed", "find"]},
    }
    both = {"kind": "rag", "device": "cpu-large", "cores": 64}
    encoder = e5("cpu-large", "fp32")
    shared = run([{**both, "name": "cpu", "serves": {"embed": encoder, "find": index}}], stages, requests=1)
    apart = run([{**both, "name": "a", "serves": {"embed": encoder}}, {**both, "name": "b", "serves": {"find": index}}],
                stages, requests=1)

    def seconds(results: Results, kind: str) -> float:
        rows = results.stages[results.stages["kind"] == kind]
        return float((rows["end_s"] - rows["start_s"]).iloc[0])

    # the longer one finishes when the work of both is done; cores are what both need all of
    alone = {kind: seconds(apart, kind) for kind in ("embed", "find")}
    machine = MachineSpec(64, 14.2e12, 768e9, 10**12)
    spec = {name: value for name, value in index.items() if name != "kind"}
    work = IvfPq(**spec).build(machine).work([ServiceStage("find")])
    assert alone["find"] == pytest.approx(work.alone_s, abs=2e-9)
    rate = 1 / (1 + work.cores)
    assert min(alone["embed"] / rate, alone["find"] / rate) == pytest.approx(
        min(seconds(shared, kind) for kind in alone), rel=1e-6)
    first = min(alone.values()) / rate
    left = max(alone.values()) - rate * first
    assert max(seconds(shared, kind) for kind in alone) == pytest.approx(first + left, rel=1e-6)


def test_services_that_do_not_fit_together_are_refused():
    index = {**INDEX, "vectors": 17 * 10**9, "code_bytes": 47}
    mistral = {"kind": "roofline", "model": "llama-2-70b", "device": "cpu-large", "dtype": "fp32"}
    serves = {"find": index, "embed": {"kind": "encoder", "hardware": mistral}}
    with pytest.raises(Exception, match=r"serves: the services need 1,2\d\d GB, and the machine has 1,000") as caught:
        run([{"kind": "rag", "name": "cpu", "device": "cpu-large", "serves": serves}], EMBED_FIND)
    assert "\n" not in str(caught.value)


def energy_by_hand(results: Results) -> float:
    """Sum over clients of watts x time from 0 to the last end, from the table of clients."""
    total = 0.0
    held = int(results.record.finish_ns.max()) / 1e9
    for info, client in zip(results.record.clients, results.summary["clients"].values(), strict=True):
        busy = client["stepping_s"]
        if info.role == "service":
            total += info.prefill_w * busy + info.idle_w * (held - busy)
        else:
            total += client["energy_j"]
    return total


def test_a_gpu_that_embeds_draws_what_it_uses():
    results = run([
        {"kind": "rag", "name": "gpu", "device": "a100-80gb", "cores": 1, "serves": {"embed": e5("a100-80gb")}},
        {"kind": "rag", "name": "cpu", "device": "cpu-large", "serves": {"find": INDEX},
         "power": {"idle": 100, "prefill": 300}},
    ], EMBED_FIND)
    gpu = next(info for info in results.record.clients if info.name == "gpu")
    assert gpu.power_source == "device a100-80gb: fitted to measured watts (near, -15 to +15%)"
    # one e5-base pass over 400 tokens: its flops at the card's peak over the time it takes, and its weights read once
    rows = results.stages[results.stages["kind"] == "embed"]
    seconds = (rows["end_s"] - rows["start_s"]).to_numpy()
    compute = (2 * 85e6 * 400 + 4 * 12 * 64 * 12 * 400 * 400) / 312e12 / seconds.min()
    memory = 2 * 85e6 / 2039e9 / seconds.min()
    least = 113 + 398 * compute + 299 * memory   # activations move bytes too
    assert least < gpu.prefill_w < 1.25 * least
    assert gpu.idle_w == 55
    energy = results.summary["energy"]
    assert energy["total_j"] == pytest.approx(energy_by_hand(results))
    # no joule is lost: requests, idle and unattributed are all of it
    assert energy["requests_j"] + energy["unattributed_j"] + energy["idle_j"] == pytest.approx(energy["total_j"])


def test_a_busy_machine_draws_no_more_than_its_limit():
    results = run(
        [{"kind": "rag", "name": "gpu", "device": "a100-80gb", "cores": 1, "max_batch": 4,
          "serves": {"embed": {**e5("a100-80gb"), "hardware": {**e5("a100-80gb")["hardware"], "model": "mistral-7b"}}}},
         {"kind": "rag", "name": "cpu", "device": "cpu-large", "serves": {"find": INDEX}},
         {"kind": "processing", "name": "cores", "serves": {"spell": {"kind": "per_item"}}}],
        EMBED_FIND, rate=1000.0,
    )
    gpu = next(info for info in results.record.clients if info.name == "gpu")
    assert 0.5 * 400 < gpu.prefill_w <= 400
    assert results.summary["clients"]["cpu"]["energy_j"] > 0
    assert results.summary["clients"]["cores"]["power_source"] == "none (no power given, and no device with a TDP)"


def test_tasks_outside_the_measured_range_are_counted():
    index = {"kind": "ivf-pq", "vectors": 10**9, "dim": 128, "nlist": 256, "pq_m": 16}
    measured = {"kind": "measured", "profile": "amd-epyc-zen5", "index": index}
    client = {"kind": "rag", "name": "cpu", "device": "cpu-large", "serves": {"find": measured}}
    stages = {"find": {"kind": "find"}, "answer": {"kind": "generate", "after": "find"}}
    assert run([client], stages, requests=7).summary["counters"]["tasks_out_of_range"] == 7
    client["serves"] = {"find": {**measured, "index": {**index, "vectors": 100_000}}}
    assert "tasks_out_of_range" not in run([client], stages, requests=7).summary["counters"]


def test_a_filter_can_be_a_model():
    """A prefill of a 2B model over the answer, as a service on a card of its own."""
    described = load_model("gemma-2-2b")
    assert described.num_params() == 2_614_341_888
    hardware = {"kind": "roofline", "model": "gemma-2-2b", "device": "l40s"}
    guard = {"kind": "processing", "name": "guard", "device": "l40s", "cores": 1,
             "serves": {"filter": {"kind": "encoder", "hardware": hardware, "max_tokens": 8192}}}
    filtering = {"kind": "filter", "after": "answer", "tokens": "prompt + output"}
    stages = {"answer": {"kind": "generate"}, "filter": filtering}
    results = run([guard], stages)
    rows = results.stages[results.stages["kind"] == "filter"]
    assert (rows["prompt_tokens"] == 420).all()
    least = 2 * 26 * described.layer_matrix_params * 420 / 362e12
    assert (rows["end_s"] - rows["start_s"] > least).all()
    assert np.isfinite(results.requests["energy_j"]).all()
