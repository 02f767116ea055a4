"""The study of the memory hierarchy: its arithmetic by hand, its designs, and what its points simulate."""

import pandas as pd
import pytest

from hermes.scenario.build import build
from hermes.study import load_study, scenario_of

STUDY = load_study("memory-hierarchy")
points, hand, lone, rag, plots, report = map(STUDY.module, ("points", "hand", "lone", "rag", "plots", "report"))


@pytest.fixture
def context(tmp_path):
    return STUDY.context(tmp_path, workers=0)


def test_arithmetic_by_hand():
    """8,000 tokens: 2 x 70.55e9 x 8,000 + 2 x 80 x 8,192 x 6.4e7 are 1.213 PFLOP, at 4 x 494.7 TFLOP/s 0.613 s."""
    assert hand.KV_BYTES == 327_680
    assert hand.recompute_s(8000) == pytest.approx(0.613, abs=0.001)
    assert hand.bandwidth_to_break_even(8000) == pytest.approx(8000 * 327_680 / 0.613, rel=0.001)
    assert hand.found_share(100e9, 1e9, 90.0, 10.0) == pytest.approx(1 - 1 / 2.71828, abs=1e-5)
    assert hand.found_share(1e12, 1e9, 1.0, 0.0) == pytest.approx(1)
    assert hand.gap_kept(230.2585e9, 1e9) == pytest.approx(100)   # ln 10 times a gap finds 90%


def test_dollars_of_a_design(context):
    """24 x 3.99 $/h; 6,144 GB x $17.3 / 35,040 h and 6,144 GB x 0.08 W x $0.1/kWh."""
    dollars = points.host(256).dollars_per_hour(context, 3.99)
    assert dollars == pytest.approx(24 * 3.99 + 6144 * (17.3 / 35_040 + 0.08e-3 * 0.1))
    dear = STUDY.context(context.out, changes=["cxl_premium=2"])
    box = points.DESIGNS["CXL box"]
    more = box.dollars_per_hour(dear, 0.0) - box.dollars_per_hour(context, 0.0)
    assert more == pytest.approx(16_000 * 17.3 / 35_040)


def test_a_front_has_what_no_other_beats():
    dollars, good = pd.Series([1.0, 2.0, 2.0, 3.0, 4.0]), pd.Series([5.0, 7.0, 6.0, 7.0, None])
    assert plots.front(dollars, good) == [True, True, False, False, False]
    assert plots.front(dollars[:3], pd.Series([5.0, 7.0, 4.0]), lower=True) == [True, False, True]


def test_designs_are_their_memories(context):
    """Tiers of the built scenario; without sharing each replica has the box's bandwidth to itself."""
    box = points.DESIGNS["CXL box"]
    for design, rates in ((box, (60e9, None)), (report.unshared(box), (10e12, 60e9)),
                          (points.host(64), (460.8e9, 256e9))):
        made = build(scenario_of(context, points.point(context, design, 1.0), "assistant.yaml"))
        tiers = {id(client.tiers[0]): client.tiers[0] for client in made.clients}
        assert len(tiers) == (1 if design.stores[0].shared else points.REPLICAS)
        assert {tier.rates[:2] for tier in tiers.values()} == {rates}


def test_accesses_of_a_search_are_the_service_s(context):
    point = rag.Point("x", {})
    service = build(scenario_of(context, point, "rag.yaml")).clients[-1].services["retrieve"]
    waits = sum(sum(pair) for pair in zip(service.distances(64), service.steps(64), strict=True))
    assert rag.accesses() == pytest.approx(waits)
    assert pytest.approx(service.memory_bytes / 1e9) == rag.INDEX_GB


def test_break_even_by_hand_and_simulated(context):
    """Within 10%, and host DRAM is far above it."""
    found = lone.break_even(context)
    assert (found["difference"].abs() < 0.1).all()
    assert (found["TTFT from host DRAM, s"] < 0.6 * found["TTFT recomputed, s"]).all()
    assert found["tokens"].tolist() == [2016, 8016, 24016]
