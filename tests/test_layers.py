"""Imports between folders, as docs/architecture.md allows them under "Folders"."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from each import each

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hermes"
BASE = {"arrays", "compiled", "errors", "locks", "site", "sums", "units"}
EVERYWHERE = BASE | {"__version__"}
BELOW = {"calibration", "plugins"}
"""What nothing above the line imports."""
FACE = {"__init__", "__main__", "cli"}
"""The command line imports what a command needs when it runs."""

ROOMS = {
    "results": ("figures", "files", "compare", "charts"),
    "explore": ("sweep", "capacity", "size", "scale", "optimize", "availability"),
    "hardware": ("descriptions", "fitted", "composed"),
}
"""Folders in a folder: when imported, each may import those before it."""

OTHER_TESTS = {"compiled", "docs", "data", "evidence", "frozen", "golden"}
"""Folders of tests/ that are no folder of hermes/: the compiled build, pages, files that tests read, `evidence/`."""


def allowed() -> dict[str, set[str]]:
    """Folder or module -> what it may import, from the table."""
    section = (ROOT / "docs" / "architecture.md").read_text().split("\n## Folders", 1)[1].split("\n## ", 1)[0]
    rows = [line.split(maxsplit=1) for line in section.splitlines() if line.startswith("    ")]
    return {name: set(re.findall(r"[a-z_]+", others)) for name, others in rows}


def extension_modules() -> dict[str, set[str]]:
    """Module -> the names that plug-ins may import of it, from the table of docs/reference/extension-modules.md."""
    rows = re.findall(r"^\| `(hermes[\w.]*)` \| [^|]* \| ([^|]*) \|$",
                      (ROOT / "docs" / "reference" / "extension-modules.md").read_text(), flags=re.M)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


def beside_the_api(source: str) -> list[str]:
    """What a plug-in of the package imports besides other plug-ins and what the table lists."""
    table, found = extension_modules(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"line {node.lineno}: import {a.name}" for a in node.names if a.name.split(".")[0] == "hermes"]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] == "hermes" and not module.startswith("hermes.plugins"):
                found += [f"line {node.lineno}: from {module} import {a.name}" for a in node.names
                          if a.name not in table.get(module, ())]
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(source: str, inside: str = "") -> Iterator[tuple[int, str, bool]]:
    """(line, folder or module of hermes, whether it is imported when the module is) of every import; `inside` a folder:
    its rooms or modules."""
    package = f"hermes.{inside}".rstrip(".")
    tree = ast.parse(source)
    later = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
             or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    inner = {id(node) for part in later for node in ast.walk(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            module = node.module or ""
            names = [f"{package}.{alias.name}" for alias in node.names] if module == package else [module]
        else:
            continue
        for name in names:
            if name.startswith(f"{package}."):
                yield node.lineno, name[len(package) + 1:].split(".")[0], id(node) not in inner


def rooms_at_once(path: Path, source: str) -> list[str]:
    """What a module of a room imports, when it is imported, of rooms that come later in `ROOMS`."""
    folder, *inside = path.relative_to(PACKAGE).with_suffix("").parts
    rooms = ROOMS.get(folder, ())
    if not inside or inside[0] not in rooms:
        return []
    later = rooms[rooms.index(inside[0]) + 1:]
    return [f"line {line}: {room}" for line, room, at_once in imports(source, folder) if at_once and room in later]


def violations(part: str, source: str) -> list[str]:
    """What a module of `part` imports and may not."""
    table = allowed()
    found = []
    for line, name, at_once in imports(source):
        if name == part or name in EVERYWHERE:
            continue
        if part in FACE:
            wrong = name in BELOW and at_once
        elif part in BELOW:
            wrong = name in FACE or name == "study"
        else:
            wrong = name not in table.get(part, set())
        if wrong:
            found.append(f"line {line}: hermes.{part} imports hermes.{name}")
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@each("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_are_allowed(path: Path) -> None:
    assert not violations(part_of(path), path.read_text(encoding="utf-8"))


def test_commands_alone_import_the_evidence() -> None:
    """A wheel does not contain it."""
    line = re.compile(r"^\s*(?:from|import) evidence\b", re.M)
    found = {path.relative_to(PACKAGE).as_posix() for path in FILES if line.search(path.read_text(encoding="utf-8"))}
    assert found == {"cli/checks.py", "cli/evidence.py"}
    assert line.search("def f():\n    from evidence.accuracy import table\n")


@each("path", [path for path in FILES if part_of(path) in ROOMS], ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_rooms_are_in_order(path: Path) -> None:
    assert not rooms_at_once(path, path.read_text(encoding="utf-8"))


def test_rooms_are_those_of_the_package() -> None:
    assert {folder: set(rooms) for folder, rooms in ROOMS.items()} == {
        folder: {path.parent.name for path in (PACKAGE / folder).glob("*/__init__.py")} for folder in ROOMS}
    files, line = PACKAGE / "results" / "files" / "frames.py", "from hermes.results.charts import "
    assert rooms_at_once(files, line + "Chart")
    assert rooms_at_once(files, "from hermes.results import charts")
    assert not rooms_at_once(files, f"def f():\n    {line}Chart")
    assert not rooms_at_once(PACKAGE / "results" / "plots.py", line + "Chart")


@each("path", sorted((PACKAGE / "plugins").rglob("*.py")),
      ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_plug_ins_import_what_is_documented(path: Path) -> None:
    assert not beside_the_api(path.read_text(encoding="utf-8"))


@each("module", extension_modules())
def test_the_table_of_extension_modules_is_true(module: str) -> None:
    exported = importlib.import_module(module).__all__
    row = ", ".join(f"`{name}`" for name in exported)
    assert extension_modules()[module] == set(exported), f"the row of {module}: {row}"


@pytest.mark.parametrize("line", [
    "from hermes.dispatch.coordinator import Coordinator", "import hermes.core.clock", "from hermes import api",
    "from hermes.schedulers import ChunkedScheduler", "from hermes.schedulers.base import Plan",
    "def f():\n    from hermes.scenario.build import build", "from hermes.testing import schedulers",
])
def test_a_plug_in_that_looks_inside_is_noticed(line: str) -> None:
    assert not beside_the_api("from hermes.schedulers import LLMScheduler, Plan\nfrom hermes.plugins.metis import x\n")
    assert beside_the_api(line + "\n")


def test_every_folder_is_in_the_table() -> None:
    present = {part_of(path) for path in FILES} - FACE - BELOW - BASE
    assert present == set(allowed())


def strange_folders(folders: set[str]) -> list[str]:
    """Return the folders of tests/ that are neither named as a folder of hermes/ nor in `OTHER_TESTS`."""
    return sorted(name for name in folders if name.split("/")[0] not in OTHER_TESTS and not (PACKAGE / name).is_dir())


def test_folders_of_tests_are_those_of_the_package() -> None:
    tests = ROOT / "tests"
    of_files = {path.parent.relative_to(tests) for path in tests.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    top = {path.parts[0] for path in of_files if path.parts}
    of_tests = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("*/test_*.py")}
    assert not strange_folders(top | of_tests)
    planted = {"core", "plugins/metis", "data/ragpulse", "stages", "plugins/nosuch"}
    assert strange_folders(planted) == ["plugins/nosuch", "stages"]


def test_the_base_imports_nothing_else() -> None:
    for name in BASE:
        assert {other for _, other, _ in imports((PACKAGE / f"{name}.py").read_text())} <= {"errors"}
    assert not allowed()["config"]


def test_rules_of_the_house() -> None:
    table = allowed()
    assert table["core"] == {"config"}, "core knows protocols, not what implements them"
    assert table["routing"] == {"config", "core"}, "routers see ClientView and the Client protocol"
    assert "clients" not in table["pipelines"]
    assert table["results"] == {"config", "core"}, "results see the RunRecord"
    done: set[str] = set()
    while len(done) < len(table):   # no circle
        ready = {name for name, others in table.items() if others <= done} - done
        assert ready, f"a circle among {sorted(set(table) - done)}"
        done |= ready


@pytest.mark.parametrize(("part", "line"), [
    ("core", "from hermes.plugins.telerag import client"),
    ("clients", "from hermes.calibration.fit import fit_steps"),
    ("schedulers", "def f():\n    import hermes.study.loading"),
    ("plugins", "from hermes.study import Point"),
    ("study", "from hermes.plugins.metis import decision"),
    ("results", "from hermes.scenario import Scenario"),
    ("hardware", "from hermes.core.clock import Clock"),
    ("memory", "from hermes import api"),
    ("plugins", "from hermes.cli.output import line"),
    ("__init__", "import hermes.plugins.metis"),
    ("cli", "from hermes.calibration.fit import fit_steps"),
    ("testing", "from hermes.plugins.orthrus import SLOTS"),
])
def test_a_planted_violation_is_noticed(part: str, line: str) -> None:
    assert violations(part, line + "\n")
