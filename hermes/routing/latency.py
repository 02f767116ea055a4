"""Estimates of TTFT and TPOT at a client, from what a router knows of its load.

- `StepTimes`: from the client's own step times: the steps until all prompts that were sent before, and this one, are
  computed, each with one token of all sequences that run.
- `Fitted`: lines through what the router has seen, fitted by least squares online, older observations weighing less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hermes.core.engine_readings import StepReadable
from hermes.units import NS_PER_S

__all__ = ["Estimates", "Fitted", "Latency", "LeastSquares", "Load", "StepTimes"]


class Load(NamedTuple):
    """What a router believes of a client when a request would be sent there.

    Attributes:
        queued_tokens: Tokens of prompts sent before that are to be computed and have no first token.
        prompt_tokens: Those of this request that are to be computed.
        cached_tokens: Those of this request that are in the prefix cache.
        running: Sequences that run.
        kv_tokens: Their tokens in KV memory.
    """

    queued_tokens: int
    prompt_tokens: int
    cached_tokens: int
    running: int
    kv_tokens: int


class Latency(NamedTuple):
    """Expected seconds until the first token, and between two tokens."""

    ttft_s: float
    tpot_s: float


class Estimates(Protocol):
    """Estimates of the candidates, which are numbered by place."""

    def of(self, place: int, load: Load) -> Latency | None:
        """Return the estimate at a candidate; None before enough was seen."""
        ...

    def seen_ttft(self, place: int, load: Load, seconds: float) -> None:
        """Note the time to the first token of a request that was sent to a candidate under a load."""
        ...

    def seen_tpot(self, place: int, load: Load, seconds: float) -> None:
        """Note the time between tokens of such a request."""
        ...


class StepTimes:
    """See the module's docstring.

    Args:
        budgets: Tokens of a step of each client; 0 for no limit.
    """

    def __init__(self, clients: Sequence[StepReadable], budgets: list[int]) -> None:
        self._clients, self._budgets = clients, budgets

    def of(self, place: int, load: Load) -> Latency | None:
        step = self._clients[place].step_estimate_ns
        running, kv = load.running, load.kv_tokens
        left = max(load.queued_tokens + load.prompt_tokens, 1)
        room = max(self._budgets[place] - running, 1) if self._budgets[place] else left
        full, rest = divmod(left, room)
        if not rest:
            full, rest = full - 1, room
        wait = step(0, 0, running, kv) // 2 if running else 0   # half of the step in flight
        ttft = wait + step(rest, load.cached_tokens, running, kv)
        if full:
            ttft += full * step(room, 0, running, kv)
        tpot = step(0, 0, running + 1, kv + load.prompt_tokens + load.cached_tokens)
        return Latency(ttft / NS_PER_S, tpot / NS_PER_S)

    def seen_ttft(self, place: int, load: Load, seconds: float) -> None:
        pass

    def seen_tpot(self, place: int, load: Load, seconds: float) -> None:
        pass


class LeastSquares:
    """A line through observations; each weighs `forget` times the next one. A tiny ridge keeps it defined."""

    _RIDGE = 1e-6

    def __init__(self, features: int, forget: float) -> None:
        self._gram, self._moment = np.zeros((features, features)), np.zeros(features)
        self._ridge, self._forget = self._RIDGE * np.eye(features), forget
        self._line: np.ndarray | None = None
        self.count = 0

    def add(self, row: list[float], value: float) -> None:
        """Add an observation."""
        x = np.array(row)
        self._gram = self._forget * self._gram + np.outer(x, x)
        self._moment = self._forget * self._moment + x * value
        self._line = None
        self.count += 1

    def value(self, row: list[float]) -> float:
        """Return the line's value, at least 0."""
        if self._line is None:
            self._line = np.linalg.solve(self._gram + self._ridge, self._moment)
        return max(float(self._line @ np.array(row)), 0.0)


class Fitted:
    """See the module's docstring.

    Args:
        groups: Number of each candidate's lines; candidates with one number share them.
        least: Observations from which on a line counts.
        forget: Weight of an observation in comparison with the next one.
    """

    def __init__(self, groups: list[int], least: int, forget: float) -> None:
        self._groups, self._least = groups, least
        count = max(groups) + 1
        self._ttft = [LeastSquares(4, forget) for _ in range(count)]
        self._tpot = [LeastSquares(3, forget) for _ in range(count)]

    def of(self, place: int, load: Load) -> Latency | None:
        ttft, tpot = self._ttft[self._groups[place]], self._tpot[self._groups[place]]
        if ttft.count < self._least:
            return None
        later = tpot.value(_of_decode(load)) if tpot.count >= self._least else 0.0
        return Latency(ttft.value(_of_prefill(load)), later)

    def seen_ttft(self, place: int, load: Load, seconds: float) -> None:
        self._ttft[self._groups[place]].add(_of_prefill(load), seconds)

    def seen_tpot(self, place: int, load: Load, seconds: float) -> None:
        self._tpot[self._groups[place]].add(_of_decode(load), seconds)


# numbers of about 1, so that the ridge weighs little and alike

def _of_prefill(load: Load) -> list[float]:
    return [1.0, (load.queued_tokens + load.prompt_tokens) / 1000, load.running / 10, load.kv_tokens / 10_000]


def _of_decode(load: Load) -> list[float]:
    return [1.0, load.running / 10, load.kv_tokens / 10_000]
