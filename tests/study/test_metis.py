"""The study of METIS: which fixed configuration is of like delay, what the tables say, and the trace under pressure."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.config.streams import stream
from hermes.hardware.descriptions.files import names_in
from hermes.plugins.metis.choosers import HOW
from hermes.plugins.metis.datasets import dataset as data_set
from hermes.plugins.metis.decision import METHODS
from hermes.scenario import load_scenario
from hermes.study import load_study

STUDY = load_study("metis")
figures, points, sections, tables = map(STUDY.module, ("figures", "points", "sections", "tables"))
FIXED, SYSTEMS, extract, sustained = points.FIXED, points.SYSTEMS, points.extract, points.sustained
assumed, fixed_run, run_of = points.assumed, points.fixed_run, points.run_of
like_delay, throughput = tables.like_delay, tables.throughput
DATASETS = names_in("rag_datasets")
VALUES = {name: one.value for name, one in STUDY.config.assumptions.items()}
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
    alone = rows.iloc[3:4].assign(rate=float("nan"), delay_s=0.9)   # one query at a time: the limit of low rates
    assert tables.highest_rate(pd.concat([alone, rows[rows["system"] == "y"]]), 1.8) == pytest.approx(
        math.log(2) / math.log(2 / 0.9))


@pytest.mark.parametrize("dataset", DATASETS)
def test_points_are_scenarios(dataset):
    rate = sustained(dataset)
    for one in (*(run_of(dataset, system, rate) for system in SYSTEMS), fixed_run(dataset, FIXED[-1], None),
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
    assert found["f1_default"] == pytest.approx(results.requests["note_f1"].mean())
    assert found["f1_heavy-tail"] == pytest.approx(results.requests["note_f1_heavy-tail"].mean())
    assert found["free_tokens"] == pytest.approx(results.requests["note_free_tokens"].mean())
    assert found["profile_in"] == found["profiler_stage_in"]
    assert sum(found[f"method.{name}"] for name in METHODS) == pytest.approx(1)
    assert sum(found[f"how.{name}"] for name in HOW) == pytest.approx(1)
    assert found["golden_runs"] == 1
    # 0.44 dollars an hour while the engine is busy; 2.5 and 10 dollars per million tokens of the profiler
    assert found["dollars_llm"] == pytest.approx(0.44 / 3600 * found["busy"] * results.record.end_ns / 1e9 / 40)
    tokens = 2.5e-6 * found["profile_in"] + 1e-5 * found["profile_out"]
    assert found["dollars_profiler"] == pytest.approx(tokens / 40)
    assert 0 < found["profiler_share"] < found["profiler_share_max"] < 1


def test_figures_where_all_queries_are_rejected():
    """35 chunks in one prompt into 8,000 tokens of memory."""
    results = simulate(FOLDER / "base.yaml", overrides=[
        "workload.requests=3", "clients.0.memory={num_blocks: 500, prefix_caching: false}",
        "workload.pipeline={name: metis, dataset: musique, system: fixed, method: stuff, chunks: 35}"])
    found = extract(results)
    assert (found["f1_default"], found["point.rejected"]) == (0.0, 3)
    assert math.isnan(found["delay_s"])
    assert math.isnan(found["profiler_share_max"])


def test_a_stuff_query_that_would_queue_becomes_map_reduce():
    """The second query reasons jointly over five pieces; 8,000 of 12,000 tokens are held by the first."""
    profile = data_set("qmsum").draw(stream(1, "metis/qmsum/1")).profile
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


@pytest.mark.parametrize("datasets", points.SETS)
@pytest.mark.parametrize("quick", [False, True])
def test_names_of_points_are_their_own(datasets, quick):
    size = sections.Size.of(datasets, quick=quick)
    longest = VALUES | {"grid": "words-120", "noise": 0.125, "tolerance": 0.125, "quality": "diluted-mappers",
                        "reading": "uncommitted", "kv_tokens": 24_000}
    for name, runs in sections.first(size).items():
        assert runs or quick, name
        names = [(one.label, one.seed) for one in set(runs)]
        assert len(set(names)) == len(names), name
        assert max((len(assumed(one, longest).label) for one in runs), default=0) <= 200   # of a case of a sweep
    blocks = {one.blocks for one in sections.memory_points(size, 1.0)}
    assert blocks == {n // 16 for n in (sections.BUDGETS[1:2] if quick else sections.BUDGETS)}


def test_the_headline_and_the_sweep_of_memory_have_many_seeds():
    size = sections.Size.of("2n", quick=False)
    assert size.seeds_alone == sections.Size.of("2n", quick=True).seeds_alone >= 6
    for load in sections.LOADS:
        seen = {(one.dataset, one.system, one.blocks, one.seed) for one in sections.memory_points(size, load)}
        assert seen == {(d, s, n // 16, seed) for d in size.datasets for s in ("METIS", "+ batching")
                        for n in sections.BUDGETS for seed in range(1, 1 + (8 if load == 1 else 3))}


def test_a_given_rate_is_that_of_every_data_set():
    size = sections.Size.of("2n", quick=False, rate=2.0)
    assert {size.base(d) for d in size.datasets} == {2.0}
    assert size.rate("qmsum", 0.25) == 0.5
    assert sections.Size.of("2n", quick=False).base("qmsum") == 0.12


def test_rates_of_the_second_set_have_as_many_needed_tokens_a_second():
    assert [sustained(d) for d in ("squad", "musique", "finsec", "qmsum")] == [2.0, 0.4, 0.15, 0.12]
    assert sustained("squad-3n") == points.SPEC_RATE   # no more than the paper's
    assert sustained("finsec-3n") == 0.33              # 0.15 of 4.4 pieces of 1,000 tokens, against 2
    assert sustained("finsec-3n", large=True) == 0.055


def test_assumptions_reach_the_systems_that_they_concern():
    metis, rag = (run_of("squad", system, 2.0) for system in ("METIS", "AdaptiveRAG*"))
    assert assumed(metis, VALUES) == metis
    assert assumed(rag, VALUES) == rag   # study.yaml and the pipeline agree on what is assumed
    changed = VALUES | {"noise": 0.1, "grid": "coarse", "tolerance": 0.01, "quality": "heavy-tail",
                        "reading": "device", "kv_tokens": 24_000}
    assert dict(assumed(rag, changed).params) == {"system": "adaptive_rag", "noise": 0.1, "grid": "coarse",
                                                  "tolerance": 0.01, "quality": "heavy-tail"}
    assert assumed(rag, changed).blocks == 1500
    own = sections.Reading("2n", noise=0.0)   # a reading has rules of its own
    exact = assumed(sections.reading_points(sections.Size.of("2n", quick=True), own)[-1], changed)
    assert dict(exact.params) == {"system": "adaptive_rag", "noise": 0.0}
    assert dict(assumed(metis, VALUES | {"reading": "device"}).params)["reading"] == "device"
    few = run_of("squad", "METIS", 2.0, blocks=500)
    assert assumed(few, changed) == few   # of a number of blocks the device reports nothing
    large = run_of("squad", "METIS", 0.3, serving=points.LARGE)
    assert assumed(large, VALUES | {"kv_tokens": 24_000}) == large


def test_what_if_names_every_assumption_and_every_grid():
    changes = list(STUDY.config.what_if.values())
    assert {name for change in changes for name in change} == set(VALUES)
    grids = {change["grid"] for change in changes if "grid" in change}
    assert {VALUES["grid"], *grids} == set(STUDY.config.assumptions["grid"].options)


def test_fixed_configurations_by_rule():
    size = sections.Size(("squad",), 10, 5, 1, 1, 1, 0.0, quick=True)
    rows = pd.DataFrame({"dataset": "squad", "system": "vLLM fixed", "seed": 1, "delay_s": [1.0, 2.0, 4.0],
                         "f1": [0.5, 0.8, 0.9], "run": ["quick", "near", "best"]})
    mine = pd.DataFrame({"dataset": ["squad"], "system": ["METIS"], "seed": [1], "delay_s": [1.5], "f1": [0.77]})
    assert figures.fixed_by_rule(size, {"grid": rows, "systems": mine}) == {
        "squad": {"highest F1": "best", "closest F1": "near", "like delay": "quick"}}


def test_ratios_of_throughput_leave_out_what_no_rate_reaches():
    def line(dataset, system, delays):
        return pd.DataFrame({"dataset": dataset, "system": system, "rate": [1.0, 2.0, 3.0], "delay_s": delays,
                             "seed": 1})

    own = pd.concat([line("a", "METIS", [0.9, 3.6, 9.0]), line("b", "METIS", [2.0, 3.0, 4.0])])
    fixed = pd.concat([line("a", "fixed of highest F1", [1.8, 3.6, 9.0]),
                       line("b", "fixed of highest F1", [0.1, 0.2, 0.3])])
    size = sections.Size(("a", "b"), 10, 5, 1, 1, 1, 0.0, quick=False)
    row = figures.throughput_row("x", (1.8, 4.5), "highest F1", {"a": 1.8, "b": 1.8}, own, fixed, size)
    assert row.here == pytest.approx((1.5, 1.5))
    assert row.why == "a 1.50; queries/s of the first seed: a 1.50 against 1.00, b none against > 3."
    assert figures.throughput_row("x", None, "highest F1", {"b": 1.8}, own, fixed, size).here is None


def runs(*rows):
    return pd.DataFrame([{"dataset": "a", "system": system, "seed": seed, "rate": rate, "delay_s": delay, "f1": f1,
                          "f1_default": f1, "point.stable": stable, "run": run}
                         for system, seed, rate, delay, f1, stable, run in rows])


def test_the_table_of_readings_counts_the_data_sets_within_the_papers_range():
    reading = sections.Reading()
    rag = sections.reading_points(sections.Size.of("2n", quick=True), reading)[-1]
    frame = runs(("METIS", 1, None, 2.0, 0.8, None, run_of("a", "METIS", None)), ("METIS", 2, None, 2.0, 0.8, None, rag
                 .with_("METIS", noise=0.0)), ("AdaptiveRAG*", 1, None, 4.0, 1.0, None, rag),
                 ("AdaptiveRAG*", 2, None, 6.0, 1.0, None, rag),
                 ("AdaptiveRAG*", 1, None, 60.0, 1.0, None, rag.with_("AdaptiveRAG*", noise=0.1)))
    row = tables.readings(frame, [reading]).frame.iloc[0]
    assert (row["a"], row["a F1 %"]) == ("2.50 [2.00, 3.00]", -20)
    assert (row["delay within"], row["F1 no lower"], row["both"]) == (1, 0, 0)


@pytest.mark.parametrize(("stable", "said"), [((True, None), "2.25 [1.50, 3.00]"), ((True, False), "queue grows")])
def test_ratios_are_taken_seed_by_seed_and_only_where_no_queue_grows(stable, said):
    own = runs(*(("METIS", seed, 1.0, 2.0 * seed, 0.8, True, None) for seed in (1, 2)))
    rag = runs(*(("AdaptiveRAG*", seed, 1.0, delay, 0.8, kept, None)
                 for seed, delay, kept in zip((1, 2), (3.0, 12.0), stable, strict=True)))
    both = pd.concat([own, rag]).assign(constrained=0.0, kv_used=0.0, busy=0.5)
    row = tables.by_rate(both).frame.iloc[0]
    assert row["delay ratio"] == said
    size = sections.Size(("a",), 10, 5, 2, 2, 2, 0.0, quick=False)
    by, words = figures.kept(size, both, "AdaptiveRAG*", "METIS")
    assert words == (f"a {said}" if by else "queue grows: a")
    assert bool(by) == (False not in stable)


@pytest.mark.thorough
def test_the_quick_study_gives_all_tables(tmp_path):
    report = STUDY.run(STUDY.context(tmp_path, quick=True))
    assert len(report.tables) == 10
    assert len(report.compared) == 30
    assert all(one.why.endswith(".") for one in report.compared)
    first = report.compared[0]
    assert first.interval[0] < first.here[0] < first.here[1] < first.interval[1]
    assert len(report.plots) == 4
    written = report.write(tmp_path / "out")
    assert all(path.stat().st_size for path in written)
