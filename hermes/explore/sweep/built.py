"""Simulations that a worker's checks built, kept until the worker runs them."""

from __future__ import annotations

import gc
import time

from hermes.config.data_files import Kept as Shared
from hermes.core.noise import peak_rss_bytes
from hermes.dispatch.simulation import Simulation
from hermes.explore.certain_miss import CertainMiss
from hermes.scenario import Scenario

__all__ = ["Built", "Kept"]

Kept = tuple[Scenario, Simulation, CertainMiss | None]   # the last: what ends it early

MAX_BYTES = 128_000_000   # growth of the process by what it keeps
COLLECT_SHARE = 0.02      # of the CPU time, for collections of everything


class Built:
    """Simulations by the key of their check, of one batch (the run of one sweep): files may change between two.

    Attributes:
        models: Hardware models of all batches, built of files that ship alone.
    """

    def __init__(self) -> None:
        self._batch, self._kept = "", dict[str, Kept]()
        self.models: Shared = {}
        self._empty_bytes = 0
        self._frozen_garbage = False
        self._next_collection_s = 0.0

    def keep(self, batch: str, key: str, what: Kept) -> bool:
        """Keep a simulation, unless those kept have too much memory. Return whether it is kept."""
        self._enter(batch)
        if peak_rss_bytes() > self._empty_bytes + MAX_BYTES:
            return False
        self._kept[key] = what
        return True

    def take(self, batch: str, key: str) -> Kept | None:
        """Return a kept simulation, and keep it no longer; None if it is not kept."""
        self._enter(batch)
        found = self._kept.pop(key, None)
        self._frozen_garbage |= found is not None
        return found

    def _enter(self, batch: str) -> None:
        if batch != self._batch:
            self._frozen_garbage |= bool(self._kept)
            self._kept.clear()
            self._batch, self._empty_bytes = batch, peak_rss_bytes()

    def collect(self) -> None:
        """Free simulations that were kept and run. They are frozen with all other objects that outlive a job, and a
        collection of everything is slow: it is put off while it would take more than a small share of the time."""
        begun = time.process_time()
        if self._frozen_garbage and begun > self._next_collection_s:
            gc.unfreeze()
            gc.collect()
            self._frozen_garbage = False
            ended = time.process_time()
            self._next_collection_s = ended + (ended - begun) / COLLECT_SHARE
