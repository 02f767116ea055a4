from my_executor import Threads

from hermes.testing.executors import ExecutorContract


class TestThreads(ExecutorContract):
    def make_executor(self):
        return Threads(1)
