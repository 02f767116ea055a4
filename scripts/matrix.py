"""Run the installed wheel on each Python with pinned, newest and lowest dependencies, and compare what it gives.

    python scripts/matrix.py                          nine cells: make matrix
    python scripts/matrix.py --short                  newest dependencies, fewer commands: make matrix-short
    python scripts/matrix.py --pythons 3.13 --sets lowest --keep FOLDER

The wheel is built once. Each cell is a fresh virtual environment outside the checkout with this wheel: no cell builds a
dependency from source. `pinned` installs constraints.txt, `newest` what pip takes today, `lowest` the bounds of
pyproject.toml without extras. A cell is green if every command ends with the expected exit code and gives the values of
the first cell, bit for bit: standard output, tables, summaries, pages. Cells with the same pyarrow and pandas give the
same bytes. Pictures are compared by their presence, since each version of matplotlib draws a little differently.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pandas as pd
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SETS = ("pinned", "newest", "lowest")
TOOLS = ("hypothesis", "ipykernel", "jinja2", "nbclient", "optuna", "pytest")   # what the commands below need
SHOWN = ("numpy", "pandas", "pyarrow", "pydantic", "typer", "matplotlib")
ENVIRONMENT = "environment"   # the key of summary.json that names the build and the versions

WALL = re.compile(r" \(simulated in [\d.]+ s\)|(?<= run) in [\d.]+ s|(?m:^\d+ s: .*\n)")   # depends on the machine

OWN = """\
name: own
extends: quickstart
workload: {requests: 60}
"""
GRID = """\
name: grid
scenario: {extends: own.yaml}
grid: {clients.0.count: [1, 2], workload.arrivals.rate: [5 /s, 20 /s]}
"""
OPEN = """\
import hermes
run = hermes.open_run("run")
print(run.requests.to_csv(), run.clients.to_csv())
"""
NOTEBOOK = """\
import sys, nbformat, nbclient
for name in sys.argv[1:]:
    nbclient.NotebookClient(nbformat.read(name, as_version=4), timeout=600).execute()
    print(name, "runs")
"""


@dataclass(frozen=True)
class Step:
    """A command of a cell.

    Args:
        line: What the shell runs.
        compared: Whether every cell prints the same.
        code: Expected exit code.
        short: Whether it is part of the short form.
    """

    line: str
    compared: bool = True
    code: int = 0
    short: bool = True


STEPS = (
    Step("hermes --version", compared=False),
    Step("hermes --help"),
    Step("hermes init chat.yaml --rate 10/s"),
    Step("hermes validate --resolved chat.yaml"),
    Step("hermes validate broken.yaml", code=2),
    Step("hermes run quickstart -o run"),
    Step("hermes run own.yaml --trace -o own"),
    Step("hermes run operations/hour --set workload.requests=3000 -o hour", short=False),
    Step("hermes run pipelines/rag-disaggregated --set workload.requests=200 -o rag"),
    Step("hermes run batching/disaggregated --set workload.requests=200 -o split"),
    Step("python open.py"),
    Step("hermes compare own run --allow-different-requests"),
    Step("hermes plot run -o run.png", compared=False),
    Step("hermes plot run --kind utilisation -o run.svg", compared=False),
    Step("hermes report run own -o report.html"),
    Step("hermes explain own.yaml --prompt 512"),
    Step("hermes explain run --request 7"),
    Step("hermes capacity own.yaml -q", short=False),
    Step("hermes size own.yaml --tp 4 --pp 1 --layout mixed -q"),
    Step("hermes sweep grid.yaml -o grid -q"),
    Step("hermes plot grid -o grid.png", compared=False),
    Step("python -m pytest -q -p no:cacheprovider examples", compared=False),
    Step("python notebooks.py notebooks/*.ipynb", short=False),
)


@dataclass
class Cell:
    """One interpreter with one set of dependencies."""

    python: str
    kind: str
    folder: Path
    wrong: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    install_s: float = 0.0
    run_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.python} {self.kind}"


def interpreter(version: str) -> Path | None:
    """Return the interpreter of a version such as 3.12; None if there is none on the PATH that runs."""
    try:
        found = subprocess.run([f"python{version}", "-c", "import sys; print(sys.executable)"], capture_output=True,
                               text=True, check=True)
        return Path(found.stdout.strip())
    except (OSError, subprocess.CalledProcessError):
        versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
        return max(versions.glob(f"{version}.*/bin/python"), key=lambda path: Version(path.parts[-3]), default=None)


def lowest(requirements: list[Requirement], python: str) -> str:
    """Return constraints that name the lower bound of each requirement that holds on a Python."""
    bounds: dict[str, Version] = {}
    for one in requirements:
        if one.marker is None or one.marker.evaluate({"python_version": python, "python_full_version": f"{python}.0"}):
            for each in one.specifier:
                if each.operator in (">=", "=="):
                    bounds[one.name] = max(bounds.get(one.name, Version("0")), Version(each.version))
    return "".join(f"{name}=={bound}\n" for name, bound in sorted(bounds.items()))


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return what a wheel requires without extras."""
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = Parser().parsestr(archive.read(name).decode())
    every = [Requirement(text) for text in found.get_all("Requires-Dist") or ()]
    return [one for one in every if "extra" not in str(one.marker)]


def run(
    line: str | list[str], folder: Path, environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command with a bare environment."""
    given = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_")) or name == "PATH"}
    return subprocess.run(line, shell=isinstance(line, str), cwd=folder, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, errors="replace",
                          env={**given, "HOME": str(folder.parent), "LANG": "C.UTF-8", "COLUMNS": "80",
                               **(environment or {})})


def install(cell: Cell, wheel: Path) -> bool:
    """Make the virtual environment of a cell. False if pip refuses."""
    started, python = time.monotonic(), interpreter(cell.python)
    own = cell.folder / "venv" / "bin" / "python"
    run([str(python), "-m", "venv", str(cell.folder / "venv")], ROOT)
    asked = [*TOOLS]
    if cell.kind == "pinned":
        asked += ["--constraint", str(ROOT / "constraints.txt")]
    elif cell.kind == "lowest":
        bounds = cell.folder / "lowest.txt"
        bounds.write_text(lowest(requirements_of(wheel), cell.python))
        asked += ["--constraint", str(bounds)]
    done = run([str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
                "--no-compile",   # most modules are never imported
                str(wheel), *asked], cell.folder)
    cell.install_s = time.monotonic() - started
    if done.returncode:
        cell.wrong.append("pip: " + "; ".join(line for line in done.stderr.splitlines() if "ERROR" in line)[:300])
        return False
    listed = run([str(own), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"], cell.folder)
    cell.versions = {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}
    return True


def commands(short: bool) -> Iterator[Step]:
    """Yield the commands of a cell, those of README.md included."""
    from markdown_blocks import blocks
    from markdown_blocks import commands as lines_of

    yield from (step for step in STEPS if step.short or not short)
    lines = [line for block in blocks(ROOT / "README.md") if block.language == "bash" for line in lines_of(block.text)
             if line.startswith("hermes ")]
    for line in lines[:1] if short else lines:
        yield Step(re.sub(r"\\\n\s*", "", line), compared=" plot " not in line)


def work(cell: Cell, short: bool) -> None:
    """Run the commands of a cell."""
    started, folder = time.monotonic(), cell.folder / "work"
    folder.mkdir()
    for name, text in {"own.yaml": OWN, "grid.yaml": GRID, "open.py": OPEN, "notebooks.py": NOTEBOOK,
                       "broken.yaml": OWN.replace("requests", "request")}.items():
        (folder / name).write_text(text)
    shutil.copytree(ROOT / "docs" / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    path = {"PATH": f"{cell.folder / 'venv' / 'bin'}:/usr/bin:/bin"}
    for step in commands(short):
        done = run(step.line, folder, path)
        (cell.folder / "log").open("a").write(f"$ {step.line}\n{done.stdout}{done.stderr}")
        if done.returncode != step.code or "Traceback" in done.stderr:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            cell.wrong.append(f"{step.line}: exit code {done.returncode}, {last[:200]}")
        elif step.compared:
            cell.printed[step.line] = WALL.sub("", done.stdout + done.stderr)
    cell.run_s = time.monotonic() - started


def same_table(ours: Path, theirs: Path) -> bool:
    """Whether two Parquet files have equal columns and values; NaN equals NaN."""
    one, other = pd.read_parquet(ours), pd.read_parquet(theirs)
    try:
        pd.testing.assert_frame_equal(one, other, check_exact=True, check_dtype=False)
    except AssertionError:
        return False
    return True


def same_summary(ours: Path, theirs: Path) -> bool:
    """Whether two JSON files are equal but for the versions that they name."""
    one, other = (json.loads(path.read_text(encoding="utf-8")) for path in (ours, theirs))
    for each in (one, other):
        if isinstance(each, dict):
            for key in (ENVIRONMENT, "record", "digest"):   # the last two: of a file that pyarrow compresses
                each.get("run", {}).pop(key, None)
    return bool(one == other)


COMPARED: dict[str, Callable[[Path, Path], bool]] = {".parquet": same_table, ".json": same_summary}
PICTURES = (".png", ".svg", ".pdf")


def results_in(folder: Path) -> set[Path]:
    """Return the files that the commands of a cell wrote; databases hold wall-clock times."""
    return {path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file() and path.suffix != ".sqlite"
            and not {"examples", "notebooks"} & set(path.relative_to(folder).parts)}


def differences(cell: Cell, first: Cell) -> Iterator[str]:
    """Yield what a cell gives otherwise than the first one."""
    for line, text in cell.printed.items():
        if line in first.printed and text != first.printed[line]:
            pairs = zip(text.splitlines(), first.printed[line].splitlines(), strict=False)
            yield f"{line}: {next((f'{a!r}, not {b!r}' for a, b in pairs if a != b), 'more or fewer lines')}"
    ours, theirs = cell.folder / "work", first.folder / "work"
    bytewise = all(cell.versions[name] == first.versions[name] for name in ("pyarrow", "pandas"))
    for name in sorted(results_in(ours) | results_in(theirs)):
        path, other = ours / name, theirs / name
        if not (path.is_file() and other.is_file()):
            yield f"{name}: only in {'this' if path.is_file() else 'the first'} cell"
        elif path.suffix in PICTURES or path.read_bytes() == other.read_bytes():
            continue
        elif path.suffix == ".json" or not bytewise:
            if not COMPARED.get(path.suffix, lambda one, two: False)(path, other):
                yield f"{name}: other values"
        else:
            yield f"{name}: other bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="newest dependencies and the shorter list of commands")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="versions; left out, those that are here")
    parser.add_argument("--sets", nargs="+", choices=SETS, help="left out, all three; with --short newest")
    parser.add_argument("--wheel", type=Path, help="a wheel to try instead of one of this checkout")
    parser.add_argument("--keep", type=Path, help="a new folder that keeps environments, logs and results")
    args = parser.parse_args()
    found = [version for version in args.pythons if interpreter(version)]
    print(f"Pythons: {', '.join(found)}; not here: {', '.join(set(args.pythons) - set(found)) or 'none'}")
    place = args.keep or Path(tempfile.mkdtemp(prefix="hermes-matrix-"))
    place.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    wheel = args.wheel
    if wheel is None:
        built = run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(ROOT)], ROOT)
        if built.returncode:
            print(built.stderr)
            return 1
        (wheel,) = place.glob("*.whl")
    kinds = args.sets or (SETS[1:2] if args.short else SETS)
    cells = [Cell(python, kind, place / f"{python}-{kind}") for python in found for kind in kinds]

    def perform(cell: Cell) -> None:
        cell.folder.mkdir()
        if install(cell, wheel.resolve()):
            work(cell, args.short)

    with ThreadPoolExecutor(3) as pool:   # two cores: one of three cells waits for pip's downloads
        list(pool.map(perform, cells))
    first = next((cell for cell in cells if cell.versions), None)
    for cell in cells:
        if cell.versions and first and cell is not first:
            cell.wrong.extend(differences(cell, first))
    print(f"{'cell':<12}{'':>8}" + "".join(f"{name:>12}" for name in SHOWN) + f"{'install s':>11}{'run s':>8}")
    for cell in cells:
        print(f"{cell.name:<12}{'WRONG' if cell.wrong else 'green':>8}"
              + "".join(f"{cell.versions.get(name, '-'):>12}" for name in SHOWN)
              + f"{cell.install_s:>11.0f}{cell.run_s:>8.0f}")
    for cell in cells:
        for line in cell.wrong:
            print(f"{cell.name}: {line}")
    green = sum(not cell.wrong for cell in cells)
    print(f"{green} of {len(cells)} cells green, {time.monotonic() - started:.0f} s")
    if args.keep is None:
        shutil.rmtree(place, ignore_errors=True)
    return int(green < len(cells))


if __name__ == "__main__":
    sys.exit(main())
