"""The terms of a step of `composed`, spread over the pipeline stages of an engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from hermes.sums import float_sum

__all__ = ["Spread"]


class Spread(NamedTuple):
    """What a step takes in each pipeline stage but for the attention of its batch.

    Layers are spread as vLLM does (get_pp_indices in vllm/distributed/utils.py): what is left over goes to the stages
    before the last, which has the output head.

    stages: Layers of each stage, and its nanoseconds without them. layers: Of all. of_layers: Nanoseconds of them.
    """

    stages: list[tuple[int, int]]
    layers: int
    of_layers: float

    @classmethod
    def of(cls, terms: dict[str, float], ways: list[float], layers: int, sampled: Collection[str]) -> Spread:
        """Spread all terms of a step but the attention.

        ways: Nanoseconds of the way to each stage but the first. sampled: Terms of the last.
        """
        stages = len(ways) + 1
        hops = terms.pop("hops", 0.0)
        last = float_sum(terms.pop(name, 0.0) for name in sampled)
        first = terms.pop("engine", 0.0)
        share = [layers // stages] * stages
        for place in range(2, layers % stages + 2):
            share[-place] += 1
        beside = [0] + [round(hops * way / float_sum(ways)) for way in ways]
        beside[0] += round(first)
        beside[-1] += round(last)
        return cls(list(zip(share, beside, strict=True)), layers, float_sum(terms.values()))

    def of_batch(self, attention: Iterable[float], total: int) -> list[int]:
        """Return the nanoseconds of a batch by stage. total: Of its step, the host included."""
        each = self.of_layers
        for ns in attention:   # from left to right, as `float_sum` of all terms
            each += ns
        each /= self.layers
        times = [round(each * count) + ns for count, ns in self.stages]
        times[0] += total - sum(times)   # what the host takes longer, and rounding
        return times if min(times) > 0 else [max(ns, 1) for ns in times]
