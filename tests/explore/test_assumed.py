"""The defaults behind an answer of `hermes size`, by simulating their alternatives."""

from __future__ import annotations

import hermes
from hermes.explore.assumed import assumes_of_best
from hermes.explore.size import size
from hermes.results.assumes import LISTED, changes_between, headlines
from hermes.scenario import load_scenario
from hermes.scenario.assumptions import assumptions

QUESTION = {
    "seed": 1, "slo": {"ttft": "1 s", "tpot": "50 ms"}, "clients": [{"model": "llama-3.1-8b", "device": "h100-sxm"}],
    "workload": {"requests": 300, "arrivals": {"kind": "poisson", "rate": 5.0},
                 "lengths": {"kind": "empirical", "profile": "azure-conv-2023"}},
}


def test_alternatives_of_the_best_layout_are_simulated() -> None:
    sizing = size(QUESTION, devices=["h100-sxm"], tps=[1], layouts=["mixed"], workers=0)
    entries = {entry["name"]: entry for entry in assumes_of_best(sizing)}
    assert entries["engine time"]["method"] == "simulated"
    assert max(map(abs, entries["engine time"]["effect"].values())) >= LISTED
    document = sizing.settings(sizing.meets[0])
    before = hermes.simulate(document)
    one = next(one for one in assumptions(load_scenario(document)) if one.name == "engine time")
    after = hermes.simulate(document, overrides=dict(one.settings))
    assert entries["engine time"]["effect"] == changes_between(headlines(before.summary), headlines(after.summary))
