"""Hardware models that simulations of one process share: a search builds the same ones for each, and fills the same
tables of step times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from hermes.config.data_files import files_noted, note_file, resource_dir

__all__ = ["Models", "kept", "models_kept"]

Models = dict[Hashable, tuple[Any, list[Path]]]   # what it is built of -> the model, and the files that it read
MOST = 64
T = TypeVar("T")
_MODELS: ContextVar[Models | None] = ContextVar("models kept", default=None)


@contextmanager
def models_kept(models: Models) -> Iterator[None]:
    """Keep the models that are built within the block, and take those that `models`, or an outer block, has."""
    outer = _MODELS.get()
    token = _MODELS.set(models if outer is None else outer)
    try:
        yield
    finally:
        _MODELS.reset(token)


def kept(key: Hashable, build: Callable[[], T]) -> T:
    """Return what `build` returns, which must be a function of `key` and files alone, and is not changed afterwards.

    It is kept within `models_kept`, unless it read a file that does not ship: that may change.
    """
    models = _MODELS.get()
    if models is None:
        return build()
    if key not in models:
        with files_noted() as read:
            model = build()
        shipped = resource_dir("hw_profiles")
        for path in read:
            note_file(path)
        if not all(path.is_relative_to(shipped) for path in read):
            return model
        if len(models) >= MOST:
            models.clear()
        models[key] = model, list(read)
        return model
    found, files = models[key]
    for path in files:
        note_file(path)
    return found   # type: ignore[no-any-return]
