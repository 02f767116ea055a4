"""`measure: ivf`: one index for lookahead retrieval, measured in this process as a single point."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hermes.calibration.ivf_overlap import Candidate, IvfOverlap, save_overlap
from hermes.calibration.journal import Journal, JournalError
from hermes.calibration.measurements.base import Measurement, Shown, Table
from hermes.calibration.plan import PointPlan
from hermes.calibration.records import read_records
from hermes.calibration.session import Measured, OnProgress, journal_of, progress_of
from hermes.config.validation import validate
from hermes.errors import InputError, Verbatim

__all__ = ["IvfMeasurement"]


class IvfPlan(PointPlan):
    """The one point: the whole index."""

    engine: Literal["ivf"] = "ivf"
    collector: str = "hermes.calibration.ivf_overlap"
    clock: Literal["wall"] = "wall"
    warmup_s: float = 0.0
    settings: dict[str, Any]


class IvfMeasurement(Measurement):
    """One index for lookahead retrieval: cluster sizes, overlap of rewritten queries, scans."""

    engines: ClassVar[tuple[str, ...]] = ("ivf",)
    in_process: ClassVar[bool] = True

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
    device: Literal["cuda", "cpu"] = "cuda"
    """cuda is measured if torch sees a GPU; cpu tests the collector without one."""
    output: str = "overlap.yaml"

    def plan(self, base_dir: Path, python: str | None = None) -> IvfPlan:
        """Return the plan of one point. Raises `InputError` naming the key."""
        rewrites = base_dir / self.rewrites_file if self.rewrites_file else None
        if rewrites is not None and not rewrites.is_file():
            raise InputError("an existing file", str(rewrites), field="rewrites_file")
        settings = self.model_dump(exclude={"measure", "output", "rewrites_file"})
        return IvfPlan(settings={**settings, "rewrites_file": str(rewrites) if rewrites else ""},
                       points=[{"name": "index", "level": 0}])

    def collect(self, plan: PointPlan, output: Path, *, python: str | None = None, budget_s: float | None = None,
                on_progress: OnProgress = None) -> Measured:
        """Measure the index, unless the journal has it. Raises `InputError` for data that does not fit."""
        assert isinstance(plan, IvfPlan)
        journal = journal_of(output)
        journal.parent.mkdir(parents=True, exist_ok=True)
        try:
            with Journal(journal, plan.model_dump(mode="json"), {}) as records:
                if "index" not in records.done:
                    began = time.monotonic()
                    found = _measured(plan.settings, quiet=on_progress is None)
                    records.point("index", [], work=found.model_dump(mode="json"), seconds=time.monotonic() - began)
        except JournalError as error:
            raise InputError(Verbatim(str(error))) from None
        progress = progress_of(plan, journal)
        if on_progress:
            on_progress(progress)
        return Measured(journal, progress, True)

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write the overlap and the models that predict it. Raises `InputError`."""
        _, records = read_records(journal, IvfPlan)
        if not records.points:
            raise InputError("at least one measured point", file=str(journal))
        found = validate(IvfOverlap, records.points[-1].get("work", {}), str(journal))
        save_overlap(found, output)
        return Shown(found.model_dump(mode="json"), [*_overlap(found), f"written to {output}"])


def _measured(settings: dict[str, Any], *, quiet: bool) -> IvfOverlap:
    from hermes.calibration.collect.ivf_overlap import generated, of_file
    from hermes.calibration.ivf_overlap import measure_overlap

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    rewrites = Path(settings["rewrites_file"]) if settings["rewrites_file"] else None
    try:
        data = of_file(rewrites) if rewrites else generated(
            settings["vectors"], settings["dim"], settings["queries"], settings["seed"])
        source = rewrites.name if rewrites else "generated clustered embeddings"
        found = measure_overlap(data, source, settings["nlist"], threads=settings["threads"], seed=settings["seed"],
                                speed=settings["speed"], say=say)
    except InputError:
        raise
    except ValueError as error:
        raise InputError("embeddings that fit", Verbatim(str(error)), field="rewrites_file") from None
    except ImportError:
        raise InputError("faiss: pip install 'hermes-sim[retrieval]'", Verbatim("it is not installed")) from None
    if not settings["speed"]:
        return found
    return found.model_copy(update={"accelerator": _accelerator(settings["device"], settings["seed"])})


def _accelerator(device: Any, seed: int) -> dict[str, Any] | None:
    """Return the device's rates and its loop beside the simulated one; None without a device."""
    from hermes.calibration.collect.ivf_overlap_cuda import measure_device
    from hermes.calibration.ivf_lookahead import compared

    measured = measure_device(device, seed, 10)
    return None if measured is None else {**measured, "loop": compared(measured["loop"])}


def _overlap(found: IvfOverlap) -> list[str | Table]:
    index = found.index
    return [
        f"{index['vectors']:,} vectors of {index['dim']} dimensions in {index['clusters']} clusters "
        f"({index['source']}); sigma of log sizes {found.size_sigma:.3f}; probed / mean size "
        + ", ".join(f"{ratio:.3f} at nprobe {p}" for p, ratio in found.probed_over_mean.items()),
        Table(f"overlap in percent, nprobe {found.nprobes[1]}, by clusters prefetched",
              ["rewrite", *map(str, found.budgets)],
              [[m.rewrite, *(f"{100 * row[1]:.1f}" for row in m.overlap)] for m in found.measured]),
        Table("models fitted to one cell of each rewrite (two: spread fitted): points of error on the others",
              ["family", "shape", "spread", "mean", "worst", "at (prefetched, nprobe)", "noise there", "fitted"],
              [_candidate_row(c) for c in found.candidates]),
        *(f"scan, {scan['threads']} thread(s): {scan['mean'] / 1e9:.2f} GB/s (cv {scan['cv']:.1%}, {scan['class']})"
          for scan in found.scans),
        *(f"best {merge['top_k']} of {merge['candidates']:,}: {1e6 * merge['mean']:,.0f} us (cv {merge['cv']:.1%}, "
          f"{merge['class']})" for merge in found.merges),
        *_device(found.accelerator),
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


def _device(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["GPU: none at hand (or no torch that sees it), not measured"]
    loop = found["loop"]
    return [
        *(f"{found['device']}, {name}: {found[name]['mean'] / 1e9:.2f} GB/s (cv {found[name]['cv']:.1%}, "
          f"{found[name]['class']})" for name in ("copy", "scan")),
        f"loop: {1e3 * loop['loop_s']:.2f} ms measured, {1e3 * loop['simulated_s']:.2f} ms simulated "
        f"({loop['error']:+.1%}; generation {1e3 * loop['generate_s']:.2f}, copy {1e3 * loop['copy_s']:.2f}, scan "
        f"{1e3 * loop['scan_s']:.2f} ms)",
    ]
