"""One test of many files: every case is checked, and all failures are reported together.

A test for each page, recording or profile costs more to collect and to report than to run. Cases that are items of a
list make one test; a case with a meaning of its own stays a parameter (`pytest.mark.parametrize`).

    @each("page", pages(), ids=name_of)     # where pytest.mark.parametrize would make a test of each page
    def test_links_lead_somewhere(page): ...

Fixtures of the test are the same for all its cases.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

__all__ = ["check_each", "each"]

T = TypeVar("T")


def check_each(cases: Iterable[T], check: Callable[[T], object], name: Callable[[T], object] = str) -> None:
    """Call `check` with each case, then fail with a paragraph for each case that raised.

    Args:
        cases: What to check; no case at all is a failure.
        check: Raises if a case is wrong; what it returns is ignored.
        name: Name of a case in the report.
    """
    number, failed = 0, []
    for case in cases:
        number += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                      if Path(frame.filename).name.startswith("test_")]
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
            failed.append(f"{name(case)}: {where}{type(error).__name__}: {error}")
    assert number, "there are no cases"
    if failed:
        pytest.fail("\n".join([f"{len(failed)} of {number} cases failed", *failed]), pytrace=False)


def each(names: str | Sequence[str], cases: Iterable[Any], ids: Callable[[Any], object] = str) -> Callable[[Any], Any]:
    """Decorate a test, or a class of tests, that takes the parameters `names`: it runs all cases in one test.

    Args:
        names: As `pytest.mark.parametrize` takes them: "a", "a, b" or ("a", "b").
        cases: A value each, or a sequence of values if there are several names.
        ids: Text of a value in the report.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    listed = [[case] if len(given) == 1 else list(case) for case in cases]

    def decorate(test: Any) -> Any:
        if isinstance(test, type):
            for attribute, method in list(vars(test).items()):
                if attribute.startswith("test_"):
                    setattr(test, attribute, decorate(method))
            return test

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            check_each(listed, lambda values: test(*args, **fixtures, **dict(zip(given, values, strict=True))),
                       lambda values: "-".join(str(ids(value)) for value in values))

        signature = inspect.signature(test)
        left = [parameter for parameter in signature.parameters.values() if parameter.name not in given]
        run.__signature__ = signature.replace(parameters=left)   # type: ignore[attr-defined]
        return run

    return decorate
