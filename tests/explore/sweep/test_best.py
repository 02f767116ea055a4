"""The best setting of a sweep: intervals, paired differences, and what never is the best."""

import math

import pytest

import hermes
from hermes.cli import main
from hermes.explore.sweep.best import Setting, best_of, mean_of

SWEEP = """
name: caches
scenario:
  workload:
    requests: 60
    arrivals: {kind: poisson, rate: 5.0}
    lengths: {kind: fixed, prompt: 100, output: 2}
    prefixes: {groups: 2, tokens: 64}
  clients:
    - name: llm
      hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-h100-tp8}
      memory: {num_blocks: 5000}
  slo: {ttft: 1 s}
cases: [{label: with, set: {}}, {label: without, set: {clients.0.memory.prefix_caching: false}}]
seeds: 3
"""


def setting(label, goods, devices=1, **more):
    return Setting(label, {seed: {"headline.goodput_per_s": good, "headline.offered_per_s": 10.0, "devices": devices,
                                  "slo.pass": True, "settling.settled": True, "headline.output_tokens_per_s": good,
                                  **more} for seed, good in enumerate(goods)})


def test_the_interval_of_three_seeds_by_hand():
    """4.303, Student's t of two degrees of freedom, times 1 / sqrt(3)."""
    assert mean_of([9.0, 10.0, 11.0]) == pytest.approx((10.0, 4.303 / math.sqrt(3)), rel=1e-3)
    assert mean_of([9.0]) == (9.0, None)


def test_seeds_are_paired():
    """The seeds differ by far more than the settings, and by the same in each: 0.1 +-0.0 is no noise."""
    best = best_of([setting("a", [8.0, 10.0, 12.0]), setting("b", [7.9, 9.9, 11.9]), setting("c", [8.2, 9.7, 11.9])])
    assert best.label == "a"
    assert best.differences["b"] == pytest.approx((-0.01, 0.0))
    assert best.within_noise == ["c"]   # differs by +0.2, -0.3, -0.1


def test_what_did_not_settle_is_never_the_best():
    lost = {"settling.settled": False, "settling.why": "short"}
    for more, none in (({}, "no point meets the SLO; 2 of 2 did not settle"), ({"slo.pass": None}, "no point settled")):
        fast, slow = setting("fast", [9.0, 9.0], **more, **lost), setting("slow", [5.0, 5.0], **more)
        assert best_of([fast, slow]).label == "slow"
        assert best_of([fast, setting("grows", [9.9], **more, **{"headline.stable": False})]).label is None
        assert best_of([fast, setting("none", [], **more)]).seen in (none, "latency and throughput")
    outage = setting("outage", [9.9], **{"slo.pass": None, "headline.stable": False, "headline.changes": True})
    assert best_of([setting("slow", [5.0], **{"slo.pass": None}), outage]).label == "outage"   # not the load's doing
    one_misses = setting("flips", [9.0, 9.0])
    one_misses.rows[1] |= {"slo.pass": False}
    assert best_of([one_misses, setting("slow", [5.0, 5.0])]).label == "slow"


def test_the_fewest_devices_of_one_load():
    best = best_of([setting("many", [9.0, 9.0], 4), setting("few", [8.0, 8.1], 1), setting("two", [8.5, 8.5], 2)])
    assert best.seen == "few is the fewest that meets the SLO (8.05/s within it on 1 device)"
    assert best.differences == {}   # the others have more


def test_the_table_has_one_row_for_the_seeds_of_a_setting(tmp_path, capsys):
    (tmp_path / "caches.yaml").write_text(SWEEP)
    assert main(["sweep", str(tmp_path / "caches.yaml"), "-o", str(tmp_path / "out"), "--workers", "0", "-q"]) == 0
    opened = hermes.open_sweep(tmp_path / "out")
    frame, lines = opened.frame(), opened.to_text().splitlines()
    capsys.readouterr()
    assert max(map(len, lines)) <= 80
    heads = lines[1].split()
    assert (heads[0], heads[-1]) == ("case", "%")
    for line, name in zip(lines[2:4], ("with", "without"), strict=True):
        mine, cells = frame[frame["case"] == name], line.split()
        assert cells[0] == name
        assert float(cells[4]) == pytest.approx(1e3 * mine["latency.ttft_s.p99"].mean(), rel=0.006)
        hits = 100 * mine["cache.hit_rate"].mean()   # without a cache there is no rate
        assert cells[-1] == "-" if math.isnan(hits) else float(cells[-1]) == pytest.approx(hits, rel=0.006)
    below = lines[lines.index("means over the seeds, with 95% intervals:") + 1:]
    assert below[0].split()[:2] == ["case", "n"]
    values = frame[frame["case"] == "with"]["latency.ttft_s.p99"] * 1e3
    half = 4.303 * values.std() / math.sqrt(3)
    assert f"+-{half:.2g}" in below[1]
    assert below[1].split()[:2] == ["with", "3"]
