"""Mutations of a document: of one of its values, or of its text."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

__all__ = ["ELSEWHERE", "HUGE", "NUMBERS_NOT", "OTHERS", "TEXT_MUTATIONS", "TREE_MUTATIONS", "UNITS", "Path_", "at",
           "mistyped", "paths", "spoiled_grid"]

Path_ = tuple[Any, ...]
Tree = dict[str, Any]

ELSEWHERE = "/etc/passwd"
NUMBERS_NOT = [float("nan"), float("inf"), float("-inf"), "nan", "1e999", "--3", "3..5", "0x", "1e"]
HUGE = [10**30, -(10**30), 2**63, 1e300, 10**400, "9" * 400, "1e300 s"]
UNITS = ["3 parsec", "20 GB/ms", "5 ms/s", "12 GiB GiB", "7 mS", "4 /fortnight", "80 Gibit", "1 kg", "3 s s"]
SYNTAX = [b":", b"- ", b"{", b"]", b"\t", b"'", b'"', b"#", b"&a ", b"*a ", b"!", b"\n", b"%", b"|"]
OTHERS: list[Any] = [True, None, "text", "", 3, -1, 1.5, [], {}, [1, 2], {"a": 1}, [[]], "yes", "null", "2024-01-01"]


def paths(tree: Any, prefix: Path_ = ()) -> list[Path_]:
    """Return every place in a tree except its root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in [(*prefix, key), *paths(value, (*prefix, key))]]


def at(tree: Any, path: Path_) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _replaced(tree: Tree, path: Path_, value: Any) -> Tree:
    changed = copy.deepcopy(tree)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def _leaves(tree: Tree, *types: type) -> list[Path_]:
    return [p for p in paths(tree) if isinstance(at(tree, p), types) and not isinstance(at(tree, p), bool)]


def _quantities(tree: Tree) -> list[Path_]:
    texts = [p for p in _leaves(tree, str) if at(tree, p)[:1].isdigit()]
    return texts + _leaves(tree, int, float)


def wrong_type(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    path = rng.choice(paths(tree))
    old = at(tree, path)
    return _replaced(tree, path, rng.choice([o for o in OTHERS if type(o) is not type(old)])), path


def missing(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    path = rng.choice([p for p in paths(tree) if isinstance(p[-1], str)])
    changed = copy.deepcopy(tree)
    del at(changed, path[:-1])[path[-1]]
    return changed, path


def unknown(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    """Mistype a key (so that another may be missing), or add one."""
    path = rng.choice([p for p in paths(tree) if isinstance(p[-1], str)])
    changed = copy.deepcopy(tree)
    parent = at(changed, path[:-1])
    name = mistyped(path[-1], rng)
    parent[name] = parent.pop(path[-1]) if rng.random() < 0.5 else parent[path[-1]]
    return changed, (*path[:-1], name)


def mistyped(word: str, rng: random.Random) -> str:
    i = rng.randrange(len(word))
    return rng.choice([word[:i] + word[i + 1:] + "q", word[:i] + word[i] + word[i:] + "x", word.upper() + "_", "zzz"])


def negative(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    path = rng.choice(_quantities(tree))
    old = at(tree, path)
    return _replaced(tree, path, f"-{old}" if isinstance(old, str) else -(abs(old) or 1)), path


def not_a_number(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    path = rng.choice(_quantities(tree))
    return _replaced(tree, path, rng.choice(NUMBERS_NOT)), path


def huge(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    path = rng.choice(_quantities(tree))
    return _replaced(tree, path, rng.choice(HUGE)), path


def wrong_unit(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    path = rng.choice(_quantities(tree))
    return _replaced(tree, path, rng.choice(UNITS)), path


def wrong_word(tree: Tree, rng: random.Random) -> tuple[Tree, Path_]:
    """Mistype a name (a kind, a profile, a choice), or make it very long."""
    path = rng.choice([p for p in _leaves(tree, str) if not at(tree, p)[:1].isdigit() and at(tree, p)])
    words = [mistyped(at(tree, path), rng), "é" * 300, ELSEWHERE, "a b\tc"]
    return _replaced(tree, path, rng.choice(words)), path


# -- text --------------------------------------------------------------------------------------------------------------


def truncated(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))]


def binary(text: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 3000))


def spliced(text: bytes, rng: random.Random) -> bytes:
    """Insert binary junk in the middle."""
    i = rng.randrange(len(text))
    return text[:i] + rng.randbytes(rng.randrange(1, 20)) + text[i:]


def damaged(text: bytes, rng: random.Random) -> bytes:
    """Insert a character of the syntax."""
    i = rng.randrange(len(text))
    return text[:i] + rng.choice(SYNTAX) + text[i:]


def empty(text: bytes, rng: random.Random) -> bytes:
    return rng.choice([b"", b"\n\n", b"# nothing\n", b"---\n", b"null\n", b"[]\n", b"{}\n", b"3\n"])


def repeated_key(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines()
    starts = [line for line in lines if line[:1].isalpha() and b":" in line] or lines or [b"x"]
    return text + rng.choice(starts) + b"\n"


def cyclic_alias(text: bytes, rng: random.Random) -> bytes:
    return text + rng.choice([b"extra: &x {again: *x}\n", b"extra: &x [1, *x]\n", b"extra: *nowhere\n"])


def alias_bomb(text: bytes, rng: random.Random) -> bytes:
    lines = [b"b0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [b"b%d: &b%d [%s]" % (i, i, b", ".join([b"*b%d" % (i - 1)] * 10)) for i in range(1, 12)]
    return text + b"\n".join(lines) + b"\n"


def deep(text: bytes, rng: random.Random) -> bytes:
    depth = rng.choice([100, 900, 20_000])
    return text + b"extra: " + b"[" * depth + b"]" * depth + b"\n"


def tagged(text: bytes, rng: random.Random) -> bytes:
    return text + rng.choice([
        b"extra: !!python/object/apply:os.system ['true']\n", b"extra: !!binary aGk=\n", b"extra: !own {a: 1}\n",
        b"extra: !!python/name:os.system\n", b"--- !!set {a, b}\n",
    ])


TREE_MUTATIONS: list[Callable[[Tree, random.Random], tuple[Tree, Path_]]] = [
    wrong_type, missing, unknown, negative, not_a_number, huge, wrong_unit, wrong_word,
]
TEXT_MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    truncated, binary, spliced, damaged, empty, repeated_key, cyclic_alias, alias_bomb, deep, tagged,
]


def spoiled_grid(grid: list[list[str]], cells: list[str], rng: random.Random) -> tuple[str, list[list[str]]]:
    """(name of the mutation, the table with one mistake); its first row is the header. Changes `grid`."""
    row, column = rng.randrange(1, len(grid)), rng.randrange(len(grid[0]))
    kind = rng.choice(["cell"] * 6 + ["short_row", "long_row", "header", "no_column", "twice", "order", "no_rows"])
    if kind == "cell":
        grid[row][column] = rng.choice(cells)
    elif kind == "short_row":
        grid[row].pop()
    elif kind == "long_row":
        grid[row].append("1")
    elif kind == "header":
        grid[0][column] = rng.choice([grid[0][column].upper() + "s", "", "extra"])
    elif kind == "no_column":
        grid = [line[:column] + line[column + 1:] for line in grid]
    elif kind == "twice":
        grid = [[*line, line[column]] for line in grid]
    elif kind == "order":
        other = 1 + row % (len(grid) - 1)
        grid[row], grid[other] = grid[other], grid[row]
    else:
        grid = grid[:1]
    return kind, grid
