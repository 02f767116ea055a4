"""Checks of the terms collector, run by an interpreter that has torch: `python -m tests.calibration.torch_checks NAME`.

vLLM is stood in for by kernels written in torch, so that a CPU will do. Prints one JSON document with what each found;
the tests in `test_terms_torch.py` look at it.
"""

from __future__ import annotations

import json
import sys
import time
import types
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from hermes.calibration.collect.session import CollectorError

DEVICE = torch.device("cpu")
POINT = {"term": "beside", "batch": 3, "new": 40, "context": 70, "heads": 8, "kv_heads": 2, "head_dim": 16}


def paged(q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int, seqused_k: Any,
          causal: bool, block_table: Any, fa_version: int) -> Any:
    """vLLM's interface; this kernel gathers the pages of each sequence, and calls torch's attention."""
    out = torch.empty_like(q)
    for row, used in enumerate(seqused_k.tolist()):
        begin, end = cu_seqlens_q[row].item(), cu_seqlens_q[row + 1].item()
        keys, values = (pool[block_table[row][: -(-used // 16)].long()].flatten(0, 1)[:used] for pool in (k, v))
        group = q.shape[1] // k.shape[2]
        mask = torch.arange(used)[None, :] <= torch.arange(used - (end - begin), used)[:, None]
        sides = (q[begin:end], keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1))
        found = F.scaled_dot_product_attention(*(side.transpose(0, 1) for side in sides), attn_mask=mask)
        out[begin:end] = found.transpose(0, 1)
    return out


def first_key(q: Any, k: Any, v: Any, max_seqlen_q: int, **more: Any) -> Any:
    """A wrong kernel: it takes every query for one of a sequence's first tokens."""
    begins = more["cu_seqlens_q"]
    return paged(q, k, v, max_seqlen_q, **more | {"seqused_k": (begins[1:] - begins[:-1])})


def norm(x: Any, left: Any, scale: Any, epsilon: float) -> None:
    """vLLM's fused norm: adds into `left`, and writes over `x`."""
    left += x
    x.copy_(F.rms_norm(left, (x.shape[1],), scale, epsilon))


def activate(out: Any, both: Any) -> None:
    """vLLM's activation."""
    half = both.shape[1] // 2
    out.copy_(F.silu(both[:, :half]) * both[:, half:])


def stand_in() -> Any:
    """Put a vLLM in place; return its module of attention."""
    vllm, flash, ops = (types.ModuleType(name) for name in ("vllm", "vllm.vllm_flash_attn", "vllm._custom_ops"))
    vllm.__version__, vllm._custom_ops, ops.fused_add_rms_norm = "0", ops, norm   # type: ignore[attr-defined]
    flash.flash_attn_varlen_func, flash.is_fa_version_supported = paged, lambda version: version == 2  # type: ignore[attr-defined]
    sys.modules |= {"vllm": vllm, "vllm.vllm_flash_attn": flash, "vllm._custom_ops": ops}
    torch.ops._C.silu_and_mul = activate   # type: ignore[attr-defined]
    from hermes.calibration.collect import vllm_attention

    return vllm_attention


def backend(*points: dict[str, Any]) -> Any:
    """The backend of a plan in which it computes on this CPU."""
    from hermes.calibration.collect.terms_torch import TorchBackend

    stand_in()
    return TorchBackend({"device": "cpu", "dtype": "bf16", "cache_bytes": 1, "points": list(points)})


def attention_is_right() -> Any:
    """Differences from attention written out, by precision."""
    module, out = stand_in(), {}
    for name, heads, kv_heads in (("grouped", 8, 2), ("multi-head", 4, 4), ("one", 6, 1)):
        shape = types.SimpleNamespace(heads=heads, kv_heads=kv_heads, head_dim=32)
        for dtype in (torch.float32, torch.bfloat16):
            out[f"{name} {dtype}"] = module.difference(module.VllmFlash(), shape, dtype, DEVICE)
    return out


def a_wrong_kernel_is_refused() -> Any:
    """What the collector says of a kernel whose causal mask is aligned with the first key instead of the last."""
    module = stand_in()
    module.flash_attn_varlen_func = first_key
    try:
        backend(POINT)
    except CollectorError as error:
        return str(error)
    finally:
        module.flash_attn_varlen_func = paged
    return "nothing"


def one_launch_serves_prompt_and_decodes() -> Any:
    """A prompt of 40 tokens beside three decodes: one call of the kernel; its shape, and its notes."""
    operator = backend(POINT).operator(POINT)
    return {"notes": operator.notes, "size": list(operator.calls[0]().shape)}


def every_operator_runs() -> Any:
    """Shapes of what the operators on rows give, or why they do not run."""
    out = {}
    for term in ("norm", "qk_norm", "residual", "rotary", "activation", "embedding", "sampling"):
        try:
            with torch.inference_mode():
                found = backend().operator({"term": term, "rows": 5, "width": 32}).calls[0]()
            out[term] = None if found is None else list(found.shape)
        except Exception as error:
            out[term] = str(error)
    return out | {"qkv": list(backend().operator({"term": "qkv", "rows": 5, "n": 6, "k": 7}).calls[0]().shape)}


def timing_reads_every_copy() -> Any:
    """The timing of CUDA devices, with stand-ins for events and graphs: how often each copy runs in a repetition."""
    from hermes.calibration.collect import terms_torch
    from hermes.calibration.collect.terms_numpy import Operator

    def between(run: Any) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    terms_torch.between_events, terms_torch.graph_record = between, lambda run: run
    counts = [0] * 5

    def call(index: int) -> Any:
        def run() -> None:
            counts[index] += 1
            time.sleep(2e-4)

        return run

    operator = Operator([call(index) for index in range(5)])
    rows, how = backend().time(operator, 3, 4e-3)
    return {"counts": counts, "times": [row["time_s"] for row in rows], "how": how}


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
