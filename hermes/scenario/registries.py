"""Keep the scenario's models in step with the registries of their components.

The schema of a model lists the choices of its component fields when it is built. If a component registers later, the
models with such fields are rebuilt, innermost first, so that a plug-in is valid from the moment it registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel

from hermes.config import Component, Named
from hermes.config.registry import Registry

__all__ = ["kinds_in", "reachable", "refresh"]

# root model -> its registries, and the version of each at the latest build
_built: dict[type[BaseModel], list[tuple[Registry[Any], int]]] = {}


def refresh(root: type[BaseModel], names: Iterable[object] | None = ()) -> None:
    """Rebuild `root` and the models in it if any registry they use has changed since the last build.

    Args:
        names: Names whose installed packages are imported first; None: all packages.

    Raises `InputError` if a package that offers one of the names cannot be imported.
    """
    # Only registrations in these can add others. This runs for every scenario, so it walks no models.
    while True:
        for registry, _ in _built.get(root, ()):
            registry.load(names)
        if root in _built and all(registry.version == version for registry, version in _built[root]):
            return
        models, registries = reachable(root)
        for model in models:
            model.model_rebuild(force=True)
        _built[root] = [(registry, registry.version) for registry in registries]


def kinds_in(document: object) -> set[object]:
    """Return the values of all keys `kind` in plain data: names of components that it may use."""
    found: set[object] = set()
    inside = [document]
    while inside:
        part = inside.pop()
        if isinstance(part, dict):
            kind = part.get("kind")
            found |= {kind} if isinstance(kind, str) else set()
            inside += part.values()
        elif isinstance(part, list):
            inside += part
    return found


def reachable(root: type[BaseModel]) -> tuple[list[type[BaseModel]], list[Registry[Any]]]:
    """Return every model below `root`, innermost first and `root` last, and every registry in between."""
    models: dict[type[BaseModel], None] = {}
    registries: list[Registry[Any]] = []
    entered: set[type[BaseModel]] = set()

    def enter(model: type[BaseModel]) -> None:
        if model in entered:
            return
        entered.add(model)
        for field in model.model_fields.values():
            for part in _parts(field.annotation, field.metadata):
                if isinstance(part, Named):
                    if part.registry not in registries:
                        registries.append(part.registry)
                elif isinstance(part, Component):
                    if part.registry not in registries:
                        registries.append(part.registry)
                    for name in part.registry.loaded():
                        enter(part.registry.get(name))
                else:
                    enter(part)
        models[model] = None

    enter(root)
    return list(models), registries


def _parts(annotation: Any, metadata: Any = ()) -> Iterator[type[BaseModel] | Component | Named]:
    """Yield the models and component markers inside a type annotation."""
    yield from (item for item in metadata if isinstance(item, Component | Named))
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model or isinstance(annotation, Component | Named):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)
