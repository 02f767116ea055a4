"""The compiled build: what classes that plug-ins subclass need for it. In pure Python nothing here has an effect.

A wheel built with HERMES_COMPILED=1 (hatch_build.py) has the kernel's modules compiled with mypyc. In a compiled class,
an attribute of the class body becomes a field of each instance, and compiled code reads the field. An interpreted
subclass cannot replace it by an attribute of its own: the compiled code would go on with the base's value. `ClassVar`
attributes, methods and properties can be overridden as usual.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import GetSetDescriptorType
from typing import TYPE_CHECKING

__all__ = ["check_overrides", "compiled_modules", "environment", "installed", "is_compiled", "mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    def mypyc_attr(*flags, **values):
        """Return a decorator that returns the class as it is."""
        return lambda cls: cls


def is_compiled(cls: type) -> bool:
    """Return whether a class or a base of it is compiled. Tests ask that replace an attribute or change a source."""
    return any("__mypyc_attrs__" in base.__dict__ for base in cls.__mro__)


def check_overrides(cls: type) -> None:
    """Raise `TypeError` if `cls` has class attributes that compiled code would not see."""
    own = {name for name, value in cls.__dict__.items() if not isinstance(value, GetSetDescriptorType)}
    for base in cls.__mro__[1:]:
        for name in base.__dict__.get("__mypyc_attrs__", ()):   # the fields of a compiled class
            if name in own:
                raise TypeError(
                    f"{cls.__name__}.{name}: the compiled {base.__name__} does not see this class attribute; set it on "
                    "the instance, in __init__"
                )


def compiled_modules() -> list[Path]:
    """Return the compiled modules of this installation; none in pure Python."""
    return sorted(Path(__file__).parent.rglob(f"*{EXTENSION_SUFFIXES[0]}"))


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution, without importing it; None if it is missing or broken."""
    try:
        return version(distribution) or None
    except (PackageNotFoundError, KeyError, ValueError):   # the last two: metadata without a version
        return None


@cache
def environment() -> dict[str, str]:
    """Return what a program runs on: the build of this package, Python and NumPy. No figure depends on it."""
    return {"build": "compiled" if compiled_modules() else "pure", "python": platform.python_version(),
            "numpy": installed("numpy") or "missing"}
