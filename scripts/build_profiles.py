"""Build the shipped hardware profiles: import steps, fit them, write hw_profiles/NAME.yaml.

    python scripts/build_profiles.py --python PATH [--only 'llama-3.1-70b-h100-*']

`--python` is an interpreter with aiconfigurator-core 0.12.0 (default: this one). Steps go to `--steps` (a temporary
folder by default) and are not part of the project. The steps of the profiles called splitwise-2023-* are in
tests/data/splitwise: `hermes fit` makes those. The same inputs give the same files.

Every profile takes two commands, which are printed:

    hermes profile import aiconfigurator --model ... --system ... --tp ... --dtype ... -o STEPS.yaml
    hermes fit STEPS.yaml -o hw_profiles/NAME.yaml
"""

from __future__ import annotations

import argparse
import fnmatch
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hermes.calibration.importers.aiconfigurator import SYSTEMS
from hermes.cli import main as hermes
from hermes.hardware.fitted.profile import load_profile

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT / "hw_profiles"
LLAMA_8B, LLAMA_70B, QWEN = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-32B"
BOTH = ("bf16", "fp8")
PRO = "rtx_pro_6000_server"
KERNEL_TABLES = (  # model, its short name, system, degrees, precisions
    (QWEN, "qwen3-32b", "l40s", (2,), ("bf16",)), (QWEN, "qwen3-32b", PRO, (2,), ("bf16",)),
    (LLAMA_8B, "llama-3.1-8b", PRO, (1,), ("bf16",)),
    (LLAMA_8B, "llama-3.1-8b", "h100_sxm", (1,), BOTH), (LLAMA_70B, "llama-3.1-70b", "h100_sxm", (2, 4, 8), BOTH),
    (LLAMA_8B, "llama-3.1-8b", "h200_sxm", (1,), BOTH), (LLAMA_70B, "llama-3.1-70b", "h200_sxm", (2, 4, 8), BOTH),
    (LLAMA_8B, "llama-3.1-8b", "b200_sxm", (1,), BOTH), (LLAMA_70B, "llama-3.1-70b", "b200_sxm", (2, 4, 8), BOTH),
    # no fp8 arithmetic on A100; on L40S 70B in bf16 needs four, and on eight all-reduce over PCIe is nearly everything
    (LLAMA_8B, "llama-3.1-8b", "a100_sxm", (1,), ("bf16",)),
    (LLAMA_70B, "llama-3.1-70b", "a100_sxm", (2, 4, 8), ("bf16",)),
    (LLAMA_8B, "llama-3.1-8b", "l40s", (1,), BOTH), (LLAMA_70B, "llama-3.1-70b", "l40s", (4,), BOTH),
)


class Job(NamedTuple):
    """One profile: its name and the words of the import."""

    name: str
    words: list[str]


def kernel_table_jobs(python: str | None) -> Iterator[Job]:
    """Profiles from aiconfigurator-core."""
    for model, short, system, degrees, precisions in KERNEL_TABLES:
        for degree in degrees:
            for dtype in precisions:
                words = ["aiconfigurator", "--model", model, "--system", system, "--tp", str(degree), "--dtype", dtype]
                words += ["--python", python] if python else []
                yield Job(f"{short}-{SYSTEMS[system][0]}-tp{degree}-{dtype}", words)


def run(words: list[str]) -> None:
    """Run one hermes command and show it first; end the script if it fails."""
    print("$", shlex.join(["hermes", *words]), flush=True)
    if hermes(words) != 0:
        sys.exit(1)


def build(job: Job, steps: Path) -> list[str]:
    """Import, fit and write a profile; return its line in the final report."""
    path, profile = steps / f"{job.name}.yaml", PROFILES / f"{job.name}.yaml"
    begin = time.perf_counter()
    run(["profile", "import", *job.words, "-o", str(path)])
    run(["fit", str(path), "-o", str(profile)])
    phases = load_profile(profile).phases
    cells = [job.name]
    for part in (phases.prefill, phases.decode, phases.mixed):
        cells.append("-" if part is None or part.error is None else f"{part.error.mape:.2%} ({part.error.worst:.0%})")
    return [*cells, f"{profile.stat().st_size / 1024:.1f} KiB", f"{time.perf_counter() - begin:.0f} s"]


def report(lines: list[list[str]]) -> None:
    """Held-out MAPE per phase (worst point in brackets)."""
    head = ["profile", "prefill", "decode", "mixed", "size", "time"]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter with aiconfigurator-core")
    parser.add_argument("--only", default="*", help="names to build, a pattern")
    parser.add_argument("--steps", type=Path, help="folder for the imported steps")
    options = parser.parse_args()
    jobs = kernel_table_jobs(options.python)
    with tempfile.TemporaryDirectory() as folder:
        lines = [build(job, options.steps or Path(folder)) for job in jobs if fnmatch.fnmatch(job.name, options.only)]
    report(lines)


if __name__ == "__main__":
    main()
