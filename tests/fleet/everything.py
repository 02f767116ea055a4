"""A run with everything on at which requests can be lost, of any length: nothing is lost, nothing leaks.

    python tests/fleet/everything.py [REQUESTS] [--every-step]

A million requests take some ten minutes; tests/fleet/test_everything.py runs a few hundred.
"""

from __future__ import annotations

import argparse
import re
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import numpy as np
from conservation import assert_conserved, assert_held, assert_nothing_leaks, assert_tokens_add_up, ran

from hermes.core.record import FATES, RunRecord

RATE = 220.0   # requests a second, at times more than the clients serve
CLASSES = {"gold": {"priority": 2, "ttft": 1.0, "ttl": 5.0}, "basic": {"ttft": 4.0, "ceiling": 0.9},
           "batch": {"priority": -1}}


def scenario(requests: int, seed: int = 1, often: float = 100.0) -> dict[str, Any]:
    """Return it. often: Mean seconds of a replica between two failures of a kind; a longer run has more of them."""
    failures = [
        {"kind": "crash", "every": {"mean": often}},
        {"kind": "hang", "every": {"mean": often}, "lasts": 20.0, "answers_probes": False},
        {"kind": "straggler", "every": {"mean": often, "shape": 0.7}, "factor": 2.0, "lasts": 10.0},
        {"kind": "reclaim", "every": {"mean": 2 * often}, "notice": 2.0},
        {"kind": "node", "every": {"mean": 4 * often, "shape": 2.0}, "repair": 30.0, "notice": 0.0, "evict": 5.0},
    ]
    fleet = {
        "start": 5, "start_up": {"total": 4.0}, "failures": failures,
        "restarts": {"backoff": 1.0, "max_backoff": 20.0},
        "liveness": {"period": 2.0, "failures": 3, "timeout": 0.5, "grace": 1.0},
        "probe": {"period": 1.0, "failures": 2, "delay": 0.2}, "drain": {"grace": 3.0, "pre_stop": 0.5},
        "autoscaler": {"kind": "schedule", "changes": [
            {"at": 60.0, "replicas": 7}, {"at": 300.0, "replicas": 4}, {"at": 400.0, "replicas": 6}]},
    }
    flow = {"detector": {"kind": "utilization", "queue": 4, "kv": 0.9, "scrape": 0.05, "stale": 0.2},
            "fairness": {"kind": "round_robin"}, "ordering": "edf", "ttl": 20.0, "scan": 0.5,
            "revoke": {"grace": 0.2, "below": 1, "most": 5}}
    return {
        "seed": seed,
        "workload": {
            "requests": requests, "arrivals": {"kind": "gamma", "rate": RATE, "cv": 3.0},
            "lengths": {"kind": "independent", "prompt": {"kind": "uniform", "min": 5, "max": 600},
                        "output": {"kind": "uniform", "min": 1, "max": 120}},
            "prefixes": {"groups": 20, "tokens": 64}, "patience": {"total": "15s"},
            "retry": {"kind": "openai", "backoff": 0.5, "retries": 2, "begun": "restart"},
            "tenants": {"values": ["a", "b", "c"], "weights": [1, 2, 5]}, "classes": {"values": list(CLASSES)}},
        "gateway": {"classes": CLASSES, "flow_control": flow, "delay": 0.002, "replicas": 2, "cancel_delay": 0.05,
                    "timeout": 12.0, "tenants": {"a": {"weight": 3}},
                    "retry": {"kind": "envoy", "retries": 2, "per_try": 6.0, "begun": "restart",
                              "budget": {"share": 0.2, "min": 3}}},
        "router": {"kind": "power_of_two"},
        "clients": [{
            "name": "llm", "count": 8, "model": "llama-3.1-8b",
            "hardware": {"kind": "roofline", "model": "llama-3.1-8b", "device": "h100-sxm"},
            "scheduler": {"kind": "chunked", "max_num_seqs": 24, "max_num_batched_tokens": 1024},
            "memory": {"num_blocks": 700, "prefix_caching": True}, "frontend": {"before": "1ms", "after": "1ms"},
            "fleet": fleet}],
    }


def check(data: dict[str, Any]) -> RunRecord:
    """Run it and check that nothing is lost or left over."""
    simulation, record = ran(data)
    assert_nothing_leaks(simulation)
    assert_conserved(record)
    assert_tokens_add_up(record)
    assert_held(record, gateways=2)
    ends = (record.status == 1).sum() + (record.status == 2).sum()
    assert ends == len(record.status) == data["workload"]["requests"]
    assert len(record.fates) + (record.status == 1).sum() + (
        record.status[np.setdiff1d(np.arange(len(record.status)), record.fates[:, 0])] == 2).sum() == ends
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", nargs="?", type=lambda text: int(float(text)), default=10_000)
    parser.add_argument("--every-step", action="store_true")
    options = parser.parse_args()
    data = scenario(options.requests) | ({"stepping": "every_step"} if options.every_step else {})
    began = time.process_time()
    record = check(data)
    print(f"{len(record.status):,} requests: {(record.status == 1).sum():,} completed,",
          ", ".join(f"{(record.fates[:, 1] == code).sum():,} {name}" for code, name in enumerate(FATES)
                    if (record.fates[:, 1] == code).any()))
    reasons = Counter(re.sub(r"[0-9.]+", "#", reason) for reason in record.reject_reasons.values())
    print(*(f"{count:>9,} {reason}" for reason, count in reasons.most_common(8)), sep="\n")
    print(f"{len(record.attempts['call']):,} attempts; {len(record.membership):,} changes of replicas; "
          f"{time.process_time() - began:.0f} s of CPU, "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB at most")


if __name__ == "__main__":
    main()
