from collections.abc import Iterator

from hermes.schedulers import PACKING, Generation


@PACKING.register("newest_first")
class NewestFirst(list[Generation]):
    """Last come, first served: whoever came when the queue was long has given up already."""

    push = list.append
    push_preempted = list.append    # back to the head

    def peek(self) -> Generation:
        return self[-1]             # and `pop` takes it

    def __iter__(self) -> Iterator[Generation]:
        return reversed(self[:])
