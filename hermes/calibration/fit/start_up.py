"""Fit how long an engine takes to start, by phase, and predict each model by a fit without it.

Reads the tables of vllm-startup-profiler: `a100.csv` (model facts, cache, phase, seconds) and `a100-graph-sizes.csv`
(capture time by the largest captured size). Each phase has a cause whose coefficients cannot be negative; relative
errors are least. Phases of the tables contain each other, and are taken apart first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hermes.config import to_yaml
from hermes.config.tables import Column, csv_table
from hermes.errors import InputError, Verbatim
from hermes.hardware.descriptions.devices import load_device
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.start_up import Capturing, Elsewhere, LayerTime, Loading, Started, StartUpTimes, Tokenizing
from hermes.sums import float_sum

__all__ = ["OTHER", "PHASES", "Error", "Measured", "OtherHost", "errors", "fit_start_up", "measured_starts",
           "other_host", "start_up_text"]

PHASES = ("process", "tokenizer", "weights", "compile", "profiling", "capture", "wall")
DEVICE = "a100-80gb"
ENGINE = "vLLM 0.10.1.1"
LARGEST = 256
"""Largest captured size of `a100.csv`: its captures are those of this size in `a100-graph-sizes.csv`."""
TIED = ("falcon-7b", "llama3-3b", "qwen-0.5b")
"""Models whose output head is the embedding matrix, which the table does not say."""
TWO_MATRICES = ("falcon-7b",)
"""Models whose feed-forward network has two matrices instead of three."""
SOURCES = [
    "fitted to starts of eleven models of 0.5 to 14 billion parameters with vLLM 0.10.1.1 on one A100 node "
    "(upb-cn/vllm-startup-profiler, MLSys 2026): `hermes calibrate start-up`; each model is also predicted "
    "from the others",
    "process: hand-shakes of processes included; capture: 35 sizes up to 256 tokens, and the two models of "
    "a100-graph-sizes.csv up to 1,024; weights: warm starts, from the page cache; not measured: disks, "
    "several devices, mixtures of experts, other hosts",
]
ELSEWHERE = Elsewhere(warm=[0.5, 1.1], cold=[0.4, 1.1], known_warm=[0.8, 1.25], known_cold=[0.75, 1.5],
                      capture_first=0.0)
"""What the second node, and the models that were left out here, leave open (`other_host`). The first capture after
compiling takes long on the first of three nodes only."""
_FACTS = ("layers", "kv_heads", "heads", "hidden", "ffn", "vocab")
DIGITS = 4   # of a written parameter
SHORTEST = 1e-3   # seconds of a phase that took place
FASTEST = 1e12   # bytes/s at most
_FILE = Path("startup") / "a100.csv"
_SIZES = Path("startup") / "a100-graph-sizes.csv"
OTHER = Path("startup") / "h100-node.csv"
OTHER_DEVICE = "h100-sxm"
SHIPPED = {"deepseek-r1-distill-llama-8b": "llama-3.1-8b", "llama3.1-8b-instruct": "llama-3.1-8b",
           "deepseek-r1-distill-qwen-7b": "qwen2.5-7b", "gpt-oss-20b": "gpt-oss-20b"}
"""Models of the other node whose facts the A100's table lacks -> their description; the others are left out."""


@dataclass
class Measured:
    """One model: what of it takes time, and the seconds of its starts by (cache, phase), phases taken apart.

    Attributes:
        captures: Seconds of the capture by the captured sizes.
    """

    name: str
    started: Started
    seconds: dict[tuple[str, str], float]
    captures: dict[tuple[int, ...], float] = field(default_factory=dict)


class Error(NamedTuple):
    """A phase of a model that was left out of the fit. Times in s."""

    model: str
    cache: str
    phase: str
    measured_s: float
    predicted_s: float

    @property
    def relative(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1.0


def sizes_of_0_10(largest: int) -> tuple[int, ...]:
    """Return the sizes that vLLM 0.10 captures by default, up to `largest`."""
    return tuple(size for size in (1, 2, 4, *range(8, largest + 1, 8)) if size <= largest)


def measured_starts(data: Path) -> list[Measured]:
    """Return the measured starts in the folder of the reference sets. Raises `InputError`."""
    table = csv_table(data / _FILE)
    texts = {name: table.typed(Column(name, "text")) for name in ("model", "cache", "phase")}
    facts = {name: table.typed(Column(name, "integer", 1, 2**31)) for name in _FACTS}
    seconds = table.typed(Column("seconds", low=1e-9))
    raw: dict[str, dict[tuple[str, str], float]] = {}
    shape: dict[str, dict[str, int]] = {}
    for row, model in enumerate(texts["model"]):
        raw.setdefault(model, {})[texts["cache"][row], texts["phase"][row]] = float(seconds[row])
        shape[model] = {name: int(column[row]) for name, column in facts.items()}
    sizes = csv_table(data / _SIZES)
    largest = sizes.typed(Column("largest_captured_batch", "integer", 1, 2**20))
    captures: dict[str, dict[tuple[int, ...], float]] = {}
    for model, size, each in zip(sizes.typed(Column("model", "text")), largest,
                                 sizes.typed(Column("graph_capturing_s", low=1e-9)), strict=True):
        captures.setdefault(model, {})[sizes_of_0_10(int(size))] = float(each)
    try:
        return [Measured(model, _started(model, shape[model]), _apart(raw[model]), captures.get(model, {}) | {
            sizes_of_0_10(LARGEST): raw[model]["warm", "graph_capturing"]}) for model in raw]
    except KeyError as missing:
        raise InputError(Verbatim(f"it has no row for {missing.args[0]}"), file=str(data / _FILE)) from None


def _started(name: str, shape: dict[str, int]) -> Started:
    hidden, layers = shape["hidden"], shape["layers"]
    attention = 2 * hidden * hidden + 2 * hidden * shape["kv_heads"] * (hidden // shape["heads"])
    matrices = layers * (attention + (2 if name in TWO_MATRICES else 3) * hidden * shape["ffn"])
    words = shape["vocab"] * hidden * (1 if name in TIED else 2)
    return Started(layers, shape["vocab"], 2 * (matrices + words), 2.0 * matrices, load_device(DEVICE).flops["bf16"],
                   sizes_of_0_10(LARGEST))


def _apart(raw: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return phases that do not contain each other and add up to the wall time."""
    out: dict[tuple[str, str], float] = {}
    for cache in ("warm", "cold"):
        def of(phase: str, cache: str = cache) -> float:
            return raw[cache, phase]

        graphs = of("graph_load_cached" if cache == "warm" else "graph_compile")
        inside = 0.0 if cache == "warm" else of("dynamo_transform") + graphs   # a cold profiling step contains both
        parts = {"tokenizer": of("tokenizer_init"), "weights": of("load_weights"),
                 "compile": of("dynamo_transform") + graphs, "profiling": of("kv_cache_profiling") - inside,
                 "capture": of("graph_capturing")}
        parts["process"] = of("wall") - float_sum(parts.values())   # with hand-shakes and all that lies between phases
        out |= {(cache, phase): each for phase, each in parts.items()}
        out[cache, "trace"], out[cache, "graphs"], out[cache, "wall"] = of("dynamo_transform"), graphs, of("wall")
    return out


Cause = Callable[[Measured], Sequence[float]]


def _layers(one: Measured) -> Sequence[float]:
    return 1.0, float(one.started.layers)


def _least(rows: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Return the coefficients of least relative error, none negative. rows: Causes and seconds of each time; times of 0
    or less have no relative error and count where they are at least half: then all coefficients are 0."""
    from scipy.optimize import nnls

    longer = [row for row in rows if row[1] > SHORTEST]
    if 2 * len(longer) <= len(rows):
        return [0.0] * len(rows[0][0]) if rows else []
    rows = longer
    seconds = np.array([each for _, each in rows])
    found, _ = nnls(np.array([causes for causes, _ in rows]) / seconds[:, None], np.ones(len(rows)))
    return [float(each) for each in found]


def _by_layers(models: Sequence[Measured], *seconds: Callable[[Measured], float]) -> LayerTime:
    """Return the time by layers that fits one or more times of each model."""
    fixed, per_layer = _least([(_layers(one), of(one)) for one in models for of in seconds])
    return LayerTime(fixed=fixed, per_layer=per_layer)


def fit_start_up(models: Sequence[Measured], name: str = "vllm-0.10", engine: str = ENGINE, device: str = DEVICE,
                 sources: Sequence[str] = SOURCES, elsewhere: Elsewhere = ELSEWHERE) -> StartUpTimes:
    """Return the parameters that fit these models. Weights are fitted to the warm starts alone: the cold ones of some
    models read a disk."""
    def of(cache: str, phase: str) -> Callable[[Measured], float]:
        return lambda one: one.seconds[cache, phase]

    def more(phase: str) -> Callable[[Measured], float]:
        return lambda one: one.seconds["cold", phase] - one.seconds["warm", phase]

    words = _least([((1.0, one.started.vocabulary), one.seconds[cache, "tokenizer"])
                    for one in models for cache in ("warm", "cold")])
    captured = _least([(_capture_causes(one.started, sizes), each)
                       for one in models for sizes, each in one.captures.items()]) or [0.0, 0.0, 1.0]
    return StartUpTimes(
        format="hermes-start-up/1", name=name, engine=engine, device=device,
        process=_least([((1.0,), one.seconds[cache, "process"]) for one in models for cache in ("warm", "cold")])[0],
        tokenizer=Tokenizing(fixed=words[0], per_word=words[1]),
        weights=_loading(models),
        trace=_by_layers(models, of("warm", "trace"), of("cold", "trace")),
        load_compiled=_by_layers(models, of("warm", "graphs")), compile=_by_layers(models, of("cold", "graphs")),
        profiling=_by_layers(models, of("warm", "profiling")), profiling_first=_by_layers(models, more("profiling")),
        capture=Capturing(fixed=captured[0], per_layer=captured[1], efficiency=min(1.0 / max(captured[2], 1.0), 1.0)),
        capture_first=_by_layers(models, more("capture")), elsewhere=elsewhere, sources=list(sources))


def _loading(models: Sequence[Measured]) -> Loading:
    """Return the loading that fits the warm starts. Where times do not grow with the bytes, all of them is bytes."""
    rows = [(float(one.started.weight_bytes), one.seconds["warm", "weights"]) for one in models]
    fixed, per_byte = _least([((1.0, size), each) for size, each in rows])
    if not per_byte:
        fixed, per_byte = 0.0, _least([((size,), each) for size, each in rows])[0] or 1.0 / FASTEST
    return Loading(fixed=fixed, rate=min(1.0 / per_byte, FASTEST))


def _capture_causes(of: Started, sizes: Sequence[int]) -> tuple[float, float, float]:
    return 1.0, float(of.layers * len(sizes)), sum(sizes) * of.flops_per_token / of.peak_flops


def errors(models: Sequence[Measured]) -> list[Error]:
    """Return every phase of every model as the fit to the other models predicts it."""
    found = []
    for place, one in enumerate(models):
        phases = fit_start_up([*models[:place], *models[place + 1:]]).phases(one.started)
        for cache in ("warm", "cold"):
            predicted = {phase: times[cache == "warm"] for phase, times in phases.items()}
            predicted["wall"] = float_sum(predicted.values())
            found += [Error(one.name, cache, phase, one.seconds[cache, phase], predicted[phase]) for phase in PHASES]
    return found


class OtherHost(NamedTuple):
    """A model's start on another node, as the factor of another model's warm start there predicts it. Times in s.

    Attributes:
        fitted: The model whose warm start gives the factor; empty: none is known.
        low, high: Of the printed range.
    """

    fitted: str
    model: str
    cache: str
    measured_s: float
    predicted_s: float
    low: float
    high: float


def other_host(data: Path, times: StartUpTimes) -> list[OtherHost]:
    """Return every start of the second node as each other model's warm start predicts it, and without one. Raises
    `InputError`."""
    table = csv_table(data / OTHER)
    names, caches, phases = (table.typed(Column(name, "text")) for name in ("model", "cache", "phase"))
    walls = {(str(name), str(cache)): float(each) for name, cache, phase, each in zip(
        names, caches, phases, table.typed(Column("seconds", low=1e-9)), strict=True) if phase == "wall"}
    peak, found = load_device(OTHER_DEVICE).flops["bf16"], {one.name: one.started for one in measured_starts(data)}
    for name, shipped in SHIPPED.items():
        model = load_model(shipped)
        found[name] = Started(model.num_layers, model.vocab_size, round(model.weight_bytes(model.dtype or "bf16", 1)),
                              2.0 * (model.active_params() - model.outer_params()), peak, sizes_of_0_10(LARGEST))
    starts = {name: found[name]._replace(peak_flops=peak) for name, _ in walls if name in found}
    out = []
    for fitted in ("", *starts):
        host = times.host_of(walls[fitted, "warm"], starts[fitted]) if fitted else None
        spread = dict(zip(("cold", "warm"), times.spread(known=bool(fitted)), strict=True))
        for name, started in starts.items():
            for place, cache in enumerate(("cold", "warm")):
                predicted = float_sum(each[place] for each in times.phases(started, host).values())
                if name != fitted:
                    low, high = spread[cache]
                    out.append(OtherHost(fitted, name, cache, walls[name, cache], predicted, low * predicted,
                                         high * predicted))
    return out


def start_up_text(found: StartUpTimes) -> str:
    """Return the file of these parameters."""
    def rounded(value: Any) -> Any:   # Any: a tree of a model's values
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    head = f"# Times of a start of {found.engine}, by phase. Seconds and bytes/s.\n"
    unknown = {"elsewhere"} if found.elsewhere == Elsewhere() else set()
    return head + to_yaml(rounded(found.model_dump(exclude=unknown)), compact=True)
