"""Fragments of the changelog are short and named as towncrier's configuration expects; their links lead somewhere."""

from __future__ import annotations

import re
import tomllib

from markdown_blocks import ROOT, anchors

CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
FRAGMENTS = [path for path in sorted((ROOT / CONFIG["directory"]).iterdir()) if path.name not in CONFIG["ignore"]]


def test_fragments_are_named_and_short() -> None:
    for path in FRAGMENTS:
        assert re.fullmatch(r"(\+[\w-]+|\d+)\.md", path.name), f"{path.name}: +NAME.md, or the number of an issue"
        assert len(path.read_text(encoding="utf-8").strip().splitlines()) <= 5, path.name


def test_links_of_the_changelog_lead_somewhere() -> None:
    for path in (ROOT / CONFIG["filename"], *FRAGMENTS):   # fragments become a part of the changelog
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            page, _, anchor = target.partition("#")
            assert (ROOT / page).is_file(), f"{path.name}: {target}"
            assert not anchor or anchor in anchors(ROOT / page), f"{path.name}: {target}"


def test_the_changelog_has_a_place_for_the_next_version() -> None:
    text = (ROOT / CONFIG["filename"]).read_text(encoding="utf-8")
    assert text.count(CONFIG["start_string"]) == 1
    first = text.split(CONFIG["start_string"])[1]
    assert len(first.split("\n## ")[1].split()) <= 600, "a version is a page"
