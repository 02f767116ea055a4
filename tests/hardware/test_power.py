"""Watts: the formula by hand, bounds, and means over runs that keep the energy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.hardware import HARDWARE
from hermes.hardware.devices import load_device
from hermes.hardware.power import GPU_SHARES, StatePower, UtilisedPower, device_power, state_watts, utilisation
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
    assert tdp(priced).run_w(runs)[0] == pytest.approx(299 + 2275 * compute[0] + 237 * memory[0])
    assert tdp(priced).idle_w == 70


@given(st.integers(0, 10**6))
def test_between_serving_and_the_most_that_the_card_holds(seed):
    rng = np.random.default_rng(seed)
    priced = model("llama-3.1-70b", tp=4, dtype=str(rng.choice(["bf16", "fp8"])))
    cases = [(stats, 1 if stats.prefill_tokens else int(rng.integers(1, 50))) for stats in random_stats(rng, 30)]
    watts = tdp(priced).run_w(runs_of(priced, cases))
    assert (watts >= 299).all()
    assert (watts <= 687).all()


def test_a_run_of_steps_draws_what_its_steps_draw():
    priced = model()
    stats = batch([], [500, 1500, 9000])
    single = runs_of(priced, [(advanced(stats, j), 1) for j in range(40)])
    joules = (tdp(priced).run_w(single) * single["end_ns"]).sum()
    whole = runs_of(priced, [(stats, 40)])
    assert (tdp(priced).run_w(whole) * whole["end_ns"]).sum() == pytest.approx(joules, rel=1e-6)


def test_prefill_draws_more_than_decode_and_more_batch_more_than_less():
    priced = model()
    runs = runs_of(priced, [(batch([], [1000]), 1), (batch([], [1000] * 64), 1), (batch([(2048, 0)], []), 1)])
    watts = tdp(priced).run_w(runs)
    assert watts[0] < watts[1] <= watts[2] == 687


def test_means_by_state_keep_the_energy():
    priced = model()
    cases = [(stats, 1) for stats in random_stats(np.random.default_rng(5), 90)]
    runs, power = runs_of(priced, cases), tdp(priced)
    prefill_w, decode_w = state_watts(power, runs)
    prefill = runs["prefill_seqs"] > 0
    by_state = prefill_w * runs["end_ns"][prefill].sum() + decode_w * runs["end_ns"][~prefill].sum()
    assert by_state == pytest.approx((power.run_w(runs) * runs["end_ns"]).sum(), rel=1e-12)
    none = {name: column[:0] for name, column in runs.items()}
    assert state_watts(power, none) == (299.0, 299.0)
    assert state_watts(StatePower(1.0, 3.0, 2.0, "given"), none) == (3.0, 2.0)


@pytest.mark.parametrize(("device", "share"), [("a100-80gb", GPU_SHARES.serving), ("cpu-large", 0.30)])
def test_devices_without_measured_watts_take_shares_of_their_tdp(device, share):
    described = load_device(device)
    assert described.power is None
    power, source = device_power(described)
    assert power.serving == pytest.approx(share * described.tdp_w)
    assert power.most <= described.tdp_w
    assert source.startswith("assumed")


def test_batches_draw_what_servers_drew():
    """An H100 that decodes few sequences draws 490 W in ML.ENERGY's leaderboard, one with a large batch 690."""
    priced = model(efficiency="h100-sxm")
    one, many = tdp(priced).run_w(runs_of(priced, [(batch([], [1000]), 1), (batch([], [400] * 512), 1)]))
    assert 400 < one < 600
    assert many == pytest.approx(687, rel=0.02)
