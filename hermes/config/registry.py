"""Extension points: implementations registered by name.

A registry maps the `kind:` written in a scenario to the class that implements it. Classes register in process with
`@ROUTERS.register("round_robin")`, and from other packages through the entry-point group `hermes.<registry name>`.
What is registered is valid in YAML, and in the JSON Schema, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from hermes.errors import InputError, Verbatim, suggest

__all__ = ["Registry"]

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Names to implementations of one extension point. `what` is how error messages call it ("a router").

    An implementation that a package offers through an entry point is imported when its name is first asked for.
    """

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what
        self.version = 0  # counts registrations, so that derived schemas know when they are stale
        self._entries: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: enter the class under `name`, which has to be that of its `kind` field.

        Raises `ValueError` for a name that another class has.
        """

        def add(cls: C) -> C:
            old = self._entries.get(name)
            if old is cls:
                return cls
            if old is not None and (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(f"{self.what} named {name!r} is registered already, by {old.__module__}")
            self._entries[name] = cls
            self.version += 1
            return cls

        return add

    def unregister(self, name: str) -> None:
        """Forget a name (tests and notebooks that redefine a class)."""
        del self._entries[name]
        self.version += 1

    def get(self, name: str) -> Any:
        """The class registered under `name`, imported if need be; `InputError` with the nearest name otherwise."""
        try:
            if name not in self._entries and name in self._offered:
                self._import(name)
            return self._entries[name]
        except (KeyError, TypeError):
            raise InputError(
                f"{self.what}: one of {', '.join(self.names())}", name, suggestion=suggest(name, self.names())
            ) from None

    def names(self) -> list[str]:
        """All names, those included that nothing has asked for yet."""
        return sorted({*self._entries, *self._offered})

    def loaded(self) -> list[str]:
        """The names whose implementations are imported."""
        return sorted(self._entries)

    def load(self, names: Iterable[object] | None = None) -> None:
        """Import what is offered under these names, or under any; other values are passed over."""
        for name in self._offered if names is None else names:
            if isinstance(name, str) and name in self._offered and name not in self._entries:
                self._import(name)

    @property
    def _offered(self) -> Mapping[str, EntryPoint]:
        return _entry_points().get(f"hermes.{self.name}", {})

    def _import(self, name: str) -> None:
        point = self._offered[name]
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            reason = Verbatim(f"{point.value}: {error}")
            raise InputError(f"{self.what} {name!r} whose package can be imported", reason) from None
        self.register(name)(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._offered


@cache
def _entry_points() -> dict[str, dict[str, EntryPoint]]:
    """What installed packages offer, by group and name. Read once: it looks into every installed package."""
    found: dict[str, dict[str, EntryPoint]] = {}
    points = entry_points()
    for group in points.groups:
        if group.startswith("hermes."):
            found[group] = {point.name: point for point in points.select(group=group)}
    return found
