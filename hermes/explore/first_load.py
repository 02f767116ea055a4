"""A load, and where needed an SLO, with which a first scenario meets its own SLO.

`hermes init` and `hermes import` write scenarios about which little is known. This module simulates before they write:
a lone user first (what the clients can do at best), then a short search for the highest rate, then the scenario that is
written. Each choice comes with a line that says why.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hermes.api import simulate
from hermes.core.record import ClientInfo
from hermes.errors import InputError, InputWarning, Verbatim
from hermes.explore.objective import missed
from hermes.explore.sweep.figures import figures
from hermes.results.layout import format_s
from hermes.scenario import load_scenario
from hermes.scenario.build import build
from hermes.scenario.starts import check_starts
from hermes.sums import float_sum

__all__ = ["Fitted", "Lone", "confirmed", "fit", "lone"]

CONTEXTS = 32          # requests of mean length whose KV an engine should hold at once
LONE = 40              # requests of the simulation of a lone user
FULL = 0.8             # share of a limit above which a lone request leaves no room for others
SLACK = 2.0            # of a limit that is chosen, over a lone request
MARGIN = 0.8           # of the highest rate that meets the SLO
RUNS = 10              # simulations of the search
FAR, NEAR = 4.0, 1.2   # of one rate to the next, and where it ends
PROBE, PROBE_S, MOST_PROBE = 400, 20.0, 1000   # requests of each of them, and seconds of their arrivals
TRIES = 6              # rates, and lengths of one rate, that are tried for the scenario that is written
SHORTEST_S, FEWEST, MOST = 60.0, 500, 20_000   # its arrivals
STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)

Document = dict[str, Any]


@dataclass(frozen=True)
class Lone:
    """What one user at a time sees.

    Args:
        document: The scenario, without requests that no client can hold.
        cut: Workloads whose longest requests were cut, with the tokens that are left.
        over: Metrics whose limit a lone request misses or nearly fills.
        values: Metric (`ttft`, `tpot`) -> seconds at the SLO's percentile, and the limit.
        info: The first LLM client.
        context: Mean tokens of a request, prompt and output.
    """

    document: Document
    cut: tuple[str, ...]
    over: tuple[str, ...]
    values: Mapping[str, tuple[float, float]]
    info: ClientInfo
    context: float

    @property
    def worst(self) -> float:
        """The largest share of a limit that a lone request takes."""
        return max((value / limit for value, limit in self.values.values()), default=0.0)

    @property
    def requests(self) -> float | None:
        """Requests of mean length whose KV the client holds at once; None if its memory is unbounded."""
        blocks = self.info.num_blocks
        return blocks * self.info.block_size / max(self.context, 1.0) if blocks else None

    @property
    def roomy(self) -> bool:
        return self.requests is None or self.requests >= CONTEXTS

    def memory_text(self) -> str:
        """Return the sum of an engine's memory in words."""
        if self.requests is None:
            return "memory without bound"
        kv = self.info.num_blocks * self.info.block_size * self.info.kv_bytes_per_token
        weights = self.info.weights_bytes * self.info.num_devices
        parts = [f"weights {weights / 1e9:,.0f} GB"] if weights else []
        parts.append(f"KV {kv / 1e9:,.0f} GB, {self.requests:,.0f} requests of {self.context:,.0f} tokens")
        return ", ".join(parts)


@dataclass
class Fitted:
    """A scenario that meets its SLO.

    Args:
        rate: Requests per second of all workloads.
        reasons: `slo`, `rate`, `max_total_tokens` -> why it has its value.
        notes: What could not be kept as asked, for the user to read.
    """

    document: Document
    rate: float = 0.0
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def lone(document: Mapping[str, Any]) -> Lone:
    """Simulate one user at a time. Raises `InputError` for a scenario that cannot be built."""
    fitting = copy.deepcopy(dict(document))
    with _quietly():
        check_starts(load_scenario(fitting))
        cut = _cut(fitting)
        alone = copy.deepcopy(fitting)
        for workload in _workloads(alone):
            workload |= {"requests": LONE, "arrivals": {"kind": "closed_loop", "users": 1}}
        results = simulate(alone, whole=True)
    row = figures(results)
    values, over = {}, []
    for metric in ("ttft", "tpot"):
        value, limit = row.get(f"slo.{metric}.value_s"), row.get(f"slo.{metric}.limit_s")
        if isinstance(value, float) and isinstance(limit, float):
            values[metric] = value, limit
            over += [metric] if value > FULL * limit else []
    info = next(client for client in results.record.clients if client.kind == "llm")
    mean = float((results.record.prompt_tokens + results.record.output_tokens).mean())   # without pandas
    return Lone(fitting, cut, tuple(over), values, info, mean)


def _cut(document: Document) -> tuple[str, ...]:
    """Cut the requests that are too long for the model or for the memory of every client; return a line for each
    workload that has such."""
    tiny = copy.deepcopy(document)   # its requests fit into every client
    for workload in _workloads(tiny):
        workload |= {"requests": 1, "max_total_tokens": 2}
    clients: list[Any] = [client for client in build(load_scenario(tiny)).clients if hasattr(client, "max_model_len")]
    many = copy.deepcopy(document)
    for workload in _workloads(many):
        workload["requests"] = MOST
    scenario, lines = load_scenario(many), []
    for workload, config in zip(_workloads(document), scenario.workload, strict=True):
        table = config.draw(scenario.seed, scenario.source.base_dir)
        holds = [_holds(client) for client in clients
                 if client.role != "prefill" and workload.get("model", client.model) == client.model]
        longest = int((table.prompt_tokens + table.output_tokens).max())
        if holds and longest > max(holds):
            workload["max_total_tokens"] = max(holds)
            lines.append(f"{max(holds):,} tokens are the most that an engine holds; the longest of the workload "
                         f"({longest:,}) are cut")
    return tuple(lines)


def _holds(client: Any) -> int:
    """Return the tokens of the longest request that an LLM client can serve."""
    pool = client.scheduler.pool
    return int(min(client.max_model_len, pool.num_blocks * pool.block_size))


def fit(alone: Lone, asked: float | None) -> Fitted:
    """Return a scenario that meets its own SLO.

    Args:
        alone: What a lone user sees of a scenario with Poisson arrivals and an SLO.
        asked: The rate that the user asked for; kept if it meets the SLO.

    Raises `InputError` if no rate was found.
    """
    found = Fitted(copy.deepcopy(alone.document))
    _relax(found, alone)
    if alone.cut:
        found.reasons["max_total_tokens"] = "; ".join(alone.cut)
    with _quietly():
        what = None
        if asked is not None:
            what = _probe(found, asked) or _try(found, asked)
            if what is None:
                found.reasons["rate"] = "as asked: it meets the SLO"
                return found
        highest, runs = _highest(found)
        wanted = _floor(MARGIN * highest) if highest else 0.0
        for _ in range(TRIES if highest else 0):
            if _try(found, wanted) is None:
                found.reasons["rate"] = (f"{wanted / highest:.0%} of {highest:.3g}/s, the highest that met the SLO in "
                                         f"{runs} short simulations")
                if asked is not None:
                    found.notes.append(f"{asked:g}/s misses the SLO ({what}); the scenario has {wanted:g}/s")
                return found
            wanted = _floor(MARGIN * wanted)
    raise InputError(Verbatim("no rate meets the SLO; name another device or model, or more devices"), field="rate")


def confirmed(document: Document) -> Document:
    """Return a scenario of several models that were fitted one by one, at rates that meet the SLO together.

    Raises `InputError` if there are none.
    """
    found = Fitted(copy.deepcopy(document))
    with _quietly():
        for _ in range(TRIES):
            if missed(figures(simulate(found.document, whole=True))) is None:
                return found.document
            scale(found.document, MARGIN * _rate(found.document))
    raise InputError(Verbatim("no rate meets the SLO; name another device or model, or more devices"), field="rate")


def _highest(found: Fitted) -> tuple[float, int]:
    """Return the highest rate that few requests do not miss, to `NEAR`, and the number of simulations; 0 for none."""
    rate, low, high, runs = _rate(found.document), 0.0, math.inf, 0
    while runs < RUNS and high > NEAR * low:
        runs += 1
        if _probe(found, rate) is None:
            low = rate
        else:
            high = rate
        rate = FAR * low if high == math.inf else math.sqrt(low * high) if low else high / FAR
    return low, runs


def _probe(found: Fitted, rate: float) -> str | None:
    """Return what few requests at a rate miss; None if it is worth a longer look."""
    scale(found.document, rate)
    for workload in _workloads(found.document):
        workload["requests"] = int(min(max(workload["arrivals"]["rate"] * PROBE_S, PROBE), MOST_PROBE))
    row = figures(simulate(found.document, whole=True))
    return missed(row) if row.get("slo.pass") is False else None


def _try(found: Fitted, rate: float) -> str | None:
    """Give the scenario a rate, and requests enough for a verdict; return what it misses, or None."""
    scale(found.document, rate)
    seconds, what = SHORTEST_S, None
    for _ in range(TRIES):
        for workload in _workloads(found.document):
            workload["requests"] = int(min(max(workload["arrivals"]["rate"] * seconds, FEWEST), MOST))
        row = figures(simulate(found.document, whole=True))
        what = missed(row)
        needed = row.get("settling.needed_s")   # a longer run, if this one is too short for a verdict
        if what is None or not isinstance(needed, float) or row.get("slo.pass") is False:
            break
        seconds = max(2.0 * seconds, needed)
    found.rate = rate
    return what


def _relax(found: Fitted, alone: Lone) -> None:
    """Choose limits that a lone request keeps, where it does not keep the scenario's."""
    slo, lines = found.document["slo"], []
    for metric in alone.over:
        value, limit = alone.values[metric]
        chosen = _ceiling(SLACK * value)
        slo[metric] = f"{chosen * 1e3:g} ms" if chosen < 1 else f"{chosen:g} s"
        lines.append(f"{metric} {slo[metric]}, not {format_s(limit)}: a lone request already takes {format_s(value)}")
    if lines:
        found.reasons["slo"] = "; ".join(lines)
        found.notes.append(f"slo: {found.reasons['slo']}")


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave the warnings to the run of the scenario that is written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        yield


def _workloads(document: Document) -> list[Document]:
    given = document["workload"]
    return given if isinstance(given, list) else [given]


def scale(document: Document, rate: float) -> None:
    """Give all workloads of a document a rate together, in their proportions."""
    factor = rate / _rate(document)
    for workload in _workloads(document):
        own = float(workload["arrivals"]["rate"]) * factor
        workload["arrivals"] = {**workload["arrivals"], "rate": float(f"{own:.4g}")}


def _rate(document: Document) -> float:
    return float_sum(float(workload["arrivals"]["rate"]) for workload in _workloads(document))


def _floor(rate: float) -> float:
    """Return a rate with two digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return float(f"{math.floor(rate / unit * (1 + 1e-9)) * unit:.2g}")


def _ceiling(seconds: float) -> float:
    """Return the next round number of seconds."""
    unit = 10.0 ** math.floor(math.log10(seconds))
    return float(f"{next(step for step in STEPS if step * unit >= seconds * (1 - 1e-9)) * unit:.3g}")
