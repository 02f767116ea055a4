"""Fit the profiles in hw_profiles/lookahead: parameters of the perturbation and the CPUs' scan rates (TeleRAG's
figures).

    python scripts/build_lookahead.py hw_profiles/overlap/generated-2m.yaml --real hw_profiles/overlap/sentences.yaml

- The sigma of the sizes, the families' order and each one's shape come from the measured index (`hermes calibrate plan
  ivf`).
- The bias comes from the bytes of Self-RAG's probed clusters.
- One strength per pipeline comes from its overlap at 256 clusters.
- Each CPU's rate comes from one figure.

No other figure of the paper is used. An index of real sentences shows how unequally real rewrites move their queries:
the best family is fitted with that spread too, beside the others.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hermes.calibration.ivf_overlap import Candidate, IvfOverlap, load_overlap
from hermes.hardware.profile import dump_yaml
from hermes.plugins.telerag import PIPELINE_NAMES
from hermes.plugins.telerag.overlap import fit_bias, fit_strength, lognormal_sizes, make_family
from hermes.plugins.telerag.profile import FittedFamily, FittedIndex, FittedRate, LookaheadProfile
from hermes.study import load_study

ROOT = Path(__file__).resolve().parents[1]
STUDY = load_study("telerag")
paper, telerag_points, telerag_rates = map(STUDY.module, ("paper", "points", "rates"))
GPU_SHARE = 0.8     # of the data sheet's bandwidth: one pass over the vectors
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
    strengths = {PIPELINE_NAMES["Self-RAG"]: 0.0} | {
        PIPELINE_NAMES[name]: fit_strength(family, overlap / 100, bias, sizes, nprobe, nprobe, queries=QUERIES)
        for name, overlap in paper.OVERLAP_256.items()
    }
    return FittedFamily(name=name, family=kind, shape=shape, bias=round(bias, 6),
                        strengths={name: round(value, 6) for name, value in strengths.items()})


def fitted_profile(measured: IvfOverlap, source: str, real: IvfOverlap, real_source: str) -> LookaheadProfile:
    """Return all parameters but the CPUs' rates, which stand at 20 GB/s."""
    index = FittedIndex(
        clusters=paper.CLUSTERS, total=paper.TOTAL_BYTES, vector_bytes=paper.VECTOR_BYTES,
        size_sigma=measured.size_sigma, nprobe=paper.NPROBE, probed_mean=int(paper.PROBED_BYTES),
        provenance=["clusters, bytes, nprobe: TeleRAG (arXiv 2502.20969)", f"size_sigma: measured, {source}",
                    "probed_mean: Self-RAG's budget over its overlap (TeleRAG)"])
    sizes = lognormal_sizes(index.clusters, index.total, index.size_sigma, telerag_points.sizes_rng())
    shapes = best_shapes(measured)
    best = shapes[0]
    unequal = best.shape | {"spread": real_spread(real, best.family)}
    assumed = [f"assumed: {GPU_SHARE:.0%} of the data sheet's bandwidth, one pass over the vectors; not measured"]
    return LookaheadProfile(
        format="hermes-lookahead/1", name=telerag_points.PROFILE, index=index,
        families=[
            *(fitted_family(c.family, c.family, c.shape, sizes) for c in shapes),
            fitted_family(f"unequal {best.family}", best.family, unequal, sizes),
        ],
        scans={
            **{cpu: FittedRate(rate=20e9, provenance=["not fitted"]) for cpu in telerag_points.CPU.values()},
            **{gpu: FittedRate(share_of_bandwidth=GPU_SHARE, provenance=assumed)
               for gpu in telerag_points.GPU.values()},
        },
        provenance=[
            f"families, best first, and their shapes: {source}; `unequal`: the spread is the median of those that "
            f"{real_source} gave",
            "bias: fitted to the bytes of Self-RAG's probed clusters; strengths: each to one overlap at 256 clusters, "
            "Natural Questions (TeleRAG), and to nothing else",
            f"python scripts/build_lookahead.py {source} --real {real_source}",
        ])


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
        rates = telerag_rates.fit_rates(STUDY.context(Path(folder)), said.requests)
    why = {
        telerag_points.CPU["desktop"]: "fitted: on-demand fetch 3% slower end to end than the CPU (TeleRAG, desktop)",
        telerag_points.CPU["server"]: "fitted: CPU retrieval is 41% of the latency at batch 1 (TeleRAG, server)",
    }
    for cpu, rate in rates.items():
        found.scans[cpu] = FittedRate(rate=float(f"{rate:.5g}"), provenance=[why[cpu], "mean of six pipelines"])
        print(f"{cpu}: {rate / 1e9:.2f} GB/s")
    dump_yaml(found, said.output, comment)
    print(f"written: {said.output}")


if __name__ == "__main__":
    main()
