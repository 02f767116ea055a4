"""Extension points: implementations registered by name.

A registry maps the `kind:` written in a scenario to the class that implements it. Classes register in process with
`@ROUTERS.register(NAME)`, and from other packages through the entry-point group `hermes.<registry name>`.
HERMES's own are listed where the registry is made. What is listed or offered is imported when a scenario names it; its
name is valid in YAML, and in the JSON Schema, at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar

from hermes.errors import InputError, Verbatim, suggest

__all__ = ["Registry", "plugin_modules"]

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Names to implementations of one extension point.

    Args:
        name: The entry-point group is `hermes.<name>`.
        what: How error messages call an implementation ("a router").
        built_in: HERMES's own implementations, name -> "module:class", imported when their name is first asked for.
    """

    version: ClassVar[int] = 0
    """Counts registrations everywhere, so that what is derived from registries knows when it is stale."""
    every: ClassVar[list[Registry[Any]]] = []
    """Every registry of this process."""

    def __init__(self, name: str, what: str, built_in: Mapping[str, str] | None = None) -> None:
        self.name, self.what = name, what
        self._entries: dict[str, Any] = {}
        self._built_in = {key: EntryPoint(key, place, f"hermes.{name}") for key, place in (built_in or {}).items()}
        Registry.every.append(self)

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: enter the class under `name`, which has to be that of its `kind` field.

        Raises `ValueError` for a name that another class has.
        """

        def add(cls: C) -> C:
            old = self._entries.get(name)
            if old is cls:
                return cls
            place = f"{cls.__module__}:{cls.__qualname__}"
            if old is not None:
                taken = f"{old.__module__}:{old.__qualname__}"
            else:
                taken = self._built_in[name].value if name in self._built_in else place
            if place != taken:
                raise ValueError(f"{self.what} named {name!r} is registered already, by {taken.partition(':')[0]}")
            self._entries[name] = cls
            Registry.version += 1
            return cls

        return add

    def unregister(self, name: str) -> None:
        """Forget a name (tests and notebooks that redefine a class)."""
        del self._entries[name]
        Registry.version += 1

    def get(self, name: str) -> Any:
        """The class registered under `name`, imported if need be.

        Raises `InputError` with the nearest name for one that is not known, and with the package's name for one whose
        package cannot be imported.
        """
        try:
            if name in self._entries:
                return self._entries[name]
            point = self._point(name)
        except TypeError:   # YAML may have a list where a name is expected
            point = None
        if point is None:
            raise InputError(
                f"{self.what}: one of {', '.join(self.names())}", name, suggestion=suggest(name, self.names()))
        if name in self._built_in:
            return self.register(name)(point.load())
        try:
            found = point.load()
        except (Exception, SystemExit) as error:   # the code of a package may fail with anything
            raise _broken(self.what, name, point, error) from None
        return self.register(name)(found)

    def names(self) -> list[str]:
        """All names, those included that nothing has asked for yet."""
        return sorted({*self._entries, *self._built_in, *self._offered})

    def working(self) -> dict[str, Any]:
        """Every name with its class, without those whose package cannot be imported."""
        found = {}
        for name in self.names():
            try:
                found[name] = self.get(name)
            except InputError:   # said when a scenario names it
                continue
        return found

    @property
    def _offered(self) -> Mapping[str, EntryPoint]:
        return _entry_points().get(f"hermes.{self.name}", {})

    def _point(self, name: str) -> EntryPoint | None:
        """Where an implementation that is not imported yet comes from; entry points are read only if need be."""
        return self._built_in.get(name) or self._offered.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._built_in or name in self._offered


def plugin_modules(beside: Collection[str] = ()) -> list[str]:
    """The modules, other than of this package, that registered an implementation or offer one as an entry point.

    Args:
        beside: Names of registries that do not count.
    """
    found = [entry.__module__ for registry in Registry.every if registry.name not in beside
             for entry in registry._entries.values()]
    found += [point.module for group, points in _entry_points().items()
              if group.removeprefix("hermes.") not in beside for point in points.values()]
    # files under `plugins:` are no modules to import: they are among the files that a scenario reads
    return sorted({module for module in found if module.partition(".")[0] != "hermes"
                   and not hasattr(sys.modules.get(module), "__hermes_source__")})


def _broken(what: str, name: str, point: EntryPoint, error: BaseException) -> InputError:
    package = point.dist.name if point.dist is not None else point.module.partition(".")[0]
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(Verbatim(
        f"{what} {name!r}: the package {package} that offers it cannot be imported ({point.value}: {reason}); "
        f"repair or uninstall {package}, or choose another"))


@cache
def _entry_points() -> dict[str, dict[str, EntryPoint]]:
    """What installed packages offer, by group and name. Read once: it looks into every installed package."""
    found: dict[str, dict[str, EntryPoint]] = {}
    points = entry_points()
    for group in points.groups:
        if group.startswith("hermes."):
            found[group] = {point.name: point for point in points.select(group=group)}
    return found
