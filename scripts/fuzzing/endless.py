"""Files that block or do not end, in place of each kind of file that a command reads: a FIFO, /dev/zero, a sparse
terabyte, a folder, a link to itself. Each command runs in a process of its own, with little memory and a time limit."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzzing.folders import FAMILIES, template

__all__ = ["EndlessCase", "endless_cases"]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo, "zero": _zero, "sparse": _sparse, "folder": _folder, "loop": _loop,
}
OWN: list[tuple[str, list[str]]] = [   # a file in an empty folder, and what reads it
    ("x.yaml", ["validate", "HERE/x.yaml"]), ("x.yaml", ["run", "HERE/x.yaml", "-q"]),
    ("x.yaml", ["sweep", "HERE/x.yaml", "--dry-run"]), ("x.csv", ["trace", "describe", "HERE/x.csv"]),
    ("x.parquet", ["trace", "describe", "HERE/x.parquet"]), ("x.yaml", ["profile", "show", "HERE/x.yaml"]),
    ("x.py", ["run", "quickstart", "--plugin", "HERE/x.py", "-q"]),
]


@dataclass
class EndlessCase:
    family: str
    mutation: str
    path: Path
    command: list[str]


def endless_cases(number: int, rng: random.Random, root: Path) -> Iterator[EndlessCase]:
    """`number` cases, drawn from every reader with every kind of file."""
    readers: list[tuple[str, str, list[str]]] = [("", name, command) for name, command in OWN]
    for family, what in FAMILIES.items():
        if family == "download":   # the server reads these files
            continue
        source = template(family, root)
        for path in sorted(path for pattern in what.files for path in source.glob(pattern)):
            readers.append((family, str(path.relative_to(source)), what.commands(path.name, random.Random(0))))
    pairs = [(reader, kind) for reader in readers for kind in KINDS]
    for place, ((family, name, command), kind) in enumerate(rng.sample(pairs, min(number, len(pairs)))):
        here = root / f"endless-{place}"
        if family:
            shutil.copytree(template(family, root), here)
            (here / name).unlink()
        else:
            here.mkdir()
        KINDS[kind](here / name)
        yield EndlessCase("endless", f"{kind} {family} {name}", here / name,
                          [part.replace("HERE", str(here)) for part in command])
