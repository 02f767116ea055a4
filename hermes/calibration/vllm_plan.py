"""Plans for a real vLLM engine: small workloads whose steps cover those of online runs.

    {"name": "...", "level": 0, "estimate_s": 1.5, "configuration": "...", "max_num_batched_tokens": 512,
     "max_num_seqs": 32, "requests": [[arrival step, prompt tokens, output tokens], ...]}

Kinds of workload: prompts alone (whole, and in chunks with a past), decodes of equal contexts at several lengths while
the batch shrinks, decodes of unequal contexts, and everything mixed. Each is served under several pairs of limits:
level 0 spans them, level 1 refines. Points of the part `engine` (`"part": "engine"`, level 0) are served under the
largest limits: chunks that fill the step beside 0, 1, 2, 4, ... decodes at several contexts, and steady decode batches
of 1, 2, 3, 4, 6, 8, ... sequences. Requests arrive by number of steps, not by time, so that a point is the same
sequence of batches on any machine, and a repetition measures the very same steps again.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hermes.calibration.measurements.model import Request
from hermes.calibration.plan import DTYPES, KV_SHARE, Plan, PlanMemory, between, powers
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.descriptions.models import precision
from hermes.sums import float_sum

if TYPE_CHECKING:
    from hermes.calibration.measurements.llm import LlmMeasurement

__all__ = ["batches", "vllm_plan"]

CHUNK_CONTEXTS = (128, 1024, 4096, 16384)
"""Tokens of the decodes beside full chunks, as far as they fit."""
REFERENCE = [[0, 64, 33]] * 4
"""The reference batch: 4 prompts of 64 tokens, 32 decode steps each after the first token."""
CPU_KV_BYTES = 2 * 2**30
OVERHEAD_S = 0.002       # per step, for the estimate
POINT_S = 1.0            # prompt tokens of a workload: the roofline computes them in this time,
TOKENS = (4096, 131072)  # within these bounds
FULL_CHUNKS = 3          # chunks of the prompt beside decodes
STEADY_STEPS = 16        # of a steady decode batch
SHRINKING_STEPS = 24     # over which a batch of decodes shrinks to none, so that all its sizes occur
CPU_BLOCK_SIZE = 128     # the CPU build's own default
KV_SPARE = 1.25

Requests = list[list[int]]
Limits = tuple[int, int]


class _Cost:
    """Return a lower bound of a step's time: arithmetic of its tokens, or weights and KV cache read once. For
    estimates."""

    def __init__(self, request: Request[LlmMeasurement]) -> None:
        model, device, tp = request.model, request.hardware, request.asked.tensor_parallel
        kind = precision(request.dtype)
        self.token_s = 2 * model.active_params() / tp / device.peak(kind.compute)
        self.weights_s = model.weight_bytes(request.dtype, tp) / device.memory_bandwidth
        self.context_s = model.kv_bytes_per_token(kind.other_bytes, tp) / tp / device.memory_bandwidth

    def step_s(self, stats: StepStats) -> float:
        tokens, context = stats.prefill_tokens + stats.decode_seqs, stats.prefill_past + stats.decode_ctx
        return max(self.token_s * tokens, self.weights_s) + self.context_s * context + OVERHEAD_S


def batches(requests: Requests, limits: Limits) -> Iterator[StepStats]:
    """Yield the steps of a workload as the engine schedules them (rules 1 to 6 and 15 of docs/background/vllm.md),
    with enough memory."""
    budget, seats = limits
    waiting = sorted(enumerate(requests), key=lambda item: item[1][0])
    running: list[list[int]] = []   # tokens computed, tokens present, outputs to come
    step = 0
    while waiting or running:
        left, stats = budget, StepStats()
        while (waiting and waiting[0][1][0] <= step and len(running) < seats
               and sum(there - computed for computed, there, _ in running) < budget):
            _, prompt, output = waiting.pop(0)[1]
            running.append([0, prompt, output])
        for sequence in running:
            left -= _schedule(sequence, left, stats)
        running = [sequence for sequence in running if sequence[2] > 0]
        if stats.prefill_tokens or stats.decode_seqs:
            yield stats
        step += 1


def _schedule(sequence: list[int], left: int, stats: StepStats) -> int:
    """Compute the missing tokens of a sequence, at most `left`; return the tokens taken."""
    past, there, _ = sequence
    tokens = min(there - past, left)
    if tokens <= 0:
        return 0
    if tokens == 1 and past > 0:
        stats.decode_seqs += 1
        stats.decode_ctx += past
        stats.decode_ctx_max = max(stats.decode_ctx_max, past)
    else:
        stats.prefill_seqs += 1
        stats.prefill_tokens += tokens
        stats.prefill_past += past
        stats.prefill_attn += tokens * past + tokens * (tokens + 1) // 2
    sequence[0] += tokens
    if sequence[0] == there:
        stats.sampled += 1
        sequence[1] += 1
        sequence[2] -= 1
    return tokens


def _between(draw: random.Random, low: int, high: int) -> int:
    """Draw a log-uniform length: short and long lengths are equally relevant."""
    return round(math.exp(draw.uniform(math.log(low), math.log(max(low, high)))))


def _prompts(draw: random.Random, budget: int, longest: int, tokens: int) -> Requests:
    """One prompt at a time; prompts beyond the budget come in chunks, the later ones with a past."""
    requests: Requests = []
    step, left = 0, tokens
    while left > 0:
        length = _between(draw, 8, min(longest, left))
        requests.append([step, length, 1])
        step += math.ceil(length / budget)
        left -= length
    return requests


def _decodes(seqs: int, context: int, budget: int) -> Requests:
    """`seqs` sequences of equal context that decode together once all are prefilled, and then end little by little."""
    steps = 6 + math.ceil(seqs * context / budget)
    return [[0, context, steps + index * SHRINKING_STEPS // seqs] for index in range(seqs)]


def _mixed(draw: random.Random, longest: int, tokens: int) -> Requests:
    """Requests of all lengths that keep arriving while others decode."""
    requests: Requests = []
    step, left = 0, tokens
    while left > 0:
        prompt, output = _between(draw, 16, min(longest, left)), _between(draw, 4, 64)
        requests.append([step, prompt, output])
        step += draw.choice((0, 0, 1, 2, 4, 8))
        left -= prompt + 8 * output
    return requests


def _cases(limits: Limits, longest: int, tokens: int, seed: int) -> dict[str, Requests]:
    """Return workloads by name; no sequence is longer than `longest`."""
    budget, seats = limits
    draw = random.Random(f"{seed} {limits}")
    most = longest - 64   # outputs of the mixed workload are at most 64
    cases = {"mixed": _mixed(draw, most, tokens), "prompts": _prompts(draw, budget, most, tokens)}
    for context in (32, 256, 2048, 16384):
        seqs = min(seats, tokens // context)
        if seqs:
            cases[f"decode-{context}"] = _decodes(seqs, context, budget)
    if seats > 1:
        long = min(most, tokens) // 2   # one long context among short ones
        steps = 10 + math.ceil(long / budget)
        short = [[0, _between(draw, 8, 64), steps] for _ in range(min(seats, 8) - 1)]
        cases["unequal"] = [[0, long, steps], *short]
    return {
        name: requests for name, requests in cases.items()
        if max(prompt + output for _, prompt, output in requests) <= longest
    }


def _chunks(seqs: int, context: int, budget: int, longest: int) -> Requests:
    """`seqs` decodes of equal context; once all of them decode, a prompt that fills some steps beside them."""
    begin = math.ceil(seqs * context / budget) + 2 if seqs else 0
    prompt = min(FULL_CHUNKS * (budget - seqs), longest - 1)
    steps = begin + math.ceil(prompt / (budget - seqs)) + 4
    return [[0, context, steps] for _ in range(seqs)] + [[begin, prompt, 1]]


def _engine_cases(request: Request[LlmMeasurement], limit: int) -> Iterator[tuple[str, Requests]]:
    """Yield the workloads of the part `engine` within `limit` tokens of KV cache."""
    budget, seqs, longest = request.asked.max_num_batched_tokens, request.asked.max_num_seqs, request.asked.max_context
    cases = {}
    beside = powers(1, min(seqs, budget) - 1, 2) if min(seqs, budget) > 1 else []
    for count in (0, *beside):
        for context in CHUNK_CONTEXTS if count else CHUNK_CONTEXTS[:1]:
            cases[f"full chunks beside {count} at {context}" if count else "full chunks alone"] = _chunks(
                count, context, budget, longest)
    for count in between(powers(1, seqs, 2)):
        for context in CHUNK_CONTEXTS[:2]:
            steps = math.ceil(count * context / budget) + STEADY_STEPS
            cases[f"decode batch {count} at {context}"] = [[0, context, steps]] * count
    for name, requests in cases.items():
        lengths = [prompt + output for _, prompt, output in requests]
        if max(lengths) <= longest and sum(lengths) + CPU_BLOCK_SIZE * len(lengths) <= limit:
            yield name, requests


def _limits(max_num_batched_tokens: int, max_num_seqs: int, seed: int) -> tuple[list[Limits], list[Limits]]:
    """Return the pairs that span the requested range, then all others of the grid in a random order."""
    budgets = sorted({b for b in (64, 128, 256, 512, 1024, 2048, 4096, 8192) if b < max_num_batched_tokens}
                     | {max_num_batched_tokens})
    seats = sorted({s for s in (2, 8, 24, 64, 128, 256) if s < max_num_seqs} | {max_num_seqs})
    low, high = budgets[0], budgets[-1]
    middle, few = budgets[len(budgets) // 2], seats[len(seats) // 3]
    first = list(dict.fromkeys([(high, seats[-1]), (low, seats[-1]), (middle, few), (high, few), (low, few),
                                (middle, seats[-1])]))
    grid = [(b, s) for b in budgets for s in seats]
    rest = [pair for pair in grid if pair not in first and pair[1] <= pair[0]]
    random.Random(seed).shuffle(rest)
    return [pair for pair in first if pair[1] <= pair[0]], rest


def vllm_plan(request: Request[LlmMeasurement]) -> Plan:
    """Return workloads for `hermes.calibration.collect.vllm_llm` under every pair of limits, first those that span the
    space. Raises `InputError` naming the key."""
    if request.dtype not in DTYPES:
        raise InputError(f"one of {', '.join(DTYPES)} (dummy weights are not quantised)", request.dtype, field="dtype")
    if request.asked.max_num_batched_tokens < 64 or request.asked.max_context < 512:
        raise InputError("a budget of at least 64 tokens and a context of at least 512",
                         [request.asked.max_num_batched_tokens, request.asked.max_context], field="max_context")
    cost = _Cost(request)
    tokens = _tokens(cost)
    points = list(_points(request, cost, tokens))
    memory = _memory(request, points)
    limits = request.asked.max_num_batched_tokens, request.asked.max_num_seqs
    return Plan(
        engine="vllm", collector="hermes.calibration.collect.vllm_llm", model=request.model,
        config_json=request.config_json, device=request.asked.device, hardware=request.hardware_name,
        dtype=request.dtype, tensor_parallel=request.asked.tensor_parallel,
        clock="cpu" if request.clock == "cpu" else "wall", repetitions=request.asked.repetitions,
        warmup_s=request.asked.warmup_s, memory=memory, reference=_point(cost, 0, limits, "reference", REFERENCE, 1),
        points=points,
        options={
            "threads": request.asked.threads, "seed": request.asked.seed, "max_model_len": request.asked.max_context,
            "block_size": CPU_BLOCK_SIZE if request.asked.device == "cpu" else None,
            "kv_gib": max(1, math.ceil(memory.kv_bytes / 2**30)), "tokens_per_workload": tokens,
        },
    )


def _tokens(cost: _Cost) -> int:
    """Return the prompt tokens of a workload: a power of two that takes about POINT_S."""
    tokens = 2048 * POINT_S / cost.step_s(StepStats(prefill_seqs=1, prefill_tokens=2048, sampled=1))
    return int(min(max(2 ** math.floor(math.log2(tokens)), TOKENS[0]), TOKENS[1]))


def _points(request: Request[LlmMeasurement], cost: _Cost, tokens: int) -> Iterator[dict[str, Any]]:
    if "engine" in request.asked.parts:
        largest = request.asked.max_num_batched_tokens, request.asked.max_num_seqs
        for case, requests in _engine_cases(request, _kv_limit_tokens(request)):
            yield _point(cost, 0, largest, case, requests, request.asked.repetitions) | {"part": "engine"}
    if "grid" in request.asked.parts:
        yield from itertools.islice(_grid(request, cost, tokens), request.asked.points)


def _grid(request: Request[LlmMeasurement], cost: _Cost, tokens: int) -> Iterator[dict[str, Any]]:
    spanning, rest = _limits(request.asked.max_num_batched_tokens, request.asked.max_num_seqs, request.asked.seed)
    for level, pairs in enumerate((spanning, rest)):
        for limits in pairs:
            for case, requests in _cases(limits, request.asked.max_context, tokens, request.asked.seed).items():
                yield _point(cost, level, limits, case, requests, request.asked.repetitions)


def _point(cost: _Cost, level: int, limits: Limits, case: str, requests: Requests, repetitions: int) -> dict[str, Any]:
    seconds = float_sum(cost.step_s(stats) for stats in batches(requests, limits))
    name = f"mnbt={limits[0]} mns={limits[1]} {case}"
    return {
        "name": name, "level": level, "estimate_s": round(repetitions * seconds, 4), "configuration": name,
        "max_num_batched_tokens": limits[0], "max_num_seqs": limits[1], "requests": requests,
    }


# -- memory ------------------------------------------------------------------------------------------------------------


def _kv_per_token(request: Request[LlmMeasurement]) -> float:
    """Return the KV bytes of one token on one device."""
    tp = request.asked.tensor_parallel
    return request.model.kv_bytes_per_token(precision(request.dtype).other_bytes, tp) / tp


def _activation_bytes(request: Request[LlmMeasurement], tokens: int) -> int:
    """Return the peak of activations: residual, normed and projected rows, gate and up rows, logits (twice)."""
    model, tp, width = request.model, request.asked.tensor_parallel, precision(request.dtype).other_bytes
    per_token = 4 * model.hidden_size + 4 * model.intermediate_size / tp
    return round(width * (tokens * per_token + 2 * request.asked.max_num_seqs * model.vocab_size / tp))


def _kv_limit_tokens(request: Request[LlmMeasurement]) -> int:
    """Return the tokens of KV cache that fit besides weights and activations. Raises `InputError` if none do."""
    weights = request.model.weight_bytes(request.dtype, request.asked.tensor_parallel)
    activations = _activation_bytes(request, request.asked.max_num_batched_tokens)
    memory = request.hardware.memory
    left = int(memory * KV_SHARE) - weights - activations
    if left <= 0:
        raise InputError(
            f"a model whose {weights / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of activations fit into "
            f"{KV_SHARE:.0%} of {memory / 1e9:.1f} GB ({request.hardware_name}); {-left / 1e9:.1f} GB are missing",
            request.model.name, field="model")
    return int((min(left, CPU_KV_BYTES) if request.asked.device == "cpu" else left) // _kv_per_token(request))


def _memory(request: Request[LlmMeasurement], points: list[dict[str, Any]]) -> PlanMemory:
    """Return the memory of the points; vLLM itself takes more of a GPU, and gives the rest to its KV cache."""
    block = CPU_BLOCK_SIZE
    kv_tokens = max([sum(p + o + block for _, p, o in point["requests"]) for point in points]
                    + [request.asked.max_context + block])
    return PlanMemory(
        weights_bytes=request.model.weight_bytes(request.dtype, request.asked.tensor_parallel),
        kv_bytes=math.ceil(KV_SPARE * kv_tokens * _kv_per_token(request)),
        activation_bytes=_activation_bytes(request, max(point["max_num_batched_tokens"] for point in points)),
        capacity_bytes=request.hardware.memory,
    )
