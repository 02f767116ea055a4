"""`hermes conform SCENARIO --engine vllm`: what the engine is asked, and how answers are compared.

With HERMES_VLLM_PYTHON, an interpreter that has vLLM, the engine itself answers.
"""

import json
import stat

import pytest
from drafting_scenarios import differences
from ending_scenarios import SCENARIOS as ENDING

from hermes.api import simulate
from hermes.cli import main
from hermes.deploy.engine_conform import conform_scenario, served_of
from hermes.deploy.vllm_alone import FIRST, OWN, STOP, sampled, stop_token, token
from hermes.errors import HermesError, InputError

CLIENT = {"model": "llama-3.1-8b", "device": "l40s"}
TIGHT = {"num_blocks": 300, "block_size": 16}


def scenario(**more):
    return {
        "name": "conform", "seed": 5,
        "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 12},
                     "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 900},
                                 "output": {"kind": "uniform", "min": 2, "max": 120}}},
        "clients": [{**CLIENT, "memory": TIGHT}], **more,
    }


CHUNKED = {"kind": "chunked", "max_num_batched_tokens": 512}
CASES = {
    "plain": scenario(),
    "synchronous": scenario(clients=[{**CLIENT, "memory": TIGHT, "scheduler": {**CHUNKED, "async_scheduling": False}}]),
    "two clients": scenario(clients=[{**CLIENT, "count": 2, "memory": TIGHT}]),
    "priorities": scenario(
        workload=[{**scenario()["workload"], "name": str(level), "priorities": {"values": [level], "weights": [1]}}
                  for level in (0, 3)],
        clients=[{**CLIENT, "memory": TIGHT, "scheduler": {**CHUNKED, "policy": "priority"}}]),
    "priorities, synchronous": scenario(
        workload=[{**scenario()["workload"], "name": str(level), "priorities": {"values": [level], "weights": [1]}}
                  for level in (0, 3)],
        clients=[{**CLIENT, "memory": TIGHT,
                  "scheduler": {**CHUNKED, "policy": "priority", "async_scheduling": False}}]),
    "adapters": scenario(
        workload={**scenario()["workload"], "adapters": {"count": 4, "fraction": 0.8},
                  "prefixes": {"groups": 2, "tokens": 200}},
        clients=[{**CLIENT, "memory": TIGHT, "scheduler": {
            **CHUNKED, "max_loras": 2, "max_num_scheduled_tokens": 400, "max_num_active_seqs": 9}}]),
    "conversations": scenario(workload={
        "requests": 60, "arrivals": {"kind": "poisson", "rate": 4},
        "lengths": {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 60, "output": 90,
                    "think_time": 1.0}}),
}
DRAFTS = {"speculation": {"async_scheduling": True, "speculative": {
    "method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}},
    "speculation, synchronous": {"async_scheduling": False, "speculative": {
        "method": "draft_model", "draft_model": "llama-3.2-3b", "num_speculative_tokens": 4,
        "acceptance_by_position": [0.8, 0.6, 0.5, 0.2]}}}
CASES |= {name: scenario(clients=[{**CLIENT, "memory": TIGHT, "scheduler": {**CHUNKED, **more}}])
          for name, more in DRAFTS.items()}
WITH_DRAFTS = (*DRAFTS, "drafts, adapters, an interval")
CASES[WITH_DRAFTS[-1]] = scenario(
    workload={**scenario()["workload"], "adapters": {"count": 4, "fraction": 0.8},
              "prefixes": {"groups": 2, "tokens": 200}},
    clients=[{**CLIENT, "memory": TIGHT, "scheduler": {
        **CHUNKED, **DRAFTS["speculation"], "max_loras": 2, "prefill_schedule_interval": 4}}])


def interpreter(folder, answer):
    """A command that prints an answer, whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat > {folder}/asked.json\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


@pytest.mark.feature("LLM clients", (
    "A scenario's schedule against vLLM's own scheduler: `hermes conform SCENARIO --engine vllm`"))
@pytest.mark.drawn
@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_is_what_was_simulated(name):
    found = served_of(CASES[name])
    results = simulate(CASES[name], stepping="every_step")
    assert sum(len(served.requests) for served in found) == len(results.requests)
    for served in found:
        asked = {one["id"]: one for one in served.requests}
        steps = [one["arrival_step"] for one in served.requests]
        assert steps == sorted(steps)
        computed = dict.fromkeys(asked, 0)
        for step in served.steps:
            for victim in step["preempted"]:
                computed[victim] = 0
            for number, tokens, past in step["scheduled"]:
                assert past >= computed[number] or computed[number] == 0 or name in WITH_DRAFTS
                computed[number] = past + tokens
        total = {one["id"]: one["prompt_tokens"] + one["output_tokens"] - 1 for one in served.requests}
        assert computed == total or (name in WITH_DRAFTS and all(computed[key] >= total[key] for key in total))


def test_the_engine_is_told_of_stop_tokens_and_of_requests_given_up():
    [served] = served_of(ENDING["patience"])
    results = simulate(ENDING["patience"], stepping="every_step")
    given_up = [one for one in served.requests if {"abort_step", "abort_in_step"} & one.keys()]
    assert len(given_up) == results.summary["requests"]["rejected"] > 5
    assert all(one.get("abort_in_step", one.get("abort_step")) >= one["arrival_step"] - 1 for one in given_up)
    assert all(one["max_new_tokens"] > one["output_tokens"] for one in served.requests)
    [by_length] = served_of(ENDING["patience, by length"])
    assert all(one["max_new_tokens"] == one["output_tokens"] for one in by_length.requests)


def test_texts_share_what_blocks_say():
    one = {"id": 7, "blocks": [3, 4, -1], "prompt_tokens": 40}
    assert [token(one, place, 16) for place in (0, 15, 16, 31, 32, 47, 48)] == [3, 3, 4, 4, OWN + 7, OWN + 7, OWN + 7]


@pytest.mark.parametrize(("output", "stop"), [(9, FIRST + 6), (10, STOP), (8, STOP), (24, STOP)])
def test_a_stop_token_that_the_hash_of_a_block_covers_is_in_later_prompts_too(output, stop):
    ended = {"id": 1, "prompt_tokens": 8, "output_tokens": output, "max_new_tokens": 99,
             "blocks": [1, 2], "firsts": [4, 5, 6]}
    later = ended | {"id": 2, "prompt_tokens": 40, "blocks": [1, 2, 3]}
    assert stop_token(ended, 8) == sampled(ended, 8 + output - 1, 8) == stop
    assert (token(later, 8 + output - 1, 8) == stop) == (stop != STOP)
    assert stop not in [sampled(ended, place, 8) for place in range(8 + output - 1)]
    assert sampled(ended | {"max_new_tokens": output}, 8 + output - 1, 8) == token(ended, 8 + output - 1, 8)


def test_the_same_steps_are_identical(tmp_path):
    [served] = served_of(CASES["plain"])
    python = interpreter(tmp_path, {"version": "0.0", "schedules": [{"steps": served.steps}]})
    [result] = conform_scenario(CASES["plain"], python)
    assert result.ok
    assert (result.steps, result.identical) == (len(served.steps), len(served.steps))
    assert json.loads((tmp_path / "asked.json").read_text()) == {
        "cases": [{"settings": served.settings, "requests": served.requests}]}


@pytest.mark.drawn
@pytest.mark.parametrize("change", ["tokens", "free blocks", "a step less"])
def test_the_first_difference_is_shown(tmp_path, change, capsys):
    [served] = served_of(CASES["plain"])
    steps = json.loads(json.dumps(served.steps))
    place = 20 if change != "a step less" else len(steps) - 1
    if change == "tokens":
        steps[20]["scheduled"][0][1] += 1
    elif change == "free blocks":
        steps[20]["free_blocks_after"] -= 1
    else:
        steps.pop()
    python = interpreter(tmp_path, {"version": "0.0", "schedules": [{"steps": steps}]})
    [result] = conform_scenario(CASES["plain"], python)
    assert not result.ok
    assert result.first_difference["step"] == place
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(CASES["plain"]))
    yaml = tmp_path / "scenario.yaml"
    yaml.write_text(file.read_text())
    assert main(["conform", str(yaml), "--engine", "vllm", "--python", python]) == 1
    assert "first difference of llm" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(InputError, match="whose scheduler is chunked"):
        served_of(scenario(clients=[{**CLIENT, "memory": TIGHT, "scheduler": {"kind": "static", "max_num_seqs": 4}}]))
    with pytest.raises(InputError, match="only prefill or decode"):
        served_of(scenario(clients=[{**CLIENT, "count": "1P1D"}]))
    with pytest.raises(InputError, match="an interpreter that has vLLM"):
        conform_scenario(CASES["plain"], str(tmp_path / "nothing"))
    with pytest.raises(HermesError, match="gave no schedule of vLLM"):
        conform_scenario(CASES["plain"], "/bin/false")


@pytest.mark.parametrize("name", [*CASES, *ENDING])
def test_the_engine_takes_the_same_steps(name, warm_engine):
    for result in conform_scenario(CASES.get(name) or ENDING[name], warm_engine):
        assert result.ok, result.first_difference


def test_the_engine_takes_the_same_steps_of_random_drafts_with_a_prefix_cache(warm_engine):
    version, _first = differences(warm_engine, [1], "vllm-0.33")
    engine = "vllm-" + version.rpartition(".")[0]
    assert differences(warm_engine, range(1, 31), engine)[1] == [None] * 30
