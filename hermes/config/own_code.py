"""Code that a scenario, a sweep or a study names, and that reading or running it executes: `--no-plugins` refuses it.

Packages that announce components as entry points were installed by the user, and are not refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hermes.errors import InputError, Verbatim

__all__ = ["VARIABLE", "check_own_code", "refusing_own_code"]

VARIABLE = "HERMES_NO_PLUGINS"
"""Environment variable that refuses code as `--no-plugins` does, in worker processes also; "" and 0 allow it."""


def check_own_code(what: str, *, field: str | None = None, file: str | None = None) -> None:
    """Raise `InputError` if code must not run. what: The code, with the verb: "the plug-in x.py runs"."""
    if os.environ.get(VARIABLE, "") not in ("", "0"):
        raise InputError(Verbatim(f"{what}, and --no-plugins refuses code that a file names; read it, then leave out "
                                  f"--no-plugins (and unset {VARIABLE})"), field=field, file=file)


@contextmanager
def refusing_own_code() -> Iterator[None]:
    """Refuse code in this process, and in processes that it starts, until the end of the block."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
