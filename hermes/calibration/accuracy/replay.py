"""Simulate one server on a given list of requests."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hermes.api import simulate
from hermes.hardware.trust import Trust
from hermes.results import Results

__all__ = ["replay", "trust_of_steps"]


def replay(
    client: Mapping[str, Any], requests: pd.DataFrame, arrivals: Mapping[str, Any] | None = None,
    router: Mapping[str, Any] | None = None, max_in_flight: int | None = None,
) -> Results:
    """Results of one client, or a group of equal ones behind `router`, that serves `requests`, a trace
    (`hermes.workload.traces`): its rows are served in order, at their `arrival_s` or as soon after as fewer than
    `max_in_flight` are being served, or by `arrivals` where given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.csv"
        requests.to_csv(path, index=False)
        trace = {"kind": "trace", "path": str(path)}
        at = trace if max_in_flight is None else {**trace, "max_in_flight": max_in_flight}
        # the servers' load drivers asked for answers of these lengths
        workload: dict[str, Any] = {"arrivals": dict(arrivals or at), "lengths": trace, "ends": "max_new_tokens"}
        if arrivals is not None:
            workload["requests"] = len(requests)
        scenario: dict[str, Any] = {"name": "accuracy", "seed": 1, "workload": workload, "clients": [dict(client)]}
        if router is not None:
            scenario["router"] = dict(router)
        return simulate(scenario)


def trust_of_steps(results: Results) -> Trust | None:
    """Return class and range of the step times of the first group of clients, as `run` prints them; None where the
    queue grows, of which no latency has a range."""
    if results.find_sources is None or results.summary_of_run["headline"]["stable"] is False:
        return None
    found = results.find_sources(results)
    return Trust(found[0]["class"], found[0]["low"], found[0]["high"]) if found else None
