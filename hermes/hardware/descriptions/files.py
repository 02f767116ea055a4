"""Find description files (profiles, models, devices) by the name or path that a scenario gives.

`hermes.config.yaml_document` reads YAML, and `hermes.config.validation` checks it. Contents do not matter here.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from hermes.config.data_files import resource_dir
from hermes.config.files import read_json
from hermes.errors import InputError, suggest

__all__ = ["find", "is_name", "names_in", "read_json", "shipped_name"]

# Profiles measured on an engine of 2023 (the data of splitwise-sim), under names without the year.
_OF_2023 = re.compile(r"(splitwise-)?((?:llama-2-70b|bloom-176b)-(?:a100|h100)-tp[248])\Z")


def names_in(folder: str) -> list[str]:
    """Return the sorted names of the YAML files in `hw_profiles/<folder>` ("" for `hw_profiles` itself)."""
    return list(_names_in(folder))


@cache   # files that ship are read once: a client asks for its model and device ninety times
def _names_in(folder: str) -> tuple[str, ...]:
    try:
        files = os.listdir(resource_dir("hw_profiles") / folder)
    except FileNotFoundError:
        return ()
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def shipped_name(folder: str, text: str) -> str | None:
    """Return the name of the file of `hw_profiles/<folder>` that a text stands for, None if there is none."""
    names = names_in(folder)
    if text in names:
        return text
    from hermes.hardware.descriptions.names import meant

    return meant(folder, text, names)


def _at_hub(text: str, base_dir: Path | None, folder: str) -> str | None:
    """Return the shipped name of a model at Hugging Face (OWNER/NAME); the text itself if none ships; None for a path.

    A text whose first part is an existing folder is a path.
    """
    from hermes.hardware.descriptions.names import at_hub

    if folder != "models" or not at_hub(text) or ((base_dir or Path()) / text.split("/")[0]).exists():
        return None
    return shipped_name(folder, text) or text


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml", ".json"))


def is_name(text: str, base_dir: Path | None, folder: str) -> bool:
    """Return whether `find` takes a text for a name: of a shipped file, or (models) at Hugging Face."""
    return "\0" not in text and (not _is_path(text) or _at_hub(text, base_dir, folder) is not None)


def find(name_or_path: str | Path, base_dir: Path | None, folder: str, what: str) -> Path:
    """Return the file of a name (`hw_profiles/<folder>/<name>.yaml`) or of a path relative to `base_dir`.

    A text with a separator or a known file suffix is a path, any other a name. `what` is the kind of file in messages
    ("a hardware profile"). Raises `InputError` for an unknown name and for a path that is not a file.
    """
    text = str(name_or_path)
    if "\0" in text:
        raise InputError(f"{what}: a name or a path", text)
    if isinstance(name_or_path, Path) or _is_path(text):
        path = (base_dir or Path()) / text
        try:
            if path.is_dir() and (path / "config.json").is_file():
                path /= "config.json"
            if path.is_file():
                return path
        except OSError:  # a name too long, or a folder without permission: reported like a missing file
            pass
        name = None if isinstance(name_or_path, Path) else _at_hub(text, base_dir, folder)
        if name is None:
            raise InputError(f"{what}: an existing file", text)
        text = name
    names = names_in(folder)
    if text not in names:
        text = shipped_name(folder, text) or text
    if text not in names:
        old = _OF_2023.match(text)
        if old is not None and f"splitwise-2023-{old[2]}" in names:
            raise InputError(
                f"{what}: splitwise-2023-{old[2]} is its name now, as it was measured on an engine of 2023 (2 to 5 "
                "times slower than today's; `hermes profile list` shows profiles of current engines)", text,
            )
        if folder in ("devices", "models"):
            from hermes.hardware.descriptions.names import unknown

            raise unknown(folder, text, names)
        raise InputError(f"{what}: one of {', '.join(names)}, or a path", text, suggestion=suggest(text, names))
    return _file(folder, text)


@cache   # an equal path each time would be slower to make, and to look up
def _file(folder: str, name: str) -> Path:
    return resource_dir("hw_profiles") / folder / f"{name}.yaml"
