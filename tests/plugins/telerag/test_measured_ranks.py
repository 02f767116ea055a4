"""An index of measured data: ranks of queries and rewrites, and sizes of clusters, from files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_telerag_retrieval import MB, run

from hermes.errors import InputError

ROWS = [
    {"query": "a", "rewrite": 0, "clusters": [0, 1, 2, 3, 4, 5]},
    {"query": "a", "rewrite": 1, "clusters": [1, 0, 9, 8, 2, 3]},     # nprobe 4: 1 and 0 of 0, 1, 2
    {"query": "b", "rewrite": 0, "clusters": [10, 11, 12, 13, 14, 15]},
    {"query": "b", "rewrite": 1, "clusters": [10, 11, 12, 60, 61, 62]},
    {"query": "b", "rewrite": 2, "clusters": [20, 21, 22, 60, 61, 62]},
]
HYDE = {"name": "telerag-hyde", "nprobe": 4, "budget": 35 * MB, "strength": 1.0}   # three clusters of 10 MB


def written(folder: Path, rows: list[dict]) -> str:
    path = folder / "ranks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_overlap_and_bytes_by_hand(tmp_path):
    sim, record = run(HYDE, index={"ranks_file": written(tmp_path, ROWS)}, requests=3)
    assert [lookup.overlap for lookup in sim.clients[0].lookups] == [0.5, 0.75, 0.5]   # the third asks `a` again
    assert record.notes["overlap"].tolist() == [0.5, 0.75, 0.5]
    assert record.notes["hit_bytes"].tolist() == [20 * MB, 30 * MB, 20 * MB]
    assert record.notes["missed_bytes"].tolist() == [20 * MB, 10 * MB, 20 * MB]
    assert record.notes["prefetched_bytes"].tolist() == [30 * MB] * 3


def test_a_policy_sees_the_ranked_clusters_only(tmp_path):
    """The budget holds ten clusters, and six are ranked."""
    sim, _ = run({**HYDE, "budget": 100 * MB}, index={"ranks_file": written(tmp_path, ROWS)})
    assert sim.clients[0].lookups[0].prefetched_bytes == 60 * MB


def test_parquet_says_the_same(tmp_path):
    path = tmp_path / "ranks.parquet"
    pd.DataFrame(ROWS).to_parquet(path)
    sim, _ = run(HYDE, index={"ranks_file": str(path)}, requests=2)
    assert [lookup.overlap for lookup in sim.clients[0].lookups] == [0.5, 0.75]


def test_sub_questions_are_the_next_rewrites(tmp_path):
    """Both rewrites of `b`: the prefetched 10, 11, 12 are 3 of the 8 that they probe."""
    sim, _ = run({**HYDE, "name": "telerag-subquestion", "questions": 2, "one_more": 0.0}, requests=1,
                 index={"ranks_file": written(tmp_path, ROWS[2:])})
    assert sim.clients[0].lookups[0].overlap == 3 / 8


def test_queries_of_a_batch_follow_each_other(tmp_path):
    """The budget holds the nearest of `a`, of `b`, and the next of `a`."""
    sim, _ = run({**HYDE, "batch": 2}, index={"ranks_file": written(tmp_path, ROWS)})
    assert sim.clients[0].lookups[0].overlap == 3 / 8


def test_sizes_of_a_file_count(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("bytes\n" + "".join(f"{(i + 1) * MB}\n" for i in range(64)))
    _, record = run(HYDE, index={"ranks_file": written(tmp_path, ROWS), "sizes_file": str(path)}, requests=1)
    assert record.notes["prefetched_bytes"].tolist() == [(1 + 2 + 3 + 4 + 5 + 6) * MB]
    assert record.notes["missed_bytes"].tolist() == [(10 + 9) * MB]
    np.testing.assert_array_equal(run(HYDE, index={"sizes_file": str(path)})[0].clients[0].sizes,
                                  np.arange(1, 65) * MB)


@pytest.mark.parametrize(("row", "change", "says"), [
    (1, {"clusters": [1, 0]}, r"ranks\.jsonl:2: clusters: expected 6 clusters, as in the first row, found 2$"),
    (1, {"clusters": [1, 0, 9, 64, 2, 3]}, r"ranks\.jsonl:2: clusters: expected clusters below 64.*found 64$"),
    (1, {"clusters": [1, 0, 9, 9, 2, 3]}, r"ranks\.jsonl:2: clusters: expected each cluster once, found 9$"),
    (1, {"clusters": "1, 0"}, r"ranks\.jsonl:2: clusters: expected a list of integers"),
    (1, {"rewrite": 0}, r"ranks\.jsonl:2: rewrite: expected each rewrite of a query once, found 0$"),
    (1, {"rewrite": 2}, r"ranks\.jsonl:2: rewrite: expected rewrite 1 of this query, too"),
    (1, {"query": None}, r"ranks\.jsonl:2: query: expected the name of a query"),
    (3, {"rewrite": -1}, r"ranks\.jsonl:4: rewrite: expected an integer from 0"),
])
def test_a_mistake_names_file_line_and_field(row, change, says, tmp_path):
    rows = [other | (change if number == row else {}) for number, other in enumerate(ROWS)]
    with pytest.raises(InputError, match=says) as found:
        run(HYDE, index={"ranks_file": written(tmp_path, rows)})
    assert "\n" not in str(found.value)


def test_a_pipeline_that_rewrites_more_often_than_the_file_is_refused(tmp_path):
    says = r"ranks\.jsonl:1: rewrite: expected rewrite 2 of this query, which the pipeline asks for, found 1 rewrites"
    with pytest.raises(InputError, match=says):
        run({**HYDE, "name": "telerag-iter-retgen", "rounds": 3}, index={"ranks_file": written(tmp_path, ROWS)})


def test_more_probes_than_ranked_clusters_are_refused(tmp_path):
    _, record = run({**HYDE, "nprobe": 7}, index={"ranks_file": written(tmp_path, ROWS)})
    assert record.reject_reasons[0] == "index: nprobe 7 of an index of 6 ranked clusters"


@pytest.mark.parametrize(("index", "says"), [
    ({"family": "noise"}, r"index\.family: expected no family with ranks_file"),
    ({"probed_mean": 20 * MB}, r"index\.probed_mean: expected no probed_mean with ranks_file"),
    ({"ranks_file": "none.jsonl"}, r"none\.jsonl"),
    ({"ranks_file": "ranks.txt"}, r"expected a \.jsonl or \.parquet file"),
    ({"ranks_file": None, "sizes_file": "few.csv"}, r"few\.csv: bytes: expected 64 lines.* found 2"),
    ({"ranks_file": None, "sizes_file": "bad.csv"}, r"bad\.csv:3: bytes: expected .* found '-1'"),
])
def test_files_that_do_not_fit_are_refused(index, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("few.csv").write_text("bytes\n1\n2\n")
    Path("bad.csv").write_text("bytes\n1\n-1\n")
    with pytest.raises(InputError, match=says) as found:
        run(HYDE, index={"ranks_file": written(tmp_path, ROWS), **index})
    assert "\n" not in str(found.value)
