"""Figures of a point: its summary as a flat row, and KV memory over all clients."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hermes.config.folder_packages import folder_package
from hermes.config.own_code import check_own_code
from hermes.errors import InputError, Verbatim
from hermes.results import Results
from hermes.results.figures.membership import mean_devices
from hermes.results.figures.usage import paid_ns

__all__ = ["Scalar", "extracted", "figures", "flatten", "load_extract"]

Scalar = bool | int | float | str | None
OURS = ("hermes.explore.scale.figures:scale_figures",)
"""Functions of further figures that the package's own searches name: `--no-plugins` need not refuse them."""


def figures(results: Results) -> dict[str, Scalar]:
    """Return the summary with nested keys joined by dots, without single clients; and `kv.*`, `devices`, `end_s`.

    - kv.capacity_tokens: KV capacity of all LLM clients.
    - kv.capacity_per_client_tokens: KV capacity of the smallest of them.
    - kv.peak_share: highest share of one client's blocks in use (None if no client has a bounded memory).
    - devices: devices of all clients; where replicas come and go, the mean of those that are held, from 0 on.
    - end_s: simulated seconds from zero to the end of the run.
    """
    summary = dict(results.summary)
    clients = summary.pop("clients").values()
    requests = dict(summary["requests"])
    reasons = requests.pop("reject_reasons")
    requests["reject_reasons"] = "; ".join(f"{count} x {text}" for text, count in reasons.items()) or None
    infos = results.record.clients
    tokens = [info.num_blocks * info.block_size for info in infos if info.num_blocks]
    peaks = [client["kv_peak_share"] for client in clients if client.get("kv_peak_share") is not None]
    return dict(flatten({
        **summary, "requests": requests,
        "kv": {
            "capacity_tokens": sum(tokens) if tokens else None,
            "capacity_per_client_tokens": min(tokens, default=None), "peak_share": max(peaks, default=None),
        },
        "devices": mean_devices(results.record, *paid_ns(results.record)), "end_s": results.record.end_ns / 1e9,
    }))


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yield dotted key and plain value of every leaf; lists and empty mappings are left out."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> Scalar:
    """Convert a numpy scalar to Python's, and NaN to None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and math.isnan(value) else value


def load_extract(name: str, folder: Path) -> Callable[[Results], Mapping[str, Any]]:
    """Load the function `module:function`.

    A module in `folder` takes precedence. It is read anew each time, unless a study has imported it, since other sweeps
    may have a module of the same name. Raises `InputError` if there is no such function.
    """
    if name not in OURS:
        check_own_code(f"the sweep runs {name}", field="extract")
    module, _, attribute = name.partition(":")
    file = folder.resolve().joinpath(*module.split(".")).with_suffix(".py")
    beside = file.is_file() and module.split(".")[0] != "hermes"   # `hermes` always means this package
    place = str(folder.resolve())
    added = place not in sys.path   # otherwise removing it would remove the entry that was there before
    if added:
        sys.path.append(place)   # for its imports
    try:
        found = getattr(_beside(file) if beside else importlib.import_module(module), attribute)
    except Exception as error:   # a module may raise any exception
        expected = f"module:function, importable here or beside the sweep ({type(error).__name__}: {error})"
        raise InputError(expected, name, field="extract") from None
    finally:
        if added:
            sys.path.remove(place)
    if not callable(found):
        raise InputError("module:function", name, field="extract")
    return found  # type: ignore[no-any-return]


def _beside(file: Path) -> ModuleType:
    name = f"{folder_package(file.parent)}.{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)   # classes look up their module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def extracted(function: Callable[[Results], Mapping[str, Any]], results: Results, taken: set[str]) -> dict[str, Scalar]:
    """Return the figures of a sweep's own function. Raises `InputError` unless they are a flat dict of new, plain
    figures."""
    said = function(results)
    if not isinstance(said, Mapping):
        raise InputError("a dict of figures", Verbatim(type(said).__name__), field="extract")
    out: dict[str, Scalar] = {}
    for key, value in said.items():
        figure = plain(value)
        if not isinstance(figure, bool | int | float | str | None):
            raise InputError("numbers, text, true, false or None", figure, field=f"extract.{key}")
        if str(key) in taken:
            raise InputError("a name that no other column has", str(key), field="extract")
        out[str(key)] = figure
    return out
