"""The page on KV offload: its totals, and the recordings that it says would notice a broken rule."""

import json
import re
from pathlib import Path

import pytest
from each import each
from mutations import notices
from offload_mutations import MUTATIONS, SCHEDULES, page_table

from hermes.clients.schedule_replay import find_files

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "background" / "kv-offload.md").read_text(encoding="utf-8")


@each("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.rule}: {mutation.what}")
def test_breaking_a_rule_is_noticed(mutation):
    assert notices(mutation, SCHEDULES / f"{mutation.noticed_by}.json")
    row = rf"\| {mutation.rule} \| {re.escape(mutation.what)} \| \d+ \| `{mutation.noticed_by}` \|"
    assert re.search(row, PAGE), "`python tests/docs/offload_mutations.py` prints the table anew"


@pytest.mark.long
def test_the_counts_on_the_page():
    assert page_table() in PAGE


def test_the_totals_on_the_page():
    files = find_files([SCHEDULES])
    steps = sum(len(json.loads(path.read_text())["steps"]) for path in files)
    assert f"{2 * len(files)} of {2 * len(files)} replays identical, {2 * steps} of {2 * steps} steps" in PAGE
