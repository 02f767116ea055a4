"""Hardware model `layerwise`: a step is the sum of its operators, each looked up in a measured table.

The tables are those of layer-wise vLLM profiles (a folder with `dense.csv`, `per_sequence.csv`, `attention.csv` and,
optionally, `skew.csv`; microseconds of one layer):

    step = embedding(T) + layers * (2 layernorm + qkv + qk_norm + rotary + attention + o + gate_up + act + down)(T)
           + final norm + lm_head(S) + sampler(S) + all-reduces(T) + overhead

T is the tokens of the step, S the sequences that emit a token. Tables are interpolated linearly, attention in four
dimensions (new tokens and past of the prefill, number and context of the decodes). Matrix products are stairs instead:
a tile of 128 rows costs the same however few of them are used, so between two measured points they take the time of the
upper one (tests/hardware/fitted/test_vllm_gpu.py leaves every other point out: linear interpolation has several times
the error). Added work never makes a step cheaper, and beyond the tables an operator keeps the efficiency of its last
measured point; see `hermes.hardware.fitted.operator_curves`. (`skew: by_batch` is for studies and an exception: its
factors are fitted batch by batch, and a larger batch may have a smaller one.)

Several prefills in one step look up attention once, as one prefill of as many pairs of tokens. Decodes of unequal
context take t(mean) + alpha * (t(longest) - t(mean)). alpha is fitted to `skew.csv` by relative least squares: one
value for the whole table (`skew: single`), or one per number of new prefill tokens and of decodes (`by_batch`).

`overhead` is the engine's own time per step. With asynchronous scheduling the engine prepares the next step while the
device computes this one, and a step takes the longer of the two (`asynchronous: true`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.arrays import FloatArray, IntArray, log2
from hermes.config import Duration
from hermes.errors import InputError, inside
from hermes.hardware.base import StepStats
from hermes.hardware.config import HardwareConfig
from hermes.hardware.descriptions.devices import Rates, load_device
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.links import LinkTime, all_reduce_times
from hermes.hardware.descriptions.models import ModelDescription, load_model, precision
from hermes.hardware.fitted.operator_curves import AttentionCube, Curve, brackets
from hermes.hardware.fitted.operator_tables import ONCE, PER_LAYER, WHERE_THERE, OperatorTables, load_operator_tables
from hermes.hardware.fitted.ranges import steps_outside
from hermes.hardware.info import HardwareInfo
from hermes.hardware.trust import MEASURED, NEAR, Trust
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["Layerwise", "LayerwiseModel"]

STAIRS = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"}


class LayerwiseModel:
    """Operator tables compiled for the kernel. All times are in nanoseconds."""

    model = ""   # description of the measured model, for comparison with a client's

    def __init__(
        self, tables: OperatorTables, num_layers: int, *, skew: Literal["single", "by_batch", "none"] = "single",
        products: Literal["stairs", "lines"] = "stairs", overhead_s: float = 0.0, asynchronous: bool = True,
        scale: float = 1.0, name: str = "layerwise", tp: int = 1,
        reduce_ns: tuple[FloatArray, FloatArray, float] | None = None,
    ) -> None:
        """reduce_ns: bytes and nanoseconds of one all-reduce, and the bytes of one token; two a layer."""
        self.tables, self.num_layers, self.name = tables, num_layers, name
        self.description = f"layer-wise tables {name}, {num_layers} layers"
        self.skew = tables.skew if skew != "none" else None
        self.skew_by_batch = skew == "by_batch"
        stairs = STAIRS if products == "stairs" else set()
        self.dense = {name: Curve(*tables.dense[name], name in stairs) for name in tables.dense}
        self.per_sequence = {name: Curve(*curve, name in stairs) for name, curve in tables.per_sequence.items()}
        self.overhead_ns = overhead_s * NS_PER_S * scale
        self.asynchronous = asynchronous
        self._scale = scale * NS_PER_S
        self._counts = dict.fromkeys(ONCE, 1) | {
            name: count * num_layers for name, count in (PER_LAYER | WHERE_THERE).items() if name in tables.dense}
        self.tp, self._reduce = tp, reduce_ns
        self.attention = AttentionCube(tables.attention, self._scale * num_layers)
        self._fixed: dict[tuple[int, int], float] = {}   # (tokens, sampled) -> ns: cache of earlier results

    @property
    def info(self) -> HardwareInfo:
        """Properties of the model: the description that the tables were measured for."""
        return HardwareInfo(self.name, "operator tables", self.model, self.tp, self.tp)

    def _dense_ns(self, tokens: int) -> dict[str, float]:
        out = {name: self.dense[name].at(tokens) * self._scale * count for name, count in self._counts.items()}
        if self._reduce is not None:
            sizes, times, each = self._reduce
            size = tokens * each
            one = float(np.interp(size, sizes, times)) if size <= sizes[-1] else float(times[-1] * size / sizes[-1])
            out["all_reduce"] = 2 * self.num_layers * one
        return out

    def _per_sequence_ns(self, sampled: int) -> dict[str, float]:
        return {
            name: curve.at(sampled) * self._scale if sampled else 0.0 for name, curve in self.per_sequence.items()
        }

    def _fixed_ns(self, stats: StepStats) -> float:
        """Return the time of everything but attention."""
        key = stats.prefill_tokens + stats.decode_seqs, stats.sampled
        ns = self._fixed.get(key)
        if ns is None:
            ns = float_sum(self._dense_ns(key[0]).values()) + float_sum(self._per_sequence_ns(key[1]).values())
            self._fixed[key] = ns
        return ns

    def _alpha(self, prefill_tokens: int, seqs: int) -> FloatArray | float:
        """Return alpha for 1 to `seqs` decodes beside `prefill_tokens` tokens, or one number for all."""
        if self.skew is None or seqs < 2:
            return 0.0
        if not self.skew_by_batch:
            return min(self.skew.single, 1.0)
        _, rows, columns, alpha = self.skew
        at = log2(np.arange(1, seqs + 1))
        over_rows = np.array([np.interp(at, log2(columns), row) for row in alpha])
        if len(rows) == 1:
            return np.asarray(np.minimum(over_rows[0], 1.0))
        i, u = brackets(rows, np.array([min(prefill_tokens, rows[-1])]))
        return np.asarray(np.minimum(over_rows[i[0]] + (over_rows[i[0] + 1] - over_rows[i[0]]) * u, 1.0))

    def attention_ns(self, stats: StepStats, num_steps: int = 1) -> FloatArray:
        """Return the attention time of all layers in each step of a run, shape (num_steps,)."""
        return self.attention.times(stats, num_steps, self._alpha(stats.prefill_tokens, stats.decode_seqs))

    def operators_ns(self, stats: StepStats) -> dict[str, float]:
        """Return nanoseconds by operator, all layers together; for reports."""
        out = self._dense_ns(stats.prefill_tokens + stats.decode_seqs)
        out["attention"] = float(self.attention_ns(stats)[0])
        return out | self._per_sequence_ns(stats.sampled)

    def terms_ns(self, stats: StepStats) -> dict[str, float]:
        """Return nanoseconds by term; the engine's overhead only where it adds to the step."""
        out = self.operators_ns(stats)
        more = self.step_ns(stats) - float_sum(out.values())
        return out | {"engine": more} if more > 1.0 else out

    def trust_of(self) -> dict[str, Trust]:
        """Return class and range of each term: operators were measured on this card, the engine's time is given."""
        return dict.fromkeys(self.sources_of(), MEASURED) | {"all_reduce": NEAR, "engine": NEAR}

    def sources_of(self) -> dict[str, str]:
        """Return where each term comes from."""
        names = (*self.dense, *self.per_sequence, "attention")
        return dict.fromkeys(names, self.description) | {"all_reduce": "link", "engine": "given"}

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        ns = self.attention_ns(stats, num_steps) + self._fixed_ns(stats)
        ns = np.maximum(ns, self.overhead_ns) if self.asynchronous else ns + self.overhead_ns
        return np.maximum(np.rint(ns), 1.0).astype(np.int64)

    def step_ns(self, stats: StepStats) -> int:
        """Return the duration of one step in nanoseconds."""
        return int(self.run_ns(stats, 1)[0])

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Return how many steps of each run left the tables, int64, shape (runs,)."""
        axes = self.tables.attention.axes
        tokens = next(iter(self.tables.dense.values()))[0][-1]
        seqs = next(iter(self.tables.per_sequence.values()))[0][-1]
        ranges = {
            "tokens": (0.0, float(tokens)), "prefill_tokens": (0.0, float(axes[0][-1])), "sampled": (0.0, float(seqs)),
            "decode_seqs": (0.0, float(axes[2][-1])), "decode_ctx_max": (0.0, float(axes[3][-1])),
        }
        return steps_outside(ranges, columns, num_steps)


class Layerwise(HardwareConfig):
    """Sums of per-operator tables measured layer by layer."""

    kind: Literal["layerwise"] = "layerwise"
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Folder of the tables (dense.csv, per_sequence.csv, attention.csv, skew.csv), relative to the scenario."""
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """Model that the tables were measured for; its number of layers multiplies them."""
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that the tables were split over; with more than one, all-reduces over `link` are added."""
    link: LinkTime | Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """What joins the devices: a shipped description or file (`hw_profiles/links`), or latency and bandwidth."""
    device: Annotated[str, Field(max_length=4096)] = ""
    """The card, for a link that is a share of its rate."""
    skew: Literal["single", "by_batch", "none"] = "single"
    """Extra time of decodes of unequal context (if the folder has skew.csv): one alpha for all batches, one per batch
    (a larger step may then be cheaper by a few percent), or none."""
    products: Literal["stairs", "lines"] = "stairs"
    """Matrix products between two measured points: the time of the upper point, or linear interpolation."""
    overhead: Duration = 0.0
    """The engine's own time per step."""
    asynchronous: bool = True
    """Hide `overhead` behind the device's time (asynchronous scheduling); false adds it."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Factor of every time."""

    def build(self, base_dir: Path | None = None) -> LayerwiseModel:
        """Build the model; the folder is relative to `base_dir`. Raises `InputError` for bad tables."""
        with inside("model"):
            shape = load_model(self.model, base_dir)
        folder = (base_dir or Path()) / self.path
        with inside("path"):
            if not folder.is_dir():
                raise InputError("a folder of operator tables", self.path)
            tables = load_operator_tables(folder)
        built = LayerwiseModel(
            tables, shape.num_layers, tp=self.tp, reduce_ns=self._all_reduce(shape, base_dir), skew=self.skew,
            products=self.products, overhead_s=self.overhead, asynchronous=self.asynchronous, scale=self.scale,
            name=folder.resolve().parent.name if folder.name == "profile" else folder.name,
        )
        built.model = self.model
        return built

    def _all_reduce(
        self, model: ModelDescription, base_dir: Path | None
    ) -> tuple[FloatArray, FloatArray, float] | None:
        """Return bytes and nanoseconds of one all-reduce, and the bytes of a token in it; None on one device."""
        if self.tp == 1:
            return None
        if self.link is None:
            raise InputError("what joins the devices, since operator tables have no all-reduce: a name in "
                             f"hw_profiles/links ({', '.join(names_in('links'))}), a file, or latency and bandwidth",
                             field="link")
        with inside("device"):
            device = load_device(self.device, base_dir) if self.device else None
        with inside("link"):
            rates = Rates() if device is None else device.rates
            times = all_reduce_times(self.link, self.tp, rates, base_dir).times
        return *times, float(model.hidden_size * precision("bf16").other_bytes)
