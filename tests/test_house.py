"""Sizes of the house are within the budgets of `house.json`, see `budgets.py`.

    python tests/test_house.py     prints what is measured and the budgets
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from budgets import Budget, Numbers, budgets, over
from cpu_seconds import PIECE_S, piece, slower, wrong

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hermes"

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
    lines, loose, longest = Counter[str](), Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        tree, length = ast.parse(text), text.count("\n")
        lines[part_of(path)] += length
        lines["all"] += length
        longest["module"] = max(longest["module"], length)
        loose["hasattr and getattr of a name"] += sum(1 for _ in probes(tree))
        for node in ast.walk(tree):
            loose["Any"] += isinstance(node, ast.Name) and node.id == "Any"
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                longest[kind] = max(longest[kind], (node.end_lineno or 0) - node.lineno + 1)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                longest["parameter list"] = max(longest["parameter list"], parameters(node))
    return {"lines": lines, "longest": longest, "loose types": loose}


def commands(group: Any) -> int:   # Any: a click command
    inner = getattr(group, "commands", None)
    return 1 if inner is None else sum(map(commands, inner.values()))


def of_the_outside() -> dict[str, Numbers]:
    """Measure what users meet: commands, keys, pages, and what a simulation loads."""
    import typer

    from hermes.cli import app

    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    modules, keys = loaded.stdout.split()
    words = Counter[str]()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").parts[0] if page.is_relative_to(ROOT / "docs") else page.name
        number = len(page.read_text(encoding="utf-8").split())
        words[name] += number
        words["all"] += number
    return {"words": words, "outside": {
        "commands": commands(typer.main.get_command(app())), "scenario keys": int(keys),
        "modules loaded by quickstart": int(modules)}}


def measured() -> dict[str, Numbers]:
    return {name: dict(sorted(numbers.items())) for name, numbers in (of_the_code() | of_the_outside()).items()}


def test_sizes_are_within_their_budgets() -> None:
    allowed = budgets()
    found = [line for measure, now in measured().items() for line in over(measure, now, allowed[measure])]
    assert not found, "\n".join(found)


def test_every_budget_names_its_issue() -> None:
    for measure, parts in budgets().items():
        for part, budget in parts.items():
            assert budget["number"] >= 0, (measure, part)
            assert budget["issue"].isalpha(), (measure, part)
            if "::" in part:
                file, *names = part.split("::")
                assert names[0] in (ROOT / file).read_text(encoding="utf-8"), part
                assert "why" in budget, part


def test_seconds_of_a_run_and_of_its_items_are_noticed() -> None:
    most = {part: budget["number"] for part, budget in budgets()["CPU seconds"].items()}
    items = {name: number for name, number in most.items() if "::" in name}
    assert not wrong("make test", most["make test"], items | {"another": most["any item"]})
    for name in (*items, "another"):
        (line,) = wrong("make test", 1, {name: 1 + most.get(name, most["any item"])})
        assert line.startswith(f"CPU seconds of {name}: ")
    for target in ("make test", "make test-all"):
        assert len(wrong(target, most[target] + 1, {})) == 1
        assert not wrong(target, most[target] + 1, {}, tolerance=1.1)
    assert not wrong("make test-all", 1, {"another": 100})


def test_seconds_are_those_of_the_machine_of_the_budgets() -> None:
    assert slower([PIECE_S, 3 * PIECE_S]) == 2
    assert 0 < piece() < 1000 * PIECE_S


def test_growth_and_new_parts_are_noticed() -> None:
    allowed: dict[str, Budget] = {"core": {"number": 10, "issue": "AK"}, "less": {"number": 2, "issue": "AK"}}
    assert over("lines", {"core": 11, "new": 1, "less": 1}, allowed) == [
        "lines of core: 11, the budget of AK is 10", "lines of new: 1, and no issue gave it a budget"]
    assert not over("seconds", {"core": 11.9}, allowed, tolerance=1.2)
    assert over("seconds", {"core": 12.1}, allowed, tolerance=1.2)
    planted = ast.parse("hasattr(x, 'y'); getattr(x, 'y', None); getattr(x, name); x.y")
    assert len(list(probes(planted))) == 2
    (function,) = ast.parse("def f(self, a, /, b, *, c=1): pass").body
    assert isinstance(function, ast.FunctionDef)
    assert parameters(function) == 3


if __name__ == "__main__":
    for measure, numbers in measured().items():
        print(measure, *(f"  {part}: {number:,} of {budgets()[measure].get(part, {}).get('number', 'none')}"
                         for part, number in numbers.items()), sep="\n")
