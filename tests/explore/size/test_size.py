"""`hermes size`: the searches, a scan of all layouts, the command."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes import open_sweep, simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.explore.objective import missed
from hermes.explore.size import Kind, Tried, changes, hourly, size
from hermes.explore.size.numbers import mixed, split
from hermes.explore.size.own_layout import as_composed, own_kind
from hermes.explore.size.text import front, lines, plain, ranking, speed
from hermes.explore.sweep.figures import figures
from hermes.hardware.descriptions.devices import load_device

KIND = Kind("l40s", 1)
SMALL = {
    "name": "small",
    "workload": {"requests": 900, "arrivals": {"kind": "poisson", "rate": 15},
                 "lengths": {"kind": "independent", "prompt": 1000, "output": 60}},
    "clients": [{"model": "llama-3.1-8b"}], "router": {"kind": "least_loaded", "load": "requests"},
    "slo": {"ttft": "1 s", "tpot": "60 ms"},
}
FEW = SMALL | {"workload": SMALL["workload"] | {"requests": 300, "arrivals": {"kind": "poisson", "rate": 5}}}
"""For tests of what is made of an answer, whatever it is."""


def answered(search, meets, side=None):
    """Run a search against a rule; its best and how many simulations it took."""
    numbers, tried = next(search), 0
    try:
        while True:
            tried += 1
            row = {} if side is None else {"binds.where": side(numbers)}
            numbers = search.send(Tried(KIND, numbers, None if meets(numbers) else "the queue grows", row))
    except StopIteration as end:
        return end.value, tried


@given(limit=st.integers(1, 80), most=st.integers(1, 64))
def test_the_fewest_clients(limit, most):
    best, tried = answered(mixed(most), lambda numbers: numbers[0] >= limit)
    assert (best and best.clients) == ((limit,) if limit <= most else None)
    assert tried <= 20


@given(prefill=st.integers(1, 12), decode=st.integers(1, 12), start=st.integers(2, 24), share=st.floats(0.1, 0.9))
def test_the_fewest_prefill_and_decode_clients(prefill, decode, start, share):
    """The rule needs so many of each; a split is found whatever the first guess, with room for both sides."""
    first = Tried(KIND, (start,), None, {"energy.prefill_j": share, "energy.decode_j": 1 - share})
    best, tried = answered(split(first, 64), lambda numbers: numbers[0] >= prefill and numbers[1] >= decode,
                           lambda numbers: "prefill" if numbers[0] < prefill else "decode")
    assert tried <= 16
    assert best is None or (best.clients[0] >= prefill and best.clients[1] >= decode)
    if tried < 16:
        assert best is not None
        assert best.clients == (prefill, decode)


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    return size(SMALL, devices=["l40s"], tps=[1], max_devices=8, workers=0)


@pytest.mark.feature("Results, sweeps, studies", "`hermes size`: the fewest devices by layout")
@pytest.mark.long
def test_no_layout_with_fewer_devices_meets_the_slo(sized):
    def meets(numbers):
        return missed(figures(simulate({**SMALL, **changes(SMALL["clients"], KIND, numbers)}))) is None

    best = {found.layout: found.best.clients for found in sized.found}
    assert best["mixed"] == next((n,) for n in range(1, 9) if meets((n,)))
    total = sum(best["pd"])
    fewer = [numbers for numbers in itertools.product(range(1, total), repeat=2) if sum(numbers) < total]
    assert not [numbers for numbers in fewer if meets(numbers) and total - sum(numbers) > 1]
    assert meets(best["pd"])


@pytest.mark.long
def test_ranked_by_price(sized):
    prices = [hourly(tried) for tried in sized.ranked]
    assert prices == sorted(prices)
    assert prices[0] == pytest.approx(sized.ranked[0].devices * load_device("l40s").price_per_hour)
    assert sized.headroom >= 0


@pytest.fixture(scope="module")
def mixed_prices():
    """b300 has no price, and needs fewer devices than the L40S; the H100 does, and costs 5% less."""
    return size(SMALL, devices=["b300", "h100-sxm", "l40s"], tps=[1], layouts=["mixed"], max_devices=8, workers=0,
                prices={"h100-sxm": 2.45})


@pytest.mark.long
def test_a_card_without_a_price_stands_last_and_does_not_unrank_the_others(mixed_prices):
    assert load_device("b300").price_per_hour is None
    assert [tried.kind.device for tried in mixed_prices.ranked] == sorted(
        ("h100-sxm", "l40s"), key=lambda name: next(
            hourly(found.best) for found in mixed_prices.found if found.kind.device == name))
    assert [tried.kind.device for tried in mixed_prices.unpriced] == ["b300"]
    told = dict(lines(mixed_prices))
    assert told["answer"].startswith(mixed_prices.ranked[0].label)
    assert "--price b300=DOLLARS" in told["no price"]
    assert told["instead"].startswith(f"{mixed_prices.ranked[1].label}: ")
    (one,) = plain(mixed_prices)["others"]
    assert f"{100 * (one['steps']['high'] - 1):+.0f}% ({one['steps']['kind']})" in told["instead"]
    ranked, unranked = ranking(mixed_prices)
    assert [row[0] for row in ranked.rows] == [tried.label for tried in mixed_prices.ranked]
    assert [row[0] for row in unranked.rows] == [mixed_prices.unpriced[0].label]
    assert "not ranked" in unranked.title
    data = plain(mixed_prices)
    assert [one["device"] for one in data["unranked"]] == ["b300"]
    assert "b300" not in [one["device"] for one in data["ranked"]]


@pytest.mark.long
def test_a_card_that_must_cost_more_has_its_bound():
    found = size(FEW, devices=["h100-sxm", "l40s"], tps=[1], layouts=["mixed"], max_devices=8, workers=0)
    assert [tried.label for tried in found.ranked] == ["1 x l40s TP1"]
    assert dict(lines(found))["dearer"] == "h100-sxm: TP1 mixed at least $3.99/h (bound)"
    (one,) = plain(found)["dearer"]
    assert (one["device"], one["layout"], one["clients"], one["dollars_per_hour"]) == ("h100-sxm", "mixed", 1, 3.99)


@pytest.mark.long
def test_a_price_given_ranks_a_card():
    cheap = size(FEW, devices=["b300", "l40s"], tps=[1], layouts=["mixed"], max_devices=8, workers=0,
                 prices={"b300": 0.8})
    assert [tried.kind.device for tried in cheap.ranked] == ["b300", "l40s"]
    assert hourly(cheap.ranked[0]) == 0.8 * cheap.ranked[0].devices
    assert simulate(cheap.settings(cheap.ranked[0])).summary["cost"]["dollars_per_hour"] == hourly(cheap.ranked[0])


    said = dict(lines(cheap))["prices"]
    assert "b300 $0.8 an hour each (as given)" in said
    assert "l40s $0.86 an hour each (order of public list prices of 2025" in said


@pytest.mark.long
def test_the_row_of_the_answer_is_that_of_the_scenario_written(sized):
    for best in sized.meets:
        latency = simulate(sized.settings(best)).summary["latency"]
        assert [latency[name]["p99"] for name in ("ttft_s", "tpot_s")] == [
            best.row[f"latency.{name}.p99"] for name in ("ttft_s", "tpot_s")]


@pytest.mark.long
def test_a_rate_of_conversations_is_called_so():
    talks = {**SMALL["workload"], "requests": 300, "arrivals": {"kind": "poisson", "rate": 2}, "lengths": {
        "kind": "conversations", "turns": 2, "think_time": "1 s", "message": 200, "output": 30}}
    found = size(SMALL | {"workload": talks}, devices=["l40s"], tps=[1], layouts=["mixed"], max_devices=2, workers=0)
    assert dict(lines(found))["serves"].startswith("2 conversations/s, ")


@pytest.mark.long
def test_no_price_is_no_ranking_by_cost():
    none = size(FEW, devices=["b300"], tps=[1], layouts=["mixed"], max_devices=8, workers=0)
    assert not none.ranked
    assert "no device has a price" in dict(lines(none))["answer"]
    assert ["not ranked" in table.title for table in ranking(none)] == [True]


@pytest.mark.long
def test_a_scenario_gives_the_price_of_its_own_device_only():
    clients = [{"model": "llama-3.1-8b", "device": "l40s", "price_per_hour": 3.0}]
    found = size(FEW | {"clients": clients}, devices=["b300", "l40s"], tps=[1], layouts=["mixed"], workers=0)
    assert [tried.kind.device for tried in found.unpriced] == ["b300"]
    assert hourly(found.ranked[0]) == 3.0 * found.ranked[0].devices


@pytest.mark.long
def test_no_other_that_meets_the_slo_beats_the_front(sized):
    meet, miss = ([one for one in sized.tried if bool(one.misses) is missed] for missed in (False, True))
    assert meet
    assert miss
    for kept, others in ((front(sized.tried), meet), (front(miss), miss)):
        assert kept or not any(map(speed, others)), "those that were ended early have no speed"
        assert set(map(id, kept)) <= set(map(id, others)), "of those that miss only if none meets"
        for one, other in itertools.product(kept, others):
            if (mine := speed(one)) is not None and (theirs := speed(other)) is not None:
                assert not (theirs[0] > mine[0] and theirs[1] > mine[1])


def test_a_model_that_does_not_fit_is_said():
    large = SMALL | {"clients": [{"model": "llama-3.1-70b"}]}
    with pytest.raises(InputError, match=r"weights .* do not fit"):
        size(large, devices=["l40s"], tps=[1], workers=0)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--workload", "azure-conv-2023", "--rate", "5/s"], "--model: missing"),
    (["--model", "llama-3.1-8b", "--workload", "azure", "--rate", "5/s"], "--workload: expected a workload profile"),
    (["--model", "llama-3.1-8b", "--workload", "azure-conv-2023", "--rate", "0"], "--rate: expected a rate"),
    (["--model", "llama-3.1-8b", "--workload", "azure-conv-2023", "--rate", "5/s"], "slo: missing: what the clients"),
    (["quickstart", "--device", "h200x"], "device: no device is called 'h200x'; nearest: h200"),
    (["quickstart", "--model", "llama-3.1-8b"], "--model: the scenario has one of its own"),
    (["quickstart", "--tp", "8", "--max-devices", "4"], "max_devices: expected at least 8 devices"),
    (["quickstart", "--layout", "both"], "--layout: expected layouts of mixed, pd"),
    (["quickstart", "--price", "h200"], "--price: expected dollars per hour"),
    (["quickstart", "--price", "h200=4"], "--price: expected a price of one of the devices h100-sxm"),
    (["quickstart", "--tp", "1,x"], "--tp: expected numbers of devices"),
])
def test_a_mistake_is_one_line(arguments, said, capsys):
    assert main(["size", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.long
def test_the_command_writes_a_scenario_that_meets_the_slo(tmp_path, capsys):
    arguments = ["size", "--model", "llama-3.1-8b", "--workload", "azure-conv-2023", "--rate", "8/s", "--slo",
                 "ttft_p99=1s,tpot_p99=50ms", "--device", "h100-sxm", "--tp", "1", "--layout", "mixed",
                 "--workers", "0", "--max-devices", "4", "--set", "workload.requests=300", "-o", str(tmp_path / "out")]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "answer" in said
    assert all(len(line) <= 80 for line in said.splitlines())
    assert missed(figures(simulate(tmp_path / "out" / "best.yaml"))) is None
    assert (tmp_path / "out" / "front.png").stat().st_size > 5000
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranked"][0]["device"] == "h100-sxm"
    assert main([*arguments[:-2], "--slo", "tpot=1ms"]) == 1
    assert "none of these layouts meets the SLO" in capsys.readouterr().out


def fitted(**hardware: Any) -> dict[str, Any]:
    """The question for clients with a fitted profile."""
    return {
        "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 2.0},
                     "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
        "clients": [{"model": "llama-3.1-70b", "device": "h100-sxm", "hardware": {"kind": "polynomial", **hardware}}],
        "slo": {"ttft": "1 s", "tpot": "50 ms"},
    }


@pytest.mark.long
def test_every_row_has_one_hardware_model_and_the_own_layout_is_shown_with_both(tmp_path: Path) -> None:
    document = fitted(profile="llama-3.1-70b-h100-tp4-bf16")
    sizing = size(document, devices=["h100-sxm"], tps=[4], layouts=["mixed"], max_devices=8, workers=0, out=tmp_path)
    sweep = open_sweep(tmp_path)
    points = {case: sweep.point(i) for i, case in enumerate(sweep.frame()["case"])}
    assert {point.clients[0].hardware.kind for case, point in points.items()
            if not case.startswith("as written")} == {"composed"}
    own = sizing.own
    assert own is not None
    assert own.composed is not None
    assert own.kind == "polynomial"
    for kind, row in (("polynomial", own.own), ("composed", own.composed)):
        found = {simulate(point).summary["latency"]["tpot_s"]["p99"] for case, point in points.items()
                 if case.startswith("as written") and point.clients[0].hardware.kind == kind}
        assert found == {row["latency.tpot_s.p99"]}
    ratio = own.composed["latency.tpot_s.p99"] / own.own["latency.tpot_s.p99"] - 1
    text = dict(lines(sizing))["own"]
    assert text.startswith("1 x llm as written: polynomial TTFT p99 ")
    assert text.endswith(f"({ratio:+.0%})")
    assert plain(sizing)["own"]["hardware"] == "polynomial"


def test_all_layouts_keep_the_precision_of_the_scenario() -> None:
    document = fitted(profile="llama-3.1-70b-h100-tp2-fp8")
    assert as_composed(document, Path())["clients"][0]["hardware"] == {"kind": "composed", "dtype": "fp8"}


def test_a_scenario_of_composed_hardware_has_no_second_model() -> None:
    document = fitted(profile="x")
    del document["clients"][0]["hardware"]
    assert as_composed(document, Path()) is document
    assert own_kind(document["clients"]) == "composed"


@pytest.mark.long
def test_assumed_links_stand_in_the_answer_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps({**SMALL, "clients": [{**SMALL["clients"][0], "device": "l40s"}]}))
    assert main(["size", str(file), "--device", "l40s", "--tp", "2", "--pp", "1", "--layout", "mixed",
                 "--max-devices", "8", "--workers", "0", "-q"]) == 0
    out, err = capsys.readouterr()
    assert " ".join(out.split()).count("have no NVLink") == 1
    assert err == ""
