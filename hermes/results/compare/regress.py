"""Golden predictions: compare the summaries of scenarios with recorded ones.

A golden file holds, per scenario, every number of its summary under a flat name (`latency.ttft_s.p99`). Numbers must
match exactly unless a tolerance is given; a metric that appears or disappears is a difference too. A golden file only
proves that nothing changed, so the tests have an invariant with each. A change can be compared with a metric's
variation over seeds (`hermes.core.noise`): within it, the verdict is `noise`.

    format: 1
    version: 0.1.0                         # of HERMES, which recorded it
    tolerances: {'energy.*': 1.0e-9}        # relative, by glob; the last match wins
    scenarios:
      ../scenarios/quickstart.yaml:          # relative to this file
        metrics: {latency.ttft_s.p99: 0.25}
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hermes import __version__
from hermes.config import ConfigModel
from hermes.config.files import relative_name
from hermes.config.validation import validate
from hermes.config.writing import write_text
from hermes.config.yaml_document import load_yaml
from hermes.config.yaml_writer import to_yaml
from hermes.core.noise import spread, t_quantile
from hermes.errors import HermesError, InputError, Verbatim, suggest
from hermes.results.layout import Part, Section, to_text
from hermes.units import counted

__all__ = [
    "Difference", "GoldenFile", "RegressReport", "check", "differences", "flatten", "record", "recorded_scenarios",
]

Value = float | int | bool | str | None
Run = Callable[[str], Mapping[str, Any]]
RunSeed = Callable[[str, int], Mapping[str, Any]]


class GoldenScenario(ConfigModel):
    """Recorded summary of one scenario."""

    metrics: dict[str, bool | int | float | str | None]
    tolerances: dict[str, float] = Field(default_factory=dict)


class GoldenFile(ConfigModel):
    """See the module's docstring."""

    format: Literal[1]
    version: str = ""
    tolerances: dict[str, float] = Field(default_factory=dict)
    scenarios: dict[str, GoldenScenario]


@dataclass(frozen=True)
class Difference:
    """A metric that changed, appeared (`old` None) or disappeared (`new` None), or a scenario that failed.

    Attributes:
        change: (new - old) / |old|, None if undefined.
        seeds: Statistics of the new value over seeds (`hermes.core.noise.Spread.as_dict`), None if there are none.
    """

    scenario: str
    metric: str
    what: Literal["changed", "added", "missing", "failed"]
    old: Value = None
    new: Value = None
    change: float | None = None
    seeds: dict[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """Return `noise` if two seeds may differ by as much (95%, Student's t), else `change`; "-" without seeds."""
        if self.seeds is None or not isinstance(self.old, int | float) or not isinstance(self.new, int | float):
            return "-"
        seeds = self.seeds
        reach = t_quantile(seeds["samples"]) * seeds["cv"] * seeds["mean"] * 2**0.5
        return "noise" if abs(self.new - self.old) <= reach else "change"


@dataclass
class RegressReport:
    """Differences over all scenarios. `exit_code` is 0 without differences and 1 otherwise, noise included: the same
    seed gives the same bytes.

    Attributes:
        version: Version of HERMES that recorded the golden file; empty if the file does not say it.
    """

    differences: list[Difference] = field(default_factory=list)
    scenarios: int = 0
    metrics: int = 0
    version: str = ""

    @property
    def ok(self) -> bool:
        return not self.differences

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"ok": self.ok, "scenarios": self.scenarios, "metrics": self.metrics, "version": self.version,
                "differences": [asdict(d) | {"verdict": d.verdict} for d in self.differences]}

    @property
    def compared(self) -> str:
        """Return what was compared, and with which version's predictions, in words."""
        said = f"{counted(self.metrics, 'metric')} of {counted(self.scenarios, 'scenario')}"
        other = self.version and self.version != __version__
        return f"{said}, recorded with HERMES {self.version} (this is {__version__})" if other else said

    def parts(self, limit: int = 100) -> list[Part]:
        """Return one line without differences, otherwise a table of the first `limit`."""
        if self.ok:
            return [f"{self.compared}: no differences"]
        seeds = any(d.seeds for d in self.differences)
        rows = [
            (d.scenario, d.metric, d.what, _shown(d.old, d.what != "added"), _shown(d.new, d.what != "missing"),
             "-" if d.change is None else f"{d.change * 100:+.4g}%")
            + ((_chance(d.seeds), d.verdict) if seeds else ())
            for d in self.differences[:limit]
        ]
        left = len(self.differences) - len(rows)
        note = f"{counted(len(self.differences), 'difference')} in {self.compared}"
        note += f", {left:,} not shown" if left else ""
        head = ("scenario", "metric", "", "old", "new", "change", *(("over seeds", "verdict") if seeds else ()))
        return [Section("regression", head, rows, note)]

    def to_text(self, limit: int = 100) -> str:
        """Return the same as plain text."""
        return to_text(self.parts(limit), width=160)


def _chance(seeds: dict[str, Any] | None) -> str:
    return "-" if seeds is None else f"CV {100 * seeds['cv']:.2g}% ({seeds['class']}, {seeds['samples']})"


def _shown(value: Value, there: bool) -> str:
    return "-" if not there else "none" if value is None else str(value)


def flatten(summary: Mapping[str, Any]) -> dict[str, Value]:
    """Flatten nested mappings and lists to one mapping of dotted names to values. Empty ones leave nothing.

    `sources` and `assumes` are left out: they say what a prediction rests on, and predict nothing.
    """
    out: dict[str, Value] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            items: Iterable[tuple[Any, Any]] = value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        else:
            out[prefix] = value
            return
        for key, item in items:
            walk(f"{prefix}.{key}" if prefix else str(key), item)

    walk("", {key: value for key, value in summary.items() if key not in ("sources", "assumes")})
    return out


def _tolerance(metric: str, tolerances: Iterable[tuple[str, float]]) -> float:
    found = 0.0
    for pattern, tolerance in tolerances:
        if fnmatchcase(metric, pattern):
            found = tolerance
    return found


def differences(
    scenario: str, old: Mapping[str, Value], new: Mapping[str, Value], tolerances: Iterable[tuple[str, float]] = ()
) -> list[Difference]:
    """Return the differences of two flat summaries that exceed their tolerance."""
    tolerances = list(tolerances)
    out = []
    for metric in [*old, *(name for name in new if name not in old)]:
        if metric not in new:
            out.append(Difference(scenario, metric, "missing", old=old[metric]))
        elif metric not in old:
            out.append(Difference(scenario, metric, "added", new=new[metric]))
        elif not _same(old[metric], new[metric], _tolerance(metric, tolerances)):
            change = _change(old[metric], new[metric])
            out.append(Difference(scenario, metric, "changed", old[metric], new[metric], change))
    return out


def _same(old: Value, new: Value, tolerance: float) -> bool:
    if isinstance(old, int | float) and isinstance(new, int | float) and isinstance(old, bool) == isinstance(new, bool):
        return abs(new - old) <= tolerance * abs(old)
    return type(old) is type(new) and old == new


def _change(old: Value, new: Value) -> float | None:
    if not isinstance(old, int | float) or not isinstance(new, int | float) or isinstance(old, bool) or not old:
        return None
    return float((new - old) / abs(old))


def record(
    scenarios: Iterable[str | os.PathLike[str]], out_file: str | os.PathLike[str], run: Run,
    tolerances: Mapping[str, float] | None = None,
) -> GoldenFile:
    """Run scenarios and write their summaries. Tolerances of an existing file are kept unless new ones are given.

    run: Function from a scenario's path (as a string) to its summary.
    """
    path = Path(out_file)
    before = _load(path) if path.exists() else None
    golden: dict[str, Any] = {"format": 1, "version": __version__}
    golden["tolerances"] = dict(tolerances if tolerances is not None else before.tolerances if before else {})
    golden["scenarios"] = {}
    for scenario in scenarios:
        name = _stored_name(os.fspath(scenario), path)
        entry: dict[str, Any] = {"metrics": flatten(run(os.fspath(scenario)))}
        if before and name in before.scenarios and before.scenarios[name].tolerances:
            entry["tolerances"] = dict(before.scenarios[name].tolerances)
        golden["scenarios"][name] = entry
    if path.suffix == ".json":
        text = json.dumps(golden, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    else:
        text = to_yaml(golden)
    write_text(path, text)
    return _load(path)


def _stored_name(scenario: str, golden: Path) -> str:
    """Return a scenario's name in a golden file: relative to that file, so that both can move; a built-in's name."""
    if not Path(scenario).exists():
        return scenario
    return relative_name(scenario, golden.parent)


def recorded_scenarios(file: str | os.PathLike[str]) -> list[str]:
    """Return the scenarios of a golden file, as `record` and `check` take them."""
    path = Path(file)
    return [_found(name, path) for name in _load(path).scenarios]


def _found(name: str, golden: Path) -> str:
    beside = golden.parent / name
    return str(beside) if beside.exists() else name


def _load(path: Path) -> GoldenFile:
    golden = validate(GoldenFile, load_yaml(path), str(path))
    for tolerances in (golden.tolerances, *(s.tolerances for s in golden.scenarios.values())):
        for pattern, tolerance in tolerances.items():
            if tolerance < 0:
                raise InputError("a relative tolerance of at least 0", tolerance, file=str(path),
                                 field=f"tolerances.{pattern}")
    if not golden.scenarios:
        raise InputError("at least one scenario", Verbatim("none"), file=str(path), field="scenarios")
    return golden


def _over_seeds(found: list[Difference], summaries: list[Mapping[str, Value]]) -> list[Difference]:
    """Return `found` with the spread over seeds at every number that changed."""
    out = []
    for difference in found:
        values = [summary.get(difference.metric) for summary in summaries]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if difference.what == "changed" and len(numbers) == len(values) > 1:
            with suppress(ValueError):  # a spread needs a positive mean
                difference = replace(difference, seeds=spread(numbers).as_dict())
        out.append(difference)
    return out


def check(
    file: str | os.PathLike[str], run: Run, seeds: int = 0, run_seed: RunSeed | None = None,
    metrics: Sequence[str] = (),
) -> RegressReport:
    """Run the scenarios of a golden file and compare. A scenario that cannot be run is a difference too.

    Args:
        run: Function from a scenario's path (as a string) to its summary.
        run_seed: The same with another seed, called for `seeds` seeds if a prediction changed: the metric's variation
            shows whether the change is large.
        metrics: Globs of the metrics that are compared; empty: all.

    Raises `InputError` for a golden file that cannot be read, and for a glob that fits none of its metrics.
    """
    path = Path(file)
    golden = _load(path)
    report = RegressReport(version=golden.version)
    recorded = {metric for scenario in golden.scenarios.values() for metric in scenario.metrics}
    for glob in metrics:
        if not any(fnmatchcase(metric, glob) for metric in recorded):
            raise InputError(f"a metric of {path}, or a glob of several", glob, field="--metrics",
                             suggestion=suggest(glob, recorded))

    def asked(summary: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in summary.items()
                if not metrics or any(fnmatchcase(name, glob) for glob in metrics)}

    for name, expected in golden.scenarios.items():
        old = asked(expected.metrics)
        report.scenarios += 1
        report.metrics += len(old)
        try:
            summary = run(_found(name, path))
        except HermesError as error:
            report.differences.append(Difference(name, "", "failed", new=str(error)))
            continue
        tolerances = [*golden.tolerances.items(), *expected.tolerances.items()]
        found = differences(name, old, asked(flatten(summary)), tolerances)
        if run_seed is not None and seeds and any(difference.what == "changed" for difference in found):
            found = _over_seeds(found, [flatten(run_seed(_found(name, path), seed)) for seed in range(seeds)])
        report.differences += found
    return report
