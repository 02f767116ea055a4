"""Record schedules of SGLang's own scheduler, alone, for the tests.

    python scripts/record_sglang_schedules.py PYTHON FOLDER [ADD]

PYTHON is an interpreter that has SGLang. ADD is added to the seeds: other requests for the same settings. One process
serves all cases (`evidence/schedules/sglang_alone.py`). Each is written to FOLDER/NAME.json (format:
docs/background/sglang.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

DRIVER = Path(__file__).resolve().parent.parent / "evidence" / "schedules" / "sglang_alone.py"
DEFAULTS: dict[str, Any] = {
    "page_size": 1, "max_total_num_tokens": 20_000, "max_running_requests": 64, "chunked_prefill_size": 512,
    "max_prefill_tokens": 2048, "schedule_policy": "fcfs", "schedule_conservativeness": 1.0,
    "enable_mixed_chunk": False, "disable_overlap_schedule": True, "disable_radix_cache": False, "ignore_eos": False}
SHARED = {"groups": 5, "shared": 0.8}
TIGHT = {"max_total_num_tokens": 1500}
HOPEFUL = {**TIGHT, "schedule_conservativeness": 0.1}   # admits more than fits: retraction follows
LONG = {"prompts": 25, "outputs": 60, "gap": 0}
AHEAD = {"disable_overlap_schedule": False}
Case = tuple[int, dict[str, Any], dict[str, Any]]   # seed, settings, requests

CASES: dict[str, Case] = {
    "plain": (1, {}, {}),
    "plain-page16": (2, {"page_size": 16}, {}),
    "no-radix": (3, {"disable_radix_cache": True}, {}),
    "no-radix-ignore-eos": (4, {"disable_radix_cache": True, "ignore_eos": True, **TIGHT}, {}),
    "no-radix-retract": (5, {"disable_radix_cache": True, **HOPEFUL}, LONG),
    "no-radix-page16-retract": (6, {"disable_radix_cache": True, **HOPEFUL, "page_size": 16}, LONG),
    "tight": (7, TIGHT, {}),
    "tight-retract": (8, HOPEFUL, LONG),
    "tight-page16-retract": (9, {**HOPEFUL, "page_size": 16}, LONG),
    "tight-ignore-eos": (10, {**TIGHT, "ignore_eos": True}, {}),
    "early-stop-burst": (13, HOPEFUL, {**LONG, "asked": 3}),
    "chunked-small": (14, {"chunked_prefill_size": 64}, {"prompts": 300}),
    "chunked-small-page16": (15, {"chunked_prefill_size": 64, "page_size": 16}, {"prompts": 300}),
    "unchunked": (16, {"chunked_prefill_size": None, "max_prefill_tokens": 300}, {"prompts": 200}),
    "few-slots": (17, {"max_running_requests": 5}, {"gap": 1}),
    "prefixes": (19, {}, SHARED),
    "prefixes-tight": (20, TIGHT, SHARED),
    "prefixes-tight-page16": (21, {**TIGHT, "page_size": 16}, SHARED),
    "prefixes-retract": (22, HOPEFUL, {**SHARED, **LONG, "prompts": 60}),
    "prefixes-retract-page16": (35, {**HOPEFUL, "page_size": 16}, {**SHARED, **LONG, "prompts": 60}),
    "lpm-retract": (36, {**HOPEFUL, "schedule_policy": "lpm"}, {**SHARED, **LONG, "prompts": 60, "gap": 2}),
    "lpm": (23, {"schedule_policy": "lpm", **TIGHT}, {**SHARED, "gap": 1}),
    "lpm-page16": (24, {"schedule_policy": "lpm", **TIGHT, "page_size": 16}, {**SHARED, "gap": 1}),
    "lpm-slots": (25, {"schedule_policy": "lpm", "max_running_requests": 4}, {**SHARED, "gap": 0}),
    "lpm-long-queue": (26, {"schedule_policy": "lpm", "max_running_requests": 12},
                       {**SHARED, "gap": 0, "count": 140, "outputs": 4, "prompts": 60}),
    "lof": (27, {"schedule_policy": "lof", "max_running_requests": 6}, {"gap": 0}),
    "dfs-weight": (28, {"schedule_policy": "dfs-weight", **TIGHT}, {**SHARED, "gap": 0}),
    "mixed": (29, {"enable_mixed_chunk": True, "chunked_prefill_size": 128}, {}),
    "mixed-prefixes": (30, {"enable_mixed_chunk": True, "chunked_prefill_size": 128, "max_total_num_tokens": 2500},
                       {**SHARED, "outputs": 80}),
    "mixed-page16": (31, {"enable_mixed_chunk": True, "chunked_prefill_size": 128, "page_size": 16,
                          "max_total_num_tokens": 2500}, {"outputs": 80}),
    "mixed-tight": (32, {"enable_mixed_chunk": True, "chunked_prefill_size": 128, **HOPEFUL}, {**LONG, "gap": 2}),
    "idle-gaps": (33, TIGHT, {"gap": 60, "count": 15}),
    "repeated-retract": (16, {**HOPEFUL, "max_total_num_tokens": 900},
                         {"groups": 8, "repeated": True, **LONG, "gap": 8, "asked": 2}),
    "even-page16": (3, {"max_total_num_tokens": 1024, "page_size": 16}, {"even": 16, "outputs": 60, "gap": 0}),
    "prefixes-refresh": (34, {**TIGHT, "max_running_requests": 3}, {**SHARED, "gap": 0, "count": 60, "outputs": 12}),
    "overlap": (41, AHEAD, {"count": 15}),
    "overlap-tight": (42, {**AHEAD, **TIGHT}, {"count": 15, "gap": 1}),
    "overlap-page16": (43, {**AHEAD, **TIGHT, "page_size": 16}, {**SHARED, "count": 15, "gap": 1}),
    "overlap-early-stop": (44, {**AHEAD, **TIGHT}, {"count": 20, "asked": 3, "gap": 1}),
    "overlap-early-stop-page16": (45, {**AHEAD, **TIGHT, "page_size": 16}, {"count": 20, "asked": 3, "gap": 1}),
    "overlap-prefixes": (46, {**AHEAD, **TIGHT, "schedule_policy": "lpm"}, {**SHARED, "count": 20, "gap": 1}),
    "overlap-slots": (47, {**AHEAD, "max_running_requests": 4}, {"count": 20, "gap": 0, "outputs": 15}),
    "overlap-retract": (48, {**AHEAD, **HOPEFUL, "max_total_num_tokens": 900}, {**LONG, "count": 25}),
    "overlap-retract-page16": (49, {**AHEAD, **HOPEFUL, "max_total_num_tokens": 800, "page_size": 16},
                               {**LONG, "count": 25, "gap": 2}),
    "overlap-retract-early": (50, {**AHEAD, **HOPEFUL, "max_total_num_tokens": 900}, {**LONG, "count": 30, "asked": 2}),
    "overlap-no-radix": (51, {**AHEAD, **HOPEFUL, "max_total_num_tokens": 900, "disable_radix_cache": True},
                         {**LONG, "count": 25}),
    "overlap-mixed": (52, {**AHEAD, **TIGHT, "enable_mixed_chunk": True, "chunked_prefill_size": 128},
                      {"count": 20, "gap": 1, "asked": 2}),
    "overlap-chunked": (53, {**AHEAD, "chunked_prefill_size": 64}, {"count": 10, "prompts": 300}),
    "overlap-ignore-eos": (54, {**AHEAD, **TIGHT, "ignore_eos": True, "disable_radix_cache": True},
                           {"count": 15, "gap": 1}),
    "abort": (61, TIGHT, {"patience": 40}),
    "abort-chunked": (62, {"chunked_prefill_size": 64}, {**SHARED, "prompts": 300, "patience": 8, "gap": 12}),
    "abort-chunked-page16": (63, {"chunked_prefill_size": 64, "page_size": 16},
                             {"prompts": 300, "patience": 8, "gap": 12}),
    "abort-prefixes": (64, {**TIGHT, "schedule_policy": "lpm"}, {**SHARED, "gap": 1, "patience": 30}),
    "abort-retract": (65, HOPEFUL, {**LONG, "patience": 60}),
    "abort-mixed": (66, {"enable_mixed_chunk": True, "chunked_prefill_size": 128, **TIGHT}, {"patience": 30, "gap": 2}),
    "abort-few-slots": (67, {"max_running_requests": 4}, {"gap": 1, "patience": 40, "asked": 2}),
    "abort-no-radix": (68, {"disable_radix_cache": True, **TIGHT}, {"gap": 1, "patience": 40}),
    "abort-overlap": (71, {**AHEAD, **TIGHT}, {"gap": 1, "patience": 40}),
    "abort-overlap-chunked": (72, {**AHEAD, "chunked_prefill_size": 64},
                              {**SHARED, "prompts": 300, "patience": 8, "gap": 12}),
    "abort-overlap-page16": (73, {**AHEAD, **TIGHT, "page_size": 16}, {**SHARED, "gap": 1, "patience": 30}),
    "abort-overlap-slots": (74, {**AHEAD, "max_running_requests": 4}, {"gap": 1, "patience": 30, "asked": 2}),
    "abort-overlap-retract": (75, {**AHEAD, **HOPEFUL, "max_total_num_tokens": 900}, {**LONG, "patience": 60}),
    "abort-overlap-mixed": (76, {**AHEAD, **TIGHT, "enable_mixed_chunk": True, "chunked_prefill_size": 128},
                            {"gap": 1, "patience": 30}),
}


def requests_of(seed: int, capacity: int, *, count: int = 30, prompts: int = 120, outputs: int = 40, gap: int = 4,
                groups: int = 0, shared: float = 0.0, asked: int = 0, even: int = 1,
                repeated: bool = False, patience: int = 0) -> list[dict[str, Any]]:
    """Return random requests.

    Args:
        prompts: Mean prompt tokens.
        outputs: Mean output tokens.
        gap: Most batches between arrivals; 0: all arrive at once.
        groups: Texts that prompts begin with.
        shared: Share of prompts that begin with one.
        even: Numbers of tokens are multiples of it.
        repeated: Each text is a prompt, and all prompts are texts.
        patience: Half of the requests are given up, after at most so many batches; 0: none.
        asked: How many times more tokens than it gets a request asks for, at most.
    """
    rng = np.random.default_rng(seed)
    step, made = 0, []
    for number in range(count):
        step += int(rng.integers(0, gap + 1)) if rng.random() < 0.7 else 0
        prompt = -(-int(rng.integers(1, 2 * prompts)) // even) * even
        output = -(-int(rng.integers(1, 2 * outputs)) // even) * even
        one: dict[str, Any] = {"id": number, "arrival_step": step, "prompt_tokens": prompt, "output_tokens": output}
        if asked:
            one["max_new_tokens"] = min(int(output * (1 + (asked - 1) * rng.random())), capacity // 2)
            one["output_tokens"] = min(output, one["max_new_tokens"])
        if groups and rng.random() < shared:
            one["prefix_group"] = int(rng.integers(0, groups))
            one["prefix_tokens"] = int(rng.integers(prompt // 2, prompt + 1))
        if repeated:
            group = one["prefix_group"] = int(rng.integers(0, groups))
            one["prompt_tokens"] = one["prefix_tokens"] = prompts // 2 + 17 * group
        if patience and rng.random() < 0.5:
            one["abort_step"] = step + int(rng.integers(0, patience + 1))
        made.append(one)
    return made


def packed(steps: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the lines of these batches."""
    rows: list[list[Any]] = []
    before: list[list[int]] = []
    for step in steps:
        scheduled = step["scheduled"]
        same = step["kind"] == "decode" and scheduled == [[number, 1, past + 1] for number, _, past in before]
        rows.append([step["kind"], 0 if same else scheduled, step["retracted"], step["free_tokens"],
                     step["cached_tokens"], step["ratio"]])
        before = scheduled if step["kind"] == "decode" else []
    return rows


def main() -> None:
    python, folder = sys.argv[1], Path(sys.argv[2])
    more = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    cases = []
    for seed, settings, wanted in CASES.values():
        settings = {**DEFAULTS, **settings}
        cases.append({"settings": settings,
                      "requests": requests_of(seed + more, settings["max_total_num_tokens"], **wanted)})
    done = subprocess.run([python, str(DRIVER)], input=json.dumps(cases), capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(answers) < len(cases):
        print(done.stderr[-3000:], file=sys.stderr)
        raise SystemExit(f"{python}: case {list(CASES)[len(answers)]} failed")
    folder.mkdir(parents=True, exist_ok=True)
    for name, case, answer in zip(CASES, cases, answers, strict=True):
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in packed(answer["steps"]))
        asked = ",\n".join(json.dumps(one, separators=(",", ":")) for one in case["requests"])
        (folder / f"{name}.json").write_text(
            f'{{"engine": "sglang", "engine_version": "{answer["version"]}", "seed": {CASES[name][0] + more},\n'
            f'"settings": {json.dumps(case["settings"])},\n"requests": [\n{asked}\n],\n"steps": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
