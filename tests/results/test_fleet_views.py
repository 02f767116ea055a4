"""Replicas that come and go, as seen in results: minutes out of limit, charts, Chrome trace, report, sweep, compare."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_records import by_hand, random_record

from hermes.api import simulate
from hermes.cli import main
from hermes.core.record import DOWN, DRAINING, GONE, MEMBER_STATES, READY, STARTING, STATUS_REJECTED, RunRecord
from hermes.errors import InputError
from hermes.explore import open_sweep, run_sweep
from hermes.explore.sweep.figures import figures
from hermes.results.brief import brief
from hermes.results.charts import Panel
from hermes.results.charts.fleet_charts import MAX_RULES, MAX_STEPS, STATE_COLOURS, fleet_panels
from hermes.results.charts.report_page import runs_page
from hermes.results.charts.run_charts import chart
from hermes.results.compare import compare
from hermes.results.figures import replica_states
from hermes.results.figures.membership import mean_devices
from hermes.results.figures.replica_states import Decision, decisions, longest_queue, spans, state_counts
from hermes.results.figures.slo_minutes import slo_minutes
from hermes.results.figures.usage import window_ns
from hermes.results.files.export import write_results
from hermes.results.files.stored import open_run
from hermes.results.files.trace import trace_events
from hermes.results.plots import draw, image
from hermes.results.results import Results
from hermes.results.slo import SloConfig, slo_groups

S = 1_000_000_000
MS = 1_000_000


def scenario(**more: Any) -> dict[str, Any]:
    """A group that is too small for its load until 200 s: the schedule comes too late."""
    changes = [{"at": "100 s", "replicas": 2}, {"at": "140 s", "replicas": 3}, {"at": "300 s", "replicas": 1}]
    return {
        "name": "late", "seed": 3, "slo": {"ttft": "1 s", "e2e": "10 s", "percentile": 95},
        "workload": {"requests": 2000, "arrivals": {"kind": "poisson", "rate": 5},
                     "lengths": {"kind": "fixed", "prompt": 1800, "output": 256}},
        "clients": [{
            "name": "llm", "count": 3, "model": "llama-3.1-8b", "device": "h100-sxm", "price_per_hour": 3.6,
            "scheduler": {"kind": "chunked", "max_num_seqs": 10},
            "fleet": {"start": 1, "start_up": {"total": "60 s"},
                      "autoscaler": {"kind": "schedule", "changes": changes}},
        }], **more}


@pytest.fixture(scope="module")
def late() -> Results:
    return simulate(scenario())


@pytest.fixture(scope="module")
def fixed() -> Results:
    data = scenario()
    del data["clients"][0]["fleet"]
    return simulate(data)


def hand(*rows: tuple[int, int, int, int, str], end_s: int = 100) -> RunRecord:
    """A record by hand with these rows of membership, of two clients of a group `llm`; times in seconds."""
    table = np.array([(client, number, at * S, state) for client, number, at, state, _ in rows], dtype=np.int64)
    record = by_hand()
    clients = [replace(info, group="llm" if info.kind == "llm" else "") for info in record.clients]
    return replace(record, clients=clients, membership=table, membership_reasons=[row[4] for row in rows],
                   end_ns=end_s * S)


TWO = ((0, 0, 0, READY, "start"), (1, -1, 0, GONE, "free slot"), (1, 0, 10, STARTING, "load"),
       (1, 0, 20, READY, "started"), (1, 0, 50, DRAINING, "calm"), (1, 0, 50, GONE, "drained"),
       (1, 1, 60, STARTING, "load"), (1, 1, 65, GONE, "calm"))


def marks(panel: Panel, mark: str) -> list[Any]:
    return [layer.frame for layer in panel.layers if layer.mark == mark]


# -- states ------------------------------------------------------------------------------------------------------------


def test_states_over_time_by_hand() -> None:
    record = hand(*TWO)
    times, counts = state_counts(record, [0, 1])
    assert (times // S).tolist() == [0, 10, 20, 50, 60, 65]
    assert counts[:, READY].tolist() == [1, 1, 2, 1, 1, 1]
    assert counts[:, STARTING].tolist() == [0, 1, 0, 0, 1, 0]
    assert counts[:, DRAINING].tolist() == [0] * 6, "it drained for no time"
    assert (counts.sum(axis=1) == 2).all()
    assert [(one.client, one.incarnation, one.state, one.start_ns // S, one.end_ns // S, one.then)
            for one in spans(record)] == [
        (0, 0, "ready", 0, 100, ""), (1, 0, "starting", 10, 20, "ready (started)"),
        (1, 0, "ready", 20, 50, "draining (calm)"), (1, 0, "draining", 50, 50, "gone (drained)"),
        (1, 1, "starting", 60, 65, "gone (calm)")]
    assert decisions(record, [0, 1]) == [
        Decision(10 * S, "+1 load"), Decision(50 * S, "-1 calm"), Decision(60 * S, "+1 load"),
        Decision(65 * S, "-1 calm")]
    assert decisions(record, [0]) == []


def test_every_state_has_a_colour_and_a_place() -> None:
    assert {name for name in MEMBER_STATES if name != "gone"} == set(replica_states.STACK)
    assert {"starting", "ready", "draining", "down"} <= STATE_COLOURS.keys()
    assert len(set(STATE_COLOURS.values())) == len(STATE_COLOURS)


def test_a_replica_that_is_down_is_shown() -> None:
    record = hand((0, 0, 0, READY, "start"), (1, 0, 0, READY, "start"), (1, 0, 30, DOWN, "crash"),
                  (1, 1, 40, STARTING, "restart"), (1, 1, 90, READY, "started"))
    assert decisions(record, [0, 1]) == [Decision(30 * S, "-1 crash"), Decision(40 * S, "+1 restart")]
    panel = fleet_panels([("run", Results(record))])[0]
    stack = {frame["series"].iloc[0]: frame for frame in marks(panel, "stack")}
    assert list(stack) == ["ready", "starting", "down"]
    tall = stack["down"][stack["down"]["y2"] > stack["down"]["y"]]
    assert tall["x"].tolist() == [30, 40]
    assert panel.palette()["down"] == STATE_COLOURS["down"]


def test_the_longest_queue_by_hand() -> None:
    record = by_hand()   # client 0: stages wait at 140-210, 200-210 and 205-230 ms, and one starts at once
    assert longest_queue(record, [0]) == (3, 205 * MS)
    assert longest_queue(record, [1]) == (1, 240 * MS)
    assert longest_queue(record, [0, 1, 2]) == (3, 205 * MS)
    assert longest_queue(record, []) == (0, 0)


# -- minutes -----------------------------------------------------------------------------------------------------------


def minutes_of(record: RunRecord, slo: SloConfig) -> Any:
    return slo_minutes(slo_groups(slo, record), Results(record).metrics, record)


def test_minutes_out_of_limit_by_hand() -> None:
    """Requests 0, 1, 2 and 5 complete; 3 is rejected, 4 has not ended. E2E in ms: 0 within 100, the others beyond."""
    record = by_hand()
    e2e = Results(record).metrics.e2e_ns / 1e6
    done = [0, 1, 2, 5]
    arrivals = record.arrival_ns.copy()
    minute = np.array([0, 0, 2, 2, 3, 4])   # of each request; minute 1 is empty
    shifted = replace(record, arrival_ns=arrivals + minute * 60 * S, finish_ns=np.where(
        record.finish_ns >= 0, record.finish_ns + minute * 60 * S, -1))
    limit = float(np.median(e2e[done])) / 1e3
    within = np.zeros(6, dtype=np.int64)
    within[done] = e2e[done] / 1e3 <= limit
    assert 0 < within.sum() < len(done)
    found = minutes_of(shifted, SloConfig(e2e=limit, percentile=50))
    assert found.minute.tolist() == [0, 2, 3, 4]
    assert found.requests.tolist() == [2, 2, 1, 1]
    assert found.within.tolist() == [within[0] + within[1], within[2], 0, within[5]]
    shares = found.within / found.requests
    assert found.out.tolist() == (shares < 0.5).tolist(), "a share equal to the percentile is within"
    assert found.asked == (0.5,)


def test_of_a_request_without_limits_no_minute_knows(late: Results) -> None:
    groups = slo_groups(SloConfig(), late.record)
    found = slo_minutes(groups, late.metrics, late.record)
    assert len(found.minute) == 0


def test_limits_over_baselines_ask_for_99_percent(late: Results) -> None:
    slo = SloConfig(baseline_ttft=0.1, percentile=50)
    found = minutes_of(late.record, slo)
    assert found.asked == (0.99,)
    good = (late.requests["ttft_s"] <= 0.6).groupby((late.requests["arrival_s"] // 60).astype(int)).mean()
    assert found.out.tolist() == (good < 0.99).tolist()


def test_a_group_with_limits_of_its_own_is_judged_by_its_percentile() -> None:
    data = scenario()
    first = data["workload"] | {"requests": 600}
    data["workload"] = [{"name": "chat", **first}, {"name": "batch", **first}]
    data["slo"] = {"ttft": "1 s", "percentile": 95, "workloads": {"batch": {"ttft": "30 s", "percentile": 40}}}
    run = simulate(data)
    frame = run.requests.assign(minute=(run.requests["arrival_s"] // 60).astype(int))
    share = {name: frame[frame["workload"] == name].groupby("minute")["slo_ok"].mean() for name in ("chat", "batch")}
    out = (share["chat"] < 0.95) | (share["batch"] < 0.4)
    assert run.summary["fleet_slo"] == {"minutes": len(out), "slo_minutes_out": int(out.sum())}
    assert minutes_of(run.record, run.slo).asked == (0.4, 0.95)


def test_the_summary_counts_minutes_as_the_table_of_requests_says(late: Results) -> None:
    requests = late.requests
    within = (requests["ttft_s"] <= 1.0) & (requests["e2e_s"] <= 10.0)
    share = within.groupby((requests["arrival_s"] // 60).astype(int)).mean()
    out = int((share < 0.95).sum())
    assert 0 < out < len(share)
    assert late.summary["fleet_slo"] == {"minutes": len(share), "slo_minutes_out": out}
    assert ("fleet", f"out of the SLO in {out} of {len(share)} minutes") in brief(late.summary, late.meta)


def test_minutes_need_a_fleet_and_limits(fixed: Results) -> None:
    assert "fleet_slo" not in fixed.summary
    assert all(label != "fleet" for label, _ in brief(fixed.summary, fixed.meta))
    run = simulate(scenario(slo={}, workload=scenario()["workload"] | {"requests": 50}))
    assert "fleet" in run.summary
    assert "fleet_slo" not in run.summary
    assert len(fleet_panels([("run", run)])) == 2, "no panel of the SLO"


def test_a_rejected_request_is_out_of_its_limits() -> None:
    record = by_hand()
    found = minutes_of(record, SloConfig(e2e=1000.0, percentile=100))
    rejected = int((record.status == STATUS_REJECTED).sum())
    assert rejected == 1
    assert (found.requests.tolist(), found.within.tolist(), found.out.tolist()) == ([6], [4], [True])


# -- charts ------------------------------------------------------------------------------------------------------------


def test_the_figure_has_replicas_queue_and_slo(late: Results) -> None:
    replicas, queue, slo = fleet_panels([("late", late)])
    assert {panel.x.domain for panel in (replicas, queue, slo)} == {(0.0, late.record.end_ns / S)}
    ready, starting, draining = marks(replicas, "stack")
    corners = dict(zip(ready["x"], ready["y2"], strict=True))   # the last corner at each time
    assert [corners[at] for at in (0.0, 160.0, 200.0, 300.0)] == [1, 2, 3, 1]
    assert (starting["y"] == ready["y2"]).all()
    assert (draining["y"] == starting["y2"]).all()
    area = float(((ready["y2"].to_numpy()[:-1]) * np.diff(ready["x"])).sum())
    end = window_ns(late.record)[1] / S
    assert area == pytest.approx(late.summary["fleet"]["llm"]["ready_mean"] * end, rel=1e-9)
    for panel in (replicas, queue, slo):
        (rule,) = [frame for frame in marks(panel, "rule") if "x" in frame]
        assert rule["x"].tolist() == [100, 140, 300]
    assert sorted(text for frame in marks(replicas, "above") for text in frame["label"]) == [
        "+1 schedule", "-2 schedule"], "a text that would cover another is left out"
    longest = longest_queue(late.record, [0, 1, 2])
    assert queue.title == f"Stages that wait at replicas: at most {longest.stages} of llm"
    assert 0.8 * longest.stages < marks(queue, "line")[0]["y"].max() <= longest.stages
    found = minutes_of(late.record, late.slo)
    (steps,), (points,) = marks(slo, "step"), marks(slo, "point")
    assert steps["x"].tolist()[:-1] == (60.0 * found.minute).tolist()
    assert steps["y"].tolist()[:-1] == pytest.approx(found.share.tolist())
    assert points["y"].tolist() == pytest.approx(found.share[found.out].tolist())
    assert slo.title.endswith(f"{found.out.sum()} of {len(found.minute)} minutes out of limit")
    assert [frame["y"].tolist() for frame in marks(slo, "rule") if "y" in frame] == [[0.95]]


def test_a_minute_without_requests_breaks_the_line() -> None:
    record = by_hand()
    minute = np.array([0, 0, 2, 2, 2, 2]) * 60 * S
    record = replace(hand(*TWO, end_s=150), arrival_ns=record.arrival_ns + minute, finish_ns=np.where(
        record.finish_ns >= 0, record.finish_ns + minute, -1))
    slo = fleet_panels([("run", Results(record, slo=SloConfig(e2e=1.0)))])[-1]
    (steps,) = marks(slo, "step")
    assert steps["x"].tolist() == [0, 60, 120, 150], "the last minute is cut short"
    assert np.isnan(steps["y"].tolist()[1])


def test_many_changes_are_means_and_many_decisions_are_not_drawn() -> None:
    rows = [(0, 0, 0, READY, "start"), (1, -1, 0, GONE, "free slot")]
    for number in range(MAX_STEPS):
        rows += [(1, number, 4 * number + 1, STARTING, "up"), (1, number, 4 * number + 2, READY, "started"),
                 (1, number, 4 * number + 4, DRAINING, "down again"), (1, number, 4 * number + 4, GONE, "drained")]
    record = hand(*rows, end_s=4 * MAX_STEPS + 1)
    panel = fleet_panels([("run", Results(record))])[0]
    ready = marks(panel, "stack")[0]
    assert len(ready) < MAX_STEPS
    inner = ready["y2"].to_numpy()[2:-4]
    assert inner.min() == pytest.approx(1.5, abs=0.05)
    assert inner.max() == pytest.approx(1.5, abs=0.05)
    assert marks(panel, "rule") == marks(panel, "above") == []
    assert f"{2 * MAX_STEPS} decisions" in panel.said
    assert panel.title.startswith("llm: 2 ready at most")
    assert 2 * MAX_STEPS > MAX_RULES


def test_it_is_drawn_in_files_and_notebooks(late: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = chart([("late", late)], "fleet")
    slo = late.summary["fleet_slo"]
    assert made.title.endswith(f"out of the SLO in {slo['slo_minutes_out']} of {slo['minutes']} minutes")
    assert image(made, "png").startswith(b"\x89PNG")
    figure = draw(made)
    assert [len(axis.collections) for axis in figure.axes[:1]] == [3]   # the stacked states
    write_results(late, tmp_path / "run")
    assert main(["plot", str(tmp_path / "run"), "--kind", "fleet", "-o", str(tmp_path / "a.svg")]) == 0
    assert chart([("late", open_run(tmp_path / "run"))], "fleet").title == made.title
    both = fleet_panels([("a", late), ("b", late)])
    assert [panel.title.split(":")[0] for panel in both[:2]] == ["llm of a", "llm of b"]
    assert len(both) == 4
    capsys.readouterr()


def test_without_a_fleet_nothing_comes_and_goes(fixed: Results) -> None:
    with pytest.raises(InputError, match="nothing comes and goes"):
        chart([("fixed", fixed)], "fleet")
    assert fleet_panels([("fixed", fixed)]) == []


# -- Chrome trace ------------------------------------------------------------------------------------------------------


def events_of(record: RunRecord, limit: int = 10**6) -> list[dict[str, Any]]:
    return list(trace_events(record, Results(record).metrics, limit))


def test_the_trace_has_states_and_ready_replicas() -> None:
    record = hand(*TWO)
    events = events_of(record)
    slices = [event for event in events if event.get("cat") == "replica"]
    assert [(event["pid"] - 3, event["name"], event["ts"] / 1e6, event["dur"] / 1e6, event["args"])
            for event in slices] == [
        (0, "ready", 0, 100, {"incarnation": 0, "reason": "start"}),
        (1, "starting", 10, 10, {"incarnation": 0, "reason": "load", "then": "ready (started)"}),
        (1, "ready", 20, 30, {"incarnation": 0, "reason": "started", "then": "draining (calm)"}),
        (1, "starting", 60, 5, {"incarnation": 1, "reason": "load", "then": "gone (calm)"})]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    counters = [event for event in events if event["name"].startswith("ready ") and event["ph"] == "C"]
    assert {names[event["pid"]] for event in counters} == {"replicas"}
    assert [(event["name"], event["ts"] / 1e6, event["args"]["ready"]) for event in counters] == [
        ("ready llm", 0, 1), ("ready llm", 20, 2), ("ready llm", 50, 1)]


def test_a_cut_trace_leaves_later_states_out() -> None:
    record = hand(*TWO)
    whole = [event for event in events_of(record) if event["ph"] != "M"]
    for limit in range(2, len(whole)):
        assert sum(event["ph"] != "M" for event in events_of(record, limit)) <= limit + 1   # and the note of the cut


def test_a_trace_without_a_fleet_has_no_replicas() -> None:
    for record in (by_hand(), random_record(3)[0]):
        assert not [event for event in events_of(record) if event.get("cat") == "replica" or event.get("tid") == 2
                    or event.get("args", {}).get("name") == "replicas"]


# -- report, sweep, compare --------------------------------------------------------------------------------------------


def cells(page: str) -> list[str]:
    table = page.split("<h2>Replicas</h2>", 1)[1].split("</table>", 1)[0]
    return re.findall(r"<td>(.*?)</td>", table)


@pytest.mark.long
def test_the_report_has_a_section_of_replicas(late: Results, fixed: Results) -> None:
    page = runs_page([("late", late)])
    found = cells(page)
    group = late.summary["fleet"]["llm"]
    start, end = window_ns(late.record)
    assert found[:2] == ["llm", "3"]
    assert [float(found[place]) for place in (2, 3, 4, 5, 6)] == pytest.approx(
        [group["ready_mean"], group["ready_most"], group["held_device_hours"], group["started"], group["drained"]],
        rel=1e-3)
    assert float(found[7]) == pytest.approx(late.summary["cost"]["total_dollars"], rel=1e-3)
    assert float(found[8]) == pytest.approx(3 * 3.6 * (end - start) / S / 3600, rel=1e-3)
    assert found[9].startswith(f"{longest_queue(late.record, [0, 1, 2]).stages} at ")
    slo = late.summary["fleet_slo"]
    assert f"SLO: {slo['slo_minutes_out']} of {slo['minutes']} minutes out of limit" in page
    assert page.index("<h2>Replicas</h2>") < page.index("<h2>Charts</h2>")
    numbers = [int(number) for number in re.findall(r'id="chart(\d+)"', page)]
    assert sorted(numbers) == list(range(len(numbers)))
    assert "Replicas</h2>" not in runs_page([("fixed", fixed)])
    both = cells(runs_page([("late", late), ("fixed", fixed)]))
    assert both[0] == "llm of late"
    assert len(both) == 10


def test_devices_of_a_sweep_are_those_held(late: Results, fixed: Results, tmp_path: Path) -> None:
    held = window_ns(late.record)[1] / S   # from 0 on
    assert figures(late)["devices"] == pytest.approx(
        late.summary["fleet"]["llm"]["held_device_hours"] * 3600 / held, rel=1e-12)
    assert figures(fixed)["devices"] == 3
    assert type(figures(fixed)["devices"]) is int
    assert mean_devices(late.record, 0, 100 * S) == 1.0
    assert mean_devices(late.record, 0, 160 * S) == pytest.approx((160 + 60 + 20) / 160)
    few = scenario(workload=scenario()["workload"] | {"requests": 60})
    run_sweep({"scenario": few, "cases": [{"label": "fleet"}, {"label": "fixed", "set": {"clients.0.fleet": None}}]},
              tmp_path / "sweep", workers=0)
    assert open_sweep(tmp_path / "sweep").frame()["devices"].tolist() == [1.0, 3.0]


def test_two_fleets_are_compared(late: Results, fixed: Results) -> None:
    other = simulate(scenario(seed=4))
    table = compare(late, other, allow_different_requests=True)
    rows = {row.name: row for row in table.totals}
    for key in ("ready_mean", "held_device_hours"):
        row = rows[f"fleet.llm.{key}"]
        ours, theirs = (side.summary["fleet"]["llm"][key] for side in (late, other))
        assert (row.ours, row.reference) == (ours, theirs)
        assert row.error == pytest.approx(ours / theirs - 1)
    assert "llm: device-hours held" in table.to_text()
    one_side = {row.name: row for row in compare(late, fixed).totals}
    assert one_side["fleet.llm.ready_mean"].reference is None
    assert not [row for row in compare(fixed, fixed).totals if row.name.startswith("fleet.")]
