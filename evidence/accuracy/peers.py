"""Predictions of other simulators for the reference sets whose data have none: `docs/accuracy/aiconfigurator.csv`.

The file is part of a checkout, not of a wheel: there its sets have no best peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from evidence.accuracy.served import Figures, read_rows
from hermes.config.data_files import resource_dir

__all__ = ["Fields", "Setting", "peer_errors", "read_peers"]

TEXTS = ("set", "card", "engine", "precision", "metric", "stat")
INTEGERS = ("tp", "ep", "input_tokens", "output_tokens", "concurrency")
Fields = Mapping[Any, Any]   # a row of a table by its columns
Peers = Mapping["Setting", Mapping[tuple[str, str], tuple[float, ...]]]


class Setting(NamedTuple):
    """What a prediction is for: the set (the stem of its file), the server and the load."""

    set: str
    card: str
    engine: str
    precision: str
    tp: int
    ep: int
    input_tokens: int
    output_tokens: int
    concurrency: int

    @classmethod
    def of(cls, name: str, row: Fields, engine: str, precision: str) -> Self:
        """Return that of a row with columns of these names."""
        return cls(name, row["card"], engine, precision, *(row[column] for column in INTEGERS))


def peer_errors(setting: Setting, measured: Figures, peers: Peers | None = None) -> dict[tuple[str, str], float]:
    """Return the smallest error of another simulator at each measured figure that one has predicted.

    peers: as `read_peers` returns them; left out, those of the checkout.
    """
    found: dict[tuple[str, str], float] = {}
    for key, values in (_of_checkout() if peers is None else peers).get(setting, {}).items():
        if key in measured:
            found[key] = min((value / measured[key] - 1.0 for value in values), key=abs)
    return found


@cache
def _of_checkout() -> Peers:
    path = resource_dir("docs") / "accuracy" / "aiconfigurator.csv"
    return read_peers(path) if path.is_file() else {}


def read_peers(path: Path) -> Peers:
    """Return predictions (seconds; tokens/s of the whole server) by setting, metric and statistic. Raises `InputError`
    for a malformed file."""
    found: dict[Setting, dict[tuple[str, str], tuple[float, ...]]] = {}
    for row in read_rows(path, INTEGERS, ("predicted",), TEXTS).to_dict("records"):
        of = found.setdefault(Setting(*(row[field] for field in Setting._fields)), {})
        key = row["metric"], row["stat"]
        of[key] = (*of.get(key, ()), float(row["predicted"]))
    return found
