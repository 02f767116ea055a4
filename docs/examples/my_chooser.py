from typing import Literal

from pydantic import Field

from hermes.plugins.metis import CHOOSERS, Chooser, Configuration, QueryState, prune


@CHOOSERS.register("load_aware")
class LoadAware(Chooser):
    """METIS's pruned space, with fewer chunks while many calls are under way; it does not look at memory."""

    kind: Literal["load_aware"] = "load_aware"
    busy: int = Field(default=8, ge=1)
    """Calls under way from which on it reads as few chunks as the profile allows."""

    def choose(self, state: QueryState) -> Configuration:
        box = prune(state.known)[-1]
        least, most = box.chunks
        calls = state.view.running + state.view.waiting
        state.note("calls", calls)
        chunks = most - (most - least) * min(calls, self.busy) // self.busy
        return Configuration(box.method, chunks, box.words[0])
