"""Check a release before it is made: `python scripts/release_check.py [NAME ...]`, or `make release-check`.

Builds the source distribution and the wheels, installs each wheel outside the checkout without a compiler, and uses it
as a user does. Prints one table of checks, and last the points that are open: they need a decision, not a repair. Exit
code 1 if a check fails. With names, only the checks whose name has one of them in it, and what they need.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from release_tools import LEFT_OUT, ROOT, CheckError, Done, OpenError, differences, execute, must, size_of, written

sys.path.insert(0, str(ROOT))
from hermes.site import SITE_URL

SCENARIOS = ("quickstart", "pipelines/rag")
FREE = ("scikit-learn", "scipy", "matplotlib", "networkx")
"""Packages that a simulation does without."""
SAID = "libxyz.so.1: cannot open shared object file"   # by a package that is broken
SMALL = ("--set", "workload.requests=200")
COMMANDS = {
    "run": ["run", "quickstart", *SMALL, "-o", "{out}", "-q"],
    "plot": ["plot", "{base}", "-o", "{out}.png"],
    "report": ["report", "{base}", "-o", "{out}.html"],
    "compare": ["compare", "{base}", "{base}"],
    "size": ["size", "--model", "llama-3.1-8b", "--workload", "azure-conv-2023", "--rate", "1/s", "--tp", "1",
             "--slo", "ttft_p99=5s", "--pp", "1", "--layout", "mixed", "--max-devices", "2", "--workers", "0"],
    "sweep": ["sweep", "{small}", "-o", "{out}", "--workers", "0"],
    "explain": ["explain", "quickstart"],
    "init": ["init", "{out}.yaml"],
    "validate": ["validate", "quickstart"],
}
SWEEP = "name: small\nscenario: {extends: quickstart}\ngrid: {workload.requests: [50, 60]}\n"
TESTS = ("test_notices", "test_site", "test_links", "test_repository_files")
CANNOT = 77   # exit code of image_check.py where it cannot run


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    verdict: str
    seconds: float
    text: str


class Release:
    """The checks, in a folder outside the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dist = folder, folder / "dist"
        self.rows: list[Row] = []
        self.open: list[str] = []
        self.wheels: dict[str, Path] = {}   # build -> its wheel
        if SITE_URL.endswith(".example"):
            self.open.append("the project has no address; set SITE_URL in hermes/site.py and the addresses below it "
                             "in pyproject.toml (a test compares them)")

    def make(self, name: str, check: Callable[[], str]) -> None:
        """Make one check and note its row."""
        began = time.monotonic()
        try:
            verdict, text = "ok", check()
        except OpenError as error:
            verdict, text = "open", str(error)
            self.open.append(f"{name}: {error}")
        except (CheckError, OSError, KeyError, ValueError) as error:
            verdict, text = "FAILED", str(error)
        self.rows.append(Row(name, verdict, time.monotonic() - began, text))
        print(f"{name}: {verdict} ({self.rows[-1].seconds:.0f} s)", file=sys.stderr, flush=True)

    # -- builds -------------------------------------------------------------------------------------------------------

    def source(self) -> str:
        """Build the source distribution and unpack it."""
        must([sys.executable, "-m", "build", "--sdist", "--outdir", self.dist, ROOT])
        archive = next(self.dist.glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(self.folder / "unpacked", filter="data")
        return f"{archive.stat().st_size / 1e6:.1f} MB"

    def wheel(self, build: str) -> str:
        """Build a wheel from the checkout and from the unpacked source distribution; both have the same files."""
        if build == "compiled" and not (ROOT / "hatch_build.py").exists():
            raise OpenError("no hook yet")
        unpacked = next((self.folder / "unpacked").iterdir())
        env = {**os.environ, "HERMES_COMPILED": "1" if build == "compiled" else ""}
        found = []
        for place, source in (("checkout", ROOT), ("unpacked", unpacked)):
            out = self.dist if place == "checkout" else self.folder / build / place
            before = set(out.glob("*.whl"))
            must([sys.executable, "-m", "build", "--wheel", "--outdir", out, source], env=env)
            found.append(next(iter(set(out.glob("*.whl")) - before)))
        contents = []
        for path in found:
            with zipfile.ZipFile(path) as archive:   # libraries may name the folder that they were compiled in
                contents.append({name: b"" if build == "compiled" and name.endswith((".so", ".pyd", "RECORD"))
                                 else archive.read(name) for name in archive.namelist()})
        if contents[0] != contents[1]:
            raise CheckError(f"checkout and sdist differ: {differences(*contents)}")
        if any(name.endswith((".so", ".pyd")) for name in contents[0]) != (build == "compiled"):
            raise CheckError(f"{found[0].name}: compiled modules are missing, or are not to be there")
        self.wheels[build] = found[0]
        return f"{found[0].name}, {found[0].stat().st_size / 1e6:.1f} MB; the same from the sdist"

    def twine(self) -> str:
        must([sys.executable, "-m", "twine", "check", "--strict", *sorted(self.dist.iterdir())])
        return f"{len(list(self.dist.iterdir()))} files"

    def metadata(self) -> str:
        """The description has absolute links only, and the licences are inside."""
        for path in self.wheels.values():
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                info = message_from_bytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
            links = re.findall(r"\]\(([^)]*)\)", str(info.get_payload()))
            wrong = [link for link in links if "://" not in link and not link.startswith("#")]
            if wrong or not links:
                raise CheckError(f"{path.name}: relative links {wrong[:3]}")
            for licence in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
                if not any(name.endswith(f"/licenses/{licence}") for name in names):
                    raise CheckError(f"{path.name}: no {licence}")
            if len(info.get_all("Project-URL") or ()) < 5:
                raise CheckError(f"{path.name}: URLs {info.get_all('Project-URL')}")
        return f"{len(links)} links absolute; LICENSE and notices inside"

    def pages(self) -> str:
        files = [ROOT / "tests" / "docs" / f"{name}.py" for name in TESTS]
        said = must([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]).out
        return said.strip().splitlines()[-1].strip("= ")

    def image(self) -> str:
        done = execute([sys.executable, ROOT / "scripts" / "image_check.py"])
        if done.code == CANNOT:
            raise OpenError(done.err.strip().splitlines()[-1])
        steps = re.findall(r"^ *([\d.]+) s  (\w+)", done.out, flags=re.M)
        if done.code:
            raise CheckError(f"after {len(steps)} steps: {(done.err or done.out).strip()[-200:]}")
        return f"{len(steps)} steps, RUN {sum(float(s) for s, name in steps if name == 'RUN'):.0f} s"

    # -- installed wheels ---------------------------------------------------------------------------------------------

    def env(self, build: str, **more: str) -> dict[str, str]:
        """Return an environment that has no compiler and knows no checkout."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PATH": str(self.bin(build)), "CC": "/bin/false", "CXX": "/bin/false", **more}

    def bin(self, build: str) -> Path:
        return self.folder / f"venv-{build}" / "bin"

    def run(self, build: str, *arguments: str, **more: str) -> Done:
        """Run `hermes` of an installed wheel outside the checkout."""
        return execute([self.bin(build) / "hermes", *arguments], env=self.env(build, **more), cwd=self.folder)

    def install(self, build: str) -> str:
        """Install a wheel in a virtual environment, and simulate two scenarios."""
        must([sys.executable, "-m", "venv", self.bin(build).parent])
        must([self.bin(build) / "python", "-m", "pip", "install", "--quiet", self.wheels[build]], env=self.env(build))
        for name in SCENARIOS:
            done = self.run(build, "run", name, "-o", f"{build}/{name}", "-q")
            if done.code:
                raise CheckError(f"{name}: exit {done.code}: {done.err.strip()[-200:]}")
        packages = next((self.bin(build).parent / "lib").glob("python*/site-packages"))
        sizes = {entry.name: size_of(entry) for entry in packages.iterdir() if not entry.name.startswith("pip")}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
        return f"{sum(sizes.values()):.0f} MB: " + ", ".join(f"{name} {sizes[name]:.0f}" for name in largest)

    def same_bytes(self) -> str:
        for name in SCENARIOS:
            ours, theirs = (written(self.folder / build / name) for build in ("pure", "compiled"))
            if ours != theirs:
                raise CheckError(f"{name}: {differences(ours, theirs)}")
        return f"{', '.join(SCENARIOS)}: all files, but the key {LEFT_OUT} of summary.json"

    def speed(self) -> str:
        """CPU seconds of what a user meets first."""
        block = re.search(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
        assert block is not None, "README.md has a bash block"
        first = shlex.split(block[1].replace("\\\n", " ").splitlines()[0])[1:]
        texts = []
        for build in self.wheels:
            python = self.bin(build) / "python"
            imports = [must([python, "-c", "import hermes"], env=self.env(build), cwd=self.folder).cpu_s
                       for _ in range(5)]
            helps = [self.run(build, "--help").cpu_s for _ in range(5)]
            texts.append(f"{build}: import {statistics.median(imports):.2f}, --help {statistics.median(helps):.2f}")
        done = self.run(build, *first)   # the build that users get: the last one
        if done.code:
            raise CheckError(f"README's first command, {build}: exit {done.code}: {done.err.strip()[-200:]}")
        texts.append(f"README's first command, {build}: {done.cpu_s:.1f}")
        return "CPU s, " + "; ".join(texts)

    # -- packages that are missing or broken --------------------------------------------------------------------------

    def hidden(self) -> str:
        """Hide each required or optional package from each command that looks for it: missing, then broken."""
        site = self.folder / "hide"
        site.mkdir()
        shutil.copyfile(ROOT / "tests" / "cli" / "hide_packages.py", site / "sitecustomize.py")
        (self.folder / "small.yaml").write_text(SWEEP)
        modules = self.modules()
        base = self.command("run", "base", PYTHONPATH=str(site), LOG=str(self.folder / "run.log"))
        plain = written(self.folder / "base")
        with ThreadPoolExecutor(2) as pool:
            first = {name: pool.submit(self.command, name, f"seen-{name}", PYTHONPATH=str(site),
                                       LOG=str(self.folder / f"{name}.log")) for name in COMMANDS}
            wrong = [f"{name}: exit {done.result().code}: {done.result().err.strip()[-150:]}"
                     for name, done in first.items() if done.result().code]
            if base.code or wrong:
                raise CheckError("; ".join(wrong))
            asked = {name: set((self.folder / f"{name}.log").read_text().split()) for name in COMMANDS}
            # a command that looks for no module of a package runs as it did without it
            cases = [(command, package, broken) for command in COMMANDS for package, names in modules.items()
                     if asked[command] & names for broken in ("", SAID)]
            found = pool.map(lambda case: self.without(*case, modules[case[1]], str(site), plain), cases)
            failures = [text for text in found if text]
        sought = [name for name in FREE if asked["run"] & modules[name]]
        failures += [f"run: looks for {name}" for name in sought]
        if failures:
            raise CheckError(f"{len(failures)} of {len(cases)}: " + "; ".join(failures[:4]))
        return f"{len(cases)} cases of {len(modules)} packages; run looks for none of {', '.join(FREE)}"

    def command(self, name: str, out: str, **more: str) -> Done:
        """Run one of `COMMANDS` in the pure wheel."""
        filled = [part.format(out=out, base="base", small="small.yaml") for part in COMMANDS[name]]
        return self.run("pure", *filled, **more)

    def without(
        self, command: str, package: str, broken: str, names: set[str], site: str, plain: Mapping[str, bytes],
    ) -> str:
        """Return what is wrong with a command whose package is hidden: it works, or says one line and exits with 2."""
        out = f"{command}-{package}-{'broken' if broken else 'missing'}"
        done = self.command(command, out, PYTHONPATH=site, HIDDEN=",".join(names), BROKEN=broken)
        lines = [line for line in done.err.splitlines() if not line.startswith("hermes: warning:")]
        if done.code == 0:
            return "" if command != "run" or written(self.folder / out) == plain else f"{out}: other bytes"
        one_line = done.code == 2 and len(lines) == 1 and any(name in lines[0] for name in {*names, package})
        return "" if one_line else f"{out}: exit {done.code}: {lines[-1][:150] if lines else ''}"

    def modules(self) -> dict[str, set[str]]:
        """Return the modules of each package that the wheel's metadata name."""
        with zipfile.ZipFile(self.wheels["pure"]) as archive:
            info = message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))))
        packages = [re.split(r"[^\w.-]", text)[0] for text in info.get_all("Requires-Dist") or ()]
        asked = "import json; from importlib.metadata import packages_distributions as p; print(json.dumps(p()))"
        installed = json.loads(must([self.bin("pure") / "python", "-c", asked], env=self.env("pure")).out)
        plain = {package: package.lower().replace("-", "_") for package in packages if package != "hermes-sim"}
        return {package: {module for module, owners in installed.items()
                          if name in {owner.lower().replace("-", "_") for owner in owners}} or {name}
                for package, name in plain.items()}

    def windows(self) -> str:
        """A run without the modules and functions that CPython does not have on Windows."""
        stand_in = ROOT / "tests" / "data" / "windows"
        if not (stand_in / "sitecustomize.py").exists():
            raise OpenError("no stand-in for Windows yet")
        done = self.run("pure", "run", SCENARIOS[0], "-o", "on-windows", "-q", PYTHONPATH=str(stand_in))
        if done.code:
            raise CheckError(f"exit {done.code}: {done.err.strip()[-200:]}")
        if written(self.folder / "on-windows") != written(self.folder / "pure" / SCENARIOS[0]):
            raise CheckError("other bytes")
        return f"{SCENARIOS[0]}: the same bytes"

    def phases(self) -> Iterator[dict[str, Callable[[], str]]]:
        """Yield the checks; those of a phase run two at a time."""
        yield {"sdist": self.source, "pages and notices": self.pages}
        yield {"pure wheel": lambda: self.wheel("pure")}   # builds note which wheel is new in one folder
        yield {"compiled wheel": lambda: self.wheel("compiled"), "image": self.image}
        yield {"twine check --strict": self.twine, "metadata": self.metadata,
               **{f"install {build}": lambda build=build: self.install(build) for build in self.wheels}}
        yield {"speed": self.speed}
        both = {"same bytes": self.same_bytes} if len(self.wheels) > 1 else {}
        yield {**both, "Windows": self.windows, "packages hidden": self.hidden}


def main(names: Sequence[str]) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hermes-release-") as folder:
        release = Release(Path(folder))
        needed = ("sdist", "pure wheel", "install pure") if names else ()
        for phase in release.phases():
            chosen = {name: check for name, check in phase.items()
                      if not names or name in needed or any(part in name for part in names)}
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(release.make, chosen, chosen.values()))
    for row in release.rows:
        print(f"{row.name:<22}{row.verdict:<8}{row.seconds:>5.0f} s  {row.text}")
    used = os.times()
    print(f"in {time.monotonic() - began:.0f} s, {sum(used[:4]):.0f} s of CPU")
    for text in release.open:
        print("open:", text)
    return int(any(row.verdict == "FAILED" for row in release.rows))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
