"""Copies between host and device, timed by CUDA events. Needs torch with a CUDA device."""

from __future__ import annotations

import time
from typing import Any

import torch

from hermes.calibration.collect.session import CollectorError, PointFailed

__all__ = ["DeviceLink"]

_LARGE = 64 * 2**20      # from here on `repetitions` copies are enough; smaller ones are taken five times as often


class DeviceLink:
    """Host buffers, pinned and pageable, one device buffer, and the copies between them."""

    def __init__(self, device: str, largest: int) -> None:
        """Raises `CollectorError` where there is no such device, or not enough memory on it."""
        if not torch.cuda.is_available():
            raise CollectorError("torch sees no CUDA device; measure the host alone with --device cpu")
        self._device = torch.device(device)
        self._largest = largest
        try:
            self._on_device = torch.zeros(largest, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise CollectorError(f"no room for {largest} bytes on {device}: {error}") from None
        self._host: dict[str, torch.Tensor] = {}

    def describe(self) -> dict[str, Any]:
        """Device and versions."""
        properties = torch.cuda.get_device_properties(self._device)
        return {
            "device": properties.name, "device_memory_bytes": properties.total_memory, "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }

    def _buffer(self, memory: str) -> torch.Tensor:
        if memory not in self._host:
            try:
                buffer = torch.empty(self._largest, dtype=torch.uint8, pin_memory=memory == "pinned")
            except RuntimeError as error:
                raise PointFailed(f"no {memory} buffer of {self._largest} bytes: {error}") from None
            self._host[memory] = buffer.fill_(1)  # touched: no page is mapped while a copy is timed
        return self._host[memory]

    def measure(self, point: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows of one copy each: `time_s` between the events, `host_time_s` from the call until it is known done.

        Small copies walk through the buffers, so that a pageable source is not always in the CPU's cache.
        """
        size = int(point["bytes"])
        host, device = self._buffer(point["memory"]), self._on_device
        count = int(point["repetitions"]) * (1 if size >= _LARGE else 5)
        places, rows = self._largest // size, []
        for n in range(-2, count):
            at = (n % places) * size
            pair = device[at : at + size], host[at : at + size]
            target, source = pair if point["path"] == "host_to_device" else pair[::-1]
            seconds, host_seconds = self._copy(target, source)
            if n >= 0:
                rows.append({"repetition": n, "time_s": seconds, "host_time_s": host_seconds})
        return rows

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> tuple[float, float]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3, time.perf_counter() - began
