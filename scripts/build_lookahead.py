"""Fit the profile in hw_profiles/lookahead: parameters of the perturbation and the scan rates (TeleRAG's figures).

    python scripts/build_lookahead.py hw_profiles/overlap/generated-2m.yaml --real hw_profiles/overlap/sentences.yaml

- The sigma of the sizes, the families' order and each one's shape come from the measured index (`hermes calibrate plan
  ivf`).
- The bias comes from the bytes of Self-RAG's probed clusters.
- One strength per pipeline and data set comes from its overlap at 256 clusters.
- Each of three scan rates comes from one figure (studies/telerag/rates.py), for the study's assumed answer length.

No other figure of the paper is used. An index of real sentences shows how unequally real rewrites move their queries:
the best family is fitted with that spread too, beside the others.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hermes.hardware.fitted.profile import dump_yaml
from hermes.plugins.retrieval.ivf import Candidate, IvfOverlap, load_overlap
from hermes.plugins.telerag import PIPELINE_NAMES
from hermes.plugins.telerag.overlap import fit_bias, fit_strength, lognormal_sizes, make_family
from hermes.plugins.telerag.profile import FittedFamily, FittedIndex, FittedRate, LookaheadProfile
from hermes.study import load_study

ROOT = Path(__file__).resolve().parents[1]
STUDY = load_study("telerag")
paper, telerag_points, telerag_runs = map(STUDY.module, ("paper", "points", "runs"))
QUERIES = 256       # drawn for a mean overlap


def best_shapes(measured: IvfOverlap) -> list[Candidate]:
    """Return each family once, with the structure that predicted best on the measured index; best first. Configurations
    whose spread is fitted to each rewrite are left out: a pipeline of the paper has one figure, not two."""
    found: dict[str, Candidate] = {}
    for candidate in measured.candidates:
        if not candidate.spread_fitted:
            found.setdefault(candidate.family, candidate)
    return list(found.values())


def real_spread(real: IvfOverlap, family: str) -> float:
    """Return the median over the rewrites of the spread fitted to each."""
    (found,) = [c for c in real.candidates if c.family == family and c.spread_fitted and "dimensions" not in c.shape]
    return round(statistics.median(p.spread for p in found.predictions if p.spread is not None), 3)


def fitted_family(name: str, kind: str, shape: dict[str, float], sizes: Any) -> FittedFamily:
    """Fit bias and strengths of one family."""
    family = make_family(kind, **shape)
    nprobe = paper.NPROBE
    bias = fit_bias(family, sizes, paper.PROBED_BYTES, nprobe, queries=QUERIES)
    strengths = {dataset: {PIPELINE_NAMES["Self-RAG"]: 0.0} | {
        PIPELINE_NAMES[pipeline]: round(
            fit_strength(family, overlap / 100, bias, sizes, nprobe, nprobe, queries=QUERIES), 6)
        for pipeline, overlap in overlaps.items()
    } for dataset, overlaps in paper.OVERLAP_256.items()}
    return FittedFamily(name=name, family=kind, shape=shape, bias=round(bias, 6), strengths=strengths)


def fitted_profile(measured: IvfOverlap, source: str, real: IvfOverlap, real_source: str) -> LookaheadProfile:
    """Return all parameters but the scan rates."""
    index = FittedIndex(
        clusters=paper.CLUSTERS, total=paper.TOTAL_BYTES, vector_bytes=paper.VECTOR_BYTES,
        size_sigma=measured.size_sigma, nprobe=paper.NPROBE, probed_mean=int(paper.PROBED_BYTES),
        provenance=["clusters, bytes, nprobe: TeleRAG (arXiv 2502.20969)", f"size_sigma: measured, {source}",
                    "probed_mean: Self-RAG's budget over its overlap (TeleRAG)"])
    sizes = lognormal_sizes(index.clusters, index.total, index.size_sigma, telerag_points.sizes_rng())
    shapes = best_shapes(measured)
    best = shapes[0]
    unequal = best.shape | {"spread": real_spread(real, best.family)}
    return LookaheadProfile(
        format="hermes-lookahead/1", name=telerag_points.PROFILE, index=index,
        families=[
            *(fitted_family(c.family, c.family, c.shape, sizes) for c in shapes),
            fitted_family(f"unequal {best.family}", best.family, unequal, sizes),
        ],
        scans={},
        provenance=[
            f"families, best first, and their shapes: {source}; `unequal`: the spread is the median of those that "
            f"{real_source} gave",
            "bias: fitted to the bytes of Self-RAG's probed clusters; strengths: each to one overlap at 256 clusters "
            "(TeleRAG), and to nothing else",
            f"python scripts/build_lookahead.py {source} --real {real_source}",
        ])


def fitted_scans(rates: dict[str, Any], means: str) -> dict[str, dict[str, FittedRate]]:
    """Return the rates by machine and stage. means: how the figures are averaged, for the provenance."""
    why = {
        ("server", "cpu_search"): ["fitted: CPU retrieval is 41.1% of the latency at batch 1 (TeleRAG, server)", means],
        ("desktop", "cpu_search"): ["assumed: that of the server's CPU, for one query is one thread"],
        ("desktop", "miss_search"): ["fitted: retrieval alone 7.21 times as fast at nprobe 256 (TeleRAG, desktop)",
                                     means],
        ("server", "miss_search"): ["assumed: the desktop's in proportion to the bandwidth of the CPUs' memory"],
        ("server", "gpu_search"): ["fitted: a resident index is 10.5% of the latency at batch 1 (TeleRAG, server)",
                                   means],
        ("desktop", "gpu_search"): ["assumed: that of the server's GPU, which is far below either bandwidth"],
    }
    found: dict[str, dict[str, FittedRate]] = {}
    for (system, stage), provenance in why.items():
        machine = (telerag_points.GPU if stage == "gpu_search" else telerag_points.CPU)[system]
        one = rates[system]
        rate = {"cpu_search": one.baseline, "miss_search": one.miss, "gpu_search": one.gpu}[stage]
        found.setdefault(machine, {})[stage] = FittedRate(rate=rate, provenance=provenance)
        print(f"{machine} {stage}: {rate / 1e9:.2f} GB/s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("--real", type=Path, required=True, help="measured on an index of real sentences")
    parser.add_argument("-o", "--output", type=Path,
                        default=ROOT / "hw_profiles" / "lookahead" / f"{telerag_points.PROFILE}.yaml")
    parser.add_argument("--requests", type=int, default=16, help="simulated for each point that rates are fitted to")
    said = parser.parse_args()
    found = fitted_profile(load_overlap(said.measured), f"hw_profiles/overlap/{said.measured.name}",
                           load_overlap(said.real), f"hw_profiles/overlap/{said.real.name}")
    comment = "Fitted numbers of lookahead retrieval, by scripts/build_lookahead.py."
    said.output.parent.mkdir(parents=True, exist_ok=True)
    dump_yaml(found, said.output, comment)
    telerag_points.profile.cache_clear()
    with TemporaryDirectory() as folder:
        context = STUDY.context(Path(folder))
        rates = telerag_runs.Runs(context, said.requests).rates()
    found.scans.update(fitted_scans(rates, f"answers of {context['answer_tokens']} tokens, mean of six pipelines"))
    dump_yaml(found, said.output, comment)
    print(f"written: {said.output}")


if __name__ == "__main__":
    main()
