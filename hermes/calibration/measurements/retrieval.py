"""`measure: retrieval`: search times of indices, and the cost model fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hermes.calibration.measurements.base import FitOptions, Shown, again
from hermes.calibration.plan import PointPlan
from hermes.calibration.retrieval_plan import RetrievalMeasurement, RetrievalPlan, memory_bytes
from hermes.calibration.retrieval_steps import MeasuredSearches, load_searches, pack_searches, save_searches
from hermes.calibration.session import Measured
from hermes.results.layout import Part, Section
from hermes.services.retrieval_profile import RetrievalProfile, save_retrieval_profile

__all__ = ["Retrieval"]


class Retrieval(RetrievalMeasurement):
    __doc__ = RetrievalMeasurement.__doc__

    engines: ClassVar[tuple[str, ...]] = ("retrieval",)
    format: ClassVar[str] = "hermes-retrieval/1"

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the indices with their points, and the memory."""
        assert isinstance(plan, RetrievalPlan)
        memory = memory_bytes(plan)
        groups: dict[str, list[dict[str, Any]]] = {}
        for point in plan.points:
            groups.setdefault(f"{point['index']['name']} ({point['index']['library']})", []).append(point)
        rows = [[name, len(found), round(sum(p["estimate_s"] for p in found), 1)] for name, found in groups.items()]
        return Shown({"points": plan.points, "memory_bytes": memory, "estimate_s": round(plan.estimate_s, 1)}, [
            Section("", ["index", "points", "estimate (s)"], rows),
            f"{len(plan.points)} points, memory about {memory / 2**30:.1f} GiB, time about {plan.estimate_s:.0f} s "
            "(rough; corrected while measuring)",
        ])

    def conclude(self, done: Measured, output: Path, base_dir: Path, command: str) -> Shown:
        """Write the searches, and the cost model to the plan's `profile`."""
        profile = base_dir / self.profile if self.profile else None
        return _packed(done.journal, output, profile, command, done)

    @classmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write measured searches. Raises `InputError`."""
        return _packed(journal, output, None, command, measured)

    @classmethod
    def fit(cls, file: Path, options: FitOptions) -> Shown:
        """Fit the cost model of searches. Raises `InputError`."""
        return _fitted(load_searches(file), options.output, options.name or (options.output or file).stem,
                       options.command, [options.output], None)


def _packed(journal: Path, output: Path, profile: Path | None, command: str, measured: Measured | None) -> Shown:
    save_searches(pack_searches(journal, output.stem, command), output)
    return _fitted(load_searches(output), profile, (profile or output).stem, command, [output, profile], measured)


def _fitted(searches: MeasuredSearches, profile: Path | None, name: str, command: str, written: Sequence[Path | None],
            measured: Measured | None) -> Shown:
    """Fit, write the cost model to `profile`, and return it with its errors."""
    from hermes.calibration.fit.retrieval import fit_retrieval

    fitted = fit_retrieval(searches, name, command)
    if profile is not None:
        save_retrieval_profile(fitted, profile)
    return Shown({
        "rows": len(searches.rows), "usable": len(searches.usable()),
        "complete": measured is None or measured.complete, **fitted.model_dump(mode="json"),
    }, [
        *_tables(fitted), f"{len(searches.rows)} rows, {len(searches.usable())} usable",
        *(f"note: {note}" for note in (*searches.header.excluded, *searches.header.notes)), *again(measured),
        *(f"written to {path}" for path in written if path is not None),
    ])


def _tables(fitted: RetrievalProfile) -> list[Part]:
    rows = [
        [kind, model.library, model.points, 100 * model.error.mape, 100 * model.error.worst,
         "-" if model.error.unseen_index_mape is None else f"{100 * model.error.unseen_index_mape:.1f}", model.noise]
        for kind, model in fitted.models.items()
    ]
    costs = [[kind, term.per, 1e9 * term.seconds, term.rate]
             for kind, model in fitted.models.items() for term in model.terms]
    growth = [(kind, model.corpus_exponent) for kind, model in fitted.models.items() if model.corpus_exponent]
    return [
        Section("held-out errors in percent", ["index", "library", "points", "mean", "worst", "unseen index", "noise"],
              rows),
        Section("", ["index", "per", "ns", ""], costs),
        *(f"{kind}: time grows like vectors^{found.mean:.2f} (95% interval {found.low:.2f} to {found.high:.2f}, "
          f"{found.pairs} settings)" for kind, found in growth),
    ]
