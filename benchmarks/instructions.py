"""Instructions per request of the kernel's cases, here and at another commit, counted by valgrind.

    python benchmarks/instructions.py [--against COMMIT] [--only CASE ...] [--requests N]

Seconds differ by a tenth and more from run to run on a shared machine, and calls per request miss what an attribute hop
costs: eleven of twelve cases became 7 to 30% slower while their calls stayed the same. Instructions are the same
from run to run to about 0.1%, whatever else the machine does. A case runs with N and with 3 N requests: the difference
is without imports and what is built once. Needs valgrind; a case takes about half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("chunked", "clients_10", "clients_100", "clients_100_tokens_left", "continuous", "static", "mixed",
         "disaggregated", "preemption", "prefix_cache", "cached", "every_step")
CHILD = """\
import json, sys
sys.path.insert(0, sys.argv[1])
import hermes
results = hermes.simulate(json.loads(sys.argv[2]))
results.summary_of_run if hasattr(type(results), "summary_of_run") else results.summary   # older commits
"""


def counted(tree: Path, name: str, requests: int) -> int:
    """Return the instructions of a process that simulates so many requests of a case with the package in `tree`."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.core import CASES

    spec = json.loads(json.dumps(CASES[name][1]))
    spec["workload"]["requests"] = requests
    environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable, "-c",
         CHILD, str(tree), json.dumps(spec)], env=environment, cwd=tree, capture_output=True, text=True, check=False)
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"case {name} failed in {tree}:\n{done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


def per_request(tree: Path, name: str, requests: int) -> float:
    """Return the instructions that one more request takes."""
    return (counted(tree, name, 3 * requests) - counted(tree, name, requests)) / (2 * requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="a commit to compare with")
    parser.add_argument("--only", nargs="*", metavar="CASE", choices=NAMES, default=NAMES, help="these cases only")
    parser.add_argument("--requests", type=int, default=300, help="N (default: %(default)s)")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("needs valgrind on the path")
    with TemporaryDirectory() as folder:
        other = Path(folder) / "tree"
        if options.against:
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(other), options.against], cwd=ROOT,
                           check=True)
        try:
            print(f"{'case':26} {'instructions a request':>22} {options.against or '':>22} {'ratio':>7}")
            for name in options.only:
                now = per_request(ROOT, name, options.requests)
                before = per_request(other, name, options.requests) if options.against else None
                print(f"{name:26} {now:22,.0f}" + ("" if before is None else f" {before:22,.0f} {now / before:7.3f}"),
                      flush=True)
        finally:
            if options.against:
                subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
