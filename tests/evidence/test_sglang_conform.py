"""`hermes conform SCENARIO --engine sglang`: what the engine is asked, and how its batches are compared.

With HERMES_SGLANG_PYTHON, an interpreter that has SGLang 0.5.23, the engine itself answers.
"""

import json
import os
import stat

import pytest

from evidence.schedules.sglang_alone import OWN, ending, text, token
from evidence.schedules.sglang_conform import ENGINE_ROW, conform_scenario, served_of
from evidence.schedules.sglang_replay import COLUMNS
from hermes.api import simulate
from hermes.cli import main
from hermes.errors import HermesError, InputError

ENGINE = os.environ.get("HERMES_SGLANG_PYTHON")
CLIENT = {"model": "llama-3.1-8b", "device": "l40s"}
TIGHT = {"num_blocks": 5000}
CONVERSATIONS = {"requests": 60, "arrivals": {"kind": "poisson", "rate": 4},
                 "lengths": {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 60, "output": 90,
                             "think_time": 1.0}}


def scenario(scheduler=None, memory=TIGHT, rate=12, workload=None, **more):
    drawn = {"requests": 60, "arrivals": {"kind": "poisson", "rate": rate},
             "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 900},
                         "output": {"kind": "uniform", "min": 2, "max": 120}}, **(workload or {})}
    return {"name": "conform", "seed": 5, "workload": drawn,
            "clients": [{**CLIENT, "memory": memory, "scheduler": {"kind": "sglang", **(scheduler or {})}, **more}]}


PREFIXES = {"prefixes": {"groups": 3, "tokens": 300}}
HOPEFUL = {"schedule_conservativeness": 0.1, "max_new_tokens": 200}   # admits more than fits: retraction follows
LONG = {"lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 5, "max": 60},
                    "output": {"kind": "uniform", "min": 60, "max": 200}}}
SYNC = {"disable_overlap_schedule": True}
CASES = {
    "plain": scenario(),
    "without overlap": scenario(SYNC),
    "idle gaps": scenario(rate=0.7),
    "prefixes": scenario(workload=PREFIXES),
    "prefixes by longest match": scenario({"schedule_policy": "lpm", "max_running_requests": 6}, rate=40,
                                          workload=PREFIXES),
    "longest output first": scenario({"schedule_policy": "lof", "max_running_requests": 6}, rate=40),
    "depth first": scenario({"schedule_policy": "dfs-weight", "max_running_requests": 6, **SYNC}, rate=40,
                            workload=PREFIXES),
    "conversations": scenario(workload=CONVERSATIONS),
    "conversations in pages": scenario({"max_new_tokens": 150}, {"num_blocks": 300, "block_size": 16},
                                       workload=CONVERSATIONS),
    "tight": scenario(HOPEFUL, {"num_blocks": 1500}, 40, LONG),
    "tight, in pages, without overlap": scenario({**HOPEFUL, **SYNC}, {"num_blocks": 100, "block_size": 16}, 40, LONG),
    "mixed chunks": scenario({"enable_mixed_chunk": True, "chunked_prefill_size": 256, "max_running_requests": 64}),
    "mixed chunks, without overlap": scenario({"enable_mixed_chunk": True, "chunked_prefill_size": 256,
                                               "max_running_requests": 64, **SYNC}, workload=PREFIXES),
    "whole prompts, no tree": scenario({"chunked_prefill_size": -1, "max_prefill_tokens": 1000,
                                        "disable_radix_cache": True, "ignore_eos": True}),
    "two clients, other ratios": scenario({"init_new_token_ratio": 0.4, "new_token_ratio_decay_steps": 50,
                                           "min_new_token_ratio_factor": 0.3, "retract_decode_steps": 5, **HOPEFUL},
                                          {"num_blocks": 800}, 40, LONG, count=2),
}
RETRACT = {"tight", "tight, in pages, without overlap", "two clients, other ratios"}


def interpreter(folder, answer):
    """A command that prints an answer, whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat > {folder}/asked.json\nenv > {folder}/environment\n"
                    f"cat <<'END'\n{json.dumps(answer)}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def engine_rows(steps):
    """The steps under the names that the driver prints."""
    names = dict(zip(COLUMNS, ENGINE_ROW, strict=True))
    return [{names[key]: value for key, value in step.items()} for step in json.loads(json.dumps(steps))]


@pytest.mark.feature("LLM clients", (
    "A scenario's batches against SGLang's own scheduler: `hermes conform SCENARIO --engine sglang`"))
@pytest.mark.drawn
@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_is_what_was_simulated(name):
    found, _ = served_of(CASES[name])
    results = simulate(CASES[name], stepping="every_step")
    assert sum(len(served.requests) for served in found) == len(results.requests)
    retracted = 0
    for served in found:
        asked = {one["id"]: one for one in served.requests}
        plans = [one["arrival_step"] for one in served.requests]
        assert plans == sorted(plans)
        computed = {}
        for step in served.steps:
            retracted += len(step["retracted"])
            for victim in step["retracted"]:
                del computed[victim]
            for number, tokens, past in step["scheduled"]:
                assert past == computed.get(number, past)
                computed[number] = past + tokens
        for number, one in asked.items():   # with overlap, one that stops early decodes once more
            total = one["prompt_tokens"] + one["output_tokens"]
            assert computed[number] in (total - 1, total)
            assert one["max_new_tokens"] >= one["output_tokens"]
            assert [end for _, end in one["runs"]] == sorted({end for _, end in one["runs"]})
    assert retracted == results.requests["preemptions"].sum()
    assert (retracted > 0) == (name in RETRACT)


def test_texts_share_what_runs_say():
    one = {"id": 7, "runs": [[3, 20], [4, 45]], "prompt_tokens": 40, "output_tokens": 10}
    other = {"id": 8, "runs": [[3, 20]], "prompt_tokens": 30, "output_tokens": 10}
    mine, theirs = text(one), text(other)
    assert len(mine) == 40
    assert mine[:20] == theirs[:20]
    assert not set(mine[20:]) & set(theirs[20:])
    assert mine == [token(one, place) for place in range(40)]
    assert token(one, 45) == OWN * 15 + 45   # its own
    assert ending(one) == token(one, 49)
    assert ending({"id": 1, "prompt_tokens": 4, "output_tokens": 2}) == 1


def test_conversations_share_their_answers():
    [served] = served_of(CASES["conversations"])[0]
    turns = {}
    for one in served.requests:
        conversation = one["runs"][-1][0]
        before = turns.get(conversation)
        if before is not None:   # the next prompt begins with the prompt and the answer before it
            length = before["prompt_tokens"] + before["output_tokens"]
            assert text(one)[:length] == [token(before, place) for place in range(length)]
        turns[conversation] = one
    assert len(turns) < len(served.requests)


def test_the_same_batches_are_identical(tmp_path):
    name = "two clients, other ratios"
    found, environments = served_of(CASES[name])
    python = interpreter(tmp_path, {"version": "0.0", "steps": engine_rows(found[0].steps)})
    first, second = conform_scenario(CASES[name], python)
    assert first.ok
    assert (first.steps, first.identical, first.theirs) == (len(found[0].steps),) * 3
    assert not second.ok
    assert json.loads((tmp_path / "asked.json").read_text()) == {
        "settings": found[1].settings, "requests": found[1].requests}
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "SGLANG_INIT_NEW_TOKEN_RATIO=0.4" in environment
    assert "SGLANG_RETRACT_DECODE_STEPS=5" in environment
    assert environments[found[0].client]["SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS"] == "50"


@pytest.mark.drawn
@pytest.mark.parametrize("change", ["tokens", "ratio", "a batch less"])
def test_the_first_difference_is_shown(tmp_path, change, capsys):
    [served] = served_of(CASES["plain"])[0]
    steps = engine_rows(served.steps)
    place = 20 if change != "a batch less" else len(steps) - 1
    if change == "tokens":
        steps[20]["scheduled"][0][1] += 1
    elif change == "ratio":
        steps[20]["ratio"] += 1e-6
    else:
        steps.pop()
    python = interpreter(tmp_path, {"version": "0.0", "steps": steps})
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(CASES["plain"]))
    assert main(["conform", str(file), "--engine", "sglang", "--python", python, "--json"]) == 1
    [result] = json.loads(capsys.readouterr().out)
    assert result["first_difference"]["step"] == place
    assert {"engine", "hermes"} < result["first_difference"].keys()
    assert main(["conform", str(file), "--engine", "sglang", "--python", python]) == 1
    said = capsys.readouterr().out
    assert "first difference of llm" in said
    assert "sglang 0.0" in said
    python = interpreter(tmp_path, {"version": "0.0", "steps": engine_rows(served.steps)})
    assert main(["conform", str(file), "--engine", "sglang", "--python", python]) == 0
    assert f"identical, {len(served.steps):,} steps" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(tmp_path, capsys):
    chunked = {**CASES["plain"], "clients": [CLIENT]}
    with pytest.raises(InputError, match="whose scheduler is sglang"):
        served_of(chunked)
    with pytest.raises(InputError, match="only prefill or decode"):
        served_of({**chunked, "clients": [{**CLIENT, "count": "1P1D"}]})
    with pytest.raises(InputError, match="an interpreter that has SGLang"):
        conform_scenario(CASES["plain"], str(tmp_path / "nothing"))
    with pytest.raises(HermesError, match="gave no schedule of SGLang"):
        conform_scenario(CASES["plain"], "/bin/false")
    assert main(["conform", "quickstart", "--engine", "sglangs"]) == 2
    assert "vllm or sglang, and one scenario" in capsys.readouterr().err


@pytest.mark.skipif(not ENGINE, reason="HERMES_SGLANG_PYTHON names no interpreter with SGLang")
@pytest.mark.parametrize("name", CASES)
def test_the_engine_makes_the_same_batches(name):
    assert ENGINE is not None
    for result in conform_scenario(CASES[name], ENGINE):
        assert result.ok, result.first_difference
