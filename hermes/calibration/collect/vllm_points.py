"""Which workloads a vLLM engine is measured with: the points of a plan.

A point is one small workload under one pair of scheduler limits; every step it makes is a measured step. Four kinds of
workload, so that the steps cover what an online run can meet: prompts alone (whole, and in chunks with a past), decodes
of equal contexts at several lengths and batch sizes, decodes of unequal contexts, and everything mixed.

Requests arrive by the number of steps taken, not by time, so that a point is the same sequence of batches on any
machine, and repeating it measures the very same steps again. Standard library only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

__all__ = ["LIMITS", "vllm_points"]

LIMITS: tuple[tuple[int, int], ...] = (
    (512, 32), (128, 64), (2048, 8), (64, 8), (1024, 64), (256, 2), (2048, 64), (128, 8), (512, 2), (64, 24),
    (256, 64), (1024, 8), (512, 64), (2048, 24), (128, 24), (64, 64), (512, 8), (256, 24), (1024, 24), (2048, 2),
)
"""(max_num_batched_tokens, max_num_seqs): the first few already span the space, later ones refine."""

SHRINKING_STEPS = 24
"""Steps over which a batch of decodes shrinks to nothing, so that all its sizes are seen."""

Requests = list[dict[str, int]]


def _request(arrival_step: int, prompt_tokens: int, output_tokens: int) -> dict[str, int]:
    return {"arrival_step": arrival_step, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}


def _between(draw: random.Random, low: int, high: int) -> int:
    """Log-uniform: short and long lengths are equally worth knowing."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))))


def _prompts(draw: random.Random, budget: int, longest: int, tokens: int) -> Requests:
    """One prompt at a time; those beyond the budget come in chunks, the later ones with a past."""
    lengths, left = [], tokens
    while left > 0:
        lengths.append(_between(draw, 8, min(longest, max(8, left))))
        left -= lengths[-1]
    requests, step = [], 0
    for length in lengths:
        requests.append(_request(step, length, 1))
        step += math.ceil(length / budget)
    return requests


def _decodes(seqs: int, context: int, steps: int) -> Requests:
    """`seqs` sequences of equal context that decode together after `steps` steps, and then end little by little."""
    return [_request(0, context, steps + index * SHRINKING_STEPS // seqs) for index in range(seqs)]


def _unequal(draw: random.Random, seqs: int, longest: int, steps: int) -> Requests:
    """One long context among short ones."""
    return [_request(0, longest, steps)] + [_request(0, _between(draw, 8, 64), steps) for _ in range(seqs - 1)]


def _mixed(draw: random.Random, longest: int, tokens: int) -> Requests:
    """Requests of all lengths that keep arriving while others decode."""
    requests: Requests = []
    step, left = 0, tokens
    while left > 0:
        prompt, output = _between(draw, 16, max(16, longest // 2)), _between(draw, 4, 64)
        requests.append(_request(step, prompt, output))
        step += draw.choice((0, 0, 1, 2, 4, 8))
        left -= prompt + 8 * output
    return requests


def _cases(limits: tuple[int, int], longest: int, tokens: int, seed: int) -> dict[str, Requests]:
    budget, seats = limits
    draw = random.Random(f"{seed} {limits}")
    cases = {"mixed": _mixed(draw, longest, tokens), "prompts": _prompts(draw, budget, longest, tokens)}
    for context in (32, 256, 2048):
        seqs = max(1, min(seats, tokens // context))
        # steps beyond the prefill, during which the first already decode
        steps = 6 + math.ceil(seqs * context / budget)
        if context + steps + SHRINKING_STEPS <= longest:
            cases[f"decode-{context}"] = _decodes(seqs, context, steps)
    if seats > 1:
        steps = 10 + math.ceil(longest / 2 / budget)
        cases["unequal"] = _unequal(draw, min(seats, 8), longest // 2, steps)
    return cases


def vllm_points(
    *, limits: Sequence[tuple[int, int]] = LIMITS, max_model_len: int = 4096, tokens: int = 4096, seed: int = 0,
) -> list[dict[str, Any]]:
    """Points for `hermes.calibration.collect.vllm_llm`, broad ones first.

    limits: pairs (max_num_batched_tokens, max_num_seqs); max_model_len: longest sequence; tokens: prompt tokens per
    workload, about (a GPU wants more than a CPU can bear)

    A point: {"name", "configuration", "max_num_batched_tokens", "max_num_seqs", "requests": [{"arrival_step",
    "prompt_tokens", "output_tokens"}, ...]}.
    """
    longest = min(max_model_len - 1, max(128, tokens))
    by_limits = [(pair, _cases(pair, longest, tokens, seed)) for pair in limits]
    points = []
    for budget_seats, cases in by_limits:
        budget, seats = budget_seats
        for case, requests in cases.items():
            requests = [r for r in requests if r["prompt_tokens"] + r["output_tokens"] <= max_model_len]
            points.append({
                "name": f"{case} mnbt={budget} mns={seats}", "configuration": f"mnbt={budget} mns={seats} {case}",
                "max_num_batched_tokens": budget, "max_num_seqs": seats, "requests": requests,
            })
    return points
