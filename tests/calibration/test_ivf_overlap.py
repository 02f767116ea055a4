"""`hermes calibrate run` with `measure: ivf` on a small index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("faiss")

from hermes.calibration.collect.ivf_overlap import OverlapIndex, generated, of_file
from hermes.calibration.collect.ivf_overlap_cuda import measure_device
from hermes.calibration.ivf_lookahead import compared, simulated_loop_s
from hermes.calibration.ivf_overlap import load_overlap
from hermes.cli import app
from hermes.config.data_files import resource_dir
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
    for said in ("moved", "scan, 1 thread(s)", "best 3 of 100,000", "GPU"):
        assert said in done.output
    return path


def test_a_device_is_measured_and_its_loop_simulated(tmp_path, monkeypatch):
    """What the collector finds on a GPU reaches the file and the screen, with the simulated loop beside it."""
    import hermes.calibration.collect.ivf_overlap_cuda as collector

    rate = {"mean": 24e9, "cv": 0.01, "class": "excellent", "samples": 10}
    loop = {"generate_s": 0.2, "copy_s": 0.04, "scan_s": 0.002, "loop_s": 0.205, "cv": {}, "steps": 32,
            "copy_bytes": 2**30, "dim": 768}
    monkeypatch.setattr(collector, "measure_device", lambda device, seed, repetitions: {
        "device": f"some {device} card", "torch": "2", "copy": rate, "scan": rate, "loop": loop})
    path = tmp_path / "with.yaml"
    done = CliRunner().invoke(app(), ["calibrate", "run", str(plan(tmp_path, 2000, 8, 16, 8)), "-q", "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert "some cuda card, copy: 24.00 GB/s" in done.output
    assert "205.00 ms measured, 202.00 ms simulated (-1.5%" in done.output
    found = load_overlap(path)
    assert found.accelerator is not None
    assert found.accelerator["loop"]["error"] == pytest.approx(202 / 205 - 1, abs=1e-3)


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
    assert found.accelerator is None


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
        import torch
    except ImportError:
        pass
    else:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    assert measure_device("cuda", 0, 2) is None


def test_the_loop_on_a_cpu():
    """The collector's own code; without a GPU its figures mean nothing, so only their form is looked at."""
    pytest.importorskip("torch")
    found = measure_device("cpu", 0, 3, copy_bytes=2**22, scan_bytes=2**22, steps=4, width=256)
    assert found is not None
    assert found["copy"]["mean"] > 0
    assert found["scan"]["mean"] > 0
    loop = compared(found["loop"])
    assert loop["loop_s"] > 0
    assert loop["simulated_s"] >= max(loop["generate_s"], loop["copy_s"])


@pytest.mark.parametrize(("generate", "copy"), [(0.2, 0.05), (0.05, 0.2)])
def test_the_simulated_loop(generate, copy):
    """The copy beside the generation, whichever is longer, then the scan."""
    loop = {"generate_s": generate, "copy_s": copy, "scan_s": 0.01, "steps": 8, "copy_bytes": 2**30, "dim": 768}
    assert simulated_loop_s(loop) == pytest.approx(max(generate, copy) + 0.01, rel=1e-4)
    assert compared({**loop, "loop_s": 0.2})["error"] == pytest.approx(0.05, abs=1e-3)


def test_a_file_that_is_none_is_refused(tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_text(json.dumps({}))
    from hermes.errors import InputError

    run = ["calibrate", "run", str(plan(tmp_path, 2000, 8, 16, 8)), "--set"]
    for setting in ("rewrites_file=bad.npz", "rewrites_file=none.npz", "device=tpu"):
        with pytest.raises(InputError, match=setting.split("=")[0]):
            CliRunner().invoke(app(), [*run, setting], catch_exceptions=False)
