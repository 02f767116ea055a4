"""Searches: plans, the cost model on known costs, files, and small real measurements where the libraries are."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.calibration.collect.counters import LIMIT, contended, steady, waited_s
from hermes.calibration.journal import Journal
from hermes.calibration.plan import save_plan
from hermes.cli import main
from hermes.errors import InputError
from hermes.hardware.descriptions.files import names_in
from hermes.plugins.retrieval.fit import fit_retrieval, index_of
from hermes.plugins.retrieval.indices import Embeddings, embeddings, exact_neighbours, recall, texts
from hermes.plugins.retrieval.measurement import Retrieval, memory_bytes
from hermes.plugins.retrieval.searches import COLUMNS, load_searches, pack_searches, save_searches
from hermes.services.retrieval_costs import (
    CANDIDATES,
    Bm25,
    GraphExponents,
    HnswGraph,
    InvertedLists,
    features,
    shares,
)
from hermes.services.retrieval_profile import load_retrieval_profile, save_retrieval_profile

TRUE = {  # seconds per unit, of about the size that real ones have
    "ivf-flat": {"call": 8e-6, "query": 2e-6, "coarse_macs": 6e-11, "scan_bytes": 1e-10},
    "ivf-pq": {"call": 8e-6, "query": 4e-6, "coarse_macs": 6e-11, "scan_bytes": 5e-10, "probe": 3e-7},
    "hnsw": {"call": 3e-6, "query": 5e-6, "distances": 1e-8, "distance_macs": 4e-11},
    "bm25": {"call": 1e-4, "query": 6e-5, "postings": 1.2e-9, "documents": 3e-9},
}
POWERS = GraphExponents(effort=0.7, links=0.5, vectors=0.2)
KINDS = ["ivf-flat", "ivf-pq", "ivf-pq-fs", "hnsw", "bm25"]
GRID = Retrieval(
    kinds=list(TRUE), vectors=[5_000, 10_000, 20_000], dims=[64, 256], threads=[1, 2], repetitions=3, hnsw_m=[8, 32],
    nprobes=[1, 8, 64], batches=[1, 32])


def work_of(index, effort):
    """Codes or postings, as a data set with somewhat larger lists than average would have them."""
    if index["kind"] == "bm25":
        return {"postings": 0.02 * effort * index["vectors"]}
    if index["kind"] == "hnsw":
        return {}
    return {"codes": min(index["vectors"], 1.25 * effort * index["vectors"] / index["nlist"])}


def made_up(path, grid=GRID, noise=0.0, waited=0.0, seed=0):
    """A journal of the grid with times that follow TRUE."""
    rng = np.random.default_rng(seed)
    plan = grid.plan(Path())
    environment = {"cpu": "a CPU", "cores": 2, "libraries": {"faiss": "1"}}
    with Journal(path, plan.model_dump(mode="json"), environment) as journal:
        for point in plan.points:
            index, effort = point["index"], point["effort"]
            work = work_of(index, effort)
            found = features(index_of({"pq_m": 0, **index}), effort, point["batch"], point["threads"], work, POWERS)
            seconds = sum(value * found[name] for name, value in TRUE[index["kind"]].items())
            rows = []
            for n in range(grid.repetitions):
                time_s = seconds * float(np.exp(noise * rng.standard_normal()))
                rows.append({"repetition": n, "time_s": time_s, "wall_s": time_s, "cpu_time_s": time_s,
                             "waited_s": waited * time_s})
                if "nlist" in index and point["threads"] == 1:
                    rows[-1]["coarse_s"] = 5e-6 + 1e-6 * found["query"] + 6e-11 * found["coarse_macs"]
            journal.point(
                point["name"], rows, cv=noise, library=index["library"], recall=0.9, work=work, index={"build_s": 1.0},
                peak_rss_bytes=10**8)
    return path


@pytest.fixture(scope="module")
def searches(tmp_path_factory):
    return pack_searches(made_up(tmp_path_factory.mktemp("made-up") / "j.jsonl"), "made-up")


@pytest.fixture(scope="module")
def fitted(searches):
    return fit_retrieval(searches, "made-up")


# -- fit ---------------------------------------------------------------------------------------------------------------


@pytest.mark.drawn
@pytest.mark.parametrize("kind", TRUE)
def test_fit_finds_the_costs_that_made_the_times(fitted, kind):
    model = fitted.model(kind)
    assert model.error.mape < 0.005
    assert model.error.unseen_index_mape < 0.02
    found = {term.per: term.seconds for term in model.terms}
    for name in ("coarse_macs", "scan_bytes", "distance_macs", "postings"):
        if name in TRUE[kind]:
            assert found[name] == pytest.approx(TRUE[kind][name], rel=0.05)


def test_fit_of_noisy_times_is_as_good_as_the_noise(tmp_path):
    fitted = fit_retrieval(pack_searches(made_up(tmp_path / "j.jsonl", noise=0.05), "noisy"), "noisy")
    for kind in TRUE:
        assert fitted.model(kind).error.mape < 0.05
        assert fitted.model(kind).error.mape >= fitted.model(kind).error.in_sample_mape - 0.005


def test_coarse_stage_is_told_apart(fitted):
    index = InvertedLists(kind="ivf-flat", vectors=20_000, dim=256, nlist=512)
    found = fitted.coarse_seconds(index, 4, batch=8)
    assert found == pytest.approx(5e-6 + 8e-6 + 6e-11 * 8 * 512 * 256, rel=0.02)
    assert found < fitted.seconds(index, 4, batch=8)


def test_statistics_of_the_data_are_the_defaults(fitted):
    assert fitted.model("ivf-flat").size_bias == pytest.approx(1.25)
    assert fitted.model("bm25").postings_share == pytest.approx(0.02)
    index = InvertedLists(kind="ivf-pq", vectors=20_000, dim=64, nlist=128, pq_m=8)
    assert fitted.seconds(index, 4) == pytest.approx(fitted.seconds(index, 4, work={"codes": 1.25 * 4 * 20_000 / 128}))
    uniform = index.model_copy(update={"size_bias": 1.0})
    assert fitted.seconds(uniform, 4) < fitted.seconds(index, 4)
    assert fitted.seconds(index, 128) == pytest.approx(fitted.seconds(index, 128, work={"codes": 20_000}))


def test_exponents_of_a_graph(fitted):
    model = fitted.model("hnsw")
    assert model.exponents == POWERS
    growth = model.corpus_exponent
    assert 0 < growth.low <= growth.mean <= growth.high < POWERS.vectors  # of the whole time, of which some is fixed
    assert growth.pairs == 2 * 2 * 3 * 2 * 2   # dimensions, links, efSearch, batches, threads


def test_contended_rows_are_kept_and_not_fitted(tmp_path):
    busy = pack_searches(made_up(tmp_path / "j.jsonl", waited=2 * LIMIT), "busy")
    assert len(busy.rows) == len(GRID.plan(Path()).points) * GRID.repetitions
    assert busy.usable().empty
    with pytest.raises(InputError, match="rows that a fit may use"):
        fit_retrieval(busy, "busy")


def test_points_that_vary_too_much_are_kept_and_not_fitted(tmp_path):
    wild = pack_searches(made_up(tmp_path / "j.jsonl", noise=1.5), "wild")
    rejected = wild.rows[wild.rows["noise"] == "rejected"]
    assert len(rejected)
    assert (rejected["excluded"] != "").all()
    assert (wild.rows[wild.rows["noise"] != "rejected"]["excluded"] == "").all()


# -- model -------------------------------------------------------------------------------------------------------------

SIZES = st.integers(1, 4096)


@quick_and_full(50, 150)
@given(st.data())
def test_price_is_positive_finite_and_grows_with_the_work(fitted, data):
    kind = data.draw(st.sampled_from(sorted(TRUE)))
    n, dim, effort = data.draw(st.integers(1_000, 10**9)), data.draw(SIZES), data.draw(st.integers(1, 1000))
    batch, threads = data.draw(st.integers(1, 4096)), data.draw(st.integers(1, 64))

    def price(n=n, dim=dim, effort=effort, batch=batch, threads=threads):
        if kind == "bm25":
            index = Bm25(vectors=n)
        elif kind == "hnsw":
            index = HnswGraph(vectors=n, dim=dim, hnsw_m=16, library="faiss")
        else:
            index = InvertedLists(kind=kind, vectors=n, dim=dim, nlist=1000, pq_m=8 if kind == "ivf-pq" else None)
        return fitted.seconds(index, effort, batch, threads)

    base = price()
    assert 0 < base < math.inf
    assert price(n=2 * n) >= base
    assert price(dim=dim + 1) >= base
    assert price(effort=effort + 1) >= base
    if kind != "hnsw":  # its library turns to several threads at some batch size
        assert price(batch=batch + 1) >= base * (1 - 1e-12)


@given(st.integers(1, 10_000), st.integers(1, 256))
def test_every_query_has_a_worker(batch, threads):
    for index in (HnswGraph(vectors=1000, dim=8, hnsw_m=4, library="faiss"), Bm25(vectors=1000)):
        workers, rows = shares(index, batch, threads)
        assert 1 <= workers <= threads
        assert (rows - 1) * workers < batch <= rows * workers


def test_outside_the_measured_range_is_said(fitted):
    index = HnswGraph(vectors=20_000, dim=64, hnsw_m=16, library="faiss")
    assert fitted.outside(index, 64, batch=8) == []
    assert fitted.outside(index, 64, batch=8, threads=16) == ["threads"]
    assert "distance_macs" in fitted.outside(index, 10**6, batch=8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.seconds(InvertedLists(kind="ivf-pq-fs", vectors=100, dim=8, nlist=10, pq_m=4), 1), "ivf-pq-fs"),
        (lambda p: p.seconds(HnswGraph(vectors=100, dim=8, hnsw_m=4, library="hnswlib"), 16), "faiss"),
        (lambda p: p.seconds(Bm25(vectors=100), 0), "effort"),
        (lambda p: p.seconds(Bm25(vectors=100), 1, batch=0), "batch"),
    ],
)
def test_what_was_not_measured_has_no_price(fitted, call, message):
    with pytest.raises(InputError, match=message):
        call(fitted)


def test_every_candidate_is_made_of_features_that_exist():
    index = {
        "hnsw": HnswGraph(vectors=100, dim=8, hnsw_m=4, library="faiss"), "bm25": Bm25(vectors=100),
        "ivf-flat": InvertedLists(kind="ivf-flat", vectors=100, dim=8, nlist=10),
    }
    for kind, sets in CANDIDATES.items():
        one = index.get(kind) or InvertedLists(kind=kind, vectors=100, dim=8, nlist=10, pq_m=4)
        known = features(one, 2, 4, 2, {"codes": 20.0, "postings": 20.0})
        for names in sets:
            assert set(names) <= set(known)
            assert "call" in names


# -- files -------------------------------------------------------------------------------------------------------------


def test_searches_survive_their_files(searches, tmp_path):
    save_searches(searches, tmp_path / "s.yaml")
    loaded = load_searches(tmp_path / "s.yaml")
    assert list(loaded.rows.columns) == list(COLUMNS)
    assert loaded.rows.equals(load_searches(tmp_path / "s.yaml").rows)
    assert len(loaded.rows) == len(searches.rows)
    first = (tmp_path / "s.yaml").read_bytes(), (tmp_path / "s.parquet").read_bytes()
    save_searches(loaded, tmp_path / "s.yaml")
    assert first == ((tmp_path / "s.yaml").read_bytes(), (tmp_path / "s.parquet").read_bytes())
    (tmp_path / "s.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="sha256"):
        load_searches(tmp_path / "s.yaml")


def test_profile_survives_its_file(fitted, tmp_path):
    save_retrieval_profile(fitted, tmp_path / "p.yaml")
    loaded = load_retrieval_profile(tmp_path / "p.yaml")
    index = InvertedLists(kind="ivf-flat", vectors=10**6, dim=768, nlist=4096)
    assert loaded.seconds(index, 64, 8, 4) == pytest.approx(fitted.seconds(index, 64, 8, 4), rel=1e-6)
    text = (tmp_path / "p.yaml").read_text().replace("per: call", "per: cal")
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(InputError, match="did you mean 'call'"):
        load_retrieval_profile(tmp_path / "p.yaml")


@pytest.mark.parametrize("name", names_in("retrieval"))
def test_shipped_profiles_load_and_price(name):
    profile = load_retrieval_profile(name)
    assert profile.provenance.hardware
    assert profile.provenance.sha256
    for model in profile.models.values():
        assert model.error.mape < 0.5
    assert profile.seconds(InvertedLists(kind="ivf-flat", vectors=10**6, dim=768, nlist=4096), 64) > 0


def test_a_cut_off_journal_is_packed_as_far_as_it_goes(tmp_path):
    path = made_up(tmp_path / "j.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:100]) + lines[100][:40])
    assert pack_searches(path, "cut").rows["configuration"].nunique() > 5


@pytest.mark.parametrize("content", ["", "{}\n", "not json\n", '{"kind": "header", "format": "hermes-journal/2"}\n'])
def test_what_is_no_journal(tmp_path, content):
    (tmp_path / "j.jsonl").write_text(content)
    with pytest.raises(InputError, match="journal"):
        pack_searches(tmp_path / "j.jsonl", "x")


# -- plan --------------------------------------------------------------------------------------------------------------


def test_a_plan_builds_every_index_once():
    points = Retrieval(kinds=KINDS).plan(Path()).points
    levels = [point["level"] for point in points]
    assert levels == sorted(levels)
    for point in points:
        assert {p["index"]["name"] for p in points if p["level"] == point["level"]} == {point["index"]["name"]}
    assert len({point["name"] for point in points}) == len(points)


def test_memory_estimate_holds_the_vectors():
    small, large = (memory_bytes(Retrieval(kinds=["hnsw"], vectors=[n]).plan(Path()))
                    for n in (10_000, 1_000_000))
    assert large - small > 0.99 * 2 * 4 * 768 * 990_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["kinds=[ivfflat]"], "kinds.0: expected 'ivf-flat'"), (["vectors=[3]"], "vectors.0"),
        (["pq_m=[7]", "kinds=[ivf-pq]"], "pq_m"), (["nlists=[1000000]"], "nlists"),
        (["vectors_file=nothing.npy"], "vectors_file"), (["top_k=9999", "vectors=[500]"], "top_k"),
        (["clock=cuda"], "clock: expected 'wall' or 'cpu'"), (["nprobe=[1]"], "did you mean 'nprobes'"),
    ],
)
def test_mistakes_are_one_line(settings, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text("measure: retrieval\n")
    sets = [word for setting in settings for word in ("--set", setting)]
    assert main(["calibrate", "run", "plan.yaml", "--dry-run", *sets]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_other_mistakes_are_one_line(capsys, tmp_path):
    (tmp_path / "plan.yaml").write_text("measure: retrieval\n")
    assert main(["calibrate", "run", str(tmp_path / "plan.yaml"), "--python", "/no/python"]) == 2
    assert "--python" in capsys.readouterr().err
    assert main(["fit", str(tmp_path / "nothing.yaml")]) == 2
    assert "nothing.yaml" in capsys.readouterr().err


# -- data --------------------------------------------------------------------------------------------------------------


def test_generated_data_are_the_same_every_time_and_clustered():
    one, other = embeddings(3000, 32, 50, seed=1), embeddings(3000, 32, 50, seed=1)
    assert np.array_equal(one.vectors, other.vectors)
    assert np.array_equal(one.queries, other.queries)
    assert not np.array_equal(one.vectors, embeddings(3000, 32, 50, seed=2).vectors)
    assert np.linalg.norm(one.vectors, axis=1) == pytest.approx(np.ones(3000), abs=1e-5)
    nearest = (one.queries @ one.vectors.T).max(axis=1)
    assert nearest.mean() > 0.5   # the best of 3,000 independent directions in 32 dimensions is at about 0.6 at most
    assert nearest.mean() > np.abs(one.queries @ one.vectors.T).mean() + 0.3


def test_a_users_file_is_used(tmp_path):
    rows = np.random.default_rng(0).standard_normal((120, 8)).astype(np.float64)
    np.save(tmp_path / "v.npy", rows)
    data = embeddings(100, 8, 20, seed=0, file=str(tmp_path / "v.npy"))
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    together = np.concatenate([data.vectors, data.queries])
    assert np.allclose(np.sort(together[:, 0]), np.sort(unit[:, 0]), atol=1e-6)
    for count, dim in ((101, 8), (100, 9)):
        with pytest.raises(ValueError, match="needed"):
            embeddings(count, dim, 20, seed=0, file=str(tmp_path / "v.npy"))
    (tmp_path / "v.npy").write_bytes(b"no")
    with pytest.raises(ValueError, match="file of numbers"):
        embeddings(10, 8, 2, seed=0, file=str(tmp_path / "v.npy"))


def test_exact_neighbours_across_blocks():
    data = embeddings(35_000, 4, 7, seed=3)
    found = exact_neighbours(data, 5)
    expected = np.argsort(-(data.queries @ data.vectors.T), axis=1)[:, :5]
    assert recall(found, expected) == 1.0
    assert recall(found, np.concatenate([expected[:, :4], np.full((7, 1), -1)], axis=1)) == pytest.approx(0.8)
    assert exact_neighbours(Embeddings(data.vectors[:3], data.queries), 3).shape == (7, 3)


def test_texts_have_their_frequencies(tmp_path):
    corpus = texts(500, seed=0)
    queries = corpus.queries(20, 6, seed=0)
    assert all(len(set(query)) == 6 for query in queries)
    counted = np.mean([sum(sum(word in set(doc) for doc in corpus.documents) for word in query) for query in queries])
    assert corpus.postings(queries) == pytest.approx(counted)
    (tmp_path / "t.txt").write_text("the cat\nthe dog\n\nA cat and a dog\n")
    own = texts(3, seed=0, file=str(tmp_path / "t.txt"))
    assert own.vocabulary == 5
    assert sorted(own.frequency.tolist()) == [1, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="3 lines"):
        texts(4, seed=0, file=str(tmp_path / "t.txt"))


# -- contention --------------------------------------------------------------------------------------------------------


def test_rows_that_waited_are_told_apart():
    rows = [{"time_s": 1.0, "waited_s": w} for w in (0.0, LIMIT, 1.1 * LIMIT)] + [{"time_s": 1.0}]
    assert [contended(row) for row in rows] == [False, False, True, False]
    assert len(steady(rows)) == 3
    assert steady(rows[2:3] + rows[:1]) == rows[2:3]  # one steady row says nothing of the spread: the busy ones
    assert steady(rows[:1]) == rows[:1]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no schedstat on this system")
def test_waiting_for_a_core_is_seen():
    """Two busy processes on one core: each waits about half of the time."""
    code = (
        "import os, sys, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from hermes.calibration.collect.counters import waited_s\n"
        "end = time.time() + 1.0; before = waited_s()\n"
        "while time.time() < end: pass\n"
        "print(waited_s() - before)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    waits = [float(process.communicate()[0]) for process in both]
    assert max(waits) > 0.2
    assert waited_s() >= 0


# -- for real ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ivf-flat", "ivf-pq", "hnsw", "bm25"])
def test_measured_here(kind, tmp_path, capsys):
    """A small index, really built and searched; recall says that it is the right one."""
    library = "bm25s" if kind == "bm25" else "faiss"
    pytest.importorskip(library, reason=f"{library} is not installed (extra `retrieval`)")
    settings = {
        "kinds": [kind], "vectors": [2000], "dims": [32], "queries": 64, "batches": [4], "nprobes": [1, 8, 32],
        "nlists": [32], "hnsw_m": [8], "pq_m": [4], "repetitions": 3, "clock": "cpu", "output": "s.yaml",
        "profile": "p.yaml",
    }
    (tmp_path / "plan.yaml").write_text(json.dumps({"measure": "retrieval", **settings}))
    command = ["calibrate", "run", str(tmp_path / "plan.yaml"), "-q", "--json"]
    code = main(command)
    out, err = capsys.readouterr()
    if code == 2 and "three configurations" in err:
        # only if noise is what left them out: the rows that were kept aside say so
        assert (load_searches(tmp_path / "s.yaml").rows["excluded"] != "").any(), err
        pytest.skip("the machine was too busy: repetitions vary by more than half of their mean")
    assert code == 0, err
    rows = load_searches(tmp_path / "s.yaml").rows
    assert set(rows["library"]) == {library}
    by_effort = rows.groupby("effort")["recall"].first().sort_index()
    assert by_effort.is_monotonic_increasing
    if kind in ("ivf-flat", "hnsw"):
        assert by_effort.iloc[-1] > 0.95   # all lists probed, or a wide search
    if kind.startswith("ivf"):
        work = rows.groupby("effort")["work"].first()
        assert work[32] == 2000            # all lists hold all vectors
        assert rows["coarse_s"].dropna().gt(0).all()
    assert json.loads(out)["models"][kind]["terms"]


def test_a_missing_library_is_one_line(tmp_path, capsys):
    """The collector's interpreter may not have what the plan needs."""
    save_plan(Retrieval(kinds=["bm25"], vectors=[1000]).plan(Path()), tmp_path / "plan.json")
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('bm25s', 'pydantic', 'yaml', 'scipy', 'pandas'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from hermes.plugins.retrieval.collector import main, open_engine\n"
        "sys.exit(main(open_engine, sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "plan.json"), str(tmp_path / "j.jsonl")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("bm25s is not installed")
    assert done.stderr.count("\n") == 1
