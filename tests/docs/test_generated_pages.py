"""Generated parts of the pages: each is what its code says, every part has a page, and every page's parts exist."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from generated_pages import MARK, PARTS, csv_table, expand, part
from markdown_blocks import ROOT, pages

from hermes.cli import command as root_command
from hermes.engine.compatibility import ROWS
from hermes.scenario import Scenario


def marks() -> dict[str, Path]:
    return {name: page for page in pages() for name in MARK.findall(page.read_text(encoding="utf-8"))}


def test_every_part_has_a_page_and_every_mark_a_part() -> None:
    found = marks()
    assert set(PARTS) <= set(found)
    assert [name for name in found if name not in PARTS and not (ROOT / "docs" / name).is_file()] == []


def test_a_mark_is_replaced_and_an_unknown_one_is_an_error() -> None:
    assert expand("a\n<!-- generated: compatibility -->\nb") == f"a\n{part('compatibility')}\nb"
    assert expand("a <!-- generated: compatibility -->") == "a <!-- generated: compatibility -->"
    with pytest.raises(KeyError):
        expand("<!-- generated: nothing -->")


def test_keys_of_a_scenario() -> None:
    text = part("scenario")
    assert text.startswith("## Scenario\n")
    for name in Scenario.model_fields:
        assert f"\n| `{name}` | " in text
    assert "\n### Router: llm_d\n" in text
    assert "| `seed` | integer ≥ 0 | `0` | Seed of every random number" in text
    assert "[router](#router)" in text


def test_every_rule_of_compatibility_is_a_row() -> None:
    rows = [line for line in part("compatibility").splitlines() if line.startswith("| `")]
    assert len(rows) == len(ROWS)
    assert not [row for row in rows if "{" in row]


def leaves(node: object, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found = getattr(node, "commands", None)
    return {path} if not found else {leaf for name, one in found.items() for leaf in leaves(one, (*path, name))}


def test_every_command_has_its_help() -> None:
    headings = {tuple(line.split()[2:]) for line in part("commands").splitlines() if line.startswith("### hermes ")}
    assert headings == leaves(root_command())
    assert "| `--explain` | Print the reference of a key instead" in part("commands")


def test_the_line_of_verdicts_counts_the_rows_of_a_study() -> None:
    with (ROOT / "studies" / "metis" / "paper.csv").open(encoding="utf-8", newline="") as file:
        found = [row["verdict"] for row in csv.DictReader(file)]
    line = part("verdicts/metis")
    assert f" {found.count('partly')} partly," in line
    numbers = [int(number) for number in re.findall(r"(\d+) ", line)]
    assert sum(numbers) == len(found) - found.count("-")


def test_figures_of_papers_link_to_their_studies() -> None:
    assert "](../../studies/metis/page.md) |" in part("papers")


def test_a_csv_file_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,<b>\n")
    assert "<tr><th>x</th><th>y</th></tr>" in csv_table(tmp_path / "a.csv")
    assert "<tr><td>1</td><td>&lt;b&gt;</td></tr>" in csv_table(tmp_path / "a.csv")
