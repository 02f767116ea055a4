"""Finding description files (profiles, models, devices): a name or a path from a scenario becomes a file.

YAML is read by `hermes.yamlfile` and checked by `hermes.validation`. Nothing here knows what the files mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hermes.errors import InputError, suggest
from hermes.resources import resource_dir
from hermes.yamlfile import read_text

__all__ = ["ALIASES", "find", "names_in", "read_json"]

ALIASES = {"devices": {"h100": "h100-sxm"}}
"""Other names of shipped files, by folder: what a device is called where there is only one that it can be."""


def names_in(folder: str) -> list[str]:
    """Names of the YAML files that ship in `hw_profiles/<folder>` ("" for `hw_profiles` itself), sorted."""
    return sorted(path.stem for path in (resource_dir("hw_profiles") / folder).glob("*.yaml"))


def find(name_or_path: str | Path, base_dir: Path | None, folder: str, what: str) -> Path:
    """The file meant by a name (`hw_profiles/<folder>/<name>.yaml`) or a path relative to `base_dir`.

    Something with a separator or a file suffix of ours is a path, everything else a name. `what` is how the message
    calls it ("a hardware profile"). Raises `InputError` for a name that does not exist and a path that is no file.
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
        except OSError:  # a name too long, or a folder we may not enter: reported like a missing file
            pass
        raise InputError(f"{what}: an existing file", text)
    names = names_in(folder)
    text = ALIASES.get(folder, {}).get(text, text)
    if text not in names:
        raise InputError(f"{what}: one of {', '.join(names)}, or a path", text, suggestion=suggest(text, names))
    return resource_dir("hw_profiles") / folder / f"{text}.yaml"


def read_json(path: Path) -> Any:
    """The content of a JSON file; `InputError` with line and column when it cannot be parsed."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"valid JSON ({error.msg})", file=str(path), line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"valid JSON ({type(error).__name__})", file=str(path)) from None
