"""Files for people and services beside the package: workflows, citation, security, contributing, image."""

from __future__ import annotations

import re
import sys
from itertools import product
from typing import Any

import pytest
import yaml
from markdown_blocks import ROOT

import hermes

sys.path.insert(0, str(ROOT / "scripts"))
import image_check

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
PAGES = ["AGENTS.md", "CONTRIBUTING.md", "SECURITY.md"]
MOST_WORDS = 250


def jobs(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text)["jobs"])


def made(job: dict[str, Any]) -> set[str]:
    """Return the make targets of a job, with the values of its matrix."""
    matrix = {name: values for name, values in job.get("strategy", {}).get("matrix", {}).items() if name != "include"}
    found: set[str] = set()
    for values in product(*matrix.values()):
        for step in job["steps"]:
            command = step.get("run", "")
            for name, value in zip(matrix, values, strict=True):
                command = command.replace(f"${{{{ matrix.{name} }}}}", str(value))
            found |= {words[1] for words in map(str.split, command.splitlines()) if words[:1] == ["make"]}
    return found


def test_workflows_call_make_targets_that_exist() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml", "release.yml"]
    called = {path.stem: set().union(*(made(job) for job in jobs(path.read_text("utf-8")).values()))
              for path in WORKFLOWS}
    for name, targets in called.items():
        assert targets <= TARGETS, f"{name}: no target {sorted(targets - TARGETS)}"
    assert {"lint", "docs", "test"} <= called["ci"]
    assert {"test-all", "test-thorough", "test-studies", "fuzz", "test-browser"} <= called["nightly"]
    assert "release-check" in called["release"]
    assert made({"strategy": {"matrix": {"t": ["a", "b"]}}, "steps": [{"run": "make ${{ matrix.t }}"}]}) == {"a", "b"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_pinned_and_hold_few_rights(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    written = yaml.safe_load(text)
    assert written["permissions"] == {"contents": "read"}
    assert set(written) == {"name", True, "permissions", "jobs"} | ({"concurrency"} if path.stem == "ci" else set())
    for job in jobs(text).values():
        assert "runs-on" in job
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            used = step.get("uses", "./")
            assert used.startswith("./") or re.search(r"@(v\d+|release/v\d+)", used), used
            if used.startswith("./.github"):
                assert (ROOT / used / "action.yml").is_file()


def test_a_release_is_published_by_a_trusted_publisher() -> None:
    publish = jobs((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["publish"]
    assert publish["permissions"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    assert set(publish["needs"]) == {"compiled", "pure"}


def test_the_citation_has_what_its_format_requires() -> None:
    given = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    required = {"cff-version", "message", "title", "authors"}
    assert required <= set(given) <= required | {"abstract", "type", "version", "license", "keywords"}
    assert (given["cff-version"], given["type"], given["license"]) == ("1.2.0", "software", "Apache-2.0")
    assert given["authors"] == [{"name": "The hermes authors"}]
    assert given["version"] == hermes.__version__
    assert len(set(given["keywords"])) == len(given["keywords"])


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_short_and_their_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, flags=re.M):
        assert target in TARGETS, target
    assert not re.search(r"[\w.]+@[\w-]+\.\w+", text), "no address of a person"


def test_the_image_copies_what_exists_and_is_not_ignored() -> None:
    steps = list(image_check.steps((ROOT / "Dockerfile").read_text(encoding="utf-8")))
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[1:]
    assert [rest for name, rest in steps if name == "USER"] == ["hermes"]
    for rest in (rest for name, rest in steps if name == "FROM"):
        assert re.match(r"python:3\.\d+(-slim)?-\w+", rest), "the base names release and system"
    for name in ("hermes", "pyproject.toml", "README.md", "constraints.txt", "hermes/cli/__init__.py"):
        assert not image_check.ignored(name, patterns)
    for name in ("tests", ".git", "build", ".venv", "hermes/cli/__pycache__"):
        assert image_check.ignored(name, patterns)


def test_the_notebook_server_listens_on_this_machine_only() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["notebook"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
