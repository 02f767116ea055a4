"""Rules broken on purpose, and the recorded schedules that notice.

A recording shows that a rule is right only if it would have come out differently without it. A mutation replaces a
piece of a method's source text; where that piece is gone, the method was rewritten, and the mutation has to be written
anew. `rule_mutations.py`, `offload_mutations.py` and `sglang_mutations.py` list those of one scheduler each, and write
the tables of a page.
"""

from __future__ import annotations

import csv
import inspect
import io
import multiprocessing
import re
import signal
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.schedules.vllm_replay import conform_file, find_files

__all__ = ["Mutation", "Replacement", "notices", "table"]


@dataclass(frozen=True)
class Mutation:
    """`pattern` (a regular expression, found exactly once) in the source of `owner.method` becomes `new`."""

    rule: str
    what: str
    owner: Any
    method: str
    pattern: str
    new: str
    noticed_by: str   # one recording that comes out differently
    every_step: bool = True   # how it is replayed

    def source(self) -> str:
        text = textwrap.dedent(inspect.getsource(vars(self.owner)[self.method]))
        changed, count = re.subn(self.pattern, self.new.replace("\\", r"\\"), text)
        if count != 1:
            raise LookupError(f"rule {self.rule} ({self.what}): {self.pattern!r} occurs {count} times in "
                              f"{self.owner.__name__}.{self.method}")
        return changed.replace("super()", f"super({self.owner.__name__}, self)")   # there is no class around it

    @contextmanager
    def applied(self) -> Iterator[None]:
        original = vars(self.owner)[self.method]
        namespace: dict[str, Any] = {}
        exec(compile(self.source(), f"<rule {self.rule}>", "exec"), original.__globals__, namespace)
        setattr(self.owner, self.method, namespace[self.method])
        try:
            yield
        finally:
            setattr(self.owner, self.method, original)


@dataclass(frozen=True)
class Replacement(Mutation):
    """A class attribute that becomes the attribute called `new`."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        original = vars(self.owner)[self.method]
        setattr(self.owner, self.method, getattr(self.owner, self.new))
        try:
            yield
        finally:
            setattr(self.owner, self.method, original)


class TooLongError(Exception):
    """A replay that does not come to an end."""


def _give_up(*args: object) -> None:
    raise TooLongError


def notices(mutation: Mutation, path: Path, limit_s: float = 2.0) -> bool:
    """Whether the replay of a recording differs with the mutation.

    So it does where the replay breaks down, or does not end in `limit_s` of processor time (one takes about 0.1 s).
    """
    if not isinstance(mutation, Replacement):
        mutation.source()   # a piece that is gone is no difference
    before = signal.signal(signal.SIGPROF, _give_up)
    # again and again: an exception raised while a garbage collector's callback runs is swallowed
    signal.setitimer(signal.ITIMER_PROF, limit_s, 0.5)
    try:
        with mutation.applied():
            return not conform_file(path, every_step=mutation.every_step).ok
    except (AssertionError, AttributeError, LookupError, StopIteration, TypeError, ValueError, TooLongError):
        return True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


_work: tuple[Sequence[Mutation], list[Path]] = ((), [])   # of the table that this process helps to make


def _begin(mutations: Sequence[Mutation], files: list[Path]) -> None:
    global _work
    _work = mutations, files


def _noticed(number: int) -> list[bool]:
    mutations, files = _work
    return [notices(mutations[number], path) for path in files]


def table(mutations: Sequence[Mutation], root: Path, columns: Mapping[str, str]) -> str:
    """Return a table as CSV: per mutation, how many recordings notice.

    Args:
        root: A folder of recordings, to which `noticed_by` is relative.
        columns: Head of each column by its folder in `root`, `.` for all of it. `{}` in a head is the number of files.
    """
    files = {folder: find_files([root / folder]) for folder in columns}
    every = [path for found in files.values() for path in found]
    heads = [head.format(len(files[folder])) for folder, head in columns.items()]
    rows = [["rule", "broken on purpose", *heads, "for example"]]
    # a mutation may hold a module, which only a forked process takes over
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork"), initializer=_begin,
                             initargs=(mutations, every)) as pool:
        for mutation, found in zip(mutations, pool.map(_noticed, range(len(mutations))), strict=True):
            noticed = [path for path, notes in zip(every, found, strict=True) if notes]
            names = [path.relative_to(root).as_posix().removesuffix(".json") for path in noticed]
            counts = [str(len({*noticed} & {*files[folder]})) for folder in columns]
            example = mutation.noticed_by
            if example not in names:
                example = f"NOT {example} BUT {', '.join(names[:6])}"
            rows.append([mutation.rule, mutation.what, *counts, example])
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()


def rows_of(path: Path) -> list[list[str]]:
    """Return the rows of such a table, its head first."""
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
