"""Loads of a CUDA device, held while its watts are read. torch only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hermes.calibration.collect.nvml import energy_counter
from hermes.calibration.collect.session import PointFailed

__all__ = ["between_events", "held"]

COPIED_BYTES = 2**30      # by the load of the memory, again and again
PRODUCT_ROWS = 8192       # of the square product that is the load of the arithmetic
BURST_S = 0.02            # a load runs and rests in turns of about this long

Run = Callable[[], Any]


def between_events(run: Run) -> float:
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


def _burst(load: str, dtype: Any) -> tuple[Run, float]:
    """Return a stretch of load of about `BURST_S`, and its bytes or flops."""
    if load == "idle":
        torch.cuda.synchronize()
        return lambda: None, 0.0
    run, amount = _copies() if load == "memory" else _products(dtype)
    run()
    times = max(1, round(BURST_S / max(between_events(run), 1e-6)))
    return lambda: [run() for _ in range(times)], amount * times


def _copies() -> tuple[Run, float]:
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2.0 * COPIED_BYTES


def _products(dtype: Any) -> tuple[Run, float]:
    a, b = (torch.empty(PRODUCT_ROWS, PRODUCT_ROWS, dtype=dtype, device="cuda").normal_() for _ in range(2))
    return lambda: a @ b, 2.0 * PRODUCT_ROWS**3
