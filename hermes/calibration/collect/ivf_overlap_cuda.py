"""The GPU's part of lookahead retrieval: copies from pinned memory, scans, and a loop like HyDE's. torch with CUDA.

Written for a GPU and not run on one by this project. `measure_cuda` gives None where there is no torch or no GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from hermes.svab import spread

__all__ = ["hyde_loop", "measure_cuda"]

_COPY_BYTES, _SCAN_BYTES, _DIM = 2**30, 2**31, 768


def _torch() -> Any:
    """torch, if it sees a GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _seconds(torch: Any, call: Any, repetitions: int) -> list[float]:
    """Times between events on the stream, the first call left out."""
    call()
    found = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return found


def _rate(num_bytes: int, seconds: list[float]) -> dict[str, Any]:
    found = spread([num_bytes / s for s in seconds])
    return {"mean": found.mean, "cv": round(found.cv, 4), "class": found.verdict, "samples": found.samples}


def measure_cuda(seed: int, repetitions: int) -> dict[str, Any] | None:
    """Bytes/s of copies from pinned memory, and of scans (one query against all vectors, then the best 3)."""
    torch = _torch()
    if torch is None:
        return None
    torch.manual_seed(seed)
    host = torch.empty(_COPY_BYTES // 4, dtype=torch.float32, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    vectors = torch.randn(_SCAN_BYTES // (4 * _DIM), _DIM, device="cuda")
    query = torch.randn(_DIM, 1, device="cuda")
    return {
        "device": torch.cuda.get_device_name(),
        "copy": _rate(_COPY_BYTES, _seconds(torch, lambda: device.copy_(host, non_blocking=True), repetitions)),
        "scan": _rate(_SCAN_BYTES, _seconds(torch, lambda: torch.topk((vectors @ query)[:, 0], 3), repetitions)),
        "loop": hyde_loop(repetitions=repetitions),
    }


def hyde_loop(*, steps: int = 32, width: int = 8192, copy_bytes: int = _COPY_BYTES, repetitions: int = 10
              ) -> dict[str, Any]:
    """Decode-like steps (a product with a matrix that does not fit the cache) beside a copy on a stream of its own,
    then a scan of what was copied: seconds of each alone, and of the loop. Raises `RuntimeError` without a GPU.

    The simulation of the loop is max(generation, copy) + scan; it should be within 10%.
    """
    torch = _torch()
    if torch is None:
        raise RuntimeError("no GPU")
    weights, state = torch.randn(width, width, device="cuda"), torch.randn(1, width, device="cuda")
    host = torch.empty(copy_bytes // (4 * _DIM), _DIM, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    query, beside = torch.randn(_DIM, 1, device="cuda"), torch.cuda.Stream()

    def generate() -> None:
        found = state
        for _ in range(steps):
            found = torch.tanh(found @ weights)

    def scan() -> None:
        torch.topk((device @ query)[:, 0], 3)

    def loop() -> None:
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            device.copy_(host, non_blocking=True)
        generate()
        torch.cuda.current_stream().wait_stream(beside)
        scan()

    parts = {"generate": generate, "copy": lambda: device.copy_(host, non_blocking=True), "scan": scan, "loop": loop}
    means = {f"{name}_s": spread(_seconds(torch, call, repetitions)).mean for name, call in parts.items()}
    predicted = max(means["generate_s"], means["copy_s"]) + means["scan_s"]
    return {**means, "predicted_s": predicted, "error": predicted / means["loop_s"] - 1}
