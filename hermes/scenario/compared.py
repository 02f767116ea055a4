"""Remarks on clients whose times were never compared with a server: latent attention, windows, many ranks of experts.

The comparisons are those of docs/background/ranks.md and docs/accuracy.md. Only named terms (`composed`) get a remark:
hardware that a user fitted has a comparison of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes.hardware.base import HardwareModel

__all__ = ["comparison_remarks"]

RANKS = 2   # most data-parallel ranks of a mixture that were compared with a server


def comparison_remarks(clients: Sequence[Any], hardware: Mapping[int, HardwareModel]) -> list[str]:
    """Return a line for each group of LLM clients with such properties.

    Args:
        clients: Configurations of the groups, completed.
        hardware: The hardware model of each group of LLM clients, by its place in `clients`.
    """
    found = []
    for number, built in hardware.items():
        client = clients[number]
        if client.hardware.kind != "composed":
            continue
        from hermes.hardware.adjusted import AdjustedModel  # other hardware leaves these modules unloaded
        from hermes.hardware.composed_terms import ComposedModel

        composed = built.base if isinstance(built, AdjustedModel) else built
        if not isinstance(composed, ComposedModel):
            continue
        model, ranks = composed.base.model, max(client.parallel.dp, client.hardware.dp)
        properties = [text for text, holds in (
            ("latent attention", model.mla is not None), ("sliding windows", model.window > 0),
            (f"more than {RANKS} data-parallel ranks of experts", model.num_experts > 0 and ranks > RANKS)) if holds]
        if properties:
            found.append(f"{client.name}: times with {' and '.join(properties)} were never compared with a server's "
                         "(docs/background/ranks.md)")
    return found
