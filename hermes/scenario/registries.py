"""The models of a scenario, kept in step with the registries they draw their components from.

A component field lists its choices when its model's schema is built. When something registers afterwards, the models
that contain such fields are built again, innermost first, so that a plug-in is valid the moment it registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic import BaseModel

from hermes.config import Component, Named
from hermes.config.registry import Registry

__all__ = ["kinds_in", "reachable", "refresh"]

# root model -> the registries it uses, and the version of each that it was built with
_built: dict[type[BaseModel], list[tuple[Registry[Any], int]]] = {}


def refresh(root: type[BaseModel], names: Iterable[object] | None = ()) -> None:
    """Rebuild `root` and the models in it if any registry they use has changed since.

    Args:
        names: Import first what installed packages offer under these names; None: everything they offer.

    Raises `InputError` where a package that offers one of the names cannot be imported.
    """
    # Only what registers in one of these can bring others in. This is asked for every scenario, so nothing is walked.
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
    """Every value of a key `kind` in plain data: the names of the components that it may be made of."""
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
    """Every model that can stand below `root`, innermost first and `root` last, and every registry in between."""
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
    """The models and component markers anywhere inside a type annotation."""
    yield from (item for item in metadata if isinstance(item, Component | Named))
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model or isinstance(annotation, Component | Named):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)
