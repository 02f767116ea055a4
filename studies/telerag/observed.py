"""Client kind `observed_ivf_index`: an `ivf_index` that records the outcome of retrievals on each request.

A plug-in of this study alone (`plugins:` of its points). The notes become part of the run's results.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from hermes.clients import CLIENTS
from hermes.core.client import ClientEvents
from hermes.core.clock import Clock
from hermes.plugins.telerag.client import IvfIndexClient, IvfIndexConfig

__all__ = ["ObservedIndex", "ObservedIndexConfig"]


@CLIENTS.register("observed_ivf_index")
class ObservedIndexConfig(IvfIndexConfig):
    """An `ivf_index` with notes."""

    kind: Literal["observed_ivf_index"] = "observed_ivf_index"   # type: ignore[assignment]

    def build(
        self, env: Clock, first_index: int, runs: Any, events: ClientEvents, *, seed: int = 0, **ignored: Any,
    ) -> list[IvfIndexClient]:
        return [ObservedIndex(env, first_index, events, self, seed)]


class ObservedIndex(IvfIndexClient):
    """Notes of a request: `lookup0.overlap` and the other fields of its first `Lookup`, `lookup1.overlap`, ..., and
    `peak_bytes`, the most that the buffer has held so far."""

    def __init__(self, env: Clock, index: int, events: ClientEvents, config: IvfIndexConfig, seed: int = 0) -> None:
        super().__init__(env, index, events, config, seed)
        self._count: Counter[int] = Counter()

    def _lookahead(self, stage: Any) -> None:
        super()._lookahead(stage)
        stage.request.note("peak_bytes", self.peak_bytes)

    def _probe(self, stage: Any) -> None:
        super()._probe(stage)
        for name, value in self.lookups[-1]._asdict().items():
            stage.request.note(f"lookup{self._count[stage.request.id]}.{name}", value)
        self._count[stage.request.id] += 1
