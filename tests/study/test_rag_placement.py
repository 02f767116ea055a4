"""The RAG placement study: parts that add up, the factor by hand, and a run of it that is smaller still."""

from __future__ import annotations

import numpy as np
import pandas as pd
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


@pytest.mark.parametrize(("share", "changed"), [(0.6, 0), (0.4, 4)])
def test_the_share_of_their_peak_is_that_of_the_cpus_that_embed(tmp_path, share, changed):
    """As assumed, nothing is set; the placements on the A100 keep its own factors."""
    context = STUDY.context(tmp_path, changes=[f"cpu_share={share}"])
    points = rag_placement.placements(context, {"network.bandwidth": ["32 GB/s"]})
    path = "clients.0.serves.embed.hardware.efficiency"
    factors = [point.settings[path] for point in points if path in point.settings]
    assert len(factors) == changed
    assert all(one["ffn"] == {"compute": share, "memory": 0.8} for one in factors)


def test_sentences_of_the_paper_are_judged_by_the_figures():
    parts = dict.fromkeys(PARTS, 0.01)
    rows = [{"case": f"{model} / {place}", "link": link, "seed": seed, "communication_share": 1e-5,
             "context_bytes": 40960, "total_s": total,
             **{f"part.{name}": value for name, value in (parts | {"embedding": embedding + seed / 10}).items()}}
            for model, place, embedding, total in (
                ("Mistral-7B", "small CPU", 4.0, 6.0), ("E5-Base", "A100 + large CPU", 0.01, 1.7),
                ("Mistral-7B", "A100 + large CPU", 0.5, 1.8))
            for link in ("32 GB/s", "8 GB/s") for seed in (0, 1)]
    found = {one.name: one for one in STUDY.module("compared").compared(pd.DataFrame(rows))}
    slow = found["Mistral-7B / small CPU: embedding, % of the total"]
    assert (slow.here, slow.verdict) == ("67", "agrees")
    assert slow.interval == pytest.approx((100 * 4 / 6, 100 * 4.1 / 6))
    assert found["E5-Base on an A100: embedding, % of the total"].verdict == "agrees"
    assert found["Mistral-7B on an A100: embedding, % of the total"].verdict == "differs"   # 28% is not small
    assert found["context moved as text, % of the total"].verdict == "agrees"


@pytest.mark.thorough
def test_a_small_run_gives_all_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(rag_placement, "QUICK_RATES", [0.2])
    monkeypatch.setattr(rag_placement, "QUICK_REQUESTS", (6, 12))
    monkeypatch.setattr(rag_placement, "QUICK_SEEDS", 1)
    report = STUDY.run(STUDY.context(tmp_path, quick=True, workers=0))
    by_name = {table.name: table.frame for table in report.tables}
    assert set(by_name) == {
        "paper", "bars", "links", "by_hand", "moved", "phases", "index", "machines", "limits", "rates", "batches",
        "joules", "points",
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
