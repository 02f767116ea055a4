"""Operators in torch on a CUDA device, by vLLM's own kernels: what its engine runs in a model of these shapes.

vLLM's kernels are compared with plain ones before anything is measured by them. Watts are read while loads are held.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from hermes.calibration.collect.counters import energy_counter
from hermes.calibration.collect.session import CollectorError, PointFailed
from hermes.calibration.collect.terms_numpy import Operator, copies_of, host_cache_bytes

__all__ = ["TorchBackend"]

Tensor = Any
Call = Callable[[], Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOP_P = 0.95
MOST_LAUNCHES = 4000      # of one CUDA graph

COPIED_BYTES = 2**30      # by the load of the memory, again and again
PRODUCT_ROWS = 8192       # of the square product that is the load of the arithmetic
BURST_S = 0.02            # a load runs and rests in turns of about this long


@dataclass(frozen=True)
class _Shape:
    """What attention needs to know of a model."""

    heads: int
    kv_heads: int
    head_dim: int


class TorchBackend:
    """Operators of one device."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Raises `CollectorError` without such a device or without vLLM, and for kernels of vLLM that are wrong."""
        if plan["device"] == "cuda" and not torch.cuda.is_available():
            raise CollectorError("the plan is for a CUDA device, and torch sees none")
        try:
            import vllm
            from vllm import _custom_ops

            from hermes.calibration.collect import vllm_attention
        except ImportError as error:
            raise CollectorError(f"operators of a GPU need vLLM in {sys.executable} ({error})") from None
        self.device, self.dtype = torch.device(plan["device"]), DTYPES[plan["dtype"]]
        self._walk = int(plan["cache_bytes"]) or 2 * self._cache_bytes()
        self._generator = torch.Generator(device=self.device).manual_seed(0)
        self._version, self._ops, self._kernels = vllm.__version__, _custom_ops, vllm_attention
        shapes = {_shape_of(point) for point in plan["points"] if "heads" in point}
        try:
            self._attention = vllm_attention.VllmFlash()
            checked = [("element-wise operators", self._operators_off(), 0.1)]   # most that 16 bits are off
            checked += [("attention", vllm_attention.difference(self._attention, shape, self.dtype, self.device), 0.03)
                        for shape in shapes]
        except (StopIteration, AttributeError, RuntimeError, TypeError) as error:
            said = " ".join(str(error).split())[:200] or "no FlashAttention for this device"
            raise CollectorError(f"kernels of vLLM {self._version}: {said}") from None
        for what, off, most in checked:
            if not off <= most:
                raise CollectorError(f"{what} of vLLM {self._version}: wrong by {off:.3g}")

    def _operators_off(self) -> float:
        """Return how far vLLM's fused operators are off plain ones."""
        x, left = self._random(3, 256), self._random(3, 256)
        scale, both = self._random(256), self._random(3, 512)
        found, out = x.clone(), torch.empty_like(x)
        self._ops.fused_add_rms_norm(found, left.clone(), scale, 1e-5)
        torch.ops._C.silu_and_mul(out, both)
        wanted = F.rms_norm(x + left, (256,), scale, 1e-5)
        activated = F.silu(both[:, :256]) * both[:, 256:]
        return max(float((found - wanted).abs().max()), float((out - activated).abs().max()))

    def describe(self) -> dict[str, Any]:
        """Return versions, the device and kernels."""
        properties = torch.cuda.get_device_properties(0)
        return {
            "engine": f"vllm {self._version}", "torch": torch.__version__, "attention": self._attention.name,
            "beside": "one launch", "cold_bytes": self._walk, "device": torch.cuda.get_device_name(0),
            "cuda": torch.version.cuda, "memory_bytes": int(properties.total_memory),
            "devices": torch.cuda.device_count(),
        }

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
        if term == "residual":
            raise PointFailed("part of the norm's kernel (vLLM's fused_add_rms_norm)")
        x, scale, other = self._random(rows, width), self._random(width), self._random(rows, width)
        if term == "rotary":
            half = width // 2
            cos, sin = self._random(rows, half), self._random(rows, half)

            def rotary() -> Tensor:
                first, second = x[:, :half], x[:, half : 2 * half]
                return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)

            return Operator([rotary])
        both, ids = self._random(rows, 2 * width), torch.randint(0, rows, (rows,), device=self.device)
        known: dict[str, tuple[Call, str]] = {
            "norm": (lambda: self._ops.fused_add_rms_norm(x, other, scale, 1e-5), "vLLM's fused_add_rms_norm"),
            "activation": (lambda: torch.ops._C.silu_and_mul(x, both), "vLLM's silu_and_mul"),
            "qk_norm": (lambda: F.rms_norm(x, (width,), scale, 1e-5), "torch's rms_norm"),
            "embedding": (lambda: F.embedding(ids, other), "torch's embedding"),
        }
        call, kernel = known[term]
        return Operator([call], {"kernel": kernel})

    def _attention_operator(self, point: dict[str, Any]) -> Operator:
        shape = _shape_of(point)
        prompts = point["batch"] if point["term"] == "prefill" else 1 if point["term"] == "beside" else 0
        decodes = point["batch"] if point["term"] != "prefill" else 0
        parts = [(point.get("context", 1) - 1, 1)] * decodes + [(point.get("past", 0), point.get("new", 0))] * prompts
        plan, tokens = self._kernels.Sequences.of(parts, self.device)
        cold = decodes > 0 or point.get("past", 0) > 0
        copies = copies_of(2.0 * self.dtype.itemsize * tokens * shape.kv_heads * shape.head_dim,
                           self._walk) if cold else 1
        q = self._random(sum(new for _, new in parts), shape.heads, shape.head_dim)
        size = (tokens, shape.kv_heads, shape.head_dim)

        def call(k: Tensor, v: Tensor) -> Call:
            return lambda: self._attention(q, k, v, plan)

        return Operator([call(self._random(*size), self._random(*size)) for _ in range(copies)],
                        {"launch": "one"} if point["term"] == "beside" else {})

    # -- time and watts ------------------------------------------------------------------------------------------------

    def time(self, operator: Operator, repetitions: int, sample_s: float) -> tuple[list[dict[str, Any]], str]:
        """Return rows of one run each, and how they were timed. Raises `PointFailed`."""
        try:
            with torch.inference_mode():
                return self._timed(operator, repetitions, sample_s)
        except torch.OutOfMemoryError:
            raise PointFailed("out of memory") from None

    def _timed(self, operator: Operator, repetitions: int, sample_s: float) -> tuple[list[dict[str, Any]], str]:
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
        try:
            run = graph_record(run)
        except RuntimeError as error:
            torch.cuda.synchronize()
            how = f"CUDA events around {launches} launches, no graph: {' '.join(str(error).split())[:120]}"
        between_events(run)
        return [{"repetition": index, "time_s": between_events(run) / launches}
                for index in range(repetitions)], how

    def power(self, point: dict[str, Any], hold_s: float) -> dict[str, Any]:
        """Hold a load and return its row. Raises `PointFailed` where watts are not available."""
        with torch.inference_mode():
            return held(point, hold_s, self.dtype)

    def _cache_bytes(self) -> int:
        return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)) or host_cache_bytes()

    def _forget(self) -> None:
        """Give back the operands of the point before."""
        gc.collect()
        torch.cuda.empty_cache()


def _shape_of(point: dict[str, Any]) -> _Shape:
    return _Shape(point["heads"], point["kv_heads"], point["head_dim"])


def graph_record(run: Call) -> Call:
    """Record a CUDA graph, after two runs on a side stream that let libraries allocate what they keep; return its
    replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Call = graph.replay
    return replay


def _top_p(logits: Tensor) -> Tensor:
    """Sample as engines do: sort the vocabulary, cut the tail, draw."""
    ordered, order = logits.sort(dim=-1, descending=False)
    chances = ordered.softmax(dim=-1)
    ordered = ordered.masked_fill(chances.cumsum(dim=-1) <= 1.0 - TOP_P, float("-inf"))
    kept = torch.empty_like(ordered).scatter_(-1, order, ordered).softmax(dim=-1)
    return kept.div(torch.empty_like(kept).exponential_(1.0)).argmax(dim=-1)


def between_events(run: Call) -> float:
    """Return the device's seconds between two CUDA events around what `run` enqueues."""
    first = torch.cuda.Event(enable_timing=True)
    last = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def held(point: dict[str, Any], hold_s: float, dtype: Any) -> dict[str, Any]:
    """Hold the load of a point and return its row: `power_w`, and `rate` in bytes/s moved or flop/s computed.

    Raises `PointFailed` where NVML has no energy counter, or it stands still (it moves every 20 to 100 ms).
    """
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "")
    joules = energy_counter(f"GPU-{uuid}" if uuid else "")
    if joules is None:
        raise PointFailed("not available: NVML has no energy counter of this device")
    load, share = point["load"], point.get("share", 0.0)
    burst, amount = _burst(load, dtype)
    bursts, before, began = 0, joules(), time.perf_counter()
    while (passed := time.perf_counter() - began) < hold_s:
        if load == "idle":
            time.sleep(hold_s - passed)
            continue
        start = time.perf_counter()
        burst()
        torch.cuda.synchronize()
        bursts += 1
        time.sleep((time.perf_counter() - start) * (1.0 / share - 1.0))
    seconds, used = time.perf_counter() - began, joules() - before
    if used <= 0.0:
        raise PointFailed("not available: NVML's energy counter stood still")
    return {"repetition": 0, "time_s": seconds, "power_w": used / seconds, "rate": bursts * amount / seconds}


def _burst(load: str, dtype: Any) -> tuple[Call, float]:
    """Return a stretch of load of about `BURST_S`, and its bytes or flops."""
    if load == "idle":
        torch.cuda.synchronize()
        return lambda: None, 0.0
    run: Call
    if load == "memory":
        source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        run, amount = lambda: target.copy_(source), 2.0 * COPIED_BYTES
    else:
        a, b = (torch.empty(PRODUCT_ROWS, PRODUCT_ROWS, dtype=dtype, device="cuda").normal_() for _ in range(2))
        run, amount = lambda: a @ b, 2.0 * PRODUCT_ROWS**3
    run()
    times = max(1, round(BURST_S / max(between_events(run), 1e-6)))
    return lambda: [run() for _ in range(times)], amount * times
