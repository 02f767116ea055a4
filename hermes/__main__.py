"""The command `hermes`, and `python -m hermes`. A package that cannot be imported gives one line."""

from __future__ import annotations

import re
import sys
import traceback

from hermes.errors import printable

__all__ = ["main"]

_IMPORT = re.compile(r"(?:from|import)\s+(\w+)")


def main() -> int:
    """Run one command and return its exit code: 2 if another package is missing or broken."""
    try:
        from hermes.cli import main as run_command

        return run_command()
    except ImportError as error:
        package = _package(error)
        if package == "hermes" or package in sys.stdlib_module_names:   # a bug
            raise
        text = printable(" ".join(str(error).split()))
        print(f"hermes: cannot import {package}: {text}; install its packages again: pip install hermes-sim",
              file=sys.stderr)
        return 2


def _package(error: ImportError) -> str:
    """Return the package that could not be imported: as the error says, else of the innermost import statement."""
    if error.name:
        return error.name.partition(".")[0]
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
    return next((found[1] for found in map(_IMPORT.match, reversed(lines)) if found), "a package")


if __name__ == "__main__":
    sys.exit(main())
