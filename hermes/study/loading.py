"""Find a study, read its `study.yaml`, import its modules, and set its assumptions."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

import hermes
from hermes.config import ConfigModel
from hermes.config.data_files import resource_dir
from hermes.config.folder_packages import folder_package
from hermes.config.own_code import check_own_code
from hermes.config.validation import validate
from hermes.config.yaml_document import load_yaml, parse_yaml
from hermes.errors import InputError, Verbatim, inside, suggest
from hermes.study.compared import Compared
from hermes.study.report import Report, comparison

if TYPE_CHECKING:
    from hermes.explore import Executor

__all__ = ["Assumption", "Context", "Study", "StudyConfig", "known_studies", "load_study"]

Value = bool | int | float | str
FILE = "study.yaml"


class Assumption(ConfigModel):
    """A number or choice that a study assumes. `--set NAME=VALUE` changes it for a run."""

    value: Value
    """The assumed value."""
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    """Lowest and highest number allowed."""
    options: list[Value] | None = None
    """The choices, for a value without a range."""
    meaning: str
    """Meaning, with the unit."""
    source: str
    """Source of the value: a paper, a data sheet, a measurement, or `assumed`."""
    turns: str = ""
    """Effect of another value on the conclusion; only for the one assumption that turns it round."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.range is None) == (self.options is None):
            raise InputError("either range or options")
        self.checked(self.value)
        return self

    def checked(self, value: object) -> Value:
        """Return `value` if the assumption allows it; raises `InputError` otherwise."""
        if self.options is not None:
            for option in self.options:
                if option == value and isinstance(option, bool) == isinstance(value, bool):
                    return option
            raise InputError(f"one of {', '.join(map(str, self.options))}", value)
        assert self.range is not None
        low, high = self.range
        whole = isinstance(self.value, int)
        if not isinstance(value, int if whole else int | float) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(f"{'an integer' if whole else 'a number'} from {low:g} to {high:g}", value)
        return value if whole else float(value)

    @property
    def allowed(self) -> str:
        """Return the range or the options, in words."""
        if self.options is not None:
            return ", ".join(map(str, self.options))
        assert self.range is not None
        return f"{self.range[0]:g} to {self.range[1]:g}"


class Missing(ConfigModel):
    """A figure or table of the paper that the study does not compute."""

    where: str
    """Figure, table or section of the paper."""
    figure: str
    """Name of the figure, with the unit."""
    paper: str
    """What the paper says."""
    why: str
    """Reason why the study has no such figure."""
    verdict: Literal["not computed", "given"] = "not computed"
    """`given` for an input of the study."""


class StudyConfig(ConfigModel):
    """Contents of `study.yaml`."""

    title: str
    """The question, in one line."""
    paper: str = ""
    """The paper whose figures the study computes: name and identifier."""
    missing: list[Missing] = Field(default_factory=list)
    """Figures of the paper that the study does not compute, each with the reason."""
    notes: list[str] = Field(default_factory=list)
    """Sentences about the set-up, printed above the tables."""
    assumptions: dict[str, Assumption] = Field(default_factory=dict)
    """Assumptions by name; `--set NAME=VALUE` changes them."""
    what_if: dict[str, dict[str, Value]] = Field(default_factory=dict)
    """Other values of assumptions by label. The study's figures under each are the what-if table."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        turning = [name for name, one in self.assumptions.items() if one.turns]
        if len(turning) > 1:
            raise InputError("at most one assumption that turns the conclusion", ", ".join(turning))
        for label, changes in self.what_if.items():
            for name, value in changes.items():
                if name not in self.assumptions:
                    raise InputError(f"an assumption: {', '.join(self.assumptions) or 'there are none'}", name,
                                     field=f"what_if.{label}", suggestion=suggest(name, self.assumptions))
                with inside(f"what_if.{label}.{name}"):
                    changes[name] = self.assumptions[name].checked(value)
        return self


@dataclass(frozen=True)
class Context:
    """Arguments of a study's `run`.

    Args:
        study: The study that runs.
        out: Folder of its points and reports; an interrupted study continues there.
        quick: Run the smaller version of the study, under two minutes on two cores.
        workers: Processes it may use; 0: this one.
        data: Folder of reference data that does not come with HERMES; None if the user named none.
        values: Value of each assumption.
        say: Reports progress to the user, one line per call.
        executor: Worker processes of the whole study; None: each call of `run_points` starts its own.
    """

    study: Study
    out: Path
    quick: bool = False
    workers: int = 1
    data: Path | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    say: Callable[[str], None] = field(default=lambda text: None)
    executor: Executor | None = None

    def __getitem__(self, name: str) -> Any:   # Any: study.yaml declares the type, which `checked` has kept
        """The value of an assumption; `InputError` for one that study.yaml does not declare."""
        if name not in self.values:
            raise InputError("an assumption that the report asks for", Verbatim("none"),
                             file=str(self.study.folder / "study.yaml"), field=f"assumptions.{name}")
        return self.values[name]

    def file(self, name: str) -> Path:
        """Return a file of the study: next to `study.yaml`, or else in `scenarios/studies/NAME`."""
        beside = self.study.folder / name
        return beside if beside.is_file() else resource_dir("scenarios") / "studies" / self.study.name / name

    def need_data(self, *parts: str) -> Path:
        """Return a file or folder of the reference data. If it is missing, the `InputError` says how to name the
        data."""
        if self.data is None:
            raise InputError(f"the folder with {'/'.join(parts)}, as --data DIR", None, field="--data")
        found = self.data.joinpath(*parts)
        if not found.exists():
            raise InputError(f"a folder with {'/'.join(parts)}", str(self.data), field="--data")
        return found


@dataclass(frozen=True)
class Study:
    """A study.

    Args:
        name: Its name with dashes, as users write it.
        folder: Folder of its files.
    """

    name: str
    folder: Path
    config: StudyConfig

    @property
    def title(self) -> str:
        return self.config.title

    def module(self, name: str) -> ModuleType:
        """Import a module of the study's folder once. Raises `InputError` with file and line if the import fails."""
        if (checkout := str(self.folder.parents[1])) not in sys.path:   # has evidence/, which a study may import
            sys.path.append(checkout)
        try:
            return importlib.import_module(f"{folder_package(self.folder)}.{name}")
        except InputError:
            raise
        except Exception as error:   # a study's file may raise any exception
            file, line = str(self.folder / f"{name}.py"), None
            for frame in traceback.extract_tb(error.__traceback__):
                if Path(frame.filename).is_relative_to(self.folder):
                    file, line = frame.filename, frame.lineno
            if isinstance(error, SyntaxError):
                file, line = error.filename or file, error.lineno
            raise InputError("a module of a study that can be imported", Verbatim(f"{type(error).__name__}: {error}"),
                             file=file, line=line) from None

    def context(
        self, out: Path, *, quick: bool = False, workers: int = 1, data: Path | None = None,
        changes: Iterable[str] = (), say: Callable[[str], None] = lambda text: None,
    ) -> Context:
        """Return the argument of `run`.

        Args:
            changes: `"NAME=VALUE"` for assumptions. The other arguments are those of `Context`.
        """
        return Context(self, out, quick, workers, data, self._values(changes), say)

    def run(self, context: Context) -> Report:
        """Run the study. Its report gets the title, notes and assumptions of `study.yaml`, and the what-if table unless
        the study is quick.

        `report.py` has `run(context) -> Report` and, if `study.yaml` has `what_if`, `compare(context)`, which returns
        the figures of `Report.compared` under the context's assumptions, or as many of them as these change.
        """
        run = self._function("run")
        from hermes.config.registry import plugin_modules
        from hermes.explore.sweep.executor import opened
        from hermes.explore.sweep.hashing import OTHER_REGISTRIES

        with opened(None, context.workers, plugin_modules(OTHER_REGISTRIES)) as executor:
            running = replace(context, executor=executor)
            # the assumed values last: the folders of the points are then those of the study as it stands
            others = {} if context.quick else {
                label: self._function("compare")(self._changed(running, label)) for label in self.config.what_if}
            report: Report = run(running)
        report.title = self.title
        report.notes = [*self.config.notes, *report.notes]
        if report.compared:
            missing = [Compared(one.figure, one.paper, None, one.why, where=one.where, qualifier=one.verdict)
                       for one in self.config.missing]
            report.tables = [*comparison(report.compared, others, missing), *report.tables]
        if self.config.what_if and context.quick:
            report.notes.append("Quick: without the table of other assumptions (what_if in study.yaml).")
        report.assumptions = [
            (name, context.values[name], one.value, one.allowed, one.meaning, one.source)
            for name, one in self.config.assumptions.items()]
        return report

    def _function(self, name: str) -> Callable[[Context], Any]:
        check_own_code("a study runs it", file=str(self.folder / "report.py"))
        found: Callable[[Context], Any] | None = getattr(self.module("report"), name, None)
        if found is None:
            raise InputError(f"a function {name}(context)", Verbatim("none"), file=str(self.folder / "report.py"))
        return found

    def _changed(self, context: Context, label: str) -> Context:
        """Return the context under the assumptions of a label of `what_if`. The folder is the same: points that an
        assumption does not change are simulated once."""
        context.say(f"{self.name}: {label}")
        return replace(context, values={**context.values, **self.config.what_if[label]})

    def _values(self, changes: Iterable[str]) -> dict[str, Value]:
        known = self.config.assumptions
        values: dict[str, Value] = {name: one.value for name, one in known.items()}
        for change in changes:
            name, equals, text = (part.strip() for part in change.partition("="))
            if not equals:
                raise InputError("NAME=VALUE", change, field="--set")
            if name not in known:
                raise InputError(f"an assumption of this study: {', '.join(known) or 'it has none'}", name,
                                 field="--set", suggestion=suggest(name, known))
            try:
                values[name] = known[name].checked(parse_yaml(text).plain())
            except InputError as error:
                raise InputError(error.expected, error.found, field=f"--set {name}") from None
        return values


def known_studies() -> dict[str, Path]:
    """Return the studies of the checkout: name -> folder.

    The checkout is the one that this package runs from; for an installed wheel, the one around the current folder.
    """
    package = Path(hermes.__file__).resolve().parent
    installed = (package / "_data").is_dir()
    here = Path.cwd()
    for folder in (here, *here.parents) if installed else (package.parent,):
        found = sorted(folder.glob(f"studies/*/{FILE}"))
        if found:
            return {path.parent.name.replace("_", "-"): path.parent for path in found}
    return {}


def load_study(source: str | Path) -> Study:
    """Load a study of the checkout by name, or by the path of its folder. Raises `InputError` if there is none."""
    known, path = known_studies(), Path(source)
    name = str(source).replace("_", "-")
    if name in known and not isinstance(source, Path):
        path = known[name]
    elif not (path / FILE).is_file():
        if not known:
            raise InputError(Verbatim(
                f"{source}: studies are not part of the installed package; clone the repository and run the command in "
                "it, or give the path of a study's folder"), field="study")
        raise InputError(f"a study: one of {', '.join(known)}, or a folder with {FILE}", str(source), field="study",
                         suggestion=suggest(name, known))
    folder = path.resolve()
    config = validate(StudyConfig, load_yaml(folder / FILE), str(path / FILE))
    return Study(folder.name.replace("_", "-"), folder, config)
