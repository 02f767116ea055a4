"""The RAG placement study: parts that add up, the factor by hand, and a run of it that is smaller still."""

from __future__ import annotations

import numpy as np
import pytest

from hermes.api import simulate
from hermes.config.data_files import resource_dir
from hermes.config.validation import validate
from hermes.core.stage import ServiceStage
from hermes.explore import plan_sweep
from hermes.scenario import load_scenario
from hermes.services import Encoder, MachineSpec
from hermes.study import load_study

STUDY = load_study("rag-placement")
rag_placement, rag_figures, tables = map(STUDY.module, ("report", "figures", "tables"))
embedding_by_hand = STUDY.module("by_hand").embedding_by_hand
PARTS, figures, parts_ns = rag_figures.PARTS, rag_figures.figures, rag_figures.parts_ns
EMBEDDING_BY_HAND, EMBEDDING_SIMULATED = tables.EMBEDDING_BY_HAND, tables.EMBEDDING_SIMULATED
REQUEST_BY_HAND, REQUEST_SIMULATED = tables.REQUEST_BY_HAND, tables.REQUEST_SIMULATED
FOLDER = resource_dir("scenarios") / "studies" / "rag-placement"


@pytest.mark.parametrize("file", ["base.yaml", "stream.yaml"])
def test_the_parts_of_a_request_are_its_latency(file):
    results = simulate(load_scenario(FOLDER / file, ["workload.requests=30"]))
    parts = parts_ns(results.record)
    total = sum(parts[name] for name in parts)
    assert total.tolist() == (results.record.finish_ns - results.record.arrival_ns).tolist()
    assert all((values >= 0).all() for values in parts.values())
    found = figures(results)
    assert sum(found[f"part.{name}"] for name in PARTS) == pytest.approx(found["total_s"])
    assert found["total_s"] == pytest.approx(results.requests["e2e_s"].mean())
    assert found["context_bytes"] == 20 * 512 * 4
    if file == "base.yaml":   # alone in the system
        assert not parts["queue"].any()
        # bytes at the link's rate, and its latency
        assert np.unique(parts["communication"]).tolist() == [10_000 + 20 * 512 * 4 // 32]


@pytest.mark.parametrize(("model", "device", "dtype", "most"), [
    ("mistral-7b", "cpu-small", "fp32", 32768), ("e5-base", "a100-80gb", "bf16", 512),
    ("e5-base", "cpu-large", "fp32", 512), ("mistral-7b", "a100-80gb", "bf16", 32768),
])
def test_embedding_by_hand_is_what_the_simulator_charges(model, device, dtype, most):
    hardware = {"kind": "roofline", "model": model, "device": device, "dtype": dtype}
    encoder = validate(Encoder, {"kind": "encoder", "max_tokens": most, "hardware": hardware})
    charged = encoder.build(MachineSpec(1, 0, 0, 0)).work([ServiceStage("embed", tokens=1024)]).alone_s
    assert embedding_by_hand(model, device, [min(1024, most)] * (1024 // min(1024, most))).seconds == pytest.approx(
        charged, rel=0.005)


def test_every_sweep_of_the_study_is_valid():
    sweeps = sorted(STUDY.folder.glob("*-sweep.yaml"))
    assert len(sweeps) == 4
    for path in sweeps:
        assert plan_sweep(path, workers=0).points


@pytest.mark.long
def test_a_small_run_gives_all_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(rag_placement, "QUICK_RATES", [0.2])
    monkeypatch.setattr(rag_placement, "QUICK_REQUESTS", (6, 12))
    report = STUDY.run(STUDY.context(tmp_path, quick=True, workers=0))
    by_name = {table.name: table.frame for table in report.tables}
    assert set(by_name) == {
        "bars", "links", "by_hand", "moved", "phases", "index", "machines", "limits", "rates", "batches", "joules",
        "points",
    }
    bars = by_name["bars"]
    assert len(bars) == 6
    assert bars[list(PARTS)].sum(axis=1).tolist() == pytest.approx(bars["total"].tolist())
    factor = by_name["by_hand"].set_index("of one question")["factor"]
    assert factor[EMBEDDING_SIMULATED] == pytest.approx(factor[EMBEDDING_BY_HAND], rel=0.005)
    assert factor[REQUEST_SIMULATED] == pytest.approx(factor[REQUEST_BY_HAND], rel=0.005)
    assert (by_name["links"].filter(like="context %") < 1).all(axis=None)
    # the index fits every machine, and the share of the memory is said
    machines = by_name["machines"].dropna(subset=["memory GB"])
    assert (machines["index GB"] + machines["weights GB"] < machines["memory GB"]).all()
    assert len(report.write(tmp_path / "out")) == len(by_name) + 2 + 1
