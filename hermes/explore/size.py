"""The fewest devices that serve a load within an SLO: by device, tensor parallelism and layout.

A *layout* is a kind of client (so many devices of a kind) and how the clients share the work: `mixed`, each serves
prompts and answers, or `pd`, some prefill and the others decode. Each layout is searched for the fewest clients that
meet the SLO, all layouts side by side:

- mixed: one client shows how much it serves when it is overloaded; the search (`hermes.explore.bracket`) goes on from
  the number of clients that this makes.
- pd: the mixed answer, split by the share of its time in steps with prompts. What misses gets a client more: the side
  whose queue grows, prefill for the TTFT, decode for the TPOT. Once the SLO is met, a client less is tried on each
  side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hermes.config.yaml_document import as_node
from hermes.errors import InputError, inside
from hermes.explore.bracket import Bracket
from hermes.explore.capacity import RATIO, Trials, axis_of
from hermes.explore.executor import Executor, executor
from hermes.explore.objective import missed, need_slo
from hermes.hardware.devices import load_device
from hermes.scenario import Scenario, scenario_of
from hermes.scenario.build import build

__all__ = ["LAYOUTS", "Found", "Kind", "Left", "Sizing", "Tried", "hourly", "size"]

LAYOUTS = ("mixed", "pd")
MORE = 1.25           # clients after a miss, as a factor
OVERLOADED = 0.8      # served rate of the whole run, drain included, over the offered one, below which clients are full
MOST_PD = 16          # simulations of a pd layout
STRIDE, MOST_LOADS = 4, 8   # of the search for the headroom
LINK = {"kind": "link", "bandwidth": "50 GB/s"}   # between clients of a pd layout: a 400 Gb/s port

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of client: `tp` devices."""

    device: str
    tp: int

    @property
    def name(self) -> str:
        return f"{self.device} TP{self.tp}"


@dataclass(frozen=True)
class Tried:
    """One simulation.

    Args:
        clients: Number of clients; of a pd layout (prefill, decode).
        misses: What it misses, or None.
    """

    kind: Kind
    clients: tuple[int, ...]
    misses: str | None
    row: Row

    @property
    def devices(self) -> int:
        return self.kind.tp * sum(self.clients)

    @property
    def layout(self) -> str:
        return "mixed" if len(self.clients) == 1 else "pd"

    @property
    def label(self) -> str:
        if len(self.clients) == 1:
            return f"{self.clients[0]} x {self.kind.name}"
        return f"{self.clients[0]}P/{self.clients[1]}D {self.kind.name}"


@dataclass(frozen=True)
class Found:
    """The answer of one layout: the fewest clients that meet the SLO, or what the most allowed still miss."""

    kind: Kind
    layout: str
    best: Tried | None
    tried: list[Tried]


@dataclass(frozen=True)
class Left:
    """A kind of client that cannot serve the model, and why."""

    kind: Kind
    reason: str


@dataclass(frozen=True)
class Sizing:
    """The answers of all layouts, cheapest first.

    Args:
        document: The scenario that each layout's clients are put into.
        headroom: How much more load the cheapest layout takes, relative, in steps of 1%.
        path: Folder of the simulations, a sweep; None if they were not kept.
    """

    name: str
    scenario: Scenario
    document: dict[str, Any]
    found: list[Found]
    left: list[Left]
    headroom: float | None = None
    path: Path | None = None

    @property
    def ranked(self) -> list[Tried]:
        """Return the best of every layout that meets the SLO: by dollars per hour if all have a price, then devices."""
        best = [found.best for found in self.found if found.best is not None]
        priced = all(hourly(tried) is not None for tried in best)
        return sorted(best, key=lambda tried: (hourly(tried) or 0.0 if priced else 0.0, tried.devices, tried.label))

    @property
    def tried(self) -> list[Tried]:
        return [tried for found in self.found for tried in found.tried]

    def settings(self, tried: Tried) -> dict[str, Any]:
        """Return the scenario's document with the clients of a layout."""
        return {**self.document, **changes(self.document["clients"], tried.kind, tried.clients)}


def hourly(tried: Tried) -> float | None:
    """Return the dollars per hour of all devices; None if a price is unknown."""
    rate, price = tried.row.get("headline.output_tokens_per_s"), tried.row.get(
        "headline.per_million_output_tokens_dollars")
    return None if rate is None or price is None else rate * price * 3600 / 1e6


def size(
    document: Mapping[str, Any], *, base_dir: str | Path = ".", devices: Sequence[str],
    tps: Sequence[int] = (1, 2, 4, 8), layouts: Sequence[str] = LAYOUTS, max_devices: int = 64, workers: int = 1,
    out: str | Path | None = None, engine: Executor | None = None, told: Callable[[str], None] | None = None,
) -> Sizing:
    """Find the fewest devices, for each device, parallelism and layout, with which a scenario meets its SLO.

    Args:
        document: A scenario with one group of LLM clients, whose model, memory and scheduler all layouts keep; clients
            of other kinds stay as they are.
        base_dir: Folder that its paths are relative to.
        devices: Names or files of devices.
        tps: Devices of a client.
        layouts: "mixed", "pd".
        max_devices: Most devices of a layout.
        workers, out, engine, told: As in `hermes.explore.capacity`.

    Raises `InputError` for a scenario without an SLO, and if no kind of client can serve the model.
    """
    base = dict(document)
    for device in devices:
        with inside("device"):
            load_device(device, Path(base_dir))
    asked = [Kind(device, tp) for device in devices for tp in tps if tp <= max_devices]
    if not asked:
        raise InputError(f"at least {min(tps)} devices, those of one client", max_devices, field="max_devices")
    kinds, left, checked = _kinds(base, Path(base_dir), asked)
    with (TemporaryDirectory() if out is None else nullcontext(out) as folder,
          closing(executor(workers)) if engine is None else nullcontext(engine) as doing):
        trials = Trials(f"size {checked.name}", checked, Path(folder), doing, told)
        found = _all(trials, base["clients"], kinds, max_devices, layouts)
        sizing = Sizing(checked.name, checked, base, found, left, path=None if out is None else Path(out))
        if sizing.ranked:
            sizing = replace(sizing, headroom=_headroom(trials, base["clients"], sizing.ranked[0]))
        if out is not None:
            trials.finish()
    return sizing


def changes(clients: Sequence[Mapping[str, Any]], kind: Kind, numbers: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys of the scenario that make a layout.

    The hardware of each client is composed for its device (`hardware` left out): a fitted profile is of one device.
    """
    others = [client for client in clients if client.get("kind", "llm") != "llm"]
    llm = next(client for client in clients if client.get("kind", "llm") == "llm")
    own = {**{key: value for key, value in llm.items() if key not in ("name", "count", "role", "devices", "hardware")},
           "device": kind.device, "parallel": {"tp": kind.tp}}
    if len(numbers) == 1:
        return {"clients": [{"name": "llm", "count": numbers[0], **own}, *others]}
    sides = [{"name": role, "role": role, "count": count, **own}
             for role, count in zip(("prefill", "decode"), numbers, strict=True)]
    return {"clients": [*sides, *others], "network": LINK}


def _kinds(base: dict[str, Any], base_dir: Path, asked: list[Kind]) -> tuple[list[Kind], list[Left], Scenario]:
    """Return the kinds that can serve the model, those that cannot, and a checked scenario."""
    kinds, left = [], []
    checked, first = None, None
    for kind in asked:
        try:
            scenario = scenario_of(as_node({**base, **changes(base["clients"], kind, (1,))}), base_dir)
            build(scenario)
        except InputError as error:
            first = first or error
            left.append(Left(kind, str(error)))
            continue
        kinds.append(kind)
        checked = checked or scenario
    if checked is None:
        assert first is not None
        raise first
    need_slo(checked)
    return kinds, left, checked


def _headroom(trials: Trials, clients: Sequence[Mapping[str, Any]], best: Tried) -> float:
    """Search for the highest load that a layout takes, in steps of 1% from its own."""
    axis = axis_of(trials.scenario, "rate")
    bracket = Bracket(0, STRIDE, known={0: True}, confirm=0)
    while (level := bracket.choose()) is not None and len(bracket.known) < MOST_LOADS:
        load = axis.load(level)
        label = f"{best.label} at {load:g} times the load"
        row = trials.run({label: (axis.settings(load) | changes(clients, best.kind, best.clients),
                                  trials.scenario.seed)})[label]
        bracket.known[level] = missed(row) is None
    return RATIO ** (bracket.meets_up_to or 0) - 1.0


Numbers = tuple[int, ...]
Search = Generator[Numbers, Tried, Tried | None]   # yields clients to try, takes the result, returns the best


def _all(trials: Trials, clients: Sequence[Mapping[str, Any]], kinds: Sequence[Kind], max_devices: int,
         layouts: Sequence[str]) -> list[Found]:
    """Run the searches of all layouts side by side; those of pd begin when mixed has an answer."""
    seed = trials.scenario.seed
    running = {(kind, "mixed"): _Running(kind, _mixed(max_devices // kind.tp)) for kind in kinds}
    done: dict[tuple[Kind, str], _Running] = {}
    while running:
        wanted = {f"{one.label(one.wanted)}": one for one in running.values()}
        rows = trials.run({label: (changes(clients, one.kind, one.wanted), seed) for label, one in wanted.items()})
        for label, one in wanted.items():
            one.learn(rows[label])
        for key, one in list(running.items()):
            if one.over:
                done[key] = running.pop(key)
                kind, layout = key
                if layout == "mixed" and "pd" in layouts and max_devices // kind.tp >= 2:
                    start = one.best or one.tried[-1]
                    running[kind, "pd"] = _Running(kind, _split(start, max_devices // kind.tp))
    return [Found(kind, layout, one.best, one.tried) for (kind, layout), one in done.items() if layout in layouts]


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

    def learn(self, row: Row) -> None:
        tried = Tried(self.kind, self.wanted, missed(row), row)
        self.tried.append(tried)
        try:
            self.wanted = self.search.send(tried)
        except StopIteration as end:
            self.best, self.over = end.value, True


def _mixed(most: int) -> Search:
    """Search for the fewest clients, from one client's throughput."""
    bracket = Bracket(-1, 1, lowest=-most, highest=-1)
    results: dict[int, Tried] = {}
    while (level := bracket.choose()) is not None:
        tried = yield (-level,)
        results[level] = tried
        bracket.known[level] = tried.misses is None
        if tried.misses is not None:
            bracket.hint = -min(most, max(_needed(tried) or 0, math.ceil(MORE * -level), 1 - level))
    low = bracket.meets_up_to
    return None if low is None else results[low]


def _needed(tried: Tried) -> int | None:
    """Return how many such clients serve the offered rate, by what the overloaded ones served."""
    offered: float | None = tried.row.get("headline.offered_per_s")
    served: float | None = tried.row.get("throughput.requests_per_s")
    if not offered or not served or served > OVERLOADED * offered:
        return None
    return math.ceil(sum(tried.clients) * offered / served)


def _split(start: Tried, most: int) -> Search:
    """Search for the fewest prefill and decode clients, from the mixed answer or the most that was tried."""
    total = max(2, min(sum(start.clients), most))
    prompts, answers = start.row.get("energy.prefill_j") or 0.0, start.row.get("energy.decode_j") or 0.0
    share = prompts / (prompts + answers) if prompts + answers else 0.5
    prefill = min(max(1, round(total * share)), total - 1)
    now: Numbers = (prefill, total - prefill)
    results: dict[Numbers, Tried] = {}
    best: Tried | None = None
    while len(results) < MOST_PD:
        tried = results[now] = yield now
        if tried.misses is None and (best is None or tried.devices < best.devices):
            best = tried
        following = _next_split(tried, best, results, most)
        if following is None:
            break
        now = following
    return best


def _next_split(tried: Tried, best: Tried | None, results: Mapping[Numbers, Tried], most: int) -> Numbers | None:
    """Return the split to try next: one more where something is missed, one less once the SLO is met."""
    if best is None:
        prefill, decode = tried.clients
        short = _short_side(tried)
        step = max(1, round((MORE - 1) * (prefill if short == "prefill" else decode)))
        step = min(step, max(1, most - prefill - decode))   # as far as there is room
        now = (prefill + step, decode) if short == "prefill" else (prefill, decode + step)
        if sum(now) > most and min(tried.clients) > 1:   # no room for more: shift one
            now = (prefill + 1, decode - 1) if short == "prefill" else (prefill - 1, decode + 1)
        return None if sum(now) > most or min(now) < 1 or now in results else now
    prefill, decode = best.clients
    for now in ((prefill - 1, decode), (prefill, decode - 1), (prefill - 2, decode + 1), (prefill + 1, decode - 2)):
        if min(now) >= 1 and now not in results and not _hopeless(now, results):
            return now
    return None


def _hopeless(now: Numbers, results: Mapping[Numbers, Tried]) -> bool:
    """Whether a split with as many or more clients on both sides was missed."""
    return any(tried.misses is not None and all(mine <= theirs for mine, theirs in zip(now, numbers, strict=True))
               for numbers, tried in results.items())


def _short_side(tried: Tried) -> str:
    """Return which side of a split needs more clients."""
    where = tried.row.get("binds.where")
    if where in ("prefill", "decode"):
        return str(where)
    return "prefill" if "TTFT" in (tried.misses or "") else "decode"
