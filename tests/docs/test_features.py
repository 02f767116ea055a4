"""docs/reference/features.md names tests that exist, every command, and every kind that can be named."""

import ast
import re
from functools import cache

from each import each
from markdown_blocks import ROOT

import hermes.calibration.importers
import hermes.scenario
import hermes.workload.importers  # noqa: F401  # these make the registries
from hermes.cli import command as root_command
from hermes.config.registry import Registry

PAGE = (ROOT / "docs" / "reference" / "features.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`]+)`", PAGE))
NAMED = sorted(text for text in QUOTED if "::" in text)


@cache
def names_in(path: str) -> set[str]:
    """`test_x` and `TestX`, as pytest names them."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@each("named", NAMED)
def test_a_named_test_exists(named: str) -> None:
    path, _, name = named.partition("::")
    assert (ROOT / "tests" / path).is_file()
    assert name in names_in(path)


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| feature", "| ---"))]
    assert len(rows) > 50
    assert [row for row in rows if "::" not in row.split(" | ")[1]] == []


def test_every_kind_is_on_the_page() -> None:
    missing = []
    found = [registry for registry in Registry.every if registry.name != "studies"]   # each has a page
    for registry in found:
        missing += [f"{registry.name}: {name}" for name in registry.names()
                    if name not in QUOTED and registry.get(name).__module__.startswith("hermes.")]
    assert len(found) >= 10
    assert missing == []


def test_every_command_is_on_the_page() -> None:
    missing = []
    for name, one in root_command().commands.items():
        inner = getattr(one, "commands", None)
        missing += [f"hermes {name}"] if inner is None and f"hermes {name}" not in QUOTED else []
        missing += [f"hermes {name} {sub}" for sub in inner or () if f"hermes {name} {sub}" not in QUOTED]
    assert missing == []
