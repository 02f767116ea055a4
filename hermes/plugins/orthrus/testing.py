"""Contract suite for slot policies (`hermes.plugins.orthrus.slots`).

    class TestMyPolicy(SlotPolicyContract):
        policy = "my_policy"     # the name it is registered under
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from hermes.plugins.orthrus.heterogeneous import HeterogeneousConfig
from hermes.plugins.orthrus.slots import SLOTS, BatchState, Resource
from hermes.schedulers import BlockPool, LLMScheduler
from hermes.testing.schedulers import SchedulerContract

__all__ = ["SlotPolicyContract"]


class SlotPolicyContract(SchedulerContract):
    """Properties of every slot policy: the results that schedulers rely on, and the contract of schedulers with the
    policy in their place. Inherit it and name the policy."""

    policy: ClassVar[str]
    kinds = ("generate", "embed")
    examples = 12

    def make(self, pool: BlockPool, every_step: bool) -> LLMScheduler:
        up_front = pool.num_blocks % 2 == 0   # both kinds of reservation
        return HeterogeneousConfig(
            slots=self.policy, max_num_seqs=4, max_num_batched_tokens=20,
            reservation="up_front" if up_front else "on_demand",
        ).build(pool, every_step=every_step)

    @staticmethod
    def states() -> Iterator[BatchState]:
        """Yield random queues, batches and memories."""
        rng = np.random.default_rng(5)
        for _ in range(500):
            places, memory = int(rng.integers(1, 300)), int(rng.integers(1, 2000))
            resources = [Resource(places)]
            if rng.random() < 0.5:
                resources.append(Resource(memory, float(rng.uniform(1, 40)), float(rng.uniform(1, 200))))
            counts = [int(n) for n in rng.integers(0, 200, 4) * (rng.random(4) < 0.7)]
            yield BatchState(counts[0], counts[1], counts[2], counts[3], tuple(resources))

    def test_a_kind_that_waits_gets_a_slot(self) -> None:
        policy = SLOTS.get(self.policy)()
        for state in self.states():
            embeddings, generations = policy.slots(state)
            assert embeddings >= (state.waiting_embeddings > 0), f"no slot for a waiting embedding: {state}"
            assert generations >= (state.waiting_generations > 0), f"no slot for a waiting generation: {state}"

    def test_the_answer_depends_on_the_state_alone(self) -> None:
        states = list(self.states())
        one, other = SLOTS.get(self.policy)(), SLOTS.get(self.policy)()
        forwards = [one.slots(state) for state in states]
        backwards = [other.slots(state) for state in reversed(states)]
        assert forwards == backwards[::-1], "equal states, different answers"
