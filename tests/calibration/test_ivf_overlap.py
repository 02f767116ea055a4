"""`hermes calibrate retrieval --ivf` on a small index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("faiss")

from hermes.calibration.collect.ivf_overlap import OverlapIndex, generated, of_file
from hermes.calibration.collect.ivf_overlap_cuda import measure_cuda
from hermes.calibration.ivf_overlap import load_overlap
from hermes.cli import app
from hermes.overlap.curves import shared
from hermes.resources import resource_dir


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ivf") / "small.yaml"
    done = CliRunner().invoke(app, [
        "calibrate", "retrieval", "--ivf", "--vectors", "6000", "--dim", "24", "--nlist", "128", "--queries", "48",
        "--no-speed", "--quiet", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert "moved" in done.output
    return path


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
    assert found.candidates[0].family == "gaussian"
    assert found.candidates[0].mean_error < 3
    assert found.cuda is None


def test_rankings_are_those_that_faiss_searches():
    data = generated(4000, 16, 20, 1)
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


def test_without_a_gpu_nothing_is_claimed():
    try:
        import torch  # noqa: F401
    except ImportError:
        assert measure_cuda(0, 2) is None
    else:
        pytest.skip("torch is here; it may see a GPU")


def test_a_file_that_is_none_is_refused(tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_text(json.dumps({}))
    from hermes.errors import InputError

    with pytest.raises(InputError, match="rewrites-file"):
        CliRunner().invoke(app, ["calibrate", "retrieval", "--ivf", "--rewrites-file", str(bad)],
                           catch_exceptions=False)
