"""The built-in schedulers keep the contract."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.memory import BlockPool
from hermes.schedulers import SCHEDULERS, LLMScheduler, Plan
from hermes.schedulers.chunked import ChunkedScheduler
from hermes.schedulers.chunked_config import ChunkedConfig
from hermes.testing.schedulers import Request, SchedulerContract, ServedSteps

CONFIGS: dict[str, dict[str, Any]] = {
    "chunked": {"max_num_batched_tokens": 20, "max_num_seqs": 6},
    "chunked-priority": {"max_num_batched_tokens": 20, "policy": "priority", "long_prefill_token_threshold": 7},
    "chunked-options": {"max_num_batched_tokens": 9, "watermark": 0.1, "reserve_full_isl": False,
                        "long_prefill_token_threshold": 3, "adaptive_long_prefill_threshold": True},
    "chunked-whole": {"max_num_batched_tokens": 70, "enable_chunked_prefill": False, "policy": "shortest_job_first"},
    "continuous": {"max_num_batched_tokens": 30, "max_num_seqs": 6},
    "continuous-lwl": {"policy": "least_work_left"},
    "static": {"max_num_seqs": 4},
    "static-priority": {"policy": "priority", "max_num_batched_tokens": 60},
    "mixed": {"max_num_batched_tokens": 30, "max_num_seqs": 6},
    "mixed-up-front": {"max_num_batched_tokens": 30, "reservation": "up_front"},
    # asynchronous schedulers plan beside a batch in flight, which the contract does not know: test_sglang.py has them
    "sglang": {"disable_overlap_schedule": True, "max_running_requests": 6, "chunked_prefill_size": 20,
               "schedule_conservativeness": 0.1, "max_new_tokens": 40},
    "sglang-lpm": {"disable_overlap_schedule": True, "schedule_policy": "lpm", "chunked_prefill_size": -1,
                   "max_prefill_tokens": 30, "schedule_conservativeness": 0.1},
    "sglang-mixed": {"disable_overlap_schedule": True, "enable_mixed_chunk": True, "chunked_prefill_size": 20,
                     "max_running_requests": 6},
}


@pytest.mark.parametrize("name", CONFIGS, scope="class")
class TestBuiltIn(SchedulerContract):
    examples = 30

    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.kind, self.config = name.split("-")[0], CONFIGS[name]

    def make(self, pool: BlockPool, every_step: bool) -> LLMScheduler:
        component = SCHEDULERS.get(self.kind).model_validate({"kind": self.kind, **self.config})
        built: LLMScheduler = component.build(pool, every_step=every_step)
        return built

    def served(
        self, memory: dict[str, Any], requests: list[Request], *, every_step: bool
    ) -> tuple[ServedSteps, LLMScheduler]:
        """Serve every case once: the tests only read what came of it."""
        key = (self.kind, str(self.config), str(memory), tuple(requests), every_step)
        if key not in _SERVED:
            _SERVED[key] = super().served(memory, requests, every_step=every_step)
        return _SERVED[key]


_SERVED: dict[Any, tuple[ServedSteps, LLMScheduler]] = {}


# -- the contract notices ---------------------------------------------------------------------------------------------


class Forgetful(ChunkedScheduler):
    """Keeps the blocks of whoever has a long answer."""

    def release(self, seq: Any) -> None:
        if seq.output_tokens < 20:
            super().release(seq)


class Hasty(ChunkedScheduler):
    """Plans one step too many where it can."""

    def steps_of_run(self, max_steps: int) -> int:
        steps = super().steps_of_run(max_steps)
        return steps + 1 if 1 < steps < max_steps else steps


class Deaf(ChunkedScheduler):
    """Does not let arrivals cut a run."""

    def wants_cut(self, seq: Any) -> bool:
        return False


class Lossy(ChunkedScheduler):
    """Loses the urgent."""

    def enqueue(self, seq: Any) -> None:
        if seq.priority < 2:
            super().enqueue(seq)


class Greedy(ChunkedScheduler):
    """Runs one more than it may."""

    def plan(self, max_steps: int) -> Plan | None:
        self.max_num_seqs = 4
        try:
            return super().plan(max_steps)
        finally:
            self.max_num_seqs = 3


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Forgetful, "test_blocks_are_conserved"), (Hasty, "test_runs_equal_single_steps"),
        (Deaf, "test_runs_equal_single_steps"), (Lossy, "test_nothing_is_lost"), (Greedy, "test_nothing_is_lost"),
    ],
)
def test_the_contract_notices(broken: type[ChunkedScheduler], test: str) -> None:
    class Contract(SchedulerContract):
        examples = 10

        def make(self, pool: BlockPool, every_step: bool) -> LLMScheduler:
            return broken(ChunkedConfig(max_num_batched_tokens=20, max_num_seqs=3), pool, every_step=every_step)

    with pytest.raises(AssertionError):
        getattr(Contract(), test)()


def test_requests_too_long_are_refused_in_the_cases() -> None:
    """The cases are tight enough to matter: some requests never fit, some preempt each other."""

    class Contract(SchedulerContract):
        def make(self, pool: BlockPool, every_step: bool) -> LLMScheduler:
            return ChunkedConfig().build(pool, every_step=every_step)

    served = [outcome for _, outcome, _ in Contract().both()]
    assert any(outcome.refused for outcome in served)
    assert any(outcome.preempted for outcome in served)
    assert any(len(outcome.stats) > 100 for outcome in served)
    assert any(isinstance(r, Request) and r.kv for _, requests in Contract().cases() for r in requests)
