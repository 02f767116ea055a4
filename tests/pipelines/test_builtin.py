"""The scenarios of the built-in pipelines run, and every stage runs in order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hermes
from hermes.pipelines import PIPELINES, GraphTemplate
from hermes.pipelines.mixing import graph_of, pipeline_from

SCENARIOS = ["guarded", "kv-retrieval", "rag", "rag-disaggregated", "rag-reasoning", "reward-ranked"]


@pytest.fixture(scope="module")
def ran() -> dict[str, Any]:
    """Results of each scenario with few requests, by name."""
    found = {}
    for name in [*SCENARIOS, "mixed"]:
        requests = 80 if name == "mixed" else 12
        found[name] = hermes.simulate(f"pipelines/{name}", overrides=[f"workload.requests={requests}"])
    return found


def order(results: Any, request: int) -> list[tuple[str, int, int]]:
    """(kind, assigned, end) of a request's stages, by when they were assigned; a decode is part of its prefill.

    A stage ends when its client has handed on its result: an LLM client's front end takes time after its last step.
    """
    record, out = results.record, []
    rows = np.flatnonzero(record.stages["request"] == request)
    for row in rows[np.argsort(record.stages["assigned_ns"][rows], kind="stable")].tolist():
        kind = record.stage_kinds[int(record.stages["kind"][row])]
        client = int(record.stages["client"][row])
        after = record.after_ns[client] if record.after_ns else 0
        out.append((kind, int(record.stages["assigned_ns"][row]), int(record.stages["end_ns"][row]) + after))
    return out


def assert_chain(results: Any, kinds: list[str]) -> None:
    """Each request has just these stages, each handed over when the one before was done."""
    record = results.record
    assert (record.status == 1).all(), record.reject_reasons
    for request in range(len(record.arrival_ns)):
        found = order(results, request)
        assert [kind for kind, _, _ in found] == kinds
        for (_, _, before), (kind, assigned, _) in pairwise(found):
            assert assigned == before or kind == "decode"


@pytest.mark.feature("Pipelines and services", (
    "Built-in pipelines `plain`, `embedding`, `rag`, `rag-disaggregated`, `rag-reasoning`, `kv-retrieval`, "
    "`guarded`, `reward-ranked`"))
def test_every_built_in_has_a_scenario_and_a_graph():
    entries = {name: PIPELINES.get(name) for name in PIPELINES}
    templates = [name for name, entry in entries.items() if isinstance(entry, type) and issubclass(entry, GraphTemplate)
                 and entry.__module__.startswith("hermes.")]
    assert templates == SCENARIOS
    for name in templates:
        assert graph_of(pipeline_from(PIPELINES.get(name), name, {}, 0)).nodes


def test_rag(ran):
    assert_chain(ran["rag"], ["embed", "retrieve", "generate"])
    stages, requests = ran["rag"].stages, ran["rag"].requests
    answers = stages[stages["kind"] == "generate"].sort_values("request")
    assert (answers["prompt_tokens"].to_numpy() == requests["prompt_tokens"].to_numpy() + 20 * 512).all()
    assert ran["rag"].transfers["bytes"].tolist() == [20 * 512 * 4] * 12   # the passages' text, and nothing else


def test_rag_disaggregated(ran):
    results = ran["rag-disaggregated"]
    record = results.record
    assert (record.status == 1).all()
    for request in range(12):
        kinds = [kind for kind, _, _ in order(results, request)]
        assert kinds == ["embed", "retrieve", "rerank", "prefill", "decode"]
    stages = results.stages.set_index("request")
    served = {kind: set(rows["client"]) for kind, rows in stages.groupby("kind", observed=True)}
    assert served["embed"] == {"embedder"}
    assert served["rerank"] == {"reranker"}
    assert served["retrieve"] <= {"searcher-0", "searcher-1"}
    moved = results.transfers.groupby("bytes")["request"].count()
    assert moved[4096 * 4] == moved[50 * 512 * 4] == moved[20 * 512 * 4] == 12


def test_kv_retrieval(ran):
    results = ran["kv-retrieval"]
    record = results.record
    for request in range(12):
        fetch, answer, keep = order(results, request)
        assert [fetch[0], answer[0], keep[0]] == ["fetch_kv", "generate", "store_kv"]
        assert answer[1] == fetch[2]
        assert keep[1] == answer[2] == record.finish_ns[request], "complete without the write-back"


def test_rag_reasoning(ran):
    results = ran["rag-reasoning"]
    requests, stages = results.requests, results.stages
    for request in range(12):
        kinds = [kind for kind, _, _ in order(results, request)]
        assert kinds[:2] == ["embed", "retrieve"]
        assert set(kinds[2:]) == {"generate"}
    paths = stages[stages["kind"] == "generate"].groupby("request")["output_tokens"].sum()
    assert (paths.to_numpy() == 4 * 8 * requests["output_tokens"].to_numpy()).all()
    for request, finish in enumerate(results.record.finish_ns.tolist()):
        assert finish == max(end for _, _, end in order(results, request)), "it ends with its last path"


def test_guarded(ran):
    results = hermes.simulate("pipelines/guarded", overrides=["workload.requests=200"])
    rounds = []
    for request in range(200):
        found = order(results, request)
        kinds = [kind for kind, _, _ in found]
        attempts = kinds.count("filter")
        rounds.append(attempts)
        assert kinds.count("generate") == kinds.count("word_lookup") == attempts
        assert (kinds[0], kinds[-1]) == ("tokenize", "detokenize")
        ends = [found[0][2]]
        for i in range(1, len(found) - 1, 3):   # an answer, and the two that read it side by side
            answer, *readers = found[i : i + 3]
            assert answer[:2] == ("generate", ends[-1])
            assert {kind for kind, _, _ in readers} == {"filter", "word_lookup"}
            assert all(assigned == answer[2] for _, assigned, _ in readers)
            ends.append(max(end for _, _, end in readers))
        assert found[-1][1] == ends[-1]
    assert set(rounds) == {1, 2}
    assert rounds.count(2) < 25, "one in twenty is refused"
    read = results.stages[results.stages["kind"] == "filter"]
    asked = results.requests.loc[read["request"]]
    assert (read["prompt_tokens"].to_numpy() == (asked["prompt_tokens"] + asked["output_tokens"]).to_numpy()).all()


def test_guarded_that_refuses_nothing_filters_beside_the_lookup():
    overrides = ["workload.requests=5", "workload.pipeline={name: guarded}"]
    results = hermes.simulate("pipelines/guarded", overrides=overrides)
    for request in range(5):
        times = {kind: (assigned, end) for kind, assigned, end in order(results, request)}
        assert times["filter"][0] == times["word_lookup"][0] == times["generate"][1]
        assert times["detokenize"][0] == max(times["filter"][1], times["word_lookup"][1])


def test_guarded_moves_the_same_bytes_whether_it_may_refuse_or_not():
    """The text that the lookup and the filter read comes from the LLM client, even in a loop."""
    moved = []
    for share in ("0", "0.000000000001"):
        overrides = ["workload.requests=20", f"workload.pipeline={{name: guarded, refused: {share}}}"]
        transfers = hermes.simulate("pipelines/guarded", overrides=overrides).record.transfers
        moved.append({name: column.tolist() for name, column in transfers.items()})
    assert moved[0] == moved[1]
    assert len(moved[0]["bytes"]) == 40


def test_reward_ranked(ran):
    results = ran["reward-ranked"]
    for request in range(12):
        found = order(results, request)
        answers = sorted(end for kind, _, end in found if kind == "generate")
        scored = sorted(assigned for kind, assigned, _ in found if kind == "score")
        assert len(answers) == 4
        assert scored == answers, "each is scored as soon as it is there"
        assert results.record.finish_ns[request] == max(end for _, _, end in found)


def test_mixed(ran):
    requests = ran["mixed"].requests
    assert (requests["status"] == "completed").all()
    assert set(zip(requests["pipeline"], requests["model"], strict=True)) == {
        ("plain", "llama-3.1-8b"), ("rag", "llama-3.1-8b"), ("kv-retrieval", "qwen3-32b"), ("guarded", "llama-3.1-70b"),
    }


@pytest.mark.parametrize(("router", "together"), [("locality", True), ("least_loaded", False)])
def test_locality_brings_the_search_to_where_the_question_was_embedded(router, together):
    overrides = ["workload.requests=12", "clients.0.count=2", "routers.embed={kind: round_robin}",
                 f"routers.retrieve={{kind: {router}}}"]
    stages = hermes.simulate("pipelines/rag", overrides=overrides).stages
    on = {kind: stages[stages["kind"] == kind].set_index("request")["client"].astype(str).sort_index()
          for kind in ("embed", "retrieve")}
    assert set(on["embed"]) == {"cpu-0", "cpu-1"}
    assert (on["embed"] == on["retrieve"]).all() == together
