"""Fenced code blocks, inline commands and headings of Markdown pages; what a page shows beside what was printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# older pages indent what they show
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}(?:hermes|python|pip|pytest|make|chrt) [^\n]*\n)(?: {4}[^\n]*\n)*)")


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text, and the line it begins in."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every page of the project: the README, docs/ and studies/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "studies").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page that name a language, in order."""
    document = path.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], document.count("\n", 0, found.start()) + 1) for found in _FENCE.finditer(document)
    ]


def indented_commands(path: Path) -> list[Block]:
    """Blocks that are indented instead of fenced and begin with a command."""
    document = path.read_text(encoding="utf-8")
    unfenced = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), document)
    return [
        Block("bash", re.sub(r"(?m)^ {4}", "", found[1]), unfenced.count("\n", 0, found.start()) + 1)
        for found in _INDENTED.finditer(unfenced)
    ]


def commands(script: str) -> list[str]:
    """The commands of a script, one line each: continued lines joined, comments dropped, here-documents kept whole."""
    joined = re.sub(r"\\\n\s*", "", script)
    found: list[str] = []
    ending = ""
    for line in joined.splitlines():
        if ending:
            found[-1] += "\n" + line
            ending = "" if line == ending else ending
            continue
        line = re.sub(r"(?:^|\s+)#\s.*$", "", line)
        if line.strip():
            line = re.sub(r" \[[^]]*\]", "", line.replace("[--quick]", "--quick"))   # a synopsis: its short form
            found.append(line)
            ending = heredoc[1] if (heredoc := re.search(r"<<'(\w+)'", line)) else ""
    return found


def whole(path: Path) -> str:
    """A page with its generated parts, as the site has it."""
    from generated_pages import expand

    return expand(path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = _FENCE.sub("", whole(path))
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}


def matches(shown: str, printed: str) -> bool:
    """Whether a document shows what was printed. `...` stands for anything; runs of blanks are equal."""
    def words(text: str) -> str:
        return " ".join(text.split())

    pattern = "(?s:.*)".join(re.escape(words(part)) for part in shown.split("..."))
    pattern = pattern.replace("(?s:.*)", r"\s?(?s:.*)\s?")
    return re.fullmatch(pattern, words(printed)) is not None
