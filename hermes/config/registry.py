"""Extension points: implementations registered by name.

A registry maps the `kind:` in a scenario to the class that implements it. Classes register in process with
`@ROUTERS.register(NAME)`, and from other packages through the entry-point group `hermes.<registry name>`. HERMES's own
are listed where the registry is made. An implementation is imported when a scenario names it; its name is valid in YAML
and in the JSON Schema at once.
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
        base: Class that implementations derive from, for its hooks and their defaults.
        built_in: HERMES's own implementations, name -> "module:class", imported when their name is first asked for.
    """

    version: ClassVar[int] = 0
    """Counts all registrations, so that data derived from registries knows when it is stale."""
    every: ClassVar[list[Registry[Any]]] = []
    """Every registry of this process."""

    def __init__(
        self, name: str, what: str, built_in: Mapping[str, str] | None = None, *, base: type | None = None,
    ) -> None:
        self.name, self.what, self.base = name, what, base
        self._entries: dict[str, Any] = {}
        self._built_in = {key: EntryPoint(key, place, f"hermes.{name}") for key, place in (built_in or {}).items()}
        Registry.every.append(self)

    def register(self, name: str) -> Callable[[C], C]:
        """Register a class under `name`, which must be that of its `kind` field (class decorator).

        Raises `ValueError` if another class has the name, `InputError` for a class without the registry's base.
        """

        def add(cls: C) -> C:
            old = self._entries.get(name)
            if old is cls:
                return cls
            place = f"{cls.__module__}:{cls.__qualname__}"
            if self.base is not None and not issubclass(cls, self.base):
                raise InputError(Verbatim(f"{self.what} named {name!r}: {cls.__qualname__} does not derive from "
                                          f"{self.base.__qualname__}, which has the hooks that are called"))
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
        """Remove a name (for tests and notebooks that redefine a class)."""
        del self._entries[name]
        Registry.version += 1

    def get(self, name: str) -> Any:
        """Return the class registered under `name`, and import it if needed.

        Raises `InputError` with the nearest name for an unknown one, and with the package's name if its package cannot
        be imported.
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
        except (Exception, SystemExit) as error:   # a package may raise any exception
            raise _broken(self.what, name, point, error) from None
        return self.register(name)(found)

    def names(self) -> list[str]:
        """Return all names, including those not imported yet."""
        return sorted({*self._entries, *self._built_in, *self._offered})

    def working(self) -> dict[str, Any]:
        """Return every name with its class, except those whose package cannot be imported."""
        found = {}
        for name in self.names():
            try:
                found[name] = self.get(name)
            except InputError:   # reported when a scenario names it
                continue
        return found

    @property
    def _offered(self) -> Mapping[str, EntryPoint]:
        return _entry_points().get(f"hermes.{self.name}", {})

    def _point(self, name: str) -> EntryPoint | None:
        """Return the entry point of an implementation that is not imported yet; reads entry points only if needed."""
        return self._built_in.get(name) or self._offered.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._built_in or name in self._offered


def plugin_modules(beside: Collection[str] = ()) -> list[str]:
    """Return the modules outside this package that registered an implementation or offer one as an entry point.

    Args:
        beside: Names of registries to leave out.
    """
    found = [entry.__module__ for registry in Registry.every if registry.name not in beside
             for entry in registry._entries.values()]
    found += [point.module for group, points in _entry_points().items()
              if group.removeprefix("hermes.") not in beside for point in points.values()]
    # files under `plugins:` are not importable modules; they count as files that a scenario reads
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
    """Return the entry points of installed packages, by group and name. Read once: it looks into every installed
    package."""
    found: dict[str, dict[str, EntryPoint]] = {}
    points = entry_points()
    for group in points.groups:
        if group.startswith("hermes."):
            found[group] = {point.name: point for point in points.select(group=group)}
    return found
