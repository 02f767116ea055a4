"""Errors a user can cause, and the one line each of them prints.

Everything a user may get wrong (a scenario, a trace, a profile, a command line) raises a subclass of `HermesError`
whose `str()` is a single line. The command line turns it into that line on stderr and exit code 2; a notebook sees
an ordinary exception. Bugs in hermes itself are not `HermesError`s and keep their traceback.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "HermesError", "InputError", "InputWarning", "Verbatim", "inside", "printable", "shown", "suggest", "warn_all",
]

_SHORTEST = 3   # letters of a name that may be completed: "a" is more likely a slip than the beginning of something


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with control characters (but for tabs and line ends) and half characters escaped, `\\x1b` for ESC: a
    terminal would obey them."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


class HermesError(Exception):
    """Something the user can put right. `str()` is one line."""

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().split()))


class InputError(HermesError, ValueError):
    """A file, field or value is not what it has to be.

    The line reads `FILE:LINE:COLUMN: FIELD: expected EXPECTED, found FOUND (did you mean 'X'?)`; parts that are not
    known are left out. Where `expected` is `Verbatim`, it is the whole message: what is wrong, then what to do.
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
        """The same error with `file` filled in and `field` put in front of its field."""
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
            text += f", found {shown(self.found)}"
        if self.suggestion:
            text += f" (did you mean {self.suggestion!r}?)"
        return printable(" ".join(": ".join(p for p in (where, self.field, text) if p).split()))


class InputWarning(UserWarning):
    """Something in the input that works, and should be written otherwise or looked at. One line; the command line
    prints it on stderr."""


def warn_all(texts: Iterable[str]) -> None:
    """Give each line as an `InputWarning`, to whoever called the function that calls this."""
    for text in texts:
        warnings.warn(text, InputWarning, stacklevel=3)


@contextmanager
def inside(field: str) -> Iterator[None]:
    """Put `field` in front of the field of errors from within; those about a file have a better place already."""
    try:
        yield
    except InputError as error:
        raise error if error.file else error.located(field=field) from None


class Verbatim(str):
    """What was found, or what is wrong, in words: shown as it is, without quotes."""

    __slots__ = ()


def shown(value: object, limit: int = 160) -> str:
    """A value as a user would write it, cut to `limit` characters and kept on one line; `Verbatim` in full."""
    if isinstance(value, Verbatim):
        return " ".join(value.split())
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 512:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggest(name: object, names: Iterable[str]) -> str | None:
    """The one of `names` that a mistyped or shortened `name` means, or None.

    What begins with it comes first (`h100` is h100-sxm, and not the nearer h200), then the nearest of those that have
    its first word (`h200-sxm` is h200), then the nearest of all.
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
    return close[0] if close else None


def _first_word(name: str) -> str:
    return re.split(r"[-_./ ]", name, maxsplit=1)[0]
