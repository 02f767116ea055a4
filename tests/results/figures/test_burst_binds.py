"""What binds a burst: requests that come within a moment, and take long."""

from __future__ import annotations

import pytest

from hermes import simulate


@pytest.mark.parametrize("arrivals", [{"kind": "uniform", "rate": 1_000_000}, {"kind": "uniform", "rate": 2_000}])
def test_clients_that_take_seconds_for_a_burst_do_not_keep_up_with_it(arrivals):
    results = simulate({
        "workload": {"requests": 400, "arrivals": arrivals, "lengths": {"kind": "fixed", "prompt": 512, "output": 64}},
        "clients": [{"name": "llm", "model": "llama-3.1-8b", "device": "h100-sxm"}]})
    assert results.summary["makespan_s"] > 2
    binds = results.summary["binds"]
    assert (binds["what"], binds["where"]) == ("compute", "llm")
