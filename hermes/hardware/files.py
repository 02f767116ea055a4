"""Reading description files (profiles, models, devices) so that every mistake in them is one `InputError`.

`find` turns a name or a path from a scenario into a file, `read_yaml` and `read_json` parse it, `validate` checks it
against a pydantic model. Nothing here knows what the files mean.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hermes.errors import InputError, suggest
from hermes.resources import resource_dir

__all__ = ["find", "names_in", "read_json", "read_yaml", "validate"]

Model = TypeVar("Model", bound=BaseModel)
MAX_FILE_BYTES = 64 * 2**20  # far above any profile; a wrong path to a trace or a disk image is refused before reading


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
    if text not in names:
        raise InputError(f"{what}: one of {', '.join(names)}, or a path", text, suggestion=suggest(text, names))
    return resource_dir("hw_profiles") / folder / f"{text}.yaml"


class _Loader(yaml.SafeLoader):
    """Safe YAML without duplicate keys (the last would win silently) and without aliases (exponential expansion)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "expected plain values, found an alias", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "expected a plain key, found a list or mapping"
            elif key.value in seen:
                problem = f"expected each key once, found {key.value!r} twice"
            else:
                seen.add(key.value)
                continue
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"at most {MAX_FILE_BYTES} bytes", path.stat().st_size, file=str(path))
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError("UTF-8 text", error.object[:16], file=str(path)) from None
    except OSError as error:
        raise InputError("a readable file", error.strerror, file=str(path)) from None


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; `InputError` with line and column when it cannot be parsed."""
    text = _text(path)
    try:
        return yaml.load(text, Loader=_Loader)  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise InputError(f"valid YAML ({error.problem})", file=str(path), line=line, column=column) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ReaderError (control characters), impossible dates and numbers, and nesting deeper than the parser's stack
        problem = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"valid YAML ({problem})", file=str(path)) from None


def read_json(path: Path) -> Any:
    """The content of a JSON file; `InputError` with line and column when it cannot be parsed."""
    text = _text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"valid JSON ({error.msg})", file=str(path), line=error.lineno, column=error.colno
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"valid JSON ({type(error).__name__})", file=str(path)) from None


def _field_names(schema: Any) -> set[str]:
    """All property names in a JSON schema, as candidates for a mistyped key."""
    if isinstance(schema, list):
        return set().union(*map(_field_names, schema))
    if not isinstance(schema, dict):
        return set()
    own = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return own.union(*map(_field_names, schema.values()))


def validate(model: type[Model], data: Any, file: Path | str) -> Model:
    """`data` as a `model`; the first problem as an `InputError` that names file, field and the value found."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause.located(file=str(file), field=field) from None
        if first["type"] == "missing":
            raise InputError("this field", file=str(file), field=field) from None
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            raise InputError(
                "no such field", key, file=str(file), field=field,
                suggestion=suggest(key, _field_names(model.model_json_schema())),
            ) from None
        expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        raise InputError(expected, first["input"], file=str(file), field=field) from None
