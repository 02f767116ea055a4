"""The study of data structures: its tables say what the structures do, and the command prints a figure of each."""

import numpy as np
import pytest

from hermes.memory.pages import shared_savings
from hermes.studies import Context, structures_memory, structures_tools
from hermes.studies.datastructures import DataStructures
from hermes.studies.structures_memory import cache_policies, savings, trace_policies


def test_savings_are_the_formula():
    frame = savings().frame
    assert len(frame) == 8
    for _, row in frame.iterrows():
        assert row["saved %"] == pytest.approx(100 * shared_savings(row["prefix"], 1000, 100, row["page"]), abs=1e-9)


def test_more_room_saves_more_and_policies_see_the_same_accesses():
    frame = cache_policies(3000).frame
    for _, mine in frame[frame["policy"].isin(["lru", "lfu"])].groupby("policy"):
        assert (np.diff(mine["tokens saved %"]) >= 0).all()
    assert (frame["hit %"] < 100).all()


def test_a_trace_that_fits_is_found_whole_whatever_the_policy():
    prompts = [((1, 2, 3), 1536), ((1, 2, 4), 1536), ((1, 2, 3, 5), 2048)]
    frame = trace_policies(prompts, [100]).frame
    # two blocks of the second, three of the third prompt
    assert frame["tokens saved %"].tolist() == [pytest.approx(100 * 5 * 512 / (1536 + 1536 + 2048))] * 4


def test_a_prompt_larger_than_the_cache_is_refused():
    frame = trace_policies([((1, 2, 3), 1536), ((1,), 513), ((1,), 513)], [2]).frame
    assert frame["prompts with a hit %"].tolist() == [pytest.approx(100 / 3)] * 4


@pytest.mark.slow
def test_one_command_prints_a_figure_of_each_of_the_seven(tmp_path, monkeypatch):
    monkeypatch.setattr(structures_tools, "OPERATIONS", 200)
    small = structures_memory.micro_batches
    monkeypatch.setattr(structures_memory, "micro_batches", lambda folder, requests, rates, windows: small(
        folder, 200, rates[:1], windows[:2]))
    report = DataStructures().run(Context("datastructures", tmp_path, quick=True))
    for number in "1234567":
        if number != "4" or not any(line.startswith("Retrieval:") for line in report.assumptions):
            assert any(table.title.startswith(f"{number}.") for table in report.tables), number
    assert any("Mooncake" in line for line in report.assumptions)
    assert report.write(tmp_path)
