"""The page on SGLang: its table of broken rules, its totals, and the names on it."""

import re
from pathlib import Path

import pytest
from each import each
from mutations import notices, rows_of
from sglang_mutations import MUTATIONS, RECORDINGS, TABLE, page_table

import hermes.memory.radix
import hermes.schedulers.sglang
import hermes.schedulers.sglang_overlap
from evidence.schedules.sglang_replay import load_batches
from evidence.schedules.vllm_replay import find_files
from hermes.schedulers.sglang_overlap import OverlapSglangScheduler

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "background" / "sglang.md").read_text(encoding="utf-8")
FILES = find_files([RECORDINGS])


@each("number", range(len(MUTATIONS)), ids=lambda n: f"{MUTATIONS[n].rule}: {MUTATIONS[n].what}")
def test_breaking_a_rule_is_noticed(number: int) -> None:
    mutation = MUTATIONS[number]
    assert notices(mutation, RECORDINGS / f"{mutation.noticed_by}.json")


def test_the_page_shows_every_mutation() -> None:
    head, *rows = rows_of(TABLE)
    assert head[2] == f"noticed by, of {len(FILES)}"
    assert all(int(count) > 0 for _rule, _what, count, _example in rows)
    shown = [(rule, what, example) for rule, what, _count, example in rows]
    assert shown == [(one.rule, one.what, one.noticed_by) for one in MUTATIONS], \
        "`python tests/docs/sglang_mutations.py` writes the table anew"
    linked = " ".join(PAGE.split())
    assert f"{len(MUTATIONS)} ways in all: [{TABLE.name}]({TABLE.parent.name}/{TABLE.name})" in linked
    assert f"counts the recordings, of {len(FILES)}, that notice each" in linked
    assert f"{len(FILES)} schedules were recorded" in PAGE
    batches = 2 * sum(len(load_batches(path).steps) for path in FILES)
    assert f"`{2 * len(FILES)} of {2 * len(FILES)} replays identical, {batches:,} of {batches:,} steps`" in PAGE


@pytest.mark.thorough
def test_the_counts_of_the_table() -> None:
    assert page_table() == TABLE.read_text(encoding="utf-8")


def test_names_exist() -> None:
    rules = re.findall(r"(?m)^\| \d+ \|.*\| ([^|]+) \|$", PAGE)
    here = [name for cell in rules for name in re.findall(r"`([\w.]+)`", cell) if cell]
    assert len(here) >= 24
    for name in here:
        owner, _, attribute = name.rpartition(".")
        if name in ("full", *(one.noticed_by for one in MUTATIONS)):
            continue
        found = vars(hermes.schedulers.sglang) | vars(hermes.memory.radix) | vars(hermes.schedulers.sglang_overlap)
        assert name in found or hasattr(found.get(owner, OverlapSglangScheduler), attribute), name
