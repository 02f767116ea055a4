"""Record schedules of vLLM's scheduler with its OffloadingConnector (KV offload to host memory).

    python scripts/record_vllm_offload.py --python PYTHON --cases scripts/vllm-schedules/cases-offload.json --out FOLDER
    python scripts/record_vllm_offload.py --python PYTHON --mixtures 20 --seed 1 --out FOLDER
    python scripts/record_vllm_offload.py --python PYTHON --replay tests/data/vllm-schedules-offload/*.json

PYTHON is an interpreter that has vLLM (docs/reference/schedules.md). No GPU and no model take part. `--mixtures` draws
so many random mixtures (`schedule_mixtures.joined`), half of them asynchronous. `--replay` records the requests of
existing files again and compares.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from schedule_mixtures import joined

SCRIPT = Path(__file__).resolve().parents[1] / "evidence" / "schedules" / "vllm_offload_alone.py"
DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 256, "max_num_seqs": 16, "num_blocks": 64, "block_size": 16, "prefix_caching": True,
    "scheduling_policy": "fcfs", "long_prefill_token_threshold": 0, "watermark": 0.0, "chunked_prefill": True,
    "reserve_full_isl": True, "adaptive_cap": False, "async_scheduling": False, "host_chunks": 200,
    "blocks_per_chunk": 1, "eviction_policy": "lru", "offload_prompt_only": True, "store_threshold": 0,
    "load_steps": 1, "store_steps": 0, "blocks_per_step": 0,
}

OPTIONAL = ("max_loras", "scheduler_config", "local_interval", "num_speculative_tokens", "speculative_method",
            "accepted")   # settings of some recordings
KEPT = ("scheduled", "free_blocks_after", "host")   # of a step, also if empty or 0


def between(rng: random.Random, span: list[int]) -> int:
    return rng.randint(span[0], span[1])


def requests_of(workload: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Draw requests: single ones that share prefixes, or conversations whose turns repeat what came before."""
    rng = random.Random(seed)
    adapters = random.Random(f"adapters {seed}")   # of their own: cases without adapters stay as they are
    out: list[dict[str, Any]] = []
    unit = workload.get("prefix_unit", 1)
    shared = [unit * between(rng, workload.get("prefix", [0, 0])) for _ in range(workload.get("groups", 1))]
    arrival = 0.0
    for number in range(workload["requests"]):
        arrival += rng.expovariate(1.0 / workload["gap"]) if workload["gap"] else 0.0
        prompt, output = between(rng, workload["prompt"]), between(rng, workload["output"])
        turns = between(rng, workload.get("turns", [1, 1]))
        group, text, start = rng.randrange(len(shared)), 0, round(arrival)
        if rng.random() < workload.get("share", 1.0):
            text = shared[group]
        if turns > 1:
            group = 1000 + number
        adapter = {"adapter": adapters.randint(0, workload["adapters"])} if "adapters" in workload else {}
        for turn in range(turns):
            text = text + prompt if turns > 1 else text
            own = prompt if turns == 1 else 0
            out.append({
                "id": 0, "arrival_step": start, "prompt_tokens": text + own, "output_tokens": output,
                "priority": rng.randrange(workload.get("priorities", 1)), "prefix_group": group,
                "prefix_tokens": text + (output if turns > 1 else 0), **adapter})
            text += output
            start += output + between(rng, workload.get("think", [20, 60])) + turn
            prompt, output = between(rng, workload.get("next", workload["prompt"])), between(rng, workload["output"])
    out.sort(key=lambda one: one["arrival_step"])
    for number, one in enumerate(out):
        one["id"] = number
    return out


def drawn(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a case of a mixture."""
    settings = {name: value for name, value in plan.items() if name not in ("case", "seed", "requests")}
    return {"name": f"{plan['case']}-{plan['seed']}", "case": plan["case"], "seed": plan["seed"],
            "settings": DEFAULTS | settings, "requests": plan["requests"]}


def record(python: str, cases: list[dict[str, Any]]) -> tuple[str, list[list[dict[str, Any]]]]:
    done = subprocess.run([python, str(SCRIPT)], input=json.dumps(cases), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer["version"], answer["steps"]


def write(path: Path, content: dict[str, Any]) -> None:
    """Write one line for each request and step, so that a difference can be read. Empty lists and zeros of steps are
    left out."""
    content = content | {"steps": [{name: value for name, value in step.items() if value or name in KEPT}
                                   for step in content["steps"]]}
    lines = []
    for name, value in content.items():
        if name in ("requests", "steps"):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f'"{name}":[\n{rows}]')
        else:
            lines.append(f'"{name}":{json.dumps(value)}')
    path.write_text("{" + ",\n".join(lines) + "}\n")


def counts_of(steps: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "loads": sum(len(step["loads"]) for step in steps), "stores": sum(len(step["stores"]) for step in steps),
        "loaded_blocks": sum(one[1] for step in steps for one in step["loads"]),
        "stored_blocks": sum(one[1] for step in steps for one in step["stores"]),
        "preemptions": sum(len(step["preempted"]) for step in steps),
        "flushed": sum(step["flushed"] for step in steps),
        "steps_with_loading": sum(bool(step["loading"]) for step in steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--mixtures", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replay", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    if args.replay:
        files = [json.loads(path.read_text()) for path in args.replay]
        version, steps = record(args.python, [
            {"settings": {name: one[name] for name in (*DEFAULTS, *OPTIONAL) if name in one},
             "requests": one["requests"]} for one in files])
        same = sum([{name: value for name, value in step.items() if value or name in KEPT} for step in theirs]
                   == one["steps"] for theirs, one in zip(steps, files, strict=True))
        print(f"vllm {version}: {same} of {len(files)} recordings come out the same")
        sys.exit(same < len(files))
    if args.mixtures:
        cases = [drawn(plan) for asynchronous in (False, True)
                 for plan in joined(args.mixtures // 2, args.seed, asynchronous=asynchronous, host=True)]
    else:
        cases = [{"name": f"{case['case']}-{seed}", "case": case["case"], "seed": seed,
                  "settings": DEFAULTS | case["engine"], "requests": requests_of(case["workload"], seed)}
                 for case in json.loads(args.cases.read_text()) for seed in case["seeds"]]
    version, found = record(args.python, [{name: case[name] for name in ("settings", "requests")} for case in cases])
    args.out.mkdir(parents=True, exist_ok=True)
    for case, steps in zip(cases, found, strict=True):
        counts = counts_of(steps)
        write(args.out / f"{case['name']}.json", {
            "engine": f"vllm {version}, scheduler and OffloadingConnector alone", "case": case["case"],
            "seed": case["seed"], **case["settings"], "counts": counts, "requests": case["requests"], "steps": steps})
        print(f"{case['name']:28} {len(case['requests']):3} requests {len(steps):4} steps  {counts}")


if __name__ == "__main__":
    main()
