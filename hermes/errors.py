"""Errors of users, each with a message of one line.

A mistake in a scenario, trace, profile or command line raises a subclass of `HermesError` whose `str()` is a single
line. The command line prints that line on stderr and exits with code 2; a notebook sees an ordinary exception. Bugs in
hermes itself are other exceptions and keep their traceback.
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TextIO

__all__ = [
    "HermesError", "InputError", "InputWarning", "Verbatim", "inside", "printable", "shown", "suggest", "warn_all",
]

_SHORTEST = 3   # least letters of a name to complete: "a" is more likely a slip than the beginning of a name


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Escape control characters (except tabs and line ends) and half characters in `text`, `\\x1b` for ESC: a terminal
    would obey them."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


class HermesError(Exception):
    """An error that the user can correct. `str()` is one line."""

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().split()))


class InputError(HermesError, ValueError):
    """A wrong file, field or value.

    The line reads `FILE:LINE:COLUMN: FIELD: expected EXPECTED, found FOUND (did you mean 'X'?)` without the parts that
    are unknown. If `expected` is `Verbatim`, it is the whole message: what is wrong, then what to do.
    """

    def __init__(
        self,
        expected: str,
        found: object = ...,
        *,
        field: str | None = None,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        suggestion: str | None = None,
    ) -> None:
        self.expected, self.found, self.field = expected, found, field
        self.file, self.line, self.column, self.suggestion = file, line, column, suggestion
        super().__init__(expected)

    def located(self, *, file: str | None = None, field: str | None = None) -> InputError:
        """Return this error with `file` filled in and `field` put in front of its field."""
        path = ".".join(p for p in (field, self.field) if p) or None
        return InputError(
            self.expected, self.found, field=path, file=self.file or file, line=self.line, column=self.column,
            suggestion=self.suggestion,
        )

    def __str__(self) -> str:
        where = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        whole = isinstance(self.expected, Verbatim)
        text = str(self.expected) if whole else f"expected {self.expected}"
        if self.found is not ... and not whole:
            text += f", found {'nothing' if self.found is None else shown(self.found)}"
        if self.suggestion:
            text += f" (did you mean {self.suggestion!r}?)"
        return printable(" ".join(": ".join(p for p in (where, self.field, text) if p).split()))


class InputWarning(UserWarning):
    """A problem of input that still runs, and that the user should correct or look at. One line; the command line
    prints it on stderr."""


def warn_all(texts: Iterable[str]) -> None:
    """Issue each line as an `InputWarning` that points at the caller's caller."""
    for text in texts:
        warnings.warn(text, InputWarning, stacklevel=3)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line on stderr, without the place in the code that issued it (`warnings.showwarning`)."""
    print("hermes: warning:", printable(" ".join(str(message).split())), file=sys.stderr)


def shown_once() -> Callable[..., None]:
    """Return `show_warning` without the texts that it has printed before."""
    shown: set[str] = set()

    def show(message: Warning | str, *rest: Any) -> None:   # Any: the others of `show_warning`, unused
        if str(message) not in shown:
            shown.add(str(message))
            show_warning(message, *rest)

    return show


@contextmanager
def inside(field: str) -> Iterator[None]:
    """Prefix `field` to the field of errors raised inside, except errors about a file: their place is more exact."""
    try:
        yield
    except InputError as error:
        raise error if error.file else error.located(field=field) from None


class Verbatim(str):
    """Words that `InputError` prints as they are, without quotes: the found value, or the whole message."""

    __slots__ = ()


def shown(value: object, limit: int = 160) -> str:
    """Return a value as a user would write it, on one line of at most `limit` characters; `Verbatim` in full."""
    if isinstance(value, Verbatim):
        return " ".join(value.split())
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 512:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggest(name: object, names: Iterable[str]) -> str | None:
    """Return the name in `names` that a mistyped or shortened `name` stands for, or None.

    A completion comes first (`h100` gives h100-sxm, not the nearer h200), then the nearest name with the same first
    word (`h200-sxm` gives h200), then the nearest of all.
    """
    text, known = str(name), list(names)
    small = text.lower()
    if len(text) >= _SHORTEST:
        longer = [other for other in known if other.lower().startswith(small)]
        if longer:
            return min(longer, key=len)
    word = _first_word(small)
    if word != small:
        kin = {other.lower(): other for other in known if _first_word(other.lower()) == word}
        close = difflib.get_close_matches(small, kin, n=1, cutoff=0.5)
        if close:
            return kin[close[0]]
    close = difflib.get_close_matches(text, known, n=1, cutoff=0.6)
    if close:
        return close[0]
    # a longer name for it: `minReplicas` of `min`, `vllm:num_requests_waiting` of `waiting`
    parts = [part.lower() for part in re.findall(r"[A-Za-z][a-z]+", text)]
    meant = [other for other in known if other.lower() in parts or other.lower() in map("_".join, pairwise(parts))]
    return meant[0] if len(meant) == 1 else None


def _first_word(name: str) -> str:
    return re.split(r"[-_./ ]", name, maxsplit=1)[0]
