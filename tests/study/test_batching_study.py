"""The study of batching: common requests for all strategies, normalisation, SLO flags, complete tables."""

import sys

import numpy as np
import pandas as pd
import pytest

from hermes.errors import InputError
from hermes.explore import plan_sweep
from hermes.study import Compared, load_study, scenario_of

STUDY = load_study("batching")
batching, tables, paper = STUDY.module("report"), STUDY.module("tables"), STUDY.module("paper")
arrange, routers, over_seeds = batching.arrange, batching.routers, batching.over_seeds
table_3 = sys.modules[paper.outcome.__module__]
TTFT = "latency.ttft_s.p50"

BASE = [{"name": "llm", "count": 9, "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512}},
        {"kind": "rag", "name": "cpu"}]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A tiny grid: two clients, ten seconds, all pipelines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "SYSTEMS", (batching.System("small", 2, ("1P/1D",)),))
        patch.setattr(batching, "QUICK_BUDGETS", (512, 2048))
        patch.setattr(tables, "RATE_STEPS", dict.fromkeys(batching.PIPELINES, 1.0))
        patch.setattr(batching, "LOWEST", 1.0)
        patch.setattr(batching, "PIPELINES", dict.fromkeys(batching.PIPELINES, 2))
        patch.setattr(batching, "LENGTHS", ("azure-conv-2023",))
        patch.setattr(batching, "QUICK_WINDOW_S", 10)
        return batching._grid(STUDY.context(tmp_path_factory.mktemp("study"), quick=True, workers=0))


@pytest.mark.long
def test_every_strategy_serves_the_same_requests(grid):
    for _, group in grid.groupby(["pipeline", "lengths", "rate"]):
        assert set(group.strategy) == {"continuous", "chunked 512", "chunked 2048", "1P/1D"}
        assert group["requests.total"].nunique() == 1
        assert (group["requests.completed"] + group["requests.rejected"] == group["requests.total"]).all()
        assert group["tokens.output"].nunique() == 1 or group["requests.rejected"].any()


@pytest.mark.long
def test_pipelines_do_what_they_say(grid):
    """Retrieval computes 3,000 tokens more a request, cached context computes none of them again."""
    at = grid[(grid.strategy == "chunked 2048") & (grid.lengths == "conv") & (grid.rate == 2)].set_index("pipeline")
    extra = at["tokens.prompt"] - at.loc["plain", "tokens.prompt"]
    assert extra["rag"] == 3000 * at.loc["rag", "requests.completed"]
    assert extra["kv-retrieval"] == extra["rag"]   # of which 3,000 each were found
    assert at.loc["kv-retrieval", "tokens.cached"] > 0
    assert at.loc["plain", "latency.ttft_s.p50"] < at.loc["kv-retrieval", "latency.ttft_s.p50"]
    assert at.loc["kv-retrieval", "latency.ttft_s.p50"] < at.loc["rag", "latency.ttft_s.p50"]


def test_flags_agree_with_the_table_of_slos(grid):
    for row in grid.to_dict("records"):
        ttft = 0.25 if row["pipeline"] == "plain" else 1.0
        limits = [f * ttft for f in (2, 3, 6)] + [f * 0.025 for f in (1.25, 1.5, 5)]
        values = [row[f"latency.{name}.{p}"] for name in ("ttft_s", "tpot_s") for p in ("p50", "p90", "p99")]
        assert row["slo.pass"] == all(v <= limit for v, limit in zip(values, limits, strict=True))


def test_normalised_to_continuous_at_the_lowest_rate(grid):
    table = tables.normalised(grid)
    base = table[(table.strategy == "continuous") & (table.rate == table.rate.min())]
    assert len(base) == 3
    assert (base.rel_tps == 1).all()
    assert (base.rel_tpj == 1).all()
    one = table.iloc[-1]
    mine = base[(base.pipeline == one.pipeline) & (base.lengths == one.lengths)].iloc[0]
    assert one.rel_tps == pytest.approx(one["throughput.output_tokens_per_s"] / mine["throughput.output_tokens_per_s"])


def test_the_best_meet_the_slos(grid):
    table = tables.normalised(grid)
    good = table[table["slo.pass"].astype(bool)]
    highest = tables.highest_rates(table, tables.BY)
    assert len(highest) == 3
    for row in highest.to_dict("records"):
        mine = good[(good.pipeline == row["pipeline"]) & (good.lengths == row["lengths"])]
        for strategy in ("continuous", "chunked 512", "chunked 2048", "1P/1D"):
            rates = mine[mine.strategy == strategy].rate
            assert row[strategy] == (rates.max() if len(rates) else 0)
    best = tables.best_by_band(tables.choose_budget(table))
    for row in best[best["throughput: best"] != "none"].to_dict("records"):
        key = (good.pipeline == row["pipeline"]) & (good.lengths == row["lengths"])
        assert row["throughput: relative"] in set(good[key].rel_tps)


@pytest.mark.long
def test_the_report_is_complete(grid, tmp_path):
    weights = grid[(grid.pipeline == "plain")].assign(memory="all")
    report = tables.build([tables.normalised(grid)], weights, "speed", {"small": 10}, False)
    files = {path.name for path in report.write(tmp_path)}
    assert {"points.csv", "best.csv", "highest-rate.csv", "batching-plain.png", "batching-rag.png"} <= files
    points = next(table for table in report.tables if table.name == "points").frame
    assert len(points) == len(grid)
    assert np.isfinite(points["KV tok"]).all()


def test_the_best_budget_takes_the_highest_rate():
    """512 tokens meet the SLOs up to 2, 256 and 1,024 up to 3; of these 1,024 has the shorter TTFT."""
    rows = [{"system": "small", "pipeline": "plain", "lengths": "conv", "strategy": strategy, "rate": rate,
             "slo.pass": rate <= highest, "latency.ttft_s.p99": ttft}
            for strategy, highest, ttft in (("continuous", 9, 0.1), ("chunked 256", 3, 0.9), ("chunked 512", 2, 0.2),
                                            ("chunked 1024", 3, 0.8)) for rate in (1.0, 2.0, 3.0, 4.0)]
    chosen = tables.choose_budget(pd.DataFrame(rows))
    assert chosen.strategy.tolist() == ["continuous"] * 4 + ["chunked"] * 4
    assert set(chosen[chosen.strategy == "chunked"].budget) == {1024}
    assert chosen[chosen.strategy == "chunked"].rate.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_system_is_asked_until_it_misses_twice():
    asked = []

    def simulate(rate, alive):
        asked.extend((name, rate) for name in alive)
        limits = {"a": [1, 2, 4], "b": []}   # the rates that each meets
        return pd.DataFrame({"name": alive, "rate": rate, "slo.pass": [rate in limits[name] for name in alive]})

    found = batching.climb(["a", "b"], [1, 2, 3, 4, 5, 6, 7, 8], simulate)
    assert asked == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("a", 4), ("a", 5), ("a", 6)]
    assert list(zip(found.name, found.rate, strict=True)) == sorted(asked)


@pytest.mark.parametrize(("text", "band", "kinds"), [
    ("continuous", "low", ("continuous",)), ("chunked, disaggregated", "high", ("chunked", "disaggregated")),
    ("disaggregated (medium), chunked (high)", "medium", ("disaggregated",)),
    ("disaggregated (medium), chunked (high)", "low", ()),
])
def test_a_recommendation_of_table_3(text, band, kinds):
    assert paper.recommended(text, band) == kinds


def test_the_best_of_a_band_by_hand():
    rows = pd.DataFrame([
        {"strategy": name, "rate": rate, "latency.ttft_s.p50": ttft, "throughput.output_tokens_per_s": 100 * rate,
         "energy.output_tokens_per_j": per_j}
        for name, rate, ttft, per_j in (("continuous", 1.0, 0.1, 1.0), ("chunked", 1.0, 0.05, 1.0),
                                        ("continuous", 2.0, 0.200, 2.0), ("20P/12D", 2.0, 0.203, 2.5),
                                        ("chunked", 3.0, 0.9, 1.9))])
    assert paper.best_systems(rows, "TTFT", TTFT) == (("continuous", "20P/12D"), 2.0)   # two run at 2, one at 3
    assert paper.best_systems(rows, "throughput", TTFT) == (("chunked",), 3.0)
    assert paper.best_systems(rows, "throughput per energy", TTFT) == (("20P/12D",), 2.0)
    assert paper.best_systems(rows.iloc[:0], "TTFT", TTFT) == ((), None)


def test_the_first_token_may_wait_for_the_kv(tmp_path):
    """Of a split, TTFT and KV at the decode client by hand; without a split the two are one."""
    from hermes import simulate

    context = STUDY.context(tmp_path, changes=["kv_transfer=full", "window_small_s=10"])
    for strategy in ("1P/1D", "continuous"):
        point, = batching.points(context, "plain", batching.System("small", 2, ("1P/1D",)), [strategy], [1.0],
                                 batching.LENGTHS[:1])
        results = simulate(scenario_of(context, point, "plain.yaml"))
        moves = results.record.transfers
        ready = results.requests.ttft_s.to_numpy() + 0.0
        if strategy == "1P/1D":
            ready[moves["request"]] = (moves["end_ns"] - results.record.arrival_ns[moves["request"]]) / 1e9
            assert (ready > results.requests.ttft_s).all()
        assert batching.llm_figures(results)["kv_ttft_p50"] == pytest.approx(np.percentile(ready, 50))


def test_part_of_the_peak_by_hand(grid):
    """2 FLOP for each of 70.55e9 parameters and token, over 1.979 PFLOP/s; cached context is not computed."""
    table = paper.part_of_peak(grid).frame.set_index("pipeline")
    first = grid[grid.pipeline == "plain"].iloc[0]
    tokens = (first["tokens.prompt"] + first["tokens.output"]) / first["requests.completed"]
    assert table.loc["plain", "5/s"] == pytest.approx(5 * 2 * 70.55e9 * tokens / 1.979e15)
    assert table.loc["rag", "TFLOP a request"] - table.loc["plain", "TFLOP a request"] == pytest.approx(
        2 * 70.55e9 * 3000 / 1e12, rel=0.02)
    assert table.loc["kv-retrieval", "TFLOP a request"] == pytest.approx(table.loc["plain", "TFLOP a request"], 0.02)


def test_the_figures_of_the_paper(grid):
    """Of a grid with the small system alone: its own rows, and no row that needs the large one."""
    rows = paper.compared(tables.choose_budget(tables.normalised(grid)), TTFT, "slo.pass")
    names = [one.name for one in rows]
    assert "plain, conv, 4 clients: highest rate, requests/s and client" in names
    assert not [name for name in names if "32 clients" in name]
    whole = tables.choose_budget(tables.normalised(grid)).assign(system="large")
    rows = paper.compared(whole, TTFT, "ttft_met")
    names = [one.name for one in rows]
    assert sum("32 clients" in name for name in names) == 8
    assert sum("cells that agree" in name for name in names) == 3
    verdicts = {"agrees": "agrees", "disagrees": "differs", "nothing meets the SLOs": "not comparable"}
    found = paper.cells(whole, TTFT, "ttft_met")
    assert [one.verdict for one in rows if one.name.startswith("Table III, ") and " rates: " in one.name] == [
        verdicts.get(outcome, "cannot tell") for outcome in found.outcome]
    assert len(found) > 10
    assert not [one for one in rows if "nan" in one.why]
    assert len(set(names)) == len(names)


def test_a_place_is_shared_by_systems_one_step_apart():
    """Figure 10, code: chunked one step behind the split agrees, two steps do not."""
    def rows(chunked):
        rates = {"continuous": 1.0, "chunked": chunked, "20P/12D": 3.5}
        return pd.DataFrame([
            {"system": "large", "pipeline": "plain", "lengths": "code", "strategy": name, "rate": rate, "rel_tpj": rate,
             "slo.pass": rate <= top, "kv.peak_share": 0.99 if name == "continuous" else 0.5,
             TTFT: 0.1, **{f"slo.{slo}.pass": rate <= top or slo != "tpot_p50" for slo in tables.LIMITS}}
            for name, top in rates.items() for rate in np.arange(0.5, 5, 0.5)])

    near, far = (paper.compared(rows(chunked), TTFT, "slo.pass")[0] for chunked in (3.0, 2.5))
    assert (near.verdict, far.verdict) == ("agrees", "differs")
    assert near.here == "20P/12D 3.5, chunked 3, continuous 1"
    sure, unsure = (paper.compared(rows(chunked), TTFT, "slo.pass", quick=True)[0] for chunked in (3.5, 2.5))
    assert (sure.verdict, unsure.verdict) == ("agrees", "cannot tell")   # of a quick run, which may be a step off
    assert near.why == "ends by TPOT with full KV memory: continuous; by TPOT: chunked, 20P/12D"


def test_outcomes_of_table_3():
    """All, some or none of the best are of the recommended kinds; a cell without any is none of these."""
    outcomes = [table_3.outcome(*one) for one in (
        (("20P/12D", "1P/3D"), ("disaggregated",)), (("chunked", "20P/12D"), ("disaggregated",)),
        (("chunked",), ("disaggregated",)), ((), ("disaggregated",)))]
    assert outcomes == [table_3.AGREE, table_3.TIE, table_3.DISAGREE, table_3.NONE_MEETS]
    assert table_3.share(outcomes) == 0.25
    assert table_3.tally(outcomes) == "1 of 3 agree, 1 tie, 1 disagree; in 1 nothing meets the SLOs"


def test_the_interval_is_over_the_seeds():
    first = [Compared("ratio", 2.0, 1.0, "x"), Compared("words", "a", "a 3", "x", agrees=True, interval=(3.0, 3.0))]
    second = [Compared("ratio", 2.0, 1.5, "y"), Compared("words", "a", "b 4", "y", agrees=False, interval=(4.0, 4.0))]
    ratio, words = over_seeds(first, second)
    assert (ratio.here, ratio.interval, ratio.why) == (1.0, (1.0, 1.5), "x")
    assert (words.here, words.interval, words.why) == ("a 3", (3.0, 4.0), "x; other seed: differs")
    assert over_seeds(first)[1].interval is None


def test_arrangements():
    chunked = arrange(BASE, "chunked 256", 4)
    assert chunked[0]["count"] == 4
    assert chunked[0]["scheduler"] == {"kind": "chunked", "max_num_batched_tokens": 256}
    assert chunked[1] == BASE[1]
    split = arrange(BASE, "1P/3D", 4)
    assert [(c["role"], c["count"]) for c in split[:2]] == [("prefill", 1), ("decode", 3)]
    assert routers("1P/3D", {"kind": "least_loaded"})["generate"]["load"] == "input_tokens"
    assert routers("chunked 256", {"kind": "least_loaded"}) == {}
    for strategy in ("2P/3D", "4P/0D", "static", "chunked"):
        with pytest.raises(InputError):
            arrange(BASE, strategy, 4)


def test_every_assumption_reaches_the_simulation(tmp_path):
    system, hashes = batching.System("small", 2, ("1P/1D",)), set()
    for changes in ([], ["seed=2"], ["router=round_robin"], ["kv_transfer=full"], ["window_small_s=400"]):
        context = STUDY.context(tmp_path, changes=changes)
        points = batching.points(context, "plain", system, ("chunked 512", "1P/1D"), [3.0], batching.LENGTHS[:1])
        planned = plan_sweep({
            "scenario": str(context.file("plain.yaml")), "seeds": [points[0].seed],
            "cases": [{"label": point.label, "set": dict(point.settings)} for point in points]}, workers=0).points
        assert len(planned) == 2, changes
        hashes |= {point.hash for point in planned}
    assert len(hashes) == 10
    for chunk, wanted in (("best", [f"chunked {n}" for n in (256, 512, 1024, 2048)]), (256, ["chunked 256"])):
        context = STUDY.context(tmp_path, changes=[f"chunk={chunk}"])
        assert [name for name in batching._strategies(context, system) if "chunked" in name] == wanted
