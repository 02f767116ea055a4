"""Commands over the folder `evidence/`, which stands beside the tests: a checkout has it, a wheel does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Answer

__all__ = ["accuracy", "checkout"]


@contextmanager
def checkout(what: str) -> Iterator[None]:
    """Let the block import modules of `evidence`; without a checkout, `InputError` says that `what` needs one."""
    from hermes.errors import InputError, Verbatim

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "evidence":
            raise
        raise InputError(Verbatim(
            f"{what} needs a checkout of HERMES (folder evidence/): clone it, pip install -e .")) from None


def accuracy(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The folder of the reference sets.")],
    only: Annotated[list[str], typer.Option("--only", metavar="NAME", help="Run this set only; repeat for more.")
                    ] = [],  # noqa: B006  (typer copies it)
    bars: Annotated[Path | None, typer.Option(metavar="FILE", help="Exit 1 if an error exceeds a bar.")] = None,
    against: Annotated[Path | None, typer.Option(
        metavar="OLD", help="An earlier --json output: exit 1 if a median error rose by 2 points.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every percentile.")] = False,
) -> Answer:
    """Compare predictions with every reference set there is: recorded schedules, and servers of others.

    Nothing is fitted to a run. A set whose folder is missing is named and left out. A second table says how many
    figures lie in the ranges that `run` prints for results of their class, each found without the figures of the same
    campaign, site, card, engine or precision; -v prints each of these. Runs in a checkout only.
    """
    with checkout("hermes accuracy"):
        from evidence.accuracy.command import accuracy as of_sets

    return of_sets(data, only, bars, against, verbose=verbose)
