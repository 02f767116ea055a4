"""Serving with the torch engine: `python -m hermes.calibration.collect.torch_online WORKLOAD.json RESULT.json`.

Scheduling follows vLLM's V1 scheduler as far as it goes without a shortage of memory: running sequences first, in
order, each with as many tokens as it lacks and the budget leaves; then waiting ones while there is budget and room. A
prompt may be split; a token is sampled when a sequence has caught up. Files: `hermes.calibration.collect.online`. numpy
and torch only.
"""

from __future__ import annotations

import datetime
import platform
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hermes.calibration.collect.online import serve_workload
from hermes.calibration.collect.torch_engine import ALIGNMENT, Step, TorchEngine
from hermes.calibration.collect.torch_llm import device_name
from hermes.calibration.collect.torch_model import Shape

__all__ = ["Regions", "TorchOnline", "main"]


class Regions:
    """Contiguous regions of the KV pool, first fit."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(ALIGNMENT, size)]   # (begin, length), by begin

    def take(self, tokens: int) -> int | None:
        """Return the start of a region of that many tokens, or None."""
        need = -(-tokens // ALIGNMENT) * ALIGNMENT
        for index, (begin, length) in enumerate(self._free):
            if length >= need:
                self._free[index : index + 1] = [(begin + need, length - need)] if length > need else []
                return begin
        return None

    def give(self, begin: int, tokens: int) -> None:
        """Give a region back."""
        length = -(-tokens // ALIGNMENT) * ALIGNMENT
        merged: list[tuple[int, int]] = []
        for start, size in sorted([*self._free, (begin, length)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged


@dataclass
class Sequence:
    """A request in service."""

    request: int
    prompt: int
    target: int
    """Number of output tokens to generate."""
    tokens: list[int]
    """Prompt, then outputs."""
    begin: int = 0
    computed: int = 0
    given: int = 0
    chunk: int = field(default=0)
    """Tokens in the current step."""


class TorchOnline:
    """The torch engine with the interface `add`, `step` and `busy`."""

    name = "torch"
    version = torch.__version__

    def __init__(self, config: dict[str, Any]) -> None:
        """config: `engine` of a workload file; `num_blocks * block_size` tokens of KV cache."""
        self.budget, self.max_num_seqs = int(config["max_num_batched_tokens"]), int(config["max_num_seqs"])
        pool = int(config["num_blocks"]) * int(config["block_size"])
        model = config["model"]
        dtype = config.get("dtype", "fp32")
        longest = int(config.get("max_model_len") or model.get("max_position_embeddings") or 8192)
        self.engine = TorchEngine(
            Shape.of(model), device=config.get("device", "cpu"), dtype=dtype, pool_tokens=pool,
            longest=longest, threads=int(config.get("threads", 1)), seed=int(config.get("seed", 0)),
            max_num_seqs=self.max_num_seqs,
        )
        self._random = np.random.default_rng(int(config.get("seed", 0)))
        self._regions = Regions(pool)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, request: int, prompt_tokens: int, output_tokens: int) -> None:
        """Take a request. Raises `ValueError` for one that no step could ever serve."""
        if prompt_tokens + output_tokens > self.engine.longest:
            raise ValueError(f"request {request}: {prompt_tokens} + {output_tokens} tokens do not fit into "
                             f"{self.engine.longest}")
        tokens = self._random.integers(0, self.engine.shape.vocab, prompt_tokens).tolist()
        self.waiting.append(Sequence(request, prompt_tokens, output_tokens, tokens))

    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.waiting or self.running)

    def step(self) -> list[tuple[int, int]]:
        """Schedule and compute a step; return the requests that got a token."""
        scheduled = self._schedule()
        step = Step(tokens=[])
        assert step.tokens is not None
        order: list[Sequence] = []
        for decoding in (True, False):
            for seq in scheduled:
                if (seq.chunk == 1 and seq.computed >= seq.prompt) == decoding:
                    order.append(seq)
                    step.tokens += seq.tokens[seq.computed : seq.computed + seq.chunk]
                    if decoding:
                        step.decodes.append((seq.begin, seq.computed))
                    else:
                        step.prefills.append((seq.begin, seq.computed, seq.chunk, self._catches_up(seq)))
        sampled = iter(self.engine.step(step).tolist())
        emitted = []
        for seq in order:
            caught_up = self._catches_up(seq)
            seq.computed += seq.chunk
            if caught_up:
                seq.tokens.append(next(sampled))
                seq.given += 1
                emitted.append((seq.request, 1))
        self._retire()
        return emitted

    @staticmethod
    def _catches_up(seq: Sequence) -> bool:
        return seq.computed + seq.chunk == len(seq.tokens)

    def _schedule(self) -> list[Sequence]:
        """Return the sequences of the next step, each with its `chunk`."""
        budget, scheduled = self.budget, []
        for seq in self.running:
            seq.chunk = min(len(seq.tokens) - seq.computed, budget)
            budget -= seq.chunk
            if seq.chunk:
                scheduled.append(seq)
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            seq = self.waiting[0]
            begin = self._regions.take(seq.prompt + seq.target)
            if begin is None:
                if not self.running:
                    raise RuntimeError(f"request {seq.request} does not fit into the KV cache")
                break
            seq.begin = begin
            seq.chunk = min(seq.prompt, budget)
            budget -= seq.chunk
            self.running.append(self.waiting.popleft())
            scheduled.append(seq)
        return scheduled

    def _retire(self) -> None:
        """Remove sequences that have all their tokens."""
        for seq in self.running:
            if seq.given == seq.target:
                self._regions.give(seq.begin, seq.prompt + seq.target)
        self.running = [seq for seq in self.running if seq.given < seq.target]


def environment() -> dict[str, Any]:
    """Versions and the machine, for provenance."""
    return {"device": device_name("cuda" if torch.cuda.is_available() else "cpu"), "torch": torch.__version__,
            "date": datetime.date.today().isoformat(), "python": platform.python_version(),
            "platform": platform.platform()}


def main(arguments: list[str]) -> int:
    """Command line."""
    if len(arguments) != 2:
        print("usage: python -m hermes.calibration.collect.torch_online WORKLOAD.json RESULT.json", file=sys.stderr)
        return 2
    serve_workload(Path(arguments[0]), Path(arguments[1]), TorchOnline, environment)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
