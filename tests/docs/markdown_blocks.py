"""Fenced code blocks of a Markdown file, and the comparison of what a document shows with what was printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line it begins in."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document that name a language, in order."""
    document = path.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], document.count("\n", 0, found.start()) + 1) for found in _FENCE.finditer(document)
    ]


def matches(shown: str, printed: str) -> bool:
    """Whether a document shows what was printed. `...` stands for anything; runs of blanks are equal."""
    def words(text: str) -> str:
        return " ".join(text.split())

    pattern = "(?s:.*)".join(re.escape(words(part)) for part in shown.split("..."))
    pattern = pattern.replace("(?s:.*)", r"\s?(?s:.*)\s?")
    return re.fullmatch(pattern, words(printed)) is not None
