"""Measured queries and F1: what the files say is what the results have, and each mistake is one line with its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.plugins.metis.decision import METHODS, Configuration
from hermes.plugins.metis.measured import Measured
from hermes.plugins.metis.quality import FORMULAS, AllOrNothing
from hermes.plugins.metis.testing import QualityContract
from hermes.results.brief import brief

SCENARIO = """\
extends: studies/metis/base
workload:
  requests: 9
  pipeline: {name: metis, dataset: squad, PIPELINE}
"""
F1 = """\
query,method,chunks,words,f1,answer_tokens
a,stuff,1,,0.5,11
a,stuff,6,,0.75,12
a,map_rerank,2,0,0.25,13
b,stuff,2,,1,21
b,stuff,4,,0,22
b,map_rerank,1,,0.1,23
b,map_reduce,3,40,0.6,24
b,map_reduce,3,90,0.9,25
"""
QUERIES = """\
query,joint,complex,pieces,least_words,most_words,answer_tokens
b,1,0,2,30,60,7
a,1,0,3,30,60,8
b,0,0,1,30,60,9
"""


class TestMeasured(QualityContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "f1.csv"
        self.path.write_text(F1)

    def make(self):
        return Measured(file=str(self.path))

    def configurations(self):
        return [Configuration(method, chunks) for method in METHODS[:2] for chunks in (1, 3, 35)]


class TestFormula(QualityContract):
    def make(self):
        return FORMULAS["default"]


class TestVariant(QualityContract):
    def make(self):
        return AllOrNothing(dilution=0.3)


def run(folder, pipeline, **files):
    for name, text in files.items():
        (folder / name.replace("_csv", ".csv")).write_text(text)
    (folder / "mine.yaml").write_text(SCENARIO.replace("PIPELINE", pipeline))
    return simulate(folder / "mine.yaml")


def test_f1_and_answers_are_those_of_the_file(tmp_path):
    results = run(tmp_path, "system: fixed, method: stuff, chunks: 4, quality: {kind: measured, file: f1.csv}",
                  f1_csv=F1)
    rows = results.requests
    assert [name for name in rows if name.startswith("note_f1")] == ["note_f1", "note_f1_measured"]
    # 4 is as far from 2 as 6 of `a`, whose nearest is 6; `b` has 4
    assert rows["note_f1"].tolist() == [0.75, 0.0] * 4 + [0.75]
    assert rows["note_f1_measured"].tolist() == [0, 1] * 4 + [0]
    lines = dict(brief(results.summary, results.meta))
    assert lines["F1"] == "mean 0.417; 55.6% of the requests have that of the nearest configuration that was measured"
    generated = results.stages[results.stages["kind"] == "generate"].set_index("request").sort_index()
    assert generated["output_tokens"].tolist() == [12, 22] * 4 + [12]


@pytest.mark.parametrize(("config", "f1"), [
    (("map_reduce", 3, 60), 0.6), (("map_reduce", 9, 80), 0.9), (("map_reduce", 1, 65), 0.6), (("stuff", 3), 1.0),
    (("map_rerank", 35), 0.1),
])
def test_a_configuration_that_was_not_measured_has_the_nearest_f1(tmp_path, config, f1):
    (tmp_path / "f1.csv").write_text(F1)
    model = Measured(file=str(tmp_path / "f1.csv")).opened()
    query = next(iter(TestFormula().queries()))
    assert model.f1(replace(query, name="b"), Configuration(*config)) == f1


def test_queries_with_profiles_and_answers(tmp_path):
    """METIS with a perfect profiler takes the methods that follow from the file's profiles, in its order."""
    results = run(tmp_path, "queries: queries.csv, profiler: perfect, feedback_every: 0", queries_csv=QUERIES)
    rows = results.requests
    assert rows["note_method"].tolist() == [METHODS.index(name) for name in ("stuff", "stuff", "map_rerank")] * 3
    assert set(zip(rows["note_chunks"], strict=True)) == {(6,), (9,), (3,)}
    last = results.stages[results.stages["kind"] == "generate"].groupby("request")["output_tokens"].max()
    assert last.tolist() == [7, 8, 9] * 3


def test_queries_without_profiles_have_drawn_ones(tmp_path):
    named = run(tmp_path, "queries: queries.csv", queries_csv="query\nx\ny\n")
    drawn = run(tmp_path, "system: metis")
    np.testing.assert_array_equal(named.record.notes["chunks"], drawn.record.notes["chunks"])


def test_measured_f1_decides_what_adaptive_rag_takes(tmp_path):
    """All queries alike: the best measured configuration of the file, at any cost."""
    f1 = "query,method,chunks,f1\n" + "".join(f"q{i},stuff,{k},{0.9 if k == 7 else 0.3}\n" for i in range(4)
                                              for k in (1, 7, 30))
    results = run(tmp_path, "system: adaptive_rag, noise: 0.0, grid: chunks, quality: {kind: measured, file: f1.csv}",
                  f1_csv=f1)
    # nearest to 7, of equal F1 the quickest: from 4 (as far from 1) up
    assert set(results.requests["note_chunks"]) == {5}
    assert set(results.requests["note_f1"]) == {0.9}


def test_a_data_set_beside_the_scenario(tmp_path, monkeypatch):
    """Relative to the scenario, not to the current folder, which has another of the name."""
    text = (resource_dir("hw_profiles") / "rag_datasets" / "squad.yaml").read_text()
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, chunk in ((here, 321), (elsewhere, 999)):
        folder.mkdir()
        (folder / "own.yaml").write_text(text.replace("chunk_tokens: 400", f"chunk_tokens: {chunk}"))
    (here / "mine.yaml").write_text(SCENARIO.replace("dataset: squad, PIPELINE",
                                                     "dataset: ./own.yaml, system: fixed, chunks: 3"))
    monkeypatch.chdir(elsewhere)
    results = simulate(here / "mine.yaml")
    generated = results.stages[results.stages["kind"] == "generate"].set_index("request").sort_index()
    prompts = results.requests["prompt_tokens"]
    assert (generated["prompt_tokens"] == 3 * 321 + prompts).all()
    (here / "own.yaml").unlink()
    with pytest.raises(InputError, match=r"mine\.yaml:4:\d+: .*dataset: expected a data set .* an existing file"):
        simulate(here / "mine.yaml")


@pytest.mark.parametrize(("before", "after", "said"), [
    ("a,stuff,6,,0.75,12", "a,stuff,6,,1.5,12", r"f1\.csv:3: f1: expected an F1 from 0 to 1, found '1.5'"),
    ("a,stuff,6,,0.75,12", "a,stuff,60,,0.5,12", r"f1\.csv:3: chunks: expected an integer from 1 to 35"),
    ("a,stuff,6,,0.75,12", "a,stuff,6,,0.5,0", r"f1\.csv:3: answer_tokens: expected an integer from 1"),
    ("a,stuff,6,,0.75,12", "a,stuf,6,,0.5,12", r"f1\.csv:3: method: expected one of map_rerank, stuff, map_reduce"),
    ("a,stuff,6,,0.75,12", "a,stuff,6,30,0.5,12", r"f1\.csv:3: words: expected words of a summary for map_reduce, and"),
    ("a,stuff,6,,0.75,12", "a,stuff,1,,0.5,12", r"f1\.csv:3: query: expected each query once with stuff, 1 chunks"),
    ("a,stuff,6,,0.75,12", "a,stuff,6,,many,12", r"f1\.csv:3: f1: expected a number, found 'many'"),
    ("a,stuff,6,,0.75,12", "a,stuff,6,,0.75", r"f1\.csv:3: expected 6 fields, found 5"),
    ("query,method", "query,how", r"f1\.csv: expected a column method, found columns query, how"),
    (F1[F1.index("\n") + 1:], "", r"f1\.csv: expected at least one row"),
])
def test_a_mistake_in_f1_is_one_line_with_its_place(tmp_path, before, after, said):
    assert before in F1
    with pytest.raises(InputError, match=said) as caught:
        run(tmp_path, "quality: {kind: measured, file: f1.csv}", f1_csv=F1.replace(before, after))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("before", "after", "said"), [
    ("a,1,0,3", "a,2,0,3", r"queries\.csv:3: joint: expected an integer from 0 to 1, found '2'"),
    ("a,1,0,3", "a,1,0,11", r"queries\.csv:3: pieces: expected an integer from 1 to 10"),
    ("a,1,0,3,30,60", "a,1,0,3,70,60", r"queries\.csv:3: most_words: expected at least least_words \(70\), found '60'"),
    ("joint,complex", "joint,compleks", r"queries\.csv:1: expected columns among query, .* \(did you mean 'complex'"),
    ("joint,", "pieces,", r"queries\.csv:1: expected a header line with distinct column names"),
    ("a,1,0", "c,1,0", r"queries\.csv:3: query: expected a query of the file of measured F1, found 'c'"),
])
def test_a_mistake_in_queries_is_one_line_with_its_place(tmp_path, before, after, said):
    assert before in QUERIES
    with pytest.raises(InputError, match=said) as caught:
        run(tmp_path, "queries: queries.csv, quality: {kind: measured, file: f1.csv}", f1_csv=F1,
            queries_csv=QUERIES.replace(before, after))
    assert "\n" not in str(caught.value)


def test_a_method_that_was_not_measured_is_refused_when_it_is_chosen(tmp_path):
    with pytest.raises(InputError, match=r"f1\.csv: method: expected a row of query 'a' with method map_reduce"):
        run(tmp_path, "system: fixed, method: map_reduce, quality: {kind: measured, file: f1.csv}", f1_csv=F1)
