"""Fields and options of a graph without a reader are refused before the run, in one line that names the place."""

import copy
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import hermes
from hermes.clients import TaskClient, TaskClientConfig
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.core.stage import ServiceStage
from hermes.errors import InputError
from hermes.pipelines.builtin import GraphTemplate
from hermes.pipelines.checks import check_options, no_client_error
from hermes.pipelines.graph import Graph, GraphPipeline
from hermes.pipelines.nodes import GraphNodes, ServiceNode
from hermes.scenario import load_scenario
from hermes.scenario.build import build

IVF = {"kind": "ivf_pq", "vectors": 1_000_000, "nlist": 1000}
STAGES = {
    "find": {"kind": "retrieve"}, "answer": {"kind": "generate", "after": "find"},
}


def simulate(stages: dict[str, Any], **workload: Any) -> Any:
    return hermes.simulate({
        "workload": {
            "requests": 3, "pipeline": "p", "arrivals": {"kind": "poisson", "rate": 1.0},
            "lengths": {"kind": "fixed", "prompt": 50, "output": 2}, **workload,
        },
        "pipelines": {"p": {"stages": stages}},
        "clients": [
            {"name": "llm", "hardware": {"kind": "polynomial", "profile": "splitwise-2023-llama-2-70b-h100-tp8"},
             "memory": {"num_blocks": 2000}},
            {"kind": "rag", "name": "cpu", "device": "cpu-large",
             "serves": {"retrieve": IVF, "rewrite": {"kind": "remote_model"}}},
        ],
    })


def changed(node: str, **fields: Any) -> dict[str, Any]:
    stages = copy.deepcopy(STAGES)
    stages[node] |= fields
    return stages


def test_options_that_a_service_reads_are_taken():
    few, many = (simulate(changed("find", options={"nprobe": n, "top_k": 5})) for n in (1, 800))
    assert few.requests["e2e_s"].mean() < many.requests["e2e_s"].mean()
    simulate({"find": {"kind": "rewrite", "options": {"output_tokens": 0, "top_k": 1}}})


@pytest.mark.feature("Pipelines and services", "Static checks of pipelines")
@pytest.mark.parametrize(("stages", "message"), [
    (changed("find", options={"nprobes": 5}),
     r"pipelines\.p\.stages\.find\.options\.nprobes: expected one of nprobe, top_k that 'cpu' reads for 'retrieve', "
     r"found 'nprobes' \(did you mean 'nprobe'"),
    (changed("find", options={"nprobe": "lots"}), r"find\.options\.nprobe: expected an integer .*, found 'lots'"),
    (changed("find", options={"nprobe": True}), r"options\.nprobe: expected an integer"),
    (changed("find", options={"top_k": 0}), r"options\.top_k: expected an integer of at least 1, found 0"),
    (changed("find", options={"ef_search": 5}), r"options\.ef_search: expected one of nprobe, top_k"),
    (changed("answer", options={"temperature": 1.0}), r"answer\.options\.temperature: expected no options"),
    ({"again": {"kind": "loop", "stages": changed("find", options={"nprobes": 5})}},
     r"pipelines\.p\.stages\.again\.stages\.find\.options\.nprobes"),
    ({"again": {"kind": "loop", "stages": STAGES, "options": {"nprobe": 5}}}, r"again\.options"),
    (changed("answer", branches=0), r"answer\.branches: expected 1 to 1024 branches, found 0"),
    (changed("answer", branches="2 - 2"), r"answer\.branches: expected 1 to 1024 branches, found 0"),
    (changed("find", copies=2000), r"find\.copies: expected 0 to 1024 copies, found 2000"),
    (changed("answer", output=0), r"answer\.output: expected 1 to"),
    (changed("find", output=50), r"stages\.find\.output: expected no `output`: 'retrieve' reads .*tokens.*, found 50"),
    (changed("answer", kind="decode"), r"stages\.answer\.kind: expected `generate`: .*, found 'decode'"),
    (changed("answer", kind="generat", prompt=9), r"answer\.kind: expected 'generate' for a stage with `prompt`, f"),
    (changed("find", kind="retreive"), r"clients: expected a client that serves stage 'retreive', found clients for "
                                       r"decode, generate, prefill, retrieve, rewrite \(did you mean 'retrieve'\?\)"),
    (changed("find", kv="answer"), r"find\.kv: expected"),
    (changed("find", again=0.5, max_times=2), r"find\.max_times: expected no `max_times`"),
    (changed("answer", items=3), r"answer\.items: expected no `items`: 'generate' reads .*prompt.*, found 3"),
    (changed("answer", tokens="prompt + 1"), r"answer\.tokens: expected no `tokens`"),
    (changed("answer", weight=3), r"answer\.weight: expected `weight` with `choice` only, found 3"),
    (changed("find", input_bytes=100), r"find\.input_bytes: expected a node before it that sends them .*, found 100"),
    ({"twice": {"kind": "loop", "stages": STAGES, "again": 0.5}}, r"twice\.again: expected `again` with `max_times`"),
    ({"twice": {"kind": "loop", "stages": STAGES, "max_times": 2}}, r"twice\.max_times: expected .* with `again`"),
    ({"twice": {"kind": "loop", "stages": STAGES, "copies": 2}}, r"p\.stages\.twice\.copies: expected no `copies`"),
    ({"twice": {"kind": "loop", "stages": STAGES, "background": True}}, r"twice\.background: expected no"),
    ({"one": {"kind": "loop", "stages": changed("find", prompt=5)}}, r"stages\.one\.stages\.find\.prompt: expected no"),
    (changed("find", tokens="prompt + past"), r"workload\.contexts: expected contexts.*find\.tokens.*'p'"),
])
def test_unread_fields_and_options_are_refused(stages, message):
    with pytest.raises(InputError, match=message) as caught:
        simulate(stages)
    assert "\n" not in str(caught.value)


def test_a_graph_written_out_in_full_says_no_more_than_the_short_one():
    full = GraphNodes.model_validate({"stages": STAGES}).model_dump()["stages"]
    every = {"tokens": "prompt", "items": 1, "prompt": "prompt", "output": "output", "branches": 1, "again": None,
             "branch_spread": 0.0, "kv": "", "stages": {}, "max_times": None}   # as files had them once
    for stages in (full, {name: every | node for name, node in full.items()}):
        assert simulate(stages).requests.equals(simulate(STAGES).requests)


class Wrong(GraphTemplate):
    def nodes(self) -> dict[str, dict[str, Any]]:
        return {"find": {"kind": "retrieve", "prompt": 100}}


def test_templates_are_held_to_the_same():
    with pytest.raises(InputError, match=r"find\.prompt: expected no `prompt`"):
        Wrong().graph()


def test_past_is_known_with_contexts():
    simulate(changed("find", tokens="prompt + past"), contexts={
        "population": "shared", "keys": 5, "tokens": {"kind": "fixed", "tokens": 100}})


def test_a_built_in_pipeline_says_past_of_itself_or_of_the_workload():
    kv = "pipelines/kv-retrieval"
    with pytest.raises(InputError, match="contexts"):
        hermes.simulate(kv, overrides=["workload.requests=3", "workload.contexts=null"])
    hermes.simulate(kv, overrides=["workload.requests=3", "workload.contexts=null",
                                   "workload.pipeline={name: kv-retrieval, past: 500}"])


class Search(TaskClient):
    stages = frozenset({"search"})
    stage_options: ClassVar[dict[str, dict[str, int | None]]] = {"search": {"words": 0, "language": None}}

    def submit(self, stage: Any) -> None:
        self.serve(stage, 1.0)


def test_a_client_declares_what_it_reads():
    pipeline = GraphPipeline("p", Graph({"s": ServiceNode(kind="search", options={"words": 3, "language": "fr"})}), 0)
    check_options(pipeline, "p", lambda kind, model: [Search(Clock(), 0, "s", ClientEvents())])
    for options in ({"words": -1}, {"word": 1}):
        pipeline = GraphPipeline("p", Graph({"s": ServiceNode(kind="search", options=options)}), 0)
        with pytest.raises(InputError, match=r"p\.stages\.s\.options\.word"):
            check_options(pipeline, "p", lambda kind, model: [Search(Clock(), 0, "s", ClientEvents())])


def look_up(request: Any) -> Any:
    yield ServiceStage("search", options={"words": request.prompt_tokens, "language": "fr"})


@pytest.mark.parametrize(("declared", "message"), [
    ({"words": None, "language": None}, None),
    ({"words": None, "langauge": "fr"}, r"^clients: expected a client that reads option 'langauge' of 'search' stages, "
                                        r"which pipeline 'look_up' gives, found 's', which reads language, words$"),
    ({"words": -1}, r"look_up\.search\.options\.words: expected an integer of at least 0, found -1"),
])
def test_what_a_hand_written_pipeline_needs_read_is_checked_too(declared, message, monkeypatch):
    monkeypatch.setattr(look_up, "stages", ("search",), raising=False)
    monkeypatch.setattr(look_up, "stage_options", {"search": declared}, raising=False)
    if message is None:
        check_options(look_up, "look_up", lambda kind, model: [Search(Clock(), 0, "s", ClientEvents())])
        return
    with pytest.raises(InputError, match=message):
        check_options(look_up, "look_up", lambda kind, model: [Search(Clock(), 0, "s", ClientEvents())])


def test_a_scan_by_who_does_not_read_its_bytes_is_refused_before_the_run():
    item = {"kind": "per_item", "per_item": "1 ms"}
    server = load_scenario("studies/telerag/server").model_dump(mode="json")
    for client in server["clients"]:
        if "gpu_search" in client.get("serves", {}):
            client["serves"]["gpu_search"] = item
            name = client["name"]
    with pytest.raises(InputError, match=f"reads option 'scan_bytes' of 'gpu_search' stages.* found '{name}'"):
        build(load_scenario(server))


def test_a_stage_of_another_model_than_is_served_says_whose_there_is():
    with pytest.raises(InputError, match=r"serves stage 'generate' of model 'x', found 'generate' on 'one' \(y\)$"):
        raise no_client_error([SimpleNamespace(name="one", model="y", stages={"generate"})], "generate", "x")


def test_platforms_of_a_group_are_numbered():
    group = TaskClientConfig(name="c", count=3, platform="rack-{i//2}/{i}")
    assert group.platforms == ["rack-0/0", "rack-0/1", "rack-1/2"]
