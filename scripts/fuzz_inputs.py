"""Fuzz scenarios, sweeps, traces and profiles: each mutated file must be refused in one line, or understood.

    python scripts/fuzz_inputs.py [--cases 300] [--seed 0] [--keep DIR]

Every case goes through the command line (in this process). It passes if the exit code is 2 and stderr is one line that
names the file, and the changed field if there is one; or if the exit code is 0 and hermes understood what was written.
Prints the counts and the failed cases; exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing.cases import Case, generate  # noqa: E402

from hermes.cli import main as hermes  # noqa: E402


def run(case: Case) -> tuple[str, str]:
    """Return ("refused" | "valid" | "wrong", the output or the mistake)."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = hermes(case.command)
    except BaseException:
        return "wrong", traceback.format_exc()
    line = err.getvalue()
    if code == 2:
        if line.count("\n") != 1 or not line.startswith("hermes: ") or len(line) > 2000:
            return "wrong", f"not one line: {line!r}"
        if not case.named_in(line):
            return "wrong", f"does not name {case.path.name} and {case.field}: {line}"
        return "refused", line.strip()
    if code != 0 or line:
        return "wrong", f"exit code {code}, stderr {line!r}"
    try:
        problem = case.ignored(out.getvalue())
    except Exception as error:  # hermes accepted a file that another reader refuses
        return "wrong", f"taken, but {type(error).__name__}: {error}"
    return ("wrong", f"silently ignored: {problem}") if problem else ("valid", "")


def run_all(number: int, seed: int, folder: Path) -> Iterator[tuple[Case, str, str]]:
    for case in generate(number, random.Random(seed), folder):
        yield case, *run(case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder to leave the files in")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        counts: Counter[tuple[str, str]] = Counter()
        for case, verdict, text in run_all(options.cases, options.seed, folder):
            counts[case.family, verdict] += 1
            if verdict == "wrong" or options.verbose:
                print(f"{verdict}: {case}\n    {text.strip()}")
    print(f"{'':<10}{'refused':>9}{'valid':>9}{'wrong':>9}")
    for family in ("scenario", "sweep", "trace", "profile"):
        print(f"{family:<10}" + "".join(f"{counts[family, verdict]:>9}" for verdict in ("refused", "valid", "wrong")))
    print(f"{'total':<10}" + "".join(
        f"{sum(n for (_, v), n in counts.items() if v == verdict):>9}" for verdict in ("refused", "valid", "wrong")))
    return 1 if any(verdict == "wrong" for _, verdict in counts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
