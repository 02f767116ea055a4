"""Hardware model `layerwise`: a step is the sum of its operators, each looked up in a measured table.

The tables are those of layer-wise vLLM profiles (a folder with `dense.csv`, `per_sequence.csv`, `attention.csv` and,
optionally, `skew.csv`; microseconds of one layer):

    step = embedding(T) + layers * (2 layernorm + qkv + rotary + attention + o + gate_up + act + down)(T)
           + final norm + lm_head(S) + sampler(S) + overhead

T: tokens of the step, S: sequences that emit a token. Tables are interpolated linearly (attention in four dimensions:
new tokens and past of the prefill, number and context of the decodes) and extended along their last line; except that
matrix products are stairs (a tile of 128 rows costs the same however few of them are used), so between two measured
points they take the time of the upper one (tests/validation/test_vllm_gpu.py leaves every other point out: a line is
off several times as much).

Several prefills in one step look up attention once, at their total of new tokens and at the past that gives the same
number of attention pairs; where that past would be negative (short prompts side by side) the entry without past is
scaled by the share of pairs. Decodes of unequal context take t(mean) + alpha * (t(longest) - t(mean)), with alpha
fitted to `skew.csv` by relative least squares: one for the whole table (`skew: single`), or one per number of new
prefill tokens and of decodes (`by_batch`).

`overhead` is the engine's own time per step. Under asynchronous scheduling the engine prepares the next step while the
device computes this one, and a step takes the longer of the two (`asynchronous: true`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hermes.config import ConfigModel, Duration
from hermes.errors import InputError, inside
from hermes.hardware.base import HARDWARE, FloatArray, IntArray, StepStats
from hermes.hardware.models import load_model
from hermes.hardware.operator_tables import ONCE, PER_LAYER, OperatorTables, line, load_operator_tables
from hermes.hardware.ranges import steps_outside
from hermes.units import NS_PER_S

__all__ = ["Layerwise", "LayerwiseModel"]

STAIRS = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"}


def _stairs(xs: FloatArray, ys: FloatArray, x: FloatArray) -> FloatArray:
    """The measured point at x or the next above it; past the last one extended along the last line."""
    i = np.minimum(np.searchsorted(xs, x), len(xs) - 1)
    return np.where(x <= xs[-1], ys[i], line(xs, ys, x))


def _operator(name: str, curve: tuple[FloatArray, FloatArray], x: float, stairs: bool) -> float:
    return float((_stairs if stairs and name in STAIRS else line)(*curve, np.array([x]))[0])


def _bracket(xs: FloatArray, x: float) -> tuple[int, float]:
    """Left neighbour of x among xs and the weight of the right one; beyond the ends the weight leaves [0, 1]."""
    i = min(max(int(np.searchsorted(xs, x, side="right")) - 1, 0), len(xs) - 2)
    return i, float((x - xs[i]) / (xs[i + 1] - xs[i]))


class LayerwiseModel:
    """Operator tables composed for the kernel. All answers are in nanoseconds."""

    model = ""   # the description of what was measured, for whoever compares it with a client's

    def __init__(
        self, tables: OperatorTables, num_layers: int, *, skew: Literal["single", "by_batch", "none"] = "single",
        products: Literal["stairs", "lines"] = "stairs", overhead_s: float = 0.0, asynchronous: bool = True,
        scale: float = 1.0, name: str = "layerwise",
    ) -> None:
        self.tables, self.num_layers, self.name = tables, num_layers, name
        self.description = f"layer-wise tables {name}, {num_layers} layers"
        self.skew = tables.skew if skew != "none" else None
        self.skew_by_batch = skew == "by_batch"
        self.stairs = products == "stairs"
        self.overhead_ns = overhead_s * NS_PER_S * scale
        self.asynchronous = asynchronous
        self._scale = scale * NS_PER_S
        self._counts = dict.fromkeys(ONCE, 1) | {name: count * num_layers for name, count in PER_LAYER.items()}
        self._attention = tables.attention.seconds * (self._scale * num_layers)
        self._fixed: dict[tuple[int, int], float] = {}   # (tokens, sampled) -> ns: what was computed before

    def _dense_ns(self, tokens: int) -> dict[str, float]:
        return {
            name: _operator(name, self.tables.dense[name], tokens, self.stairs) * self._scale * count
            for name, count in self._counts.items()
        }

    def _per_sequence_ns(self, sampled: int) -> dict[str, float]:
        return {
            name: _operator(name, curve, sampled, self.stairs) * self._scale if sampled else 0.0
            for name, curve in self.tables.per_sequence.items()
        }

    def _fixed_ns(self, stats: StepStats) -> float:
        """Everything but attention."""
        key = stats.prefill_tokens + stats.decode_seqs, stats.sampled
        ns = self._fixed.get(key)
        if ns is None:
            ns = sum(self._dense_ns(key[0]).values()) + sum(self._per_sequence_ns(key[1]).values())
            self._fixed[key] = ns
        return ns

    def _past(self, stats: StepStats) -> tuple[float, float]:
        """Past tokens that give the step's attention pairs to one prefill of all its tokens, and the factor of its
        attention time where even no past gives more."""
        tokens = stats.prefill_tokens
        alone = tokens * (tokens + 1) / 2
        if stats.prefill_attn >= alone:
            return (stats.prefill_attn - alone) / tokens, 1.0
        return 0.0, stats.prefill_attn / alone

    def _over_context(self, stats: StepStats) -> tuple[FloatArray, float]:
        """Attention of all layers over the table's context axis, shape (contexts,), and its factor."""
        past, factor = self._past(stats) if stats.prefill_tokens else (0.0, 1.0)
        corners = [(0, 0, 0, 1.0)]
        values = (stats.prefill_tokens, past, stats.decode_seqs)
        for axis, (xs, x) in enumerate(zip(self.tables.attention.axes, values, strict=False)):
            i, weight = _bracket(xs, x)
            split = []
            for corner in corners:
                for step, part in ((0, 1.0 - weight), (1, weight)):
                    if part:
                        index = list(corner[:3])
                        index[axis] = i + step
                        split.append((index[0], index[1], index[2], corner[3] * part))
            corners = split
        total = np.zeros(self._attention.shape[3])
        for a, b, c, weight in corners:
            total = total + self._attention[a, b, c] * weight
        return total, factor

    def _alpha(self, stats: StepStats) -> float:
        if self.skew is None or stats.decode_seqs < 2:
            return 0.0
        if not self.skew_by_batch:
            return self.skew.single
        _, rows, columns, alpha = self.skew
        i, u = _bracket(rows, min(stats.prefill_tokens, rows[-1])) if len(rows) > 1 else (0, 0.0)
        j, v = _bracket(np.log2(columns), float(np.log2(np.clip(stats.decode_seqs, columns[0], columns[-1]))))
        low = alpha[i, j] * (1 - v) + alpha[i, j + 1] * v
        if not u:
            return float(low)
        return float(low * (1 - u) + (alpha[i + 1, j] * (1 - v) + alpha[i + 1, j + 1] * v) * u)

    def attention_ns(self, stats: StepStats, num_steps: int = 1) -> FloatArray:
        """Attention of all layers in each step of a run, shape (num_steps,)."""
        curve, factor = self._over_context(stats)
        contexts = self.tables.attention.axes[3]
        if not stats.decode_seqs:
            return np.full(num_steps, curve[0] * factor)
        step = np.arange(num_steps, dtype=np.float64)
        mean = (step * stats.decode_seqs + stats.decode_ctx) / stats.decode_seqs
        ns = line(contexts, curve, mean)
        alpha = self._alpha(stats)
        if alpha:
            ns = ns + alpha * (line(contexts, curve, step + stats.decode_ctx_max) - ns)
        return np.asarray(ns * factor if factor != 1.0 else ns)

    def operators_ns(self, stats: StepStats) -> dict[str, float]:
        """Nanoseconds by operator, all layers together; for reports."""
        out = self._dense_ns(stats.prefill_tokens + stats.decode_seqs)
        out["attention"] = float(self.attention_ns(stats)[0])
        return out | self._per_sequence_ns(stats.sampled)

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        ns = self.attention_ns(stats, num_steps) + self._fixed_ns(stats)
        ns = np.maximum(ns, self.overhead_ns) if self.asynchronous else ns + self.overhead_ns
        return np.maximum(np.rint(ns), 1.0).astype(np.int64)

    def step_ns(self, stats: StepStats) -> int:
        """Duration of one step in nanoseconds."""
        return int(self.run_ns(stats, 1)[0])

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """How many steps of each run left the tables, int64, shape (runs,)."""
        axes = self.tables.attention.axes
        tokens = next(iter(self.tables.dense.values()))[0][-1]
        seqs = next(iter(self.tables.per_sequence.values()))[0][-1]
        ranges = {
            "tokens": (0.0, float(tokens)), "prefill_tokens": (0.0, float(axes[0][-1])), "sampled": (0.0, float(seqs)),
            "decode_seqs": (0.0, float(axes[2][-1])), "decode_ctx_max": (0.0, float(axes[3][-1])),
        }
        return steps_outside(ranges, columns, num_steps)


@HARDWARE.register("layerwise")
class Layerwise(ConfigModel):
    """Sums of per-operator tables measured layer by layer."""

    kind: Literal["layerwise"] = "layerwise"
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Folder of the tables (dense.csv, per_sequence.csv, attention.csv, skew.csv), relative to the scenario."""
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """The model the tables were measured for: its number of layers multiplies them."""
    skew: Literal["single", "by_batch", "none"] = "single"
    """What decodes of unequal context cost beyond equal ones (where the folder has skew.csv): one alpha for all
    batches, one per batch, or nothing."""
    products: Literal["stairs", "lines"] = "stairs"
    """Matrix products between two measured points: the time of the upper one, or on a line between them."""
    overhead: Duration = 0.0
    """The engine's own time per step."""
    asynchronous: bool = True
    """Whether that time hides behind the device's (asynchronous scheduling); false adds it."""
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Multiplies every time."""

    def build(self, base_dir: Path | None = None) -> LayerwiseModel:
        """The model; the folder is relative to `base_dir`. Raises `InputError` for bad tables."""
        with inside("model"):
            layers = load_model(self.model, base_dir).num_layers
        folder = (base_dir or Path()) / self.path
        with inside("path"):
            if not folder.is_dir():
                raise InputError("a folder of operator tables", self.path)
            tables = load_operator_tables(folder)
        built = LayerwiseModel(
            tables, layers, skew=self.skew, products=self.products, overhead_s=self.overhead,
            asynchronous=self.asynchronous, scale=self.scale,
            name=folder.resolve().parent.name if folder.name == "profile" else folder.name,
        )
        built.model = self.model
        return built
