"""Hardware model `roofline`: a transformer's operators on a device, each bound by arithmetic or by memory.

An operator (see `hermes.hardware.operators`) does `flops` and moves `bytes`. With c = flops / (peak * compute share)
and m = bytes / (memory bandwidth * memory share) it takes

    max(c, m) + (1 - overlap) * min(c, m) + latency of its kernels

With overlap 1 and no latencies this is the roofline (S. Williams et al., CACM 2009). The shares are fitted per class of
operators (`hermes.hardware.efficiency`). Every time grows with every load: shares and latencies are constants, and both
terms of an operator grow with tokens, pairs and context.

One batch is in flight: pipeline stages work one after the other, so a step is the sum of its stages and of the hops
between them. Several batches in one pipeline are not modelled (throughput of `pp` > 1 is a lower bound).

Only the decodes' attention changes within a run, and its time is proportional to the context: a step takes
`fixed + slope * (decode_ctx + decode_seqs)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from hermes.arrays import FloatArray, IntArray
from hermes.config import ConfigModel, Duration, Name
from hermes.config.validation import load
from hermes.errors import InputError, Verbatim, inside
from hermes.hardware.base import StepStats
from hermes.hardware.config import HardwareConfig
from hermes.hardware.descriptions.devices import DeviceDescription, load_device
from hermes.hardware.descriptions.files import find
from hermes.hardware.descriptions.models import ModelDescription, load_model, precision
from hermes.hardware.efficiency import Efficiency, EfficiencyFile, load_efficiency
from hermes.hardware.info import HardwareInfo
from hermes.hardware.lora import Adapter
from hermes.hardware.operators import DEQUANT_FLOPS, DEQUANT_TILE, Linear, Work
from hermes.hardware.trust import GUESS, NEAR, Trust
from hermes.units import NS_PER_S

if TYPE_CHECKING:
    from hermes.hardware.composed.boxes import AssumedLink

__all__ = ["Roofline", "RooflineModel", "RooflineOptions", "RooflineProfile", "load_roofline_profile"]

Dtype = Literal["auto", "bf16", "fp16", "fp32", "fp8", "fp8-block", "int8", "int4-awq", "int4", "mxfp4", "mxfp4-w4a4",
                "nvfp4"]
KvDtype = Literal["auto", "bf16", "fp16", "fp32", "fp8"]
Reference = Annotated[str, Field(max_length=4096)]


class RooflineOptions(NamedTuple):
    """Options of a roofline model, besides its model, device and factors; the defaults of `Roofline`.

    model: The name or path of the model's description, "" if the description itself was given.
    """

    model: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
    embed_lora_rank: int = 0
    step_overhead: float | None = None


class Roofline(HardwareConfig):
    """Analytical step times for any model description on any device."""

    kind: Literal["roofline"] = "roofline"
    profile: Reference = ""
    """A shipped description (`hw_profiles/roofline/NAME.yaml`) or a file of that form: model, device and the other
    options in one. Options given here override it."""
    model: Reference = ""
    """A model description: shipped name, YAML file, or Hugging Face config.json. Required without `profile`."""
    device: Reference = ""
    """A device description: shipped name or YAML file. Required without `profile`."""
    tp: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Devices that share every layer (tensor parallelism). Left out, the profile's, or 1."""
    pp: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Pipeline stages, with one batch in flight. Left out, the profile's, or 1."""
    dtype: Dtype | None = None
    """Storage of the layers' weights. auto is that of the model description (the `quantization_config` of a
    config.json), or bf16 (fp16 on a device without). Activations are 16 bits (32 with fp32). Left out, the profile's,
    or auto."""
    kv_dtype: KvDtype | None = None
    """Storage of the KV cache. auto is that of the activations. Left out, the profile's, or auto."""
    efficiency: Reference | Efficiency | None = None
    """Efficiency factors: shipped name, YAML file, or the factors themselves. `auto` is the set that the device's
    description names. Left out, the profile's, or auto."""
    embed_lora_rank: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Rank of the LoRA adapter for tokens of embeddings; 0: none, or merged into the weights. Left out, the profile's,
    or 0."""
    step_overhead: Duration | None = None
    """Time per step outside the operators (the engine, sampling). Left out, that of the factors."""

    def build(self, base_dir: Path | None = None, dp: int = 1, layers: int | None = None) -> RooflineModel:
        """Build the model. Raises `InputError` for unknown or malformed descriptions and a `tp` that does not fit.

        dp: ranks that share a mixture's experts; `composed` gives it to the roofline under it
        layers: as many layers only, as for `composed`
        """
        if self.profile:
            with inside("profile"):
                described = load_roofline_profile(self.profile, base_dir).roofline
            return described.model_copy(update=self._given(type(self).model_fields)).build(base_dir, dp, layers)
        for name in ("model", "device"):
            if not getattr(self, name):
                raise InputError(Verbatim("missing: give a name or a path, or a `profile` that has it"), field=name)
        with inside("model"):
            model = load_model(self.model, base_dir)
        if layers is not None:
            model = model.model_copy(update={"num_layers": layers, "dense_layers": 0, "window": 0, "window_layers": 0})
        with inside("device"):
            device = load_device(self.device, base_dir)
        with inside("efficiency"):
            file = self._factors(device, base_dir)
        return RooflineModel(self.options._replace(dp=dp), model, device, file)

    @property
    def options(self) -> RooflineOptions:
        """Options given, with the defaults for the rest."""
        return RooflineOptions(**self._given(RooflineOptions._fields))

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the options that are not left out: references are left out if empty, others if None."""
        values = {name: getattr(self, name) for name in names if name not in ("kind", "profile", "dp")}
        return {name: value for name, value in values.items() if value is not None and value != ""}

    def _factors(self, device: DeviceDescription, base_dir: Path | None) -> EfficiencyFile:
        if isinstance(self.efficiency, Efficiency):
            return EfficiencyFile(format="hermes-efficiency/1", name="given", sources=[], factors=self.efficiency)
        name = self.efficiency or "auto"
        if name == "auto":
            if not device.efficiency:
                raise InputError(
                    Verbatim(f"device {device.name} names no efficiency factors; write `ideal` for the plain roofline, "
                             "or `generic` for the median of measured cards"),
                )
            name = device.efficiency
        return load_efficiency(name, base_dir)


class RooflineProfile(ConfigModel):
    """A named analytical description, format `hermes-roofline/1`: model, device and options, sources of the figures,
    and error of the factors on models they were not fitted on."""

    format: Literal["hermes-roofline/1"]
    name: Name
    roofline: Roofline
    provenance: Annotated[list[str], Field(min_length=1)]
    error: str
    """Held-out error of the efficiency factors and its card, or a statement that there is none."""

    @model_validator(mode="after")
    def _complete(self) -> RooflineProfile:
        if self.roofline.profile or not (self.roofline.model and self.roofline.device):
            raise InputError("a model and a device, and no other profile", field="roofline")
        return self


def load_roofline_profile(name_or_path: str | Path, base_dir: Path | None = None) -> RooflineProfile:
    """Load a shipped description by name (`mistral-7b-a40`), or a file by path. Raises `InputError`."""
    path = find(name_or_path, base_dir, "roofline", "an analytical description")
    return load(RooflineProfile, path)


class RooflineModel:
    """Operators of one model on one device, reduced to nanoseconds per token, pair and context token."""

    prices_drafts = True

    def __init__(
        self, options: RooflineOptions, model: ModelDescription, device: DeviceDescription, file: EfficiencyFile
    ) -> None:
        if options.dtype == "auto":
            options = options._replace(dtype=model.dtype or device.half)
        if options.dtype == "bf16" and device.half == "fp16":
            raise InputError(Verbatim(f"{device.name} has no bf16; write fp16, or leave it out"), field="dtype")
        self.options, self.model, self.device, self.factors_file = options, model, device, file
        self.work = Work.of(model, tp=options.tp, pp=options.pp, dp=options.dp, dtype=options.dtype,
                            kv_dtype=options.kv_dtype).on(device.computes)
        self.efficiency = factors = file.of(self.work.compute)
        pp = f"-pp{options.pp}" if options.pp > 1 else ""
        self.name = f"{model.name}-{device.name}-tp{options.tp}{pp}-{options.dtype}"
        self.description = (f"roofline of {model.name} on {options.tp * options.pp} x {device.name}, {options.dtype}, "
                            f"efficiency factors {file.name}")
        self._set_rates(factors, options.step_overhead)

    @property
    def info(self) -> HardwareInfo:
        """Properties: the device, the options, and the work on each device."""
        options = self.options
        return HardwareInfo(self.name, "roofline", options.model, options.tp * options.pp, options.tp, options.pp,
                            options.dtype, options.kv_dtype, self.device, work=self.work, dp=options.dp,
                            assumed_links=self._assumed)

    def _set_rates(self, factors: Efficiency, step_overhead: float | None) -> None:
        work, device = self.work, self.device
        wide, byte = NS_PER_S / device.peak(work.wide), NS_PER_S / device.memory_bandwidth
        latency = factors.kernel_latency * NS_PER_S
        self._hidden = 1 - factors.overlap
        self._linears = [(one.name, *self._linear(one, self.factors_file.of(one.compute))) for one in work.linears]
        # output head, on sampled rows
        head = factors.lm_head
        self._head_flop = work.head_flops * wide / head.compute
        self._head_fixed = work.head_bytes * byte / head.memory
        self._head_row = work.head_row_bytes * byte / head.memory
        self._head_latency = latency if work.head_bytes else 0.0
        attention = factors.prefill_attention
        self._pair = work.pair_flops * wide / attention.compute
        self._tile = factors.attention_tile
        self._prefill_kv = work.kv_bytes * byte / attention.memory
        self._prefill_query = work.query_bytes * byte / attention.memory
        self._prefill_latency = factors.prefill_attention_latency * NS_PER_S * work.layers
        attention = factors.decode_attention
        pair, kv = work.context_flops * wide / attention.compute, work.kv_bytes * byte / attention.memory
        self._slope = max(pair, kv) + self._hidden * min(pair, kv)
        self._decode_query = work.query_bytes * byte / attention.memory
        self._decode_latency = factors.decode_attention_latency * NS_PER_S * work.layers
        self._elementwise = work.elementwise_bytes * byte / factors.elementwise
        self._step = latency * work.elementwise_kernels
        self._step += (factors.step_overhead if step_overhead is None else step_overhead) * NS_PER_S
        self._set_adapter(factors, latency, wide, byte)
        self._link = self._link_fixed = 0.0
        self._assumed: tuple[AssumedLink, ...] = ()
        if self.options.tp * self.options.pp > device.box:
            self._cross_boxes(factors)
            return
        if work.all_reduces:
            share = factors.all_reduce_of(self.options.tp)
            self._link = work.all_reduce_bytes * NS_PER_S / (device.link_bandwidth * share.bandwidth)
            self._link_fixed = work.all_reduces * share.latency * NS_PER_S
        if work.hops:  # point to point: the factors of the smallest group
            share = factors.all_reduce_of(2)
            self._link += work.hop_bytes * NS_PER_S / (device.link_bandwidth * share.bandwidth)
            self._link_fixed += work.hops * share.latency * NS_PER_S

    def _cross_boxes(self, factors: Efficiency) -> None:
        """Set rates of collectives across boxes (`hermes.hardware.composed.boxes`): formulas, two points of a line."""
        from hermes.hardware.composed.engine_links import EngineLinks

        options, work = self.options, self.work
        links = EngineLinks(self.device, factors, None, None, None, None, False, options.tp, options.pp, 1)
        row = self.model.hidden_size * precision(options.dtype).other_bytes
        reduces, (hops, *_) = links.tensor(), links.hops()
        if reduces is None and work.all_reduces:
            reduces = links.inside(options.tp)
        parts = [] if reduces is None else [(reduces.captured, work.all_reduces, row)]
        for (sizes, ns), count, size in [*parts, *((hop, 1, row / options.tp) for hop in hops)]:
            self._link_fixed += count * float(ns[0])
            self._link += count * size * float((ns[-1] - ns[0]) / sizes[-1])
        self._assumed = tuple(links.assumed)

    def _set_adapter(self, factors: Efficiency, latency: float, wide: float, byte: float) -> None:
        """Set the rates of embedding tokens: adapters reach the projections' share of peak arithmetic, and stream their
        activations as element-wise operators do."""
        options = self.options
        adapter = Adapter.of(
            self.model, options.embed_lora_rank, options.tp, precision(options.dtype).other_bytes)
        self._adapter_flop = adapter.flops * wide / factors.qkv_o.compute
        self._adapter_token = adapter.token_bytes * byte / factors.elementwise
        self._adapter_fixed = adapter.weight_bytes * byte / factors.elementwise
        self._adapter_latency = latency * adapter.kernels

    def _linear(self, linear: Linear, factors: Efficiency) -> tuple[bool, float, float, float, float, float]:
        """Return (experts?, arithmetic ns per token and per step, weight ns, activation ns per token, latency)."""
        work, device = self.work, self.device
        shares = getattr(factors, linear.kind)
        flop = NS_PER_S / (device.peak(linear.compute) * shares.compute)
        byte = NS_PER_S / (device.memory_bandwidth * shares.memory)
        per_token, fixed = 2 * linear.weights * flop, 0.0
        if linear.dequantised:  # weights are widened once per tile of tokens
            vector = DEQUANT_FLOPS * NS_PER_S / (device.peak("fp32") * shares.compute)
            fixed = linear.stored * vector
            per_token += linear.weights / DEQUANT_TILE * vector
        per_token *= work.calls(linear)
        return (linear.kind == "experts", per_token, fixed, linear.weight_bytes * byte,
                linear.token_bytes * work.calls(linear) * byte,
                linear.kernels * factors.kernel_latency * NS_PER_S)

    def operators_ns(
        self, stats: Any, maximum: Callable[[Any, Any], Any] = max, minimum: Callable[[Any, Any], Any] = min
    ) -> dict[str, Any]:
        """Return nanoseconds by operator, all layers together, without the decodes' context. `step_ns` adds them in
        this order. `stats` may hold arrays instead of numbers, with numpy's maximum and minimum."""
        hidden, prefill = self._hidden, stats.prefill_tokens
        tokens = prefill + stats.decode_seqs + stats.drafts
        out: dict[str, Any] = {}
        for name, experts, per_token, fixed, weight, activation, latency in self._linears:
            if experts:
                read = self.work.experts_read(tokens)
                weight, fixed = weight * read, fixed * read
            c, m = per_token * tokens + fixed, weight + activation * tokens
            out[name] = maximum(c, m) + hidden * minimum(c, m) + latency
        c = self._pair * (self.work.pairs(stats, minimum) + self._tile * prefill)
        m = self._prefill_kv * (stats.prefill_past + prefill) + self._prefill_query * prefill
        out["prefill_attention"] = maximum(c, m) + hidden * minimum(c, m) + (prefill > 0) * self._prefill_latency
        seqs = stats.decode_seqs
        out["decode_attention"] = self._decode_query * seqs + (seqs > 0) * self._decode_latency
        c = self._head_flop * stats.sampled
        m = self._head_fixed + self._head_row * stats.sampled
        out["lm_head"] = (stats.sampled > 0) * (maximum(c, m) + hidden * minimum(c, m) + self._head_latency)
        out["elementwise"] = self._elementwise * tokens
        out["all_reduce"] = self._link * tokens + self._link_fixed
        out["overhead"] = self._step
        embed = getattr(stats, "embed_tokens", 0)
        if type(embed) is not int or embed:   # columns, or a step with embeddings
            c, m = self._adapter_flop * embed, self._adapter_fixed + self._adapter_token * embed
            out["adapter"] = (embed > 0) * (maximum(c, m) + hidden * minimum(c, m) + self._adapter_latency)
        return out

    def terms_ns(self, stats: StepStats) -> dict[str, float]:
        """Return nanoseconds by operator, with the decodes' context, those that take any; `step_ns` is their sum."""
        out = self.operators_ns(stats)
        out["decode_attention"] += self._slope * self._context(stats)
        return {name: float(ns) for name, ns in out.items() if ns}

    def trust_of(self) -> dict[str, Trust]:
        """Return class and range of each term: factors of this very card are near, others a guess."""
        found = NEAR if self.device.efficiency == self.device.name else GUESS
        return dict.fromkeys(self.sources_of(), found)

    def sources_of(self) -> dict[str, str]:
        """Return where each term comes from, by its name in `terms_ns`."""
        text = f"roofline of {self.device.name}, factors {self.device.efficiency or 'given'}"
        widened = {one.name: f"{text}: weights widened, multiplied in 16 bits"
                   for one in self.work.linears if one.dequantised}
        return dict.fromkeys(self.operators_ns(StepStats(prefill_tokens=1)), text) | widened

    def step_ns(self, stats: StepStats) -> int:
        """Return the duration of one step in nanoseconds."""
        ns = sum(self.operators_ns(stats).values()) + self._slope * self._context(stats)
        return round(ns) if ns > 1.0 else 1

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        """Return the durations of `num_steps` steps in nanoseconds, int64, shape (num_steps,)."""
        seqs = stats.decode_seqs
        context = np.arange(num_steps, dtype=np.float64) * seqs + (stats.decode_ctx + seqs)
        ns = sum(self.operators_ns(stats).values()) + self._slope * self.work.within(context, seqs, np.minimum)
        out: IntArray = np.maximum(np.rint(ns), 1.0).astype(np.int64)
        return out

    def seconds(self, columns: dict[str, Any]) -> FloatArray:
        """Return the durations of many steps in seconds, shape of the columns (one array per `StepStats` field)."""
        stats = SimpleNamespace(drafts=0, **columns)
        ns = sum(self.operators_ns(stats, np.maximum, np.minimum).values())
        return np.asarray((ns + self._slope * self._context(stats, np.minimum)) / NS_PER_S)

    def _context(self, stats: Any, minimum: Callable[[Any, Any], Any] = min) -> Any:
        """Context tokens of the decodes, the token of this step included, less what sliding windows leave out."""
        return self.work.within(stats.decode_ctx + stats.decode_seqs, stats.decode_seqs, minimum)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        """Return zeros: an analytical model has no measured range."""
        return np.zeros(len(num_steps), dtype=np.int64)
