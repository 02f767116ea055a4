"""All-reduces between processes, one a rank: NCCL on CUDA devices, Gloo on a CPU, shared memory with numpy.

All ranks run the same commands in step; rank 0 measures. What it measures ends when its own result is there, and begins
after a barrier, so that ranks which wait for one another do not wait in the measured time.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hermes.calibration.collect.session import PointFailed

__all__ = ["Ranks"]

START_S = 120.0     # importing torch, and meeting the others
ANSWER_S = 120.0
SHARED_FOLDER = "/dev/shm"
PROBES = 3
MOST_LOOPS = 2000   # launches of one CUDA graph

Run = Callable[[], float]
"""Run the all-reduces of one repetition; return its seconds on this rank."""


class Side(Protocol):
    """One rank."""

    def prepare(self, size: int, captured: bool, loops: int) -> Run:
        """Return a repetition of `loops` all-reduces over `size` bytes. Collective: all ranks call it alike."""
        ...

    def close(self) -> None: ...


class _Shared:
    """A rank in numpy: each writes its values to shared memory, and sums a part of all that were written."""

    def __init__(self, rank: int, ranks: int, name: str, barrier: Any) -> None:
        self._rank, self._ranks, self._barrier = rank, ranks, barrier
        self._memory = SharedMemory(name)

    def prepare(self, size: int, captured: bool, loops: int) -> Run:
        if captured:
            raise PointFailed("no CUDA graph on a CPU")
        values = size // 4
        # the last slot holds the sums
        slots = np.ndarray((self._ranks + 1, values), dtype=np.float32, buffer=self._memory.buf)
        own = np.ones(values, dtype=np.float32)
        part = slice(self._rank * values // self._ranks, (self._rank + 1) * values // self._ranks)

        def run() -> float:
            self._barrier.wait()
            began = time.perf_counter()
            for _ in range(loops):
                slots[self._rank] = own
                self._barrier.wait()
                np.sum(slots[: self._ranks, part], axis=0, out=slots[self._ranks, part])
                self._barrier.wait()
                result = slots[self._ranks].copy()
            seconds = time.perf_counter() - began
            if result[0] != self._ranks or result[-1] != self._ranks:
                raise PointFailed(f"wrong sums: {result[0]}, {result[-1]}")
            return seconds

        return run

    def close(self) -> None:
        with suppress(BufferError):   # arrays of the last size still look at it
            self._memory.close()


class _Torch:
    """A rank in torch.distributed."""

    def __init__(self, rank: int, ranks: int, device: str, dtype: str, folder: str) -> None:
        import datetime

        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._cuda = device == "cuda"
        if self._cuda:
            torch.cuda.set_device(rank)
        self._device = torch.device("cuda", rank) if self._cuda else torch.device("cpu")
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
        dist.init_process_group(
            "nccl" if self._cuda else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks,
            timeout=datetime.timedelta(seconds=START_S))

    def prepare(self, size: int, captured: bool, loops: int) -> Run:
        torch, dist = self._torch, self._dist
        # zeros: sums of sums stay what they are, however often
        values = torch.zeros(max(size // self._dtype.itemsize, 1), dtype=self._dtype, device=self._device)

        def all_of_them() -> Any:
            for _ in range(loops):
                dist.all_reduce(values)
            return values

        if not self._cuda:
            if captured:
                raise PointFailed("no CUDA graph on a CPU")
            return lambda: self._timed(all_of_them)
        replay = all_of_them
        if captured:
            from hermes.calibration.collect.torch_graphs import graph_record

            replay = graph_record(all_of_them)
        return lambda: self._timed_on_device(replay)

    def _timed(self, run: Callable[[], Any]) -> float:
        self._dist.barrier()
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    def _timed_on_device(self, run: Callable[[], Any]) -> float:
        cuda = self._torch.cuda
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self._dist.barrier()
        cuda.synchronize()
        first.record()
        run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def close(self) -> None:
        self._dist.destroy_process_group()


def _serve(rank: int, ranks: int, backend: str, device: str, dtype: str, place: str, barrier: Any,
           commands: Connection) -> None:
    """Body of a rank's process: answer (size, captured, loops, repetitions) with seconds, until told None."""
    side: Side | None = None
    try:
        side = _Shared(rank, ranks, place, barrier) if backend == "numpy" else _Torch(rank, ranks, device, dtype, place)
        commands.send([])
        for size, captured, loops, repetitions in iter(commands.recv, None):
            run = side.prepare(size, captured, loops)
            run()
            commands.send([run() / loops for _ in range(repetitions)])
    except EOFError:
        pass
    except Exception as error:   # the parent decides what it means for the point
        with suppress(OSError):
            commands.send(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    finally:
        if side is not None:
            with suppress(Exception):
                side.close()


def _free_bytes() -> float:
    """Return the free bytes of shared memory: writing beyond them would kill the process."""
    try:
        found = os.statvfs(SHARED_FOLDER)
    except OSError:
        return math.inf
    return found.f_bavail * found.f_frsize


class Ranks:
    """A group of processes. Raises `PointFailed` where it cannot be formed."""

    def __init__(self, count: int, backend: str, device: str, dtype: str, largest: int) -> None:
        """Start the processes; `largest`: most bytes that a rank will contribute."""
        self.count = count
        if device == "cuda":
            import torch

            if torch.cuda.device_count() < count:
                raise PointFailed(f"not available: {count} CUDA devices are needed, {torch.cuda.device_count()} there")
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="hermes-ranks-")
        self._shared: SharedMemory | None = None
        place, barrier = str(Path(self._folder.name).resolve()), None
        if backend == "numpy" and (count + 1) * largest > _free_bytes():
            raise PointFailed(f"{count + 1} times {largest} bytes do not fit into shared memory ({SHARED_FOLDER})")
        if backend == "numpy":
            self._shared = SharedMemory(create=True, size=(count + 1) * largest)
            place, barrier = self._shared.name, context.Barrier(count, timeout=ANSWER_S)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, count, backend, device, dtype, place, barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            self._answers(START_S)
        except PointFailed:
            self.close()
            raise

    def measure(self, point: dict[str, Any], repetitions: int, sample_s: float) -> list[dict[str, Any]]:
        """Return rows of one all-reduce; its clock is the wall's, or that of CUDA events."""
        size, captured = point["bytes"], point["captured"]
        once = max(self._command(size, captured, PROBES, 1)[0], 1e-7)
        loops = min(max(1, math.ceil(sample_s / once)), MOST_LOOPS)
        times = self._command(size, captured, loops, repetitions)
        return [{"repetition": index, "time_s": seconds, "cpu_time_s": seconds} for index, seconds in enumerate(times)]

    def _command(self, size: int, captured: bool, loops: int, repetitions: int) -> list[float]:
        for pipe in self._pipes:
            pipe.send((size, captured, loops, repetitions))
        return self._answers(ANSWER_S)[0]

    def _answers(self, timeout_s: float) -> list[list[float]]:
        until, found = time.monotonic() + timeout_s, []
        for pipe in self._pipes:
            try:
                if not pipe.poll(max(until - time.monotonic(), 0.0)):
                    raise PointFailed(f"no answer from a rank in {timeout_s:.0f} s")
                answer = pipe.recv()
            except (EOFError, OSError):
                raise PointFailed("a rank's process ended") from None
            if isinstance(answer, str):
                raise PointFailed(answer)
            found.append(answer)
        return found

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
        if self._shared is not None:
            self._shared.close()
            self._shared.unlink()
        self._folder.cleanup()
