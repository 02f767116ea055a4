"""Price batches with aiconfigurator-core, in the interpreter that has it.

    python ask_aiconfigurator.py REQUEST.json ANSWER.json

The request names model, system, backend, parallelism and precisions, and lists batches; the answer holds seconds per
batch in the same order. Queries to the package (checked against its sources, version 0.12.0):

- prefill of `batch` sequences with `new` tokens after `past` cached ones: `predict_prefill_latency(batch, new + past,
  past)`; the length includes the cached tokens;
- decode of `batch` sequences with `context` cached tokens each: `decode_step_latency(batch, context, 1)`; if the
  longest exceeds the mean, `skew` times the extra attention time of that length is added;
- mixed: the package composes three passes, everything but attention over all tokens of the step, attention of the
  prefill, attention of the decodes. `mixed_step_breakdown` ties the decode context to the prompt length, so this script
  asks for the three parts one by one and adds them. The package prices the output head for the prefill's rows alone;
  here it is priced for the decodes' rows if that takes longer, and their attention is multiplied by `mixed_attention`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from serving import price_all, serve  # type: ignore[import-not-found]  # run as a file: from its own folder

MS_PER_S = 1e3


class Pricer:
    """Price batches on one compiled engine, in seconds."""

    def __init__(self, handle: Any, skew: float = 0.0, mixed_attention: float = 1.0) -> None:
        self.handle, self.skew, self.mixed_attention = handle, skew, mixed_attention
        self._attention: dict[tuple[int, int, int], float] = {}
        self._shared: dict[int, tuple[float, float]] = {}

    def prefill(self, batch: int, new: int, past: int) -> float:
        return float(self.handle.predict_prefill_latency(batch, new + past, past)) / MS_PER_S

    def decode(self, batch: int, context: int, longest: int) -> float:
        more = self._skew_ms(batch, context, longest)
        return (float(self.handle.decode_step_latency(batch, context, 1)) + more) / MS_PER_S

    def _skew_ms(self, batch: int, context: int, longest: int) -> float:
        if longest == context:
            return 0.0
        mean, most = (
            sum(op[1] for op in self.handle.decode_step_per_op(batch, length, 1) if op[0] == "generation_attention")
            for length in (context, longest)
        )
        return float(self.skew * max(0.0, most - mean))

    def can_mix(self) -> bool:
        """Whether attention is priced apart from the rest (it is not if a model's tables hold whole MLA blocks)."""
        _, prefill, decode = self.handle.mixed_step_breakdown_per_op(512, 8, 512, 1, 0)
        return [op[0] for op in (*prefill, *decode)] == ["context_attention", "generation_attention"]

    def mixed(self, batch: int, new: int, past: int, decodes: int, context: int, longest: int) -> float:
        shared, head = self._shared_ms(batch * new + decodes)
        decode_ops = self.handle.decode_step_per_op(decodes, context, 1)
        decode_head = sum(op[1] for op in decode_ops if "logits" in op[0])
        attention = sum(op[1] for op in decode_ops if op[0] == "generation_attention")
        attention = (attention + self._skew_ms(decodes, context, longest)) * self.mixed_attention
        prefill = self._attention_ms(batch, new, past)
        return float(shared - head + max(head, decode_head) + prefill + attention) / MS_PER_S

    def _shared_ms(self, tokens: int) -> tuple[float, float]:
        """Price everything but attention over so many tokens, including the output head."""
        if tokens not in self._shared:
            ops, _, _ = self.handle.mixed_step_breakdown_per_op(tokens, 0, tokens, 1, 0)
            head = sum(op[1] for op in ops if "logits" in op[0])
            self._shared[tokens] = (math.fsum(op[1] for op in ops), head)
        return self._shared[tokens]

    def _attention_ms(self, batch: int, new: int, past: int) -> float:
        key = (batch, new, past)
        if key not in self._attention:
            ops = self.handle.run_static_per_op(
                batch_size=batch, isl=new + past, osl=1, prefix=past, mode="static_ctx"
            )[0]
            self._attention[key] = math.fsum(op[1] for op in ops if op[0] == "context_attention")
        return self._attention[key]

    def shares(self, tokens: int, decodes: int, context: int) -> dict[str, dict[str, float]]:
        """Return, for a typical prefill and decode, the share of time by source of the operator's figure, and of
        communication."""
        prefill = self.handle.run_static_per_op(batch_size=1, isl=tokens, osl=1, prefix=0, mode="static_ctx")[0]
        out = {}
        for name, ops in (("prefill", prefill), ("decode", self.handle.decode_step_per_op(decodes, context, 1))):
            total = sum(op[1] for op in ops)
            part: dict[str, float] = {}
            for op in ops:
                part[op[3]] = part.get(op[3], 0.0) + op[1] / total
                if op[0].endswith(("_ar", "_ar_1", "_ar_2", "_p2p")):
                    part["communication"] = part.get("communication", 0.0) + op[1] / total
            out[name] = part
        return out


def memory(request: dict[str, Any], version: str, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of one device besides KV cache, and the tokens that fit."""
    from aiconfigurator_core.sdk.memory import KVCacheEstimator, kv_cache_budget_bytes

    found = KVCacheEstimator.from_request(
        request["model"], request["system"], request["backend"], version, max_num_tokens=request["max_num_tokens"],
        max_batch_size=request["max_batch"], **kinds,
    ).breakdown
    inverse = found["tokens_from_kv_bytes"]
    budget = kv_cache_budget_bytes(
        capacity=found["gpu_memory_capacity_bytes"], non_kv=found["non_kv_bytes"], fraction=request["utilization"],
        of_free=request["backend"] == "trtllm",
    )
    parts = {name: float(found[name]) for name in found if name.endswith("_bytes") and not callable(found[name])}
    return parts | {"kv_tokens": int(inverse(budget)) if budget > 0 else 0}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version as version_of

    from aiconfigurator_core.sdk import perf_database
    from aiconfigurator_core.sdk.engine import EngineHandle

    system, backend = request["system"], request["backend"]
    version = perf_database.resolve_query_version(system, backend, request["backend_version"] or "current")
    kinds = {name: request[name] for name in ("gemm_quant_mode", "kvcache_quant_mode", "fmha_quant_mode")}
    kinds |= {"moe_quant_mode": request["moe_quant_mode"], "tp_size": request["tp"], "moe_tp_size": request["tp"]}
    handle = EngineHandle.compile(request["model"], system, backend, backend_version=version, **kinds)
    pricer = Pricer(handle, request["skew"], request["mixed_attention"])
    pricer.prefill(1, 512, 0)  # a combination without any data fails here, with a reason
    pricer.decode(1, 512, 512)
    functions: dict[str, Callable[..., float]] = {
        "prefill": pricer.prefill, "decode": pricer.decode, "mixed": pricer.mixed}
    batches = request["batches"] if pricer.can_mix() else request["batches"] | {"mixed": []}
    return {
        "seconds": price_all(functions, batches), "mixed": pricer.can_mix(), "memory": memory(request, version, kinds),
        "backend_version": version, "version": version_of("aiconfigurator-core"),
        "shares": pricer.shares(2048, 32, 1024),
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    serve(answer)
