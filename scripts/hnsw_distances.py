"""Measure the distances of an HNSW search with faiss, and compare with the formula of `hermes.services.hnsw`.

    python scripts/hnsw_distances.py            # about a minute on one core; needs faiss (pip install '.[retrieval]')

Prints candidates expanded and distances evaluated per query on generated clustered vectors, and the share of unseen
neighbours (`new_share`) with which the formula's distances on the bottom level would equal the measured ones.
docs/how-to/retrieval.md quotes the table.
"""

from __future__ import annotations

import sys

import numpy as np

from hermes.services import MachineSpec
from hermes.services.hnsw import Hnsw

SIZES = ((10_000, 32), (100_000, 32), (30_000, 128))
QUERIES = 200


def clustered(n: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    centres = rng.normal(size=(200, dim))
    return (centres[rng.integers(0, len(centres), n)] + 0.7 * rng.normal(size=(n, dim))).astype(np.float32)


def main() -> int:
    try:
        import faiss
    except ImportError:
        print("needs faiss: pip install 'hermes-sim[retrieval]'", file=sys.stderr)
        return 2
    faiss.omp_set_num_threads(1)
    machine = MachineSpec(64, 14.2e12, 768e9, 10**12)
    print("vectors  dim  M   ef   expanded  formula  distances  formula  new_share")
    for n, dim in SIZES:
        rng = np.random.default_rng(0)
        vectors = clustered(n, dim, rng)
        queries = (vectors[:QUERIES] + 0.3 * rng.normal(size=(QUERIES, dim))).astype(np.float32)
        for links in (8, 16, 32):
            index = faiss.IndexHNSWFlat(dim, links)
            index.hnsw.efConstruction = 64
            index.add(vectors)
            service = Hnsw(vectors=n, dim=dim, links=links).build(machine)
            for effort in (16, 64, 256):
                index.hnsw.efSearch = effort
                faiss.cvar.hnsw_stats.reset()
                index.search(queries, 10)
                seen = faiss.cvar.hnsw_stats
                expanded, found = seen.nhops / QUERIES, seen.ndis / QUERIES
                upper, bottom = service.distances(effort)
                share = max(0.0, found - upper) / (effort * 2 * links)
                steps = sum(service.steps(effort))
                print(f"{n:7,d}  {dim:3d}  {links:2d}  {effort:3d}  {expanded:8.0f}  {steps:7.0f}  {found:9.0f}  "
                      f"{upper + bottom:7.0f}  {share:9.2f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
