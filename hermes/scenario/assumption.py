"""One default that a scenario leaves alone, its alternative, and the alternative's effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Assumption", "Change"]


@dataclass(frozen=True)
class Change:
    """Changes by an alternative, for pricing a run again; all empty where it needs a simulation.

    Attributes:
        hardware: Fields of the hardware of named terms to replace, by the number of the client group.
        scales: Factors of named terms, by group.
        fixed_s: Seconds added to each step, by group.
        request_s: Seconds added to each stage of an LLM before its first token, by group.
        prompt_s: Seconds added to each step for each sequence that computes its prompt, by group.
        whole_prompts: Groups that compute prompts whole, with the tokens that their prefix caches hold now.
        larger_batches: Whether slower steps make larger batches; not where no batch is large enough to keep up.
        kv_bytes_per_s, other_bytes_per_s: Rate of the links for KV between roles, and for all other transfers.
        unpriced_dollars: Dollars per hour of each device without a price.
        watts: Factor of the watts of the group's devices, by group.
    """

    hardware: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    scales: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    fixed_s: Mapping[int, float] = field(default_factory=dict)
    request_s: Mapping[int, float] = field(default_factory=dict)
    prompt_s: Mapping[int, float] = field(default_factory=dict)
    whole_prompts: Mapping[int, bool] = field(default_factory=dict)
    larger_batches: bool = True
    kv_bytes_per_s: float | None = None
    other_bytes_per_s: float | None = None
    unpriced_dollars: float = 0.0
    watts: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Assumption:
    """A default that the scenario leaves alone.

    Attributes:
        default, alternative: In words, with figures.
        settings: Keys of the scenario that set the alternative: dotted paths to values; empty if none do.
        decides: What the default acts on, if a run may lack it and no change prices it: `""`, `KV memory` (`bytes`
            less of it on each device), `prefix caches` (what a router knows of them), `API servers`, or `rules` (of
            an engine's version).
        hits: Whether the cached prompt tokens are one of its headlines.
    """

    name: str
    default: str
    alternative: str
    settings: Mapping[str, Any]
    change: Change = Change()
    decides: Literal["", "KV memory", "prefix caches", "API servers", "rules"] = ""
    bytes: float = 0.0
    hits: bool = False
