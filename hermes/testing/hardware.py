"""Contract suite for hardware models.

Inherit it in a test module, give `make()`, and pytest checks what the kernel relies on:

    class TestMyModel(HardwareModelContract):
        def make(self):
            return MyModel().build()
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import numpy as np

from hermes.arrays import IntArray, exp
from hermes.hardware.base import BATCH_STATS, STEP_STATS, HardwareModel, StepStats
from hermes.hardware.fitted.monotone import Batch, cheaper_steps

__all__ = [
    "FIELDS", "HardwareModelContract", "MonotoneHardwareModelContract", "advanced", "batch", "check_added_work",
    "check_growth", "columns_of", "random_stats",
]

FIELDS: tuple[str, ...] = BATCH_STATS


def batch(prefills: list[tuple[int, int]], contexts: list[int]) -> StepStats:
    """Return the statistics of a step in which every sequence samples.

    Args:
        prefills: (new tokens, past tokens) of each prefill.
        contexts: Cached tokens of each decode.
    """
    return Batch(tuple(prefills), tuple(contexts)).stats()


def advanced(stats: StepStats, steps: int) -> StepStats:
    """Return the statistics `steps` steps later in the same run."""
    values = {name: getattr(stats, name) for name in STEP_STATS}
    values["decode_ctx"] += steps * stats.decode_seqs
    values["decode_ctx_max"] += steps if stats.decode_seqs else 0
    return StepStats(**values)


def columns_of(rows: list[StepStats]) -> dict[str, IntArray]:
    """Return one int64 array per field, as `out_of_range` receives them."""
    return {name: np.array([getattr(stats, name) for stats in rows], dtype=np.int64) for name in FIELDS}


def random_stats(rng: np.random.Generator, count: int) -> Iterator[StepStats]:
    """Yield batches of every kind: prefill only, decodes only, both; from one token to long contexts and large
    batches."""
    for i in range(count):
        prefills, decodes = [(1, 0), (0, 1), (1, 1)][i % 3]
        size = int(math.exp(rng.uniform(0, 6)))
        lengths = exp(rng.uniform(0, 10, 4)).astype(int)
        pasts = np.where(rng.random(4) < 0.5, 0, exp(rng.uniform(0, 10, 4))).astype(int)
        contexts = exp(rng.uniform(0, 11, size)).astype(int)
        seqs = int(rng.integers(1, 5))
        yield batch(
            [(int(n), int(past)) for n, past in zip(lengths[:seqs], pasts[:seqs], strict=True)] * prefills,
            [int(context) for context in contexts] * decodes,
        )


def check_added_work(model: HardwareModel, largest: Mapping[str, float], examples: int, seed: int = 1) -> None:
    """Fail if more tokens, past, context or sequences make a step cheaper, or if a term of a step is negative.

    Draws `examples` random batches and grows each in every way that a batch can grow, up to `largest`: `tokens` and
    `past` of a prefill, `seqs` and `context` of decodes. Checks terms if the model has `operators_ns`.
    """
    found = cheaper_steps(model, largest, count=examples, seed=seed)
    listed = [f"{before} {before_ns} ns, {after} {after_ns} ns" for before, after, before_ns, after_ns in found[:3]]
    assert not found, f"{len(found)} steps are cheaper with more work: {listed}"
    operators = getattr(model, "operators_ns", None)
    if operators is None:
        return
    rng = np.random.default_rng(seed)
    for size in (1.0, 0.3, 0.01):
        tokens, past, seqs, context = (
            int(largest[name] ** (size * rng.uniform(0.5, 1))) for name in ("tokens", "past", "seqs", "context")
        )
        for stats in (batch([(tokens, past)], []), batch([], [context] * seqs), batch([(tokens, 0)], [context] * seqs)):
            negative = {name: ns for name, ns in operators(stats).items() if ns < 0}
            assert not negative, f"{stats}: {negative}"


def check_growth(model: HardwareModel, tokens: int, products: Collection[str] = (), measured: float = 0) -> None:
    """Fail unless steps of dense prompts take 3 to 5 times as long for four times the tokens.

    With `products` (names of `operators_ns`) each of these terms is checked, on one prompt. A model of whole steps has
    no separate terms: it is checked on four times as many prompts of the same length, so that attention too does four
    times the work. Up to `measured` tokens of a step a factor above 5 is allowed, because it was measured.
    """
    if products:
        few, many = (model.operators_ns(batch([(n, 0)], [])) for n in (tokens, 4 * tokens))  # type: ignore[attr-defined]
        ratios = {name: many[name] / few[name] for name in products}
    else:
        number = max(1, tokens // 2048)
        times = [model.step_ns(batch([(2048, 0)] * n, [])) for n in (number, 4 * number)]
        ratios = {"step": times[1] / times[0]}
    most = 5.0 if tokens >= measured else float("inf")
    wrong = {name: ratio for name, ratio in ratios.items() if not 3.0 <= ratio <= most}
    assert not wrong, f"from {tokens} to {4 * tokens} tokens: {wrong}"


class HardwareModelContract(ABC):
    """Properties of every hardware model. Inherit it and give `make()`."""

    examples: ClassVar[int] = 150
    """Number of random batches per test."""

    @abstractmethod
    def make(self) -> HardwareModel:
        """Return a new model, equal at each call."""

    def cases(self) -> Iterator[tuple[StepStats, int]]:
        """Yield random runs: statistics of the first step, and the number of steps."""
        rng = np.random.default_rng(7)
        for stats in random_stats(rng, self.examples):
            yield stats, int(rng.integers(1, 60))

    def test_a_run_is_its_steps_bit_for_bit(self) -> None:
        model = self.make()
        for stats, steps in self.cases():
            single = [model.step_ns(advanced(stats, j)) for j in range(steps)]
            assert model.run_ns(stats, steps).tolist() == single, f"run of {steps} steps from {stats}"

    def test_end_times_are_those_of_the_run(self) -> None:
        model, now, before = self.make(), 12_345, 3
        write_ends = getattr(model, "write_ends", None)
        if write_ends is None:
            return
        for stats, steps in self.cases():
            if stats.prefill_seqs:
                continue
            ends = np.full(before + steps + 1, -1, dtype=np.int64)
            last = write_ends(stats, steps, ends.data, before, now)
            expected = [-1] * before + (now + np.cumsum(model.run_ns(stats, steps))).tolist() + [-1]
            assert ends.tolist() == expected, f"run of {steps} steps from {stats}"
            assert last == expected[-2], f"{last} returned, the last step ends at {expected[-2]}"

    def test_a_long_run_is_its_steps(self) -> None:
        model = self.make()
        stats = batch([], [100, 2000, 30_000])
        long = model.run_ns(stats, 3000)
        assert long[[0, 1, 1500, 2999]].tolist() == [model.step_ns(advanced(stats, j)) for j in (0, 1, 1500, 2999)]

    def test_a_run_can_be_cut_anywhere(self) -> None:
        model = self.make()
        for stats, steps in self.cases():
            first = steps // 2 + 1
            parts = [model.run_ns(stats, first), model.run_ns(advanced(stats, first), steps)]
            assert model.run_ns(stats, first + steps).tolist() == np.concatenate(parts).tolist()

    def test_times_are_positive_integers(self) -> None:
        model = self.make()
        for stats, steps in self.cases():
            run = model.run_ns(stats, steps)
            assert run.dtype == np.int64, f"{run.dtype}, not int64"
            assert run.shape == (steps,), f"shape {run.shape} for {steps} steps"
            assert run.min() >= 1, f"{run.min()} ns for {stats}"
            single = model.step_ns(stats)
            assert isinstance(single, int), f"{type(single)}, not int"

    def test_answers_do_not_depend_on_what_was_asked_before(self) -> None:
        used, asked = self.make(), list(self.cases())
        first = [used.run_ns(stats, steps).tolist() for stats, steps in asked]
        backwards = [used.run_ns(stats, steps).tolist() for stats, steps in reversed(asked)]
        fresh = self.make()
        assert first == backwards[::-1] == [fresh.run_ns(stats, steps).tolist() for stats, steps in asked]

    def test_statistics_are_left_alone(self) -> None:
        model = self.make()
        for stats, steps in self.cases():
            before = repr(stats)
            model.step_ns(stats)
            model.run_ns(stats, steps)
            assert repr(stats) == before

    def test_the_caller_may_write_into_a_run(self) -> None:
        model = self.make()
        for stats, steps in self.cases():
            run = model.run_ns(stats, steps)
            kept = run.tolist()
            run[:] = -1
            assert model.run_ns(stats, steps).tolist() == kept

    def test_steps_out_of_range_are_counted_alike_in_runs_and_steps(self) -> None:
        model, cases = self.make(), list(self.cases())
        counts = model.out_of_range(columns_of([stats for stats, _ in cases]), np.array([k for _, k in cases]))
        assert counts.shape == (len(cases),)
        assert counts.dtype == np.int64
        for (stats, steps), count in zip(cases, counts.tolist(), strict=True):
            single = [advanced(stats, j) for j in range(steps)]
            assert count == model.out_of_range(columns_of(single), np.ones(steps, dtype=np.int64)).sum(), f"{stats}"

    def test_no_runs_have_no_steps_out_of_range(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        assert self.make().out_of_range(dict.fromkeys(FIELDS, none), none).shape == (0,)


class MonotoneHardwareModelContract(HardwareModelContract):
    """Further properties of models in which more work is never cheaper (measured tables need not have them)."""

    largest: ClassVar[dict[str, float]] = {"tokens": 50_000, "past": 100_000, "seqs": 500, "context": 100_000}
    """Limits of the search: tokens and past of a prefill, number and context of decodes."""

    def test_a_step_is_never_cheaper_by_more_tokens_context_or_sequences(self) -> None:
        check_added_work(self.make(), self.largest, self.examples)

    def test_a_run_of_decodes_never_gets_faster(self) -> None:
        model = self.make()
        for stats, steps in self.cases():
            assert np.all(np.diff(model.run_ns(stats, steps)) >= 0), f"run of {steps} steps from {stats}"
