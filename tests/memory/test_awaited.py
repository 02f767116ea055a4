"""Answers that nobody reads before they have ended are hashed when they end: no time and no count changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_runs import quick_and_full

import hermes
from hermes.memory import PrefixBlockPool


def as_they_decode(self: PrefixBlockPool, seq: Any) -> bool:
    """What `PrefixBlockPool.answers_alone` says of content that others may read at any time."""
    chain = self._chains[seq]
    if chain.end >= chain.name_end:
        chain.next_name()
    return chain.runs is None


ENGINE = {"model": "llama-3.1-8b", "device": "h100-sxm"}


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Conversations on one to three engines, mostly with too little memory, think times from none on."""
    system = draw(st.sampled_from([0, 20, 300]))
    lengths = {"kind": "conversations", "turns": draw(st.integers(2, 5)), "system_tokens": system,
               "message": draw(st.sampled_from([7, 40, {"kind": "uniform", "min": 5, "max": 400}])),
               "output": draw(st.sampled_from([3, 33, {"kind": "uniform", "min": 1, "max": 200}])),
               "think_time": draw(st.sampled_from([0, "1 ms", "200 ms", "2 s"]))}
    arrivals = draw(st.sampled_from([{"kind": "poisson", "rate": 2}, {"kind": "poisson", "rate": 30},
                                     {"kind": "closed_loop", "users": 6}]))
    kinds: list[dict[str, Any]] = [{"kind": "continuous"}, {"kind": "chunked"},
                                   *({"kind": "chunked", "async_scheduling": on} for on in (True, False))]
    scheduler = dict(draw(st.sampled_from(kinds)))
    memory = {"num_blocks": draw(st.sampled_from([260, 400, 1000, 20_000]))}
    scheduler["max_num_seqs"] = draw(st.sampled_from([2, 8, 256]))
    engine: dict[str, Any] = {**ENGINE, "scheduler": scheduler, "memory": memory}
    if draw(st.integers(0, 3)) == 0 and scheduler["kind"] == "chunked":
        engine["scheduler"]["speculative"] = {"method": "eagle", "num_speculative_tokens": 2, "acceptance_rate": 0.6}
    split = draw(st.booleans()) and scheduler["kind"] == "chunked"
    clients = [{**engine, "name": "p", "role": "prefill"}, {**engine, "name": "d", "role": "decode"}] if split else [
        {**engine, "name": "one", "count": draw(st.integers(1, 2))}]
    workload = {"requests": draw(st.integers(10, 60)), "arrivals": arrivals, "lengths": lengths,
                **draw(st.sampled_from([{}, {}, {}, {"max_new_tokens": 250}, {"branches": 2},
                                        {"patience": {"first_token": "300 ms"}}]))}
    return {"seed": draw(st.integers(0, 1000)), "clients": clients, "workload": workload}


@quick_and_full(8, 50, thorough=1000)
@given(scenarios())
def test_results_are_those_of_hashing_while_they_decode(scenario: dict[str, Any]) -> None:
    late = hermes.simulate(scenario)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PrefixBlockPool, "answers_alone", as_they_decode)
        early = hermes.simulate(scenario)
    for one, other in ((late.requests, early.requests), (late.stages, early.stages)):
        assert one.drop(columns="energy_j").equals(other.drop(columns="energy_j"))
        # joules are summed over runs of steps, which late hashing cuts less often: the last digit may differ
        np.testing.assert_allclose(one["energy_j"], other["energy_j"], rtol=1e-12)
