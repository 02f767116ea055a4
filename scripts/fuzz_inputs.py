"""Fuzz files by mutation: each malformed file must be refused in one line, or understood.

    python scripts/fuzz_inputs.py [--cases 300] [--seed 0] [--family NAME] [--keep DIR] [--verbose]

Families:

- scenarios, sweeps, traces and profiles: hermes must understand what was written;
- keys: every key of a scenario; of other valid values of it, one must change the result;
- files that a scenario refers to, folders of runs and sweeps, references, golden files, schedules, measured steps,
  journals, measured starts, search spaces, bars, observations, downloads: a command's answer is compared with that
  without the change;
- files that block or never end.

A case passes if the exit code is 2 and stderr is one line, or if the command answers and the change shows. Accepted
changes that do not show pass if they are on the reviewed list (scripts/fuzzing/reviewed.yaml). Tracebacks, hangs, files
left open and temporary files left behind are failures. Prints the counts and the failures; exit code 1 for a failure.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from fuzzing.cases import Case, generate  # noqa: E402
from fuzzing.endless import EndlessCase, endless_cases  # noqa: E402
from fuzzing.folders import FAMILIES, FolderCase, folder_case  # noqa: E402
from fuzzing.keys import KeyCase, key_case  # noqa: E402
from fuzzing.running import LIMIT_S, Ran, open_files, run_apart, run_here  # noqa: E402

AnyCase = Case | FolderCase | KeyCase | EndlessCase
VERDICTS = ("refused", "valid", "reviewed", "wrong")
OWN = ("scenario", "sweep", "trace", "profile")   # shares are in fuzzing.cases
SHARES = {"own": 0.25, "keys": 0.1, "described": 0.04, "run": 0.06, "store": 0.03, "reference": 0.04, "golden": 0.03,
          "schedule": 0.05, "steps": 0.02, "study": 0.02, "plan": 0.01, "journal": 0.02, "import": 0.07, "driver": 0.03,
          "bars": 0.01, "shown": 0.01, "space": 0.01, "observed": 0.02, "download": 0.02, "kernels": 0.03,
          "layers": 0.02, "rag": 0.02, "ranks": 0.02, "manifest": 0.01, "object": 0.01, "planner": 0.01,
          "dump": 0.02, "starts": 0.02, "log": 0.01}


def reviewed() -> dict[str, str]:
    """Return the reviewed list: pattern -> reason for a change there not to show."""
    return yaml.safe_load((ROOT / "scripts/fuzzing/reviewed.yaml").read_text()) or {}


def _without_remarks(ran: Ran) -> list[str]:
    """The lines on stderr that are neither warnings nor notes."""
    remarks = ("hermes: warning: ", "hermes: note: ")
    return [line for line in ran.err.split("\n") if line and not line.startswith(remarks)]


def _one_line(ran: Ran) -> bool:
    """Whether the error is one line; warnings and notes about the same file may stand before it."""
    lines = _without_remarks(ran)
    return len(lines) == 1 and lines[0].startswith("hermes: ") and len(lines[0]) < 3000


def judge(case: AnyCase, known: dict[str, str]) -> tuple[str, str]:
    """Return (one of `VERDICTS`, the output or the mistake)."""
    if isinstance(case, KeyCase):
        return _judge_key(case)
    before = open_files()
    limit_s = LIMIT_S * (3 if case.family == "space" else 1)   # a search without its `trials` has 60
    ran = run_apart(case.command) if isinstance(case, EndlessCase) else run_here(case.command, limit_s)
    if ran.code is None:
        return "wrong", ran.err
    if not isinstance(case, EndlessCase) and open_files() > before + 2:
        return "wrong", f"{open_files() - before} files left open"
    strays = [path.name for path in case.path.parent.glob(".*.tmp")]
    if strays:
        return "wrong", f"left behind: {strays}"
    if ran.code == 2:
        if not _one_line(ran):
            return "wrong", f"not one line: {ran.err!r}"
        if isinstance(case, Case) and not case.named_in(ran.err):
            return "wrong", f"does not name {case.path.name} and {case.field}: {ran.err}"
        return "refused", ran.err.strip()
    if isinstance(case, EndlessCase):
        return "valid", ""
    if isinstance(case, Case):
        if ran.code != 0 or _without_remarks(ran):
            return "wrong", f"exit code {ran.code}, stderr {ran.err!r}"
        try:
            problem = case.ignored(ran.out)
        except Exception as error:  # hermes accepted a file that another reader refuses
            return "wrong", f"taken, but {type(error).__name__}: {error}"
        if not problem:
            return "valid", ""
        reason = _reviewed(f"{case.family}: {problem}", known)
        return ("reviewed", reason) if reason else ("wrong", f"silently ignored: {problem}")
    return _judge_folder(case, ran, known)


def _reviewed(name: str, known: dict[str, str]) -> str | None:
    return next((why for pattern, why in known.items() if fnmatchcase(name, pattern)), None)


def _judge_folder(case: FolderCase, ran: Ran, known: dict[str, str]) -> tuple[str, str]:
    if ran.code not in (0, 1):
        return "wrong", f"exit code {ran.code}, stderr {ran.err!r}"
    shown = case.shown(ran)
    if case.place is None or (shown.code, shown.out, shown.err) != (case.baseline.code, case.baseline.out,
                                                                    case.baseline.err):
        return "valid", ""
    reason = _reviewed(case.name, known)
    return ("reviewed", reason) if reason else ("wrong", f"taken, and does not show: {case.name}")


def _judge_key(case: KeyCase) -> tuple[str, str]:
    taken = 0
    for ran, differs in case.attempts():
        if ran.code is None or (ran.code == 2 and not _one_line(ran)):
            return "wrong", f"{case.key}: {ran.err}"
        taken += ran.code in (0, 1)
        if ran.code in (0, 1) and differs:
            return "valid", ""
    reason = case.unseen
    return ("reviewed", reason) if reason else ("wrong", f"no effect of {case.key}, in {taken} accepted values")


def cases(number: int, seed: int, folder: Path, family: str | None = None) -> Iterator[AnyCase]:
    """`number` cases and some endless ones, the same for the same seed."""
    rng = random.Random(seed)
    for name, share in SHARES.items():
        many = number if name == family else 0 if family else round(share * number)
        if name == "own":
            yield from generate(many, rng, folder)
        elif name == "keys":
            yield from (key_case(place, rng, folder / "keys") for place in range(many))
        else:
            for place in range(many):
                yield folder_case(name, place, rng, folder)
    yield from endless_cases(number if family == "endless" else 0 if family else number // 50, rng, folder)


def run_all(
    number: int, seed: int, folder: Path, family: str | None = None, *, keep: bool = True,
) -> Iterator[tuple[AnyCase, str, str]]:
    known = reviewed()
    for case in cases(number, seed, folder, family):
        yield case, *judge(case, known)
        if not keep and isinstance(case, FolderCase):
            shutil.rmtree(case.wrote)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=[*SHARES, "endless"], help="only this one")
    parser.add_argument("--keep", type=Path, help="folder to leave the files in")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        counts: Counter[tuple[str, str]] = Counter()
        tracebacks = hangs = 0
        for case, verdict, text in run_all(options.cases, options.seed, folder, options.family,
                                           keep=options.keep is not None):
            counts[case.family, verdict] += 1
            hangs += "no answer within" in text
            tracebacks += "Traceback" in text and "no answer within" not in text
            if verdict == "wrong" or options.verbose:
                print(f"{verdict}: {case.family}: {case.mutation}: {' '.join(case.command)}\n    {text.strip()}")
    print(f"{'':<10}" + "".join(f"{verdict:>10}" for verdict in VERDICTS))
    for family in (*OWN, "keys", *FAMILIES, "endless"):
        print(f"{family:<10}" + "".join(f"{counts[family, verdict]:>10}" for verdict in VERDICTS))
    print(f"{'total':<10}" + "".join(
        f"{sum(n for (_, v), n in counts.items() if v == verdict):>10}" for verdict in VERDICTS))
    print(f"seed {options.seed}: {sum(counts.values())} cases, {tracebacks} tracebacks, {hangs} hangs")
    return 1 if any(verdict == "wrong" for _, verdict in counts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
