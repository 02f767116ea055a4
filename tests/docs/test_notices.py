"""THIRD_PARTY_NOTICES.md covers every data file by its recorded source."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from markdown_blocks import ROOT

NOTICES = (ROOT / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
OWN = "Figures without a licence of their own"
SEPARATE = re.compile(r",\s+")


@cache
def entries() -> dict[str, dict[str, str]]:
    """Return the fields of each entry by its heading."""
    found = {}
    for part in re.split(r"^## ", NOTICES, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        fields = dict(re.findall(r"^- (\w[\w ]*): (.*(?:\n  .*)*)", body, flags=re.M))
        if fields:
            found[title] = fields
    return found


def files_of(title: str) -> list[str]:
    return SEPARATE.split(entries()[title]["Files"])


def matches(path: str, title: str) -> bool:
    return any(PurePosixPath(path).full_match(pattern) if hasattr(PurePosixPath, "full_match")
               else len(PurePosixPath(path).parts) == len(PurePosixPath(pattern).parts)
               and PurePosixPath(path).match(pattern) for pattern in files_of(title))


@cache
def data() -> dict[str, str]:
    """Return what is recorded with each data file: its own text, or that of the description with its name."""
    found = {}
    for folder in ("hw_profiles", "traces"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                described = path if path.suffix in (".yaml", ".md") else path.with_suffix(".yaml")
                text = described.read_text(encoding="utf-8") if described.exists() else ""
                found[path.relative_to(ROOT).as_posix()] = " ".join(text.split())
    return found


def missing(recorded: dict[str, str]) -> list[str]:
    """Return the files that an entry's words name, or that no entry covers, without an entry that lists them."""
    out = [f"{path}: no entry" for path in recorded if not any(matches(path, title) for title in entries())]
    for title, fields in entries().items():
        words = [word for word in SEPARATE.split(fields.get("Recorded as", "")) if word]
        out += [f"{path}: {title}" for path, text in recorded.items()
                if path != "traces/README.md" and not matches(path, title) and any(word in text for word in words)]
    return out


def test_every_data_file_is_under_the_entries_of_its_sources() -> None:
    assert len(data()) > 200
    assert missing(data()) == []
    planted = {"hw_profiles/devices/x.yaml": "", "hw_profiles/models/y.yaml": "from splitwise-sim",
               "hw_profiles/z.npz": ""}
    assert missing(planted) == ["hw_profiles/z.npz: no entry", "hw_profiles/models/y.yaml: splitwise-sim"]


def test_the_bundled_script_is_named_with_the_versions_of_its_licences() -> None:
    licences = (ROOT / "hermes" / "results" / "charts" / "page" / "LICENSE").read_text(encoding="utf-8")
    named = re.findall(r"(vega[\w-]*) (\d+\.\d+\.\d+)", NOTICES)
    assert len(named) == 3
    for name, version in named:
        assert f"{name} {version} (" in licences


def test_every_pattern_covers_a_file_and_every_entry_a_recorded_one() -> None:
    for title, fields in entries().items():
        assert [pattern for pattern in files_of(title) if not list(ROOT.glob(pattern))] == [], title
        words = SEPARATE.split(fields.get("Recorded as", ""))
        assert title == OWN or all(any(word in text for text in data().values()) for word in words), title


def test_entries_name_source_licence_and_attribution() -> None:
    for title, fields in entries().items():
        if title != OWN:
            assert {"Source", "Licence", "Attribution", "Changes", "Recorded as", "Files"} == set(fields), title
            if fields["Licence"].startswith("MIT"):
                assert re.match(r"Copyright \(c\) \d{4}", fields["Attribution"]), title
    text = (ROOT / "traces" / "ragpulse-day.LICENSE").read_text(encoding="utf-8")
    title, copyright_line, permission = text.strip().split("\n\n", 2)
    assert title == "MIT License"
    assert NOTICES.rstrip().endswith(permission)
    assert entries()["RAGPulse"]["Attribution"] == copyright_line


@pytest.mark.parametrize("name", ["LICENSE", "THIRD_PARTY_NOTICES.md", "hermes/results/charts/page/LICENSE"])
def test_wheels_contain_the_licences(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert name in project["license-files"]
    assert Path(ROOT / name).is_file()
