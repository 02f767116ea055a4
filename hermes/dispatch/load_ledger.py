"""Ledger of clients' loads: counts of the stages assigned to each client and not done, for routers."""

from __future__ import annotations

from hermes.core.client import Client
from hermes.core.router import LoadCell

__all__ = ["LoadLedger"]

_KINDS = ("output_tokens", "input_tokens", "requests")


class LoadLedger:
    """Keeps the clients' counters, the routers' load cells and the load bounds up to date."""

    def __init__(self, cells: list[list[tuple[LoadCell, int]]]) -> None:
        """
        Args:
            cells: For each client the cells that hold its load, with its position in each.
        """
        # Views of the cells: several times faster than numpy's indexing of single elements.
        self._cells = [
            [(memoryview(cell.values), pos, _KINDS.index(cell.kind))  # type: ignore[arg-type]  # it is a buffer
             for cell, pos in mine] for mine in cells
        ]

    def add(self, client: Client, prompt_tokens: int, outputs: int, count: int) -> None:
        """Count a stage at a client from now on; with negative numbers, stop counting it."""
        client.input_tokens += prompt_tokens
        client.output_tokens += outputs
        client.num_assigned += count
        cells = self._cells[client.index]
        if cells:
            for values, pos, kind in cells:
                values[pos] += outputs if not kind else prompt_tokens if kind == 1 else count
        if client.tracks:
            for track, position in client.tracks:
                track.moved(position, client)
