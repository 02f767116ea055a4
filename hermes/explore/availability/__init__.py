"""The share of a month in which a scenario keeps its SLO, while its replicas fail at random.

Three parts, since a month of requests would take days to simulate and most of it is quiet:

- **The incidents**: the scenario's fleets alone, without requests, for so many months in one simulation. Between two
  failures nothing happens, so quiet time costs nothing and is exact. Failures, probes, start-ups, back-off, nodes and
  spares are those of any run.
- **The states**: how many sound replicas each group has. In a state, the scenario with so many fixed replicas is
  simulated until it settles, once; a state with fewer than one that misses the SLO misses it too.
- **The windows**: one simulation for each kind of incident and state before it, with the failure in it. It gives the
  time to recover (`hermes.results.figures.incidents`), and the requests that it costs.

An incident that is rarer than 1% takes the window of its kind with the fewest sound replicas before it that is not.

A month is out of the SLO while its state misses it, and from each incident until its window has recovered; what
overlaps counts once. Quiet time with all replicas counts as met if that state keeps the SLO.

Beside it stands a closed form (`hermes.explore.availability.closed_form`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.arrays import IntArray
from hermes.config.writing import scratch_folder
from hermes.config.yaml_document import as_node
from hermes.core.noise import t_quantile
from hermes.core.record import GONE, READY, RunRecord
from hermes.errors import HermesError, InputError, Verbatim
from hermes.explore.availability.closed_form import Rate, k_of_n
from hermes.explore.lengthening import replays
from hermes.explore.objective import Row, missed, need_slo
from hermes.explore.sweep.config import load_sweep
from hermes.explore.sweep.executor import Executor, opened
from hermes.explore.sweep.runner import run_sweep
from hermes.explore.trials import Trials
from hermes.results.figures.incidents import FAR, Incident, sound_from, sound_replicas, timelines
from hermes.results.figures.membership import clients_of, fleet_groups
from hermes.results.figures.waiting import merged
from hermes.results.progress import OnProgress
from hermes.scenario import Scenario, load_scenario, scenario_of
from hermes.scenario.build import build
from hermes.site import page_url
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["DAY_S", "Availability", "State", "Window", "availability"]

DAY_S = 86_400.0
QUIET_S = 240.0         # of a window after the strike, where the state after it keeps the SLO
TAIL_S = 120.0          # of a window after that, or after capacity is back: the minutes that must keep the SLO
WARM_S = 60.0           # of a window before the strike, at least
MOST_REQUESTS = 200_000   # of a window
RARE = 0.01             # of the incidents, below which one takes the window of another state before it
NO_FAILURES = f"missing: failures at random times (`every`); see {page_url('how-to/failures')}"

Counts = tuple[int, ...]   # of each group with a fleet, in order


class State(NamedTuple):
    """Sound replicas of each group. share: Of the time. misses: Of the SLO, in words; None if it is kept."""

    sound: Counts
    share: float
    misses: str | None


@dataclass(frozen=True)
class Window:
    """What an incident does, by a simulation of one.

    Attributes:
        kind: Of the failure. group: Its group. before: Sound replicas of each group before it. hits: Replicas that it
            takes of each.
        count: How many there were in all months.
        back_s: Mean time until capacity was back, of all of them.
        recovered_s: Time to recover; None if the window ended before, or capacity never was back.
        lost, retried, wasted_tokens: Requests that failed or were refused, requests that had another attempt, tokens.
        whole: Whether it lasted until capacity was back.
    """

    kind: str
    group: str
    before: Counts
    hits: Counts
    count: int
    back_s: float
    recovered_s: float | None
    lost: int
    retried: int
    wasted_tokens: int
    whole: bool


@dataclass(frozen=True)
class Availability:
    """The answer.

    Args:
        names: Groups with a fleet, in order. full: Their replicas.
        days, months: Length of a month, and how many were simulated.
        shares: Share of each month within the SLO.
        states, windows: See there; `states` the fullest first.
        incidents: In all months.
        closed: Share within the SLO by the closed form; None where failures are not independent, for the reason `why`.
        rates: What it takes: of each group's failures.
    """

    name: str
    scenario: Scenario
    names: list[str]
    full: Counts
    days: float
    months: int
    shares: list[float]
    states: list[State]
    windows: list[Window]
    incidents: int
    closed: float | None
    why: str
    rates: list[Rate]
    path: Path | None = None
    simulations: int = 0
    left_out: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Mean share within the SLO."""
        return statistics.fmean(self.shares)

    @property
    def half(self) -> float | None:
        """Half of its 95% interval over the months (Student's t); None of one month."""
        if self.months < 2:
            return None
        return t_quantile(self.months) * statistics.stdev(self.shares) / math.sqrt(self.months)

    def a_month(self, name: str) -> float:
        """Return the mean of a count of the windows (`lost`, `retried`, `wasted_tokens`) in a month."""
        return float_sum(one.count * getattr(one, name) for one in self.windows) / self.months


def availability(
    scenario: str | Path | Mapping[str, Any], *, days: float = 30.0, months: int = 20, overrides: Sequence[str] = (),
    workers: int = 1, out: str | Path | None = None, executor: Executor | None = None,
    progress: OnProgress | None = None,
) -> Availability:
    """Find the share of a month in which a scenario keeps its SLO.

    Args:
        days: Length of a month.
        months: How many are simulated; the interval is over them.
        workers, out, executor, progress: As in `hermes.explore.capacity`.

    Raises `InputError` for a scenario without an SLO, without failures at random times, or with replicas that something
    else than failures changes.
    """
    checked = load_scenario(scenario, list(overrides))
    need_slo(checked)
    base = _Base(checked)
    record = build(base.quiet(days * months)).run()
    found, names = timelines(record), list(fleet_groups(record))
    length = round(days * DAY_S * NS_PER_S)
    timeline = _Timeline(record, months * length)
    groups = {replica: name for name, members in fleet_groups(record).items()
              for replica in clients_of(record, members)}
    keyed = [(_key(timeline, groups, one), one) for one in found]
    with scratch_folder(out) as folder, opened(executor, workers) as doing:
        states = _states(base, timeline, folder / "states", doing, progress)
        if states[timeline.full] is not None:
            raise InputError(Verbatim(f"the SLO is missed with all replicas up: {states[timeline.full]}"), field="slo")
        windows = _windows(base, timeline, keyed, states, folder / "windows", doing)
    shares = [1.0 - part for part in _out_shares(timeline, keyed, states, windows, length, months)]
    rates = base.rates(record, found)
    closed, why = k_of_n(names, timeline.full, rates, {counts: miss is None for counts, miss in states.items()}, {
        (one.kind, one.group, one.before): one.recovered_s or 0.0 for one in windows.values()})
    shown = [State(counts, timeline.share(counts), miss) for counts, miss in states.items() if counts in timeline.seen]
    return Availability(
        checked.title, checked, names, timeline.full, days, months, shares,
        sorted(shown, key=lambda one: one.sound, reverse=True), list(windows.values()), len(found), closed, why, rates,
        None if out is None else Path(out), len(states) + len(windows), base.left_out)


class _Base:
    """The scenario's document, and those made of it."""

    def __init__(self, checked: Scenario) -> None:
        node = checked.source.node
        assert node is not None
        self.checked, self.document = checked, dict(node.plain())
        self.clients: list[dict[str, Any]] = [dict(one) for one in self.document["clients"]]
        self.left_out: list[str] = []
        self.steady: Row = {}   # figures of the fullest state
        self.fleets: dict[str, int] = {}
        for place, config in enumerate(checked.clients):
            if fleet := config.value_of("fleet"):
                self.fleets[config.name] = place
                self._check(place, fleet)
        if not any(failure.every for _, failure in self._failures()):
            raise InputError(Verbatim(NO_FAILURES), field="clients.fleet.failures")
        if any(replays(workload) for workload in checked.workload):
            raise InputError(Verbatim("a trace that ends has no month; write `repeat: true`"), field="workload")

    def _check(self, place: int, fleet: Any) -> None:   # Any: a `FleetConfig`, which this folder does not import
        field = f"clients.{place}.fleet"
        if fleet.autoscaler.value_of("kind") != "static" or self.checked.autoscalers:
            raise InputError(Verbatim("its number of replicas follows the load, which a quiet month has not; leave it "
                                      "out, or take `hermes run`"), field=f"{field}.autoscaler")
        for number, failure in enumerate(fleet.failures):
            if failure.every is not None and failure.kind == "straggler":
                raise InputError(Verbatim("a slow replica is not lost, so no number of replicas stands for it; take "
                                          "`hermes run`"), field=f"{field}.failures.{number}")
            if failure.every is not None and failure.kind == "zone" and failure.zone is None:
                raise InputError(Verbatim("each zone fails, and one of them is simulated: write an entry for each "
                                          "zone, with its name"), field=f"{field}.failures.{number}.zone")
        timed = bool(fleet.crashes or fleet.updates) or any(failure.at is not None for failure in fleet.failures)
        self.left_out += [self.checked.clients[place].name] if timed else []

    def _failures(self) -> list[tuple[str, Any]]:   # Any: a `Failure`
        return [(name, failure) for name, place in self.fleets.items()
                for failure in self.checked.clients[place].fleet.failures if failure.every is not None]

    def rates(self, record: RunRecord, found: Sequence[Incident]) -> list[Rate]:
        """Return the failures of each group, with the mean time until a replica that they hit is sound again."""
        each = clients_of(record, range(len(record.clients)))
        out = []
        for name, failure in self._failures():
            config = self.checked.clients[self.fleets[name]]
            own = clients_of(record, fleet_groups(record)[name])
            mine = [one for one in found if one.kind == failure.kind and one.clients[0] in own]
            downs = [down for one in mine for replica in one.clients
                     if (down := _down_s(record, each[replica][0], one)) is not None]
            devices = sum(record.clients[client].num_devices for client in next(iter(own.values())))
            number = devices if config.serves_llm else 1
            out.append(Rate(name, failure.kind, number / failure.every.mean, float_sum(downs) / max(len(downs), 1),
                            any(len(one.clients) > 1 for one in mine)))
        return out

    def _with_fleets(self, change: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the clients with other keys of their fleets."""
        out = [dict(one) for one in self.clients]
        for name, keys in change.items():
            own = out[self.fleets[name]]
            out[self.fleets[name]] = {**own, "fleet": {**own["fleet"], "crashes": [], "updates": [], **keys}}
        return out

    def quiet(self, days: float) -> Scenario:
        """Return the scenario without requests, for so many days."""
        first = self.document["workload"]
        first = dict(first[0] if isinstance(first, list) else first)
        for key in ("requests", "patience", "retry", "max_in_flight"):
            first.pop(key, None)
        seconds = days * DAY_S
        # the first request would come a second after the end
        first |= {"start": seconds - 1, "duration": 1, "arrivals": {"kind": "uniform", "rate": 0.5, "spread": 0},
                  "lengths": {"kind": "fixed", "prompt": 16, "output": 1}}
        changes = {name: {"failures": [one for one in self.clients[place]["fleet"].get("failures", ())
                                       if "every" in one]} for name, place in self.fleets.items()}
        document = {key: value for key, value in self.document.items() if key not in ("slo", "measure", "horizon")}
        return scenario_of(as_node({**document, "workload": first, "clients": self._with_fleets(changes)}),
                           self.checked.source.base_dir)

    def fixed(self, counts: Counts) -> dict[str, Any]:
        """Return settings of so many fixed replicas."""
        out = [dict(one) for one in self.clients]
        for place, count in zip(self.fleets.values(), counts, strict=True):
            out[place] = {key: value for key, value in out[place].items() if key != "fleet"} | {"count": count}
        return {"clients": out}

    def struck(self, group: str, kind: str, before: Counts, at_s: float, until_s: float) -> dict[str, Any]:
        """Return settings of a window."""
        changes: dict[str, dict[str, Any]] = {}
        for (name, place), count in zip(self.fleets.items(), before, strict=True):
            mine = self.clients[place]["fleet"].get("failures", ()) if name == group else ()
            failure = next((one for one in mine if "every" in one and one["kind"] == kind), None)
            once = []
            if failure is not None:   # of a zone no replica is named
                one = {} if kind == "zone" else {"replica": min(failure.get("replica", 0), count - 1)}
                once = [{**{key: value for key, value in failure.items() if key != "every"}, "at": at_s, **one}]
            changes[name] = {"start": count, "failures": once}
        several = isinstance(self.document["workload"], list)
        out: dict[str, Any] = {"clients": self._with_fleets(changes)}
        for number in range(len(self.checked.workload)):
            path = f"workload.{number}" if several else "workload"
            out |= {f"{path}.requests": None, f"{path}.duration": until_s}
        return out


class _Timeline:
    """The sound replicas of all groups over the months. end_ns: Their end; a record without a request has none."""

    def __init__(self, record: RunRecord, end_ns: int) -> None:
        self.end_ns = end_ns
        each = [sound_replicas(record, members) for members in fleet_groups(record).values()]
        self.times = np.unique(np.concatenate([[0], *(times for times, _ in each)]))
        self.times = self.times[self.times < self.end_ns]
        columns = [sound[np.searchsorted(times, self.times, side="right") - 1] for times, sound in each]
        self.sound: list[Counts] = [tuple(row) for row in np.stack(columns, axis=1).tolist()]
        self.full = self.sound[0]
        self.lasts: IntArray = np.diff(np.append(self.times, self.end_ns))
        self.seen = {counts for counts, lasts in zip(self.sound, self.lasts.tolist(), strict=True) if lasts}

    def share(self, counts: Counts) -> float:
        """Return the share of time in a state."""
        mine = [lasts for now, lasts in zip(self.sound, self.lasts.tolist(), strict=True) if now == counts]
        return float_sum(mine) / self.end_ns

    def around(self, time_ns: int) -> tuple[Counts, Counts]:
        """Return the states just before a time, and from it on."""
        place = int(np.searchsorted(self.times, time_ns, side="right")) - 1
        return self.sound[max(place - (self.times[place] == time_ns), 0)], self.sound[place]


def _states(base: _Base, timeline: _Timeline, folder: Path, executor: Executor, progress: OnProgress | None
            ) -> dict[Counts, str | None]:
    """Return what each state that occurs misses of the SLO, None if it keeps it: the fullest first, until one misses.
    """
    trials = Trials(f"availability {base.checked.title}", base.checked, folder, executor, progress)
    out: dict[Counts, str | None] = {}
    for counts in sorted(timeline.seen, key=lambda one: (-sum(one), one)):
        worse = next((miss for known, miss in out.items() if miss is not None
                      and all(mine <= theirs for mine, theirs in zip(counts, known, strict=True))), None)
        if worse is None and 0 not in counts:
            row = trials.run({_label(counts): (base.fixed(counts), base.checked.seed)})[_label(counts)]
            worse = missed(row)
            base.steady = base.steady or row
        out[counts] = "no replica" if 0 in counts else worse
    return out


def _label(counts: Counts) -> str:
    return " and ".join(map(str, counts)) + " replicas"


def _down_s(record: RunRecord, client: int, one: Incident) -> float | None:
    """Return how long a replica that an incident hit is not sound; None if it was not before, or is not yet. One that
    is replaced in another slot is so until capacity is back."""
    rows = record.membership[(record.membership[:, 0] == client)]
    before = rows[rows[:, 2] < one.at_ns]
    if not len(before) or before[-1, 3] != READY:
        return None
    sound = sound_from(record, client, one.at_ns)
    gone = rows[(rows[:, 2] >= one.at_ns) & (rows[:, 3] == GONE), 2].min(initial=sound)
    if gone < sound:
        return one.back_s
    return None if sound >= FAR else (sound - one.at_ns) / NS_PER_S


Key = tuple[str, str, Counts, Counts]   # kind, group, state before, replicas that it takes


def _key(timeline: _Timeline, groups: Mapping[str, str], one: Incident) -> Key:
    """Return what decides about the window of an incident. groups: Of each client."""
    before, after = timeline.around(one.at_ns)
    hits = tuple(first - then for first, then in zip(before, after, strict=True))
    return one.kind, groups[one.clients[0]], before, hits


def _windows(base: _Base, timeline: _Timeline, keyed: Sequence[tuple[Key, Incident]],
             states: Mapping[Counts, str | None], folder: Path, executor: Executor) -> dict[Key, Window]:
    """Simulate each window once."""
    by_key: dict[Key, list[float]] = {}
    for key, one in keyed:
        if sum(key[3]) > 0:   # of a replica that starts, nothing is lost
            rest_s = (timeline.end_ns - one.at_ns) / NS_PER_S
            by_key.setdefault(key, []).append(rest_s if one.back_s is None else one.back_s)
    rare = {key for key, backs in by_key.items() if len(backs) < RARE * len(keyed)
            and any(other[:2] == key[:2] and len(more) >= RARE * len(keyed) for other, more in by_key.items())}
    for key in rare:
        other = min((one for one in by_key if one[:2] == key[:2] and one not in rare), key=lambda one: one[2])
        by_key[other] += by_key.pop(key)
    if not by_key:
        return {}
    warm_s = max(WARM_S, base.steady.get("headline.start_s") or 0.0)
    most_s = MOST_REQUESTS / max(base.steady.get("headline.offered_per_s") or 1.0, 1e-9)
    cases, lasts = [], {}
    for number, (key, backs) in enumerate(by_key.items()):
        kind, group, before, hits = key
        after = tuple(first - gone for first, gone in zip(before, hits, strict=True))
        back_s = statistics.fmean(backs)
        lasts[key] = min(back_s, most_s, QUIET_S if states.get(after) is None else back_s)
        settings = base.struck(group, kind, before, warm_s, warm_s + lasts[key] + TAIL_S)
        cases.append({"label": f"{number}: {kind} of {group}, {_label(before)}", "set": settings,
                      "seed": base.checked.seed})
    sweep = load_sweep({"name": f"windows of {base.checked.title}", "scenario": {}, "cases": cases})
    node = base.checked.source.node
    assert node is not None
    done = run_sweep(replace(sweep, base=node, base_dir=base.checked.source.base_dir), folder, executor=executor,
                     table=False)
    out = {}
    for number, (key, backs) in enumerate(by_key.items()):
        row, back_s = done.outcome(number), statistics.fmean(backs)
        assert row is not None
        if row["status"] != "ok":
            raise HermesError(f"{cases[number]['label']}: {row['reason']}")
        lost, retried, wasted = (int(row.get(f"incidents.{name}") or 0) for name in (
            "requests_failed", "retried", "wasted_tokens"))
        out[key] = Window(*key, len(backs), back_s, row.get("incidents.recovered_s"),
                          lost + int(row.get("incidents.requests_refused") or 0), retried, wasted,
                          lasts[key] >= back_s)
    return out


def _out_shares(timeline: _Timeline, keyed: Sequence[tuple[Key, Incident]], states: Mapping[Counts, str | None],
                windows: Mapping[Key, Window], length_ns: int, months: int) -> list[float]:
    """Return the share of each month out of the SLO."""
    spans = [(time, time + lasts) for time, lasts, counts in zip(
        timeline.times.tolist(), timeline.lasts.tolist(), timeline.sound, strict=True) if states.get(counts)]
    for key, one in keyed:
        window = None if not sum(key[3]) else windows.get(key) or min(
            (known for name, known in windows.items() if name[:2] == key[:2]), key=lambda known: known.before)
        if window is not None:
            lasts_s = window.recovered_s
            if lasts_s is None:   # it did not recover before capacity was back
                lasts_s = window.back_s if one.back_s is None else one.back_s
            spans.append((one.at_ns, one.at_ns + round(lasts_s * NS_PER_S)))
    begin, end = merged(*np.array([span for span in spans if span[1] > span[0]], dtype=np.int64).reshape(-1, 2).T)
    edges = [number * length_ns for number in range(months + 1)]
    return [int(np.clip(np.minimum(end, high) - np.maximum(begin, low), 0, None).sum()) / length_ns
            for low, high in pairwise(edges)]
