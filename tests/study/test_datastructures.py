"""The study of data structures: its tables say what the structures do, and the command prints a figure of each."""

import numpy as np
import pytest

from evidence.retrieval import CorpusConfig, make_corpus
from hermes.cli import main
from hermes.memory.pages import shared_savings
from hermes.study import load_study

STUDY = load_study("datastructures")
memory, retrieval, service, tools = map(STUDY.module, ("memory", "retrieval", "service", "tools"))
cache_policies, savings, sketch_errors = memory.cache_policies, memory.savings, memory.sketch_errors
trace_policies, hybrid_latency, strengths = memory.trace_policies, retrieval.hybrid_latency, retrieval.strengths
admission, hybrid_runs, submit_costs = service.admission, service.hybrid_runs, service.submit_costs


def test_savings_are_the_formula():
    frame = savings().frame
    assert len(frame) == 8
    for _, row in frame.iterrows():
        assert row["saved %"] == pytest.approx(100 * shared_savings(row["prefix"], 1000, 100, row["page"]), abs=1e-9)


def test_more_room_saves_more_and_policies_see_the_same_accesses():
    frame = cache_policies(3000, policies=("lru", "lfu", "tamm age")).frame
    for _, mine in frame[frame["policy"].isin(["lru", "lfu"])].groupby("policy"):
        assert (np.diff(mine["tokens saved %"]) >= 0).all()
    assert (frame["hit %"] < 100).all()


def test_a_trace_that_fits_is_found_whole_whatever_the_policy():
    prompts = [((1, 2, 3), 1536), ((1, 2, 4), 1536), ((1, 2, 3, 5), 2048)]
    frame = trace_policies(prompts, [100]).frame
    # two blocks of the second, three of the third prompt
    assert frame["tokens saved %"].tolist() == [pytest.approx(100 * 5 * 512 / (1536 + 1536 + 2048))] * 7


def test_a_prompt_larger_than_the_cache_is_refused():
    frame = trace_policies([((1, 2, 3), 1536), ((1,), 513), ((1,), 513)], [2]).frame
    assert frame["prompts with a hit %"].tolist() == [pytest.approx(100 / 3)] * 7


def test_estimates_keep_to_the_bound_at_any_depth():
    frame = sketch_errors(5000, 2).frame
    assert (frame["below the truth"] == 0).all()
    assert (frame["above the bound"] <= frame["delta"]).all()
    assert set(frame["depth"]) == {1, 4}


@pytest.mark.long
def test_tamm_fades_with_the_number_of_accesses_only_by_counter():
    """A counter grows for ever, so that size alone decides in the end; a rank does not."""
    shares = (0.05, 0.1, 0.2)
    frame = cache_policies(20_000, shares=shares, policies=("lru", "tamm rank", "tamm counter")).frame
    frame = frame.set_index(["capacity %", "policy"])
    change = frame["4th quarter %"] - frame["2nd quarter %"]
    for capacity in (5.0, 10.0, 20.0):
        assert change[capacity, "tamm counter"] < min(-1, change[capacity, "lru"] - 1), change
        assert change[capacity, "tamm rank"] > change[capacity, "lru"] - 1, change


@pytest.mark.long
def test_recency_turns_the_conclusion(tmp_path):
    """The figures of `compare` are those of the table of all policies; recency decides the sign of TAMM less LRU."""
    table = cache_policies(15_000, shares=(0.1,), policies=("lru", "tamm rank", "tamm counter")).frame
    lru, rank, counter = table.set_index("policy")["hit %"]
    compare = STUDY.module("report").compare
    for recency, hits in (("rank", rank), ("counter", counter)):
        context = STUDY.context(tmp_path, quick=True, changes=[f"recency={recency}"])
        found = {one.name: one for one in compare(context)}
        assert found["2. TAMM, hits %"].here == hits
        assert found["2. TAMM less LRU, hits, points"].here == pytest.approx(hits - lru)
        assert 90 < found["2. TAMM, budget in use %"].here <= 100
        assert found["2. TAMM, budget in use %"].paper == 94.2
    assert rank > lru > counter


@pytest.mark.long
def test_every_reading_of_recency_has_a_cost():
    frame = tools.eviction_costs(2, sizes=(100, 600)).frame
    assert list(frame["recency"].unique()) == ["rank", "age", "counter"]
    assert (frame[["us a read", "us an eviction"]] > 0).all(axis=None)


@pytest.mark.long
def test_changes_of_p95_are_those_of_the_same_seed(tmp_path, monkeypatch):
    names = ("everything comes in", "admission")
    monkeypatch.setattr(service, "VARIANTS", {name: service.VARIANTS[name] for name in names})
    context = STUDY.context(tmp_path, workers=0)
    frame = admission(context, 400, 2, (20,)).frame
    assert len(frame) == 4
    assert (frame["rejected"] == 0).all()
    assert (frame["peak share"] <= 1).all()
    base = frame["memory tier"] == "everything comes in"
    assert frame[base]["P95 change %"].isna().all()
    assert np.isfinite(frame[~base]["P95 change %"].astype(float)).all()
    assert frame["P95 change %"].astype(float).abs().max() > 1


def test_hybrid_retrieval_is_the_sum_or_the_longer_of_the_measured_searches(tmp_path, capsys):
    pytest.importorskip("bm25s", reason="bm25s is not installed (extra `retrieval`)")
    context = STUDY.context(tmp_path, workers=0)
    folder = context.file("hybrid.yaml").parent
    frame = hybrid_runs(context, 200, (20,)).frame.set_index("searches")
    table = hybrid_latency(make_corpus(CorpusConfig(documents=200, queries=4))).frame
    row = table[(table["N"] == 100_000) & (table["efSearch"] == 64)].iloc[0]
    for searches, name in (("sequential", "one after the other us"), ("parallel", "side by side us")):
        assert frame["search P50 ms"][searches] == pytest.approx((row[name] + 50) / 1e3, rel=1e-4)
    assert main(["services", str(folder / "hybrid.yaml")]) == 0
    assert "0.842" in capsys.readouterr().out


def test_a_submit_costs_less_in_larger_batches():
    frame = submit_costs(5, queries=320, sizes=(1, 32)).frame.set_index("batch")
    assert 0 < frame["us a submit"][32] < frame["us a submit"][1] < 5000


def test_fusing_adds_most_where_the_lists_are_equally_strong():
    pytest.importorskip("bm25s", reason="bm25s is not installed (extra `retrieval`)")
    values, tests = (table.frame for table in strengths(500, 80, (1, 4), (1.2,)))
    assert len(values) == 4
    gain = values["nasf"] - values[["dense", "sparse"]].max(axis=1)
    gap = (values["dense"] - values["sparse"]).abs()
    own = values["averaged over"] == "own words"
    assert gap[own & (values["synonyms"] == 1)].item() < gap[own & (values["synonyms"] == 4)].item()
    assert gain[own & (values["synonyms"] == 1)].item() > gain[own & (values["synonyms"] == 4)].item()
    assert ((tests["from"] <= tests["difference"]) & (tests["difference"] <= tests["to"])).all()
    assert ((tests["p"] < 0.05) == ((tests["from"] > 0) | (tests["to"] < 0))).all()


@pytest.mark.thorough
def test_one_command_prints_a_figure_of_each_of_the_seven(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "OPERATIONS", 200)
    small = service.micro_batches
    monkeypatch.setattr(service, "micro_batches", lambda context, requests, rates, windows: small(
        context, 200, rates[:1], windows[:2]))
    tiers = service.admission
    monkeypatch.setattr(service, "admission", lambda context, requests, seeds, rates, recency: tiers(
        context, 200, 2, rates[:1], recency))
    report = STUDY.run(STUDY.context(tmp_path, quick=True, workers=0))
    for number in "1234567":
        if number != "4" or not any(line.startswith("Retrieval:") for line in report.notes):
            assert any(table.title.startswith(f"{number}.") for table in report.tables), number
    assert any("Mooncake" in line for line in report.notes)
    assert {line[0] for line in report.findings} >= set("123567")
    assert {one.name[0] for one in report.compared} >= set("12357")
    assert len({one.name for one in report.compared}) == len(report.compared)
    assert report.write(tmp_path)
    assert all((tmp_path / f"{plot.name}.png").stat().st_size > 10_000 for plot in report.plots)


def test_sharers_that_change_tokens_have_pages_of_their_own_from_there_on():
    """L_s + K L_m in blocks, for any number of them; none that changes: the common blocks alone."""
    for changed in (0, 1, 10, 100):
        assert memory.copied_pages(changed) == (1024 + changed * 512) / 16 - (32 if changed == 100 else 0)


def test_comparisons_of_the_heap_grow_with_the_logarithm():
    frame = tools.heap_comparisons((100, 10_000)).frame
    for column, size in (("at 10^3", 100), ("at 10^5", 10_000)):   # down the heap two a level, up one
        assert (frame[column] < 3 * np.log2(size)).all()
    assert frame.equals(tools.heap_comparisons((100, 10_000)).frame)   # counted, not timed


def test_the_interval_of_the_gain_holds_every_seed():
    frames = [cache_policies(3000, shares=(0.1,), policies=("lru", "tamm rank"), seed=seed).frame for seed in (11, 12)]
    rows = {one.name: one for one in STUDY.module("figures").eviction(frames, 10.0, "rank")}
    gain = rows["2. TAMM less LRU, hits, points"]
    each = [frame["hit %"].iloc[1] - frame["hit %"].iloc[0] for frame in frames]
    assert gain.here == each[0]
    assert gain.interval == (min(each), max(each))
    assert rows["2. TAMM, budget in use %"].verdict == "agrees"
