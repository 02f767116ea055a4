from my_executor import Threads

from hermes.testing.executors import ExecutorContract


class TestThreads(ExecutorContract):
    def make(self):
        return Threads(1)
