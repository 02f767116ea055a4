"""The study `start-up`: its schedule, and the queue of one step of the load by hand."""

import itertools

import pytest

from hermes import simulate
from hermes.config.data_files import resource_dir
from hermes.study import load_study

SCENARIO = resource_dir("scenarios") / "studies" / "start-up" / "step.yaml"
STUDY = load_study("start-up")
report, queue_figures = STUDY.module("report"), STUDY.module("figures").queue_figures


def test_a_schedule_asks_before_the_hour_and_lets_go_after_it():
    assert report.changes_ahead([2, 3, 3, 1], 360) == [(0, 2), (3240, 3), (10860, 1)]


def test_leads_over_an_hour_stay_in_order_and_keep_what_is_still_needed():
    """Two hours ahead: the four of the third hour are asked for from the start, and kept until it ends."""
    assert report.changes_ahead([1, 2, 4, 1, 3], 7200) == [(0, 4), (10860, 3)]


@pytest.mark.parametrize("lead", [0, 2, 60])
def test_every_schedule_is_in_order_within_the_day(tmp_path, lead):
    context = STUDY.context(tmp_path, changes=[f"lead={lead}"])
    at = [float(change["at"].split()[0])
          for change in report._schedule(context, 60)["clients.0.fleet.autoscaler"]["changes"]]
    assert at
    assert all(before < after for before, after in itertools.pairwise([0, *at, 24 * 3600]))


@pytest.mark.long
def test_queue_of_a_step_by_hand():
    """1.2/s come and 12 / 17.0 s are served: 0.494/s wait, for 15 s of reaction and 240 s of start-up."""
    found = [queue_figures(simulate(str(SCENARIO), overrides=[f"seed={seed}"])) for seed in range(1, 7)]
    assert [one["full_s"] for one in found] == pytest.approx([17.0] * 6, rel=0.01)
    assert sum(one["waiting"] for one in found) / 6 == pytest.approx((1.2 - 12 / 17.0) * 255, rel=0.15)
