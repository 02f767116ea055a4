"""Progress bar of long commands, on standard error and on a terminal only."""

from __future__ import annotations

from types import TracebackType

__all__ = ["ProgressBar"]


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
