"""Ratchets of the house: sizes that may fall, and rise only in a commit that says why.

    python tests/test_house.py     measures the tree and writes tests/house.json

`house.json` has, for each measure, a number for each part. A part that grew beyond its number fails here; write the
file anew and say why in the body of the commit. A part that shrank passes: write the file anew to keep the gain.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hermes"
COMMITTED = ROOT / "tests" / "house.json"
Numbers = dict[str, int]

LOADED = """
import sys
import hermes
hermes.simulate("quickstart", overrides=["workload.requests=5"])
print(sum(name.partition(".")[0] == "hermes" for name in sys.modules))
from hermes.scenario.editor_schema import json_schema
print(sum(len(definition.get("properties", ())) for definition in json_schema()["$defs"].values()))
"""
"""Prints in a process of its own, without other tests' plug-ins: modules loaded by a simulation, keys of a scenario."""


def part_of(path: Path) -> str:
    """Return the folder of the package that a module is in, or its own name."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def probes(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of hasattr and getattr that name an attribute."""
    for node in ast.walk(tree):
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")
                and len(node.args) > 1 and isinstance(node.args[1], ast.Constant)):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a function has, without self and cls."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def of_the_code() -> dict[str, Numbers]:
    """Measure the modules of the package."""
    lines, anys, asked, longest = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        text, part = path.read_text(encoding="utf-8"), part_of(path)
        tree = ast.parse(text)
        lines[part] += text.count("\n")
        anys[part] += sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
        asked[part] += sum(1 for _ in probes(tree))
        longest["module"] = max(longest["module"], text.count("\n"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                longest["function"] = max(longest["function"], (node.end_lineno or 0) - node.lineno + 1)
                longest["parameter list"] = max(longest["parameter list"], parameters(node))
    return {"lines": lines, "Any": +anys, "hasattr and getattr of a name": +asked, "longest": longest}


def commands(group: Any) -> int:   # Any: a click command
    inner = getattr(group, "commands", None)
    return 1 if inner is None else sum(map(commands, inner.values()))


def of_the_outside() -> dict[str, Numbers]:
    """Measure what users meet: commands, keys, pages, and what a simulation loads."""
    import typer

    from hermes.cli import app

    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    modules, keys = loaded.stdout.split()
    words = {folder.name: sum(len(page.read_text(encoding="utf-8").split()) for page in folder.rglob("*.md"))
             for folder in (ROOT / "docs").iterdir() if folder.is_dir()}
    words |= {page.name: len(page.read_text(encoding="utf-8").split())
              for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    return {"words": words, "outside": {
        "commands": commands(typer.main.get_command(app())), "scenario keys": int(keys),
        "modules loaded by quickstart": int(modules)}}


def measured() -> dict[str, Numbers]:
    return {name: dict(sorted(numbers.items())) for name, numbers in (of_the_code() | of_the_outside()).items()}


def grown(now: dict[str, Numbers], committed: dict[str, Numbers]) -> list[str]:
    """Return what is larger than committed, or not there, one line each."""
    return [f"{measure} of {part}: {number}, {committed.get(measure, {}).get(part, 0)} are committed"
            for measure, numbers in now.items() for part, number in numbers.items()
            if number > committed.get(measure, {}).get(part, 0)]


def test_nothing_grows_without_a_word() -> None:
    wrong = grown(measured(), json.loads(COMMITTED.read_text()))
    assert not wrong, "\n".join([*wrong, "run `python tests/test_house.py`, and say why in the commit's body"])


def test_growth_and_new_parts_are_noticed() -> None:
    assert grown({"lines": {"core": 11, "new": 1, "less": 1}}, {"lines": {"core": 10, "less": 2}}) == [
        "lines of core: 11, 10 are committed", "lines of new: 1, 0 are committed"]
    planted = ast.parse("hasattr(x, 'y'); getattr(x, 'y', None); getattr(x, name); x.y")
    assert len(list(probes(planted))) == 2
    (function,) = ast.parse("def f(self, a, /, b, *, c=1): pass").body
    assert isinstance(function, ast.FunctionDef)
    assert parameters(function) == 3


if __name__ == "__main__":
    COMMITTED.write_text(json.dumps(measured(), indent=1) + "\n")
    print(COMMITTED.relative_to(ROOT))
