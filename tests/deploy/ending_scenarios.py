"""Scenarios whose requests end as real ones do: by stop tokens, or because their clients give up.

Each is a mixture of arrivals (with idle gaps or without), ends and settings of the engine. `test_engine_conform.py` and
`test_vllm_scheduler.py` compare them with the engine itself.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

CLIENT: Row = {"model": "llama-3.1-8b", "device": "l40s"}
CHAT: Row = {"kind": "independent", "prompt": {"kind": "lognormal", "median": 150, "sigma": 1.0, "max": 900},
             "output": {"kind": "lognormal", "median": 40, "sigma": 0.9, "max": 160}}
TALKS: Row = {"kind": "conversations", "turns": 3, "system_tokens": 200, "message": 60, "think_time": 0.5,
              "output": {"kind": "geometric", "mean": 50, "max": 160}}
BUSY: Row = {"kind": "poisson", "rate": 14}
GAPS: Row = {"kind": "gamma", "rate": 2, "cv": 3}
HASTY: Row = {"total": 2.5}
NO_WAIT: Row = {"first_token": 0.3, "total": 4}
EAGLE: Row = {"async_scheduling": True, "speculative": {
    "method": "eagle", "num_speculative_tokens": 3, "acceptance_rate": 0.7}}
MTP: Row = {"async_scheduling": True, "speculative": {
    "method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.85}}
NGRAM: Row = {"async_scheduling": False, "speculative": {
    "method": "ngram", "num_speculative_tokens": 4, "acceptance_rate": 0.4}}
SYNC: Row = {"async_scheduling": False}
URGENT: Row = {"policy": "priority"}


def scenario(seed: int, arrivals: Row, lengths: Row = CHAT, *, requests: int = 60, blocks: int = 160,
             scheduler: Row | None = None, memory: Row | None = None, **workload: Any) -> Row:
    """Return a scenario. workload: More keys of it."""
    ends = {} if "max_new_tokens" in workload else {"ends": "stop_token"}
    load = {"requests": requests, "arrivals": arrivals, "lengths": lengths, **ends, **workload}
    if scheduler and scheduler.get("policy") == "priority":
        load["priorities"] = {"values": [0, 1, 4]}
    return {"name": "ends", "seed": seed, "workload": load, "clients": [{
        **CLIENT, "memory": {"num_blocks": blocks, "block_size": 16, **(memory or {})},
        "scheduler": {"kind": "chunked", "max_num_batched_tokens": 512, **(scheduler or {})}}]}


SCENARIOS: dict[str, Row] = {
    "chat": scenario(1, BUSY),
    "chat, roomy": scenario(2, BUSY, blocks=900),
    "chat, synchronous": scenario(3, BUSY, scheduler=SYNC),
    "chat, half of it by its length": scenario(4, BUSY, max_new_tokens=40),
    "idle gaps": scenario(5, GAPS),
    "idle gaps, few seats": scenario(6, GAPS, scheduler={"max_num_seqs": 3}),
    "priorities": scenario(7, BUSY, scheduler=URGENT),
    "priorities, idle gaps": scenario(8, GAPS, scheduler=URGENT, blocks=100),
    "a cap": scenario(9, BUSY, scheduler={"long_prefill_token_threshold": 100}),
    "conversations": scenario(10, {"kind": "poisson", "rate": 4}, TALKS, blocks=140),
    "conversations, closed loop": scenario(11, {"kind": "closed_loop", "users": 6, "think": 0.2}, TALKS, blocks=110),
    "without a prefix cache": scenario(12, BUSY, memory={"prefix_caching": False}),
    "adapters": scenario(13, BUSY, scheduler={"max_loras": 2}, adapters={"count": 4, "fraction": 0.8},
                         prefixes={"groups": 2, "tokens": 200}),
    "patience": scenario(14, BUSY, patience=HASTY, blocks=120),
    "patience, synchronous": scenario(15, BUSY, patience=HASTY, blocks=120, scheduler=SYNC),
    "patience, idle gaps": scenario(16, GAPS, patience=NO_WAIT, blocks=100),
    "patience, priorities": scenario(17, BUSY, patience=NO_WAIT, scheduler=URGENT, blocks=110),
    "patience, by length": scenario(18, BUSY, patience=NO_WAIT, ends="max_new_tokens"),
    "drafts": scenario(19, BUSY, scheduler=EAGLE),
    "drafts, idle gaps": scenario(20, GAPS, scheduler=EAGLE, blocks=100),
    "drafts, half of it by its length": scenario(21, BUSY, scheduler=EAGLE, max_new_tokens=40),
    "drafts, patience": scenario(22, BUSY, scheduler=EAGLE, patience=HASTY, blocks=120),
    "drafts, patience, idle gaps": scenario(23, GAPS, scheduler=MTP, patience=NO_WAIT, blocks=100),
    "drafts, synchronous, patience": scenario(24, BUSY, scheduler=NGRAM, patience=HASTY, blocks=120),
}
