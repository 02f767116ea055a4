from collections.abc import Hashable

from hermes.memory import EVICTION


@EVICTION.register("largest_first")
class LargestFirst:
    """The largest entry goes: one long context makes room for many short ones."""

    def __init__(self) -> None:
        self.sizes: dict[Hashable, int] = {}

    def added(self, key: Hashable, num_bytes: int) -> None:
        self.sizes[key] = num_bytes

    def read(self, key: Hashable) -> None:
        pass

    def removed(self, key: Hashable) -> None:
        del self.sizes[key]

    def victim(self) -> Hashable:
        return max(self.sizes, key=self.sizes.__getitem__)   # the oldest of equals
