from my_scheduler import OnePrompt

from hermes.testing.schedulers import SchedulerContract


class TestOnePrompt(SchedulerContract):
    def make(self, pool, every_step):
        return OnePrompt(max_num_seqs=4).build(pool, every_step=every_step)
