"""The study of batching: common requests for all strategies, normalisation, SLO flags, complete tables."""

import numpy as np
import pytest

from hermes.errors import InputError
from hermes.explore import plan_sweep
from hermes.study import load_study

STUDY = load_study("batching")
batching, tables = STUDY.module("report"), STUDY.module("tables")
arrange, routers = batching.arrange, batching.routers

BASE = [{"name": "llm", "count": 9, "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512}},
        {"kind": "rag", "name": "cpu"}]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A tiny grid: two clients, ten seconds, all pipelines."""
    patch = pytest.MonkeyPatch()
    patch.setattr(batching, "SYSTEMS", {"small": (2, ("continuous", "chunked", "1P/1D"))})
    patch.setattr(batching, "PIPELINES", dict.fromkeys(batching.PIPELINES, 2))
    patch.setattr(batching, "LENGTHS", ("azure-conv-2023",))
    patch.setattr(batching, "QUICK_WINDOW_S", 10)
    out = tmp_path_factory.mktemp("study")
    yield batching._grid(STUDY.context(out, quick=True, workers=0))
    patch.undo()


def test_every_strategy_serves_the_same_requests(grid):
    for _, group in grid.groupby(["pipeline", "lengths", "rate"]):
        assert set(group.strategy) == {"continuous", "chunked", "1P/1D"}
        assert group["requests.total"].nunique() == 1
        assert (group["requests.completed"] + group["requests.rejected"] == group["requests.total"]).all()
        assert group["tokens.output"].nunique() == 1 or group["requests.rejected"].any()


def test_pipelines_do_what_they_say(grid):
    """Retrieval computes 3,000 tokens more a request, cached context computes none of them again."""
    at = grid[(grid.strategy == "chunked") & (grid.lengths == "conv") & (grid.rate == 2)].set_index("pipeline")
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
        for strategy in ("continuous", "chunked", "1P/1D"):
            rates = mine[mine.strategy == strategy].rate
            assert row[strategy] == (rates.max() if len(rates) else 0)
    best = tables.best_by_band(table)
    for row in best[best["throughput: best"] != "none"].to_dict("records"):
        key = (good.pipeline == row["pipeline"]) & (good.lengths == row["lengths"])
        assert row["throughput: relative"] in set(good[key].rel_tps)


def test_the_report_is_complete(grid, tmp_path):
    weights = grid[(grid.pipeline == "plain")].assign(memory="all")
    report = tables.build(grid, weights, None, None, "speed", {"small": 10})
    files = {path.name for path in report.write(tmp_path)}
    assert {"points.csv", "best.csv", "highest-rate.csv", "batching-plain.png", "batching-rag.png"} <= files
    points = next(table for table in report.tables if table.name == "points").frame
    assert len(points) == len(grid)
    assert np.isfinite(points["KV tok"]).all()


def test_arrangements():
    chunked = arrange(BASE, "chunked", 4)
    assert chunked[0]["count"] == 4
    assert chunked[0]["scheduler"] == BASE[0]["scheduler"]
    assert chunked[1] == BASE[1]
    split = arrange(BASE, "1P/3D", 4)
    assert [(c["role"], c["count"]) for c in split[:2]] == [("prefill", 1), ("decode", 3)]
    assert routers("1P/3D", {"kind": "least_loaded"})["generate"]["load"] == "input_tokens"
    assert routers("chunked", {"kind": "least_loaded"}) == {}
    for strategy in ("2P/3D", "4P/0D", "static"):
        with pytest.raises(InputError):
            arrange(BASE, strategy, 4)


def test_every_variation_is_a_sweep(tmp_path):
    context = STUDY.context(tmp_path)
    hashes = set()
    longer = ("a window four times as long", {"workload.duration": "400 s"}, {})
    for label, settings, scheduler in (*batching.VARIATIONS, longer):
        points = batching.points(context, "plain", 2, ("chunked", "1P/1D"), [3.0], 100, settings, scheduler,
                                 lengths=batching.LENGTHS[:1])
        seed = points[0].seed
        planned = plan_sweep({
            "scenario": str(context.file("plain.yaml")), "seeds": None if seed is None else [seed],
            "cases": [{"label": point.label, "set": dict(point.settings)} for point in points]}, workers=0).points
        assert len(planned) == 2, label
        hashes |= {point.hash for point in planned}
    # each is another simulation, but one: prefill clients take 8,192 tokens a step anyway
    assert len(hashes) == 2 * (len(batching.VARIATIONS) + 1) - 1
