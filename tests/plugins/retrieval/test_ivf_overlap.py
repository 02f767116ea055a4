"""`hermes calibrate run` with `measure: ivf` on a small index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("faiss")

from hermes.cli import app
from hermes.config.data_files import resource_dir
from hermes.plugins.retrieval.indices import embeddings
from hermes.plugins.retrieval.ivf import load_overlap
from hermes.plugins.retrieval.ivf_collector import OverlapIndex, of_file
from hermes.plugins.telerag.overlap.curves import shared


def plan(folder: Path, vectors: int, dim: int, nlist: int, queries: int) -> Path:
    path = folder / "plan.yaml"
    path.write_text(f"{{measure: ivf, vectors: {vectors}, dim: {dim}, nlist: {nlist}, queries: {queries}}}\n")
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ivf") / "small.yaml"
    asked = plan(path.parent, 4000, 24, 64, 48)
    done = CliRunner().invoke(app(), ["calibrate", "run", str(asked), "-q", "-o", str(path)])
    assert done.exit_code == 0, done.output
    for said in ("moved", "scan, 1 thread(s)", "best 3 of 100,000"):
        assert said in done.output
    return path


def test_it_is_measured_elsewhere_and_continued_like_others(tmp_path):
    """Points for another machine, a budget that cuts it off, and the rest by the same command."""
    asked = str(plan(tmp_path, 2000, 8, 32, 16))
    done = CliRunner().invoke(app(), ["calibrate", "run", asked, "--points", str(tmp_path / "points.json")])
    assert done.exit_code == 0, done.output
    points = json.loads((tmp_path / "points.json").read_text())["points"]
    assert [point["name"] for point in points] == [
        "overlap", "scan t=1", "merge 10000", "merge 100000", "merge 1000000"]
    command = ["calibrate", "run", asked, "-q"]
    assert CliRunner().invoke(app(), command).exit_code == 0
    whole = load_overlap(tmp_path / "overlap.yaml")
    journal = tmp_path / "overlap.journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"point":"merge' not in line))
    done = CliRunner().invoke(app(), ["calibrate", "pack", str(journal), "-o", str(tmp_path / "cut.yaml")])
    assert done.exit_code == 0, done.output
    assert load_overlap(tmp_path / "cut.yaml").merges == []
    assert CliRunner().invoke(app(), command).exit_code == 0
    again = load_overlap(tmp_path / "overlap.yaml")
    assert len(again.merges) == len(whole.merges) == 3
    assert again.candidates == whole.candidates


def test_a_model_fitted_to_a_part_predicts_the_rest(written):
    found = load_overlap(written)
    best = found.candidates[0]
    assert best.mean_error < 3
    assert best.mean_error <= min(c.mean_error for c in found.candidates)
    for measured in found.measured:   # more prefetched, more found; a rewrite forgets something
        assert (np.diff(np.array(measured.overlap), axis=0) >= 0).all()
        assert measured.overlap[2][1] < 1


def test_the_shipped_measurement():
    found = load_overlap(resource_dir("hw_profiles") / "overlap" / "generated-2m.yaml")
    assert found.index["vectors"] == 2_000_000
    best = found.candidates[0]
    assert (best.family, best.spread_fitted) == ("gaussian", True)
    assert best.worst_error < 3
    assert len(best.predictions) == len(found.measured)
    unequal = {p.rewrite: p.spread for p in best.predictions}
    assert max(unequal, key=lambda name: unequal[name] or 0.0) == "mixed 0.4"   # the one whose amounts were drawn


def test_the_shipped_measurements_of_real_sentences():
    """Real rewrites move their queries unequally, and real queries fall near larger clusters."""
    for clusters, aim in ((256, 3.0), (128, 3.5)):
        found = load_overlap(resource_dir("hw_profiles") / "overlap" / f"sentences-{clusters}.yaml")
        assert found.index["vectors"] == 12_000
        fitted, equal = (next(c for c in found.candidates if c.family == "gaussian" and c.spread_fitted is unequal
                              and not c.shape) for unequal in (True, False))
        assert fitted.worst_error < aim
        assert fitted.mean_error < equal.mean_error
        assert all(0.7 < (p.spread or 0.0) < 1.5 for p in fitted.predictions)
        assert all(ratio > 1.02 for ratio in found.probed_over_mean.values())


def test_rankings_are_those_that_faiss_searches():
    data = embeddings(4000, 16, 20, 1)
    index = OverlapIndex(data, 32, 1, 1)
    assert index.sizes.sum() == 4000
    lists = index.index.quantizer.search(data.queries, 5)[1]
    assert (np.sort(index.ranking(data.queries)[:, :5]) == np.sort(lists)).all()
    same = index.ranking(data.queries)
    assert shared(same, same, [4], [4]).overlap[0, 0] == 1


def test_rewrites_of_a_file(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "some.npz"
    np.savez(path, vectors=rng.random((100, 8)), queries=rng.random((5, 8)), rewrite_other=rng.random((5, 8)))
    data = of_file(path)
    assert list(data.rewrites) == ["other"]
    assert np.linalg.norm(data.vectors, axis=1) == pytest.approx(1, abs=1e-6)
    np.savez(path, vectors=rng.random((100, 8)), queries=rng.random((5, 8)), rewrite_other=rng.random((4, 8)))
    with pytest.raises(ValueError, match="one width"):
        of_file(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_text(json.dumps({}))
    from hermes.errors import InputError

    run = ["calibrate", "run", str(plan(tmp_path, 2000, 8, 16, 8)), "--set"]
    for setting in ("rewrites_file=bad.npz", "rewrites_file=none.npz", "nlist=3"):
        with pytest.raises(InputError, match=setting.split("=")[0]):
            CliRunner().invoke(app(), [*run, setting], catch_exceptions=False)
