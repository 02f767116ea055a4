"""Operators in torch, on a GPU or a CPU, by the kernels that vLLM has for them where vLLM can be imported.

A kernel of vLLM is used if it agrees with the plain one; else the plain one is, and the journal says why.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from hermes.calibration.collect.session import CollectorError, PointFailed
from hermes.calibration.collect.terms_power import between_events, held
from hermes.calibration.collect.terms_timing import Operator, copies_of, cpu_rows, host_cache_bytes
from hermes.calibration.collect.torch_attention import Attention, Chunks, Decodes, PerSequence, choose
from hermes.calibration.collect.torch_graphs import graph_record

__all__ = ["TorchBackend"]

Tensor = Any
Call = Callable[[], Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ALIGNMENT = 16            # tokens: regions of the KV pool begin at multiples, vLLM's pages
TOP_P = 0.95
MOST_LAUNCHES = 4000      # of one CUDA graph
SHORTEST = 256            # tokens that the comparison with attention written out needs
NO_VARLEN = "no kernel for sequences of different lengths was found; prompt and decodes were launched apart"


@dataclass(frozen=True)
class _Shape:
    """What attention needs to know of a model."""

    heads: int
    kv_heads: int
    head_dim: int


class TorchBackend:
    """Operators of one device."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Raises `CollectorError` where torch sees no such device."""
        self.cuda = plan["device"] == "cuda"
        if self.cuda and not torch.cuda.is_available():
            raise CollectorError("the plan is for a CUDA device, and torch sees none")
        if not self.cuda:
            torch.set_num_threads(int(plan["threads"]))
        self.device, self.dtype = torch.device(plan["device"]), DTYPES[plan["dtype"]]
        self._walk = int(plan["cache_bytes"]) or 2 * self._cache_bytes()
        self._generator = torch.Generator(device=self.device).manual_seed(0)
        self._attentions: dict[tuple[_Shape, int], tuple[Attention, list[str]]] = {}
        self._notes: list[str] = []
        self._ops = self._vllm_operators()
        shapes = {_shape_of(point) for point in plan["points"] if "heads" in point}
        self._longest = max([point.get("past", 0) + point.get("new", 0) + point.get("context", 0) + ALIGNMENT
                             for point in plan["points"]] + [SHORTEST])
        for shape in shapes:
            self._attention(shape)

    def describe(self) -> dict[str, Any]:
        """Return versions, the device, kernels, notes."""
        names = {attention.name for attention, _ in self._attentions.values()}
        apart = any(isinstance(attention, PerSequence) for attention, _ in self._attentions.values())
        notes = [*self._notes, *(note for _, more in self._attentions.values() for note in more)]
        if apart:
            notes.append(NO_VARLEN)
        found: dict[str, Any] = {
            "engine": f"torch {torch.__version__}", "attention": ", ".join(sorted(names)),
            "beside": "apart" if apart else "one launch", "cold_bytes": self._walk, "notes": list(dict.fromkeys(notes)),
        }
        if self.cuda:
            properties = torch.cuda.get_device_properties(0)
            found |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda,
                      "memory_bytes": int(properties.total_memory), "devices": torch.cuda.device_count()}
            with suppress(ImportError):
                import vllm

                found["engine"] = f"vllm {vllm.__version__}"
        return found

    # -- operators -----------------------------------------------------------------------------------------------------

    def operator(self, point: dict[str, Any]) -> Operator:
        """Return the operator of a point. Raises `PointFailed` where it does not fit or has no kernel of its own."""
        self._forget()
        try:
            with torch.inference_mode():
                if "heads" in point:
                    return self._attention_operator(point)
                if "n" in point:
                    return self._product(point)
                return self._on_rows(point)
        except torch.OutOfMemoryError:
            raise PointFailed("out of memory") from None

    def _random(self, *shape: int, dtype: Any = None) -> Tensor:
        empty = torch.empty(*shape, dtype=dtype or self.dtype, device=self.device)
        return empty.normal_(0.0, 1.0, generator=self._generator)

    def _product(self, point: dict[str, Any]) -> Operator:
        rows, n, k = point["rows"], point["n"], point["k"]
        x = self._random(rows, k)

        def call(weights: Tensor) -> Call:
            return lambda: F.linear(x, weights)

        copies = copies_of(self.dtype.itemsize * n * k, self._walk)
        return Operator([call(self._random(n, k)) for _ in range(copies)])

    def _on_rows(self, point: dict[str, Any]) -> Operator:
        term, rows, width = point["term"], point["rows"], point["width"]
        if term == "sampling":
            logits = self._random(rows, width, dtype=torch.float32)
            return Operator([lambda: _top_p(logits)])
        x, scale = self._random(rows, width), self._random(width)
        if term == "norm" and self._ops is not None:
            left = self._random(rows, width)
            return Operator([lambda: self._ops.fused_add_rms_norm(x, left, scale, 1e-5)],
                            {"kernel": "vLLM's fused_add_rms_norm"})
        if term == "residual" and self._ops is not None:
            raise PointFailed("part of the norm's kernel (vLLM's fused_add_rms_norm)")
        if term == "activation":
            both = self._random(rows, 2 * width)
            if self._ops is not None:
                out = torch.empty_like(x)
                return Operator([lambda: torch.ops._C.silu_and_mul(out, both)], {"kernel": "vLLM's silu_and_mul"})
            return Operator([lambda: F.silu(both[:, :width]) * both[:, width:]])
        if term == "rotary":
            half = width // 2
            cos, sin = self._random(rows, half), self._random(rows, half)

            def rotary() -> Tensor:
                first, second = x[:, :half], x[:, half : 2 * half]
                return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)

            return Operator([rotary])
        other = self._random(rows, width)
        ids = torch.randint(0, rows, (rows,), device=self.device)
        known: dict[str, Call] = {
            "norm": lambda: F.rms_norm(x, (width,), scale, 1e-5),
            "qk_norm": lambda: F.rms_norm(x, (width,), scale, 1e-5),
            "residual": lambda: x + other, "embedding": lambda: F.embedding(ids, other),
        }
        return Operator([known[term]])

    def _vllm_operators(self) -> Any:
        """Return vLLM's fused operators if they are there and right, else None."""
        if not self.cuda:
            return None
        try:
            from vllm import _custom_ops as ops

            x, left = self._random(3, 256), self._random(3, 256)
            scale, both = self._random(256), self._random(3, 512)
            wanted = F.rms_norm(x + left, (256,), scale, 1e-5)
            found, out = x.clone(), torch.empty_like(x)
            ops.fused_add_rms_norm(found, left.clone(), scale, 1e-5)
            torch.ops._C.silu_and_mul(out, both)
            activated = F.silu(both[:, :256]) * both[:, 256:]
            off = max(float((found - wanted).abs().max()), float((out - activated).abs().max()))
            if off > 0.1:
                raise RuntimeError(f"wrong by {off:.3g}")
        except (ImportError, AttributeError, RuntimeError, TypeError) as error:
            self._notes.append(f"element-wise operators by torch, not fused: {' '.join(str(error).split())[:200]}")
            return None
        return ops

    # -- attention -----------------------------------------------------------------------------------------------------

    def _attention(self, shape: _Shape) -> Attention:
        key = shape, self._longest
        if key not in self._attentions:
            self._attentions[key] = choose(shape, self._longest, self.dtype, self.device, (_vllm_flash, _torch_flash))
        return self._attentions[key][0]

    def _attention_operator(self, point: dict[str, Any]) -> Operator:
        shape = _shape_of(point)
        attention = self._attention(shape)
        prompts = point["batch"] if point["term"] == "prefill" else 1 if point["term"] == "beside" else 0
        decodes = point["batch"] if point["term"] != "prefill" else 0
        parts = [(point.get("context", 1) - 1, 1)] * decodes + [(point.get("past", 0), point.get("new", 0))] * prompts
        regions = [-(-(past + new) // ALIGNMENT) * ALIGNMENT for past, new in parts]
        starts = [ALIGNMENT + sum(regions[:index]) for index in range(len(parts))]
        tokens = ALIGNMENT + sum(regions)
        cold = decodes > 0 or point.get("past", 0) > 0
        copies = copies_of(2.0 * self.dtype.itemsize * tokens * shape.kv_heads * shape.head_dim,
                           self._walk) if cold else 1
        q = self._random(sum(new for _, new in parts), shape.heads, shape.head_dim)
        apart = isinstance(attention, PerSequence) and prompts > 0 and decodes > 0
        serve = self._apart(attention, q, parts, starts, tokens, decodes) if apart else (
            self._together(attention, q, parts, starts, tokens))
        size = (tokens, shape.kv_heads, shape.head_dim)
        pools = [(self._random(*size), self._random(*size)) for _ in range(copies)]
        notes = {"launch": "apart" if apart else "one"} if point["term"] == "beside" else {}

        def call(k: Tensor, v: Tensor) -> Call:
            return lambda: serve(k, v)

        return Operator([call(*pool) for pool in pools], notes, attention.static)

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def _together(self, attention: Attention, q: Tensor, parts: list[tuple[int, int]], starts: list[int],
                  tokens: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return one launch for all sequences."""
        used, news = [past + new for past, new in parts], [new for _, new in parts]
        begins = self._ints([sum(news[:index]) for index in range(len(parts) + 1)])
        closed, lengths = self._ints([*starts, tokens]), self._ints(used)
        if max(news) == 1:
            decodes = Decodes(closed, lengths, begins, max(used))
            return lambda k, v: attention.decode(q, k, v, decodes)
        chunks = Chunks(closed, lengths, begins, max(used), max(news))
        return lambda k, v: attention.prefill(q, k, v, chunks)

    def _apart(self, attention: Attention, q: Tensor, parts: list[tuple[int, int]], starts: list[int], tokens: int,
               decodes: int) -> Callable[[Tensor, Tensor], Any]:
        """Return a launch for the decodes and another for the prompts."""
        first = self._together(attention, q[:decodes], parts[:decodes], starts[:decodes], tokens)
        second = self._together(attention, q[decodes:], parts[decodes:], starts[decodes:], tokens)
        return lambda k, v: (first(k, v), second(k, v))

    # -- time and watts ------------------------------------------------------------------------------------------------

    def time(self, operator: Operator, repetitions: int, sample_s: float) -> tuple[list[dict[str, Any]], str]:
        """Return rows of one run each, and how they were timed. Raises `PointFailed`."""
        try:
            with torch.inference_mode():
                if not self.cuda:
                    return cpu_rows(operator, repetitions, sample_s), "wall clock and CPU time"
                return self._time_cuda(operator, repetitions, sample_s)
        except torch.OutOfMemoryError:
            raise PointFailed("out of memory") from None

    def _time_cuda(self, operator: Operator, repetitions: int, sample_s: float) -> tuple[list[dict[str, Any]], str]:
        calls = operator.calls

        def in_turn(count: int) -> Any:
            found = None
            for index in range(count):   # results are dropped at once: their memory is used again
                found = calls[index % len(calls)]()
            return found

        in_turn(3)
        once = between_events(lambda: in_turn(len(calls))) / len(calls)
        # every copy is read before one is read again, from one repetition to the next too
        launches = min(math.ceil(sample_s / max(once, 1e-7)), MOST_LAUNCHES)
        launches = len(calls) * math.ceil(launches / len(calls))
        run: Call = lambda: in_turn(launches)  # noqa: E731
        how = f"CUDA events around a graph of {launches} launches"
        if operator.capturable:
            try:
                run = graph_record(run)
            except RuntimeError as error:
                torch.cuda.synchronize()
                how = f"CUDA events around {launches} launches, no graph: {' '.join(str(error).split())[:120]}"
        else:
            how = f"CUDA events around {launches} launches, no graph: the kernel's plan is read on the host"
        between_events(run)
        return [{"repetition": index, "time_s": between_events(run) / launches}
                for index in range(repetitions)], how

    def power(self, point: dict[str, Any], hold_s: float) -> dict[str, Any]:
        """Hold a load and return its row. Raises `PointFailed` where watts are not available."""
        if not self.cuda:
            raise PointFailed("not available: watts are read from NVIDIA's driver, and this is a CPU")
        with torch.inference_mode():
            return held(point, hold_s, self.dtype)

    def _cache_bytes(self) -> int:
        if not self.cuda:
            return host_cache_bytes()
        return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)) or host_cache_bytes()

    def _forget(self) -> None:
        """Give back the operands of the point before."""
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()


def _shape_of(point: dict[str, Any]) -> _Shape:
    return _Shape(point["heads"], point["kv_heads"], point["head_dim"])


def _vllm_flash() -> Attention:
    from hermes.calibration.collect.vllm_attention import VllmFlash

    return VllmFlash()


def _torch_flash() -> Attention:
    from hermes.calibration.collect.torch_attention import FlashVarlen

    return FlashVarlen()


def _top_p(logits: Tensor) -> Tensor:
    """Sample as engines do: sort the vocabulary, cut the tail, draw."""
    ordered, order = logits.sort(dim=-1, descending=False)
    chances = ordered.softmax(dim=-1)
    ordered = ordered.masked_fill(chances.cumsum(dim=-1) <= 1.0 - TOP_P, float("-inf"))
    kept = torch.empty_like(ordered).scatter_(-1, order, ordered).softmax(dim=-1)
    return kept.div(torch.empty_like(kept).exponential_(1.0)).argmax(dim=-1)
