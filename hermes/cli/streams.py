"""Standard output and error that survive a closed, full or ASCII-only end, and pass on no control characters.

Names come from files that somebody else may have written: a terminal would obey an escape sequence in one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hermes.errors import HermesError, printable

__all__ = ["guarded_streams", "silence_stdout", "terminal"]


class _Guarded:
    """A text stream; whatever is not said here is answered by the stream inside."""

    def __init__(self, stream: Any) -> None:
        self.inside = stream

    def write(self, text: str) -> int:
        return int(self._tried(self.inside.write, printable(text)))

    def flush(self) -> None:
        self._tried(self.inside.flush)

    def _tried(self, call: Any, *arguments: str) -> Any:
        try:
            return call(*arguments)
        except BrokenPipeError:
            raise BrokenPipeError from None   # with its number, click would end the process with exit code 1
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise HermesError(f"cannot write to standard output: {reason}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


class _Quiet(_Guarded):
    """Standard error: progress bars move the cursor there, and a message that cannot be shown is no reason to stop."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return int(self.inside.write(text))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.inside.flush()


def terminal() -> Any:
    """Standard output as it is, for what draws with escape sequences of its own."""
    stream = sys.stdout
    return stream.inside if isinstance(stream, _Guarded) else stream


def silence_stdout() -> None:
    """Send what is still buffered, and all that follows, nowhere: its reader is gone, or its disk is full."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Put the guards around `sys.stdout` and `sys.stderr` for the time of one command."""
    _open_closed()
    before = sys.stdout, sys.stderr
    guards = []
    for stream, guard in zip(before, (_Guarded, _Quiet), strict=True):
        if stream is None:   # closed before Python started
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the process ends)
        if hasattr(stream, "reconfigure"):
            with suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")   # what an ASCII terminal cannot show
        guards.append(guard(stream))
    sys.stdout, sys.stderr = guards
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open what is closed of 0, 1 and 2: the next file would get the number, and be written by every `print`."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
