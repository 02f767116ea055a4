"""The page on KV offload: its totals, and the recordings that it says would notice a broken rule."""

import json
from pathlib import Path

import pytest
from each import each
from mutations import notices, rows_of
from offload_mutations import MUTATIONS, SCHEDULES, TABLE, page_table

from evidence.schedules.vllm_replay import find_files

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "background" / "kv-offload.md").read_text(encoding="utf-8")


@pytest.mark.long
@each("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.rule}: {mutation.what}")
def test_breaking_a_rule_is_noticed(mutation):
    assert notices(mutation, SCHEDULES / f"{mutation.noticed_by}.json")
    rows = [(rule, what, example) for rule, what, count, example in rows_of(TABLE) if count.isdecimal()]
    assert (mutation.rule, mutation.what, mutation.noticed_by) in rows, \
        "`python tests/docs/offload_mutations.py` writes the table anew"


def test_the_page_leads_to_the_table():
    assert f"{len(MUTATIONS)} ways in all: [{TABLE.name}]({TABLE.parent.name}/{TABLE.name})" in PAGE
    assert len(rows_of(TABLE)) == len(MUTATIONS) + 1


@pytest.mark.thorough
def test_the_counts_of_the_table():
    assert page_table() == TABLE.read_text(encoding="utf-8")


def test_the_totals_on_the_page():
    files = find_files([SCHEDULES])
    steps = sum(len(json.loads(path.read_text())["steps"]) for path in files)
    assert f"{2 * len(files)} of {2 * len(files)} replays identical, {2 * steps:,} of {2 * steps:,} steps" in PAGE
