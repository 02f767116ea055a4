"""Runs that change are judged as a whole: their printed figures come from the same requests, and contradict each other
nowhere. Forty are drawn by a seed; their figures are computed again from the tables on disk."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from long_runs import count

import hermes
from hermes.explore.sweep.runner import run_sweep
from hermes.explore.sweep.table import point_table
from hermes.results.files.export import write_results
from hermes.results.layout import share_text

SEED, PRICE, START_UP = 52, 3.99, 8
ARRIVALS = ("profile", "mmpp", "poisson")   # poisson: what changes is a second workload, or the clients
CHANGES = ("nothing", "crash", "schedule", "hpa", "update", "keda")
CLIENTS = ("stay", "leave", "retry")


def drawn(number: int) -> tuple[dict[str, Any], float]:
    """Return a scenario that is not stationary, and when its last duration ends."""
    rng = random.Random(f"{SEED} {number}")
    kind, change, clients = rng.choice(ARRIVALS), CHANGES[number % len(CHANGES)], CLIENTS[number // 6 % len(CLIENTS)]
    start, length, low = rng.choice((0, 0, 5)), rng.choice((30, 48, 60)), rng.uniform(1, 4)
    high = low * rng.uniform(2, 10)
    rates = [low, high, *rng.choices((low, high, 0), k=rng.randint(1, 4))]
    arrivals: dict[str, Any] = {
        "profile": {"every": length / len(rates), "rates": rates},
        "mmpp": {"rates": [low, high], "dwells": [length / 4, length / 10]}, "poisson": {"rate": low}}[kind]
    load: dict[str, Any] = {
        "name": "base", "duration": length, "start": start, "arrivals": {"kind": kind, **arrivals},
        "lengths": {"kind": "fixed", "prompt": rng.choice((500, 4000, 8000)), "output": rng.choice((20, 60))}}
    if clients == "leave":
        load["patience"] = {"total": rng.uniform(2, 8)}
    if clients == "retry":
        load["retry"] = {"kind": "openai", "per_try": rng.uniform(2, 6)}
    burst = load | {"name": "burst", "start": start + length / 3, "duration": length / 6,
                    "arrivals": {"kind": "poisson", "rate": high}}
    loads = [load, burst] if kind == "poisson" or rng.random() < 0.2 else [load]
    scaled = {"hpa": {"kind": "hpa", "metrics": [{"metric": "running", "target": 4}]},
              "keda": {"kind": "keda", "triggers": [{"metric": name, "target": 4} for name in ("queue", "running")]},
              "schedule": {"kind": "schedule", "changes": [{"at": length / 2, "replicas": 2}]}}
    fleet: dict[str, Any] = {"start": 0 if change == "keda" else 1, "start_up": {"total": START_UP}}
    fleet |= {"autoscaler": scaled[change]} if change in scaled else {}
    fleet |= {"crashes": [{"at": length / 2}], "probe": {"period": 2}} if change == "crash" else {}
    fleet |= {"updates": [{"at": length / 2}]} if change == "update" else {}
    return {
        "workload": loads, "slo": {"ttft": rng.choice((0.5, 2.0)), "e2e": rng.choice((3.0, 10.0))}, "seed": number,
        "clients": [{"name": "llm", "count": 3, "model": "llama-3.1-8b", "device": "h100-sxm", "price_per_hour": PRICE,
                     **({} if change == "nothing" else {"fleet": fleet})}],
        **({"gateway": {"queue": {"ttl": 20}}} if change in ("crash", "update", "keda") else {}),
    }, start + length


def computed(folder: Path, scenario: dict[str, Any], until: float) -> dict[str, float]:
    """Return figures of a run from its tables alone."""
    requests, stages, runs = (pd.read_parquet(folder / f"{name}.parquet") for name in ("requests", "stages", "runs"))
    requests = requests[requests["arrival_s"] >= 0]
    done, lost = requests["status"] == "completed", requests["status"] == "rejected"
    good = done & (requests["ttft_s"] <= scenario["slo"]["ttft"]) & (requests["e2e_s"] <= scenario["slo"]["e2e"])
    begin = min(load["start"] for load in scenario["workload"])
    last = max(requests["finish_s"].max(), requests["arrival_s"].max(), stages["end_s"].max(), runs["end_s"].max())
    end = max(until, last)   # devices are held until then
    late = (done & (requests["finish_s"] > until)).sum()
    seconds = (until if late <= max(0.1 * len(requests), 3 * math.sqrt(len(requests))) else end) - begin
    changes = hermes.open_run(folder).membership
    held = 0.0
    for _, rows in changes.groupby("client", observed=True) if len(changes) else ():
        times = [*rows["time_s"], end]
        held += sum(max(min(b, end) - a, 0) for a, b, state in zip(times, times[1:], rows["state"], strict=False)
                    if state != "gone")
    held = held if len(changes) else 3 * end
    return {"offered_per_s": len(requests) / (until - begin), "served_per_s": done.sum() / seconds,
            "goodput_per_s": good.sum() / seconds, "goodput_share": good.sum() / (done.sum() + lost.sum()),
            "device_hours": held / 3600, "dollars": held / 3600 * PRICE}


def contradictions(text: str) -> list[str]:
    """Return what two lines of a report say differently."""
    text = re.sub(r"\n {10}", " ", text)
    line = dict(re.findall(r"^(\w[\w ]{0,8}?) +(\S.*)$", text, re.MULTILINE))

    def number(pattern: str, where: str, default: float = 0.0) -> float:
        found = re.search(pattern, where)
        return default if found is None else float(found[1].replace(",", ""))

    def seconds(shown: str) -> float:
        value, unit = shown.split()
        return float(value.replace(",", "")) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]

    total = number(r"^([\d,]+)", line["requests"])
    parts = {what: number(rf"([\d,]+) {what}", line["requests"]) for what in
             ("completed", "gave up", "rejected", "unfinished")}
    parts["completed"] = total if "all completed" in line["requests"] else parts["completed"]
    share = number(r"\(([\d.]+)%\)", line["goodput"]) / 100
    offered, served = (number(rf"{what} ([\d.,]+)/s", line["rate"]) for what in ("offered", "served"))
    goodput = number(r"([\d.,]+)/s \(", line["goodput"])
    met, missed = "SLO met" in line["goodput"], "SLO MISSED" in line["goodput"]
    limits = {name: seconds(limit) for name, limit in re.findall(r"(\w+) <= ([\d.,]+ \w+)", line["goodput"])}
    p99 = {name: seconds(value) for name in limits for value in re.findall(r"p99 ([\d.,]+ \w+)", line[name])[:1]}
    gone = total - parts["completed"] - parts["unfinished"]
    over = [name for name, value in p99.items() if value > limits[name]]
    return [what for what, wrong in {
        "the parts are not the total": sum(parts.values()) != total,
        "100% with lost requests": gone > 0 and share >= 1,
        "more within the SLO than completed": share > parts["completed"] / max(total - parts["unfinished"], 1) + 6e-4,
        "goodput above served": goodput > served * 1.006,
        "served above offered": served > offered * 1.006,
        "goodput is not the share of what was offered": not parts["unfinished"] and "whole run of" in line["rate"] and
            abs(goodput / served * parts["completed"] / total - share) > 0.012,
        "met, and a limit is missed": met and bool(over),
        "met, with too many lost": met and gone > 0.01 * total + 1,
        "met, with less than 99% and no word": met and share < 0.99 and "by each limit" not in line["goodput"],
        "missed, and nothing misses": missed and share >= 0.99 and not over and gone <= 0.01 * total,
        "keeps up, and gives up": "keep up" in line["binds"] and parts["gave up"] > 0.05 * total,
        "asks for more requests": "workload.requests" in text,
    }.items() if wrong]


@pytest.mark.long(quick=3)
def test_runs_that_change_are_one_population(tmp_path: Path) -> None:
    numbers = range(0, 40, 40 // count(3, 40))
    for number in numbers:
        scenario, until = drawn(number)
        results = hermes.simulate(scenario)
        summary, folder = results.summary, write_results(results, tmp_path / str(number))
        found, headline = computed(folder, scenario, until), summary["headline"]
        ours = headline | {"dollars": summary["cost"]["total_dollars"], "device_hours": sum(
            group["held_device_hours"] for group in summary.get("fleet", {}).values()) or found["device_hours"]}
        assert {name: ours[name] for name in found} == pytest.approx(found, rel=1e-9), (number, scenario)
        assert (headline["window"], summary["settling"]["settled"]) != ("whole", False), (number, scenario)
        assert summary["settling"]["settled"] is not False, (number, scenario)
        text = results.to_text()
        assert not contradictions(text), f"{number}: {contradictions(text)}\n{scenario}\n{text}"


LOSSY: dict[str, Any] = {   # shared/cases/answers/lossy.yaml
    "workload": {"duration": "5 min", "arrivals": {"kind": "profile", "every": "1 min", "rates": [8, 20, 8, 8, 8]},
                 "lengths": {"kind": "fixed", "prompt": 4000, "output": 200}, "patience": {"total": "15 s"}},
    "clients": [{"name": "llm", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm"}], "slo": {"e2e": "15 s"}}
ZERO: dict[str, Any] = {    # zero.yaml: a burst of ten minutes in every forty, for two hours
    "workload": {"duration": "2 h", "arrivals": {"kind": "profile", "every": "10 min", "rates": [0.5, 0, 0, 0]},
                 "lengths": {"kind": "fixed", "prompt": 1000, "output": 200}},
    "clients": [{"name": "llm", "count": 2, "model": "llama-3.1-8b", "device": "h100-sxm",
                 "fleet": {"start": 1, "start_up": {"total": "3 min"}}}],
    "gateway": {"queue": {"ttl": "10 min"}}, "slo": {"ttft": "2 s", "tpot": "50 ms"}}
WARM: dict[str, Any] = {    # shared/cases/operations/warmup.yaml: ten replicas, and the first request at 1 h
    "workload": {"requests": 100, "start": "1 h", "arrivals": {"kind": "poisson", "rate": 10},
                 "lengths": {"kind": "fixed", "prompt": 128, "output": 16}},
    "clients": [{"name": "llm", "count": 10, "model": "llama-3.1-8b", "device": "h100-sxm",
                 "fleet": {"start": 10, "start_up": {"total": "60 s"}}}], "router": {"kind": "round_robin"}}


@pytest.mark.long
def test_what_an_incident_lost_is_in_every_figure() -> None:
    """1,212 of 3,244 users leave in the second minute; the steady window of the rest had 100%. They wait for KV memory:
    the figures are those of 28,333 blocks."""
    results = hermes.simulate(LOSSY, overrides={"clients.0.memory.num_blocks": 28_333})
    found, requests = results.summary["headline"], results.summary["requests"]
    assert (requests["total"], requests["completed"], found["window"]) == (3244, 2032, "whole")
    assert found["offered_per_s"] == pytest.approx(3244 / 300)
    assert found["goodput_per_s"] == pytest.approx(2032 / 300)
    assert found["goodput_share"] == pytest.approx(2032 / 3244)
    text = results.to_text()
    assert "offered 10.8/s, served 6.77/s, whole run of 300 s (a rate profile)" in text
    assert "SLO MISSED, 6.77/s (62.6%)" in text


def test_a_silent_half_hour_is_paid() -> None:
    """965 requests of 200 tokens; the last one ends at 5,400 of 7,200 s."""
    static = hermes.simulate(ZERO).summary
    assert static["fleet"]["llm"]["held_device_hours"] == pytest.approx(2.0, rel=1e-12)
    assert static["headline"]["per_million_answer_tokens_dollars"] == pytest.approx(2 * 3.99 / (965 * 200) * 1e6)
    assert (static["headline"]["window"], static["headline"]["over_s"]) == ("whole", 7200)
    scaler = {"kind": "keda", "triggers": [{"metric": "queue", "target": 50}, {"metric": "running", "target": 20}]}
    client = ZERO["clients"][0]
    scaled = hermes.simulate(ZERO | {"clients": [client | {"fleet": client["fleet"] | {
        "start": 0, "autoscaler": scaler}}]})
    assert (scaled.summary["headline"]["window"], scaled.summary["headline"]["over_s"]) == ("whole", 7200)
    last = scaled.membership.iloc[-1]   # it goes on to act when the last request has ended
    assert (last["state"], scaled.summary["requests"]["completed"]) == ("gone", 965)
    assert 5400 < last["time_s"] < 7200
    cut = hermes.simulate(ZERO | {"horizon": "1 h"}).summary   # the second half is not simulated
    assert cut["fleet"]["llm"]["held_device_hours"] == pytest.approx(1.0, rel=1e-12)


def test_devices_that_wait_for_the_first_request_are_paid() -> None:
    summary = hermes.simulate(WARM).summary
    held = summary["fleet"]["llm"]["held_device_hours"]
    assert held == pytest.approx(10.02, abs=0.005)
    assert held * 3600 / 10 == pytest.approx(3600 + summary["makespan_s"], abs=0.1)   # the first one comes in 0.1 s
    assert summary["cost"]["total_dollars"] == pytest.approx(held * 3.99)
    assert summary["energy"]["idle_j"] > 10 * 3600 * 60   # 70 W each for the hour


def test_a_run_with_lost_requests_never_shows_all_of_them() -> None:
    assert [share_text(value) for value in (1.0, 0.99996, 0.626, 0.9999999, None)] == [
        "100.0%", "99.996%", "62.6%", "99.99999%", "-"]
    assert (share_text(0.89999999, 0.9), share_text(0.99999999)) == ("89.9999%", "99.9999%")
    assert (share_text(0.98964, 0.99), share_text(0.98964), share_text(0.991, 0.99)) == ("98.96%", "99.0%", "99.1%")


def test_advice_is_about_what_the_scenario_has() -> None:
    """A run that is too short asks for a longer `duration` where it has one; one with a profile is judged as it is."""
    short = {"duration": "10 s", "arrivals": {"kind": "poisson", "rate": 5},
             "lengths": {"kind": "fixed", "prompt": 500, "output": 200}}
    def said(**changes: Any) -> tuple[str, Any]:
        load = {name: value for name, value in (short | changes).items() if value is not None}
        results = hermes.simulate(LOSSY | {"workload": load})
        return results.to_text(), results.summary["settling"]["settled"]

    for changes, key in (({}, "duration"), ({"duration": None, "requests": 50}, "requests")):
        text, settled = said(**changes)
        assert f"raise workload.{key}" in text
        assert settled is False
    for more in ({}, {"duration": None, "requests": 50}):
        text, settled = said(arrivals={"kind": "profile", "every": "5 s", "rates": [2, 8]}, **more)
        assert "raise" not in text
        assert settled is True


def test_the_table_of_a_sweep_has_the_same_figures(tmp_path: Path) -> None:
    load = LOSSY["workload"] | {"duration": "60 s", "patience": {"total": "4 s"}, "arrivals": {
        "kind": "profile", "every": "20 s", "rates": [4, 16, 4]}}
    swept = run_sweep({"name": "lossy", "scenario": LOSSY | {"workload": load}, "cases": [{"label": "x", "set": {}}]},
                      tmp_path / "s", workers=0)
    row, table = swept.outcome(0), point_table(swept)
    assert row is not None
    found = hermes.simulate(LOSSY | {"workload": load}).summary["headline"]
    assert row["headline.goodput_per_s"] == found["goodput_per_s"] == row["goodput.requests"] / 60
    assert f"{found['goodput_per_s']:.3g}" in table
    assert "* of the whole run, warm-up and drain included: a rate profile" in table
