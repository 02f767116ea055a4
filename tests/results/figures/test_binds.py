"""What binds: a small scenario made to bind on each resource, and one in which nothing does."""

from __future__ import annotations

import re
from typing import Any

import pytest

import hermes
from hermes.core.record import STATUS_REJECTED
from hermes.results import Results
from hermes.results.brief import parts
from hermes.results.layout import to_text

HARDWARE = {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"}


def run(rate: float | None = 40.0, *, requests: int = 400, lengths: tuple[int, int] = (200, 40), count: int = 1,
        **client: Any) -> dict[str, Any]:
    arrivals = {"kind": "at_once"} if rate is None else {"kind": "poisson", "rate": rate}
    summary = hermes.simulate({
        "workload": {"requests": requests, "arrivals": arrivals,
                     "lengths": {"kind": "fixed", "prompt": lengths[0], "output": lengths[1]}},
        "clients": [{"name": "llm", "count": count, "hardware": HARDWARE, "memory": {"num_blocks": 50_000}, **client}],
    }).summary
    found: dict[str, Any] = summary["binds"]
    return found


def test_arrivals() -> None:
    """An engine that is always busy, with room for more."""
    found = run(6.0)
    assert (found["what"], found["where"], found["all"]) == ("arrivals", None, {})
    assert found["groups"]["llm"]["stepping_share"] > 0.95
    assert found["groups"]["llm"]["what"] == "arrivals"


@pytest.mark.feature("Results, sweeps, studies", "What binds, at engines and gateways; utilisation")
@pytest.mark.parametrize(("what", "scenario"), [
    ("slots", {"rate": 8.0, "scheduler": {"kind": "chunked", "max_num_seqs": 4}}),
    ("slots", {"rate": 8.0, "scheduler": {"kind": "static", "max_num_seqs": 4}}),
    ("KV memory", {"rate": 8.0, "memory": {"num_blocks": 64}}),
    ("KV memory", {"rate": 8.0, "memory": {"num_blocks": 64}, "scheduler": {"kind": "continuous"}}),
    ("compute", {"rate": 40.0, "lengths": (1500, 4)}),
    ("compute", {"rate": 40.0, "lengths": (1500, 4),
                 "scheduler": {"kind": "continuous", "max_num_batched_tokens": 2048}}),
    ("nothing", {"rate": None, "requests": 20, "lengths": (100, 300)}),
])
def test_each_resource(what: str, scenario: dict[str, Any]) -> None:
    found = run(**scenario)
    assert found["what"] == what, found
    if what != "nothing":
        assert found["where"] == "llm"
        assert found["share"] >= 0.5
        assert list(found["all"]) == [f"{what} llm"]
    assert found["groups"]["llm"]["what"] == what


def test_memory_of_the_clients_that_kv_moves_to() -> None:
    """Prompts are computed at once, and wait to move: the decode clients have no room for them."""
    client = {"hardware": HARDWARE, "memory": {"num_blocks": 50_000, "kv_bytes_per_token": 1000}}
    small = {**client, "memory": {"num_blocks": 70, "kv_bytes_per_token": 1000}}
    found = hermes.simulate({
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 8.0},
                     "lengths": {"kind": "fixed", "prompt": 200, "output": 40}},
        "clients": [{"name": "p", "role": "prefill", **client}, {"name": "d", "role": "decode", **small}],
    }).summary["binds"]
    assert (found["what"], found["where"]) == ("KV memory", "d")
    assert found["groups"]["p"]["what"] == "arrivals"


def test_alike_clients_are_one_group() -> None:
    found = run(16.0, count=3, scheduler={"kind": "chunked", "max_num_seqs": 2})
    assert list(found["groups"]) == ["llm"]
    assert found["groups"]["llm"]["clients"] == 3
    assert (found["what"], found["where"]) == ("slots", "llm")


# -- causes ------------------------------------------------------------------------------------------------------------


def test_adapter_slots_at_little_memory() -> None:
    """Sequences of other adapters wait while blocks and slots are free."""
    found = hermes.simulate({
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 30.0}, "adapters": {"count": 40},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 100}},
        "clients": [{"name": "llm", "model": "llama-3.1-8b", "hardware": HARDWARE, "memory": {"num_blocks": 40_000},
                     "scheduler": {"kind": "chunked", "max_loras": 2}, "allow_mismatch": True}],
    }).summary
    assert found["clients"]["llm"]["kv_peak_share"] < 0.1
    assert (found["binds"]["what"], found["binds"]["where"]) == ("adapter slots", "llm")


@pytest.mark.long
@pytest.mark.parametrize(("rate", "places"), [(15.0, 4), (21.0, 8)])
def test_adapter_slots_bind_where_twice_of_them_serve_the_load(rate: float, places: int) -> None:
    """All requests of the adapters in a step run, however fast it is; the load is served (15/s), or would be (21/s)."""
    found = hermes.simulate({
        "workload": {"requests": 2000, "arrivals": {"kind": "poisson", "rate": rate},
                     "adapters": {"count": 20, "fraction": 0.9},
                     "lengths": {"kind": "fixed", "prompt": 900, "output": 200}},
        "clients": [{"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm", "adapter_bytes": "170 MB",
                     "scheduler": {"kind": "chunked", "max_loras": places}}],
    }).summary["binds"]
    assert (found["what"], found["where"]) == ("adapter slots", "llm")


def long_answers(blocks: int) -> dict[str, Any]:
    return hermes.simulate({
        "workload": {"requests": 1500, "arrivals": {"kind": "poisson", "rate": 0.6},
                     "lengths": {"kind": "independent", "prompt": {"kind": "lognormal", "median": 250, "sigma": 0.6},
                                 "output": {"kind": "lognormal", "median": 3130, "sigma": 0.7}}},
        "clients": [{"name": "llm", "model": "qwen3-32b", "device": "h100-sxm", "parallel": {"tp": 2},
                     "memory": {"num_blocks": blocks}}],
        "slo": {"ttft": 1.0},
    }).summary


@pytest.mark.long
def test_a_queue_that_twice_the_blocks_end_waits_for_kv_memory() -> None:
    """Steps grow with the batch; the load is served, and those that wait are fewer than those that run."""
    few = long_answers(16_000)
    assert few["headline"]["stable"]
    assert few["requests"]["preempted"]
    assert not few["slo"]["pass"]
    assert (few["binds"]["what"], few["binds"]["where"]) == ("KV memory", "llm")
    assert long_answers(32_000)["slo"]["pass"]


def test_requests_that_never_fit_kv_memory_are_named() -> None:
    """The others are served as they come; a no queue limit and no patience turns any away."""
    summary = hermes.simulate({
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 4.0},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 100, "max": 900},
                                 "output": {"kind": "uniform", "min": 20, "max": 20}}},
        "clients": [{"name": "llm", "count": 2, "hardware": HARDWARE, "memory": {"num_blocks": 40}}],
    }).summary
    share = summary["requests"]["rejected"] / 300
    assert 0.05 < share < 0.95
    away = {"what": "KV memory", "where": "llm", "share": share}
    assert summary["binds"]["turned_away"] == away
    assert {key: summary["binds"][key] for key in away} == away
    text = " ".join(to_text(parts(summary, {})).split())
    assert f"binds KV memory of llm: turns {share:.0%} of the requests away, which never fit it" in text
    assert re.search(r"e\.g\. llm-\d: needs \d+ KV blocks of 16 tokens for \d+ prompt and 20 output tokens, ", text)


def pipeline(rerank_s: float, seqs: int = 64, rate: float = 8.0, **slo: Any) -> dict[str, Any]:
    return hermes.simulate({
        "workload": {"requests": 400, "arrivals": {"kind": "poisson", "rate": rate}, "pipeline": "steps",
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 20}},
        "pipelines": {"steps": {"stages": {"rerank": {"kind": "rerank"},
                                           "answer": {"kind": "generate", "after": "rerank"}}}},
        "clients": [
            {"kind": "rag", "name": "reranker", "cores": 1, "max_batch": 4,
             "serves": {"rerank": {"kind": "per_item", "per_item": rerank_s}}},
            {"name": "llm", "hardware": HARDWARE, "memory": {"num_blocks": 50_000},
             "scheduler": {"kind": "chunked", "max_num_seqs": seqs}}],
        "slo": slo,
    }).summary


def test_a_reranker_with_a_growing_queue_goes_before_the_llm_after_it() -> None:
    found = pipeline(0.2)["binds"]
    assert (found["what"], found["where"]) == ("compute", "reranker")
    assert found["groups"]["llm"]["what"] == "arrivals"


def test_the_growing_queue_furthest_downstream_binds() -> None:
    """Both are overloaded: a faster reranker would only feed the LLM's queue."""
    found = pipeline(0.2, seqs=2, rate=40.0)["binds"]
    assert (found["what"], found["where"]) == ("slots", "llm")
    assert found["groups"]["reranker"]["what"] != "arrivals"


def test_a_second_saturated_stage_comes_after_the_first() -> None:
    found = pipeline(0.13, seqs=2)
    binds = found["binds"]
    assert (binds["what"], binds["where"]) == ("slots", "llm")
    assert (binds["then"]["what"], binds["then"]["where"]) == ("compute", "reranker")
    assert binds["then"]["share"] > 0.9
    assert "; then: compute of reranker, " in " ".join(to_text(parts(found, {})).split())
    assert "then" not in pipeline(0.2)["binds"]   # the LLM has room; the cores of the reranker are no other place


def test_a_group_whose_queue_grows_is_named_though_the_run_goes_on_without_it() -> None:
    """Two groups are overloaded for 40 s; one drains for so long that the other is idle most of the run."""
    def of(name: str, rate: int) -> dict[str, Any]:
        return {"name": name, "model": name, "requests": 40 * rate, "arrivals": {"kind": "poisson", "rate": rate},
                "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}}
    binds = hermes.simulate({
        "workload": [of("llama-3.1-8b", 60), of("llama-3.1-70b", 12)],
        "clients": [{"name": "small", "model": "llama-3.1-8b", "device": "h100-sxm"},
                    {"name": "large", "model": "llama-3.1-70b", "device": "h100-sxm", "parallel": {"tp": 4}}],
    }).summary["binds"]
    assert (binds["where"], binds["then"]["where"]) == ("small", "large")
    assert binds["groups"]["large"]["what"] == binds["then"]["what"] == "compute"


def test_a_full_batch_that_the_hardware_cannot_grow_is_compute() -> None:
    """Slots stop admission, and a step of twice the batch takes nearly twice as long."""
    found = run(60.0, requests=1500, lengths=(200, 300), scheduler={"kind": "chunked", "max_num_seqs": 512})
    assert found["groups"]["llm"]["waiting"]["slots"] > 0.5
    assert (found["what"], found["where"]) == ("compute", "llm")


def test_a_small_token_budget_is_named() -> None:
    found = run(40.0, lengths=(400, 4), scheduler={"kind": "chunked", "max_num_batched_tokens": 32, "max_num_seqs": 32})
    assert (found["what"], found["where"]) == ("token budget", "llm")


def test_a_queue_limit_binds_where_the_engine_has_room() -> None:
    found = run(40.0, scheduler={"kind": "chunked", "max_num_queued_reqs": 4})
    assert (found["what"], found["where"]) == ("queue limit", "llm")
    assert 0.05 < found["share"] < 1


def impatient(rate: float, **limits: Any) -> Results:
    return hermes.simulate({
        "workload": {"requests": 800, "arrivals": {"kind": "poisson", "rate": rate}, "patience": {"first_token": 2.0},
                     "lengths": {"kind": "fixed", "prompt": 400, "output": 100}},
        "clients": [{"name": "llm", "model": "llama-3.1-8b", "device": "l40s",
                     "scheduler": {"kind": "chunked", "max_num_seqs": 8, **limits}}],
    })


def test_patience_bounds_the_queue_of_an_overload() -> None:
    """A full engine binds; no queue grows, as clients leave it; and latencies are of those that stayed."""
    results = impatient(12.0)
    summary = results.summary
    gone = summary["requests"]["rejected"]
    assert 0.2 * 800 < gone < 0.8 * 800
    assert (summary["binds"]["what"], summary["binds"]["where"]) == ("slots", "llm")
    assert summary["binds"]["bounded_by"] == {"what": "patience", "share": gone / 800}
    headline = summary["headline"]
    assert (headline["window"], headline["stable"]) == ("steady", True)
    assert headline["served_per_s"] == pytest.approx(headline["offered_per_s"] * (800 - gone) / 800, rel=0.1)
    assert summary["settling"]["settled"]
    text = " ".join(to_text(parts(summary, {})).split())
    assert f"{800 - gone} completed, {gone} gave up in" in text
    assert f"gave up {gone}: no first token within 2 s " in text
    assert f"latencies are those of the {800 - gone} that were answered" in text
    assert f"patience bounds the queue, {gone / 800:.0%} of the requests are given up" in text
    assert "the queue grows" not in text


def test_prompts_that_were_computed_for_clients_that_gave_up_are_counted() -> None:
    """Prompts of 4,000 tokens take longer together than the clients wait: some are given up while they are computed."""
    results = hermes.simulate({
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 12.0}, "patience": {"first_token": 2.0},
                     "lengths": {"kind": "fixed", "prompt": 4000, "output": 20}},
        "clients": [{"name": "llm", "model": "llama-3.1-8b", "device": "l40s"}],
    })
    stages, record = results.stages, results.record
    begun = stages[(record.status[stages.request] == STATUS_REJECTED) & (stages.start_s >= 0)].request.nunique()
    counts = results.summary["requests"]
    assert 0.1 * counts["rejected"] < begun < counts["rejected"]
    assert counts["gave_up_computed"] == begun
    assert f"{begun} gave up after their prompt was computed, in full or in part" in to_text(parts(results.summary, {}))


def test_patience_that_nobody_loses_bounds_nothing() -> None:
    summary = impatient(1.0).summary
    assert summary["requests"]["rejected"] == 0
    assert "bounded_by" not in summary["binds"]
    assert "answered" not in to_text(parts(summary, {}))


def test_a_queue_limit_bounds_the_queue_of_a_full_engine() -> None:
    summary = impatient(12.0, max_num_queued_reqs=16).summary
    assert summary["binds"]["what"] == "slots"
    assert summary["binds"]["bounded_by"]["what"] == "queue limit"
    assert summary["headline"]["stable"]


def test_the_front_end_thread() -> None:
    found = run(20.0, request_overhead={"mode": "overlapped", "generate": 0.1})
    assert (found["what"], found["where"]) == ("front end", "llm")


def test_a_missed_latency_names_what_it_is_made_of() -> None:
    """Nothing stops admission; steps are longer than the TPOT allows."""
    summary = hermes.simulate({
        "workload": {"requests": 400, "arrivals": {"kind": "poisson", "rate": 4.0},
                     "lengths": {"kind": "fixed", "prompt": 400, "output": 40}},
        "clients": [{"name": "llm", "hardware": HARDWARE, "memory": {"num_blocks": 50_000}}],
        "slo": {"tpot": 0.02},
    }).summary
    nearest = summary["nearest_limit"]
    assert nearest["metric"] == "tpot"
    assert nearest["share"] == pytest.approx(nearest["value_s"] / 0.02)
    assert sum(nearest["parts"].values()) == pytest.approx(1, abs=0.02)
    binds = summary["binds"]
    assert (binds["what"], binds["where"], binds["of"]) == ("compute", "llm", "TPOT p99")


def test_parts_of_a_ttft() -> None:
    """Most of a late first token's time is the reranker's queue; the parts add up to the latencies."""
    nearest = pipeline(0.2, ttft=1.0)["nearest_limit"]
    assert nearest["metric"] == "ttft"
    assert next(iter(nearest["parts"])) == "queue reranker"
    assert nearest["parts"]["queue reranker"] > 0.9
    assert sum(nearest["parts"].values()) == pytest.approx(1, abs=0.02)


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "client"), [
    ("slots", {"scheduler": {"kind": "chunked", "max_num_seqs": 4}}),
    ("slots", {"scheduler": {"kind": "continuous", "max_num_seqs": 4}}),
    ("slots", {"scheduler": {"kind": "mixed", "max_num_seqs": 4}}),
    ("slots", {"scheduler": {"kind": "static", "max_num_seqs": 4}}),
    ("slots", {"scheduler": {"kind": "sglang", "max_running_requests": 4}}),
    ("KV memory", {"memory": {"num_blocks": 64}}),
    ("KV memory", {"memory": {"num_blocks": 64}, "scheduler": {"kind": "continuous"}}),
    ("KV memory", {"memory": {"num_blocks": 64}, "scheduler": {"kind": "mixed"}}),
    ("KV memory", {"memory": {"num_blocks": 64}, "scheduler": {"kind": "static"}}),
    ("KV memory", {"memory": {"num_blocks": 1024}, "scheduler": {"kind": "sglang"}}),
    ("token budget", {"scheduler": {"kind": "chunked", "max_num_batched_tokens": 8, "max_num_seqs": 8}}),
])
def test_runs_record_why_sequences_wait(reason: str, client: dict[str, Any]) -> None:
    results = hermes.simulate({
        "workload": {"requests": 200, "arrivals": {"kind": "poisson", "rate": 20.0},
                     "lengths": {"kind": "fixed", "prompt": 200, "output": 40}},
        "clients": [{"name": "llm", "hardware": HARDWARE, "memory": {"num_blocks": 50_000}, **client}],
    })
    runs = results.runs
    waited = runs.groupby("stopped", observed=True)["stopped_s"].sum()
    assert waited.get("none", 0.0) == 0
    assert waited.idxmax() == reason
    assert (runs["stopped_s"] <= runs["end_s"] - runs["start_s"] + 1e-9).all()
