"""Extension points: implementations registered by name.

A registry maps the `kind:` written in a scenario to the class that implements it. Classes register in process with
`@ROUTERS.register("round_robin")`, and from other packages through the entry-point group `hermes.<registry name>`.
What is registered is valid in YAML, and in the JSON Schema, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from hermes.errors import InputError, suggest

__all__ = ["Registry"]

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Names to implementations of one extension point. `what` is how error messages call it ("a router")."""

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what
        self.version = 0  # counts registrations, so that derived schemas know when they are stale
        self._entries: dict[str, Any] = {}
        self._loaded_entry_points = False

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: enter the class under `name`, which has to be that of its `kind` field.

        Raises `ValueError` for a name that another class has.
        """

        def add(cls: C) -> C:
            old = self._entries.get(name)
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

    def _load(self) -> None:
        if not self._loaded_entry_points:
            self._loaded_entry_points = True
            for point in entry_points(group=f"hermes.{self.name}"):
                self.register(point.name)(point.load())

    def get(self, name: str) -> Any:
        """The class registered under `name`; `InputError` with the nearest name otherwise."""
        self._load()
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise InputError(
                f"{self.what}: one of {', '.join(self.names())}", name, suggestion=suggest(name, self._entries)
            ) from None

    def names(self) -> list[str]:
        self._load()
        return sorted(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries
