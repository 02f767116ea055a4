"""Random scenarios of drafts and a prefix cache: what `hermes conform SCENARIO --engine vllm` compares with the engine.

Each draws a method whose blocks are hashed with the token after them from vLLM 0.33 on, asynchronous or synchronous
scheduling, prompts that begin alike or conversations, how requests end, whether clients give up, and how tight memory
and budget are. The same seed gives the same scenario.

    python tests/deploy/drafting_scenarios.py PYTHON [--engine vllm-0.33] [--count 30] [--seed 1]

serves that many with an interpreter's vLLM and prints which take the same steps; exit code 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from hermes.clients.schedule_rows import compared
from hermes.deploy.engine_conform import ask, served_of

__all__ = ["differences", "drawn"]

Row = dict[str, Any]


def drawn(seed: int, engine: str) -> Row:
    """Return one scenario. engine: That of its client, as `vllm-0.33`."""
    draw = random.Random(f"drafts {seed}")
    size = draw.choice((4, 8, 16, 16, 32))
    longest = draw.choice((300, 900))
    budget = draw.choice((128, 256, 512))
    scheduler: Row = {
        "kind": "chunked", "max_num_batched_tokens": budget, "async_scheduling": draw.random() < 0.5,
        "speculative": {"method": draw.choice(("eagle", "mtp")), "num_speculative_tokens": draw.randint(1, 4),
                        "acceptance_rate": draw.choice((0.3, 0.6, 0.8, 0.95))}}
    if draw.random() < 0.25:
        scheduler["policy"] = "priority"
    if draw.random() < 0.25:
        scheduler["max_num_seqs"] = draw.randint(3, 10)
    if draw.random() < 0.25:
        scheduler["long_prefill_token_threshold"] = draw.choice((40, 100))
    output: Row = draw.choice(({"kind": "geometric", "mean": 50, "max": 160},
                               {"kind": "lognormal", "median": 40, "sigma": 0.9, "max": 160}))
    rate = draw.choice((4, 10, 20))
    arrivals: Row = draw.choice(({"kind": "poisson", "rate": rate}, {"kind": "poisson", "rate": rate},
                                 {"kind": "gamma", "rate": rate / 3, "cv": 3}))
    load: Row = {"requests": draw.randint(40, 80), "arrivals": arrivals}
    if draw.random() < 0.4:
        load["lengths"] = {"kind": "conversations", "turns": draw.randint(2, 4), "system_tokens": draw.randint(0, 300),
                           "message": draw.choice((17, 60)), "think_time": draw.choice((0.1, 0.5)), "output": output}
        longest += 900
        if draw.random() < 0.3:
            load["arrivals"] = {"kind": "closed_loop", "users": draw.randint(3, 8), "think": 0.2}
    else:
        load["lengths"] = {"kind": "independent", "output": output, "prompt": {
            "kind": "lognormal", "median": draw.choice((60, 150)), "sigma": 1.0, "max": longest}}
        load["prefixes"] = {"groups": draw.randint(1, 4), "tokens": draw.choice((size * 3, draw.randint(10, 300)))}
        longest += 300
    if scheduler.get("policy"):
        load["priorities"] = {"values": [0, 1, 4]}
    ends = draw.choice(("stop_token", "stop_token", "max_new_tokens", "some"))
    load |= {"max_new_tokens": 60} if ends == "some" else {"ends": ends}
    if draw.random() < 0.4:
        load["patience"] = draw.choice(({"total": 2.5}, {"first_token": 0.3, "total": 4}, {"total": 1}))
    blocks = int((longest + 200) / size * draw.choice((1.0, 1.4, 3, 8)))
    return {"name": f"drafts-{seed}", "seed": seed, "workload": load, "clients": [{
        "model": "llama-3.1-8b", "device": "l40s", "engine": engine, "scheduler": scheduler,
        "memory": {"num_blocks": blocks, "block_size": size}}]}


def differences(python: str, seeds: Sequence[int], engine: str) -> tuple[str, list[Row | None]]:
    """Return the version of an interpreter's vLLM, and of each scenario the first step that differs, None for none."""
    found = [served_of(drawn(seed, engine))[0] for seed in seeds]
    version, answers = ask(python, [{"settings": one.settings, "requests": one.requests} for one in found])
    return version, [compared(answer["steps"], one.steps, "engine")[1] if "steps" in answer else answer
                     for one, answer in zip(found, answers, strict=True)]


def main(*args: str) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="vllm-0.33")
    given = parser.parse_args(args)
    seeds = range(given.seed, given.seed + given.count)
    version, found = differences(given.python, seeds, given.engine)
    for seed, first in zip(seeds, found, strict=True):
        if first is not None:
            print(f"{seed}: {json.dumps(first)}")
    print(f"vllm {version}: {found.count(None)} of {len(found)} scenarios identical")
    return 0 if found.count(None) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
