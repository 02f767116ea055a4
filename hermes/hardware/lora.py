"""Work of the requests' LoRA adapters in a step.

LoRA (E. Hu et al., arXiv 2106.09685) of rank r adds r (a + b) weights to a matrix of a inputs and b outputs. Adapters
of several requests cannot be merged into the weights of a batch: engines compute them beside it, in two kernels for
each projection (Punica, arXiv 2310.18547; vLLM's lora_shrink and lora_expand): x (rows x a) is shrunk to r values a
row, and those are expanded and added to the projection's output. Projections of one input (q, k, v; gate, up) share
both launches. Rows without an adapter are skipped.

For R rows of N distinct adapters, in each layer and for each projection with outputs b_1 to b_k:

    shrink:  flops 2 R r k a;      bytes N r k a w + R (a w + 4 r k)           (w bytes a value)
    expand:  flops 2 R r sum(b);   bytes N r sum(b) w + R (4 r k + 2 w sum(b))

The buffer between the two holds 32-bit values. Each kernel takes its launch plus the larger of its arithmetic and its
traffic. With tensor parallelism the inputs of o and down and the outputs of the others are divided by the devices, as
vLLM does without `fully_sharded_loras`: matrices A of q, k, v, gate and up, and B of o and down, are whole on each.

`Adapter` is what embedding tokens take besides the transformer: an adapter on all seven projections, as e5-mistral's
has, and pooling, which reads each token's last hidden state once and keeps one vector per embedding. Unmerged, in a
batch with tokens without an adapter, shrink and expand are separate kernels, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from hermes.config import ConfigModel
from hermes.errors import InputError
from hermes.hardware.descriptions.models import ModelDescription
from hermes.sums import float_sum

__all__ = ["ATTENTION", "BUFFER_BYTES", "MODULES", "Adapter", "Lora", "LoraWork", "Projection", "Rates", "named",
           "projections"]

Module = Literal["q", "k", "v", "o", "gate", "up", "down"]
ATTENTION: tuple[Module, ...] = ("q", "k", "v", "o")
MODULES: tuple[Module, ...] = (*ATTENTION, "gate", "up", "down")
BUFFER_BYTES = 4.0   # of a value between the two kernels


class Lora(ConfigModel):
    """LoRA adapters that the engine computes beside the model's weights, in each step with requests that have one."""

    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    """Rank that the kernels compute: vLLM's `max_lora_rank` (16 by default), up to which it pads smaller adapters."""
    modules: list[Module] | None = Field(default=None, min_length=1, max_length=7)
    """Matrices of each layer that have an adapter, of q, k, v, o, gate, up and down. Left out, all; of a mixture of
    experts those of attention, since adapters of experts are not modelled."""

    def of_model(self, model: ModelDescription) -> tuple[Module, ...]:
        """Return the modules of a model that have adapters. Raises `InputError` for experts'."""
        if self.modules is None:
            return ATTENTION if model.num_experts else MODULES
        wrong = next((name for name in self.modules if model.num_experts and name not in ATTENTION), None)
        if wrong is not None:
            raise InputError(f"modules of attention ({', '.join(ATTENTION)}): adapters of experts are not modelled",
                             wrong, field="lora.modules")
        return tuple(name for name in MODULES if name in self.modules)


class Projection(NamedTuple):
    """Matrices with one input on one device: names and their outputs, and the inputs."""

    names: tuple[Module, ...]
    inputs: float
    outputs: tuple[float, ...]


def projections(model: ModelDescription, tp: int) -> list[Projection]:
    """Return the projections of a dense layer on each of `tp` devices."""
    hidden, inner = model.hidden_size, model.intermediate_size / tp
    heads = model.num_heads * model.head_dim / tp
    kv = max(model.num_kv_heads / tp, 1.0) * model.head_dim
    up: tuple[Module, ...] = ("gate", "up") if model.gated_ffn else ("up",)
    return [Projection(("q", "k", "v"), hidden, (heads, kv, kv)), Projection(("o",), heads, (hidden,)),
            Projection(up, hidden, (inner,) * len(up)), Projection(("down",), inner, (hidden,))]


class Rates(NamedTuple):
    """Nanoseconds of a flop, of a byte, and of the launch of a kernel; bytes of a weight or activation."""

    flop_ns: float
    byte_ns: float
    launch_ns: float
    value_bytes: float


class _Kernel(NamedTuple):
    """One kernel of one layer: nanoseconds of a row's arithmetic, of a row's traffic, and of an adapter's weights."""

    flops_ns: float
    row_ns: float
    weights_ns: float


@dataclass(frozen=True)
class LoraWork:
    """Nanoseconds of the adapters of a step on one device, all layers together.

    Attributes:
        kernels: Those of one layer. layers: How many such layers. launch_ns: Of each kernel.
    """

    kernels: tuple[_Kernel, ...]
    layers: int
    launch_ns: float

    @classmethod
    def of(cls, model: ModelDescription, rank: int, modules: Collection[Module], tp: int, rates: Rates) -> LoraWork:
        """Return the work of adapters of `rank` on these modules."""
        value = rates.value_bytes
        found: list[_Kernel] = []
        for names, inputs, outputs in projections(model, tp):
            kept = [out for name, out in zip(names, outputs, strict=True) if name in modules]
            if not kept:
                continue
            k, out = len(kept), float_sum(kept)
            buffer = BUFFER_BYTES * rank * k
            found += [cls._kernel(rates, rank * k * inputs, inputs * value + buffer),
                      cls._kernel(rates, rank * out, buffer + 2 * out * value)]
        return cls(tuple(found), model.num_layers, rates.launch_ns)

    @staticmethod
    def _kernel(rates: Rates, weights: float, row_bytes: float) -> _Kernel:
        return _Kernel(2 * weights * rates.flop_ns, row_bytes * rates.byte_ns,
                       weights * rates.value_bytes * rates.byte_ns)

    def ns(self, rows: int, adapters: int) -> float:
        """Return the time of so many rows of so many distinct adapters; 0 without any."""
        if not adapters:
            return 0.0
        layer = float_sum(
            max(rows * one.flops_ns, rows * one.row_ns + adapters * one.weights_ns) for one in self.kernels)
        return self.layers * (layer + len(self.kernels) * self.launch_ns)


def named(modules: Sequence[Module]) -> str:
    """Return the modules in words."""
    return "all matrices" if set(modules) == set(MODULES) else ", ".join(modules)


@dataclass(frozen=True)
class Adapter:
    """Work of the embedding tokens of a step on one device, all layers together.

    Attributes:
        flops, token_bytes: Per token.
        weight_bytes, kernels: Per step with embedding tokens.
    """

    flops: float
    token_bytes: float
    weight_bytes: float
    kernels: int

    @classmethod
    def of(cls, model: ModelDescription, rank: int, tp: int, value_bytes: float) -> Adapter:
        """Return an adapter of `rank` (0: none, or merged into the weights) and pooling. Raises `InputError` for
        mixtures of experts, where each expert would need an adapter."""
        pooling = model.hidden_size * value_bytes
        if not rank:
            return cls(model.hidden_size, pooling, 0.0, 1)
        if model.num_experts:
            raise InputError("0 for a mixture of experts", rank, field="embed_lora_rank")
        layers = projections(model, tp)
        weights = float_sum(rank * (inputs + out) for _, inputs, outputs in layers for out in outputs)
        moved = float_sum(inputs + 2 * float_sum(outputs) for _, inputs, outputs in layers)
        return cls(
            2 * weights * model.num_layers + model.hidden_size, moved * value_bytes * model.num_layers + pooling,
            weights * value_bytes * model.num_layers, 2 * len(layers) * model.num_layers + 1,
        )
