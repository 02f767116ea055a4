"""Addresses of pages: messages and help texts cite pages of the site, which exist; so do the links of the wheel."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator

import pytest
import yaml
from markdown_blocks import ROOT

from hermes.cli import command as root_command
from hermes.explore import sweep_schema
from hermes.scenario.editor_schema import json_schema
from hermes.site import SITE_URL, page_url

PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
           for path in sorted((ROOT / "hermes").rglob("*.py"))}
README = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string of a module that is no docstring."""
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.lineno, node.value


def cited(source: str) -> list[str]:
    """Return the pages that a module names in calls of `page_url`; "" for one that is not written out."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name) and node.func.id == "page_url"]
    return [str(call.args[0].value) if isinstance(call.args[0], ast.Constant) else "" for call in calls]


def in_the_wheel(text: str) -> str:
    """Return README.md as the wheel's metadata have it."""
    for one in README["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    return text


def test_messages_cite_no_file_of_the_repository() -> None:
    found = [f"{path}:{line}: {text}" for path, source in MODULES.items() if PAGE.search(source)
             for line, text in texts(source) if PAGE.search(text)]
    assert not found
    assert list(texts('"""docs/index.md"""\nx = f"see docs/glossary.md {1}"')) == [(2, "see docs/glossary.md ")]


def test_help_and_schemas_cite_no_file_of_the_repository() -> None:
    def helps(node: object) -> Iterator[str]:
        yield str(getattr(node, "help", ""))
        for below in (*getattr(node, "params", ()), *getattr(node, "commands", {}).values()):
            yield from helps(below)

    shown = [*helps(root_command()), json.dumps(json_schema()), json.dumps(sweep_schema())]
    assert len(shown) > 300
    assert [text for text in shown if PAGE.search(text)] == []


def test_every_cited_page_exists() -> None:
    pages = {page for source in MODULES.values() if "page_url" in source for page in cited(source)}
    assert len(pages) >= 5
    assert [page for page in sorted(pages) if not (ROOT / "docs" / f"{page}.md").is_file()] == []


def test_addresses_are_those_of_the_built_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["use_directory_urls"] is False, "pages of the site end in .html"
    assert page_url("how-to/fleet") == f"{SITE_URL}/docs/how-to/fleet.html"


def test_one_root_for_all_addresses() -> None:
    assert set(PROJECT["project"]["urls"]) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    addresses = [*PROJECT["project"]["urls"].values(), *(one["replacement"][2:] for one in README["substitutions"])]
    assert [address for address in addresses if not address.startswith(f"{SITE_URL}/")] == []


def test_links_of_the_wheel_are_absolute_and_lead_to_files() -> None:
    given = (ROOT / "README.md").read_text(encoding="utf-8")
    assert SITE_URL not in given, "README.md in the repository has relative links"
    links = re.findall(r"\]\(([^)]*)\)", in_the_wheel(given))
    assert len(links) > 15
    for link in links:
        assert "://" in link, link
        if link.startswith(SITE_URL):
            path = link.removeprefix(f"{SITE_URL}/").partition("#")[0]
            assert (ROOT / re.sub(r"\.html$", ".md", path)).is_file(), link


@pytest.mark.parametrize(("given", "expected"), [
    ("[a](docs/index.md#y)", f"[a]({SITE_URL}/docs/index.html#y)"),
    ("![p](docs/i.png)", f"![p]({SITE_URL}/docs/i.png)"),
    ("[b](https://a.b/c.md)", "[b](https://a.b/c.md)"), ("[c](#d)", "[c](#d)"),
])
def test_a_link_in_the_wheel(given: str, expected: str) -> None:
    assert in_the_wheel(given) == expected


def test_every_page_stands_in_the_navigation_once() -> None:
    def leaves(node: object) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        for below in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()):
            yield from leaves(below)

    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(leaves(site["nav"]))
    assert listed[0] == "README.md", "the first page says what to do first"
    assert [name for name in listed if not (ROOT / name).is_file()] == []
    pages = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    pages += [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "studies").glob("*/page.md"))]
    assert sorted(listed) == sorted(["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *pages])


def test_the_site_asks_nobody_for_fonts() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False
    assert {"content.code.copy", "navigation.footer"} <= set(site["theme"]["features"])
