"""Find description files (profiles, models, devices) by the name or path that a scenario gives.

`hermes.config.yaml_document` reads YAML, and `hermes.config.validation` checks it. This module does not depend on the
content of the files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hermes.config.data_files import resource_dir
from hermes.config.yaml_document import read_text
from hermes.errors import InputError, Verbatim, suggest

__all__ = ["ALIASES", "find", "names_in", "read_json"]

ALIASES = {"devices": {"h100": "h100-sxm"}}
"""Other names of shipped files, by folder: short names of devices that are unambiguous."""

# Profiles measured on an engine of 2023 (the data of splitwise-sim), under names without the year.
_OF_2023 = re.compile(r"(splitwise-)?((?:llama-2-70b|bloom-176b)-(?:a100|h100)-tp[248])\Z")


def names_in(folder: str) -> list[str]:
    """Return the sorted names of the YAML files in `hw_profiles/<folder>` ("" for `hw_profiles` itself)."""
    return sorted(path.stem for path in (resource_dir("hw_profiles") / folder).glob("*.yaml"))


def find(name_or_path: str | Path, base_dir: Path | None, folder: str, what: str) -> Path:
    """Return the file of a name (`hw_profiles/<folder>/<name>.yaml`) or of a path relative to `base_dir`.

    A text with a separator or a known file suffix is a path, any other a name. `what` is the kind of file in messages
    ("a hardware profile"). Raises `InputError` for an unknown name and for a path that is not a file.
    """
    text = str(name_or_path)
    if "\0" in text:
        raise InputError(f"{what}: a name or a path", text)
    if isinstance(name_or_path, Path) or "/" in text or "\\" in text or text.endswith((".yaml", ".yml", ".json")):
        path = (base_dir or Path()) / text
        try:
            if path.is_dir() and (path / "config.json").is_file():
                path /= "config.json"
            if path.is_file():
                return path
        except OSError:  # a name too long, or a folder without permission: reported like a missing file
            pass
        raise InputError(f"{what}: an existing file", text)
    names = names_in(folder)
    text = ALIASES.get(folder, {}).get(text, text)
    if text not in names:
        old = _OF_2023.match(text)
        if old is not None and f"splitwise-2023-{old[2]}" in names:
            raise InputError(
                f"{what}: splitwise-2023-{old[2]} is its name now, as it was measured on an engine of 2023 (2 to 5 "
                "times slower than today's; `hermes profile list` shows profiles of current engines)", text,
            )
        raise InputError(f"{what}: one of {', '.join(names)}, or a path", text, suggestion=suggest(text, names))
    return resource_dir("hw_profiles") / folder / f"{text}.yaml"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; `InputError` with line and column if it cannot be parsed."""
    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=_once)
    except _TwiceError as error:
        line, field = _second(text)
        raise InputError("each key once", Verbatim(f"{error.args[0]!r} again"), file=str(path), line=line,
                         field=field) from None
    except json.JSONDecodeError as error:
        raise InputError(f"valid JSON ({error.msg})", file=str(path), line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"valid JSON ({type(error).__name__})", file=str(path)) from None


class _TwiceError(Exception):
    """A repeated key of an object."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for index, key in enumerate(keys) if key in keys[:index]))
    return out


_TOKEN = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|[{}\[\],]')


def _second(text: str) -> tuple[int | None, str | None]:
    """Return line and path of the first repeated key in valid JSON."""
    inside: list[tuple[str, set[str]]] = []   # of each open object or list: its own key, and the keys inside so far
    key = ""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if token["text"] is None:
            if mark in "{[":
                inside.append((key, set()))
            elif mark in "}]":
                inside.pop()
            key = ""
        elif token["key"] is not None:
            key, keys = json.loads(token["text"]), inside[-1][1]
            if key in keys:
                path = [name for name, _ in inside if name]
                return text.count("\n", 0, token.start()) + 1, ".".join([*path, key])
            keys.add(key)
    return None, None
