"""hermes: a discrete-event simulator for multi-stage LLM serving."""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes.api import open_run, simulate
    from hermes.explore import open_sweep, run_sweep

__all__ = ["__version__", "open_run", "open_sweep", "run_sweep", "simulate"]

__version__ = "0.1.0"

_API, _SWEEP = ("open_run", "simulate"), ("open_sweep", "run_sweep")


def __getattr__(name: str) -> Any:
    """Import `hermes.simulate` and the like on first use, since they need most of the package."""
    if name not in (*_API, *_SWEEP):
        raise AttributeError(f"module 'hermes' has no attribute {name!r}")
    enabled = gc.isenabled()
    gc.disable()   # imports make half a million objects, none of them garbage
    try:
        return getattr(import_module("hermes.api" if name in _API else "hermes.explore"), name)
    finally:
        if enabled:
            gc.enable()


def __dir__() -> list[str]:
    """List the public names for completion in a notebook; they are not in the module before their first use."""
    return sorted({*globals(), *__all__})
