"""What embedding tokens cost: LoRA by rank and tokens, pooling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

from hermes.errors import InputError
from hermes.hardware.base import STEP_STATS, StepStats
from hermes.hardware.descriptions.models import load_model
from hermes.hardware.lora import Adapter
from hermes.hardware.roofline import Roofline

MISTRAL = load_model("mistral-7b")


def step(tokens: int, embed: int, decodes: int = 0) -> StepStats:
    return StepStats(prefill_seqs=1, prefill_tokens=tokens, prefill_attn=tokens * (tokens + 1) // 2,
                     decode_seqs=decodes, decode_ctx=100 * decodes, decode_ctx_max=100, sampled=decodes,
                     embed_tokens=embed, embedded=int(embed > 0))


def test_the_work_of_an_adapter_by_hand() -> None:
    """Mistral-7B: q and o 4096 x 4096, k and v 4096 x 1024, gate, up and down 4096 x 14336; 32 layers."""
    adapter = Adapter.of(MISTRAL, 16, 1, 2.0)
    inputs_and_outputs = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert adapter.flops == 2 * 16 * inputs_and_outputs * 32 + 4096
    assert adapter.weight_bytes == 2 * 16 * inputs_and_outputs * 32
    moved = (4096 + 2 * 6144) + (4096 + 2 * 4096) + (4096 + 2 * 28672) + (14336 + 2 * 4096)
    assert adapter.token_bytes == 2 * (moved * 32 + 4096)


def test_without_embeddings_a_step_costs_what_it_did() -> None:
    plain, adapted = (Roofline(profile="mistral-7b-a100-40gb", embed_lora_rank=rank).build() for rank in (0, 64))
    stats = step(300, 0, decodes=20)
    assert adapted.step_ns(stats) == plain.step_ns(stats)
    assert "adapter" not in adapted.operators_ns(stats)


@quick_and_full(25, 100, derandomize=True)
@given(tokens=st.integers(1, 4000), more=st.integers(0, 500), decodes=st.integers(0, 200))
def test_more_rank_and_more_embedding_tokens_never_cost_less(tokens: int, more: int, decodes: int) -> None:
    models = [Roofline(profile="mistral-7b-a100-40gb", embed_lora_rank=rank).build() for rank in (0, 16, 64)]
    times = [model.step_ns(step(tokens + more, tokens, decodes)) for model in models]
    assert times == sorted(times)
    whole = [model.step_ns(step(tokens + more, tokens + more, decodes)) for model in models]
    assert all(a <= b for a, b in zip(times, whole, strict=True))


def test_columns_and_single_steps_agree() -> None:
    model = Roofline(profile="mistral-7b-a100-40gb", embed_lora_rank=16).build()
    steps = [step(100, 0), step(100, 100, 5), step(900, 128, 100)]
    columns = {name: np.array([getattr(s, name) for s in steps]) for name in STEP_STATS}
    assert np.rint(model.seconds(columns) * 1e9).astype(int).tolist() == [model.step_ns(s) for s in steps]


def test_a_mixture_of_experts_has_no_adapter() -> None:
    with pytest.raises(InputError, match="mixture of experts"):
        Roofline(model="mixtral-8x7b", device="a100-80gb", embed_lora_rank=16).build()
