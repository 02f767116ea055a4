"""The scenario with everything in it: three models, five kinds of client, four pipelines, two racks."""

import gzip
import json
from collections import Counter

import pytest

from hermes import simulate
from hermes.results.figures.usage import client_names
from hermes.results.files.export import write_results

FEW = ["workload.0.requests=1840", "workload.1.requests=160"]


@pytest.fixture(scope="module")
def results():
    return simulate("pipelines/fleet", overrides=FEW)


@pytest.mark.long
def test_it_is_what_it_says(results):
    record = results.record
    assert results.summary["requests"]["completed"] == 2000
    assert {c.model for c in record.clients if c.kind == "llm"} == {"llama-3.1-70b", "llama-3.1-8b", "qwen3-32b"}
    assert {(c.kind, c.role) for c in record.clients} >= {
        ("llm", "prefill"), ("llm", "decode"), ("llm", "both"), ("rag", "service"), ("processing", "service"),
        ("kv_retrieval", "service"),
    }
    assert results.requests["pipeline"].nunique() == 4
    racks = {name.split(" -> ")[0] for name in results.links["name"] if name.endswith(" -> spine")}
    assert len(racks) == 2


def test_every_request_takes_its_pipeline_on_clients_of_its_model(results):
    stages = results.stages.merge(results.requests[["request", "pipeline", "model"]], on="request")
    wanted = {
        "plain": {"prefill", "decode"}, "rag": {"embed", "retrieve", "generate"},
        "kv-retrieval": {"fetch_kv", "generate", "store_kv"}, "filtered": {"generate", "filter"},
    }
    for (_, pipeline), mine in stages.groupby(["request", "pipeline"]):
        assert set(mine["kind"]) == wanted[pipeline]
        assert mine["kind"].is_unique
    served = dict(zip(results.clients["name"], results.clients["model"], strict=True))
    llm = stages[stages["kind"].isin(["prefill", "decode", "generate"])]
    assert (llm["client"].map(served) == llm["model"]).all()


@pytest.mark.long
def test_the_trace_shows_each_stage_of_the_first_thousand_requests_on_its_client(results, tmp_path):
    write_results(results, tmp_path, trace_events=200_000)
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    shown = Counter(
        (e["args"]["request"], process[e["pid"]]) for e in events if e["ph"] == "b" and e.get("cat") == "stage"
    )
    stages = results.stages
    first = stages[stages["request"].isin(results.requests.sort_values("arrival_s")["request"].head(1000))]
    expected = Counter(zip(first["request"].tolist(), first["client"].tolist(), strict=True))
    assert len(expected) > 2000
    missing = expected - shown
    assert not missing, missing
    assert set(client_names(results.record)) == set(process.values()) - {"requests", "network"}
