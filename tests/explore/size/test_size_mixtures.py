"""`hermes size` of mixtures of experts: no answer below what bytes and operations allow, none larger in a narrower
precision. The table: `scripts/size_mixtures.py`."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts_loaded import load

from hermes.errors import InputError
from hermes.explore.size import Kind, Tried, size
from hermes.explore.size.bounds import demand_of, fewest_clients
from hermes.explore.size.layouts import Splits
from hermes.hardware.descriptions.devices import load_device
from hermes.scenario import load_scenario

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "background" / "capacity.md"
TABLE = ROOT / "docs" / "background" / "mixture-devices.csv"
PUBLISHED = {"gpt-oss-120b": 116.8, "qwen3-30b-a3b": 30.5, "qwen3-235b-a22b": 235.1, "glm-4.5": 352.8,
             "deepseek-v3": 671.0}
"""Billions of parameters by the model cards; GLM-4.5's 355 less the layer that predicts two tokens."""


def scenario(dtype: str) -> dict[str, Any]:
    """A question whose answer was 5 devices in FP8 and 2 in 16 bits, with fewer requests."""
    return {
        "name": "mixture-count",
        "workload": {"duration": "10 s", "arrivals": {"kind": "poisson", "rate": "20 /s"},
                     "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
        "clients": [{"name": "box", "model": "qwen3-30b-a3b", "device": "h100-sxm",
                     "hardware": {"kind": "composed", "dtype": dtype}}],
        "slo": {"ttft": "2 s", "tpot": "50 ms"},
    }


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("scripts/size_mixtures.py")


@pytest.mark.parametrize("name", PUBLISHED)
def test_hand_counts_have_the_published_parameters(script: ModuleType, name: str) -> None:
    hand = replace(script.Hand.of(name, "bf16"), dtype="bf16", expert_dtype="bf16")
    assert hand.weights_bytes / 2e9 == pytest.approx(PUBLISHED[name], rel=0.002)


def test_a_bound_by_hand(script: ModuleType) -> None:
    """Qwen3-30B-A3B in 16 bits, answers of 100 tokens at a context of 1,050, on an H100 that has 10 requests/s."""
    hand, card = script.Hand.of("qwen3-30b-a3b", "bf16"), load_device("h100-sxm")
    lengths = script.Lengths(1000.0, 100.0, 1050.0, 0.0, 1100.0**2 / 2)
    devices, needs = hand.bound(card, 1, 10.0, lengths)
    attention, expert, head = 2048 * 128 * (2 * 32 + 2 * 4), 3 * 2048 * 768, 2048 * 151936
    kv = 2 * 48 * 4 * 128 * 2 * 1050
    read = 48 * 2 * (attention + hand.chosen(50.0) * expert) + 2 * head   # 10 * 100 * 0.05 answers in flight
    assert hand.chosen(50.0) < 128
    assert needs.bandwidth == pytest.approx((read + 50 * kv) / 0.05 / 3.35e12)
    operations = 2 * (1099 * 48 * (attention + 8 * expert) + 100 * head + 48 * 32 * 256 * 1100**2 / 2)
    assert needs.flops == pytest.approx(10 * operations / 989.4e12)
    weights = 2 * (48 * (attention + 128 * expert) + 2 * head)
    in_flight = (needs.memory * card.memory - weights) / kv
    step_s = (48 * 2 * (attention + hand.chosen(in_flight) * expert) + 2 * head + in_flight * kv) / 3.35e12
    assert in_flight == pytest.approx(1000 * step_s, rel=0.01)   # Little's law
    assert devices == 1


def test_no_bound_without_another_client(script: ModuleType) -> None:
    """Where memory, bandwidth or arithmetic of so many devices falls short, the bound is larger."""
    hand, card = script.Hand.of("qwen3-30b-a3b", "bf16"), load_device("h100-sxm")
    lengths = script.lengths_of(hand.model)
    bounds = [hand.bound(card, 1, rate, lengths) for rate in (1.0, 40.0, 400.0, 4000.0)]
    assert [devices for devices, _ in bounds] == sorted({devices for devices, _ in bounds})
    assert all(devices - 1 < max(needs) * 1.5 and max(needs) <= devices for devices, needs in bounds)


def test_faults_of_a_table(script: ModuleType) -> None:
    def row(dtype: str, devices: int | None, bound: int = 1) -> Any:
        best = None if devices is None else Tried(Kind("h200", 1), (devices,), None, {})
        return script.Row("glm-4.5", dtype, "h200", best, bound, script.Needs(0.5, 0.5, 0.5))

    assert script.faults([row("bf16", 4), row("fp8", 4)]) == []
    assert script.faults([row("bf16", None), row("fp8", 4, 4)]) == []
    assert script.faults([row("bf16", 4), row("fp8", 5)]) == ["glm-4.5 on h200: fp8 needs 5, bf16 4"]
    assert script.faults([row("bf16", 4), row("fp8", None)]) == ["glm-4.5 on h200: fp8 needs None, bf16 4"]
    assert script.faults([row("fp8-block", 4), row("fp8", 5)]) == []
    assert script.faults([row("bf16", 4, 8)]) == ["glm-4.5 bf16 on h200: 4 devices, below the bound of 8"]


@pytest.mark.drawn
@pytest.mark.parametrize("model", PUBLISHED)
def test_steps_allow_no_fewer_devices_than_bytes_and_operations(script: ModuleType, model: str) -> None:
    """The closed form has the hardware model's step times, but no waiting: it is where the search begins."""
    for device in script.DEVICES:
        card = load_device(device)
        before: dict[str, int | None] = {}
        for dtype in script.PRECISIONS[model]:
            hand = script.Hand.of(model, dtype)
            document = script.scenario(model, dtype, device)
            document["workload"]["duration"] = 5
            tp = max(script.layouts(model, device))
            document["clients"][0]["parallel"] = {"tp": tp}
            try:
                demand = demand_of(load_scenario(document))
            except InputError as error:
                assert "do not fit" in str(error)
                continue
            assert demand is not None
            found = fewest_clients(demand)
            clients = None if found is None else found[0]
            bound, _ = hand.bound(card, tp, demand.rate, script.lengths_of(hand.model))
            assert clients is None or clients * tp >= bound, (device, dtype)
            for wide, most in before.items():
                if most is not None and script.bits(dtype) < script.bits(wide):
                    assert clients is not None, (device, dtype)
                    assert clients <= most, (device, dtype)
            before[hand.expert_dtype] = clients


@pytest.mark.thorough
def test_eight_bits_need_no_more_devices_than_sixteen() -> None:
    devices = {}
    for dtype in ("bf16", "fp8"):
        found = size(scenario(dtype), devices=["h100-sxm"], tps=[1], splits=Splits([1]), layouts=["mixed"], workers=0)
        devices[dtype] = found.ranked[0].devices
    assert 1 <= devices["fp8"] <= devices["bf16"] <= 4


@pytest.mark.long
def test_the_table_of_the_page_has_the_bounds_of_today(script: ModuleType) -> None:
    rows = list(csv.DictReader(TABLE.read_text().splitlines()))
    asked = [(model, device, dtype) for model in PUBLISHED for device in script.DEVICES
             for dtype in script.PRECISIONS[model]]
    assert len(rows) == len(asked)
    for row, (model, device, dtype) in zip(rows, asked, strict=True):
        assert (row["model"], row["card"]) == (model, device)
        if not row["devices"].isdecimal():
            continue
        devices, hand = int(row["devices"]), script.Hand.of(model, dtype)
        bound, needs = hand.bound(load_device(device), int(row["layout"].removeprefix("TP")), script.RATES[model],
                                  script.lengths_of(hand.model))
        assert int(row["bound"]) == bound
        assert [row["memory"], row["bandwidth"], row["FLOPs"]] == [f"{need:.2f}" for need in needs]
        assert bound <= devices
        assert all(devices <= int(wide["devices"]) for wide in rows
                   if (wide["model"], wide["card"]) == (model, device) and wide["devices"].isdecimal()
                   and script.bits(row["precision"]) < script.bits(wide["precision"]))


@pytest.mark.whole
def test_the_table_of_the_page_is_that_of_the_command(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["--csv", str(tmp_path / "table.csv")]) == 0
    assert (tmp_path / "table.csv").read_text() == TABLE.read_text()
