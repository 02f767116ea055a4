"""Classes of repeated measurements (`hermes.core.noise`) in what calibration, benchmarks and regression print."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

import hermes
from hermes.calibration.journal import Journal
from hermes.calibration.plan import Plan
from hermes.cli import main
from hermes.core.noise import classify, spread, tally
from hermes.hardware.descriptions.models import load_model
from hermes.plugins.retrieval import fit as retrieval
from hermes.plugins.retrieval.fit import fit_retrieval
from hermes.plugins.retrieval.searches import MeasuredSearches, load_searches, save_searches
from hermes.results.compare.regress import flatten

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("excellent", "good", "flaky", "rejected")
PREFILL = ("prefill_attn", "prefill_past", "prefill_seqs", "prefill_tokens")
SPREADS = {"excellent": 0.05, "good": 0.15, "flaky": 0.3, "rejected": 0.8}   # CV of each


def times(seconds, cv):
    """Three times with this mean and sample deviation."""
    return [seconds * (1 - cv), seconds, seconds * (1 + cv)]


def printed(capsys, *command):
    code = main([str(word) for word in command])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.long
@pytest.mark.parametrize("name", ["retrieval-hnsw-sizes", "retrieval-amd-epyc-zen5"])
def test_calibrate_retrieval_prints_the_classes_of_what_was_measured(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    fits = []   # shown twice, made once

    def fit_once(searches, *arguments):
        fits.append(fits[0] if fits else fit_retrieval(searches, *arguments))
        return fits[0]

    monkeypatch.setattr(retrieval, "fit_retrieval", fit_once)
    steps = ROOT / "traces" / "hardware" / f"{name}.yaml"
    code, out, err = printed(capsys, "fit", steps, "--json")
    assert (code, err) == (0, "")
    rows = load_searches(steps).rows
    shown, text = json.loads(out)["models"], printed(capsys, "fit", steps)[1]
    assert len(fits) == 2
    for kind, mine in rows.groupby("kind"):
        found = mine.groupby(["configuration", "batch", "threads", "top_k"])["noise"].first()
        assert shown[str(kind)]["noise"] == tally(found.tolist())
        assert shown[str(kind)]["noise"] in text


def test_calibrate_link_prints_all_four(tmp_path, capsys):
    """A journal whose sizes vary by a twentieth, a seventh, a third and four fifths of their means."""
    from hermes.calibration.measurements.link import Links

    plan = Links(largest=256 * 2**10, paths=["disk"]).plan(tmp_path)
    points = plan.points
    assert len(points) >= 4
    with Journal(tmp_path / "j.jsonl", plan.model_dump(mode="json"), {"cpu": "a CPU", "cores": 2}) as journal:
        for i, point in enumerate(points):
            seconds = 1e-4 + point["bytes"] / 1e9
            rows = [{"time_s": t, "wall_s": t, "waited_s": 0.0} for t in times(seconds, SPREADS[CLASSES[i % 4]])]
            journal.point(point["name"], rows)
    code, out, err = printed(capsys, "calibrate", "pack", tmp_path / "j.jsonl", "-o", tmp_path / "links.yaml")
    assert (code, err) == (0, ""), err
    for name in CLASSES:
        assert re.search(rf"\b{name}\b", out), out


def test_calibrate_pack_prints_all_four(tmp_path, capsys):
    plan = Plan(engine="vllm", collector="none", model=load_model("llama-3.1-8b"), config_json={}, device="cpu",
                dtype="fp32", clock="wall", repetitions=3, warmup_s=0.0,
                points=[{"name": name, "level": 0, "estimate_s": 0.01} for name in CLASSES])
    with Journal(tmp_path / "j.jsonl", plan.model_dump(mode="json"), {"hardware": "h"}) as journal:
        for i, name in enumerate(CLASSES):
            journal.point(name, [
                {"repetition": n, **dict.fromkeys(PREFILL, 0), "decode_seqs": i + 1, "decode_ctx": 10,
                 "decode_ctx_max": 10, "sampled": i + 1, "time_s": t, "cpu_time_s": t}
                for n, t in enumerate(times(0.01, SPREADS[name]))])
    code, out, err = printed(capsys, "calibrate", "pack", tmp_path / "j.jsonl", "-o", tmp_path / "s.yaml")
    assert (code, err) == (0, ""), err
    assert "repeated steps 4, excellent 1, good 1, flaky 1, rejected 1" in out


def test_noise_of_shipped_searches_is_that_of_their_times():
    """The class of each point, recomputed from the repetitions that were kept."""
    searches = load_searches(ROOT / "traces" / "hardware" / "retrieval-hnsw-sizes.yaml")
    rows = searches.usable()
    for _, point in rows.groupby(["configuration", "batch", "threads", "top_k"]):
        assert point["noise"].iloc[0] == spread(point["time_s"]).verdict


SCENARIO = {
    "seed": 7,
    "workload": {"requests": 40, "arrivals": {"kind": "poisson", "rate": 4},
                 "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
    "clients": [{"model": "llama-3.1-8b", "memory": {"num_blocks": 3000},
                 "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"}}],
}


@pytest.mark.long
def test_regress_prints_the_class_of_what_seeds_do(tmp_path, capsys, monkeypatch):
    """A prediction that changed stands beside its variation over five seeds, without being asked for."""
    monkeypatch.chdir(tmp_path)
    scenario = tmp_path / "s.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    assert printed(capsys, "regress", "record", "s.yaml")[0] == 0
    changed = json.loads(json.dumps(SCENARIO))
    changed["workload"]["arrivals"]["rate"] = 5
    scenario.write_text(yaml.safe_dump(changed))
    code, out, err = printed(capsys, "regress", "check", "--json")
    assert (code, err) == (1, "")
    found = {row["metric"]: row["seeds"] for row in json.loads(out)["differences"] if row["seeds"]}
    runs = [flatten(hermes.simulate(changed, seed=seed).summary) for seed in range(5)]
    for metric in ("latency.ttft_s.p99", "latency.e2e_s.mean", "makespan_s"):
        mine = spread([run[metric] for run in runs])
        assert found[metric] == pytest.approx(mine.as_dict())
        assert found[metric]["p50"] <= found[metric]["p95"] <= found[metric]["p99"]
    assert all(row["class"] == classify(row["cv"]) for row in found.values())
    assert {row["class"] for row in found.values()} >= {"excellent", "good", "flaky"}
    _, text, _ = printed(capsys, "regress", "check")
    shown = found["latency.e2e_s.mean"]
    assert f"CV {100 * shown['cv']:.2g}% ({shown['class']}, 5)" in text
    assert "over seeds" not in printed(capsys, "regress", "check", "--seeds", "0")[1]


def test_benchmarks_print_the_class_of_their_repetitions(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import core

    monkeypatch.setattr(core, "CASES", {"small": ("a small case", core.scenario(30))})
    found = {}
    monkeypatch.setattr(core, "run_case", lambda name: found.setdefault(name, core.measure(name)))
    monkeypatch.setattr(sys, "argv", ["core", "--only", "small"])
    core.main()
    line = capsys.readouterr().out.splitlines()[1]
    result = found["small"]
    assert line.split()[-2:] == ["5", classify(result["cv"])]
    assert result["rss_bytes"] > 10e6


def test_benchmarks_say_which_case_lacks_its_data(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import core

    monkeypatch.setattr(sys, "argv", ["core", "--only", "mooncake", "--data", str(tmp_path), "--json",
                                      str(tmp_path / "f.json")])
    core.main()
    assert f"left out: no {tmp_path}/mooncake/conversation_trace.jsonl" in capsys.readouterr().out
    assert (tmp_path / "f.json").read_text() == "{}\n"


def test_what_a_prefix_cache_costs_is_a_figure(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import core

    costs = {"mooncake": 300.0, "mooncake_uncached": 200.0, "chunked": 40.0, "cached": 50.0}
    keys = ("seconds", "cpu_seconds", "requests_per_s", "steps_per_s", "simulated_s_per_s", "rss_bytes", "cv")
    found = core.figures({name: dict.fromkeys(keys, 1.0) | {"us_per_request": us, "bare_process_us": 10.0}
                          for name, us in costs.items()})
    assert (found["prefix_cache_cost_ratio"], found["prefix_cache_unshared_ratio"]) == (1.5, 1.25)
    assert "mooncake_requests_per_s" in found


def test_benchmarks_of_structures_print_it_too(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import structures
    from hermes.study import load_study

    tools, service = map(load_study("datastructures").module, ("tools", "service"))
    monkeypatch.setattr(tools, "OPERATIONS", 50)
    monkeypatch.setattr(tools, "heap_costs", partial(tools.heap_costs, sizes=(100, 1000)))
    monkeypatch.setattr(service, "submit_costs", partial(service.submit_costs, queries=200))
    monkeypatch.setattr(structures, "SUBMITS", 200)
    monkeypatch.setattr(structures, "REPETITIONS", 2)
    structures.main()
    out = capsys.readouterr().out
    rows = [line.split("|") for line in out.splitlines() if line.startswith("| indexed")]
    assert len(rows) == 6
    assert {row[6].strip() for row in rows} <= set(CLASSES)
    assert re.search(rf"simulated submit to a micro-batch: .* us \+/- .*, ({'|'.join(CLASSES)})", out)


def test_a_fit_lists_what_is_not_steady(tmp_path, capsys):
    """The fit of searches prints classes of points, rejected ones apart; a fit never uses those."""
    searches = load_searches(ROOT / "traces" / "hardware" / "retrieval-hnsw-sizes.yaml")
    rows = searches.rows.copy()
    point = rows["configuration"] == rows["configuration"].iloc[0]
    rows.loc[point, ["noise", "excluded"]] = "rejected", "rejected: 7 repetitions, CV 60%"
    save_searches(MeasuredSearches(searches.header, rows), tmp_path / "s.yaml")
    _, out, _ = printed(capsys, "fit", tmp_path / "s.yaml", "--json")
    assert json.loads(out)["usable"] == len(rows) - point.sum()
