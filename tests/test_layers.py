"""Imports run one way, as docs/architecture.md says under "Layers"."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hermes"
# what tests of plug-ins import; it may know everything, and nothing in the product may know it
OUTSIDE = {"testing"}


def layers() -> list[list[str]]:
    """The lines of the code block under "Layers", each a list of module names."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("\n## Layers", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    return [re.split(r"\s{2,}", line)[0].replace(" ", "").rstrip(",").split(",") for line in lines]


def rank() -> dict[str, int]:
    return {name: index for index, names in enumerate(layers()) for name in names}


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, top-level module of hermes) for every import in a file, those inside functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            names = [f"hermes.{alias.name}" for alias in node.names] if module == "hermes" else [module]
        else:
            continue
        found += [(node.lineno, name.split(".")[1]) for name in names if name.startswith("hermes.")]
    return found


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if layer_of(p) not in OUTSIDE and layer_of(p) != "__init__"]


def test_every_module_has_a_layer():
    present = {layer_of(path) for path in FILES}
    assert present == set(rank()), "docs/architecture.md lists the layers; keep it true"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_only_from_layers_above(path):
    order = rank()
    mine = layer_of(path)
    for line, name in imports(path):
        if name in ("__version__", mine):
            continue
        assert name in order, f"{path}:{line}: nobody may import hermes.{name}"
        same_line = order[name] == order[mine]
        assert order[name] < order[mine] or (same_line and earlier(name, mine)), (
            f"{path}:{line}: hermes.{mine} imports hermes.{name}, which is not above it"
        )


def earlier(name: str, mine: str) -> bool:
    """Within a line, a module may import those written to the left of it."""
    line = next(names for names in layers() if mine in names)
    return line.index(name) < line.index(mine)
