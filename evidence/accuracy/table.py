"""The accuracy of all reference sets in one table, its bars, and whether the ranges of results hold.

Ranges are found with a part of the figures left out, and counted on it: a campaign (folder of data), the site that
measured, a card, an engine, a precision (`LEFT_OUT`). A cell is one figure of one case whose prediction rests on step
times with a class and a range. The power of its kind of result (`hermes.hardware.result_ranges`) is found on the cells
of all other campaigns (sites, cards), and the cell counts as inside if what was measured lies in the range from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from evidence.accuracy.gpustack import gpustack
from evidence.accuracy.h100_sets import blis_experiments, blis_training, residency
from evidence.accuracy.inferencex import inferencex, inferencex_minimax, inferencex_more
from evidence.accuracy.kv_lines import kv_lines
from evidence.accuracy.llm_d import closed_loop
from evidence.accuracy.lmbench import lmbench, lmbench_h100
from evidence.accuracy.lmbench_router import lmbench_router
from evidence.accuracy.recorded import cpu_runs, recorded_runs, schedules, splitwise
from evidence.accuracy.served import Row
from evidence.accuracy.steady import steady_decodes
from hermes.config import ConfigModel
from hermes.errors import InputError, Verbatim
from hermes.hardware.result_ranges import FAMILIES, LEAST, family_of, range_by_power
from hermes.hardware.trust import Kind, Trust

__all__ = [
    "CLASSES", "LEFT_OUT", "SETS", "Bar", "Bars", "Cell", "Coverage", "Line", "cells_of", "coverage", "found_power",
    "lines", "measure", "missed", "outside",
]

CLASSES: tuple[Kind, ...] = ("measured", "near", "guess")
WITHIN = {"times": 0.9, "times p99": 0.92, "ttft": 0.92, "ttft p99": 0.95}   # share of cells whose power is enough
SEVERAL = 3   # campaigns on which a power of one class is found; with fewer, on the cells of all classes
LEFT_OUT = ("campaign", "site", "card", "engine", "precision")
JUDGED = 40   # figures of a class from which on the share of those inside has a bar
NO_TIME = ("identical steps", "timed out", "watts", "joules per token", "KV GiB", "close", "in range")
SURVIVORS = "survivors"   # sets that hold only what was answered in time


class _Set(NamedTuple):
    """A set's folder, or one file of a folder that several sets share, and its reader.

    given: what its scenarios give, besides the model, the card and the load.
    site: who measured it; "": nobody measured anything else here.
    beside: whether the folder may also lie beside the data; the reader gets the folder that it is in.
    """

    place: str
    rows: Callable[[Path], Iterator[Row]]
    given: str
    site: str = ""
    beside: bool = False

    @property
    def folder(self) -> str:
        """The set's folder."""
        place = Path(self.place)
        return (place.parent if place.suffix else place).as_posix()

    def root(self, data: Path) -> Path | None:
        """Return the folder that the set lies in, or None."""
        places = (data, data.resolve().parent) if self.beside else (data,)
        return next((place for place in places if (place / self.place).exists()), None)

    def absent(self, data: Path) -> str:
        """Return the reason why the set cannot be read, or ""."""
        if self.root(data) is not None:
            return ""
        return f"no {self.place} in {data}{' or beside it' if self.beside else ''}"


SETS = {
    "schedules": _Set("vllm-schedules", schedules, given="the recorded requests and limits; no times"),
    "splitwise": _Set("reference/splitwise", splitwise, beside=True, given=(
        "splitwise-sim's tables of step times, pools and link; its answers are a simulator's")),
    "cpu": _Set("vllm-cpu", cpu_runs, given=(
        "a profile fitted on single steps of other runs; async_scheduling false, blocks and limits as recorded")),
    "rtx": _Set("vllm-runs", recorded_runs, given=(
        "no front end and top_p false, since the engine was driven directly; 128 sequences, 2,048 tokens and "
        "the blocks as recorded; async_scheduling true; two engines behind least_loaded")),
    "residency": _Set("h100/residency-vllm", residency, site="inference-sim", given=(
        "sequences, tokens and blocks as logged; capped cells: at most 256 requests in flight, in the order "
        "of their schedule, first and last minute cut")),
    "blis": _Set("h100/sim-to-real-accuracy-validation", blis_experiments, site="inference-sim", given=(
        "engine vllm-0.15 (0.15.1), 128 sequences, the experiment's tokens a step, max_model_len 4096; 100 "
        "prompts asked in turn, which the prefix cache holds")),
    "training": _Set("h100/training", blis_training, site="inference-sim", given=(
        "as BLIS experiments, 2,048 tokens a step; runs called reasoning are left out (overloaded, lengths "
        "not stated)")),
    "llm-d": _Set("h100/llm-d-prism", closed_loop, given=(
        "engine vllm-0.15 for 0.10, async_scheduling false, top_p false (vLLM's benchmark asks for greedy); "
        "utilization 0.95 and 0.9 with blocks of 128 in pools; pools behind least_loaded; sets called NCCL: "
        "all_reduce nccl; 1 user: the all-reduce found on one user's row")),
    "lmbench": _Set("llm-d-lmbench", lmbench, given=(
        "engine vllm-0.15 for about 0.8.5, async_scheduling false; one server 8,192 tokens and 1,024 "
        "sequences, two 2,048 and 256 (inferred from the blocks that are left); a plain pair behind a service that "
        "gives each connection of the client's pool to a server at random (connections), each request (random), or "
        "round_robin; least_loaded for llm-d's; 2,239 blocks, of two 3,255; max_model_len 20000; sets called 30 s: a "
        "gateway with this time-out; but for those as stated: 1,250 blocks, engines go on with what has timed out, and "
        "prompts share the prefixes of their conversations")),
    "lmbench-h100": _Set("llm-d-lmbench/exp-3-vllm-70b-2replicas-h100.csv", lmbench_h100, given=(
        "as the plain pair of lmbench, 2,087 blocks, max_model_len 10000, 8,192 tokens and 1,024 sequences; left out: "
        "16/s, where a server was lost; from 20/s on one server; prompts share the prefixes of their conversations")),
    "lmbench-router": _Set("llm-d-lmbench", lmbench_router, given=(
        "the plain pair behind round_robin, prompts with the prefixes of their conversations; against it llm_d with "
        "queue 1 and prefix 2 and a hop of 15 ms; all causes: also 1,250 blocks, 40 GB of host memory as vLLM 0.33 "
        "offloads, and 30 s with engines that go on")),
    "inferencex": _Set("inferencex/deepseek-r1-fp8-sglang.csv", inferencex, given=(
        "scheduler sglang with chunks of 32,768 and no radix cache, utilization 0.82, lengths drawn between "
        "0.8 and 1.0 of the nominal; SGLang's exposed time, found on the H200 rows; the first wave is included")),
    "inferencex-more": _Set("inferencex/deepseek-r1-more.csv", inferencex_more, given=(
        "sglang as inferencex; engine trtllm-1.2, whose rules and host times are the newest vLLM's; 4 bits: models "
        "deepseek-r1-nvfp4 and deepseek-r1-mxfp4, attention in 16 bits")),
    "inferencex-minimax": _Set("inferencex/minimax-m2.5-fp8block-h200-vllm.csv", inferencex_minimax, given=(
        "engine vllm-0.15 for one of February 2026; runs of one prompt length follow each other on one server, from "
        "few users to many, with the same prompts: the prefix cache holds those of earlier runs")),
    "gpustack": _Set("gpustack/README.md", gpustack, given=(
        "engine vllm-0.15 for 0.10 and 0.11, async_scheduling false, precision and layout; 984 prompts at once, "
        "lengths of the profile sharegpt scaled to the stated means, answers of at most 2,048 tokens less the prompt")),
    "kv-lines": _Set("kv-lines.csv", kv_lines, given=(
        "card, its memory, layout and flags as logged; the defaults of vllm-0.15 for older releases, the memory rules "
        "of each one's own; of figures, not times")),
    "ml-energy": _Set("h100/ml-energy", steady_decodes, given=(
        "async_scheduling false, prompts of 200 tokens, gamma lengths of answers (none is stated); sets "
        "called left out: watts of the card fitted again without the model")),
}
"""Reference sets by name."""


def measure(data: Path, name: str) -> list[Row] | None:
    """Return the rows of a set, or None where it is absent."""
    chosen = SETS[name]
    root = chosen.root(data)
    return None if root is None else list(chosen.rows(root))


class Line(NamedTuple):
    """Errors of one statistic of one metric over the cases of a set, for one engine, card and model.

    median: of the absolute errors; worst: with its sign; peer: median of the best other simulator's absolute errors, or
    None. Errors are shares of what was measured.
    """

    set: str
    engine: str
    card: str
    model: str
    metric: str
    stat: str
    cases: int
    median: float
    worst: float
    peer: float | None

    @property
    def key(self) -> tuple[str, ...]:
        """What the line is about."""
        return self.set, self.engine, self.card, self.model, self.metric, self.stat


def lines(rows: Iterable[Row]) -> list[Line]:
    """Return the errors by set, engine, card, model, metric and statistic, in the order of the rows."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        case = row.case
        groups.setdefault((case.set, case.engine, case.card, case.model, row.metric, row.stat), []).append(row)
    found = []
    for group in groups.values():
        errors = np.array([row.error for row in group])
        peers = [abs(row.peer) for row in group if row.peer is not None]
        of = group[0].case
        found.append(Line(
            of.set, of.engine, of.card, of.model, group[0].metric, group[0].stat, len(group),
            float(np.median(np.abs(errors))), float(errors[np.argmax(np.abs(errors))]),
            float(np.median(peers)) if peers else None))
    return found


class Bar(ConfigModel):
    """Largest error that is allowed; what a bar does not name, it holds for all of."""

    set: str
    metric: str
    stat: str
    model: str = ""
    card: str = ""
    case: str = ""
    worst: Annotated[float, Field(ge=0)] | None = None
    """Of any case."""
    median: Annotated[float, Field(ge=0)] | None = None
    """Median of the absolute errors of all cases."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.worst is None and self.median is None:
            raise InputError(Verbatim("give worst or median"), field="worst")
        return self


class Bars(ConfigModel):
    """A file of bars."""

    bars: Annotated[list[Bar], Field(min_length=1)]
    inside: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)] | None = None
    """Least and largest share of the cells of each class of at least 40 that lie in their ranges."""


def missed(bars: Bars, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the bars that do not hold, each with what was found. A bar without a case is missed too, and so is a bar
    for each card of each set that has none."""
    found = list(rows)
    out: list[dict[str, Any]] = []
    without = dict.fromkeys((row.case.set, row.case.card) for row in found)
    for bar in bars.bars:
        mine = [row for row in found
                if (row.case.set, row.metric, row.stat) == (bar.set, bar.metric, bar.stat)
                and bar.model in ("", row.case.model) and bar.card in ("", row.case.card)
                and bar.case in ("", row.case.case)]
        for row in mine:
            without.pop((row.case.set, row.case.card), None)
        errors = [abs(row.error) for row in mine]
        got = {"worst": max(errors, default=None), "median": float(np.median(errors)) if errors else None}
        for kind, most in (("worst", bar.worst), ("median", bar.median)):
            value = got[kind]
            if most is not None and (value is None or value > most):
                about = {"set": bar.set, "card": bar.card, "model": bar.model, "case": bar.case}
                out.append({key: text for key, text in about.items() if text}
                           | {"metric": bar.metric, "stat": bar.stat, "of": kind, "at_most": most, "found": value})
    return out + [{"set": of, "card": card, "of": "no bar"} for of, card in without]


def outside(bars: Bars, coverages: Iterable[Coverage]) -> list[dict[str, Any]]:
    """Return the classes of which too few or too many cells lie in their ranges."""
    if bars.inside is None:
        return []
    least, most = bars.inside
    return [{"class": one.kind, "of": f"cells in ranges found without their {one.left_out}", "between": [least, most],
             "found": one.inside}
            for one in coverages
            if one.value == one.family == "all" and one.cells >= JUDGED and not least <= one.inside <= most]


class Cell(NamedTuple):
    """One figure. ratio: the measured time over the predicted one (of a rate: the other way round).

    of: what it belongs to, by `LEFT_OUT`.
    """

    of: Mapping[str, str]
    steps: Trust
    family: str
    ratio: float

    @property
    def power(self) -> float:
        """The power of the steps' range that reaches what was measured."""
        end = self.steps.high if self.ratio > 1.0 else self.steps.low
        return math.log(self.ratio) / math.log(end)


class Coverage(NamedTuple):
    """Cells of one class of results, and of one kind or ("all") of every kind.

    left_out: of `LEFT_OUT`; value: which, or "all" of them.
    low, high: factors, the median of their ranges' ends; inside: the share of cells in their range.
    """

    left_out: str
    value: str
    kind: Kind
    family: str
    cells: int
    low: float
    high: float
    inside: float


def cells_of(by_set: Mapping[str, Iterable[Row]]) -> list[Cell]:
    """Return the cells of the rows of each set. Left out: what is no time, what has no range (a queue that grows,
    another simulator's answers), and survivors."""
    found = []
    for name, rows in by_set.items():
        for row in rows:
            trust = row.case.trust
            if trust is None or row.metric in NO_TIME or SURVIVORS in row.case.set or row.predicted <= 0.0:
                continue
            ratio = row.measured / row.predicted
            rate = row.metric.endswith("/s")
            of = {"campaign": SETS[name].folder, "site": SETS[name].site or SETS[name].folder,
                  "card": row.case.card.split()[0], "engine": _product(row.case.engine),
                  "precision": row.case.precision}
            found.append(Cell(of, trust, family_of(row.metric, row.stat), 1.0 / ratio if rate else ratio))
    return found


def _product(engine: str) -> str:
    """Return an engine without its version. Servers whose engine is not stated ran vLLM."""
    return next((name for name in ("sglang", "trtllm") if engine.startswith(name)), "vllm")


def found_power(cells: Sequence[Cell], kind: Kind, family: str) -> float:
    """Return the power that is enough for most cells of a kind of result on steps of a class; nan without any."""
    of_kind = [cell for cell in cells if cell.family == family]
    same = [cell for cell in of_kind if cell.steps.kind == kind]
    chosen = same if len({cell.of["campaign"] for cell in same}) >= SEVERAL else of_kind
    if not chosen:
        return math.nan
    found = float(np.quantile([cell.power for cell in chosen], WITHIN[family]))
    return max(found, LEAST[kind].get(family, 1.0))


def coverage(cells: Sequence[Cell], left_out: str) -> list[Coverage]:
    """Return how many cells lie in ranges that were found without those of the same card (`LEFT_OUT`: engine, ...), by
    class and kind of the result, and by class and card."""
    values = list(dict.fromkeys(cell.of[left_out] for cell in cells))
    powers: dict[tuple[str, Kind, str], float] = {}
    for value in values:
        others = [cell for cell in cells if cell.of[left_out] != value]
        powers |= {(value, kind, family): found_power(others, kind, family) for kind in CLASSES for family in FAMILIES}
    groups: dict[tuple[Kind, str, str], list[tuple[Trust, bool]]] = {}
    for cell in cells:
        value = cell.of[left_out]
        power = powers[value, cell.steps.kind, cell.family]
        if math.isnan(power):
            continue
        ranged = range_by_power(cell.steps, cell.family, power)
        inside = ranged.low <= cell.ratio <= ranged.high
        for key in (("all", "all"), ("all", cell.family), (value, "all")):
            groups.setdefault((ranged.kind, *key), []).append((ranged, inside))
    return [
        Coverage(left_out, value, kind, family, len(of), float(np.median([one.low for one, _ in of])),
                 float(np.median([one.high for one, _ in of])), float(np.mean([inside for _, inside in of])))
        for kind in CLASSES for value, family in (*(("all", each) for each in ("all", *FAMILIES)), *(
            (each, "all") for each in values)) if (of := groups.get((kind, value, family)))]
