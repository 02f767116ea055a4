"""Checks of the terms collector, run by an interpreter that has torch: `python -m tests.calibration.torch_checks NAME`.

Prints one JSON document with what each found; the tests in `test_terms_torch.py` look at it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from hermes.calibration.collect import torch_attention as attention
from hermes.calibration.collect.terms_torch import _Shape

DEVICE = torch.device("cpu")


def attention_is_right() -> Any:
    """Differences from attention written out, by precision."""
    out = {}
    for name, heads, kv_heads in (("grouped", 8, 2), ("multi-head", 4, 4), ("one", 6, 1)):
        shape = _Shape(heads, kv_heads, 32)
        for dtype in (torch.float32, torch.bfloat16):
            backend = attention.PerSequence(shape, 400, dtype, DEVICE)
            out[f"{name} {dtype}"] = attention.difference(backend, shape, dtype, DEVICE)
    return out


def a_wrong_backend_is_not_chosen() -> Any:
    """The self-check sees a causal mask that is aligned with the first key instead of the last."""
    class Wrong(attention.PerSequence):
        def _block(self, q: Any, k: Any, v: Any, start: int, position: int) -> Any:
            return super()._block(q, k, v, start, 0)

    shape = _Shape(8, 2, 32)
    return attention.difference(Wrong(shape, 400, torch.float32, DEVICE), shape, torch.float32, DEVICE)


class WrittenOut:
    """A kernel for sequences of different lengths, as far as results go."""

    name, static = "written out", True

    def decode(self, q: Any, k: Any, v: Any, plan: Any) -> Any:
        return attention.written_out(q, k, v, plan)

    prefill = decode


def one_launch_is_both_launches() -> Any:
    """A prompt of 40 tokens beside three decodes: as one launch, and apart; the largest difference."""
    from hermes.calibration.collect.terms_torch import TorchBackend

    point = {"term": "beside", "batch": 3, "new": 40, "context": 70, "heads": 8, "kv_heads": 2, "head_dim": 16}
    plan = {"device": "cpu", "dtype": "fp32", "threads": 1, "cache_bytes": 1, "points": [point]}
    results, launches = [], []
    for kernel in (None, WrittenOut()):
        backend = TorchBackend(plan)
        if kernel is not None:
            backend._attentions = dict.fromkeys(backend._attentions, (kernel, []))
        operator = backend.operator(point)
        launches.append(operator.notes["launch"])
        found = operator.calls[0]()
        results.append(torch.cat(found) if isinstance(found, tuple) else found)
    return {"launches": launches, "off": float((results[0] - results[1]).abs().max()), "size": list(results[0].shape)}


def timing_reads_every_copy() -> Any:
    """The timing of CUDA devices, with stand-ins for events and graphs: how often each copy runs in a repetition."""
    import time

    from hermes.calibration.collect import terms_torch
    from hermes.calibration.collect.terms_timing import Operator

    def between(run: Any) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    terms_torch.between_events, terms_torch.graph_record = between, lambda run: run
    point = {"term": "norm", "rows": 1, "width": 8}
    backend = terms_torch.TorchBackend({"device": "cpu", "dtype": "fp32", "threads": 1, "cache_bytes": 1,
                                        "points": [point]})
    counts = [0] * 5

    def call(index: int) -> Any:
        def run() -> None:
            counts[index] += 1
            time.sleep(2e-4)

        return run

    operator = Operator([call(index) for index in range(5)])
    rows, how = backend._time_cuda(operator, 3, 4e-3)
    return {"counts": counts, "times": [row["time_s"] for row in rows], "how": how}


def pages_are_those_of_the_pool() -> Any:
    """vLLM's interface, whose kernel is stood in for by one that gathers pages: the difference from the reference."""
    import types

    def paged(q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int, seqused_k: Any,
              causal: bool, block_table: Any, fa_version: int) -> Any:
        out = torch.empty_like(q)
        for row, used in enumerate(seqused_k.tolist()):
            begin, end = cu_seqlens_q[row].item(), cu_seqlens_q[row + 1].item()
            keys, values = (pool[block_table[row][: -(-used // 16)].long()].flatten(0, 1) for pool in (k, v))
            starts, lengths = torch.tensor([0, used]), torch.tensor([used])
            plan = attention.Chunks(starts, lengths, torch.tensor([0, end - begin]), used, end - begin)
            out[begin:end] = attention.written_out(q[begin:end], keys, values, plan)
        return out

    fake = types.ModuleType("vllm.vllm_flash_attn")
    fake.flash_attn_varlen_func, fake.is_fa_version_supported = paged, lambda version: version == 2  # type: ignore[attr-defined]
    sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.vllm_flash_attn": fake}
    try:
        from hermes.calibration.collect.vllm_attention import VllmFlash

        kernel, shape = VllmFlash(), _Shape(8, 2, 32)
        return {"name": kernel.name, "off": attention.difference(kernel, shape, torch.float32, DEVICE)}
    finally:
        del sys.modules["vllm"], sys.modules["vllm.vllm_flash_attn"]


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
