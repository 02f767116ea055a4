"""Folders of runs: the options `-o` and `--overwrite`, checks before anything is written, and the scenario in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Overwrite", "free_folder", "is_sweep", "of_run", "plugins_as_overrides", "refuse_empty_names",
           "scenario_of", "without_plugins"]

OUTPUT = ("-o", "--output")
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results of another run in DIR.")]


def refuse_empty_names(arguments: Sequence[str]) -> None:
    """Raise `InputError` for `-o ""` of any command: an unset shell variable must not mean the current folder."""
    from hermes.errors import InputError, Verbatim

    for option, value in pairwise([*arguments, "."]):
        name, equals, rest = option.partition("=")
        if (option in OUTPUT and not value.strip()) or (name in OUTPUT and equals and not rest.strip()):
            raise InputError(Verbatim("the name is empty (an unset variable?); `-o .` is the current folder"),
                             field="--output")


def plugins_as_overrides(arguments: Sequence[str]) -> list[str]:
    """Replace `--plugin FILE` by the `--set plugins+=FILE` that it is short for, in every command with `--set`."""
    out: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--plugin":
            out += ["--set", f"plugins+={value if equals else next(rest, '')}"]
        else:
            out.append(argument)
    return out


def without_plugins(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take `--no-plugins` out of the arguments of any command; return the others, and whether it was there."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    kept = [text for text in given[:end] if text != "--no-plugins"]
    return kept + given[end:], len(kept) < end


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (folder / "sweep.sqlite").is_file()


def of_run(named: str) -> Path | None:
    """Return the scenario in the folder of a run; None for a name that is none."""
    from hermes.results.files.stored import SCENARIO

    file = Path(named) / SCENARIO
    return file if file.is_file() else None


@contextmanager
def scenario_of(named: str, *, plugins: bool) -> Iterator[str]:
    """Return the scenario of a run, if the name is that of its folder; its code does not run unless it is asked for."""
    from hermes.config.own_code import code_of_run
    from hermes.results.files.stored import open_run

    there = of_run(named) is not None
    with code_of_run(plugins=plugins or not there):
        yield str(open_run(named).scenario_file()) if there else named


@contextmanager
def free_folder(folder: Path, *, overwrite: bool) -> Iterator[None]:
    """Make `folder` and hold its lock, so that no other run writes into it.

    Raises `InputError` if the folder holds another run and `overwrite` is False, if it holds a sweep, or if another
    process is writing into it. Raises `HermesError` if the folder cannot be written or its disk is full.
    """
    from hermes.config.writing import check_writable, locked
    from hermes.errors import InputError, Verbatim
    from hermes.results.files.export import of_killed_run, written_files

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "a folder that no other run is writing into"):
        if is_sweep(folder):
            raise InputError(Verbatim(f"{folder} holds a sweep: choose another folder"), field="--output")
        free = overwrite or of_killed_run(folder)
        found = [] if free else [name for name in written_files() if (folder / name).exists()]
        if found:
            raise InputError(Verbatim(f"{folder} holds another run ({found[0]}): choose another folder, or replace it "
                                      "with --overwrite"), field="--output")
        check_writable(folder)
        yield
