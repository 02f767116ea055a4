"""Requests to a program in another interpreter: a request file in, an answer file out, progress in between."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hermes.calibration.importers.base import Progress
from hermes.errors import InputError, Verbatim

__all__ = ["ask"]


def ask(script: str, request: dict[str, Any], python: str | None, package: str, progress: Progress) -> dict[str, Any]:
    """Return the answer of `script` (in `remote`) to `request`, run by the interpreter `python` (ours by default).

    The script writes `{"missing": ...}` if its interpreter lacks the package, and `{"error": ...}` if the package
    refuses the request. Both become an `InputError`, as does an interpreter that cannot be run.
    """
    command = [python or sys.executable, str(Path(__file__).parent / "remote" / script)]
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        try:
            last = _run([*command, str(question), str(answer)], progress)
        except OSError as error:
            raise InputError(f"an interpreter that runs ({error.strerror})", python, field="python") from None
        try:
            result = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"an answer from {package}", Verbatim(last or "none"), field="python") from None
    if "missing" in result:
        raise InputError(
            f"an interpreter with {package}: pip install 'hermes-sim[{package}]', or --python PATH of one that has it",
            Verbatim(result["missing"]),
        )
    if "error" in result:
        raise InputError(f"something {package} can price", Verbatim(result["error"]))
    return dict(result)


def _run(command: list[str], progress: Progress) -> str:
    """Run to the end; return the last line that is not progress."""
    last = ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr or ():
                if line.startswith("@progress "):
                    done, total = line.split()[1:3]
                    progress(int(done), int(total))
                elif line.strip():
                    last = line.strip()
        except BaseException:
            process.kill()
            raise
    return last
