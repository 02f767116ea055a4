from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice

from hermes.explore.executors import EXECUTORS, Executor, perform


class Threads(Executor):
    """Performs jobs in threads of this process, one at a time each."""

    def __init__(self, threads: int) -> None:
        self.threads = max(threads, 1)
        self.pool = ThreadPoolExecutor(self.threads)

    def run(self, jobs):
        jobs = iter(jobs)
        waiting = {self.pool.submit(perform, job) for job in islice(jobs, self.threads)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {self.pool.submit(perform, job) for job in islice(jobs, len(done))}
            yield from (each.result() for each in done)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


@EXECUTORS.register("threads")
def threads(workers, modules, address):
    return Threads(workers)
