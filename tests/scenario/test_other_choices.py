"""What other choices of a router would have given a request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from hermes.api import run_built, simulate
from hermes.cli import main
from hermes.config import ConfigModel
from hermes.core.client import Client
from hermes.core.router import RouterContext
from hermes.core.stage import Stage
from hermes.errors import InputError
from hermes.results.layout import WIDTH
from hermes.results.results import Results
from hermes.routing.base import ROUTERS
from hermes.routing.decisions import Decisions
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.scenario.other_choices import Choice, other_choices

Data = dict[str, Any]

SCENARIO: Data = {
    "seed": 2,
    "clients": [{"name": "llm", "count": 3, "model": "llama-3.1-8b", "device": "h100-sxm"}],
    "router": {"kind": "round_robin"},
    "workload": [{
        "name": "main", "requests": 60, "arrivals": {"kind": "poisson", "rate": 30},
        "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 500, "max": 5000},
                    "output": {"kind": "uniform", "min": 2, "max": 60}},
        "prefixes": {"groups": 6, "tokens": 480}, "sessions": {"count": 12}}],
}


class ByList(ConfigModel):
    """A router that sends the n-th stage to the n-th client of a list."""

    kind: Literal["test_by_list"] = "test_by_list"
    clients: list[int]

    def build(self, context: RouterContext) -> _ByList:
        return _ByList(self.clients, context)


class _ByList:
    def __init__(self, clients: list[int], context: RouterContext) -> None:
        self._left, self._candidates = iter(clients), context.candidates

    def choose(self, stage: Stage) -> Client:
        return self._candidates[next(self._left)]


@pytest.fixture(autouse=True)
def _by_list() -> Iterator[None]:
    ROUTERS.register("test_by_list")(ByList)
    try:
        yield
    finally:
        ROUTERS.unregister("test_by_list")


def tried(data: Data, request: int, most: int = 2) -> tuple[Results, list[Choice]]:
    loaded = load_scenario(data)
    return other_choices(lambda decisions: run_built(loaded, build(loaded, decisions), time.perf_counter()),
                         request, most)


@pytest.mark.feature("Routing and networks", (
    "`hermes explain --request N --alternatives K`: what a router compared, and what other clients would have "
    "given a request"))
@pytest.mark.parametrize("request_", [0, 17, 59])
def test_another_choice_gives_what_a_router_gives_that_makes_it(request_: int) -> None:
    results, (choice,) = tried(SCENARIO, request_)
    usual = [number % 3 for number in range(60)]
    assert choice.decision.chosen == f"llm-{usual[request_]}"
    assert choice.outcomes[0].ttft_s == results.requests["ttft_s"][request_]
    assert len({outcome.client for outcome in choice.outcomes}) == 3
    for outcome in choice.outcomes:
        sent = usual.copy()
        sent[request_] = int(outcome.client.removeprefix("llm-"))
        other = simulate({**SCENARIO, "router": {"kind": "test_by_list", "clients": sent}}).requests
        assert (outcome.ttft_s, outcome.e2e_s) == (other["ttft_s"][request_], other["e2e_s"][request_])
        assert outcome.cached_tokens == other["cached_tokens"][request_]
        change = (other["ttft_s"] - results.requests["ttft_s"]).drop(request_).mean()
        assert outcome.others_ttft_s == pytest.approx(change, abs=1e-15)


@pytest.mark.parametrize("router", [
    {"kind": "llm_d"}, {"kind": "llm_d", "caches": {"kind": "events"}, "scorers": {"precise_prefix": 2, "prefix": 0}},
    {"kind": "dynamo_kv"}, {"kind": "aibrix_prefix"}, {"kind": "production_stack", "by": "prefix"},
    {"kind": "sglang_cache_aware"}, {"kind": "predicted"},
], ids=lambda router: "-".join(str(value) for value in router.values()))
def test_a_router_tells_by_what_it_decides(router: Data) -> None:
    _, (choice,) = tried({**SCENARIO, "router": router}, 40, most=1)
    decision = choice.decision
    assert decision.figures
    assert all(len(values) == len(decision.among) == 3 for values in decision.figures.values())


def test_the_highest_score_is_the_sum_of_its_parts_and_wins() -> None:
    _, (choice,) = tried({**SCENARIO, "router": {"kind": "llm_d"}}, 40, most=1)
    figures = choice.decision.figures
    assert list(figures) == ["score", "queue", "kv", "prefix"]
    for place, score in enumerate(figures["score"]):
        assert score == pytest.approx(sum(figures[name][place] for name in ("queue", "kv", "prefix")))
    assert figures["score"][choice.decision.among.index(choice.decision.chosen)] == max(figures["score"])


def test_a_router_notes_the_client_that_got_the_stage() -> None:
    """A session that was sent elsewhere once stays there."""
    data = {**SCENARIO, "router": {"kind": "session"}}
    loaded = load_scenario(data)
    table = simulate(data).requests
    session = int(table["session"].mode()[0])
    first, *later = table.index[table["session"] == session].tolist()
    seen = Decisions(first)
    run_built(loaded, build(loaded, seen), time.perf_counter())
    other = seen.made[0].best_others()[0]
    found = run_built(loaded, build(loaded, Decisions(first, {0: other})), time.perf_counter())
    clients = found.stages.set_index("request")["client"]
    assert later
    assert [clients[request] for request in (first, *later)] == [other] * (1 + len(later))


def test_both_phases_are_decisions() -> None:
    clients = [{**SCENARIO["clients"][0], "name": role, "count": 2, "role": role} for role in ("prefill", "decode")]
    data = {**SCENARIO, "clients": clients}
    first, then = ({f"{role}-0", f"{role}-1"} for role in ("prefill", "decode"))
    for router, names in (({"kind": "least_loaded"}, [first, then]),
                          ({"kind": "llm_d", "disaggregation": {}}, [then, first])):
        _, choices = tried({**data, "router": router}, 20)
        assert [{outcome.client for outcome in choice.outcomes} for choice in choices] == names


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(InputError, match="0 to 59"):
        tried(SCENARIO, 60)
    one = {**SCENARIO, "clients": [{**SCENARIO["clients"][0], "count": 1}]}
    with pytest.raises(InputError, match="several clients to choose from"):
        tried(one, 3)


def test_explain_prints_them_for_a_scenario_and_for_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run = str(tmp_path / "s.yaml"), str(tmp_path / "run")
    Path(file).write_text(json.dumps({**SCENARIO, "router": {"kind": "llm_d"}}))
    assert not main(["run", file, "-o", run])
    capsys.readouterr()
    printed = []
    for named in (file, run):
        assert not main(["explain", named, "--request", "7", "--alternatives", "2"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert max(map(len, printed[0].splitlines())) <= WIDTH
    assert main(["explain", file, "--alternatives", "2"]) == 2
    assert "--request" in capsys.readouterr().err
