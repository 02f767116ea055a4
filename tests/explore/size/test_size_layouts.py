"""`hermes size` over pipeline stages, data-parallel ranks and whole experts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes import simulate
from hermes.cli import main
from hermes.config.yaml_document import as_node
from hermes.errors import InputError
from hermes.explore.size import Found, Sizing, Tried, changes, size
from hermes.explore.size.bounds import demand_of, fewest_clients
from hermes.explore.size.layouts import NO_ROLES, Kind, Left, Split, Splits, candidates
from hermes.explore.size.text import left_out, lines, marks, plain, ranking
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.scenario import load_scenario, scenario_of

TPS = (1, 2, 4, 8)


def question(model: str, rate: float, prompt: int = 500, output: int = 50, requests: int = 300, **slo: str
             ) -> dict[str, Any]:
    return {
        "name": "small",
        "workload": {"requests": requests, "arrivals": {"kind": "poisson", "rate": rate},
                     "lengths": {"kind": "fixed", "prompt": prompt, "output": output}},
        "clients": [{"model": model}], "router": {"kind": "least_loaded", "load": "requests"}, "slo": slo,
    }


def names(*given: Any, mixture: bool = False) -> list[str]:
    tps, *named = given
    return [split.name for split in candidates(tps, Splits(*named), mixture)]


def test_what_is_tried_without_names() -> None:
    """Within the devices of the largest tp, tp alone first; ranks and whole experts of mixtures only."""
    assert names(TPS, None, None, None) == ["TP1", "TP2", "TP4", "TP8", "TP1 PP2", "TP2 PP2", "TP4 PP2"]
    assert names((4,), None, None, None) == ["TP4"]
    mixture = names(TPS, None, None, None, mixture=True)
    assert mixture == ["TP1", "TP2", "TP4", "TP8", "TP2 EP", "TP4 EP", "TP8 EP", "TP1 PP2", "TP2 PP2", "TP4 PP2",
                       "TP1 DP2 EP", "TP2 DP2 EP", "TP4 DP2 EP", "TP1 DP4 EP", "TP2 DP4 EP", "TP1 DP8 EP"]


def test_what_is_named_is_combined() -> None:
    assert names((1, 4), (2, 4), (1,), None) == ["TP1 PP2", "TP4 PP2", "TP1 PP4", "TP4 PP4"]
    assert names((1, 2), (1,), (1, 2), None) == ["TP1", "TP2", "TP1 DP2", "TP2 DP2"]   # refused later, with a reason
    assert names((1, 2), (1,), (4,), (False, True), mixture=True) == ["TP1 DP4", "TP2 DP4", "TP1 DP4 EP", "TP2 DP4 EP"]
    assert names((8,), None, (2,), None, mixture=True) == ["TP8 DP2 EP"]
    assert names((1, 2), (1,), (1,), (True,), mixture=True) == ["TP1", "TP2 EP"]   # one device: no layout of its own


def test_the_split_of_a_scenario() -> None:
    kind = Kind("h200", 2, dp=4, ep=True)
    assert (kind.name, kind.devices, kind.has_roles) == ("h200 TP2 DP4 EP", 8, False)
    assert kind.parallel == {"tp": 2, "dp": 4, "ep": 8}
    assert Kind("h200", 2, pp=2).parallel == {"tp": 2, "pp": 2}
    assert Kind("h200", 4).parallel == {"tp": 4}
    assert Split(2, 2, 4).devices == 16


@pytest.fixture(scope="module")
def dense() -> Sizing:
    """Qwen3-32B does not fit on one L40S."""
    return size(question("qwen3-32b", 0.5, ttft="2 s", tpot="120 ms"), devices=["l40s"], tps=[1, 2], max_devices=4,
                workers=0)


@pytest.mark.feature("Results, sweeps, studies", (
    "`hermes size` over pipeline stages, data-parallel ranks and whole experts"))
@pytest.mark.long
def test_two_stages_where_one_card_is_too_small(dense: Sizing) -> None:
    """By hand: a token goes through both stages, so it reads all weights but the embedding one after the other."""
    found = {one.kind.split.name: one.best for one in dense.found if one.layout == "mixed"}
    assert set(found) == {"TP2", "TP1 PP2"}
    staged, shared = found["TP1 PP2"], found["TP2"]
    assert staged is not None
    assert shared is not None
    assert (staged.devices, staged.label) == (2, "1 x l40s TP1 PP2")
    model, card = load_model("qwen3-32b"), load_device("l40s")
    read_s = 2 * (model.num_params() - model.vocab_size * model.hidden_size) / card.memory_bandwidth
    assert read_s == pytest.approx(0.0740, abs=1e-4)   # 2 x (32.76e9 - 151,936 x 5,120) / 864 GB/s
    assert read_s < staged.row["latency.tpot_s.p50"] < 1.4 * read_s
    assert shared.row["latency.tpot_s.p50"] < 0.75 * staged.row["latency.tpot_s.p50"]   # tp halves what a token waits
    kept = dense.settings(staged)
    assert kept["clients"][0]["parallel"] == {"tp": 1, "pp": 2}
    again = simulate(kept).summary["latency"]
    assert again["tpot_s"]["p99"] == staged.row["latency.tpot_s.p99"]


@pytest.mark.long
def test_what_does_not_fit_or_is_not_modelled_is_listed(dense: Sizing) -> None:
    left = {one.name: one.reason for one in dense.left}
    assert set(left) == {"l40s TP1", "l40s TP1 PP2 pd"}
    assert "do not fit" in left["l40s TP1"]
    assert left["l40s TP1 PP2 pd"] == NO_ROLES
    assert ("left out", f"l40s TP1 PP2 pd: {NO_ROLES}") in lines(dense)
    data = plain(dense)
    assert {(one["tp"], one["pp"], one["layout"]) for one in data["left_out"]} == {(1, 1, None), (1, 2, "pd")}
    assert {(one["tp"], one["pp"], one["dp"], one["ep"]) for one in data["ranked"]} == {
        (2, 1, 1, False), (1, 2, 1, False)}


@pytest.mark.long
def test_of_equal_prices_tensor_parallelism_alone_comes_first(dense: Sizing) -> None:
    first, second = dense.ranked[:2]
    assert (first.devices, second.devices) == (2, 2)
    assert (first.kind.split.name, second.kind.split.name) == ("TP2", "TP1 PP2")


@pytest.mark.long
def test_refusals_of_the_hardware_are_listed() -> None:
    """Ranks of a dense model and of several stages, and a client larger than all devices."""
    found = size(question("llama-3.1-8b", 1, ttft="2 s", tpot="120 ms"), devices=["l40s"], tps=[1],
                 splits=Splits([1, 2], [1, 2, 4]), layouts=["mixed"], max_devices=4, workers=0)
    left = {one.kind.split.name: one.reason for one in found.left}
    assert set(left) == {"TP1 DP2", "TP1 DP4", "TP1 PP2 DP2", "TP1 PP2 DP4"}
    assert "the ranks of a dense model share nothing" in left["TP1 DP4"]
    assert "8 devices, more than --max-devices 4" in left["TP1 PP2 DP4"]
    assert {one.kind.split.name for one in (*found.found, *found.dearer)} == {"TP1", "TP1 PP2"}


def test_reasons_that_differ_by_numbers_make_one_line() -> None:
    left = [Left(Kind("l40s", tp), f"the weights (141.1 GB) do not fit in {44 * tp} GB of {tp} x 45,556 MiB")
            for tp in (1, 2)] + [Left(Kind("l40s", 4, pp=2), NO_ROLES, "pd"), Left(Kind("h200", 1), "no")]
    assert left_out(left) == [
        ("left out", "l40s TP1, TP2: the last: the weights (141.1 GB) do not fit in 88 GB of 2 x 45,556 MiB"),
        ("left out", f"l40s TP4 PP2 pd: {NO_ROLES}"), ("left out", "h200 TP1: no")]


@pytest.fixture(scope="module")
def mixture() -> Sizing:
    return size(question("deepseek-v3", 4, prompt=300, output=50, ttft="3 s", tpot="170 ms"), devices=["h200"],
                tps=[1, 2, 8], layouts=["mixed"], max_devices=8, workers=0)


@pytest.mark.long
def test_a_mixture_is_tried_with_ranks_and_whole_experts(mixture: Sizing) -> None:
    """By hand, DeepSeek-V3 with DP8 and EP8: a device has 32 of the 256 experts of each of 58 layers and all else."""
    found = {one.kind.split.name: one for one in mixture.found}
    assert set(found) == {"TP8", "TP8 EP", "TP2 DP4 EP", "TP1 DP8 EP"}
    assert all(one.best is not None and one.best.devices == 8 for one in found.values())
    ranked = found["TP1 DP8 EP"].best
    assert ranked is not None
    document = mixture.settings(ranked)
    assert document["clients"][0]["parallel"] == {"tp": 1, "dp": 8, "ep": 8}
    results = simulate(document)
    assert list(results.summary["clients"]) == [f"llm.dp{rank}" for rank in range(8)]
    experts = 58 * 32 * 3 * 7168 * 2048 * (1 + 4 / 128**2)
    assert experts == pytest.approx(81.76e9, rel=1e-3)
    routed = 58 * 256 * 3 * 7168 * 2048
    outer = 2 * 129_280 * 7168             # embedding and output head, 16 bits
    rest = 671.03e9 - routed - outer       # 8 bits
    assert rest == pytest.approx(15.2e9, rel=0.01)
    # vLLM multiplies by kv_b of 61 layers, 128 heads x (128 + 128) x 512, and keeps it once more in 16 bits
    again = 2 * 61 * 128 * (128 + 128) * 512
    memory = results.summary["clients"]["llm.dp0"]["memory"]
    assert memory["weights_bytes"] == pytest.approx(experts + rest + 2 * outer + again, rel=2e-3)
    left = {one.kind.split.name: one.reason for one in mixture.left}
    said = re.search(r"the weights \(([\d.]+) GB\) do not fit", left["TP1 DP4 EP"])
    assert said is not None
    assert float(said[1]) == pytest.approx((2 * experts + rest + 2 * outer + again) / 1e9, rel=2e-3)


@pytest.mark.long
def test_rows_say_which_times_were_never_compared(mixture: Sizing) -> None:
    marked = marks(mixture)
    assert list(marked.values()) == ["[1]", "[2]"]
    latent, both = marked
    assert "latent attention were never" in latent
    assert "more than 2 data-parallel ranks" in both
    rows = {row[0] for table in ranking(mixture) for row in table.rows}
    assert {"1 x TP8 [1]", "1 x TP8 EP [1]", "1 x TP2 DP4 EP [2]", "1 x TP1 DP8 EP [2]"} == rows
    told = lines(mixture)
    assert ("[2]", f"in the table: {both}") in told
    data = {(one["tp"], one["dp"]): one["remarks"] for one in plain(mixture)["ranked"]}
    assert data[1, 8] == [both]


@pytest.mark.long
def test_a_bound_of_stages_is_a_lower_bound() -> None:
    """An engine of two stages has two batches; fewer clients than the closed form says miss the SLO."""
    asked = question("llama-3.1-8b", 30, prompt=200, output=100, requests=800, tpot="40 ms", ttft="2 s")
    kind = Kind("l40s", 1, pp=2)
    demand = demand_of(scenario_of(as_node({**asked, **changes(asked["clients"], kind, (1,))}), Path()))
    assert demand is not None
    assert demand.batches == 2
    bound = fewest_clients(demand)
    assert bound is not None
    alone = fewest_clients(replace(demand, batches=1))
    assert alone is not None
    assert alone[0] in (2 * bound[0] - 1, 2 * bound[0])
    found = size(asked, devices=["l40s"], tps=[1], splits=Splits([2]), layouts=["mixed"], max_devices=16, workers=0)
    best = found.found[0].best
    assert best is not None
    assert bound[0] <= best.clients[0] <= bound[0] + 2


@pytest.mark.parametrize(("arguments", "said"), [
    (["--pp", "0"], "--pp: expected numbers of stages from 1 to 1024"),
    (["--dp", "x"], "--dp: expected numbers of ranks"),
    (["--ep", "yes"], "--ep: expected off, on or both"),
])
def test_a_mistake_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "quickstart", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_only_refused_layouts_are_an_error() -> None:
    with pytest.raises(InputError, match="the ranks of a dense model share nothing"):
        size(question("llama-3.1-8b", 1, tpot="1 s"), devices=["l40s"], tps=[1], splits=Splits(dps=[2]), workers=0)


def test_of_layouts_without_room_the_nearest_is_said() -> None:
    """One device is tried first, and three are no split of the model; two have the most memory."""
    with pytest.raises(InputError, match=r"weights .* do not fit in .*2 x 84.9 GB, device h100-sxm"):
        size(question("llama-3.1-405b", 1, tpot="1 s"), devices=["h100-sxm"], tps=[1, 3, 2], splits=Splits([1]),
             workers=0)


@pytest.mark.long
def test_the_command_writes_and_launches_ranks_with_whole_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                                                  ) -> None:
    arguments = ["size", "--model", "qwen3-30b-a3b", "--workload", "azure-conv-2023", "--rate", "4/s", "--slo",
                 "ttft_p99=2s,tpot_p99=90ms", "--device", "h200", "--tp", "1", "--pp", "1", "--dp", "2", "--ep", "on",
                 "--layout", "mixed", "--workers", "0", "--max-devices", "4", "--set", "workload.requests=300",
                 "-o", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "x h200 TP1 DP2 EP: 2 devices" in capsys.readouterr().out
    launch = (tmp_path / "out" / "launch.sh").read_text()
    assert "--data-parallel-size 2" in launch
    assert "--enable-expert-parallel" in launch
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranked"][0] | {"tp": 1, "dp": 2, "pp": 1, "ep": True} == found["ranked"][0]


def test_of_layouts_that_cost_the_same_mixed_comes_first_and_the_others_are_named() -> None:
    """Two cards each: two mixed clients need no transfer of KV, 1P/1D does."""
    kind = Kind("h100-sxm", 1, 4.0)
    row = {"cost.dollars_per_hour": 8.0, "binds.what": "arrivals"}
    tried = {layout: Tried(kind, clients, None, row) for layout, clients in (("pd", (1, 1)), ("mixed", (2,)))}
    scenario = load_scenario("quickstart")
    sizing = Sizing("s", scenario, {}, [Found(kind, name, one, [one]) for name, one in tried.items()], [])
    assert [one.label for one in sizing.ranked] == ["2 x h100-sxm TP1", "1P/1D h100-sxm TP1"]
    assert [one.label for one in sizing.as_cheap] == ["1P/1D h100-sxm TP1"]
    assert dict(lines(sizing))["as cheap"].startswith("1P/1D h100-sxm TP1; the answer has the fewest devices")
