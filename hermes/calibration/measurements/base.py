"""The protocol of a measurement: plan, collect, pack, fit, and what is printed of each.

A plan file in YAML is one `Measurement`: `measure` is its registered name, the other fields are its keys. The commands
call the hooks in this order:

    hermes calibrate run    plan -> show_plan (--dry-run), or collect -> conclude
    hermes calibrate pack   pack
    hermes fit              fit

A new kind registers its class under its name (`MEASUREMENTS.register`, or the entry-point group
`hermes.measurements`). `hermes.calibration.testing.MeasurementContract` tests everything that the commands rely on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hermes.calibration.plan import PointPlan, engine_of_journal
from hermes.calibration.session import Measured, OnProgress, measure
from hermes.config import ConfigModel
from hermes.config.registry import Registry
from hermes.config.yaml_document import load_yaml
from hermes.errors import InputError, Verbatim
from hermes.results.layout import Part, Section

__all__ = ["MEASUREMENTS", "FitOptions", "Measurement", "Shown", "again", "existing", "kind_of_file", "kind_of_journal"]


class Shown(NamedTuple):
    """The output of a command: the document for `--json`, and the tables and lines for a person."""

    data: dict[str, Any]
    parts: Sequence[Part]

    def also(self, line: str) -> Shown:
        """Return it with one more line."""
        return Shown(self.data, [*self.parts, line])


@dataclass(frozen=True)
class FitOptions:
    """Options of `hermes fit`; a kind takes those in its `fit_options`, and always `output` and `name`."""

    output: Path | None = None
    name: str = ""
    command: str = ""
    """Command line, for the provenance."""
    plot: Path | None = None
    steps: Path | None = None


class Measurement(ConfigModel):
    """One kind of measurement. Derive from it, declare `measure` and `output`, and implement `plan` and `pack`."""

    engines: ClassVar[tuple[str, ...]] = ()
    """Values of `engine` in the plans of this kind: a journal names its kind by them. Empty: the registered name."""
    format: ClassVar[str] = ""
    """Format of the measured file that `fit` reads; empty if there is nothing to fit."""
    clock_choice: ClassVar[bool] = False
    """Whether `pack` takes another clock than the plan's."""
    fit_options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `FitOptions` that `fit` takes."""

    if TYPE_CHECKING:   # a kind declares both, so that `measure` comes first in its plan files and `output` last
        measure: str
        output: str

    @abstractmethod
    def plan(self, base_dir: Path, python: str | None = None) -> PointPlan:
        """Return the points to measure. Called once by `run`; it must be a function of the keys, so that a run can be
        continued. Raises `InputError` naming the key.

        Args:
            base_dir: Folder that paths among the keys are relative to.
            python: Interpreter of the collector; None for this one.
        """

    def show_plan(self, plan: PointPlan) -> Shown:
        """Return the points and their time, for `--dry-run`."""
        rows = [[point["name"], float(point.get("estimate_s", 0.0))] for point in plan.points]
        return Shown({"points": plan.points, "estimate_s": round(plan.estimate_s, 1)},
                     [
            Section("", ["point", "estimate (s)"], rows),
            f"{len(plan.points)} points; time: about {plan.estimate_s:.0f} s (an estimate; corrected while measuring)"])

    def collect(self, plan: PointPlan, output: Path, *, python: str | None = None, budget_s: float | None = None,
                on_progress: OnProgress = None) -> Measured:
        """Measure the missing points into the journal beside `output`. Called once by `run`, and by a repeated `run`.

        The default starts the plan's collector, a module that ends in `hermes.calibration.collect.session.main`.
        """
        return measure(plan, output, python=python, budget_s=budget_s, on_progress=on_progress)

    def conclude(self, done: Measured, output: Path, base_dir: Path, command: str) -> Shown:
        """Pack what `collect` has measured. Called once by `run`, after `collect`."""
        return self.pack(done.journal, output, command=command, measured=done)

    @classmethod
    def reads(cls, file: Path) -> bool:
        """Return whether `pack` takes this file, the output of another tool, in place of a journal."""
        return False

    @classmethod
    @abstractmethod
    def pack(cls, journal: Path, output: Path, *, command: str = "", clock: str | None = None,
             measured: Measured | None = None) -> Shown:
        """Write the points of a journal, complete or cut off, to `output`. Raises `InputError`.

        Args:
            command: Command line, for the provenance.
            clock: Clock of the times, `wall` or `cpu`; None for the plan's. Only with `clock_choice`.
            measured: The session that has just written the journal; None for a journal from elsewhere.
        """

    @classmethod
    def fit(cls, file: Path, options: FitOptions) -> Shown:
        """Fit a measured file (`format`), and write what was fitted to `options.output`. Raises `InputError`."""
        raise InputError(Verbatim(f"nothing is fitted to {cls.format or 'this measurement'}"), file=str(file))


def again(measured: Measured | None) -> list[str]:
    """Return the line about a measurement that its budget cut off, if it did."""
    if measured is None or measured.complete:
        return []
    return ["stopped by the budget: run the same command again to continue"]


def existing(base_dir: Path, name: str, key: str) -> str:
    """Return the absolute path of a file that a key names; "" for none. Raises `InputError` if it does not exist."""
    path = base_dir / name
    if name and not path.is_file():
        raise InputError("an existing file", name, field=key)
    return str(path.resolve()) if name else ""


MEASUREMENTS: Registry[type[Measurement]] = Registry("measurements", "what to measure", {
    "llm": "hermes.calibration.measurements.llm:LlmMeasurement",
    "terms": "hermes.calibration.measurements.terms:TermsMeasurement",
    "link": "hermes.calibration.measurements.link:Links",
    "retrieval": "hermes.plugins.retrieval.measurement:Retrieval",
    "ivf": "hermes.plugins.retrieval.ivf:IvfMeasurement",
    "start-up": "hermes.calibration.measurements.start_up:StartUpMeasurement",
}, base=Measurement)


def kind_of_journal(journal: Path) -> type[Measurement]:
    """Return the measurement that a journal, or the output of a tool, belongs to. Raises `InputError` for another."""
    kinds: dict[str, type[Measurement]] = MEASUREMENTS.working()
    for kind in kinds.values():
        if kind.reads(journal):
            return kind
    engine = engine_of_journal(journal)
    for name, kind in kinds.items():
        if engine in (kind.engines or (name,)):
            return kind
    raise InputError(f"the journal of a measurement ({', '.join(kinds)})", engine, file=str(journal), line=1,
                     field="plan.engine")


def kind_of_file(file: Path) -> type[Measurement]:
    """Return the measurement that a measured file belongs to, by its `format`. Raises `InputError`."""
    stated = load_yaml(file).child("format")
    found = None if stated is None else stated.plain()
    kinds: dict[str, type[Measurement]] = {
        kind.format: kind for kind in MEASUREMENTS.working().values() if kind.format}
    if not isinstance(found, str) or found not in kinds:
        raise InputError(f"a measured file, with one of the formats {', '.join(kinds)}", found, file=str(file),
                         field="format")
    return kinds[found]
