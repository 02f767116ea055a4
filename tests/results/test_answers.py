"""The answer of a request: the tokens that its user reads, whatever else runs for it beside or afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from long_runs import count

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.core.record import STATUS_COMPLETED
from hermes.pipelines import PIPELINES, Generate, Pipeline
from hermes.results import Results
from hermes.results.files.export import write_results
from hermes.results.files.stored import open_run
from hermes.scenario import load_scenario

FOLDER = resource_dir("scenarios")
SHIPPED = sorted(path for path in FOLDER.rglob("*.yaml") if "sweeps" not in path.parts)
GPU = {"name": "gpu", "model": "llama-3.1-8b", "device": "h100-sxm", "memory": {"num_blocks": 4000},
       "frontend": {"before": 0.0, "after": 0.0}}


def started_and_left(request: Any) -> Pipeline:
    """A short generation that nothing waits for, which ends before the answer does."""
    request.start(Generate(30, 2))
    yield Generate(500, 40)


def left_until_after(request: Any) -> Pipeline:
    """A long generation that nothing waits for, begun after the answer and on its way when the request completes."""
    answer = request.start(Generate(500, 40))
    request.start(Generate(30, 400))
    yield answer


def asked_for_later(request: Any) -> Pipeline:
    """A generation that is started, ends, and is waited for afterwards: it is the answer."""
    answer = request.start(Generate(500, 4))
    yield Generate(30, 40)
    yield answer


def run_beside(request: Any) -> Pipeline:
    def other() -> Pipeline:
        yield Generate(30, 2)
        yield (Generate(30, 1, 0), Generate(30, 300, 0))

    request.beside(other())
    yield Generate(500, 40)


PARTS = (started_and_left, left_until_after, asked_for_later, run_beside)


@pytest.fixture(autouse=True)
def pipelines() -> Iterator[None]:
    for part in PARTS:
        PIPELINES.register(f"test_{part.__name__}")(part)
    yield
    for part in PARTS:
        PIPELINES.unregister(f"test_{part.__name__}")


def run(pipeline: Any, **more: Any) -> Results:
    return simulate({
        "seed": 1, "clients": [GPU], **more,
        "workload": {"requests": 20, "arrivals": {"kind": "poisson", "rate": 2}, "pipeline": pipeline,
                     "lengths": {"kind": "fixed", "prompt": 500, "output": 40}},
    })


def assert_in_order(results: Results) -> None:
    """No request has its first token after its end."""
    record, metrics = results.record, results.metrics
    answered = metrics.ttft_ns >= 0
    assert (record.status[answered] == STATUS_COMPLETED).all()
    assert (metrics.first_token_ns <= metrics.last_token_ns)[answered].all()
    late = np.flatnonzero(answered & (metrics.ttft_ns > metrics.e2e_ns))
    assert not len(late), f"requests {late[:5]} have a TTFT beyond their E2E"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(FOLDER)))
@pytest.mark.drawn
@pytest.mark.long(quick=30)
def test_no_first_token_comes_after_the_end(path: Path) -> None:
    requests = count(30, 300)
    workload = load_scenario(path).workload
    overrides = []
    for number, one in enumerate(workload):
        where = "workload" if len(workload) == 1 else f"workload.{number}"
        overrides.append(f"{where}.requests={min(one.requests or requests, requests)}")
        overrides += [f"{where}.duration=null"] if one.duration else []
    assert_in_order(simulate(path, overrides=overrides))


def test_golden_runs_of_metis_are_no_answers() -> None:
    """Every thirtieth query runs thirty mappers and a summary beside itself: they are still at it when the query is
    answered."""
    results = simulate(FOLDER / "studies" / "metis" / "base.yaml", overrides=["workload.arrivals.rate=0.4"])
    assert_in_order(results)
    latency = results.summary["latency"]
    assert latency["ttft_s"]["p99"] <= latency["e2e_s"]["p99"]
    record, member = results.record, results.answer.member
    golden = np.zeros(len(member), dtype=bool)
    golden[record.background] = True
    assert not (member & golden).any()
    beside = np.unique(record.stages["request"][golden])
    assert beside.tolist() == np.flatnonzero(~np.isnan(record.notes["golden_in"])).tolist()
    # each golden run is a lookup, 30 mappers and a summary
    assert np.bincount(record.stages["request"][golden])[beside].tolist() == [32] * len(beside)


@pytest.mark.parametrize(("name", "tokens"), [("started_and_left", [40]), ("left_until_after", [40]),
                                              ("asked_for_later", [4, 40]), ("run_beside", [40])])
def test_the_answer_is_what_the_request_waits_for(name: str, tokens: list[int], tmp_path: Path) -> None:
    results = run(f"test_{name}")
    assert_in_order(results)
    stages, member, metrics = results.record.stages, results.answer.member, results.metrics
    assert sorted({int(n) for n in stages["output_tokens"][member]}) == tokens
    assert (metrics.answer_tokens == sum(tokens)).all()
    assert ("background" in results.stages) == (name != "asked_for_later")
    # TTFT and TPOT are those of the answer alone
    first, last = np.full(20, 2**62), np.full(20, -1)
    np.minimum.at(first, stages["request"][member], stages["first_token_ns"][member])
    np.maximum.at(last, stages["request"][member], results.answer.last_token_ns[member])
    assert (metrics.ttft_ns == first - results.record.arrival_ns).all()
    assert metrics.tpot_s * (max(tokens) - 1) == pytest.approx((last - first) / 1e9, rel=1e-9)
    write_results(results, tmp_path / "run")
    stored = open_run(tmp_path / "run")
    assert stored.record.background.tolist() == results.record.background.tolist()
    assert (stored.metrics.ttft_ns == results.metrics.ttft_ns).all()


@pytest.mark.parametrize("background", [True, False])
def test_a_generation_of_a_graph_in_the_background_is_no_answer(background: bool) -> None:
    graph = {"stages": {
        "draft": {"kind": "generate", "prompt": 30, "output": 2, "background": background},
        "answer": {"kind": "generate", "prompt": "prompt", "output": "output"},
        "log": {"kind": "generate", "prompt": 100, "output": 300, "after": "answer", "background": True},
    }}
    results = run("graph", pipelines={"graph": graph})
    assert_in_order(results)
    assert (results.metrics.answer_tokens == (40 if background else 42)).all()
    assert (results.record.stages["output_tokens"][results.record.background] != 40).all()
    assert len(results.record.background) == (40 if background else 20)
