"""Notes of slots: those that a request's kind had when it started, and how many were in use."""

from __future__ import annotations

import pytest

from hermes.api import simulate


def run(slots: str):
    """Six embeddings and two generations at time 0, in places for four."""
    return simulate({
        "workload": [{"name": name, "requests": count, "arrivals": {"kind": "closed_loop", "users": count, "think": 0},
                      "lengths": {"kind": "fixed", "prompt": 16, "output": 4}, "pipeline": pipeline}
                     for name, count, pipeline in (("e", 6, "embedding"), ("g", 2, "plain"))],
        "clients": [{"name": "llm", "memory": {"num_blocks": 1000},
                     "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
                     "scheduler": {"kind": "heterogeneous", "slots": slots, "max_num_seqs": 4,
                                   "max_num_batched_tokens": 4096}}]})


def test_ibs_divides_the_places_by_the_queues():
    """6 : 2 waiting in four places: three slots for embeddings, one for generations. Then the other three embeddings
    against the one generation that waits: again 3 and 1, and the running generation has that slot. When no embedding
    waits any more, generations may have all four."""
    requests = run("ibs").requests
    embeddings = requests[requests["workload"] == "e"]
    assert embeddings["note_embed_slots"].tolist() == [3] * 6
    assert embeddings["note_embed_slots_used"].tolist() == [1, 2, 3] * 2
    assert embeddings["note_generate_slots"].isna().all()
    generations = requests[requests["workload"] == "g"]
    assert generations["note_generate_slots"].tolist() == [1, 4]
    assert generations["note_generate_slots_used"].tolist() == [1, 2]


def test_without_a_division_each_kind_has_all_places():
    summary = run("fcfs").summary["notes"]
    assert summary["embed_slots"]["min"] == summary["generate_slots"]["max"] == 4
    assert summary["embed_slots"]["count"] == 6
    assert summary["embed_slots_used"]["max"] == 4


@pytest.mark.parametrize("slots", ["fcfs", "ibs"])
def test_no_more_slots_are_used_than_there_are(slots):
    requests = run(slots).requests
    for kind in ("embed", "generate"):
        used, had = requests[f"note_{kind}_slots_used"], requests[f"note_{kind}_slots"]
        assert (used.dropna() <= had.dropna()).all()
