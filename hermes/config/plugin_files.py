"""Plug-ins in Python files: `plugins: [FILE.py]` in a scenario imports the file, which registers its components."""

from __future__ import annotations

import hashlib
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from hermes.config.files import read_bytes
from hermes.config.own_code import check_own_code
from hermes.errors import InputError, Verbatim

__all__ = ["import_plugin"]


def import_plugin(path: Path) -> None:
    """Import a file that registers components, once per process, and again when the file has changed.

    The folder of the file is searched for its imports, too. Raises `InputError`, with the line of the file if known, if
    the file cannot be read or its import fails.
    """
    check_own_code("reading the scenario runs this plug-in", file=str(path))
    source = read_bytes(path, what="a Python file")
    place = path.resolve()
    name = f"hermes_plugin_{place.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    digest = hashlib.sha256(source).hexdigest()
    known = sys.modules.get(name)
    if known is not None and known.__dict__.get("__hermes_source__") == digest:
        return
    spec = spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InputError("a Python file (its name ends in .py)", path.name, file=str(path))
    module = module_from_spec(spec)
    module.__dict__["__hermes_source__"] = digest
    sys.modules[name] = module   # classes look up their module while they are created
    beside = str(place.parent)
    added = beside not in sys.path
    if added:
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:   # a user's file may raise any of them
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        raise InputError("a plug-in that can be imported", Verbatim(f"{type(error).__name__}: {error}"),
                         file=str(path), line=line) from None
    finally:
        if added:
            sys.path.remove(beside)
