from hermes.plugins.orthrus import SLOTS, BatchState, largest_split


@SLOTS.register("square_root")
class SquareRoot:
    """Slots in proportion to the square roots of the queues: a long queue does not crowd out a short one."""

    def slots(self, state: BatchState) -> tuple[int, int]:
        return largest_split(state.waiting_embeddings ** 0.5, state.waiting_generations ** 0.5, state)
