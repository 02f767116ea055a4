"""Guards for standard output and error: closed, full or ASCII-only streams, and control characters.

Names come from files of unknown origin, and a terminal would obey an escape sequence in a name.
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
    """A text stream with guarded writes; every other attribute is that of the stream inside."""

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
    """Standard error: progress bars may move the cursor, and a message that cannot be shown does not stop the
    command."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return int(self.inside.write(text))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.inside.flush()


def terminal() -> Any:
    """Return standard output without its guard, for libraries that write escape sequences themselves."""
    stream = sys.stdout
    return stream.inside if isinstance(stream, _Guarded) else stream


def silence_stdout() -> None:
    """Discard buffered and later output: its reader is gone, or its disk is full."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard `sys.stdout` and `sys.stderr` for the time of one command."""
    _open_closed()
    before = sys.stdout, sys.stderr
    guards = []
    for stream, guard in zip(before, (_Guarded, _Quiet), strict=True):
        if stream is None:   # closed before Python started
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open until the process ends)
        if hasattr(stream, "reconfigure"):
            with suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")   # characters that an ASCII terminal cannot show
        guards.append(guard(stream))
    sys.stdout, sys.stderr = guards
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open closed file descriptors among 0, 1 and 2: the next file would get the number, and every `print` would write
    it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
