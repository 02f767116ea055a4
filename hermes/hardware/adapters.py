"""Work of embedding tokens beside the transformer: a LoRA adapter on its linear layers, and pooling.

LoRA (E. Hu et al., arXiv 2106.09685) of rank r adds r (a + b) weights to a linear layer of `a` inputs and `b` outputs.
A token is shrunk to r values and expanded again: 2 r (a + b) flops. Unmerged, in a batch with tokens without an
adapter, the two are separate kernels (as in Punica, arXiv 2310.18547, and vLLM): the shrink reads the layer's input,
the expand reads and writes its output. Projections with a common input (q, k, v; gate, up) share the launches. All
seven projections have an adapter, as e5-mistral's do.

Pooling reads each token's last hidden state once and keeps one vector per embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.errors import InputError
from hermes.hardware.lora import projections
from hermes.hardware.models import ModelDescription
from hermes.sums import float_sum

__all__ = ["Adapter"]


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
