"""No class overrides an attribute that compiled code would read from its own field (see `hermes.compiled`).

In the compiled build such a subclass is refused. Here it is found without a compiler: fields of the compiled modules'
classes, read from their sources, against the class attributes of all their subclasses in the project.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.compiled import check_overrides, is_compiled
from hermes.schedulers import LLMScheduler

ROOT = Path(__file__).resolve().parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
SOURCES = [ROOT.joinpath("hermes", *name.split(".")).with_suffix(".py") for name in WHEEL["hooks"]["custom"]["modules"]]
FOLDERS = ("hermes", "docs", "studies", "tests", "benchmarks")


def classes(text: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}


def body(cls: ast.ClassDef, *, class_vars: bool) -> Iterator[str]:
    """Names that a class body assigns or declares. class_vars: `ClassVar` ones too, but no bare declarations."""
    for node in cls.body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            shared = ast.unparse(node.annotation).startswith("ClassVar")
            if node.value is not None if class_vars else not shared:
                yield node.target.id
        elif class_vars and isinstance(node, ast.FunctionDef):
            yield node.name


def fields(cls: ast.ClassDef) -> set[str]:
    """Fields of a compiled class's instances: those of the class body, and what methods assign."""
    stored = (node for node in ast.walk(cls) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    assigned = {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    shared = {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)
              and isinstance(node.target, ast.Name) and ast.unparse(node.annotation).startswith("ClassVar")}
    return {*body(cls, class_vars=False), *assigned} - shared - {"__slots__"}


def compiled() -> dict[str, ast.ClassDef]:
    return {name: cls for path in SOURCES for name, cls in classes(path.read_text()).items()}


def bases(cls: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rsplit(".", 1)[-1] for base in cls.bases]


def hidden(cls: ast.ClassDef, others: dict[str, ast.ClassDef], roots: dict[str, ast.ClassDef]) -> Iterator[str]:
    """What a class overrides that its compiled bases would not see."""
    todo, own = bases(cls), {*body(cls, class_vars=True)} - {"__slots__", "__init__"}
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        base = roots.get(name) or others.get(name)
        if base is None:
            continue
        if name in roots:
            yield from (f"{cls.name}.{one} hides a field of {name}" for one in sorted(own & fields(base)))
        todo += bases(base)


@pytest.mark.drawn
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_class_attribute_hides_a_field(folder: str) -> None:
    roots = compiled()
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if path not in SOURCES]
    found = {path: classes(path.read_text(encoding="utf-8")) for path in files}
    others = {name: cls for inside in found.values() for name, cls in inside.items()}
    wrong = [f"{path.relative_to(ROOT)}: {what}" for path, inside in found.items()
             for cls in inside.values() for what in hidden(cls, others, roots)]
    assert not wrong, "annotate it as ClassVar in the base, or set it in __init__:\n" + "\n".join(wrong)


@pytest.mark.drawn
@pytest.mark.parametrize(("text", "names"), [
    ("class A(LLMScheduler):\n    ticks_every_step = False", []),
    ("class A(LLMScheduler):\n    def plan(self): ...", []),
    ("class A(LLMScheduler):\n    pool: int", []),
    ("class A(LLMScheduler):\n    pool = None", ["pool"]),
    ("class A(LLMScheduler):\n    @property\n    def pool(self): ...", ["pool"]),
    ("class B(ChunkedScheduler): ...\nclass A(B):\n    num_preemptions = 1", ["num_preemptions"]),
    ("class A(ServiceStage):\n    kind: str = 'x'\n    found = 0", ["kind"]),
])
def test_a_hidden_field_is_found(text: str, names: list[str]) -> None:
    inside = classes(text)
    assert {what.split()[0] for what in hidden(inside["A"], inside, compiled())} == {f"A.{name}" for name in names}


def test_a_compiled_class_refuses_to_be_hidden() -> None:
    fake = type("Fake", (), {"__mypyc_attrs__": ("pool",), "__init_subclass__": classmethod(check_overrides)})
    assert is_compiled(fake)
    type("Fine", (fake,), {"other": 1})
    with pytest.raises(TypeError, match=r"Bad.pool: the compiled Fake does not see this class attribute"):
        type("Bad", (fake,), {"pool": 1})


def test_a_subclass_of_the_present_build() -> None:
    def subclass() -> type:
        return type("Hiding", (LLMScheduler,), {"max_num_seqs": 1})

    # `make test-compiled` names the build that it means
    assert is_compiled(LLMScheduler) == os.environ.get("PYTHONPATH", "").endswith("build/compiled")
    if is_compiled(LLMScheduler):
        with pytest.raises(TypeError, match="max_num_seqs"):
            subclass()
    else:
        assert subclass().max_num_seqs == 1   # type: ignore[attr-defined]
