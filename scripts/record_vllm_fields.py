"""Record schedules from vLLM's own scheduler, alone: what the whole engine's recordings do not have.

    python scripts/record_vllm_fields.py PYTHON CASES.json OUT [--only GLOB]
    python scripts/record_vllm_fields.py PYTHON FILE ... --replay

PYTHON is an interpreter that has vLLM. CASES lists cases like those in scripts/vllm-schedules/fields.json (fields of
SchedulerConfig) and ends.json (stop tokens, requests given up): settings of the engine, a workload, seeds. The
recordings have the format of docs/reference/schedules.md; `hermes conform OUT` compares. `--replay` serves the requests
of existing files again and says whether the steps are the same.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from engine_matrix import packed

from evidence.schedules.vllm_replay import RecordedSchedule
from hermes.deploy.engine_conform import ask

SETTINGS: dict[str, Any] = {
    "max_num_batched_tokens": 256, "max_num_seqs": 32, "num_blocks": 400, "block_size": 16, "prefix_caching": False,
    "scheduling_policy": "fcfs", "long_prefill_token_threshold": 0, "watermark": 0.0, "chunked_prefill": True,
    "reserve_full_isl": True, "adaptive_cap": False, "async_scheduling": False,
}
ALWAYS = ("max_num_batched_tokens", "max_num_seqs", "num_blocks", "block_size", "prefix_caching", "scheduling_policy",
          "long_prefill_token_threshold")


def requests_of(workload: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the requests of a case: uniform lengths and gaps, groups with the same beginning, adapters."""
    draw, arrival = random.Random(seed), 0
    ends = random.Random(f"ends-{seed}")
    for number in range(workload["requests"]):
        arrival += draw.choices((0, draw.randint(1, workload["gap"])), (1, 1))[0]
        prompt, end = draw.randint(*workload["prompt"]), _end(workload, ends, arrival)
        groups = workload.get("groups", 0)
        yield {
            "id": number, "arrival_step": arrival, "prompt_tokens": prompt,
            "output_tokens": (tokens := draw.randint(*workload["output"])),
            "priority": draw.randint(0, workload.get("priorities", 1) - 1),
            "prefix_group": draw.randrange(groups) if groups else None,
            "prefix_tokens": 0 if not groups else prompt if workload.get("whole") else draw.randint(0, prompt),
            **({"adapter": draw.randint(0 if workload.get("plain", True) else 1, workload["adapters"])}
               if "adapters" in workload else {}),
            **end, **({"max_new_tokens": tokens + end["max_new_tokens"]} if "max_new_tokens" in end else {}),
        }


def _end(workload: dict[str, Any], draw: random.Random, arrival: int) -> dict[str, Any]:
    """Return how a request ends, if not by its length: `early` and `give_up` are the shares of those that a stop token
    ends, and that their clients give up within `patience` steps, between two steps or while one runs."""
    end: dict[str, Any] = {}
    if draw.random() < workload.get("early", 0.0):
        end["max_new_tokens"] = draw.randint(1, 40)   # more than it gets
    if draw.random() < workload.get("give_up", 0.0):
        waits = draw.randint(0, workload["patience"])
        end |= {"abort_in_step": arrival + waits} if draw.random() < 0.5 else {"abort_step": arrival + waits + 1}
    return end


def answers(python: str, cases: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the engine's version and its answers to (settings, requests). A block that all of a group's text fills has
    the group's number, whatever the adapter."""
    asked = []
    for settings, requests in cases:
        size = settings["block_size"]
        given = [{**one, "blocks": [one["prefix_group"] * 1000 + block for block in range(one["prefix_tokens"] // size)]
                  if one["prefix_tokens"] else [], "accepted": settings.get("accepted", [])} for one in requests]
        arrivals = "results" if settings["async_scheduling"] else "schedules"
        asked.append({"settings": settings | {"arrivals": arrivals}, "requests": given})
    return ask(python, asked)


def both_modes(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the cases; one with `modes` once for each, scheduled synchronously (false) or asynchronously (true)."""
    for case in cases:
        for mode in case.get("modes", (None,)):
            settings = case["settings"] | ({} if mode is None else {"async_scheduling": mode})
            yield {**case, "name": case["name"] + ("-async" if mode else ""), "settings": settings}


def recordings(python: str, cases: list[dict[str, Any]], only: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, recording) of every case and seed."""
    wanted = [(f"{case['name']}-{seed}", case, seed) for case in both_modes(cases) for seed in case["seeds"]
              if fnmatch(f"{case['name']}-{seed}", only)]
    asked = [({**SETTINGS, **case["settings"]}, list(requests_of(case["workload"], seed)))
             for _name, case, seed in wanted]
    version, given = answers(python, asked)
    for (name, case, seed), (settings, requests), answer in zip(wanted, asked, given, strict=True):
        kept = {key: value for key, value in settings.items() if key in ALWAYS or value != SETTINGS.get(key)}
        yield name, {"engine": f"vllm {version} (V1 scheduler alone)", "case": case["name"], "seed": seed,
                     **kept, "requests": requests,
                     "steps": packed(answer["steps"]) if case.get("packed") else answer["steps"]}


def again(python: str, paths: list[Path]) -> bool:
    """Whether the engine takes the steps of recordings again."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    keys = (*SETTINGS, "scheduler_config", "max_loras", "num_speculative_tokens", "speculative_method", "accepted")
    _version, given = answers(python, [(SETTINGS | {key: file[key] for key in keys if key in file}, file["requests"])
                                       for file in files])
    same = [answer["steps"] == RecordedSchedule.model_validate(file).rows
            for answer, file in zip(given, files, strict=True)]
    for path, one in zip(paths, same, strict=True):
        print(f"{path}: {'the same' if one else 'DIFFERENT'}")
    return all(same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--replay", action="store_true")
    args = parser.parse_args()
    if args.replay:
        return 0 if again(args.python, args.paths) else 1
    cases, out = args.paths
    out.mkdir(parents=True, exist_ok=True)
    for name, recording in recordings(args.python, json.loads(cases.read_text(encoding="utf-8")), args.only):
        (out / f"{name}.json").write_text(json.dumps(recording, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{name}: {len(recording['requests'])} requests, {len(recording['steps'])} steps", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
