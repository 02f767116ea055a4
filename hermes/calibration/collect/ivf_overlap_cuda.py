"""GPU measurements of lookahead retrieval: copies from pinned memory, scans, and a loop like HyDE's. Needs torch.

Written for CUDA, on which this project has not run it. `device: cpu` runs the same code without a GPU, with the copy in
a thread in place of a CUDA stream: that tests the collector and measures no GPU.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

from hermes.core.noise import spread

__all__ = ["Bench", "measure_device"]

Device = Literal["cuda", "cpu"]
COPY_BYTES, SCAN_BYTES, DIM = 2**30, 2**31, 768
STEPS, WIDTH = 32, 8192    # of the loop's generation: products with a matrix larger than any cache


def measure_device(
    device: Device, seed: int, repetitions: int, *, copy_bytes: int = COPY_BYTES, scan_bytes: int = SCAN_BYTES,
    steps: int = STEPS, width: int = WIDTH,
) -> dict[str, Any] | None:
    """Return bytes/s of copies from pinned memory and of scans (one query against all vectors, then the best 3), and
    seconds of the loop and of its parts. None without torch, or without a GPU for CUDA."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if device == "cuda" and not torch.cuda.is_available():
        return None
    torch.manual_seed(seed)
    bench = Bench(torch, device, repetitions)
    host, there = bench.pair(copy_bytes)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu: no GPU, the collector tried out"
    return {
        "device": name, "torch": str(torch.__version__),
        "copy": _rate(4 * host.numel(), bench.seconds(lambda: bench.copy(there, host))),
        "scan": bench.scan_rate(scan_bytes), "loop": bench.loop(host, there, steps, width),
    }


def _rate(num_bytes: int, seconds: list[float]) -> dict[str, Any]:
    found = spread([num_bytes / s for s in seconds])
    return {"mean": found.mean, "cv": round(found.cv, 4), "class": found.verdict, "samples": found.samples}


class Bench:
    """Timed calls on one device."""

    def __init__(self, torch: Any, device: Device, repetitions: int) -> None:
        self.torch, self.device, self.repetitions = torch, device, repetitions
        self.cuda = device == "cuda"
        self.query = torch.randn(DIM, 1, device=device)

    def pair(self, num_bytes: int) -> tuple[Any, Any]:
        """Memory of the host (pinned if the device allows it) and of the device, rows of `DIM` floats."""
        host = self.torch.empty(num_bytes // (4 * DIM), DIM, pin_memory=self.cuda).normal_()
        return host, self.torch.empty(host.shape, device=self.device)

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source, non_blocking=self.cuda)

    def scan(self, vectors: Any) -> None:
        """One matrix product, then the best 3."""
        self.torch.topk((vectors @ self.query)[:, 0], 3)

    def scan_rate(self, num_bytes: int) -> dict[str, Any]:
        """Scan vectors that lie on the device."""
        vectors = self.torch.randn(num_bytes // (4 * DIM), DIM, device=self.device)
        return _rate(4 * vectors.numel(), self.seconds(lambda: self.scan(vectors)))

    def seconds(self, call: Callable[[], None]) -> list[float]:
        """Return the times of each call except the first: between events on the stream, or of the wall clock."""
        call()
        found = []
        for _ in range(self.repetitions):
            if self.cuda:
                begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                self.torch.cuda.synchronize()
                found.append(begin.elapsed_time(end) / 1e3)
            else:
                began = time.perf_counter()
                call()
                found.append(time.perf_counter() - began)
        return found

    def loop(self, host: Any, there: Any, steps: int, width: int) -> dict[str, Any]:
        """Time decode-like steps beside a copy, then a scan of the copied vectors: mean seconds of each alone, and of
        the loop.

        `hermes.calibration.ivf_lookahead` adds the simulated time, in the project's interpreter.
        """
        torch = self.torch
        weights = torch.randn(width, width, device=self.device) / width**0.5
        state = torch.randn(1, width, device=self.device)
        begin_copy, wait_for_copy = self._beside()

        def generate() -> None:
            found = state
            for _ in range(steps):
                found = torch.tanh(found @ weights)

        def together() -> None:
            begun = begin_copy(lambda: self.copy(there, host))
            generate()
            wait_for_copy(begun)
            self.scan(there)

        parts = {"generate": generate, "copy": lambda: self.copy(there, host), "scan": lambda: self.scan(there),
                 "loop": together}
        times = {name: spread(self.seconds(call)) for name, call in parts.items()}
        return {
            **{f"{name}_s": found.mean for name, found in times.items()},
            "cv": {name: round(found.cv, 4) for name, found in times.items()},
            "steps": steps, "copy_bytes": 4 * host.numel(), "dim": DIM,
        }

    def _beside(self) -> tuple[Callable[[Callable[[], None]], Any], Callable[[Any], None]]:
        """Return (start work beside the following, wait for it): a stream of its own, or a thread."""
        torch = self.torch
        if not self.cuda:
            pool = ThreadPoolExecutor(1)

            def start(call: Callable[[], None]) -> Future[None]:
                return pool.submit(call)

            return start, lambda begun: begun.result()
        stream = torch.cuda.Stream()

        def on_stream(call: Callable[[], None]) -> None:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                call()

        return on_stream, lambda _: torch.cuda.current_stream().wait_stream(stream)
