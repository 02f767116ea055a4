"""`hermes calibrate retrieval --ivf`: an index for lookahead retrieval, measured, and the model that predicts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.ivf_overlap import Candidate, IvfOverlap

__all__ = ["measure_ivf"]


def measure_ivf(
    rewrites_file: str, vectors: int, dim: int, nlist: int, *, queries: int, threads: int, seed: int, speed: bool,
    output: Path, quiet: bool, as_json: bool,
) -> None:
    """Measure, write the file, print its tables. Raises `InputError` for data that does not fit."""
    from hermes.calibration.collect.ivf_overlap import generated, of_file
    from hermes.calibration.ivf_overlap import measure_overlap, save_overlap
    from hermes.errors import InputError, Verbatim

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    try:
        data = of_file(Path(rewrites_file)) if rewrites_file else generated(vectors, dim, queries, seed)
        source = Path(rewrites_file).name if rewrites_file else "generated clustered embeddings"
        found = measure_overlap(data, source, nlist, threads=threads, seed=seed, speed=speed, say=say)
    except ValueError as error:
        raise InputError("embeddings that fit", Verbatim(str(error)), field="--rewrites-file") from None
    except ImportError:
        raise InputError("faiss: pip install 'hermes-sim[retrieval]'", Verbatim("it is not installed")) from None
    save_overlap(found, output)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    _show(found, output)


def _show(found: IvfOverlap, output: Path) -> None:
    index = found.index
    print(f"{index['vectors']:,} vectors of {index['dim']} dimensions in {index['clusters']} clusters "
          f"({index['source']}); sigma of log sizes {found.size_sigma:.3f}; probed / mean size "
          + ", ".join(f"{ratio:.3f} at nprobe {p}" for p, ratio in found.probed_over_mean.items()))
    rows = [[m.rewrite, *(f"{100 * row[1]:.1f}" for row in m.overlap)] for m in found.measured]
    print_table(f"overlap in percent, nprobe {found.nprobes[1]}, by clusters prefetched",
                ["rewrite", *map(str, found.budgets)], rows)
    print_table("models fitted to one cell of each rewrite (two: spread fitted): points of error on the others",
                ["family", "shape", "spread", "mean", "worst", "at (prefetched, nprobe)", "noise there", "fitted"],
                [_candidate_row(c) for c in found.candidates])
    for scan in found.scans:
        print(f"scan, {scan['threads']} thread(s): {scan['mean'] / 1e9:.2f} GB/s (cv {scan['cv']:.1%}, "
              f"{scan['class']})")
    for merge in found.merges:
        print(f"best {merge['top_k']} of {merge['candidates']:,}: {1e6 * merge['mean']:,.0f} us "
              f"(cv {merge['cv']:.1%}, {merge['class']})")
    print("GPU: none at hand, not measured" if found.cuda is None else f"GPU: {found.cuda}")
    print(f"written to {output}")


def _candidate_row(found: Candidate) -> list[Any]:
    worst = max((p for p in found.predictions if p.worst_error is not None), key=lambda p: p.worst_error or 0.0,
                default=None)
    return [
        found.family, " ".join(f"{k}={v:g}" for k, v in found.shape.items() if k != "spread") or "-",
        "fitted" if found.spread_fitted else f"{found.shape.get('spread', 0):g}", found.mean_error, found.worst_error,
        "-" if worst is None else f"{worst.rewrite} {worst.worst_cell}", "-" if worst is None else worst.worst_noise,
        f"{sum(p.strength is not None for p in found.predictions)} of {len(found.predictions)}",
    ]
