"""Code that a scenario, a sweep or a study names, and that reading or running it executes: `--no-plugins` refuses it,
and so do commands that simulate the folder of a run again, which may be another's, without `--plugins`.

Packages that announce components as entry points were installed by the user, and are not refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from hermes.errors import InputError, Verbatim

__all__ = ["VARIABLE", "check_own_code", "code_of_run", "refusing_own_code"]

VARIABLE = "HERMES_NO_PLUGINS"
"""Environment variable that refuses code as `--no-plugins` does, in worker processes also; "" and 0 allow it."""

_OF_RUN = "run"   # its value while the folder of a run is read


def check_own_code(what: str, *, field: str | None = None, file: str | None = None) -> None:
    """Raise `InputError` if code must not run. what: The code, with the verb: "the plug-in x.py runs"."""
    refused = os.environ.get(VARIABLE, "")
    why = "which the folder of a run names; read it, then add --plugins" if refused == _OF_RUN else (
        "and --no-plugins refuses code that a file names; read it, then leave out --no-plugins (and unset "
        f"{VARIABLE})")
    if refused not in ("", "0"):
        raise InputError(Verbatim(f"{what}, {why}"), field=field, file=file)


def code_of_run(*, plugins: bool) -> AbstractContextManager[None]:
    """Return a block that refuses the code that the folder of a run names, unless `--plugins` allows it."""
    return nullcontext() if plugins else refusing_own_code(_OF_RUN)


@contextmanager
def refusing_own_code(why: str = "1") -> Iterator[None]:
    """Refuse code in this process, and in processes that it starts, until the end of the block."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = why if before in (None, "", "0") else before
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        os.environ.update({} if before is None else {VARIABLE: before})
