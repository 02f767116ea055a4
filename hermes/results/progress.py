"""Progress of long commands on standard error: a bar on a terminal, or lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["SELDOM_S", "ProgressBar", "ProgressLines"]

SELDOM_S = 10.0
"""Seconds between two lines that tell that a search is still at work."""


class ProgressLines:
    """Prints a line of what is being done, unless the one before came less than `every_s` seconds ago.

    every_s: 0 prints every line, in full; otherwise the first comes `every_s` seconds after the start.
    """

    def __init__(self, every_s: float = SELDOM_S) -> None:
        self._every_s = every_s
        self._began = self._last = time.monotonic()

    def __call__(self, what: str) -> None:
        """Print `what`, if it is time for a line."""
        from hermes.results.layout import WIDTH, shortened  # takes long to import

        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        text = shortened(f"{now - self._began:.0f} s: {what}", WIDTH) if self._every_s else what
        print(text, file=sys.stderr, flush=True)


class ProgressBar:
    """Shows the work done, the total, and the remaining time; used in a `with` statement.

    show: False for no bar. transient: Remove the bar at the end.
    """

    def __init__(self, what: str, *, show: bool = True, transient: bool = True) -> None:
        from rich.console import Console  # takes long to import, and most runs show no bar
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, disable=not (show and console.is_terminal), transient=transient,
        )
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(self, done: int, total: int, what: str | None = None) -> None:
        """Show `done` of `total`, and the current work if it is given."""
        self._progress.update(self._task, completed=done, total=total, description=what)
