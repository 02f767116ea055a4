"""Bytecodes of one more request in the kernel's cases, by function, here and in another checkout.

    python benchmarks/bytecodes.py [--only CASE ...] [--top N] [--against TREE]

The interpreter counts them, so they are the same in each run of one Python version, and say which function took on
weight: seconds and instructions (`benchmarks/instructions.py`) say only that something did. A case takes seconds.
`tests/core/test_kernel_cost.py` holds two cases to what they were.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

REQUESTS = 200
ROOT = Path(__file__).resolve().parents[1]
NAMES = ("chunked", "clients_10", "clients_100", "clients_100_tokens_left", "continuous", "static", "mixed",
         "disaggregated", "preemption", "prefix_cache", "cached", "every_step")


def executed(call: Callable[[], object]) -> Counter[CodeType]:
    """Return how many bytecodes of each function a call executes."""
    counts: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:   # Any: as `sys.settrace` has it
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts[frame.f_code] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return counts


def of_more_requests(name: str, requests: int) -> dict[str, int]:
    """Return by function the bytecodes of so many more requests of a case than half of that: the difference is without
    what is built once."""
    import hermes
    from benchmarks.core import CASES

    def run(count: int) -> None:
        spec = json.loads(json.dumps(CASES[name][1]))
        spec["workload"]["requests"] = count
        hermes.simulate(spec)

    run(requests // 2)   # what a process does once
    few, many = executed(lambda: run(requests // 2)), executed(lambda: run(requests // 2 + requests))
    out: dict[str, int] = {}
    for code, count in many.items():
        where = code.co_filename.rpartition("/hermes/")[2]
        key = f"{where}:{code.co_qualname}"
        out[key] = out.get(key, 0) + count - few[code]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="CASE", choices=NAMES, default=NAMES, help="these cases only")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="the N heaviest functions of each case")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, to compare with")
    parser.add_argument("--json", action="store_true", help="print one case as JSON")
    options = parser.parse_args()
    sys.path.append(str(ROOT))   # behind PYTHONPATH, which may name another checkout
    if options.json:
        print(json.dumps(of_more_requests(options.only[0], REQUESTS)))
        return
    for name in options.only:
        trees = [ROOT, *([options.against.resolve()] if options.against else [])]
        counts = [json.loads(subprocess.run(
            [sys.executable, __file__, "--json", "--only", name], env={"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
            capture_output=True, text=True, check=True).stdout) for tree in trees]
        found = [{key: count / REQUESTS for key, count in each.items()} for each in counts]
        totals = [sum(each.values()) / REQUESTS for each in counts]
        print(f"{name:26}", *(f"{total:10,.0f}" for total in totals),
              f"{totals[0] / totals[-1]:7.3f}" if options.against else "", flush=True)
        for key in sorted(found[0], key=found[0].__getitem__, reverse=True)[:options.top]:
            print(f"    {found[0][key]:10.1f}", *(f"{each.get(key, 0):10.1f}" for each in found[1:]), f" {key}")


if __name__ == "__main__":
    main()
