"""The study of METIS: which fixed configuration is of like delay, what the tables say, and the trace under pressure."""

from __future__ import annotations

import pandas as pd
import pytest

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.config.streams import stream
from hermes.plugins.metis.datasets import DATASETS
from hermes.plugins.metis.decision import METHODS
from hermes.plugins.metis.pipeline import HOW
from hermes.scenario import load_scenario
from hermes.study import load_study

STUDY = load_study("metis")
points, sections, tables = map(STUDY.module, ("points", "sections", "tables"))
FIXED, RATES, SYSTEMS, extract = points.FIXED, points.RATES, points.SYSTEMS, points.extract
fixed_run, run_of = points.fixed_run, points.run_of
like_delay, paired, throughput = tables.like_delay, tables.paired, tables.throughput
front = STUDY.module("plots").front
FOLDER = resource_dir("scenarios") / "studies" / "metis"


def test_the_fixed_configuration_of_like_delay():
    grid = pd.DataFrame({"delay_s": [1.0, 2.0, 2.09, 3.0], "f1": [0.5, 0.6, 0.7, 0.9], "name": list("abcd")})
    assert like_delay(grid, 2.0)["name"] == "c"      # 5% slower counts as like
    assert like_delay(grid, 1.9)["name"] == "a"
    assert like_delay(grid, 0.5)["name"] == "a"      # all are slower: the quickest


def test_the_pareto_front():
    delays, f1 = [3.0, 1.0, 2.0, 2.0, 4.0], [0.7, 0.5, 0.6, 0.65, 0.69]
    assert front(delays, f1) == [1, 3, 0]


def test_throughput_between_rates():
    rows = pd.DataFrame({"dataset": "a", "system": ["x"] * 3 + ["y"] * 3 + ["z"] * 3, "rate": [1.0, 2.0, 3.0] * 3,
                         "delay_s": [0.9, 3.6, 9.0, 2.0, 3.0, 4.0, 0.1, 0.2, 0.3]})
    row = throughput(rows).frame.iloc[0]
    assert row["x"] == pytest.approx(1.5)   # halfway in the logarithm
    assert (row["y"], row["z"]) == ("none", "> 3")


@pytest.mark.parametrize("dataset", DATASETS)
def test_points_are_scenarios(dataset):
    for one in (*(run_of(dataset, system, RATES[dataset]) for system in SYSTEMS), fixed_run(dataset, FIXED[-1], None),
                run_of(dataset, "METIS", 1.0, serving="llama-3.1-70b", blocks=100)):
        overrides = [f"{path}={_yaml(value)}" for path, value in one.point().settings.items()]
        assert load_scenario(FOLDER / "base.yaml", overrides).workload[0].requests == 200


def _yaml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_yaml(v)}" for k, v in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else "''" if value == "" else str(value)


def test_figures_of_a_point():
    results = simulate(FOLDER / "base.yaml", overrides=["workload.requests=40"])
    found = extract(results)
    assert found["delay_s"] == pytest.approx(results.requests["e2e_s"].mean())
    assert found["f1"] == pytest.approx(results.requests["note_f1"].mean())
    assert found["profile_in"] == found["profiler_stage_in"]
    assert sum(found[f"method.{name}"] for name in METHODS) == pytest.approx(1)
    assert sum(found[f"how.{name}"] for name in HOW) == pytest.approx(1)
    assert found["golden_runs"] == 1
    # 0.44 dollars an hour while the engine is busy; 2.5 and 10 dollars per million tokens of the profiler
    assert found["dollars_llm"] == pytest.approx(0.44 / 3600 * found["busy"] * results.record.end_ns / 1e9 / 40)
    tokens = 2.5e-6 * found["profile_in"] + 1e-5 * found["profile_out"]
    assert found["dollars_profiler"] == pytest.approx(tokens / 40)
    assert 0 < found["profiler_share"] < found["profiler_share_max"] < 1


def test_a_stuff_query_that_would_queue_becomes_map_reduce():
    """The second query reasons jointly over five pieces; 8,000 of 12,000 tokens are held by the first."""
    profile = DATASETS["qmsum"].draw(stream(1, "metis/qmsum/1")).profile
    assert (profile.joint, profile.complex, profile.pieces) == (True, True, 5)
    stuffed = simulate(FOLDER / "pressure.yaml", overrides=[
        "workload.1.pipeline={name: metis, dataset: qmsum, system: fixed, method: stuff, chunks: 5}"])
    fitted = simulate(FOLDER / "pressure.yaml")
    row = fitted.requests.iloc[1]
    assert (METHODS[int(row["note_method"])], HOW[int(row["note_how"])]) == ("map_reduce", "partial")
    assert row["note_constrained"] == 1
    waited = [_first_start(results) for results in (stuffed, fitted)]
    assert waited[0] > 5 > 1 > waited[1]
    assert row["e2e_s"] < stuffed.requests["e2e_s"].iloc[1]
    assert row["note_f1"] > stuffed.requests["note_f1"].iloc[1]


def _first_start(results):
    record = results.record
    mine = (record.stages["request"] == 1) & (record.stages["kind"] == record.stage_kinds.index("generate"))
    return (record.stages["start_ns"][mine].min() - record.arrival_ns[1]) / 1e9


def test_names_of_points_are_their_own():
    for quick in (False, True):
        size = sections.Size.of(quick=quick)
        for name, runs in sections.first(size).items():
            assert runs, name
            names = [(one.label, one.seed) for one in runs]
            assert len(set(names)) == len(names), name
            assert max(len(label) for label, _ in names) <= 200   # of a case of a sweep
    blocks = {one.blocks for one in sections.pressure_points(sections.Size.of(quick=False))}
    assert blocks == {n // 16 for budgets in sections.BUDGETS.values() for n in budgets}


def test_the_sweep_covers_every_data_set_with_seeds():
    runs = sections.pressure_points(sections.Size.of(quick=False))
    for system in ("METIS", "AdaptiveRAG*", "+ batching"):
        seen = {(one.dataset, *place, one.seed) for one, place in runs.items() if one.system == system}
        assert seen == {(d, n, load, seed) for d in DATASETS for n in sections.BUDGETS[d] for load in sections.LOADS
                        for seed in (1, 2, 3)}


def test_ratios_are_taken_seed_by_seed():
    rows = [("METIS", 1, 2.0), ("METIS", 2, 4.0), ("AdaptiveRAG*", 1, 3.0), ("AdaptiveRAG*", 2, 12.0)]
    sweep = pd.DataFrame([{"system": s, "seed": seed, "delay_s": delay, "dataset": "a", "kv_tokens": 10, "load": 1.0,
                           "rate": 1.0, "f1": 0.5, "constrained": 0.2, "point.rejected": 0}
                          for s, seed, delay in rows])
    found = paired(sweep, "METIS", "AdaptiveRAG*").iloc[0]
    assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == (2.25, 1.5, 3.0)
    assert (found["delay_s"], found["delay_s_other"]) == (3.0, 7.5)


@pytest.mark.long
def test_the_quick_study_gives_all_tables(tmp_path):
    report = STUDY.run(STUDY.context(tmp_path, quick=True))
    assert len(report.tables) == 17
    assert len(report.plots) == 4
    written = report.write(tmp_path / "out")
    assert all(path.stat().st_size for path in written)
