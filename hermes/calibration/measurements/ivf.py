"""`measure: ivf`: one index for lookahead retrieval: overlap of rewrites, scans and merges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.ivf_overlap import Candidate, IvfOverlap, IvfPlan, overlap_of, save_overlap
from hermes.calibration.measurements.base import Measurement, Shown, again
from hermes.calibration.session import Measured
from hermes.errors import InputError
from hermes.results.layout import Part, Section

__all__ = ["IvfMeasurement"]

_BUDGETS, _NPROBES = (64, 32, 16, 8, 4), (32, 16, 8)   # clusters over those prefetched, and over those probed


class IvfMeasurement(Measurement):
    """One index for lookahead retrieval: cluster sizes, overlap of rewritten queries, scans."""

    engines: ClassVar[tuple[str, ...]] = ("ivf",)

    measure: Literal["ivf"] = "ivf"
    vectors: Annotated[int, Field(ge=100, le=2**31)] = 2_000_000
    dim: Annotated[int, Field(ge=2, le=65_536)] = 64
    """Dimensions."""
    nlist: Annotated[int, Field(ge=1, le=2**24)] = 4096
    """Clusters."""
    queries: Annotated[int, Field(ge=1, le=2**20)] = 512
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    rewrites_file: str = ""
    """Vectors, queries and rewrites to use in place of generated ones (.npz)."""
    speed: bool = True
    """Measure times of scans and merges too."""
    output: str = "overlap.yaml"

    def plan(self, base_dir: Path, python: str | None = None) -> IvfPlan:
        """Return the plan: the overlap, then scans and merges. Raises `InputError` naming the key."""
        rewrites = base_dir / self.rewrites_file if self.rewrites_file else None
        if rewrites is not None and not rewrites.is_file():
            raise InputError("an existing file", str(rewrites), field="rewrites_file")
        budgets, nprobes = ([max(1, self.nlist // share) for share in shares] for shares in (_BUDGETS, _NPROBES))
        points: list[dict[str, Any]] = [{"name": "overlap", "kind": "overlap", "budgets": budgets, "nprobes": nprobes}]
        if self.speed:
            more = {"top_k": 3, "repetitions": 10, "level": 1}
            points += [{"name": f"scan t={n}", "kind": "scan", "threads": n, "nprobe": nprobes[1], **more}
                       for n in sorted({1, self.threads})]
            points += [{"name": f"merge {n}", "kind": "merge", "candidates": n, **more}
                       for n in (10_000, 100_000, 1_000_000)]
        settings = self.model_dump(exclude={"measure", "output", "rewrites_file", "speed"})
        return IvfPlan(settings={**settings, "rewrites_file": str(rewrites.resolve()) if rewrites else ""},
                       points=points)

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write the overlap and the models that predict it. Raises `InputError`."""
        found = overlap_of(journal)
        save_overlap(found, output)
        return Shown(found.model_dump(mode="json"), [*_overlap(found), *again(measured), f"written to {output}"])


def _overlap(found: IvfOverlap) -> list[Part]:
    index = found.index
    return [
        f"{index['vectors']:,} vectors of {index['dim']} dimensions in {index['clusters']} clusters "
        f"({index['source']}); sigma of log sizes {found.size_sigma:.3f}; probed / mean size "
        + ", ".join(f"{ratio:.3f} at nprobe {p}" for p, ratio in found.probed_over_mean.items()),
        Section(f"overlap in percent, nprobe {found.nprobes[1]}, by clusters prefetched",
              ["rewrite", *map(str, found.budgets)],
              [[m.rewrite, *(f"{100 * row[1]:.1f}" for row in m.overlap)] for m in found.measured]),
        Section("models fitted to one cell of each rewrite (two: spread fitted): points of error on the others",
              ["family", "shape", "spread", "mean", "worst", "at (prefetched, nprobe)", "noise there", "fitted"],
              [_candidate_row(c) for c in found.candidates]),
        *(f"scan, {scan['threads']} thread(s): {scan['mean'] / 1e9:.2f} GB/s (cv {scan['cv']:.1%}, {scan['class']})"
          for scan in found.scans),
        *(f"best {merge['top_k']} of {merge['candidates']:,}: {1e6 * merge['mean']:,.0f} us (cv {merge['cv']:.1%}, "
          f"{merge['class']})" for merge in found.merges),
    ]


def _candidate_row(found: Candidate) -> list[Any]:
    worst = max((p for p in found.predictions if p.worst_error is not None), key=lambda p: p.worst_error or 0.0,
                default=None)
    return [
        found.family, " ".join(f"{k}={v:g}" for k, v in found.shape.items() if k != "spread") or "-",
        "fitted" if found.spread_fitted else f"{found.shape.get('spread', 0):g}", found.mean_error, found.worst_error,
        "-" if worst is None else f"{worst.rewrite} {worst.worst_cell}", "-" if worst is None else worst.worst_noise,
        f"{sum(p.strength is not None for p in found.predictions)} of {len(found.predictions)}",
    ]
