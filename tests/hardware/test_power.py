"""Watts: the formula by hand, bounds, and means over runs that keep the energy."""

import numpy as np
import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from hermes.clients.resources import power_model
from hermes.hardware import HARDWARE
from hermes.hardware.descriptions.devices import DevicePower, load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.power import (
    MOST_SHARE,
    SERVING_SHARE,
    StatePower,
    UtilisedPower,
    assumed,
    device_power,
    idle_watts,
    state_watts,
    utilisation,
    watts,
    watts_trust,
)
from hermes.testing.hardware import advanced, batch, columns_of, random_stats


def model(name="llama-3.1-8b", device="h100-sxm", **options):
    data = {"kind": "roofline", "model": name, "device": device, **options}
    return HARDWARE.get("roofline").model_validate(data).build()


def runs_of(priced, cases):
    """Runs as the record has them: statistics of the first step, and how long they took."""
    columns = columns_of([stats for stats, _ in cases])
    steps = np.array([count for _, count in cases])
    span = np.array([priced.run_ns(stats, count).sum() for stats, count in cases])
    return columns | {"num_steps": steps, "start_ns": np.zeros_like(span), "end_ns": span}


def tdp(priced):
    return UtilisedPower(priced.device, priced.work, *device_power(priced.device))


@pytest.mark.feature("Hardware", "Watts, energy, dollars")
def test_formula_by_hand():
    priced = model(efficiency="ideal")
    stats = batch([], [1000])
    runs = runs_of(priced, [(stats, 1)])
    seconds = runs["end_ns"][0] / 1e9
    weights = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    flops = 2 * weights + 2 * 4096 * 128256 + 32 * 4 * 32 * 128 * 1001
    compute, memory, network = utilisation(priced.device, priced.work, runs)
    assert compute[0] == pytest.approx(flops / 989.4e12 / seconds, rel=1e-6)
    assert memory[0] == pytest.approx(1.0, abs=1e-3)   # one decode is all memory
    assert network[0] == 0.0
    assert tdp(priced).run_w(runs)[0] == pytest.approx(196 + 682 * compute[0] + 337 * memory[0] + 0.026 / seconds)
    assert tdp(priced).idle_w == 70


@given(st.integers(0, 10**6))
def test_between_serving_and_the_most_that_the_card_holds(seed):
    rng = np.random.default_rng(seed)
    priced = model("llama-3.1-70b", tp=4, dtype=str(rng.choice(["bf16", "fp8"])))
    cases = [(stats, 1 if stats.prefill_tokens else int(rng.integers(1, 50))) for stats in random_stats(rng, 30)]
    drawn = tdp(priced).run_w(runs_of(priced, cases))
    assert (drawn >= 196).all()
    assert (drawn <= 687).all()


def test_a_run_of_steps_draws_what_its_steps_draw():
    priced = model()
    stats = batch([], [500, 1500, 9000])
    single = runs_of(priced, [(advanced(stats, j), 1) for j in range(40)])
    joules = (tdp(priced).run_w(single) * single["end_ns"]).sum()
    whole = runs_of(priced, [(stats, 40)])
    assert (tdp(priced).run_w(whole) * whole["end_ns"]).sum() == pytest.approx(joules, rel=1e-6)


def test_prefill_draws_more_than_decode_and_more_batch_more_than_less():
    priced = model()
    runs = runs_of(priced, [(batch([], [1000]), 1), (batch([], [1000] * 16), 1), (batch([(2048, 0)], []), 1)])
    drawn = tdp(priced).run_w(runs)
    assert drawn[0] < drawn[1] < 687
    assert drawn[2] == pytest.approx(687, rel=0.02)   # all of it products


def test_means_by_state_keep_the_energy():
    priced = model()
    cases = [(stats, 1) for stats in random_stats(np.random.default_rng(5), 90)]
    runs, power = runs_of(priced, cases), tdp(priced)
    prefill_w, decode_w = state_watts(power, runs)
    prefill = runs["prefill_seqs"] > 0
    by_state = prefill_w * runs["end_ns"][prefill].sum() + decode_w * runs["end_ns"][~prefill].sum()
    assert by_state == pytest.approx((power.run_w(runs) * runs["end_ns"]).sum(), rel=1e-12)
    none = {name: column[:0] for name, column in runs.items()}
    assert state_watts(power, none) == (196.0, 196.0)
    assert state_watts(StatePower(1.0, 3.0, 2.0, "given"), none) == (3.0, 2.0)


def test_time_without_work_draws_serving_and_more_work_never_less():
    power = assumed(700.0, 3.35e12)
    assert watts(power, 0.0, 0.0) == power.serving
    rng = np.random.default_rng(3)
    least = rng.uniform(0, 1, (200, 4)) * [1, 1, 1, 20000]
    more = least + rng.uniform(0, 1, (200, 4)) * [1, 1, 1, 20000]
    drawn, higher = (watts(power, *each.T) for each in (least, more))
    assert (higher >= drawn).all()
    assert (higher > drawn)[drawn < power.most].all()
    assert (drawn >= power.serving).all()
    assert (higher <= power.most).all()


def test_time_in_collectives_lowers_the_watts():
    """The same step, a part of its time longer for slower all-reduces: as much work, fewer watts, never below
    `serving`."""
    link = {"latency": 5e-6, "bandwidth": 400e9}
    fast, slow = (HARDWARE.get("composed").model_validate({
        "kind": "composed", "model": "llama-3.1-70b", "device": "h100-sxm", "tp": 4,
        "link": {**link, "latency": link["latency"] * times}}).build() for times in (1, 20))
    drawn = []
    for priced in (fast, slow):
        power = UtilisedPower(priced.base.device, priced.base.work, *device_power(priced.base.device))
        drawn.append(power.run_w(runs_of(priced, [(batch([], [1000] * 32), 1)]))[0])
    assert 196 < drawn[1] < 0.9 * drawn[0] < 687


def test_stages_of_a_pipeline_take_turns():
    """Each of two stages works half of the time on one batch: a device draws as if its units were half as busy."""
    priced = model("llama-3.1-70b", tp=2, pp=2)
    runs = runs_of(priced, [(batch([], [1000] * 8), 1)])
    whole, halved = (utilisation(priced.device, priced.work, runs, stages) for stages in (1, 2))
    for unit in (0, 1):
        assert halved[unit] == pytest.approx(whole[unit] / 2)
    power = power_model(None, priced.info, priced.device, "llama-3.1-70b", 4, None)
    assert power.stages == 2
    tokens = 8 / (runs["end_ns"][0] / 1e9) / 2
    assert power.run_w(runs)[0] == pytest.approx(watts(power.power, *(unit[0] for unit in halved), tokens))


def test_two_batches_in_two_stages_keep_their_devices_busy():
    """A batch in flight is a client with its part of the devices, and does the work of all stages on them."""
    priced = model("llama-3.1-70b", tp=2, pp=2)
    assert power_model(None, priced.info, priced.device, "llama-3.1-70b", 2, None).stages == 1


@pytest.mark.parametrize(("device", "serving", "most"), [
    ("l40s", SERVING_SHARE, MOST_SHARE), ("mi300x", SERVING_SHARE, MOST_SHARE), ("cpu-large", 0.30, 1.0)])
def test_devices_without_measured_watts_take_those_of_others_by_their_tdp(device, serving, most):
    described = load_device(device)
    assert described.power is None
    power, source = device_power(described)
    assert power.serving == pytest.approx(serving * described.tdp_w)
    assert power.most == pytest.approx(most * described.tdp_w)
    assert source.startswith("assumed")
    assert "guess" in source


def test_the_class_of_watts_is_that_of_the_card():
    """Measured on servers with the card, taken over from one, or nobody's."""
    kinds = {"h100-sxm": "near", "b200": "near", "a100-80gb": "near", "h200": "guess", "l4": "guess",
             "cpu-large": "guess"}
    named = {name: watts_trust(load_device(name)) for name in kinds}
    assert {name: each.kind for name, each in named.items()} == kinds
    assert named["l4"].high - named["l4"].low > named["b200"].high - named["b200"].low


@each("device", [name for name in names_in("devices") if load_device(name).tdp_w])
def test_every_card_idles_below_what_it_serves_with_and_holds_its_tdp(device):
    described = load_device(device)
    power, _ = device_power(described)
    assert idle_watts(described) <= power.serving * 1.1   # CPUs without idle watts, and the share of a small card
    assert power.serving < power.most <= described.tdp_w


def test_batches_draw_what_servers_drew():
    """An H100 that decodes few sequences draws 486 W in ML.ENERGY's leaderboard, one with a large batch 690."""
    priced = model(efficiency="h100-sxm")
    one, many = tdp(priced).run_w(runs_of(priced, [(batch([], [1000]), 1), (batch([], [400] * 512), 1)]))
    assert 400 < one < 550
    assert many == pytest.approx(687, rel=0.02)


def test_a_power_of_a_device_file_needs_no_joules_per_token():
    power = DevicePower(serving=100, memory=50, compute=300, most=400)
    assert watts(power, 0.5, 1.0, 0.0, 1e6) == 300.0
