"""`hermes calibrate retrieval --ivf`: an index for lookahead retrieval, measured, and the model that predicts it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hermes.calibration.ivf_overlap import Candidate, IvfOverlap

__all__ = ["measure_ivf"]

_REPETITIONS = 10


def measure_ivf(
    rewrites_file: str, vectors: int, dim: int, nlist: int, *, queries: int, threads: int, seed: int, speed: bool,
    device: str, output: Path, quiet: bool, as_json: bool,
) -> None:
    """Measure, write the file, print its tables. Raises `InputError` for data that does not fit, or a device that is
    neither `cuda` nor `cpu`."""
    from hermes.calibration.collect.ivf_overlap import generated, of_file
    from hermes.calibration.ivf_overlap import measure_overlap, save_overlap
    from hermes.errors import InputError, Verbatim

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    if device not in ("cuda", "cpu"):
        raise InputError("cuda or cpu", device, field="--device")
    try:
        data = of_file(Path(rewrites_file)) if rewrites_file else generated(vectors, dim, queries, seed)
        source = Path(rewrites_file).name if rewrites_file else "generated clustered embeddings"
        found = measure_overlap(data, source, nlist, threads=threads, seed=seed, speed=speed, say=say)
    except ValueError as error:
        raise InputError("embeddings that fit", Verbatim(str(error)), field="--rewrites-file") from None
    except ImportError:
        raise InputError("faiss: pip install 'hermes-sim[retrieval]'", Verbatim("it is not installed")) from None
    if speed:
        found = found.model_copy(update={"accelerator": _accelerator(device, seed)})
    save_overlap(found, output)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    _show(found, output)


def _accelerator(device: Any, seed: int) -> dict[str, Any] | None:
    """Rates of the device, and its loop beside the simulated one; None where there is none."""
    from hermes.calibration.collect.ivf_overlap_cuda import measure_device
    from hermes.calibration.engine_validation.lookahead import compared

    measured = measure_device(device, seed, _REPETITIONS)
    return None if measured is None else {**measured, "loop": compared(measured["loop"])}


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
    _show_accelerator(found.accelerator)
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


def _show_accelerator(found: dict[str, Any] | None) -> None:
    if found is None:
        print("GPU: none at hand (or no torch that sees it), not measured")
        return
    loop = found["loop"]
    for name in ("copy", "scan"):
        print(f"{found['device']}, {name}: {found[name]['mean'] / 1e9:.2f} GB/s (cv {found[name]['cv']:.1%}, "
              f"{found[name]['class']})")
    print(f"loop: {1e3 * loop['loop_s']:.2f} ms measured, {1e3 * loop['simulated_s']:.2f} ms simulated "
          f"({loop['error']:+.1%}; generation {1e3 * loop['generate_s']:.2f}, copy {1e3 * loop['copy_s']:.2f}, scan "
          f"{1e3 * loop['scan_s']:.2f} ms)")
