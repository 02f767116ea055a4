"""What Dynamo's planner learns of engines and traffic: regressions of step times, and predictors of the load.

Each tick gives one step of each engine. A regression keeps some of them, spread over the range of their sizes, and fits
a line; it is ready from a number of steps on, and while no slope is negative.

Source: ai-dynamo/dynamo 0c6da1ec, components/src/dynamo/planner/core: perf_model/{base,prefill,decode,agg}.py and
load/predictors.py. Its discount for tokens found in prefix caches is left out: prompts count in full.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

import numpy as np

from hermes.core.scraped import ForwardPass
from hermes.sums import float_sum
from hermes.units import NS_PER_S

__all__ = ["AggModel", "Constant", "DecodeModel", "Kalman", "MovingAverage", "Predictor", "PrefillModel", "Regression"]

_LEAST_S = 1e-6   # shortest predicted step


class MovingAverage:
    """Mean of the last values; zeros before the first other value do not count."""

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        if value or self._values:
            self._values.append(value)

    @property
    def value(self) -> float:
        return float_sum(self._values) / len(self._values) if self._values else 0.0


class Regression:
    """Linear regression over steps in buckets of equal width. Of more than `most` steps the oldest of the fullest
    bucket goes.

    Args:
        axes: Numbers that describe a step.
        least: Steps from which on it is ready.
        buckets: In total; a square number, if there are two axes.
        clipped: Axes whose negative slope counts as 0.
    """

    def __init__(self, axes: int, most: int, least: int, buckets: int, clipped: tuple[int, ...] = ()) -> None:
        self._axes, self._most, self._least, self._clipped = axes, most, least, clipped
        self._per_axis = buckets if axes == 1 else math.isqrt(buckets)
        self._buckets: dict[tuple[int, ...], deque[tuple[tuple[float, ...], float]]] = {}
        self._low, self._high = [math.inf] * axes, [-math.inf] * axes
        self._line: tuple[list[float], float] | None = None
        self.num_steps = 0

    @property
    def enough(self) -> bool:
        """Whether it has seen enough steps."""
        return self.num_steps >= self._least

    def add(self, step: tuple[float, ...], seconds: float) -> None:
        low, high = list(map(min, self._low, step)), list(map(max, self._high, step))
        if (low, high) != (self._low, self._high):
            self._low, self._high = low, high
            known = [one for bucket in self._buckets.values() for one in bucket]
            self._buckets = {}
            for one in known:
                self._put(one)
        self._put((step, seconds))
        self.num_steps += 1
        if self.num_steps > self._most:
            fullest = max(self._buckets, key=lambda key: len(self._buckets[key]))
            self._buckets[fullest].popleft()
            if not self._buckets[fullest]:
                del self._buckets[fullest]
            self.num_steps -= 1
        self._line = None

    def _put(self, one: tuple[tuple[float, ...], float]) -> None:
        key = tuple(0 if high <= low else min(int((value - low) / (high - low) * self._per_axis), self._per_axis - 1)
                    for value, low, high in zip(one[0], self._low, self._high, strict=True))
        self._buckets.setdefault(key, deque()).append(one)

    def ready(self) -> bool:
        """Fit it, if it is not; return whether it can predict."""
        if self._line is not None:
            return True
        if not self.enough:
            return False
        known = [one for bucket in self._buckets.values() for one in bucket]
        steps, seconds = np.array([one[0] for one in known]), np.array([one[1] for one in known])
        middle, mean = steps.mean(axis=0), seconds.mean()
        slopes = np.linalg.lstsq(steps - middle, seconds - mean, rcond=None)[0]
        start = float(mean - middle @ slopes)
        if any(slope < 0 and axis not in self._clipped for axis, slope in enumerate(slopes)):
            return False
        self._line = [max(float(slope), 0.0) for slope in slopes], start
        return True

    def seconds(self, *step: float) -> float:
        """Return the predicted time of a step. Call `ready` before."""
        assert self._line is not None
        slopes, start = self._line
        return max(_LEAST_S, start + float_sum(a * b for a, b in zip(slopes, step, strict=True)))


class PrefillModel:
    """Step time by the prompt tokens computed in it."""

    def __init__(self, most: int, least: int, buckets: int) -> None:
        self.regression = Regression(1, most, least, buckets)
        self.prompt = MovingAverage(most)

    def observe(self, step: ForwardPass) -> None:
        if step.prefill_seqs:
            self.prompt.add(step.prefill_tokens / step.prefill_seqs)
        if step.wall_ns:
            self.regression.add((step.prefill_tokens,), step.wall_ns / NS_PER_S)

    def ttft_s(self, queued: float, batched: int) -> float | None:
        """Return the time of the next request with so many prompt tokens before it, in steps of at most `batched`."""
        if not self.regression.ready():
            return None
        return self._chunks_s(queued + self.prompt.value, batched)

    def _chunks_s(self, tokens: float, batched: int) -> float:
        whole, rest = divmod(tokens, batched)
        return whole * self.regression.seconds(batched) + (self.regression.seconds(rest) if rest else 0.0)

    def rate(self, prompt: float, batched: int) -> tuple[float, float] | None:
        """Return requests per second of an engine with prompts of so many tokens, and the TTFT in s."""
        if prompt <= 0 or not self.regression.ready():
            return None
        seconds = self._chunks_s(prompt, batched)
        return 1.0 / seconds, seconds


class DecodeModel:
    """Step time by sequences and their tokens."""

    def __init__(self, most: int, least: int, buckets: int) -> None:
        self.regression = Regression(2, most, least, buckets, clipped=(0,))
        self.length, self.seqs = MovingAverage(most), MovingAverage(most)

    def observe(self, step: ForwardPass) -> None:
        if step.decode_seqs:
            self.length.add(step.decode_tokens / step.decode_seqs)
        self.seqs.add(step.decode_seqs)
        if step.wall_ns:
            self.regression.add((step.decode_seqs, step.decode_tokens), step.wall_ns / NS_PER_S)

    def itl_s(self, tokens: float) -> float | None:
        """Return the time of the next step with one more sequence, if those there and in the queue have so many tokens.
        """
        if not self.regression.ready():
            return None
        return self.regression.seconds(self.seqs.value + 1, tokens + self.length.value)

    def rate(self, context: float, output: float, itl_s: float, kv_tokens: int, seqs: int) -> float | None:
        """Return requests per second of an engine with the largest batch that keeps the ITL, or with one sequence."""
        if context <= 0 or output <= 0 or not self.regression.ready():
            return None
        low, high = 1, max(1, min(max(1, int(kv_tokens / context)), seqs))
        best = 1
        while low <= high:
            middle = (low + high) // 2
            if self.regression.seconds(middle, middle * context) <= itl_s:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return best / (output * self.regression.seconds(best, best * context))


class AggModel:
    """Step time by prompt tokens and the tokens of decoding sequences, of an engine that does both."""

    def __init__(self, most: int, least: int, buckets: int) -> None:
        self.regression = Regression(2, most, least, buckets)
        self.prompt, self.length, self.prefill = MovingAverage(most), MovingAverage(most), MovingAverage(most)

    def observe(self, step: ForwardPass) -> None:
        if step.prefill_seqs:
            self.prompt.add(step.prefill_tokens / step.prefill_seqs)
        if step.decode_seqs:
            self.length.add(step.decode_tokens / step.decode_seqs)
        self.prefill.add(step.prefill_tokens)
        if step.wall_ns:
            self.regression.add((step.prefill_tokens, step.decode_tokens), step.wall_ns / NS_PER_S)

    def ttft_s(self, queued: float, batched: int, decode: float) -> float | None:
        """Return the time of the next request, each step of whose prompt computes the decoding sequences, too."""
        if not self.regression.ready():
            return None
        whole, rest = divmod(queued + self.prompt.value, batched)
        return whole * self.regression.seconds(batched, decode) + (
            self.regression.seconds(rest, decode) if rest else 0.0)

    def itl_s(self, tokens: float) -> float | None:
        """Return the time of the next step if sequences there and in the queue have so many tokens."""
        if not self.regression.ready():
            return None
        return self.regression.seconds(self.prefill.value, tokens + self.length.value)

    def rate(self, prompt: float, output: float, batched: int, ttft_s: float, itl_s: float, kv_tokens: int,
             seqs: int) -> float | None:
        """Return requests per second of an engine with the largest batch that keeps TTFT and ITL, or with one sequence.
        In a steady state each of n sequences takes its share of prompt tokens in each step, n x prompt / output."""
        if prompt <= 0 or output <= 0 or not self.regression.ready():
            return None
        context = prompt + output / 2
        most = min(max(1, int(kv_tokens / max(1.0, context))), seqs, batched - 1)
        most = max(1, min(most, math.floor(batched - prompt / output)))
        best: float | None = None
        for n in range(1, most + 1):
            prefill = min(n * prompt / max(1.0, output), batched)
            step = self.regression.seconds(prefill, n * context)
            first = self.ttft_s(int(prefill), batched, int(n * context))
            kept = step <= itl_s and first is not None and first <= ttft_s
            if kept or best is None:
                best = n / (output * step)
            if not kept:
                break
        return best


# -- the load --------------------------------------------------------------------------------------------------------


class Predictor(Protocol):
    """Predicts the next value of a series; zeros before the first other value do not count."""

    def add(self, value: float) -> None:
        """Take the value of the interval that has ended."""
        ...

    def next(self) -> float:
        """Return the value of the next interval."""
        ...


class Constant:
    """The next value is the last one."""

    def __init__(self) -> None:
        self._last = 0.0

    def add(self, value: float) -> None:
        self._last = value

    def next(self) -> float:
        return self._last


class Kalman:
    """A level and a trend, each with noise, filtered (a local linear trend).

    Args:
        level, trend: Variance of the noise of either, in one interval.
        noise: Variance of the values' own noise.
    """

    def __init__(self, level: float, trend: float, noise: float) -> None:
        self._state = np.zeros(2)
        self._cov = np.eye(2) * 1000.0
        self._step = np.array([[1.0, 1.0], [0.0, 1.0]])
        self._noise, self._own = np.diag([max(1e-12, level), max(1e-12, trend)]), max(1e-9, noise)
        self._begun = self._ahead = False

    def add(self, value: float) -> None:
        if not self._begun:
            if value:
                self._begun, self._state = True, np.array([value, 0.0])
            return
        self.next()
        gain = self._cov[:, 0] / (self._cov[0, 0] + self._own)
        self._state = self._state + gain * (value - self._state[0])
        self._cov = self._cov - np.outer(gain, self._cov[0])
        self._ahead = False

    def next(self) -> float:
        if self._begun and not self._ahead:
            self._state = self._step @ self._state
            self._cov = self._step @ self._cov @ self._step.T + self._noise
            self._ahead = True
        return float(self._state[0])
