"""Hardware model `composed`: a step is a sum of named terms, each with its source.

    step = max(device, host)            (asynchronous scheduling; otherwise device + host)
    device = embedding and element-wise operators + qkv + o_proj + gate_up + down + lm_head + sampling
           + attention of prompts + attention of decodes + decodes beside a prompt + all_reduce

A term is filled from the best source there is for the device and the model: the card's kernel tables
(`hermes.hardware.kernel_tables`), else the roofline with the card's efficiency factors
(`hermes.hardware.roofline`). `describe` says which.

Decode batches up to the engine's largest captured size run inside a CUDA graph and are padded to the next captured
size. Matrix products and element-wise operators then compute the padding too.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hermes.config import Bandwidth, ConfigModel, Duration
from hermes.errors import inside
from hermes.hardware.base import HARDWARE, FloatArray, IntArray, StepStats
from hermes.hardware.kernel_curves import Grid, Roof, decode_grid, gemm_times, prefill_grid
from hermes.hardware.kernel_tables import KernelTables, load_kernels, shipped_kernels
from hermes.hardware.models import precision
from hermes.hardware.operators import kv_value_bytes
from hermes.hardware.roofline import Dtype, KvDtype, Roofline, RooflineModel
from hermes.units import NS_PER_S

__all__ = ["Composed", "ComposedModel", "HostTime", "Sources"]

RATIO = 1.2                 # between neighbouring points of the grids that curves are sampled on
LARGEST = 2**21             # tokens of context that a step's grids reach; proportional beyond
FAR = 2.0**20


def _spaced(last: float) -> FloatArray:
    """1, 2, 3, ... up to `last`, neighbours at most `RATIO` apart, whole numbers."""
    count = int(np.ceil(np.log(last) / np.log(RATIO))) + 1
    return np.unique(np.rint(np.geomspace(1.0, last, count)))


@dataclass(frozen=True)
class HostTime:
    """Host time of a step, in nanoseconds: fixed, and for each sequence of the batch."""

    fixed_ns: float = 0.0
    per_seq_ns: float = 0.0
    asynchronous: bool = True


@dataclass(frozen=True)
class BesidePrompt:
    """What decodes cost in one attention launch with a prompt, for each layer.

    seq_ns, seq_token_ns: of each decode, fixed and for each token of the longest prompt: the launch has as many tiles
        for a decode as for the prompt, and all but one are empty
    read: over the time to read the decodes' KV at the memory's peak rate (no split of long contexts, no packing of
        the query heads that share a KV head)
    """

    seq_ns: float = 0.0
    seq_token_ns: float = 0.0
    read: float = 1.0


@dataclass(frozen=True)
class Sources:
    """Parameters of the terms that neither tables nor roofline give.

    capture_sizes: batch sizes of the engine's CUDA graphs, ascending; empty if the engine captures none
    sampling_ns, sampling_row_ns: kernels between the output head and the token, fixed and for each sampled row
    beside: what decodes cost in one attention launch with a prompt
    skew: share of the way from decodes of equal context to decodes that all have the longest one
    """

    capture_sizes: tuple[int, ...] = ()
    sampling_ns: float = 0.0
    sampling_row_ns: float = 0.0
    beside: BesidePrompt = field(default_factory=lambda: BesidePrompt())
    skew: float = 0.058


class _Line:
    """A piecewise linear function; the same bits for a number and for each element of an array."""

    def __init__(self, xs: FloatArray, ys: FloatArray) -> None:
        """`xs` ascending, from at most the smallest argument to at least the largest."""
        self._xs, self._ys, self._slopes = xs, ys, np.diff(ys) / np.diff(xs)
        self._lists = xs.tolist(), ys.tolist(), self._slopes.tolist()
        self._last = len(xs) - 2

    def at(self, x: float) -> float:
        """The value at a number."""
        xs, ys, slopes = self._lists
        i = min(max(bisect_right(xs, x) - 1, 0), self._last)
        return ys[i] + slopes[i] * (x - xs[i])

    def along(self, x: FloatArray) -> FloatArray:
        """The values at an ascending array. Most runs lie between two points."""
        xs, ys, slopes = self._lists
        i = min(max(bisect_right(xs, x[0]) - 1, 0), self._last)
        j = min(max(bisect_right(xs, x[-1]) - 1, 0), self._last)
        if i == j:
            return np.asarray(ys[i] + slopes[i] * (x - xs[i]))
        k = np.minimum(np.maximum(np.searchsorted(self._xs, x, side="right") - 1, 0), self._last)
        return np.asarray(self._ys[k] + self._slopes[k] * (x - self._xs[k]))


class _Surface:
    """A grid read as a line over its columns for each row value; in proportion beyond the last row and column."""

    def __init__(self, grid: Grid, scale: float) -> None:
        self.rows = grid.rows.tolist()
        self.columns = np.append(grid.columns, grid.columns[-1] * FAR)
        self.ns = np.concatenate([grid.ns, grid.ns[:, -1:] * FAR], axis=1) * scale
        self._lines: dict[float, _Line] = {}

    def line(self, at: float) -> _Line:
        """The times over the columns at one row value."""
        found = self._lines.get(at)
        if found is None:
            rows = self.rows
            if at >= rows[-1]:
                ns = self.ns[-1] * (at / rows[-1])
            else:
                i = max(0, bisect_right(rows, at) - 1)
                weight = max(0.0, (at - rows[i]) / (rows[i + 1] - rows[i]))
                ns = self.ns[i] + (self.ns[i + 1] - self.ns[i]) * weight
            found = self._lines[at] = _Line(self.columns, ns)
        return found


class ComposedModel:
    """Named terms of one model on one kind of device. All answers are in nanoseconds."""

    def __init__(self, base: RooflineModel, kernels: KernelTables | None, host: HostTime, sources: Sources,
                 link: tuple[FloatArray, FloatArray] | None = None) -> None:
        """`base` gives the model's shapes, the device's rates and what the kernel tables do not hold; `link` the
        nanoseconds of one all-reduce over bytes, where they are known better than `base` says."""
        self.base, self.kernels, self.host, self.sources = base, kernels, host, sources
        self.name = base.name
        self.described: dict[str, str] = {}
        self._fixed: dict[tuple[int, int], float] = {}
        device, model, options = base.device, base.model, base.options
        self._roof = Roof(device.peak(base.work.compute) / 1e9, device.memory_bandwidth / 1e9)
        self._wide = Roof(device.peak(base.work.wide) / 1e9, device.memory_bandwidth / 1e9)
        self._rows = _spaced(2**17)
        self._linears: list[tuple[str, FloatArray]] = []
        self._head: FloatArray | None = None
        self._prefill: _Surface | None = None
        self._decode: _Surface | None = None
        if kernels is not None:
            self._read(kernels)
        self._link = link
        if link is None and kernels is not None and options.tp in kernels.all_reduce_ranks:
            self._link = kernels.all_reduce(options.tp, captured=True)
        self._reduces = base.work.all_reduces
        self._reduced_bytes = model.hidden_size * precision(options.dtype).other_bytes
        beside, layers = sources.beside, model.num_layers
        self._beside = beside.read * base.work.kv_bytes / self._roof.bytes
        self._empty, self._empty_token = beside.seq_ns * layers, beside.seq_token_ns * layers
        self._launch = self._decode.line(1).at(1.0) if self._decode is not None else 0.0

    def _read(self, kernels: KernelTables) -> None:
        """Fill what the kernel tables hold."""
        model, options = self.base.model, self.base.options
        kind = precision(options.dtype)
        tp, layers, hidden, hd = options.tp, model.num_layers, model.hidden_size, model.head_dim
        heads, kv_heads = model.num_heads // tp, max(model.num_kv_heads // tp, 1)
        gemm = None if kind.dequantised else kernels.gemm("bf16" if options.dtype == "fp16" else options.dtype)
        if gemm is not None and not model.num_experts:
            inner = model.intermediate_size / tp
            shapes = {"qkv": ((heads + 2 * kv_heads) * hd, hidden), "o_proj": (hidden, heads * hd),
                      "gate_up" if model.gated_ffn else "up": (inner * (2 if model.gated_ffn else 1), hidden),
                      "down": (hidden, inner)}
            for name, (n, k) in shapes.items():
                times = gemm_times(gemm, self._roof, kind.layer_bytes, self._rows, n, k)
                self._linears.append((name, times * layers))
        wide = kernels.gemm("bf16")
        if wide is not None and model.output_head != "none":
            self._head = gemm_times(wide, self._wide, 2.0, self._rows, model.vocab_size / tp, hidden)
        kv = "fp8" if kv_value_bytes(options.kv_dtype, options.dtype) == 1 else "bf16"
        dims = kernels.head_dims("decode", kv)
        if not dims or not model.causal:
            return
        measured = next((dim for dim in dims if dim >= hd), dims[-1])
        prefill, decode = kernels.attention("prefill", measured, kv), kernels.attention("decode", measured, kv)
        if prefill is None or decode is None:
            return
        lengths = _spaced(LARGEST)
        self._prefill = _Surface(
            prefill_grid(prefill, self._wide, heads, kv_heads, hd, measured, _spaced(2**17), lengths), layers)
        self._decode = _Surface(
            decode_grid(decode, self._wide, heads, kv_heads, hd, measured, 1.0 if kv == "fp8" else 2.0,
                        _spaced(2048), lengths), layers)

    def rows(self, tokens: int) -> int:
        """Tokens that the linear operators compute: the next captured size."""
        sizes = self.sources.capture_sizes
        if not sizes or tokens > sizes[-1]:
            return tokens
        return sizes[bisect_right(sizes, tokens - 1)]

    def _at(self, times: FloatArray, rows: float) -> float:
        last = float(self._rows[-1])
        return float(np.interp(rows, self._rows, times)) if rows <= last else float(times[-1]) * rows / last

    def fixed_terms(self, tokens: int, sampled: int) -> dict[str, float]:
        """All terms but attention and host, by name."""
        base, rows = self.base, self.rows(tokens)
        stats = StepStats(decode_seqs=rows, sampled=sampled)
        roof = base.operators_ns(stats)
        out: dict[str, float] = {}
        if self._linears:
            out.update((name, self._at(times, rows)) for name, times in self._linears)
        else:
            out.update((name, roof[name]) for name, *_ in base._linears)
        out["elementwise"] = roof["elementwise"] + base._step
        if sampled:
            out["lm_head"] = roof["lm_head"] if self._head is None else self._at(self._head, sampled)
            out["sampling"] = self.sources.sampling_ns + self.sources.sampling_row_ns * sampled
        if self._reduces:
            if self._link is None:
                out["all_reduce"] = roof["all_reduce"]
            else:
                sizes, times = self._link
                size = rows * self._reduced_bytes
                one = float(np.interp(size, sizes, times)) if size <= sizes[-1] else float(times[-1] * size / sizes[-1])
                out["all_reduce"] = self._reduces * one
        return out

    def _fixed_ns(self, tokens: int, sampled: int) -> float:
        key = tokens, sampled
        ns = self._fixed.get(key)
        if ns is None:
            ns = self._fixed[key] = sum(self.fixed_terms(tokens, sampled).values())
        return ns

    def _prefill_ns(self, stats: StepStats) -> float:
        tokens = stats.prefill_tokens
        if not tokens:
            return 0.0
        if self._prefill is None:
            return float(self.base.operators_ns(stats)["prefill_attention"])
        return self._prefill.line(tokens).at(max(1.0, 2.0 * stats.prefill_attn / tokens - 1.0))

    def _decode_ns(self, stats: StepStats, step: Any) -> Any:
        """Attention of the decodes of all layers, in step number `step` of a run, or in an array of steps."""
        seqs, total = stats.decode_seqs, step * stats.decode_seqs + (stats.decode_ctx + stats.decode_seqs)
        if self._decode is None:
            return self._lone_decodes(seqs) + self.base._slope * total
        one = type(step) is int
        line = self._decode.line(seqs)
        ns = line.at(total) if one else line.along(total)
        skew = self.sources.skew
        if skew and stats.decode_ctx < stats.decode_ctx_max * seqs:
            longest = (step + (stats.decode_ctx_max + 1)) * seqs
            ns = ns + skew * ((line.at(longest) if one else line.along(longest)) - ns)
        if stats.prefill_tokens:
            prompt = stats.prefill_tokens / stats.prefill_seqs
            more, read = ns - self._launch, seqs * (self._empty + self._empty_token * prompt) + self._beside * total
            return max(more, read) if one else np.maximum(more, read)
        return ns

    def _lone_decodes(self, seqs: int) -> float:
        return float(self.base.operators_ns(StepStats(decode_seqs=seqs))["decode_attention"])

    def terms_ns(self, stats: StepStats) -> dict[str, float]:
        """Nanoseconds by term; `step_ns` is their sum, but for what the host hides."""
        out = self.fixed_terms(stats.prefill_tokens + stats.decode_seqs, stats.sampled)
        if stats.prefill_tokens:
            out["attention of prompts"] = self._prefill_ns(stats)
        if stats.decode_seqs:
            name = "decodes beside a prompt" if stats.prefill_tokens else "attention of decodes"
            out[name] = self._decode_ns(stats, 0)
        return out

    def _parts(self, stats: StepStats) -> tuple[float, float]:
        """Device time without the decodes' attention, and host time."""
        fixed = self._fixed_ns(stats.prefill_tokens + stats.decode_seqs, stats.sampled) + self._prefill_ns(stats)
        return fixed, self.host.fixed_ns + self.host.per_seq_ns * (stats.decode_seqs + stats.prefill_seqs)

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        if not stats.decode_seqs:
            return np.full(num_steps, self.step_ns(stats), dtype=np.int64)
        fixed, host = self._parts(stats)
        ns = self._decode_ns(stats, np.arange(num_steps, dtype=np.float64)) + fixed
        ns = np.maximum(ns, host) if self.host.asynchronous else ns + host
        return np.asarray(np.maximum(np.rint(ns), 1.0).astype(np.int64))

    def step_ns(self, stats: StepStats) -> int:
        """Duration of one step in nanoseconds."""
        ns, host = self._parts(stats)
        if stats.decode_seqs:
            ns = self._decode_ns(stats, 0) + ns
        ns = max(ns, host) if self.host.asynchronous else ns + host
        return max(round(ns), 1)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Zeros so far."""
        return np.zeros(len(num_steps), dtype=np.int64)


CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes of the CUDA graphs that vLLM captures by default (vllm/config/vllm.py, 0.15 to 0.32)."""


class Link(ConfigModel):
    """An all-reduce over a link: latency + bytes / bandwidth, of one all-reduce with a message of `bytes`."""

    latency: Duration
    bandwidth: Bandwidth


class Beside(ConfigModel):
    """What decodes cost in one attention launch with a prompt, for each layer."""

    per_seq: Duration = 0.0
    per_seq_token: Duration = 0.0
    read: Annotated[float, Field(ge=0, le=100)] = 1.0


class Host(ConfigModel):
    """Host time of each step."""

    per_step: Duration = 0.0
    per_seq: Duration = 0.0


@HARDWARE.register("composed")
class Composed(ConfigModel):
    """Step times composed of named terms, each from the best source there is for the device and the model."""

    kind: Literal["composed"] = "composed"
    model: Annotated[str, Field(min_length=1, max_length=4096)]
    """A model description: shipped name, YAML file, or Hugging Face config.json."""
    device: Annotated[str, Field(min_length=1, max_length=4096)]
    """A device description: shipped name or YAML file."""
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices that share every layer (tensor parallelism)."""
    dtype: Dtype = "auto"
    """Storage of the layers' weights; auto is that of the model description."""
    kv_dtype: KvDtype = "auto"
    """Storage of the KV cache; auto is that of the activations."""
    link: Link | None = None
    """Link between the devices; that of the device's kernel tables or efficiency factors where left out."""
    host: Host = Field(default_factory=Host)
    """Host time of each step."""
    asynchronous: bool = True
    """Whether the host prepares the next step while the device computes this one."""
    beside: Beside = Field(default_factory=lambda: Beside())
    """What decodes cost in one attention launch with a prompt."""
    sampling: Duration = 0.0
    """Kernels between the output head and the sampled token."""

    def build(self, base_dir: Path | None = None) -> ComposedModel:
        """The model. Raises `InputError` for unknown or malformed descriptions and a `tp` that does not fit."""
        base = Roofline(model=self.model, device=self.device, tp=self.tp, dtype=self.dtype,
                        kv_dtype=self.kv_dtype).build(base_dir)
        with inside("device"):
            name = base.device.name
            kernels = load_kernels(name) if name in shipped_kernels() else None
        host = HostTime(self.host.per_step * NS_PER_S, self.host.per_seq * NS_PER_S, self.asynchronous)
        link = None
        if self.link is not None:
            sizes = np.array([0.0, 2.0**40])
            link = sizes, (self.link.latency + sizes / self.link.bandwidth) * NS_PER_S
        sources = Sources(CAPTURED if base.device.type == "gpu" else (), self.sampling * NS_PER_S, 0.0,
                          BesidePrompt(self.beside.per_seq * NS_PER_S, self.beside.per_seq_token * NS_PER_S,
                                       self.beside.read))
        return ComposedModel(base, kernels, host, sources, link)
