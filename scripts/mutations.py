"""Break the code in ways drawn by a seed, and list which tests notice.

    python scripts/mutations.py --before 472a9ed9 --after HEAD

draws two mutations of each package below and runs, with each of them, the folder of tests that mirrors the package:
that of `make test` after, of `make test-all` after if that notices nothing, and that of `make test` before. A mutation
that the tests before do not notice changes nothing that matters, or is a gap in both: another one is drawn in its
place, and it is listed below the table.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEED = 50
PACKAGES = ("schedulers", "memory", "routing", "fleet", "results", "hardware")
EACH = 2         # mutations of a package
CPU_S = 1800     # a run that takes longer does not end
FLIPPED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
           ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.FloorDiv: "*", ast.Div: "*"}
_OPERATOR = re.compile(r"is not|not in|[<>=!]=|//|[-+*/<>]|\b(?:is|in|and|or)\b")


@dataclass(frozen=True)
class Mutation:
    """One replaced piece of a line."""

    file: str      # from the root of the project
    line: int      # from 1
    start: int     # columns of what is replaced
    end: int
    new: str

    def applied(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[:self.start] + self.new + line[self.end:]
        return "".join(lines)

    def shown(self, text: str) -> str:
        before = text.splitlines()[self.line - 1]
        after = self.applied(text).splitlines()[self.line - 1]
        return f"`{before.strip()}` -> `{after.strip()}`"


def mutations(file: str, text: str) -> Iterator[Mutation]:
    """Yield the mutations of a module: in functions, neither in a message that is raised nor in an annotation."""
    lines = text.splitlines()

    def between(left: ast.expr, right: ast.expr, new: str) -> Iterator[Mutation]:
        if left.end_lineno != right.lineno or not lines[right.lineno - 1].isascii():
            return
        begin, end = left.end_col_offset or 0, right.col_offset
        found = _OPERATOR.search(lines[right.lineno - 1][begin:end])
        if found:
            yield Mutation(file, right.lineno, begin + found.start(), begin + found.end(), new)

    def of(node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], FLIPPED[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            yield from between(node.left, node.right, SIGNS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], "or" if isinstance(node.op, ast.And) else "and")
        elif isinstance(node, ast.Constant) and type(node.value) is int and lines[node.lineno - 1].isascii():
            yield Mutation(file, node.lineno, node.col_offset, node.end_col_offset or 0, str(node.value + 1))
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from of(child)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                yield from of(statement)


def drawn(code: Path, package: str, seed: int) -> Iterator[Mutation]:
    """Yield the mutations of a package in the order of the draw."""
    found = [mutation for path in sorted((code / "hermes" / package).rglob("*.py"))
             for mutation in mutations(path.relative_to(code).as_posix(), path.read_text(encoding="utf-8"))]
    found = sorted(set(found), key=lambda each: (each.file, each.line, each.start, each.new))
    random.Random(f"{seed} {package}").shuffle(found)
    yield from found


def unpack(commit: str, folder: Path) -> None:
    """Write the files of a commit to a folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


@dataclass(frozen=True)
class Suite:
    """The files of a commit, with the code as it is broken now."""

    commit: str
    tree: Path

    def noticed(self, what: str, full: bool = False) -> str:
        """Return the first test that fails of a folder, a file or a test, "" if none does or none is there."""
        outside = os.environ.get("HERMES_OUTSIDE") or ROOT.parent / "shared"
        path = os.pathsep.join(filter(None, [str(self.tree), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {
            "PYTHONPATH": path, "HERMES_TEST_DRAW": self.commit, "HERMES_OUTSIDE": str(outside)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "no:cacheprovider",
             *(["--size", "full"] if full else []), what],
            cwd=self.tree, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S)))
        if done.returncode == 0:
            return ""
        failed = re.search(r"(?m)^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout)
        if failed is None and done.returncode < 0:
            return f"{what} does not end"
        return failed[1] if failed else ""


def judged(package: str, before: Suite, after: Suite) -> tuple[str, str, str]:
    """Return which test before notices, which after, and with which command.

    A test that notices in one suite is tried alone in the other, before its whole folder is.
    """
    folder = f"tests/{package}"
    if found := after.noticed(folder):
        return before.noticed(found) or before.noticed(folder), found, "make test"
    old = before.noticed(folder)
    if not old:
        return "", "", ""
    found = after.noticed(old, full=True) or after.noticed(folder, full=True)
    return old, found, "make test-all" if found else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description="Break the code at random, and list which tests notice.")
    parser.add_argument("--before", required=True, metavar="COMMIT", help="its tests, and the code that is broken")
    parser.add_argument("--after", default="HEAD", metavar="COMMIT", help="its tests")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    asked = parser.parse_args()
    unnoticed, gaps = [], 0
    with tempfile.TemporaryDirectory() as folder:
        before, after = (Suite(commit, Path(folder) / name) for name, commit in (
            ("before", asked.before), ("after", asked.after)))
        for suite in (before, after):
            unpack(suite.commit, suite.tree)
        shutil.rmtree(after.tree / "hermes")
        shutil.copytree(before.tree / "hermes", after.tree / "hermes")
        print("| mutation | noticed before by | after by | in |\n|---|---|---|---|", flush=True)
        for package in asked.packages:
            left = EACH
            for mutation in drawn(before.tree, package, asked.seed):
                text = (before.tree / mutation.file).read_text(encoding="utf-8")
                for suite in (before, after):
                    (suite.tree / mutation.file).write_text(mutation.applied(text), encoding="utf-8")
                old, new, command = judged(package, before, after)
                for suite in (before, after):
                    (suite.tree / mutation.file).write_text(text, encoding="utf-8")
                for suite, found in ((before, old), (after, new)):
                    if found and suite.noticed(found, full=suite is after):
                        raise SystemExit(f"{found} fails without a mutation, too")
                what = f"{mutation.file}:{mutation.line} {mutation.shown(text)}"
                if not old:
                    unnoticed.append(what)
                    continue
                print(f"| {what} | {old} | {new} | {command} |", flush=True)
                gaps += not new
                left -= 1
                if not left:
                    break
    print("\nnot noticed before, and drawn again:", *unnoticed or ["none"], sep="\n  ")
    sys.exit(gaps > 0)


if __name__ == "__main__":
    main()
