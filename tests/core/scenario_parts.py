"""Components for kernel tests: requests written out, and hardware whose times are small multiples of one unit.

With times that are multiples of a microsecond, step ends of different clients, transfers and arrivals fall on the same
nanosecond all the time, which is where the order of events matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hermes.arrays import IntArray
from hermes.config import ConfigModel
from hermes.core.router import RouterContext
from hermes.hardware.base import HARDWARE, StepStats
from hermes.hardware.config import HardwareConfig
from hermes.pipelines import PIPELINES, Generate, Pipeline
from hermes.routing.base import ROUTERS
from hermes.workload.arrivals import ARRIVALS
from hermes.workload.base import ArrivalProcess, Ends, LengthModel, Lengths
from hermes.workload.lengths import LENGTHS

UNIT_NS = 1000
LOADS = ("input_tokens", "output_tokens", "kv_tokens", "tokens_left")
MAX_STEPS = 200_000   # of one hardware model: more is a scheduler that goes round in circles


class LivelockError(AssertionError):
    pass


class Ticks:
    """Steps of `base + tokens / per_token + contexts / per_ctx` whole units."""

    name = "ticks"

    def __init__(self, config: TicksConfig) -> None:
        self.config = config
        self.calls = 0

    def _units(self, stats: StepStats, ctx: Any, longest: Any) -> Any:
        config = self.config
        tokens = stats.prefill_tokens + stats.decode_seqs
        return (
            config.base + tokens // config.per_token + (stats.prefill_attn + ctx) // config.per_ctx
            + longest // (4 * config.per_ctx) + stats.sampled // 8 + stats.prefill_past // (2 * config.per_ctx)
        )

    def step_ns(self, stats: StepStats) -> int:
        self.calls += 1
        if self.calls > MAX_STEPS:
            raise LivelockError(f"more than {MAX_STEPS} steps")
        return int(self._units(stats, stats.decode_ctx, stats.decode_ctx_max) * UNIT_NS)

    def run_ns(self, stats: StepStats, num_steps: int) -> IntArray:
        self.calls += num_steps
        if self.calls > MAX_STEPS * 100:
            raise LivelockError(f"more than {MAX_STEPS * 100} steps")
        j = np.arange(num_steps, dtype=np.int64)
        units = self._units(stats, stats.decode_ctx + j * stats.decode_seqs, stats.decode_ctx_max + j)
        return np.asarray(units * UNIT_NS, dtype=np.int64)

    def out_of_range(self, columns: dict[str, IntArray], num_steps: IntArray) -> IntArray:
        return np.zeros(len(num_steps), dtype=np.int64)


class TicksConfig(HardwareConfig):
    kind: Literal["test_ticks"] = "test_ticks"
    base: int = Field(default=1, ge=1)
    per_token: int = Field(default=4, ge=1)
    per_ctx: int = Field(default=50, ge=1)

    def build(self, base_dir: Path | None = None) -> Ticks:
        return Ticks(self)


class ListedArrivals(ArrivalProcess):
    """Arrivals at the given multiples of the unit."""

    kind: Literal["test_listed"] = "test_listed"
    units: list[int]

    def times_ns(self, n: int, rng: np.random.Generator) -> IntArray:
        return np.array(self.units[:n], dtype=np.int64) * UNIT_NS


class ListedLengths(LengthModel):
    """Requests written out: [prompt, output, priority, session, prefix group, prefix tokens]."""

    kind: Literal["test_listed"] = "test_listed"
    rows: list[list[int]]
    asked: list[int] | None = None
    """Tokens that each request asks for, at least its output; left out, its output."""
    hash_unit: int = 0
    """Not 0: prompts are known by hashes of so many tokens, chained over prefix group and position."""

    @property
    def ends(self) -> Ends:
        return "max_new_tokens"

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        columns = np.array(self.rows[:n], dtype=np.int64).reshape(-1, 6).T
        lengths = Lengths(*columns[:4])
        lengths.max_new_tokens = None if self.asked is None else np.array(self.asked[:n], dtype=np.int64)
        if self.hash_unit:
            lengths.hash_block_tokens = self.hash_unit
            lengths.hash_ids = [self._ids(i, *row) for i, row in enumerate(self.rows[:n])]
        else:
            lengths.prefix_group, lengths.prefix_tokens = columns[4], columns[5]
        return lengths

    def _ids(self, i: int, prompt: int, *rest: int) -> tuple[int, ...]:
        group, shared = rest[-2:]
        blocks = -(-prompt // self.hash_unit)
        common = 0 if group < 0 else shared // self.hash_unit
        return tuple(1000 * group + b if b < common else 10_000 + 100 * i + b for b in range(blocks))


class Probe:
    """A router that notes, for each choice, the loads of all candidates and whom the real one chose."""

    log: list[tuple[Any, ...]] = []   # one log for all routers; each run empties it

    def __init__(self, router: Any, context: RouterContext) -> None:
        self._router, self._context = router, context

    def choose(self, stage: Any) -> Any:
        loads = [c.load(kind) for c in self._context.candidates for kind in LOADS]
        client = self._router.choose(stage)
        decode_on = None if stage.decode_on is None else stage.decode_on.index
        candidates = tuple(c.index for c in self._context.candidates)
        self.log.append((stage.request.id, client.env.now, client.index, decode_on, candidates, *loads))
        return client

    def __getattr__(self, name: str) -> Any:   # `observe`, where the real one has it
        return getattr(self._router, name)


class ProbeConfig(ConfigModel):
    kind: Literal["test_probe"] = "test_probe"
    router: dict[str, Any]

    @property
    def _inner(self) -> Any:
        return ROUTERS.get(self.router["kind"]).model_validate(self.router)

    @property
    def places_both_phases(self) -> bool:
        return getattr(self._inner, "places_both_phases", False)

    def build(self, context: RouterContext) -> Probe:
        return Probe(self._inner.build(context), context)


def draft_then_answer(request: Any) -> Pipeline:
    """Two generations, one after the other."""
    draft = yield Generate(request.prompt_tokens, 1 + request.output_tokens // 2, request.priority, request)
    yield Generate(request.prompt_tokens + draft.output_tokens, request.output_tokens, request.priority, request)


def branches(request: Any) -> Pipeline:
    """Two generations side by side, then one."""
    pair = yield tuple(
        Generate(request.prompt_tokens, 1 + request.output_tokens // part, request.priority, request) for part in (2, 3)
    )
    total = sum(stage.output_tokens for stage in pair)
    yield Generate(request.prompt_tokens + total, request.output_tokens, request.priority, request)


draft_then_answer.stages = branches.stages = ("generate",)  # type: ignore[attr-defined]

PARTS: tuple[tuple[Any, str, Any], ...] = (
    (HARDWARE, "test_ticks", TicksConfig), (ARRIVALS, "test_listed", ListedArrivals),
    (LENGTHS, "test_listed", ListedLengths), (ROUTERS, "test_probe", ProbeConfig),
    (PIPELINES, "test_draft", draft_then_answer), (PIPELINES, "test_branches", branches),
)


@contextmanager
def registered() -> Iterator[None]:
    """The components above can stand in scenarios; afterwards the registries are as they were."""
    for registry, name, part in PARTS:
        registry.register(name)(part)
    try:
        yield
    finally:
        for registry, name, _part in PARTS:
            registry.unregister(name)
