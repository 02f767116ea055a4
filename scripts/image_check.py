"""Run the steps of the Dockerfile without Docker, in order, in an empty root: `python scripts/image_check.py`.

Each stage gets a root of its own: the folders of this system read-only, a copy of the Python that the base image names
in /usr/local, and empty folders elsewhere. RUN steps run inside as the stage's user, without the environment of this
process; then the entry point simulates the quickstart as that user. Ends with exit code 1 at the first step that fails,
and with 77 where it cannot run: it needs Linux, root and that Python. It proves the steps, not the base image.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ_ONLY = ("bin", "lib", "lib32", "lib64", "sbin", "usr", "opt")
PASSED_ON = re.compile(r"(?i)(pip_|ssl_cert|https?_proxy|no_proxy|requests_ca)")
"""Variables for pip, which a build of an image gets as arguments."""
CANNOT = 77


@dataclass
class Stage:
    """State of one stage of the build."""

    python: Path
    root: Path
    user: str = "root"
    folder: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield instruction and arguments of each step."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            instruction, _, rest = line.partition(" ")
            yield instruction, rest.strip()


def python_of(image: str) -> Path | None:
    """Return the prefix of an installed Python of the release that the name of an image has, or None."""
    found = re.match(r"python:(\d+\.\d+)", image)
    if not found:
        raise SystemExit(f"image: no Python image: {image}")
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{found[1]}.*/bin/python"))
    for python in (*own, Path(shutil.which(f"python{found[1]}") or "/nonexistent")):
        asked = [str(python), "-c", "import ensurepip, sys; print(sys.base_prefix)"]
        if python.exists() and (done := subprocess.run(asked, capture_output=True, text=True)).returncode == 0:
            return Path(done.stdout.strip())
    return None


def ignored(path: str, patterns: list[str]) -> bool:
    """Return whether .dockerignore leaves a path of the repository out: the last pattern that fits decides."""
    out = False
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        parts = path.split("/")
        fits = bare.removeprefix("**/") in parts if bare.startswith("**/") else fnmatch.fnmatch(parts[0], bare)
        out = not pattern.startswith("!") if fits else out
    return out


def make_root(stage: Stage) -> None:
    """Fill the root of a stage and mount what it shares with this system."""
    for name in ("app", "dev", "home", "proc", "root", "tmp", "var/mail", "var/tmp", "local"):
        (stage.root / name).mkdir(parents=True)
    shutil.copytree("/etc", stage.root / "etc", symlinks=True)
    for name in ("passwd", "group"):   # an image has no users of people
        lines = Path("/etc", name).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not 1000 <= int(line.split(":")[2]) < 60_000]
        (stage.root / "etc" / name).write_text("".join(kept), encoding="utf-8")
    clean = shutil.ignore_patterns("test", "__pycache__", "*.a")
    shutil.copytree(stage.python, stage.root / "local", symlinks=True, dirs_exist_ok=True, ignore=clean)
    for folder in (stage.root / "tmp", stage.root / "var" / "tmp"):
        folder.chmod(0o1777)
    stage.root.chmod(0o755)
    for name in READ_ONLY:
        if Path("/", name).is_symlink():
            (stage.root / name).symlink_to(os.readlink(f"/{name}"))
        elif Path("/", name).exists():
            (stage.root / name).mkdir()
            mount("--rbind", f"/{name}", stage.root / name)
            mount("-o", "remount,bind,ro", stage.root / name)
    mount("--bind", stage.root / "local", stage.root / "usr" / "local")
    for name in ("dev", "proc"):
        mount("--rbind", f"/{name}", stage.root / name)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


def run(stage: Stage, command: list[str]) -> int:
    """Run a command inside the root as the stage's user; return its exit code."""
    environment = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
    home = "/root" if stage.user == "root" else f"/home/{stage.user}"
    environment |= {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": home, **stage.environment}
    environment["LD_LIBRARY_PATH"] = "/usr/local/lib"   # the copy of a Python that was built to stand elsewhere
    become = [] if stage.user == "root" else [
        "setpriv", "--reuid", stage.user, "--regid", stage.user, "--init-groups", "--no-new-privs", "--"]
    inside = f"cd {shlex.quote(stage.folder)} && exec {shlex.join([*become, *command])}"
    return subprocess.run(["chroot", str(stage.root), "/bin/sh", "-c", inside], env=environment).returncode


def copy(stage: Stage, arguments: list[str], stages: Mapping[str, Stage]) -> None:
    """Copy files of the repository, or of another stage."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    source = stages[arguments.pop(0).partition("=")[2]].root if arguments[0].startswith("--from=") else ROOT
    *given, last = arguments
    target = stage.root / os.path.join(stage.folder, last).lstrip("/")
    for name in given:
        origin = source / name.lstrip("/")
        if source == ROOT and name != "." and ignored(name, patterns):
            raise FileNotFoundError(f"{name}: left out by .dockerignore")
        if not origin.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin, target)
            continue

        def left_out(folder: str, names: list[str]) -> set[str]:
            inside = Path(folder).relative_to(ROOT)
            return {name for name in names if ignored((inside / name).as_posix(), patterns)}

        shutil.copytree(origin, target, dirs_exist_ok=True, ignore=left_out if source == ROOT else None)


def take(stage: Stage, instruction: str, rest: str, stages: Mapping[str, Stage]) -> int:
    """Take one step; return its exit code."""
    if instruction == "RUN":
        return run(stage, ["/bin/sh", "-c", rest])
    if instruction == "COPY":
        copy(stage, shlex.split(rest), stages)
    elif instruction == "ENV":
        stage.environment |= dict(part.split("=", 1) for part in shlex.split(rest))
    elif instruction == "USER":
        stage.user = rest
    elif instruction == "WORKDIR":
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif instruction in ("ENTRYPOINT", "CMD"):
        stage.commands[instruction] = json.loads(rest)
    else:
        raise ValueError(f"unknown instruction {instruction}")
    return 0


def build(folder: Path, text: str) -> int:
    """Take all steps, print the seconds of each, and run the entry point; return the exit code."""
    stages: dict[str, Stage] = {}
    stage = None
    for instruction, rest in steps(text):
        began, code = time.monotonic(), 0
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            python = python_of(image)
            if python is None:
                print(f"image: no Python of {image} here", file=sys.stderr)
                return CANNOT
            stage = stages[name] = Stage(python, folder / f"stage{len(stages)}")
            make_root(stage)
        else:
            assert stage is not None, "the first step is FROM"
            code = take(stage, instruction, rest, stages)
        print(f"{time.monotonic() - began:6.1f} s  {instruction} {rest}", flush=True)
        if code:
            return 1
    assert stage is not None
    began = time.monotonic()
    if stage.user == "root":
        print("image: runs as root", file=sys.stderr)
        return 1
    for command in (stage.commands["CMD"], ["run", "quickstart", "-o", "quickstart"]):
        if code := run(stage, [*stage.commands["ENTRYPOINT"], *command]):
            return 1
    print(f"{time.monotonic() - began:6.1f} s  the entry point, as {stage.user}")
    return 0


def main(arguments: list[str]) -> int:
    dockerfile = ROOT / "Dockerfile"
    if arguments and arguments[0] == "--inside":
        try:
            return build(Path(arguments[1]), dockerfile.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            print(f"image: {error}", file=sys.stderr)
            return 1
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        print("image: needs Linux, root, unshare and setpriv", file=sys.stderr)
        return CANNOT
    with tempfile.TemporaryDirectory(prefix="hermes-image-") as folder:
        # the mounts end with the name space
        return subprocess.run(["unshare", "--mount", "--propagation", "private", sys.executable, __file__, "--inside",
                               folder]).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
