"""Work of LoRA adapters in a step: bytes and flops by hand, batches, and the term in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import hermes
from hermes.cli import main
from hermes.deploy.vllm import client_of, commands_of
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.composed.composed_lora import ComposedWithLora
from hermes.hardware.composed.composed_terms import ComposedModel
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.lora import ATTENTION, MODULES, Lora, LoraWork, Rates
from hermes.scenario import load_scenario

LLAMA = load_model("llama-3.1-8b")   # 4,096 wide, 32 heads of 128 over 8, 14,336 inner, 32 layers
WEIGHTS = 16 * (3 * 4096 + 6144 + 2 * 4096 + 2 * (4096 + 14336) + 14336 + 4096) * 32   # of an adapter of rank 16


def work(rates: Rates, modules: Any = MODULES, tp: int = 1, rank: int = 16) -> LoraWork:
    return LoraWork.of(LLAMA, rank, modules, tp, rates)


def case(slots: int = 4, hardware: dict[str, Any] | None = None, client: dict[str, Any] | None = None,
         scheduler: dict[str, Any] | None = None, adapters: dict[str, Any] | None = None, **workload: Any
         ) -> dict[str, Any]:
    return {
        "seed": 3,
        "workload": {"requests": 60, "arrivals": {"kind": "poisson", "rate": 12}, "lengths": {
            "kind": "independent", "prompt": {"kind": "uniform", "min": 20, "max": 900},
            "output": {"kind": "uniform", "min": 2, "max": 60}}, "adapters": adapters or {"count": 6}, **workload},
        "clients": [{"model": "llama-3.1-8b", "device": "l40s", **(client or {}),
                     "hardware": {"kind": "composed", **(hardware or {})},
                     "scheduler": {"kind": "chunked", "max_loras": slots, **(scheduler or {})}}]}


def model_of(document: dict[str, Any]) -> Any:   # Any: a hardware model
    return load_scenario(document).source.hardware[0]


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("LLM clients", "Work of LoRA adapters in a step, by rank, rows and distinct adapters")
def test_bytes_and_flops_by_hand() -> None:
    """41.9 million weights, what PEFT prints for rank 16 on all seven matrices of Llama-3.1-8B."""
    assert WEIGHTS == 41_943_040
    flops = work(Rates(1.0, 0.0, 0.0, 2.0))
    assert flops.ns(1, 1) == pytest.approx(2 * WEIGHTS)
    assert flops.ns(100, 7) == pytest.approx(2 * WEIGHTS * 100)   # products do not depend on whose they are
    moved = work(Rates(0.0, 1.0, 0.0, 2.0))
    each = moved.ns(0, 2) - moved.ns(0, 1)
    assert each == pytest.approx(2 * WEIGHTS)                      # bytes
    inputs, outputs = 4096 * 3 + 14336, 6144 + 4096 + 2 * 14336 + 4096
    row = 32 * (2 * inputs + 2 * 4 * 16 * 7 + 2 * 2 * outputs)     # read, buffer of 7 x 16 values twice, read and write
    assert moved.ns(9, 1) - moved.ns(8, 1) == pytest.approx(row)
    launches = work(Rates(0.0, 0.0, 4000.0, 2.0))
    assert launches.ns(5, 3) == 8 * 32 * 4000
    assert launches.ns(5, 0) == 0.0


def test_a_kernel_takes_the_larger_of_arithmetic_and_traffic() -> None:
    rates = Rates(1e-6, 1e-3, 0.0, 2.0)
    one, few = work(rates), work(rates, ("down",))
    shrink = max(500 * 2 * 16 * 14336 * 1e-6, (500 * (2 * 14336 + 64) + 2 * 16 * 14336 * 2) * 1e-3)
    expand = max(500 * 2 * 16 * 4096 * 1e-6, (500 * (64 + 4 * 4096) + 2 * 16 * 4096 * 2) * 1e-3)
    assert few.ns(500, 2) == pytest.approx(32 * (shrink + expand))
    assert one.ns(500, 2) > few.ns(500, 2)


def test_fewer_modules_have_fewer_kernels() -> None:
    rates = Rates(1.0, 0.0, 10.0, 2.0)
    assert work(rates, ATTENTION).ns(1, 1) == pytest.approx(2 * 16 * 32 * (3 * 4096 + 6144 + 8192) + 4 * 32 * 10)
    assert work(rates, ("q", "v")).ns(1, 1) == pytest.approx(2 * 16 * 32 * (2 * 4096 + 4096 + 1024) + 2 * 32 * 10)


def test_tensor_parallelism_divides_as_vllm_does() -> None:
    """A of q, k, v, gate, up and B of o and down stay whole."""
    flops = work(Rates(1.0, 0.0, 0.0, 2.0), tp=4).ns(1, 1)
    whole = 3 * 4096 + 4096 + 2 * 4096 + 4096
    divided = 6144 + 4096 + 2 * 14336 + 14336
    assert flops == pytest.approx(2 * 16 * 32 * (whole + divided / 4))


# -- in a step ---------------------------------------------------------------------------------------------------------


def batch(adapters: int, decodes: int = 32, prompt: int = 0, tokens: int | None = None) -> StepStats:
    rows = decodes + prompt if tokens is None else tokens
    return StepStats(prefill_seqs=prompt > 0, prefill_tokens=prompt, prefill_attn=prompt * (prompt + 1) // 2,
                     prefill_max=prompt, decode_seqs=decodes, decode_ctx=decodes * 1000, decode_ctx_max=1000,
                     sampled=decodes + (prompt > 0), lora_tokens=rows if adapters else 0, lora_adapters=adapters)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("prompt", [0, 700])
def test_runs_agree_with_steps_and_the_term_is_the_difference(prompt: int, asynchronous: bool) -> None:
    model = model_of(case(hardware={"asynchronous": asynchronous}))
    assert isinstance(model, ComposedWithLora)
    plain = model_of({**case(), "workload": {**case()["workload"], "adapters": None}, "clients": [
        {"model": "llama-3.1-8b", "device": "l40s", "hardware": {"kind": "composed", "asynchronous": asynchronous}}]})
    assert type(plain) is ComposedModel   # nothing in the way of clients without adapters
    for adapters in (4, 1, 0, 4):
        stats = batch(adapters, prompt=prompt)
        steps = []
        for ahead in range(5):
            later = batch(adapters, prompt=prompt)
            later.decode_ctx, later.decode_ctx_max = stats.decode_ctx + 32 * ahead, stats.decode_ctx_max + ahead
            steps.append(model.step_ns(later))
        np.testing.assert_array_equal(model.run_ns(stats, 5), steps)
        own = model.terms_ns(stats).get("lora", 0.0)
        assert own == model.lora.ns(stats.lora_tokens, adapters)
        assert model.step_ns(stats) - plain.step_ns(stats) == pytest.approx(own, abs=1.0)


def test_a_scenario_changes_the_term() -> None:
    free = model_of(case(hardware={"terms": {"lora": {"scale": 0}}}))
    assert free.step_ns(batch(4)) == free.step_ns(batch(0))
    twice = model_of(case(hardware={"terms": {"lora": {"scale": 2}}}))
    assert twice.terms_ns(batch(4))["lora"] == 2 * model_of(case()).terms_ns(batch(4))["lora"]
    assert "times 2 (given)" in twice.sources_of()["lora"]
    assert twice.trust_of()["lora"].kind == "guess"


def test_rank_and_modules() -> None:
    low, high = (model_of(case(hardware={"lora": {"rank": rank}})).terms_ns(batch(4))["lora"] for rank in (16, 64))
    more = model_of(case()).terms_ns(batch(8))["lora"]   # four adapters' weights more
    assert high - low == pytest.approx(3 * (more - low), rel=0.05)   # weights grow with the rank, and a little buffer
    few = model_of(case(hardware={"lora": {"modules": ["q", "v"]}}))
    assert "q, v, 2 kernels a layer" in few.sources_of()["lora"]


def test_models_whose_adapters_are_not_priced() -> None:
    mixture = {"model": "qwen3-30b-a3b", "device": "h100-sxm"}
    assert "q, k, v, o, 4 kernels" in model_of(case(client=mixture)).sources_of()["lora"]
    with pytest.raises(InputError, match=r"lora\.modules: expected modules of attention .* not modelled, found 'up'"):
        model_of(case(client=mixture, hardware={"lora": {"modules": ["q", "up"]}}))
    latent = {"model": "deepseek-v3", "device": "h200", "parallel": {"tp": 8}}
    assert type(model_of(case(client=latent))) is ComposedModel
    assert Lora(modules=["down", "q"]).of_model(LLAMA) == ("q", "down")


def test_adapters_need_slots() -> None:
    document = case(hardware={"lora": {}})
    document["workload"]["adapters"] = None
    del document["clients"][0]["scheduler"]["max_loras"]
    with pytest.raises(InputError, match=r"hardware\.lora: needs scheduler\.max_loras"):
        model_of(document)


# -- in a run ----------------------------------------------------------------------------------------------------------

PAIRS: dict[str, dict[str, Any]] = {
    "chunks": {"scheduler": {"max_num_batched_tokens": 256}},
    "one step at a time": {"scheduler": {"async_scheduling": False}},
    "prefix cache": {"client": {"memory": {"prefix_caching": True}}, "prefixes": {"groups": 3, "tokens": 200}},
    "little memory": {"client": {"memory": {"num_blocks": 150}}},
    "conversations": {"lengths": {"kind": "conversations", "turns": 3, "system_tokens": 64, "message": 60, "output": 40,
                                  "think_time": 0.5}},
    "loads": {"client": {"adapter_bytes": "84 MB"}},
    "branches": {"branches": 3},
    "priorities": {"scheduler": {"policy": "priority"}, "priorities": {"values": [0, 1]}},
    "tensor parallelism": {"client": {"device": "h100-sxm", "parallel": {"tp": 2}}},
    "stages": {"client": {"device": "h100-sxm", "parallel": {"pp": 2}}},
    "ranks": {"client": {"model": "qwen3-30b-a3b", "device": "h100-sxm", "parallel": {"dp": 2, "ep": 2}}},
    "adjusted": {"client": {"adjust": {"fixed": "1 ms"}}},
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", PAIRS)
def test_plans_count_tokens_and_distinct_adapters(name: str) -> None:
    """Everyone has an adapter: all tokens of a step count; runs of steps are single steps."""
    document = case(**PAIRS[name])
    found = hermes.simulate(document)
    runs = found.runs
    np.testing.assert_array_equal(runs.lora_tokens, runs.prefill_tokens + runs.decode_seqs)
    busy = runs[runs.lora_tokens > 0]
    assert busy.lora_adapters.between(1, 4).all()
    assert (busy.lora_adapters <= busy.decode_seqs + busy.prefill_seqs).all()
    assert busy.lora_adapters.max() > 1
    single = hermes.simulate({**document, "stepping": "every_step"})
    np.testing.assert_array_equal(found.requests[["ttft_s", "e2e_s"]], single.requests[["ttft_s", "e2e_s"]])
    for column in ("lora_tokens", "lora_adapters"):
        assert (runs[column] * runs.num_steps).sum() == (single.runs[column] * single.runs.num_steps).sum()


def test_requests_without_an_adapter_do_not_count() -> None:
    """By hand: a prompt is computed once, and each token of an answer but the last."""
    document = case(adapters={"count": 3, "fraction": 0.5})
    results = hermes.simulate(document)
    table = results.record
    scenario = load_scenario(document)
    from hermes.scenario.build import build

    drawn = build(scenario).streams[0].table.adapter
    assert drawn is not None
    assert 0 < (drawn > 0).sum() < len(drawn)
    mine = int(((table.prompt_tokens + table.output_tokens - 1) * (drawn > 0)).sum())
    assert int((results.runs.lora_tokens * results.runs.num_steps).sum()) == mine


def test_a_lone_adapter_is_one_and_costs_less_than_several() -> None:
    few, many = (hermes.simulate(case(slots=16, adapters={"count": count})) for count in (1, 16))
    assert set(few.runs.lora_adapters) <= {0, 1}
    assert many.runs.lora_adapters.max() > 4
    free = hermes.simulate(case(slots=16, adapters={"count": 1}, hardware={"terms": {"lora": {"scale": 0}}}))
    times = [run.summary["latency"]["tpot_s"]["mean"] for run in (free, few, many)]
    assert times == sorted(times)
    assert times[1] > 1.01 * times[0]


def test_the_sources_of_a_run_have_the_term() -> None:
    said = json.dumps(hermes.simulate(case()).summary["sources"])
    assert "lora" in said
    assert "LoRA kernels" in said


def test_explain_prices_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(yaml.safe_dump(case()))

    def term(*arguments: str) -> float | None:
        assert main(["explain", str(path), "--json", *arguments]) == 0
        [step] = json.loads(capsys.readouterr().out)
        return next((row["seconds"] for row in step["terms"] if row["term"] == "lora"), None)

    by_slots = term()
    assert by_slots == term("--adapters", "4")   # of six, as many as there are slots
    assert by_slots is not None
    one = term("--adapters", "1")
    assert one is not None
    assert one < by_slots
    assert term("--adapters", "0") is None


def test_the_rank_goes_from_a_command_to_a_scenario_and_back() -> None:
    read = client_of("vllm serve meta-llama/Llama-3.1-8B --enable-lora --max-loras 4 --max-lora-rank 64")
    assert read.client["hardware"] == {"kind": "composed", "lora": {"rank": 64}}
    assert not read.not_modelled
    document = case(hardware={"lora": {"rank": 64}})
    [(_, command)] = commands_of(load_scenario(document))
    assert "--max-loras 4 --max-lora-rank 64" in command
    assert "lora" not in str(client_of("vllm serve meta-llama/Llama-3.1-8B --max-lora-rank 64").client)
    with pytest.raises(InputError, match="--max-lora-rank: expected a rank"):
        client_of("vllm serve meta-llama/Llama-3.1-8B --enable-lora --max-lora-rank many")
