"""Clients and stages with just what routers look at, under the test's control."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from hermes.core.generation import Generation
from hermes.routing import ROUTERS, RouterContext


class StandIn:
    """A client whose loads are set by hand."""

    def __init__(self, index: int, **loads: int) -> None:
        self.index, self.name = index, f"c{index}"
        self.loads = {"input_tokens": 0, "output_tokens": 0, "kv_tokens": 0, "tokens_left": 0, "requests": 0, **loads}
        self.tracks: list[tuple[Any, int]] = []
        self.stages, self.model, self.platform = frozenset({"generate"}), "", ""

    def load(self, kind: str) -> int:
        return self.loads[kind]

    def load_line(self, kind: str) -> tuple[int, int, int, int, int]:
        return self.loads[kind], 0, 0, 1, 0

    def __repr__(self) -> str:
        return self.name


class Routing:
    """A router over stand-ins, with the loads it watches kept up to date as the coordinator keeps them."""

    def __init__(
        self, count: int, kind: str, *, transfers: dict[int, int] | None = None, seed: int = 1, **config: Any
    ) -> None:
        self.clients = [StandIn(i) for i in range(count)]
        far = transfers or {}
        self.context = RouterContext(
            self.clients, np.random.default_rng(seed),   # type: ignore[arg-type]
            lambda stage, client: far.get(client.index, 0),   # type: ignore[attr-defined]
        )
        self.router = ROUTERS.get(kind).model_validate({"kind": kind, **config}).build(self.context)

    def load(self, kind: str, *values: int) -> None:
        """Set a load of all clients."""
        for i, value in enumerate(values):
            self.clients[i].loads[kind] = value
            for track, position in self.clients[i].tracks:
                track.moved(position, self.clients[i])
        for cell in self.context.cells:
            if cell.kind == kind:
                cell.values[:] = values

    def choose(self, prompt: int = 10, output: int = 10, session: int = -1) -> int:
        stage = Generation(prompt, output, request=SimpleNamespace(session=session))  # type: ignore[arg-type]
        return int(self.router.choose(stage).index)
