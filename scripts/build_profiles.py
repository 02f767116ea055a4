"""Build the shipped hardware profiles: import steps, fit them, write hw_profiles/NAME.yaml; and splitwise-sim's tables.

    python scripts/build_profiles.py --python PATH --perf-model perf_model.csv [--only 'llama-3.1-70b-h100-*']

`--python` is an interpreter with aiconfigurator-core 0.12.0 (default: this one); `--perf-model` the CSV of
github.com/Mutinifni/splitwise-sim (MIT). Profiles whose source is not given are skipped with a note. Steps go to
`--steps` (a temporary folder by default) and are not part of the project. The same inputs give the same files.

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
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from hermes.calibration.importers.aiconfigurator import SYSTEMS
from hermes.calibration.importers.base import sha256
from hermes.calibration.importers.splitwise import DEVICES, MODELS, SYNTHETIC, usable
from hermes.cli import main as hermes
from hermes.hardware.profile import Provenance, dump_yaml, load_profile
from hermes.hardware.table import TableData, Tables

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
TABLE_NOTES = [
    "median time per prompt_size * batch_size over all remaining rows, as splitwise-sim's performance_model.py",
    "splitwise-sim reads the decode table at the number of decodes, although its x are prompt_size * batch_size of "
    "the measurement: fewer than 128 decodes lie on the extended first line, and context length is ignored",
]


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


def splitwise_jobs(csv: Path) -> Iterator[Job]:
    """Profiles from perf_model.csv, one per model, device and degree in it."""
    keys = usable(csv)[["model", "hardware", "tensor_parallel"]].drop_duplicates()
    for model, device, degree in sorted(keys.itertuples(index=False, name=None)):
        words = ["splitwise", str(csv), "--model", model, "--hardware", device, "--tp", str(degree)]
        yield Job(f"splitwise-2023-{MODELS[model]}-{DEVICES[device][0]}-tp{degree}", words)


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


def medians(rows: pd.DataFrame, time: str, x: Literal["prefill_tokens", "decode_seqs"]) -> TableData:
    """Median time per prompt_size * batch_size: splitwise-sim's table."""
    points = (rows[time] / 1e3).groupby(rows.prompt_size * rows.batch_size).median()
    return TableData(x=x, points=np.column_stack([points.index, points]).tolist())


def splitwise_tables(csv: Path) -> None:
    """Interpolation tables that reproduce splitwise-sim's results exactly."""
    for key, part in usable(csv).groupby(["model", "hardware", "tensor_parallel"]):
        model, device, degree = (str(value) for value in key)
        short, hardware = DEVICES[device]
        name = f"splitwise-2023-{MODELS[model]}-{short}-tp{degree}"
        excluded = list(SYNTHETIC.values())
        if degree == "2":
            excluded.append("prompt 512, batch 64 (5 rows): prompt_time is shorter than at batch 8; corrupt")
        tables = Tables(
            format="hermes-table/1", name=name,
            provenance=Provenance(
                source="perf_model.csv of github.com/Mutinifni/splitwise-sim (MIT)", sha256=sha256(csv),
                hardware=hardware, dtype="fp16", date="2023 (not given in the file)", model=MODELS[model],
                engine="not stated in the file; the Splitwise paper (ISCA 2024, arXiv 2311.18677) used vLLM of 2023",
                tensor_parallel=int(degree), fitted_by="scripts/build_profiles.py", excluded=excluded,
                notes=TABLE_NOTES,
            ),
            prefill=medians(part, "prompt_time", "prefill_tokens"), decode=medians(part, "token_time", "decode_seqs"),
        )
        title = f"{MODELS[model]} on {hardware}, TP{degree}; times in seconds."
        dump_yaml(tables, PROFILES / "tables" / f"{name}.yaml", title)


def report(lines: list[list[str]]) -> None:
    """Held-out MAPE per phase (worst point in brackets)."""
    head = ["profile", "prefill", "decode", "mixed", "size", "time"]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter with aiconfigurator-core")
    parser.add_argument("--perf-model", type=Path, help="perf_model.csv of splitwise-sim")
    parser.add_argument("--only", default="*", help="names to build, a pattern")
    parser.add_argument("--steps", type=Path, help="folder for the imported steps")
    options = parser.parse_args()
    jobs = list(kernel_table_jobs(options.python))
    if options.perf_model:
        jobs += splitwise_jobs(options.perf_model)
        if options.only == "*":
            splitwise_tables(options.perf_model)
    else:
        print("skipped: the profiles and tables of perf_model.csv (--perf-model)")
    with tempfile.TemporaryDirectory() as folder:
        lines = [build(job, options.steps or Path(folder)) for job in jobs if fnmatch.fnmatch(job.name, options.only)]
    report(lines)


if __name__ == "__main__":
    main()
