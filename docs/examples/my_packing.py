from collections.abc import Iterator

from hermes.schedulers import PACKING, Sequence


@PACKING.register("newest_first")
class NewestFirst(list[Sequence]):
    """Last come, first served: whoever came when the queue was long has given up already."""

    push = list.append
    push_preempted = list.append    # back to the head

    def peek(self) -> Sequence:
        return self[-1]             # and `pop` takes it

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self[:])
