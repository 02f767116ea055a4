"""Kill commands at random moments (SIGKILL), and check that the same command heals what they left.

    python scripts/kill_check.py [--kills 60] [--seed 0] [--only run,sweep]

A command is first run undisturbed. Then it is started in an empty folder, killed at a random moment of that time, and
run again to its end: it must print and write the same bytes, and leave nothing else behind, neither beside its files
nor in the folder for temporary files. Databases of sweeps, which hold wall-clock times, are compared by their outcomes.
Exit code 1 for a difference.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hermes.explore.sweep.store import Folder  # noqa: E402

__all__ = ["COMMANDS", "Command", "check_command", "kill", "start"]

ENDS_S = 60   # within which the workers of a killed process end
SCENARIO = """\
name: small
seed: 3
workload: {requests: 600, arrivals: {kind: poisson, rate: 20 /s}, lengths: {kind: fixed, prompt: 300, output: 60}}
clients: [{name: fast, model: llama-3.1-8b, device: h100-sxm}]
slo: {ttft: 1 s, tpot: 50 ms}
"""
SWEEP = """\
name: sizes
scenario: small.yaml
grid: {clients.0.count: [1, 2], workload.requests: [300, 400]}
keep: all
"""
SPACE = {
    "name": "space", "scenario": "small.yaml",
    "space": {"clients.0.count": {"min": 1, "max": 3, "integer": True},
              "clients.0.scheduler": {"choices": [{"kind": "chunked", "max_num_seqs": 8}, {"kind": "chunked"}]}},
    "objectives": {"latency.ttft_s.p99": "minimize", "cost.dollars_per_hour": "minimize"},
}


@dataclass(frozen=True)
class Command:
    """A command to kill. It writes into the folder `out`, which is made for it.

    Args:
        before: Arguments of a command that makes what it reads, in the folder above.
        last: The file that it writes last, where it refuses a folder that has it: killed after that, while it prints
            or ends, it leaves nothing to heal.
    """

    arguments: tuple[str, ...]
    before: tuple[str, ...] = ()
    last: str = ""


COMMANDS = {
    "run": Command(("run", "small.yaml", "--set", "workload.requests=4000", "-o", "out/run", "--trace", "-q"),
                   last="out/run/summary.json"),
    "sweep": Command(("sweep", "sweep.yaml", "-o", "out/sweep", "--workers", "2", "-q")),
    "optimize": Command(("optimize", "space.yaml", "-o", "out/search", "--workers", "2")),
    "size": Command(("size", "small.yaml", "--tp", "1", "--pp", "1", "--layout", "mixed", "--max-devices", "2", "-o",
                     "out/size", "--workers", "2", "-q")),
    "capacity": Command(("capacity", "small.yaml", "--seeds", "1", "--runs", "5", "--workers", "2", "-q")),
    "capacity-kept": Command(("capacity", "small.yaml", "--seeds", "2", "--runs", "5", "-o", "out/trials", "--workers",
                              "2", "-q")),
    "report": Command(("report", "made", "-o", "out/page.html"), ("run", "small.yaml", "-o", "made", "-q")),
}


def start(arguments: list[str], folder: Path, package: Path = ROOT) -> subprocess.Popen[str]:
    """Start `hermes ARGUMENTS` in a folder, with folder/tmp for temporary files."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hermes.cli", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(package), "TMPDIR": str(temporary)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),   # a job in the background ignores Ctrl-C
    )


def descendants(pid: int) -> list[int]:
    """Return the processes below one: the one that has hermes loaded, and the workers that it forked."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:   # it has just ended
        pass
    return found + [below for child in found for below in descendants(child)]


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(process: subprocess.Popen[str]) -> bool:
    """Kill a process and wait for its workers; False if it had ended."""
    workers = descendants(process.pid) if process.poll() is None else []
    process.kill()
    process.communicate()
    deadline = time.monotonic() + ENDS_S
    while any(map(alive, workers)):   # no worker goes on computing for a process that is gone
        if time.monotonic() > deadline:
            raise TimeoutError(f"workers of a killed process still run: {workers}")
        time.sleep(0.01)
    return process.returncode == -signal.SIGKILL


def _prepare(folder: Path, command: Command) -> None:
    for name, text in (("small.yaml", SCENARIO), ("sweep.yaml", SWEEP), ("space.yaml", yaml.safe_dump(SPACE))):
        (folder / name).write_text(text, encoding="utf-8")
    if command.before:
        _finish(list(command.before), folder)


def _empty(folder: Path) -> None:
    for name in ("out", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "out").mkdir()


def _finish(arguments: list[str], folder: Path) -> str:
    """Run a command to its end; return what it prints, without times."""
    printed, said = (process := start(arguments, folder)).communicate(timeout=600)
    if process.returncode not in (0, 1) or "Traceback" in said:
        raise RuntimeError(f"hermes {' '.join(arguments)}: exit code {process.returncode}: {said}")
    return re.sub(r"\d+ run in [\d.]+ s|simulated in [\d.]+ m?s[^\n]*", "", printed)


def _left(folder: Path) -> dict[str, object]:
    """Return what is in a folder: names, and contents but those of databases and locks."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "sweep.sqlite":
            store = Folder(path.parent)
            found[name] = store.manifest(), store.outcomes()
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def check_command(name: str, kills: int, rng: random.Random, folder: Path) -> list[str]:
    """Kill a command at random moments of its time, and return differences from an undisturbed one, in words."""
    command, wrong = COMMANDS[name], []
    arguments = list(command.arguments)
    _prepare(folder, command)
    _empty(folder)
    began = time.monotonic()
    printed = _finish(arguments, folder)
    took = time.monotonic() - began
    whole = _left(folder)
    killed = 0
    while killed < kills:
        _empty(folder)
        delay = rng.uniform(0, took)
        process = start(arguments, folder)
        time.sleep(delay)
        if not kill(process):
            took *= 0.9   # the machine was busy when the command was timed
            continue
        killed += 1
        whole_already = bool(command.last) and (folder / command.last).exists()
        again = printed if whole_already else _finish(arguments, folder)
        found = _left(folder)
        what = [f"{path} is left over" for path in found.keys() - whole.keys()]
        what += [f"{path} is missing" for path in whole.keys() - found.keys()]
        what += [f"{path} differs" for path in found.keys() & whole.keys() if found[path] != whole[path]]
        if again != printed:
            what.append(f"it prints {again!r} in place of {printed!r}")
        wrong += [f"{name}, killed after {delay:.3f} s: {text}" for text in sorted(what)]
    return wrong


def main() -> None:
    """Kill every command about equally often, print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(COMMANDS), help="commands, separated by commas")
    options = parser.parse_args()
    names, wrong = options.only.split(","), []
    for number, name in enumerate(names):
        kills = options.kills // len(names) + (number < options.kills % len(names))
        with tempfile.TemporaryDirectory() as folder:
            wrong += check_command(name, kills, random.Random(f"{options.seed}/{name}"), Path(folder))
        print(f"{name}: {kills} kills, {len(wrong)} differences so far", flush=True)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
