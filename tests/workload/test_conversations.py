"""Conversations as tables and as text in a scenario; what prefix caches hold at first; warnings about coarse hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hermes.config.streams import stream
from hermes.config.yaml_document import parse_yaml
from hermes.core.block_hashes import ConversationText
from hermes.core.branches import Branches
from hermes.core.generation import Generation
from hermes.errors import InputError
from hermes.memory import PrefixBlockPool
from hermes.scenario import load_scenario, resolved_yaml
from hermes.scenario.build import build
from hermes.scenario.editor_schema import json_schema
from hermes.testing.workload import LengthModelContract, TokenCountsContract
from hermes.workload import RequestTable, WorkloadConfig
from hermes.workload.conversations import ConversationLengths
from hermes.workload.lengths import GeometricCounts
from hermes.workload.traces import write_trace

CHATBOT = """
workload:
  requests: 300
  arrivals: {kind: poisson, rate: 17 /s}   # conversations
  lengths: {kind: conversations, turns: 3, system_tokens: 1500, message: 150, output: 250, think_time: 10 s}
clients:
  - count: 2
    model: llama-3.1-70b
    hardware: {kind: polynomial, profile: llama-3.1-70b-h100-tp4-bf16}
    memory: {prefix_caching: true}
"""
TALK = {"kind": "conversations", "turns": 3, "message": 10, "output": 5, "think_time": "2 s"}


class TestConversationLengths(LengthModelContract):
    def make(self) -> ConversationLengths:
        return ConversationLengths.model_validate({
            "turns": {"kind": "geometric", "mean": 4}, "message": {"kind": "uniform", "min": 1, "max": 500},
            "output": {"kind": "lognormal", "mean": 100, "sigma": 1}, "think_time": 3.0,
            "think_distribution": "exponential", "system_tokens": 300, "longest": 2000,
        })


class TestGeometricCounts(TokenCountsContract):
    def make(self) -> GeometricCounts:
        return GeometricCounts(mean=5.0, max=30)


def test_geometric_counts_have_the_mean_asked_for() -> None:
    drawn = GeometricCounts(mean=5.0).draw(200_000, stream(1, "x"))
    assert drawn.mean() == pytest.approx(5.0, rel=0.01)
    assert (drawn == 1).mean() == pytest.approx(1 / 5, rel=0.02)
    assert (GeometricCounts(mean=1.0).draw(100, stream(1, "x")) == 1).all()


def table(lengths: dict[str, Any] = TALK, **options: Any) -> RequestTable:
    data = {"arrivals": {"kind": "uniform", "rate": 1.0, "spread": 0}, "lengths": lengths, "requests": 8, **options}
    return WorkloadConfig.model_validate(data).draw(1, Path())


def test_arrivals_say_when_conversations_start_and_requests_count_turns() -> None:
    found = table()
    assert found.turn is not None
    assert found.arrival_ns is not None
    assert found.think_ns is not None
    assert found.turn.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]   # the last one is cut
    assert (found.arrival_ns / 1e9).tolist() == pytest.approx([1, -1e-9, -1e-9, 2, -1e-9, -1e-9, 3, -1e-9])
    assert found.prompt_tokens.tolist() == [10, 25, 40, 10, 25, 40, 10, 25]
    assert found.think_ns.tolist() == [2 * 10**9] * 8


def test_a_duration_is_how_long_conversations_start() -> None:
    found = table(requests=None, duration=4.5, start=1.0)
    assert found.arrival_ns is not None
    assert len(found) == 12
    assert found.arrival_ns[::3].tolist() == [2 * 10**9, 3 * 10**9, 4 * 10**9, 5 * 10**9]


def test_users_of_a_closed_loop_think_before_a_conversation() -> None:
    found = table(arrivals={"kind": "closed_loop", "users": 2, "think": 9.0}, start=1.0)
    assert found.users == 2
    assert found.think_ns is not None
    assert (found.think_ns // 10**9).tolist() == [10, 2, 2, 10, 2, 2, 9, 2]


@pytest.mark.parametrize("options", [
    {"output_scale": 3.0}, {"branches": 3, "branch_spread": 0.5}, {"max_total_tokens": 35},
    {"output_scale": 2.5, "branches": 2, "branch_spread": 0.9, "max_total_tokens": 60},
])
def test_the_next_prompt_is_the_prompt_the_answer_and_the_message(options: dict[str, Any]) -> None:
    found = table({**TALK, "turns": 6}, requests=40, **options)
    assert found.turn is not None
    answers = found.output_tokens if found.branch_tokens is None else found.branch_tokens[:, 0]
    for i in np.flatnonzero(found.turn).tolist():
        assert found.prompt_tokens[i] == found.prompt_tokens[i - 1] + answers[i - 1] + 10
    limit = options.get("max_total_tokens")
    if limit:   # conversations end before it, and are not cut short within
        assert (found.prompt_tokens + answers <= limit).all()
        assert found.turn.max() < 5
    elif "branches" not in options:
        assert found.turn.max() == 5


def test_a_conversation_that_has_grown_too_long_ends() -> None:
    found = table({**TALK, "turns": 100, "longest": 40}, requests=6)
    assert found.prompt_tokens.tolist() == [10, 25, 40, 10, 25, 40]


@pytest.mark.parametrize(("change", "message"), [
    ({"block_tokens": 512}, "lengths.block_tokens: expected one of the keys"),
    ({"users": 60}, "lengths.users: expected one of the keys"),
    ({"turns": 2.5}, "lengths.turns: expected"), ({"turns": 0}, "lengths.turns: expected a number of at least 1"),
    ({"message": True}, "lengths.message: expected a mapping with `kind`"),
    ({"think_time": ...}, r"lengths.think_time: expected a value \(required\)"),
])
def test_what_no_conversation_has_is_refused(change: dict[str, Any], message: str) -> None:
    lengths = {name: value for name, value in {**TALK, **change}.items() if value is not ...}
    with pytest.raises(InputError, match=message) as caught:
        load_scenario({"workload": {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": lengths}, "clients": [
            {"hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("prefixes", {"groups": 1, "tokens": 5}), ("sessions", {"count": 2})])
def test_what_conversations_say_themselves_is_refused_beside_them(key: str, value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="conversation"):
        table(**{key: value})


def test_a_plain_number_of_tokens_is_that_number(tmp_path: Path) -> None:
    def drawn(tokens: Any) -> list[int]:
        config = WorkloadConfig.model_validate({
            "requests": 3, "arrivals": {"kind": "at_once"},
            "lengths": {"kind": "independent", "prompt": tokens, "output": tokens},
            "contexts": {"population": "shared", "keys": 2, "tokens": tokens},
        })
        found = config.draw(0, Path())
        assert found.population is not None
        return [*found.prompt_tokens.tolist(), *found.output_tokens.tolist(), *found.population.tokens.tolist()]

    assert drawn(150) == drawn({"kind": "fixed", "tokens": 150}) == [150] * 8
    message = json_schema()["$defs"]["ConversationLengths"]["properties"]["message"]
    assert {"type": "integer"} in message["anyOf"]


@pytest.fixture
def chatbot(tmp_path: Path) -> Path:
    (tmp_path / "chat.yaml").write_text(CHATBOT)
    return tmp_path / "chat.yaml"


def test_the_chatbot_of_the_page_is_a_dozen_lines() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "workloads.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n# chatbot.yaml\n")[1].split("```")[0]
    assert len(text.splitlines()) <= 12
    simulation = build(load_scenario(parse_yaml(text).plain(), ["workload.requests=30"]))
    assert simulation.remarks[0].startswith("workload main: 10 conversations of 3 turns, 30 requests;")
    assert simulation.streams[0].table.prompt_tokens[:3].tolist() == [1650, 2050, 2450]


def test_the_resolved_scenario_and_the_run_say_what_the_rate_counts(chatbot: Path) -> None:
    scenario = load_scenario(chatbot)
    assert "rate: 17.0  # conversations/s\n" in resolved_yaml(scenario)
    assert build(scenario).remarks == [
        "workload main: 100 conversations of 3 turns, 300 requests; `rate` counts conversations: 17/s of them, "
        "51 requests/s"]
    plain = load_scenario(chatbot, ["workload.arrivals.rate=2", "workload.lengths={kind: fixed, prompt: 1, output: 1}"])
    assert "rate: 2.0  # /s\n" in resolved_yaml(plain)


def test_a_prefix_cache_that_starts_warm_has_the_system_prompt(chatbot: Path) -> None:
    """The first request of each client, too, finds what all conversations begin with; no history of theirs."""
    def first_found(*overrides: str) -> list[int]:
        record = build(load_scenario(chatbot, ["workload.requests=12", *overrides])).run()
        stages = record.stages
        first = [int(np.flatnonzero(stages["client"] == client)[0]) for client in (0, 1)]
        return [int(stages["cached_tokens"][row]) for row in first]

    assert first_found() == [0, 0]
    assert first_found("clients.0.memory.prefix_start=warm") == [1500 // 16 * 16] * 2
    tight = build(load_scenario(chatbot, [
        "clients.0.memory={prefix_caching: true, prefix_start: warm, num_blocks: 40}",
    ]))
    pool, prompt = tight.clients[0].scheduler.pool, next(tight.streams[0].requests()).content
    assert pool.free_blocks == pool.num_blocks == 40
    assert pool.hit_tokens(Generation(1650, 1, content=prompt)) == 40 * 16   # as far as it fits


def test_the_most_used_beginnings_are_the_last_to_go() -> None:
    data: dict[str, Any] = {
        "workload": {"requests": 40, "arrivals": {"kind": "at_once"}, "prefixes": {"groups": 3, "tokens": 64},
                     "lengths": {"kind": "fixed", "prompt": 100, "output": 2}},
        "clients": [{"hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
                     "memory": {"prefix_caching": True, "prefix_start": "warm", "num_blocks": 10}}],
    }
    simulation = build(load_scenario(data))
    texts = simulation.streams[0].table.shared_texts()
    assert [tokens for _, tokens in texts] == [64] * 3
    content = next(iter(simulation.streams[0].requests())).content
    pool = simulation.clients[0].scheduler.pool
    found = []
    for group, _ in texts:
        text = type(content)(group, 64)
        found.append(pool.hit_tokens(Generation(100, 1, content=text)))
    assert found == [64, 64, 32]   # ten blocks of 16: the least used has two


@pytest.mark.parametrize("change", ["clients.0.memory.prefix_caching=false", "workload.lengths.system_tokens=0"])
def test_warm_without_anything_to_hold_is_refused(chatbot: Path, change: str) -> None:
    with pytest.raises(InputError, match=r"clients\.0\.memory\.prefix_start: (needs prefix_caching: true|no workload)"):
        build(load_scenario(chatbot, ["clients.0.memory.prefix_start=warm", change]))


def test_hash_blocks_coarser_than_the_engines_are_warned_of(tmp_path: Path, capsys: Any) -> None:
    from hermes.cli import main

    write_trace(pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": [600, 1024], "output_tokens": [2, 2],
                              "hash_ids": [[0, 1], [0, 2]]}), tmp_path / "t.parquet", source="test")
    (tmp_path / "s.yaml").write_text(CHATBOT.split("clients:")[0].split("  requests")[0] + """
  arrivals: {kind: trace, path: t.parquet}
  lengths: {kind: trace, path: t.parquet}
clients:""" + CHATBOT.split("clients:")[1])
    warnings = build(load_scenario(tmp_path / "s.yaml")).warnings
    # 88 tokens lie beyond 512, 80 of them in whole blocks of 16
    assert warnings == [
        "workload main: prompts are hashed in blocks of 512 tokens, the engine caches blocks of 16; tokens beyond a "
        "prompt's last whole hash block never hit the cache, even if a later prompt repeats them (4.9% of all prompt "
        "tokens)"]
    assert main(["validate", str(tmp_path / "s.yaml")]) == 0
    assert capsys.readouterr().err == f"hermes: warning: {warnings[0]}\n"
    fine = ["clients.0.memory.block_size=512", "clients.0.memory.prefix_caching=false"]
    assert all(build(load_scenario(tmp_path / "s.yaml", [change])).warnings == [] for change in fine)


@pytest.mark.parametrize("size", [1, 3, 16, 40])
@pytest.mark.parametrize(("shared", "tokens"), [(0, 50), (20, 50), (16, 50), (50, 50), (70, 50), (20, 0)])
def test_runs_of_names_say_what_the_keys_of_blocks_say(size: int, shared: int, tokens: int) -> None:
    text, keys = ConversationText(3, 5, shared, tokens), []
    for name, end in text.name_runs(size):
        keys += [(*name, index) for index in range(len(keys), end)]
    assert keys == [text.block_key(index, size) for index in range(tokens // size)]
    assert text.block_key(tokens // size, size) is None


def test_a_first_branch_that_ended_elsewhere_leaves_no_answer_to_the_others() -> None:
    """Its one token came with the prompt's last step; what another branch says is not what the conversation says."""
    text = ConversationText(3, 0, 0, 9)
    lead = Generation(8, 20, content=text)
    lead.transferred, lead.given, lead.num_tokens = True, 1, 9
    others = Branches(lead, (1, 20, 15)).split(lead)
    assert (lead.branch, [seq.branch for seq in others]) == (1, [2])
    pool = PrefixBlockPool(10, 1)
    assert lead.block_key(7, pool.block_size) == text.block_key(7, 1)
    assert lead.block_key(8, pool.block_size) != text.block_key(8, 1)
