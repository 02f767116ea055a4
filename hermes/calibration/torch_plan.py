"""Plans for the torch engine: single batches, chosen so that a fit can separate their effects.

A point is one batch, repeated:

    {"name": "...", "level": 0, "estimate_s": 0.1, "decodes": [[context, how many], ...],
     "prefills": [[new tokens, past tokens, how many, 1 if they sample a token], ...]}

- Level 0 is a coarse grid over a server's usual batches: prompts by length and past, decodes by batch and context, a
  few of both.
- Level 1 refines it to powers of two, and adds several prompts in a step, chunks that sample nothing, unequal contexts.
- Level 2 draws batches at random, log-uniformly, between the bounds: held-out errors on them are those of a simulation.

Points of the part `engine` say so (`"part": "engine"`), at level 1: a chunk that fills the step beside 0, 1, 2, 4, ...
decodes at several contexts, first and with a past; decode batches of 1, 2, 3, 4, 6, 8, ... sequences.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hermes.calibration.plan import CHUNK_CONTEXTS, ENGINES, Plan, PlanMemory, Request
from hermes.errors import InputError
from hermes.hardware.base import StepStats
from hermes.hardware.models import ModelDescription, precision

__all__ = ["Batch", "TorchPlanner", "batch_of", "batch_sizes", "check_dense", "powers"]

DTYPES = ("bf16", "fp16", "fp32")
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")   # as hermes.calibration.collect.torch_model
SETUP_S = 0.003      # per step: inputs, synchronisation
POWER_S = 0.5        # per point on a GPU: load held while its energy counter is read
CAPTURE_S = 0.5      # a graph, on a GPU
KV_SHARE = 0.9       # share of a device's memory, weights and activations included
CPU_KV_BYTES = 2 * 2**30
REFERENCE = (80, 4)  # context and batch: the middle of online runs' reference batch, so that both compare
DEFAULT_POINTS = 480
ESTIMATE_SHARE = 0.5
LINK_EFFICIENCY, HOP_LATENCY_S = 0.7, 1.3e-6   # of an all-reduce over NVLink; close to H100 tables


@dataclass(frozen=True)
class Batch:
    """One step's sequences: (context, how many) and (new tokens, past tokens, how many, sampled or not)."""

    decodes: tuple[tuple[int, int], ...] = ()
    prefills: tuple[tuple[int, int, int, int], ...] = ()

    def stats(self) -> StepStats:
        return StepStats(
            prefill_seqs=sum(count for _, _, count, _ in self.prefills),
            prefill_tokens=sum(n * count for n, _, count, _ in self.prefills),
            prefill_past=sum(past * count for _, past, count, _ in self.prefills),
            prefill_attn=sum((n * past + n * (n + 1) // 2) * count for n, past, count, _ in self.prefills),
            decode_seqs=sum(count for _, count in self.decodes),
            decode_ctx=sum(context * count for context, count in self.decodes),
            decode_ctx_max=max((context for context, _ in self.decodes), default=0),
            sampled=sum(count for _, count in self.decodes) + sum(c * s for _, _, c, s in self.prefills),
        )

    @property
    def tokens(self) -> int:
        return sum(n * count for n, _, count, _ in self.prefills) + sum(count for _, count in self.decodes)

    @property
    def seqs(self) -> int:
        return sum(count for _, _, count, _ in self.prefills) + sum(count for _, count in self.decodes)

    @property
    def longest(self) -> int:
        """Return the tokens of the longest sequence after the step."""
        return max([context + 1 for context, _ in self.decodes] + [n + past for n, past, _, _ in self.prefills])

    @property
    def kv_tokens(self) -> int:
        """Return the tokens in the KV cache after the step."""
        stats = self.stats()
        return stats.prefill_tokens + stats.prefill_past + stats.decode_ctx + stats.decode_seqs

    def name(self) -> str:
        parts = []
        if self.decodes:
            contexts = [context for context, _ in self.decodes]
            spread = f"{min(contexts)}" if len(contexts) == 1 else f"{min(contexts)}-{max(contexts)}"
            stats = self.stats()
            parts.append(f"decode b={stats.decode_seqs} ctx={spread}" + (
                f" sum={stats.decode_ctx}" if len(contexts) > 1 else ""))
        parts += [
            f"prefill n={n} past={past}" + (f" x{count}" if count > 1 else "") + ("" if sampled else " chunk")
            for n, past, count, sampled in self.prefills
        ]
        return ", ".join(parts)


def batch_of(point: dict[str, Any]) -> Batch:
    """Return the batch of a plan's point."""
    return Batch(
        tuple((c, k) for c, k in point.get("decodes", ())),
        tuple((n, p, k, s) for n, p, k, s in point.get("prefills", ())),
    )


def check_dense(model: ModelDescription) -> None:
    """Raise `InputError` for a model that is no dense decoder of the Llama family."""
    if not (model.gated_ffn and model.causal and model.norm == "rms" and not model.num_experts
            and not model.linear_bias and not model.embedding_norm and model.output_head != "none"):
        raise InputError("a dense decoder with RMSNorm, rotary embedding and SwiGLU (Llama, Mistral, Qwen2, Qwen3)",
                         model.name, field="model")


def powers(low: int, high: int, factor: int) -> list[int]:
    """Return `low`, `low * factor`, ... below `high`, and `high`."""
    out = []
    while low < high:
        out.append(low)
        low *= factor
    return [*out, high]


def _grid(request: Request, factor: int) -> Iterator[Batch]:
    """Yield decodes by batch and context, and prompts by length and past."""
    seqs, tokens, longest = request.max_num_seqs, request.max_num_batched_tokens, request.max_context
    for count in powers(1, seqs, factor):
        for context in powers(16, longest - 1, factor):
            yield Batch(decodes=((context, count),))
    for n in powers(16, min(tokens, longest), factor):
        for past in [0, *powers(128, longest - n, factor)] if n < longest else [0]:
            yield Batch(prefills=((n, past, 1, 1),))


def _coarse(request: Request) -> Iterator[Batch]:
    yield from _grid(request, 8)
    for count in (4, 32):
        for n in (64, 512):
            yield Batch(((512, count),), ((n, 0, 1, 1),))


def _fine(request: Request) -> Iterator[Batch]:
    tokens, longest = request.max_num_batched_tokens, request.max_context
    for n in powers(32, tokens, 4):
        yield Batch(prefills=((n, longest // 4, 1, 0),))
        for count in (2, 4, 8):
            if n // count:
                yield Batch(prefills=((n // count, 0, count, 1),))
    for count in powers(2, request.max_num_seqs, 4):
        for low, high in ((64, longest // 2), (longest // 16, longest - 1)):
            if low < high:
                yield Batch(decodes=((low, count - 1), (high, 1)))
                yield Batch(decodes=((low, count - count // 2), (high, count // 2)))
    for count in powers(1, request.max_num_seqs, 4):
        for n in powers(16, tokens - count, 4) if tokens - count > 16 else []:
            for past in (0, 512):
                yield Batch(((256, count),), ((n, past, 1, 0 if past else 1),))
    yield from _grid(request, 2)


def _log_uniform(draw: random.Random, low: int, high: int) -> int:
    """Draw an integer in [low, high] whose logarithm is uniform."""
    return min(high, max(low, int(math.exp(draw.uniform(math.log(low), math.log(high + 1))))))


def _random_batch(draw: random.Random, request: Request) -> Batch:
    """Draw contexts around a common scale, like requests of one service; 1 to 4 prompts, the last one perhaps cut."""
    kind = draw.choices(("decode", "prefill", "mixed"), (35, 20, 45 if request.max_num_seqs > 1 else 0))[0]
    longest, budget = request.max_context, request.max_num_batched_tokens
    decodes: list[tuple[int, int]] = []
    if kind != "prefill":
        scale = _log_uniform(draw, 32, longest - 1)
        count = _log_uniform(draw, 1, min(request.max_num_seqs, budget) - (kind == "mixed"))
        decodes = [(max(1, min(longest - 1, round(scale * draw.uniform(0.2, 1.8)))), 1) for _ in range(count)]
        budget -= count
    prefills: list[tuple[int, int, int, int]] = []
    if kind != "decode" and budget > 0:
        total = _log_uniform(draw, min(8, budget), budget)
        parts = min(draw.choice((1, 1, 1, 2, 3, 4)), total, request.max_num_seqs - len(decodes))
        cuts = sorted(draw.sample(range(1, total), parts - 1)) if parts > 1 else []
        for index, n in enumerate(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)):
            n = min(max(2, n), longest)   # one new token with a past would be a decode
            room = longest - n
            past = _log_uniform(draw, 16, room) if room > 16 and draw.random() < 0.4 else 0
            prefills.append((n, past, 1, int(index < parts - 1 or draw.random() < 0.5)))
    return Batch(tuple(sorted(decodes)), tuple(prefills))


def batch_sizes(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, ... up to `most`."""
    found = powers(1, most, 2)
    return sorted({*found, *(size + size // 2 for size in found if size > 1 and size + size // 2 < most)})


def _of_engine(request: Request) -> Iterator[Batch]:
    """Yield chunks that fill a step beside decodes, and decode batches."""
    budget, longest, seqs = request.max_num_batched_tokens, request.max_context, request.max_num_seqs
    contexts = [context for context in CHUNK_CONTEXTS if context < longest]
    for count in (0, *powers(1, min(seqs, budget) - 1, 2)) if min(seqs, budget) > 1 else (0,):
        for context in contexts if count else contexts[:1]:
            for past in (0, budget) if budget + budget <= longest else (0,):
                decodes = ((context, count),) if count else ()
                yield Batch(decodes, ((min(budget - count, longest - past), past, 1, 0),))
    for count in batch_sizes(seqs):
        for context in contexts[:2]:
            yield Batch(decodes=((context, count),))


@ENGINES.register("torch")
class TorchPlanner:
    """Makes plans for `hermes.calibration.collect.torch_llm`."""

    def plan(self, request: Request) -> Plan:
        """Return the grid, within memory and bounds."""
        model = request.model
        self._check(request)
        limit = self.kv_limit_tokens(request)
        points = list(self._points(request, limit))
        if not points:
            raise InputError(f"a grid that fits into {limit} tokens of KV cache", request.max_context,
                             field="max_context")
        context, count = min(REFERENCE[0], request.max_context - 1), min(REFERENCE[1], request.max_num_seqs)
        reference = Batch(decodes=((context, count),))
        memory = self._memory(request, [batch_of(point) for point in points])
        options: dict[str, Any] = {
            "threads": request.threads, "seed": request.seed, "max_num_batched_tokens": request.max_num_batched_tokens,
            "max_num_seqs": request.max_num_seqs, "max_context": request.max_context,
            "cuda_graphs": request.device == "cuda", "power_s": POWER_S if request.device == "cuda" else 0.0,
        }
        if request.tensor_parallel > 1:
            options["all_reduce"] = self._link(request)
        return Plan(
            engine="torch", collector="hermes.calibration.collect.torch_llm", model=model,
            config_json=request.config_json, device=request.device, hardware=request.hardware_name,
            dtype=request.dtype, tensor_parallel=request.tensor_parallel, clock=request.clock,
            repetitions=request.repetitions, warmup_s=request.warmup_s, options=options, memory=memory,
            reference=self._point(request, reference, 0), points=points,
        )

    def _check(self, request: Request) -> None:
        model = request.model
        check_dense(model)
        kind = request.config_json.get("model_type")
        if kind not in MODEL_TYPES:
            raise InputError(f"one of {', '.join(MODEL_TYPES)}", kind, field="model: model_type")
        if request.dtype not in DTYPES:
            raise InputError(f"one of {', '.join(DTYPES)} (the torch engine has no quantised matrices)", request.dtype,
                             field="dtype")
        tp = request.tensor_parallel
        model.check_tp(tp)
        if model.intermediate_size % tp or (model.num_kv_heads % tp and tp % model.num_kv_heads):
            raise InputError(f"a number that divides the {model.num_kv_heads} key/value heads and the inner width "
                             f"{model.intermediate_size}", tp, field="tensor_parallel")
        if request.max_context < 64 or request.max_num_batched_tokens < 32:
            raise InputError("a context of at least 64 tokens and a budget of at least 32",
                             [request.max_context, request.max_num_batched_tokens], field="max_context")

    def _points(self, request: Request, limit: int) -> Iterator[dict[str, Any]]:
        """Yield points of all levels, without duplicates, at most as many as requested."""
        seen: set[str] = set()
        if "engine" in request.parts:
            for batch in _of_engine(request):
                if batch.name() not in seen and self._fits(batch, request, limit):
                    seen.add(batch.name())
                    yield self._point(request, batch, 1) | {"part": "engine"}
        if "grid" in request.parts:
            yield from self._of_grid(request, limit, seen)

    def _of_grid(self, request: Request, limit: int, others: set[str]) -> Iterator[dict[str, Any]]:
        """Yield the grid, without batches that are among the `others`."""
        seen: set[str] = set()
        most = request.points or DEFAULT_POINTS
        levels: list[Iterable[Batch]] = [_coarse(request), _fine(request), self._random(request)]
        for level, batches in enumerate(levels):
            # a third of the points or more are random batches, unless there are too few for a coarse grid
            cap = most if level != 1 else max(len(seen), most - most // 3)
            candidates = [b for b in batches if self._fits(b, request, limit)] if level < 2 else batches
            if level == 1:   # a cut-off must not leave out one corner of the grid
                random.Random(request.seed).shuffle(candidates)  # type: ignore[arg-type]
            for batch in candidates:
                if len(seen) >= cap:
                    break
                if batch.name() not in seen | others and self._fits(batch, request, limit):
                    seen.add(batch.name())
                    yield self._point(request, batch, level)

    def _random(self, request: Request) -> Iterator[Batch]:
        draw = random.Random(f"{request.seed}/batches")
        for _ in range(100 * (request.points or DEFAULT_POINTS)):
            yield _random_batch(draw, request)

    def _fits(self, batch: Batch, request: Request, limit: int) -> bool:
        return (
            batch.tokens <= request.max_num_batched_tokens and 0 < batch.seqs <= request.max_num_seqs
            and batch.longest <= request.max_context and batch.kv_tokens + 16 * (batch.seqs + 1) <= limit
        )

    def _point(self, request: Request, batch: Batch, level: int) -> dict[str, Any]:
        step_s = _roofline_s(request, batch.stats()) + SETUP_S
        more_s = POWER_S + (0 if batch.prefills else CAPTURE_S) if request.device == "cuda" else 0.0
        point: dict[str, Any] = {
            "name": batch.name(), "level": level, "estimate_s": round((request.repetitions + 1) * step_s + more_s, 4),
        }
        if batch.decodes:
            point["decodes"] = [list(entry) for entry in batch.decodes]
        if batch.prefills:
            point["prefills"] = [list(entry) for entry in batch.prefills]
        return point

    def _kv_per_token(self, request: Request) -> float:
        """Return the KV bytes of one token on one device."""
        model, tp = request.model, request.tensor_parallel
        return model.kv_bytes_per_token(precision(request.dtype).other_bytes, tp) / tp

    def kv_limit_tokens(self, request: Request) -> int:
        """Return the tokens of KV cache that fit beside weights and activations."""
        weights = request.model.weight_bytes(request.dtype, request.tensor_parallel)
        activations = self._activation_bytes(request, request.max_num_batched_tokens, request.max_num_seqs)
        left = int(request.hardware.memory * KV_SHARE) - weights - activations
        if left <= 0:
            raise InputError(
                f"a model whose {weights / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of activations fit "
                f"into {KV_SHARE:.0%} of {request.hardware.memory / 1e9:.1f} GB ({request.hardware_name}); "
                f"{-left / 1e9:.1f} GB are missing", request.model.name, field="model",
            )
        if request.device == "cpu":
            left = min(left, CPU_KV_BYTES)
        return int(left // self._kv_per_token(request))

    def _activation_bytes(self, request: Request, tokens: int, sampled: int) -> int:
        """Return the peak of activations: residual, normed and projected rows, gate and up rows, logits (twice, for
        argmax)."""
        model, tp = request.model, request.tensor_parallel
        width = precision(request.dtype).other_bytes
        heads = (model.num_heads + 2 * max(model.num_kv_heads, tp)) * model.head_dim / tp
        per_token = 4 * model.hidden_size + 3 * heads + 4 * model.intermediate_size / tp
        return round(width * (tokens * per_token + 2 * sampled * model.vocab_size / tp))

    def _memory(self, request: Request, batches: list[Batch]) -> PlanMemory:
        kv_tokens = max(batch.kv_tokens + 16 * (batch.seqs + 1) for batch in batches)
        return PlanMemory(
            weights_bytes=request.model.weight_bytes(request.dtype, request.tensor_parallel),
            kv_bytes=math.ceil(kv_tokens * self._kv_per_token(request)),
            activation_bytes=self._activation_bytes(
                request, max(batch.tokens for batch in batches), max(batch.stats().sampled for batch in batches)
            ),
            capacity_bytes=request.hardware.memory,
        )

    def _link(self, request: Request) -> dict[str, Any]:
        """Return the link model of the all-reduces, which a single rank does not perform; `pack` adds them."""
        return {
            "link_bandwidth": request.hardware.link_bandwidth, "efficiency": LINK_EFFICIENCY,
            "hop_latency_s": HOP_LATENCY_S,
            "source": f"device description {request.hardware_name}; share of its bandwidth and hop latency assumed",
        }


def _roofline_s(request: Request, stats: StepStats) -> float:
    """Estimate the seconds of a step: arithmetic or memory, whichever is longer, at half the peak. For time estimates
    only; measured points correct it."""
    model, tp, width = request.model, request.tensor_parallel, precision(request.dtype).other_bytes
    peak = request.hardware.peak(precision(request.dtype).compute) * ESTIMATE_SHARE
    bandwidth = request.hardware.memory_bandwidth * ESTIMATE_SHARE
    tokens = stats.prefill_tokens + stats.decode_seqs
    pairs = stats.prefill_attn + stats.decode_ctx + stats.decode_seqs
    flops = 2 * tokens * model.layer_matrix_params * model.num_layers + 2 * stats.sampled * model.hidden_size * (
        model.vocab_size) + 4 * pairs * model.num_heads * model.head_dim * model.num_layers
    read = model.weight_bytes(request.dtype, tp) * tp + (stats.decode_ctx + stats.prefill_past) * (
        model.kv_bytes_per_token(width, tp))
    return max(flops / peak, read / bandwidth) / tp


def all_reduce_s(model: ModelDescription, dtype: str, tp: int, tokens: Any, link: dict[str, Any]) -> Any:
    """Return the seconds of a step's all-reduces, for a number or an array of tokens.

    Two ring all-reduces per layer, each 2 (tp - 1) / tp of the activations over the link and 2 (tp - 1) hop latencies
    (R. Thakur et al., IJHPCA 2005), as in `hermes.hardware.roofline`.
    """
    width = precision(dtype).other_bytes * model.hidden_size
    rate = link["link_bandwidth"] * link["efficiency"]
    each = 2 * (tp - 1) / tp * tokens * width / rate + 2 * (tp - 1) * link["hop_latency_s"]
    return 2 * model.num_layers * each
