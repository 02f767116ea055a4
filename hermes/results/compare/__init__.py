"""Compare a run with a reference, or with another run: the same metrics of both, and their relative errors.

Errors are (ours - reference) / reference. The table compares distributions (all completed requests of ours with all of
the reference). If requests can be joined, it also has errors of single requests. Both sides must have served the same
requests (`hermes.results.compare.same_requests`); otherwise nothing is compared.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hermes.arrays import FloatArray
from hermes.config.bench_results import bench_of
from hermes.config.load_drivers import driver_of
from hermes.core.record import STATUS_COMPLETED
from hermes.errors import InputError, Verbatim
from hermes.results.compare.compare_verdict import COMPARED, TotalRow, named, slo_rows, totals, verdict
from hermes.results.compare.difference_noise import noise_s
from hermes.results.compare.groups import GroupRow, compare_groups
from hermes.results.compare.observed import observed_report
from hermes.results.compare.reference import Reference, ReferenceMapping, guess_mapping, load_reference, preset
from hermes.results.compare.repetitions import beyond_noise, over_repetitions
from hermes.results.compare.same_requests import ServedRequests, check_same, served_requests
from hermes.results.compare.summaries import Summary, read_summary
from hermes.results.compare.trust import cannot_rank
from hermes.results.distribution import Distribution
from hermes.results.figures.catalogue import FIGURES, LATENCIES
from hermes.results.figures.steady import mean_stay
from hermes.results.files.stored import open_run
from hermes.results.layout import Marked, Section, format_number, format_s, to_html, to_rich, to_text
from hermes.results.results import Results
from hermes.units import NS_PER_S

__all__ = ["CompareRow", "CompareTable", "PerRequest", "TotalRow", "compare"]


_STATS = ("mean", "p50", "p90", "p99")
_METRICS = ("ttft", "tpot", "tbt", "itl", "e2e", "queue")
_USAGE = ("energy.total_j", "energy.per_request_j", "energy.per_output_token_j", "cost.total_dollars",
          "cost.per_request_dollars", "cost.per_million_output_tokens_dollars", "cost.per_million_tokens_dollars")
_OF_RUNS = ("ttft", "tpot", "e2e", "queue")   # comparable with another run; TBT is splitwise's, ITL is from the steps


@dataclass(frozen=True)
class CompareRow:
    """One statistic of one metric in seconds; `error` is relative (0.02: ours is 2% more), None if undefined.

    noise_s: Half-width of the 95% interval of the difference of two runs, or of the mean over the reference's
        repetitions; None if unknown.
    """

    metric: str
    stat: str
    ours_s: float | None
    reference_s: float | None
    error: float | None
    noise_s: float | None = None

    @property
    def difference_s(self) -> float | None:
        """Ours less the reference."""
        return None if self.ours_s is None or self.reference_s is None else self.ours_s - self.reference_s


@dataclass(frozen=True)
class PerRequest:
    """Relative errors of joined requests: mean with sign; mean, median, p90, p99 and maximum of the absolute error."""

    metric: str
    count: int
    mean_error: float | None
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True)
class CompareTable:
    """Result of `compare`.

    Attributes:
        checked: Properties of the requests that were compared (`ids`, `number`, `arrivals`, `prompt tokens`, `output
            tokens`).
        different_requests: First difference between the requests, if they were compared nevertheless.
        interrupted: Sides whose run was interrupted.
        names: Names of the two sides.
        notes_mean: Of two runs: name, and mean of both, of what was noted about completed requests.
        groups: Of two runs: figures by band, class and tenant of a gateway.
        slo: Of two runs with limits: a row per limit with value, limit and verdict of both.
        verdict: Of two runs, on what the first is better and worse, and which meets its SLO.
        unranked: On what two runs cannot be ranked, because their step times come from different sources; or "".
        whole: Names of the runs whose rates are of the whole run, without a steady state.
        unsettled: Runs too short, or too loaded, for the noise of their latencies, with the reason.
        repetitions: Repetitions of the reference: its figures are means over them, the noise is the 95% interval.
        remarks: About attempts at these repetitions.
    """

    rows: Sequence[CompareRow]
    per_request: Sequence[PerRequest]
    ours: int                  # completed requests of ours
    reference: int | None      # requests of the reference; None if a summary does not say
    joined: int | None         # in both; None if they were not joined
    usage: Mapping[str, float | None] = field(default_factory=dict)   # our joules and dollars, where there are any
    totals: Sequence[TotalRow] = ()                                   # with those of another run
    checked: Sequence[str] = ()
    different_requests: str | None = None
    interrupted: Sequence[str] = ()
    names: tuple[str, str] = ("ours", "reference")
    notes_mean: Sequence[tuple[str, float | None, float | None]] = ()
    groups: Sequence[GroupRow] = ()
    slo: Sequence[tuple[str, str, str]] = ()
    verdict: str | None = None
    unranked: str = ""
    whole: Sequence[str] = ()
    unsettled: Sequence[str] = ()
    repetitions: int = 1
    remarks: Sequence[str] = ()

    def error(self, metric: str, stat: str = "mean") -> float | None:
        """Return the relative error of one statistic; `InputError` if it was not compared."""
        for row in self.rows:
            if (row.metric, row.stat) == (metric, stat):
                return row.error
        known = ", ".join(f"{row.metric} {row.stat}" for row in self.rows)
        raise InputError(f"one of {known}", f"{metric} {stat}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "requests": {"ours": self.ours, "reference": self.reference, "joined": self.joined},
            "metrics": [asdict(row) for row in self.rows], "per_request": [asdict(row) for row in self.per_request],
            **({"usage": dict(self.usage)} if self.usage else {}),
            **({"totals": [asdict(row) for row in self.totals]} if self.totals else {}),
            "checked": list(self.checked), "different_requests": self.different_requests,
            "interrupted": list(self.interrupted),
            **({"slo": [dict(zip(("limit", "ours", "reference"), row, strict=True)) for row in self.slo]}
               if self.slo else {}),
            **({"notes_mean": [dict(zip(("name", "ours", "reference"), row, strict=True)) for row in self.notes_mean]}
               if self.notes_mean else {}),
            **({"groups": [row._asdict() for row in self.groups]} if self.groups else {}),
            **({"verdict": self.verdict, "unranked": self.unranked, "whole_run": list(self.whole),
                "unsettled": list(self.unsettled)}
               if self.verdict else {}),
            **({"repetitions": self.repetitions, "remarks": list(self.remarks)}
               if self.repetitions > 1 or self.remarks else {}),
        }

    def notes(self) -> list[str]:
        """Notes that a reader of the table needs."""
        ours, reference = _called(self.names)
        theirs = "an unknown number" if self.reference is None else f"{self.reference:,}"
        notes = [f"{self.ours:,} completed requests of {ours}, {theirs} of {reference}"]
        notes += [f"{name} was interrupted: these are the requests until then" for name in self.interrupted]
        if self.different_requests is not None:
            notes.append(f"NOT the same requests: {self.different_requests}")
        elif self.checked:
            notes.append(f"the same requests on both sides: {', '.join(self.checked)}")
        return [*notes, *self.remarks]

    def sections(self) -> list[Section]:
        last = "error" if self.names == ("ours", "reference") else "difference"
        head: tuple[str, ...] = ("metric", "stat", *self.names, last)
        rows: list[tuple[str, ...]] = [
            (LATENCIES[row.metric], row.stat, format_s(row.ours_s), format_s(row.reference_s), _signed(row.error))
            for row in self.rows
        ]
        notes = self.notes()
        if self.verdict is not None:   # two runs: by how much in seconds, and how much of that is chance
            first = [self.verdict, *([self.unranked] if self.unranked else [])]
            notes = [*first, *notes, "noise: a difference up to this, either way, may be the seed's",
                     *self.unknown_noise(), "latencies are those of all completed requests"]
        elif self.repetitions > 1:
            notes = [beyond_noise(self.rows, self.repetitions), *notes]
        if self.verdict is not None or self.repetitions > 1:
            head = (*head, "in time", "noise, +/-")
            rows = [(*cells[:-1], *(self._coloured(text, -1, row.difference_s, row.noise_s)
                                    for text in (cells[-1], _signed_s(row.difference_s))), format_s(row.noise_s))
                    for cells, row in zip(rows, self.rows, strict=True)]
        out = [Section("comparison", head, rows, "\n".join(notes))]
        if self.slo:
            out.append(Section("SLO: value and limit", ("", *self.names), list(self.slo)))
        if self.per_request:
            out.append(Section(
                f"{last} of single requests ({self.joined:,} joined)",
                ("metric", "requests", "mean", "|mean|", "|p50|", "|p90|", "|p99|", "|max|"),
                [(LATENCIES[row.metric], f"{row.count:,}", _signed(row.mean_error),
                  *(_size(value) for value in (row.mean, row.p50, row.p90, row.p99, row.max)))
                 for row in self.per_request], "|...|: of absolute values",
            ))
        if self.totals:
            stars = ["*" if name in self.whole else "" for name in self.names]
            out.append(Section("rates, dollars and energy", ("", *self.names, last, "noise, +/-"), [
                (named(row.name)[0], *(
                    format_number(value) + (star if row.name.startswith("headline.") and value is not None else "")
                    for value, star in zip((row.ours, row.reference), stars, strict=True)),
                 self._coloured(_signed(row.error), named(row.name)[1], row.difference, row.noise),
                 format_number(row.noise))
                for row in self.totals
            ], "* of the whole run: no steady state was found" if self.whole else ""))
        if self.notes_mean:
            out.append(Section("noted about requests, mean", ("", *self.names, last), [
                (name, format_number(first), format_number(second), _signed(_relative(first, second)))
                for name, first, second in self.notes_mean]))
        if self.groups:
            out.append(Section("by band, class and tenant", ("", "figure", *self.names, last), [
                (row.group, row.figure, *((format_s if row.seconds else format_number)(value)
                                          for value in (row.ours, row.reference)),
                 _signed(_relative(row.ours, row.reference))) for row in self.groups]))
        if self.usage:
            labels = {path.partition(".")[2]: FIGURES[path].label for path in _USAGE}
            shown = [(labels[name], format_number(value)) for name, value in self.usage.items()]
            out.append(Section("energy and cost of ours", ("", ""), shown))
        return out

    def _coloured(self, text: str, way: int, difference: float | None, noise: float | None) -> str:
        """Return a difference of two runs in green if it is better beyond noise, and in red if it is worse.

        way: 1 if more is better, -1 if less is.
        """
        if self.verdict is None or difference is None or noise is None or abs(difference) <= noise or not way:
            return text
        return Marked(text, "green" if way * difference > 0 else "red")

    def unknown_noise(self) -> list[str]:
        """Return why latencies of two runs have no known noise."""
        if self.unsettled:
            return [f"noise unknown: {one}; compare longer runs, or several seeds" for one in self.unsettled]
        if any(row.noise_s is None and row.difference_s is not None for row in self.rows if row.metric in _OF_RUNS):
            return ["noise -: one seed says too little; compare longer runs, or several seeds"]
        return []

    def table(self) -> Any:
        """Rich tables."""
        return to_rich(self.sections())

    def to_text(self) -> str:
        return to_text(self.sections())

    def _repr_html_(self) -> str:
        return to_html(self.sections())


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error * 100:+.2f}%"


def _signed_s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{'-' if seconds < 0 else '+'}{format_s(abs(seconds))}"


def _size(error: float | None) -> str:
    return "-" if error is None else f"{error * 100:.2f}%"


def compare(
    run: str | os.PathLike[str] | Results, reference: str | os.PathLike[str] | Results,
    mapping: ReferenceMapping | str | None = None, *, allow_different_requests: bool = False,
    names: tuple[str, str] | None = None, part: int | None = None,
) -> CompareTable:
    """Compare a run (its folder, or `Results`) with a reference: a file, an observation, or another run.

    mapping: Columns of the reference, or the name of one of `reference.PRESETS`; None goes by the names of the columns.
    names: Of two runs; None takes those of their folders.
    part: Which of several results in a file, from 0.
    Raises `InputError` for files that cannot be read (with file, line and column), if nothing can be compared, and if
    the two sides have different requests, unless these are allowed.
    """
    results = run if isinstance(run, Results) else open_run(run)
    observed = None if isinstance(reference, Results) else observed_report(Path(reference))
    if observed is not None:
        report, folder = observed
        return over_repetitions([_compare_file(results, str(folder / one.file), mapping, allow_different_requests)
                                 for one in report.counted()], report, folder)
    if isinstance(reference, Results) or Path(reference).is_dir():
        if mapping is not None:
            raise InputError(Verbatim("a run needs no mapping of columns; leave it out"), field="mapping")
        other = reference if isinstance(reference, Results) else open_run(reference)
        return _compare_runs(results, other, names or _names(run, reference), allow_different_requests)
    summary = read_summary(Path(reference), part) if mapping is None and not _has_requests(Path(reference)) else None
    if summary is not None:
        return _compare_summary(results, summary, str(reference), allow_different_requests)
    if Path(reference).suffix in (".yaml", ".yml"):
        raise InputError(Verbatim(f"a scenario has no latencies; run it (`hermes run {reference} -o DIR`), then "
                                  "compare with DIR"), file=str(reference))
    return _compare_file(results, os.fspath(reference), mapping, allow_different_requests, part)


def _compare_summary(results: Results, theirs: Summary, name: str, allowed: bool) -> CompareTable:
    """Compare with means and percentiles of a whole benchmark: those that the file has."""
    ours, completed = _our_columns(results), results.record.status == STATUS_COMPLETED
    samples = {metric: results.itl_s() if metric == "itl" else Distribution(ours[metric]) for metric in theirs.stats}
    rows = []
    for metric in _METRICS:
        for stat in sorted(theirs.stats.get(metric, ()), key=lambda one: (one != "mean", float(one[1:])
                                                                         if one != "mean" else 0.0)):
            a = samples[metric].mean if stat == "mean" else float(samples[metric].percentiles([float(stat[1:])])[0])
            b = theirs.stats[metric][stat]
            mine = None if np.isnan(a) else a
            rows.append(CompareRow(metric, stat, mine, b, _relative(mine, b)))
    record = results.record
    known = [("number", int(completed.sum()), theirs.requests, "completed requests"),
             ("prompt tokens", int(record.prompt_tokens[completed].sum()), theirs.prompt_tokens, "prompt tokens"),
             ("output tokens", int(record.output_tokens[completed].sum()), theirs.output_tokens, "output tokens")]
    different = next((f"the run has {mine:,} {words}, the summary {their:,}" for _, mine, their, words in known
                      if their is not None and mine != their), None)
    _refuse(different, allowed, name)
    return CompareTable(
        rows, [], int(completed.sum()), theirs.requests, None, _usage(results.summary),
        checked=[word for word, _, their, _ in known if their is not None], different_requests=different,
        interrupted=["ours"] if results.meta.get("interrupted") else [],
        remarks=[f"a summary of {theirs.tool}, without single requests: the statistics that it has"])


def _compare_file(results: Results, name: str, mapping: ReferenceMapping | str | None, allowed: bool,
                  part: int | None = None) -> CompareTable:
    theirs, ours = load_reference(name, _mapping(mapping, name, part), part), _our_columns(results)
    shared = [metric for metric in _METRICS if metric in theirs.columns]
    rows: list[CompareRow] = []
    for metric in _METRICS:
        if metric in shared:
            rows += _rows(metric, Distribution(ours[metric]), Distribution(theirs.columns[metric]))
        elif metric == "itl" and theirs.itl_s is not None:
            rows += _rows(metric, results.itl_s(), Distribution(theirs.itl_s))
    if not rows:
        raise InputError("a mapping that gives at least one of ttft, tpot, tbt, e2e, token_times", field="mapping",
                         file=name)
    different, checked = check_same(served_requests(results), _held(theirs))
    _refuse(different, allowed, name)
    per_request, joined = _join(results, ours, theirs, shared)
    completed = int((results.record.status == STATUS_COMPLETED).sum())
    return CompareTable(
        rows, per_request, completed, theirs.count, joined, _usage(results.summary), checked=checked,
        different_requests=different, interrupted=["ours"] if results.meta.get("interrupted") else [],
    )


def _mapping(mapping: ReferenceMapping | str | None, name: str, part: int | None) -> ReferenceMapping:
    if mapping is None:
        return guess_mapping(name, part)
    return preset(mapping, name, part) if isinstance(mapping, str) else mapping


def _has_requests(path: Path) -> bool:
    """Whether a file has requests of its own that are known to be such, beside what sums them up."""
    return driver_of(path) is not None or bench_of(path, 0) is not None


def _held(theirs: Reference) -> ServedRequests:
    """Return the requests of a reference; completed are those with any time, or all if it has only pooled times."""
    columns = theirs.columns
    times = [columns[name] for name in _METRICS if name in columns]
    known = [~np.isnan(column) for column in times] or [np.ones(theirs.count, dtype=bool)]
    arrival, prompt, output = (columns.get(name) for name in ("arrival", "prompt_tokens", "output_tokens"))
    return ServedRequests(theirs.ids, arrival, prompt, output, np.logical_or.reduce(known))


def _refuse(different: str | None, allowed: bool, file: str | None = None) -> None:
    if different is not None and not allowed:
        raise InputError(
            Verbatim(f"not the same requests: {different}; --allow-different-requests compares them nevertheless"),
            file=file)


def _names(run: object, reference: object) -> tuple[str, str]:
    """Return short distinct names of two runs, from their folders."""
    paths = [Path(side).resolve() for side in (run, reference) if isinstance(side, str | os.PathLike)]
    if len(paths) < 2 or paths[0] == paths[1]:
        return "first", "second"
    length = next(n for n in count(1) if paths[0].parts[-n:] != paths[1].parts[-n:])
    first, second = (str(Path(*path.parts[-length:])) for path in paths)
    return first, second


def _called(names: tuple[str, str]) -> tuple[str, str]:
    """Return the names of the sides for use in a sentence."""
    ours, reference = (f"the {name}" if name in ("reference", "first", "second") else name for name in names)
    return ours, reference


def _compare_runs(results: Results, other: Results, names: tuple[str, str], allowed: bool) -> CompareTable:
    ours, theirs = _our_columns(results), _our_columns(other)
    different, checked = check_same(served_requests(results), served_requests(other), _called(names))
    _refuse(different, allowed)
    rows: list[CompareRow] = []
    arrivals = _arrivals(results), _arrivals(other)
    stays = mean_stay(results.record)[0] / NS_PER_S, mean_stay(other.record)[0] / NS_PER_S
    unsettled = _unsettled((results, other), _called(names))
    for metric in _METRICS:
        if metric in _OF_RUNS:
            rows += [row if unsettled else replace(row, noise_s=noise_s(
                ours[metric], theirs[metric], arrivals, row.stat, same=different is None, stays_s=stays))
                     for row in _rows(metric, Distribution(ours[metric]), Distribution(theirs[metric]))]
        elif metric == "itl":
            rows += _rows(metric, results.itl_s(), other.itl_s())
    common = np.arange(min(len(results.record.status), len(other.record.status)))
    sides = Reference({metric: theirs[metric][common] for metric in _OF_RUNS}, common, None, len(common))
    per_request, joined = _join(results, ours, sides, ["ttft", "tpot", "e2e"]) if different is None else ([], None)
    completed = [int((side.record.status == STATUS_COMPLETED).sum()) for side in (results, other)]
    interrupted = [name for name, side in zip(names, (results, other), strict=True) if side.meta.get("interrupted")]
    first, second = results.summary, other.summary
    figures = [row if unsettled or not row.name.startswith("notes.") else replace(row, noise=noise_s(
                   _noted(results, row.name), _noted(other, row.name), arrivals, "mean", same=different is None,
                   stays_s=stays)) for row in totals(first, second)]
    notes = [side.get("notes", {}) for side in (first, second)]
    ours_mean, theirs_mean = (_means(side) for side in notes)
    noted = [(name, ours_mean.get(name), theirs_mean.get(name)) for name in {**ours_mean, **theirs_mean}
             if f"notes.{name}.mean" not in COMPARED]
    whole = [name for name, side in zip(names, (first, second), strict=True)
             if (side.get("headline") or {}).get("window") == "whole"]
    return CompareTable(
        rows, per_request, completed[0], completed[1], joined, totals=figures, checked=checked,
        different_requests=different, interrupted=interrupted, names=names, notes_mean=noted,
        groups=compare_groups(first, second),
        slo=slo_rows(first, second), whole=whole,
        verdict=verdict(rows, figures, (first["slo"]["pass"], second["slo"]["pass"]), _called(names)),
        unranked=cannot_rank(rows, first, second, _called(names)), unsettled=unsettled,
    )


def _unsettled(sides: tuple[Results, Results], names: tuple[str, str]) -> list[str]:
    """Return which runs are too short, or too loaded, for a verdict on the system, and why."""
    found = [(name, side.summary.get("settling") or {}) for name, side in zip(names, sides, strict=True)]
    return [f"{name} has not settled ({settling['why']})" for name, settling in found
            if settling.get("settled") is False]


def _usage(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return joules and dollars of a run; empty if it has neither."""
    wanted = [path.split(".") for path in _USAGE]
    return {name: part[name] for table, name in wanted if name in (part := summary.get(table) or {})}


def _our_columns(results: Results) -> dict[str, FloatArray]:
    requests = results.columns("requests")
    ours = {name: np.asarray(requests[f"{name}_s"]) for name in ("ttft", "tpot", "e2e", "queue")}
    done = np.asarray(results.record.status == STATUS_COMPLETED)
    ours["queue"] = np.where(done, ours["queue"], np.nan)
    ours["tbt"] = (ours["e2e"] - ours["ttft"]) / requests["output_tokens"]
    return ours


def _noted(results: Results, name: str) -> FloatArray:
    """Return what a pipeline noted of each completed request; NaN for the others."""
    done = results.record.status == STATUS_COMPLETED
    return np.where(done, results.record.notes.get(name.split(".")[1], np.nan), np.nan)


def _means(notes: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the mean of each note by name, and of a note that names something the share of each name."""
    found: dict[str, float | None] = {}
    for name, stats in notes.items():
        if "shares" in stats:
            found |= {f"{name} {one}": share for one, share in stats["shares"].items()}
        else:
            found[name] = stats["mean"]
    return found


def _arrivals(results: Results) -> FloatArray:
    return np.asarray(results.columns("requests")["arrival_s"])


def _relative(ours: float | None, theirs: float | None) -> float | None:
    return (ours - theirs) / theirs if ours is not None and theirs else None


def _rows(metric: str, ours: Distribution, theirs: Distribution) -> list[CompareRow]:
    a, b = ours.stats(), theirs.stats()
    return [CompareRow(metric, stat, a[stat], b[stat], _relative(a[stat], b[stat])) for stat in _STATS]


def _join(
    results: Results, ours: dict[str, FloatArray], theirs: Reference, shared: list[str]
) -> tuple[list[PerRequest], int | None]:
    if theirs.ids is None:
        return [], None
    known = np.flatnonzero((theirs.ids >= 0) & (theirs.ids < len(results.record.status)))
    known = known[results.record.status[theirs.ids[known]] == STATUS_COMPLETED]
    out = []
    for metric in shared:
        mine, their = ours[metric][theirs.ids[known]], theirs.columns[metric][known]
        usable = ~np.isnan(mine) & (their > 0)
        error = (mine[usable] - their[usable]) / their[usable]
        size = Distribution(np.abs(error)).stats()
        signed = float(error.mean()) if len(error) else None
        out.append(PerRequest(metric, len(error), signed, *(size[stat] for stat in (*_STATS, "max"))))
    return out, len(known)
