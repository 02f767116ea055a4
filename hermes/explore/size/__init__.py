"""The fewest devices that serve a load within an SLO: by device, parallelism and layout.

A *layout* is a kind of client (so many devices of a kind, and how they share the model: `hermes.explore.size.layouts`)
and how the clients share the work: `mixed`, each serves prompts and answers, or `pd`, some prefill and the others
decode. Each layout is searched for the fewest clients that meet the SLO, all layouts side by side:

- mixed: the search (`hermes.explore.bracket`) begins at a closed-form lower bound (`hermes.explore.size.bounds`), or
  else at one client, which shows how much it serves when it is overloaded.
- pd: the mixed answer, split by the share of its time in steps with prompts. What misses gets a client more: the side
  whose queue grows, prefill for the TTFT, decode for the TPOT. Once the SLO is met, a client less is tried on each
  side.

Layouts that must cost more than the answer are not searched to the end (branch and bound): the search of a layout goes
on while what it may cost at least, by the closed form and by what misses for certain, is at most `NEAR` times the cost
of the cheapest layout that meets the SLO. What is left has that bound in the answer.

A simulation counts only if it has settled (`hermes.results.figures.settling`); it is lengthened until it has. At last
the cheapest layout is checked (`hermes.explore.size_check`): other seeds, longer arrivals, and one client less.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hermes.config.data_files import Kept, kept_within
from hermes.config.writing import scratch_folder
from hermes.config.yaml_document import as_node
from hermes.errors import InputError, InputWarning, inside
from hermes.explore.certain_miss import BY_FAR
from hermes.explore.lengthening import MOST_REQUESTS, arrivals_of
from hermes.explore.objective import Row, missed, need_fixed_clients, need_slo, settled
from hermes.explore.size.bounds import demand_of, fewest_clients, fewest_split
from hermes.explore.size.headroom import MOST_LOADS, headroom_of
from hermes.explore.size.layouts import (
    ANY,
    NO_ROLES,
    Kind,
    Left,
    Splits,
    candidates,
    changes,
    is_mixture,
    llm_of,
    own_of,
)
from hermes.explore.size.numbers import Numbers, Search, least_split, mixed, split
from hermes.explore.size.own_layout import OwnLayout, as_composed, run_own
from hermes.explore.size.size_range import StepRange, of_others, simulated, with_range
from hermes.explore.size.spare import AsItHappens, Loss, as_it_happens
from hermes.explore.size_check import SEEDS, Check, check_answer, misses_by_far, with_longer
from hermes.explore.sweep.executor import Executor, opened
from hermes.explore.trials import Trials
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.files import shipped_name
from hermes.hardware.info import hardware_info
from hermes.results import Results
from hermes.results.progress import OnProgress
from hermes.scenario import Scenario, scenario_of
from hermes.scenario.build import build
from hermes.scenario.loading import overridden
from hermes.scenario.starts import check_starts
from hermes.units import counted

__all__ = ["LAYOUTS", "Dearer", "Found", "Kind", "Left", "Sizing", "Tried", "changes", "hourly", "size"]

LAYOUTS = ("mixed", "pd")
NEAR = 1.15           # of the least cost, up to which layouts are searched to the end
# simulations, as a rule: after the check (headroom, longer runs, range), of the check, and of the search of a layout
USUAL_LATER, USUAL_CHECK, USUAL_MIXED, USUAL_PD = MOST_LOADS + SEEDS, 3 * SEEDS, 3, 4
LENGTH = 6.5   # p99s of the answers' time: 5 after the warm-up


@dataclass(frozen=True)
class Tried:
    """One simulation.

    Args:
        clients: Number of clients; of a pd layout (prefill, decode).
        misses: What it misses, or None.
        seed: Of the simulation; None for the scenario's.
        length: How many times as long as the scenario's own its arrivals are.
    """

    kind: Kind
    clients: tuple[int, ...]
    misses: str | None
    row: Row
    seed: int | None = None
    length: float = 1.0

    @property
    def devices(self) -> int:
        return self.kind.devices * sum(self.all_clients)

    @property
    def spares(self) -> tuple[int, ...]:
        """Clients of each side that the simulation leaves out, and the answer has: of one loss (`--spare`)."""
        return tuple(self.kind.spares(count) for count in self.clients)

    @property
    def all_clients(self) -> tuple[int, ...]:
        """Clients of each side, spares included."""
        return tuple(count + more for count, more in zip(self.clients, self.spares, strict=True))

    @property
    def layout(self) -> str:
        return "mixed" if len(self.clients) == 1 else "pd"

    @property
    def label(self) -> str:
        each = [f"{one}+{more}" if more else f"{one}" for one, more in zip(self.clients, self.spares, strict=True)]
        return f"{each[0]} x {self.kind.name}" if len(each) == 1 else f"{each[0]}P/{each[1]}D {self.kind.name}"


@dataclass(frozen=True)
class Found:
    """The answer of one layout: the fewest clients that meet the SLO, or what the most allowed still miss."""

    kind: Kind
    layout: str
    best: Tried | None
    tried: list[Tried]


@dataclass(frozen=True)
class Dearer:
    """A layout that was not searched to the end: it must cost more than the answer.

    Args:
        clients: Fewest clients that might meet the SLO; infinite if no number can.
    """

    kind: Kind
    layout: str
    clients: float
    tried: list[Tried]

    @property
    def cost(self) -> float:
        """Dollars per hour at least, without clients of other kinds; devices where they have no price."""
        return _cost(self.kind, self.clients, self.layout)


@dataclass(frozen=True)
class Sizing:
    """The answers of all layouts.

    Args:
        document: The scenario that each layout's clients are put into.
        headroom: How much more load the cheapest layout takes, relative, in steps of 1%.
        check: What longer simulations with other seeds say of the cheapest layout.
        path: Folder of the simulations, a sweep; None if they were not kept.
        assumed: Links that nobody named, one line each.
        remarks: Kind of client -> what to know of its times: properties with which none were compared.
        steps: The cheapest layout with step times at the ends of their range; None where it is not known.
        others: The cheapest layout of each other ranked device, with how far its step times are trusted.
        dearer: The layouts that were not searched to the end, by what they cost at least.
        loss: For which the layouts have spares. happens: What one does to the cheapest layout, until routers know it.
        run: The cheapest layout simulated in full, with its scenario: for its step times and the defaults behind it.
        own: The scenario as written, under its own hardware model and the one of all layouts; None if they are one.
    """

    name: str
    scenario: Scenario
    document: dict[str, Any]
    found: list[Found]
    left: list[Left]
    headroom: float | None = None
    check: Check | None = None
    path: Path | None = None
    assumed: list[str] = field(default_factory=list)
    remarks: dict[Kind, list[str]] = field(default_factory=dict)
    run: tuple[Scenario, Results] | None = None
    own: OwnLayout | None = None
    steps: StepRange | None = None
    others: list[tuple[Tried, StepRange | None]] = field(default_factory=list)
    dearer: list[Dearer] = field(default_factory=list)
    loss: Loss | None = None
    happens: AsItHappens | None = None

    @property
    def ranked(self) -> list[Tried]:
        """Return the best of every layout that meets the SLO and whose devices have a price, cheapest first; of those
        that cost the same, tensor parallelism alone, and mixed before pd."""
        priced = [(dollars, tried) for tried in self._best() if (dollars := hourly(tried)) is not None]
        return [tried for _, tried in sorted(priced, key=lambda one: (one[0], *_fewest(one[1])))]

    @property
    def as_cheap(self) -> list[Tried]:
        """Return the other layouts that cost as much as the cheapest one."""
        return [tried for tried in self.ranked[1:] if hourly(tried) == hourly(self.ranked[0])]

    @property
    def unpriced(self) -> list[Tried]:
        """Return the best of every layout that meets the SLO and whose devices have no price, by devices: nothing says
        which of them costs least, nor whether one costs less than those that are ranked."""
        return sorted((tried for tried in self._best() if hourly(tried) is None), key=_fewest)

    @property
    def meets(self) -> list[Tried]:
        """Return the best of every layout that meets the SLO: the ranked ones, then those without a price."""
        return [*self.ranked, *self.unpriced]

    def _best(self) -> list[Tried]:
        return [found.best for found in self.found if found.best is not None]

    @property
    def tried(self) -> list[Tried]:
        several = [*(found.tried for found in self.found), *(one.tried for one in self.dearer)]
        return [tried for one in several for tried in one]

    @property
    def settled(self) -> bool:
        """Whether any simulation is long enough for a verdict."""
        return any(settled(tried.row) for tried in self.tried)

    def settings(self, tried: Tried) -> dict[str, Any]:
        """Return the scenario's document with the clients of a layout, and the seed and requests of its simulation."""
        document = {**self.document, **changes(self.document["clients"], tried.kind, tried.clients)}
        if tried.seed is not None:
            document["seed"] = tried.seed
        longer = arrivals_of(self.scenario).settings({}, tried.length)
        return overridden(as_node(document), longer, self.scenario.source.base_dir).plain()  # type: ignore[no-any-return]


def _cost(kind: Kind, clients: float, layout: str) -> float:
    sides = 1 if layout == "mixed" else 2
    return (clients + sides * kind.spares(clients / sides)) * kind.devices * (kind.price or 1.0)


def _fewest(tried: Tried) -> tuple[int, int, int, str]:
    """Return what layouts without a difference in price are ordered by."""
    return tried.devices, tried.kind.pp * tried.kind.dp + tried.kind.ep, len(tried.clients), tried.label


def hourly(tried: Tried) -> float | None:
    """Return the dollars per hour of all clients; None if the price of the layout's devices is unknown."""
    price, dollars = tried.kind.price, tried.row.get("cost.dollars_per_hour")
    if price is None or dollars is None:
        return None
    return float(dollars) + sum(tried.spares) * tried.kind.devices * price


def size(
    document: Mapping[str, Any], *, base_dir: str | Path = ".", devices: Sequence[str],
    tps: Sequence[int] = (1, 2, 4, 8), layouts: Sequence[str] = LAYOUTS, max_devices: int = 64, workers: int = 1,
    out: str | Path | None = None, executor: Executor | None = None, progress: OnProgress | None = None,
    prices: Mapping[str, float] | None = None, splits: Splits = ANY, loss: Loss | None = None,
) -> Sizing:
    """Find the fewest devices, for each device, parallelism and layout, with which a scenario meets its SLO.

    Args:
        document: A scenario with one group of LLM clients, whose model, memory and scheduler all layouts keep; clients
            of other kinds stay as they are.
        base_dir: Folder that its paths are relative to.
        devices: Names or files of devices.
        tps: Devices that share every layer.
        layouts: "mixed", "pd".
        max_devices: Most devices of a layout.
        workers, out, executor, progress: As in `hermes.explore.capacity`.
        prices: Dollars per hour of one device, by its name in `devices`. Left out, the scenario's for the device that
            it names, else the description's.
        splits: Stages, ranks and experts to try (`hermes.explore.size.layouts.candidates`).
        loss: Each layout has spares for it (`hermes.explore.size.spare`).

    Raises `InputError` for a scenario without an SLO, and if no kind of client can serve the model.
    """
    own, folder_of = dict(document), Path(base_dir)
    need_fixed_clients(client.get("fleet") for client in own["clients"])
    base, prices = as_composed(own, folder_of), {_named(name): dollars for name, dollars in (prices or {}).items()}
    devices = list(dict.fromkeys(_named(name) for name in devices))
    unknown = next((name for name in prices if name not in devices), None)
    if unknown is not None:
        raise InputError(f"a price of one of the devices {', '.join(devices)}", unknown, field="--price")
    priced = [(device, *_price(device, base["clients"], prices, Path(base_dir))) for device in devices]
    tried = candidates(tps, splits, is_mixture(llm_of(base["clients"]), folder_of))
    every = [Kind(device, split.tp, dollars, given, split.pp, split.dp, split.ep, loss)
             for device, dollars, given in priced for split in tried]
    asked = [kind for kind in every if kind.most(max_devices) and (kind.has_roles or "mixed" in layouts)]
    if not asked:
        least = min((1 + kind.spares(1)) * kind.devices for kind in every)
        raise InputError(f"at least {counted(least, 'device')}, those of one client{' and its spares' if loss else ''}",
                         max_devices, field="max_devices")
    models: Kept = {}
    with kept_within(models):
        left, checked, starts, known = _kinds(base, Path(base_dir), asked)
    left = [*left, *_not_asked(every, starts, layouts, max_devices)]
    with (scratch_folder(out) as folder, warnings.catch_warnings(), kept_within(models),
          opened(executor, workers) as doing):
        for text in known.links:   # the answer lists them
            warnings.filterwarnings("ignore", re.escape(text).join((".*", ".*")), InputWarning)
        trials = Trials(f"size {checked.title}", checked, folder, doing, progress)
        trials.length = max([1.0, *(start.length for start in starts.values())])
        searches = _Searches(trials, base["clients"], starts, max_devices, layouts)
        sizing = Sizing(checked.title, checked, base, [], left, path=None if out is None else Path(out),
                        assumed=known.links, remarks=known.remarks, loss=loss)
        sizing = check_answer(trials, sizing, partial(changes, base["clients"]), max_devices,
                              {kind: start.clients for kind, start in starts.items()}, searches.extended)
        sizing = replace(sizing, dearer=searches.dearer())
        trials.left = USUAL_LATER
        if sizing.meets:
            headroom = headroom_of(trials, base["clients"], sizing.meets[0])
            check = with_longer(trials, sizing, partial(changes, base["clients"]), headroom)
            sizing = replace(sizing, headroom=headroom, check=check,
                             run=simulated(sizing.settings(sizing.meets[0]), Path(base_dir)))
            sizing = replace(sizing, steps=with_range(trials, sizing, partial(changes, base["clients"]), max_devices),
                             others=of_others(sizing, partial(changes, base["clients"])))
        sizing = replace(sizing, own=run_own(trials, own, folder_of))
        sizing = replace(sizing, happens=as_it_happens(sizing))
        if out is not None:
            trials.finish()
    return sizing


def _named(device: str) -> str:
    """Return a shipped device's own name for another one of it."""
    return shipped_name("devices", device) or device


def _price(device: str, clients: Sequence[Mapping[str, Any]], prices: Mapping[str, float], base_dir: Path) -> tuple[
        float | None, bool]:
    """Return the dollars per hour of one device, None if unknown, and whether the user gave them for this search."""
    with inside("device"):
        described = load_device(device, base_dir).price_per_hour
    if device in prices:
        return prices[device] or None, True
    own = own_of(llm_of(clients), device).get("price_per_hour")
    return (own if isinstance(own, int | float) else described) or None, False   # what it is else, the scenario says


@dataclass(frozen=True)
class _Start:
    """Where the search of a kind of client begins: a number of clients, and how long the arrivals should be.

    Args:
        fewest, fewest_split: Clients that are needed at least, mixed or prefill and decode together; infinite if no
            number can serve the load.
    """

    clients: int
    length: float
    fewest: float = 1
    fewest_split: float = 2


class _Known(NamedTuple):
    """What to know of the times of the kinds of clients: links that nobody named, and `Sizing.remarks`."""

    links: list[str]
    remarks: dict[Kind, list[str]]


def _not_asked(every: list[Kind], starts: Mapping[Kind, _Start], layouts: Sequence[str], max_devices: int
               ) -> list[Left]:
    """Return the kinds of too many devices, and those that have no roles where layouts with roles are asked for."""
    least = {kind: counted((1 + kind.spares(1)) * kind.devices, "device") for kind in every}
    left = [Left(kind, f"a client{' and spares' if kind.loss else ''} has {least[kind]}, more than --max-devices "
                       f"{max_devices}") for kind in every if not kind.most(max_devices)]
    return left + [Left(kind, NO_ROLES, "pd") for kind in every if "pd" in layouts and not kind.has_roles
                   and (kind in starts or ("mixed" not in layouts and kind.devices <= max_devices))]


def _kinds(base: dict[str, Any], base_dir: Path, asked: list[Kind]
           ) -> tuple[list[Left], Scenario, dict[Kind, _Start], _Known]:
    """Return the kinds that cannot serve the model, a checked scenario, where the others begin, and what is known."""
    left: list[Left] = []
    starts: dict[Kind, _Start] = {}
    assumed: dict[str, None] = {}
    remarks: dict[Kind, list[str]] = {}
    checked: Scenario | None = None
    refused: list[InputError] = []
    for kind in asked:
        try:
            scenario = scenario_of(as_node({**base, **changes(base["clients"], kind, (1,))}), base_dir)
            clients = build(scenario).clients
            check_starts(scenario)
        except InputError as error:
            refused.append(error)
            left.append(Left(kind, str(error)))
            continue
        starts[kind] = _start(scenario)
        checked = checked or scenario
        infos = [hardware_info(client.hardware) for client in clients if hasattr(client, "hardware")]
        assumed |= dict.fromkeys(link.text for info in infos for link in info.assumed_links)
        said = list(dict.fromkeys(remark for info in infos for remark in info.remarks()))
        if said:
            remarks[kind] = said
    if checked is None:
        raise min(refused, key=_lacks)
    need_slo(checked)
    return left, checked, starts, _Known(list(assumed), remarks)


def _lacks(error: InputError) -> float:
    """Return how many bytes of memory a refused client lacks; infinite if it lacks something else."""
    found = error.found if (error.field or "").endswith("memory.capacity") else None
    return float(found) if isinstance(found, int) else math.inf


def _start(scenario: Scenario) -> _Start:
    """Begin at the closed-form bound, with arrivals that let the longest answers settle; else at one client."""
    demand = demand_of(scenario)
    if demand is None:
        return _Start(1, 1.0)
    split = fewest_split(demand) or math.inf
    bound = fewest_clients(demand)
    if bound is None:
        return _Start(1, 1.0, math.inf, split)
    clients, state = bound
    needed_s = LENGTH * demand.long_output * state.token_s
    most = MOST_REQUESTS / max(demand.rate * demand.arrivals_s, 1.0)
    return _Start(clients, max(1.0, min(needed_s / demand.arrivals_s, most)), clients, split)


class _Searches:
    """The searches of all layouts, side by side; those of pd begin when mixed has an answer."""

    def __init__(self, trials: Trials, clients: Sequence[Mapping[str, Any]], starts: Mapping[Kind, _Start],
                 max_devices: int, layouts: Sequence[str]) -> None:
        self._trials, self._clients, self._starts = trials, clients, starts
        self._max_devices, self._layouts = max_devices, layouts
        self._running = {(kind, "mixed"): _Running(kind, mixed(kind.most(max_devices), start.clients))
                         for kind, start in starts.items()}

    def extended(self, sizing: Sizing) -> Sizing:
        """Return the answers with those of all layouts that may cost at most `NEAR` times the cheapest one."""
        while wanted := self._open(sizing):
            # steps of stages are simulated one by one: those wait for the length that the others needed, and their cost
            self._simulate({key: one for key, one in wanted.items() if key[0].pp == 1} or wanted)
            sizing = replace(sizing, found=[*sizing.found, *self._ended()])
        return sizing

    def dearer(self) -> list[Dearer]:
        """Return the layouts whose searches did not go on."""
        left = [Dearer(kind, served, clients, one.tried if served == layout else [])
                for (kind, layout), one in self._running.items() for served, clients in self._bounds(layout, one)]
        return sorted(left, key=lambda one: (one.kind.price is None, one.cost))

    def _open(self, sizing: Sizing) -> dict[tuple[Kind, str], _Running]:
        """Return the searches that go on; the cheapest ones while no layout meets the SLO."""
        out: dict[tuple[Kind, str], _Running] = {}
        for priced in (True, False):   # nothing says what those without a price cost beside the others
            mine = {key: min(_cost(key[0], clients, layout) for layout, clients in self._bounds(key[1], one))
                    for key, one in self._running.items() if (key[0].price is not None) == priced}
            meets = [tried.devices * (tried.kind.price or 1.0) for tried in sizing.meets
                     if (tried.kind.price is not None) == priced]
            least = min(meets or mine.values(), default=0.0)
            out |= {key: self._running[key] for key, cost in mine.items() if cost <= NEAR * least}
        return out

    def _bounds(self, layout: str, one: _Running) -> list[tuple[str, float]]:
        """Return the layouts that wait for a search, with the fewest clients that may meet the SLO in each."""
        start = self._starts[one.kind]
        fewest = max(start.fewest, *(sum(tried.clients) + 1 for tried in one.tried if misses_by_far(tried.row)), 1)
        out = [("mixed", fewest)] if layout == "mixed" and "mixed" in self._layouts else []
        pairs = least_split(start.fewest_split, one.tried if layout == "pd" else ())
        return [*out, ("pd", pairs)] if layout == "pd" or self._follows(one.kind) else out

    def _follows(self, kind: Kind) -> bool:
        """Whether a search of pd follows that of mixed."""
        return "pd" in self._layouts and kind.has_roles and kind.most(self._max_devices, 2) >= 2

    def _simulate(self, wanted: Mapping[tuple[Kind, str], _Running]) -> None:
        trials, seed = self._trials, self._trials.scenario.seed
        trials.left = USUAL_CHECK + USUAL_LATER + sum(
            _usual_left(one, layout, self._max_devices, self._layouts) for (_, layout), one in wanted.items())
        labels = {one.label(one.wanted): one for one in wanted.values()}
        rows = trials.run({label: (changes(self._clients, one.kind, one.wanted), seed)
                           for label, one in labels.items()}, until_missed=BY_FAR)
        for label, one in labels.items():
            one.learn(rows[label], trials.lengths[label])

    def _ended(self) -> list[Found]:
        """Return the answers of the searches that are over, and begin those that follow."""
        out = []
        for (kind, layout), one in list(self._running.items()):
            if not one.over:
                continue
            del self._running[kind, layout]
            if layout in self._layouts:
                out.append(Found(kind, layout, one.best, one.tried))
            if layout == "mixed" and self._follows(kind):
                self._running[kind, "pd"] = _Running(
                    kind, split(one.best or one.tried[-1], kind.most(self._max_devices, 2)))
        return out


def _usual_left(one: _Running, layout: str, max_devices: int, layouts: Sequence[str]) -> int:
    """Return how many simulations a search still makes as a rule, those of pd after it included."""
    if layout == "pd":
        return max(USUAL_PD - len(one.tried), 1)
    clients = max_devices // one.kind.devices
    follows = USUAL_PD if "pd" in layouts and one.kind.has_roles and clients >= 2 else 0
    return max(min(clients, USUAL_MIXED) - len(one.tried), 1) + follows


@dataclass
class _Running:
    """A search under way."""

    kind: Kind
    search: Search
    tried: list[Tried] = field(default_factory=list)
    best: Tried | None = None
    over: bool = False
    wanted: Numbers = ()

    def __post_init__(self) -> None:
        self.wanted = next(self.search)

    def label(self, numbers: Numbers) -> str:
        return Tried(self.kind, numbers, None, {}).label

    def learn(self, row: Row, length: float) -> None:
        tried = Tried(self.kind, self.wanted, missed(row), row, length=length)
        self.tried.append(tried)
        try:
            self.wanted = self.search.send(tried)
        except StopIteration as end:
            self.best, self.over = end.value, True
