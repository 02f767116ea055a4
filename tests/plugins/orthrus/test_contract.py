"""The heterogeneous scheduler keeps the contract of LLM schedulers, in all its forms."""

from hermes.plugins.orthrus import HeterogeneousConfig
from hermes.plugins.orthrus.testing import SlotPolicyContract
from hermes.testing.schedulers import SchedulerContract


class Heterogeneous(SchedulerContract):
    kinds = ("generate", "embed")
    examples = 12
    options: dict = {}

    def make(self, pool, every_step):
        config = HeterogeneousConfig(max_num_seqs=4, max_num_batched_tokens=20, **self.options)
        return config.build(pool, every_step=every_step)


class TestFcfs(Heterogeneous):
    pass


class TestIbs(Heterogeneous):
    options = {"slots": "ibs"}


class TestDrain(Heterogeneous):
    options = {"batches": "drain"}


class TestAlternate(Heterogeneous):
    options = {"batches": "alternate"}


class TestOldest(Heterogeneous):
    options = {"batches": "oldest"}


class TestUpFront(Heterogeneous):
    options = {"slots": "ibs", "reservation": "up_front"}


class TestFcfsSlots(SlotPolicyContract):
    policy = "fcfs"


class TestIbsSlots(SlotPolicyContract):
    policy = "ibs"
