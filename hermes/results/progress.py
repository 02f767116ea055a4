"""Progress of long commands on standard error: a bar on a terminal, or lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["SELDOM_S", "OnProgress", "ProgressBar", "SearchProgress"]

SELDOM_S = 10.0
"""Seconds between two lines about a search that is still at work."""

BAR_WIDTH = 16   # beside a text with counts
FEW_DONE = 5     # simulations before the time left is said
OnProgress = Callable[[str, int, int, float | None], None]
"""What is simulated, simulations done, about how many there will be, and, if their lengths differ, the share of the
work that is done; 0.0 is said at once."""


class ProgressBar:
    """Shows the work done, the total, and the remaining time; used in a `with` statement.

    show: False for no bar. transient: Remove the bar at the end. counts: False for a bar whose text has the counts.
    """

    def __init__(self, what: str, *, show: bool = True, transient: bool = True, counts: bool = True) -> None:
        from rich.console import Console  # takes long to import, and most runs show no bar
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._shown = show and console.is_terminal   # rich below 14.1 ends others with an empty line
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(40 if counts else BAR_WIDTH),
            *((MofNCompleteColumn(), TimeRemainingColumn()) if counts else ()),
            console=console, disable=not self._shown, transient=transient,
        )
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> ProgressBar:
        if self._shown:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        if self._shown:
            self._progress.stop()

    def update(self, done: int, total: int, what: str | None = None) -> None:
        """Show `done` of `total`, and the current work if it is given."""
        self._progress.update(self._task, completed=done, total=total, description=what)


class SearchProgress:
    """Shows how far a search is, on standard error: simulations done of about so many, and the time left.

    A bar on a terminal, elsewhere a line now and then. Used in a `with` statement, and called as `OnProgress`.

    verbose: Print a line for each round, in full. quiet: Print nothing.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet, self._verbose = quiet, verbose
        self._bar = ProgressBar("", counts=False) if sys.stderr.isatty() and not quiet and not verbose else None
        self._began = self._last = time.monotonic()
        self._round = ""

    def __enter__(self) -> SearchProgress:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def __call__(self, what: str, done: int, usual: int, share: float | None = None) -> None:
        """Show that `done` of about `usual` simulations are done, and `what` is simulated now, one or more by "; ".

        share: Of the work that is done, if simulations differ in length.
        """
        if self._quiet:
            return
        now = time.monotonic()
        took = now - self._began
        seconds = took / done * max(usual - done, 1) if done else 0.0
        if share:
            seconds = took / share * (1.0 - share)
        # the first ones say little: they come with the start of workers, and are short or overloaded
        known = done >= FEW_DONE
        left = f", about {f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'} left" if known else ""
        counts = f"{done} of about {max(usual, done)} simulations{left}"
        if self._bar is not None:
            self._bar.update(done, max(usual, done), counts + _fitting(what, len(counts) + BAR_WIDTH + 2))
        elif share == 0.0 or (what != self._round if self._verbose else now - self._last >= SELDOM_S):
            self._last, self._round = now, what
            counts = f"{took:.0f} s: {counts}"
            said = f"; {what}" if self._verbose else _fitting(what, len(counts))
            print(counts + said, file=sys.stderr, flush=True)


def _fitting(what: str, used: int) -> str:
    """Return the first simulation of a round, and how many others, as far as a line has room; nothing is cut."""
    from hermes.results.layout import WIDTH  # takes long to import

    first, *others = what.split("; ")
    texts = [f"; {first}" + (f" and {len(others)} more" if others else ""), f"; {first}", ""]
    return next(text for text in texts if not text or used + len(text) <= WIDTH)
