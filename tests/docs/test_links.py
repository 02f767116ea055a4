"""README and docs: links lead somewhere, the README's scenario is valid, and its commands exist."""

import re
from pathlib import Path

import pytest
import yaml
from markdown_blocks import blocks

from hermes.api import simulate
from hermes.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"network", "pipeline", "profile", "regress", "trace"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert target.startswith(("http://", "https://")) or (page.parent / target).exists(), target


def test_the_scenario_of_the_readme_runs():
    (block,) = [block for block in blocks(ROOT / "README.md") if block.language == "yaml"]
    scenario = load_scenario(yaml.safe_load(block.text))
    assert simulate(scenario).summary["requests"]["completed"] == scenario.workload[0].requests


def test_the_commands_of_the_readme_exist(bash):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    groups = "|".join(f"{group} " for group in sorted(GROUPS))
    named = set(re.findall(rf"(?m)`hermes ((?:{groups})?[a-z]+)", text)) - GROUPS
    listed = set()
    for group in ("", *(f"{name} " for name in sorted(GROUPS))):
        code, printed = bash(f"hermes {group}--help")
        assert code == 0
        commands = printed.partition("Options:")[2].partition("Examples:")[0]   # the first page has four groups
        listed |= {group + name for name in re.findall(r"(?m)^  ([a-z]+)  ", commands)}
    assert listed - GROUPS == named
