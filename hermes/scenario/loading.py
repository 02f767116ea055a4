"""Load a scenario's document: find the file, merge what it extends, apply `--set`, keep positions for messages.

`extends: other.yaml` puts a file's content over another's: mappings merge key by key, other values are replaced. A
mapping whose `kind` differs replaces the other one as a whole, since the keys of one kind have no meaning in another.

A scenario's paths are relative to its file. Paths from elsewhere (an extended file in another folder, the command line)
are rewritten so that this holds for the merged document.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes.config.data_files import resource_dir
from hermes.config.files import DATA_SUFFIXES, relative_name
from hermes.config.yaml_document import Mark, Node, as_node, is_index, load_yaml, parse_yaml
from hermes.errors import InputError, Verbatim, suggest

__all__ = [
    "MAX_EXTENDS", "apply_override", "builtin_scenarios", "builtin_sweeps", "discreet", "extended", "find_scenario",
    "load_document", "merge", "moved", "moved_path", "overridden", "set_value",
]

MAX_EXTENDS = 20
SUFFIXES = (".yaml", ".yml")


def builtin_scenarios() -> dict[str, Path]:
    """Return the scenarios that ship with hermes: their path below the folder, without suffix -> file.

    Files called `...-base` only serve to be extended, and are left out, as are sweeps.
    """
    return {name: path for name, path in _shipped().items() if not _is_sweep(name)}


def builtin_sweeps() -> dict[str, Path]:
    """Return the sweeps that ship with hermes, by name as above: files in a folder `sweeps`, or called `...sweep`."""
    return {name: path for name, path in _shipped().items() if _is_sweep(name)}


def _is_sweep(name: str) -> bool:
    *folders, stem = name.split("/")
    return "sweeps" in folders or stem == "sweep" or stem.endswith("-sweep")


def _shipped() -> dict[str, Path]:
    root = resource_dir("scenarios")
    files = sorted(p for p in root.rglob("*") if p.suffix in SUFFIXES and not p.stem.endswith("-base"))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in files}


def find_scenario(source: str | Path) -> Path:
    """Return the scenario file of a path or a built-in name. `InputError` if neither exists."""
    path = Path(source)
    builtin = builtin_scenarios()
    looks_like_file = isinstance(source, Path) or path.suffix in SUFFIXES
    if str(source) in builtin and (not path.is_file() or not looks_like_file):
        return builtin[str(source)]
    if str(source) == "-":
        raise InputError(Verbatim("a scenario is read from a file, not from standard input: save it and give the name "
                                  "of the file"))
    if path.is_dir():
        raise InputError(Verbatim(_folder_text(path)), file=str(source))
    if str(source) in builtin_sweeps() and not path.is_file():
        raise InputError(Verbatim(_sweep_text(source)))
    if not looks_like_file and not path.exists():
        expected = "a scenario file or the name of a built-in scenario (`hermes scenarios` lists them)"
        raise InputError(expected, str(source), suggestion=suggest(source, builtin))
    return path


def _folder_text(path: Path) -> str:
    """Return what to type for a folder in place of a scenario."""
    if (path / "sweep.sqlite").is_file():
        return f"the folder of a sweep; `hermes sweep {path}` prints its table"
    if (path / "scenario.resolved.yaml").is_file():
        return f"the folder of a run; name its scenario, {path / 'scenario.resolved.yaml'}"
    return "a folder; name the file of a scenario"


def _sweep_text(source: str | Path) -> str:
    return f"{source} is a sweep; `hermes sweep {source} -o DIR` runs it"


def load_document(source: str | Path) -> Node:
    """Load a scenario file with the files it extends merged in, not validated yet."""
    path = find_scenario(source)
    node = load_yaml(path)
    if isinstance(node.value, dict) and "scenario" in node.value and "workload" not in node.value:
        raise node.mark.error(Verbatim(_sweep_text(source)))
    return _extended(node, path, [])


def _load(path: Path, chain: list[Path]) -> Node:
    return _extended(load_yaml(path), path, chain)


def extended(node: Node, path: Path) -> Node:
    """Return a scenario inside the file `path` with the files it extends (relative to that file) merged in."""
    return _extended(node, path, [])


def _extended(node: Node, path: Path, chain: list[Path]) -> Node:
    node = _mapping(node)
    base = node.value.pop("extends", None)
    if base is None:
        return node
    if not isinstance(base.value, str):
        raise base.mark.error("the path of another scenario", base.plain(), field="extends")
    chain = [*chain, path.resolve()]
    other = _base_path(path, base)
    if other.resolve() in chain:
        raise base.mark.error(Verbatim(f"{base.value!r} extends this file in turn; break the circle"), field="extends")
    if len(chain) > MAX_EXTENDS:
        problem = f"more than {MAX_EXTENDS} scenarios extend one another; merge some of them"
        raise base.mark.error(Verbatim(problem), field="extends")
    if other.suffix not in SUFFIXES:
        raise base.mark.error("the path of another scenario (.yaml or .yml)", base.value, field="extends")
    try:
        below = _load(other, chain)
    except InputError as error:
        raise discreet(error, path) from None
    if other.parent.resolve() != path.parent.resolve():
        below = moved(below, other.parent, path.parent)
    return merge(below, node)


def discreet(error: InputError, path: Path) -> InputError:
    """The error about a file that a scenario extends, without what a foreign one holds: a file neither below the
    scenario's folder or the current one, nor shipped. A scenario from outside may name any file of this machine.
    """
    if error.file is None:
        return error
    file, folders = Path(error.file).resolve(), (path.resolve().parent, Path.cwd(), resource_dir("scenarios").resolve())
    if any(file.is_relative_to(folder) for folder in folders):
        return error
    return InputError(Verbatim("not what a scenario may hold, in a file that `extends` names; validate that file "
                               "itself to see what is wrong"), file=error.file, line=error.line)


def moved_path(text: str, old: Path, new: Path) -> str:
    """Return a path relative to folder `new` that was relative to `old`; anything but an existing file stays."""
    if not text.endswith(DATA_SUFFIXES) or os.path.isabs(text) or "\0" in text or not (old / text).is_file():
        return text
    return relative_name(old / text, new)


def moved(node: Node, old: Path, new: Path) -> Node:
    """Return a document of folder `old` as one of folder `new`: paths of files are relative to it."""
    value = node.value
    if isinstance(value, dict):
        value = {key: moved(item, old, new) for key, item in value.items()}
    elif isinstance(value, list):
        value = [moved(item, old, new) for item in value]
    elif isinstance(value, str):
        value = moved_path(value, old, new)
    return replace(node, value=value)


def _base_path(path: Path, base: Node) -> Path:
    other: Path = path.parent / base.value
    if other.is_file():
        return other
    builtin = builtin_scenarios()
    if base.value in builtin:
        return builtin[base.value]
    near = [file.name for file in path.parent.glob("*") if file.suffix in SUFFIXES]
    expected = "the path of another scenario, relative to this one"
    raise base.mark.error(expected, base.value, field="extends", suggestion=suggest(base.value, [*near, *builtin]))


def _mapping(node: Node) -> Node:
    if not isinstance(node.value, dict):
        found = Verbatim("nothing" if node.value is None else "a list" if isinstance(node.value, list) else "a value")
        raise node.mark.error("a mapping with the keys of a scenario", found)
    return node


def merge(base: Node, over: Node) -> Node:
    """Merge `over` on top of `base`; every value keeps its position."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict) or _kind(base) != _kind(over, _kind(base)):
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return replace(over, value=merged)


def _kind(node: Node, default: object = None) -> object:
    kind = node.child("kind")
    return kind.value if kind is not None else default


def apply_override(root: Node, override: str, base_dir: Path | None = None) -> Node:
    """Set `a.b=c` (or `clients.0.count=4`) in a document; the value is read as YAML. Missing mappings are created.
    `a.b+=c` appends to a list, which is created if it is missing.

    Paths of files that exist below the current folder are made relative to `base_dir`.
    """
    name, equals, text = override.partition("=")
    appends = name.endswith("+")
    name = name.removesuffix("+")
    mark = Mark(f"--set {override}" if len(override) <= 60 else f"--set {override[:57]}...")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise mark.error("KEY.KEY=VALUE", override)
    try:
        value = parse_yaml(text)
    except InputError as error:
        raise mark.error(error.expected, error.found, field=name.strip()) from None
    if base_dir is not None and base_dir.resolve() != Path.cwd():
        value = moved(value, Path(), base_dir)
    value = _at(value, mark)
    if appends:
        there: Node | None = root
        for key in keys:
            there = None if there is None else there.child(int(key) if is_index(key) else key)
        if there is not None and not isinstance(there.value, list):
            raise mark.error("a list to append to", there.plain(), field=name.strip())
        value = Node([*(there.value if there is not None else ()), value], mark, mark)
    return _set(root, keys, value, mark, [])


def overridden(root: Node, overrides: Iterable[str] | Mapping[str, Any], base_dir: Path) -> Node:
    """Apply settings in order: texts such as `a.b=c` (`apply_override`), or a mapping of dotted paths to values.

    Paths of files in either are relative to the current folder, and become relative to `base_dir`.
    """
    if isinstance(overrides, Mapping):
        for path, value in overrides.items():
            mark = Mark(f"overrides[{path!r}]")
            root = set_value(root, path, _at(as_node(value), mark), Path(), base_dir)
        return root
    for override in overrides:
        root = apply_override(root, override, base_dir)
    return root


def set_value(root: Node, path: str, value: Node, from_dir: Path, base_dir: Path) -> Node:
    """Like `apply_override`, for a value from a file of the folder `from_dir`, which keeps its position."""
    keys = path.split(".")
    mark = value.key or value.mark
    if not all(keys):
        raise mark.error("KEY.KEY", path)
    if from_dir.resolve() != base_dir.resolve():
        value = moved(value, from_dir, base_dir)
    return _set(root, keys, value, mark, [])


def _at(node: Node, mark: Mark) -> Node:
    """Give all parts of a value from the command line the option as their position."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _at(item, mark) for key, item in value.items()}
    elif isinstance(value, list):
        value = [_at(item, mark) for item in value]
    return Node(value, mark, mark)


def _set(node: Node, keys: list[str], value: Node, mark: Mark, done: list[str]) -> Node:
    if not keys:
        return value
    key, rest, path = keys[0], keys[1:], [*done, keys[0]]
    if isinstance(node.value, list):
        size = len(node.value)
        if done == ["workload"] and size == 1 and not is_index(key):   # a resolved scenario lists its only workload
            return replace(node, value=[_set(node.value[0], keys, value, mark, [*done, "0"])])
        if not is_index(key) or int(key) > size:
            raise mark.error(f"a list index from 0 to {size} ({size} appends)", key, field=".".join(path))
        index = int(key)
        inner = node.value[index] if index < size else Node({}, mark, mark)
        items = [*node.value[:index], _set(inner, rest, value, mark, path), *node.value[index + 1:]]
        return replace(node, value=items)
    if node.value is None:
        node = Node({}, mark, mark)
    if not isinstance(node.value, dict):
        raise mark.error("a mapping or a list to set it in", node.plain(), field=".".join(path))
    inner = node.value.get(key, Node({}, mark, mark))
    changed = _set(inner, rest, value, mark, path)
    return replace(node, value={**node.value, key: replace(changed, key=inner.key or mark)})
