"""Print what becomes of each form in tests/deploy/forms: the fields that are read, dropped, noted, refused.

    python scripts/forms_check.py [FOLDER]

A form is a file as users have it; `NAME.expect.yaml` next to it says what is right:

    run: import vllm FORM --device h100-sxm     # a command of hermes; FORM is the form, RUN a run of quickstart
    read: {clients.0.scheduler.max_num_seqs: 96}  # values of the printed scenario, or of the printed table
    absent: [clients.0.parallel]                # keys that it does not have
    said: ["not modelled: --enforce-eager"]     # each is a part of a line on stderr; `[]`: nothing is said
    refused: "--max-num-seqs"                   # instead of `read`: a part of the one line of a refusal

A file without such a companion belongs to the forms that name it. Exit code 1 if a form is not read as expected.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hermes.cli import main as hermes
from hermes.deploy.engine_scenario import ENGINES, read_source, text_of
from hermes.deploy.vllm_features import Told
from hermes.errors import InputError
from hermes.scenario import load_scenario

FORMS = Path(__file__).resolve().parents[1] / "tests" / "deploy" / "forms"
END = ".expect.yaml"
DROPPED = re.compile(r"not modelled|unknown|left out: ")
OWN = ("name", "device", "model", "kind")   # of a client whatever the form says


@dataclass
class Outcome:
    """What hermes made of a form: `document` is a scenario or a table, `refused` the line of a refusal."""

    document: Any = None
    said: list[str] = field(default_factory=list)
    refused: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Dotted path -> value of everything in the document."""
        return dict(_leaves(self.document, ""))


def forms(folder: str = "") -> list[Path]:
    """Return the files that have expectations, sorted."""
    return sorted(path for path in (FORMS / folder).rglob("*") if expectations(path).exists())


def expected(form: Path) -> dict[str, Any]:
    """Return the expectations of a form. Raises `ValueError` for a key that is none."""
    found: dict[str, Any] = yaml.safe_load(expectations(form).read_text(encoding="utf-8"))
    unknown = found.keys() - {"run", "read", "absent", "said", "refused", "why"}
    if unknown or "run" not in found or ("refused" in found) == ("read" in found):
        raise ValueError(f"{expectations(form)}: `run`, and either `read` or `refused`; not {sorted(unknown)}")
    return found


def run(form: Path, command: str) -> Outcome:
    """Run a command of hermes with a form."""
    words = [str(form) if word == "FORM" else _run_folder() if word == "RUN" else word
             for word in shlex.split(command)]
    with contextlib.chdir(form.parent):   # files that a form names lie next to it
        return _engines(words) if words[0] == "import" and words[1] in ENGINES else _printed(words)


def differences(form: Path, found: Outcome) -> list[str]:
    """Return what is not as expected, a line each."""
    want = expected(form)
    if "refused" in want:
        if found.refused is None:
            return [f"read, not refused with {want['refused']!r}"]
        return [] if want["refused"] in found.refused else [f"refused with {found.refused!r}, not {want['refused']!r}"]
    if found.refused is not None:
        return [f"refused: {found.refused}"]
    fields = found.fields
    wrong = [f"{path}: {fields.get(path)!r}, not {value!r}" for path, value in want["read"].items()
             if path not in fields or fields[path] != value]
    wrong += [f"{path}: there" for path in want.get("absent", ())
              if any(name == path or name.startswith(f"{path}.") for name in fields)]
    for part in want.get("said", ()):
        if not any(part in line for line in found.said):
            wrong.append(f"not said: {part!r}")
    extra = [line for line in found.said if not any(part in line for part in want.get("said", ()))]
    return wrong + [f"said: {line!r}" for line in extra]


def expectations(form: Path) -> Path:
    """Return the file with the expectations of a form."""
    return form.with_name(form.name.partition(".")[0] + END) if not form.name.endswith(END) else form.with_name("none")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, own in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(own, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _engines(words: list[str]) -> Outcome:
    """Read an engine's launch command or manifest, without the simulation that finds a load."""
    options = dict(zip(words[3::2], words[4::2], strict=True))
    told = Told(options.get("--acceptance"), options.get("--draft-model"), options.get("--draft-time"))
    try:
        text, file = text_of(words[2])
        source = read_source(text, file, words[1], device=options["--device"], engine=options.get("--engine"),
                             model=options.get("--model"), told=told)
        documents = [source.document(name, "azure-conv-2023", 1.0) for name in source.models]
        for document in documents:
            source.check(document)
    except InputError as error:
        return Outcome(refused=str(error))
    document = {**documents[0], "clients": source.clients}
    load_scenario(documents[0])
    return Outcome({key: document[key] for key in ("clients", "router") if key in document},
                   [*source.warnings, *source.notes])


def _printed(words: list[str]) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = hermes(words)
    said = err.getvalue().splitlines()
    if code == 2:
        return Outcome(refused=said[-1])
    if code:
        raise RuntimeError(f"{shlex.join(words)}: exit code {code}: {said}")
    text = out.getvalue()
    return Outcome(json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text),
                   [line.removeprefix("hermes: ") for line in said])


@cache
def _run_folder() -> str:
    """Return the folder of a run of three requests, made once."""
    folder = tempfile.mkdtemp(prefix="hermes-forms-")
    _printed(["run", "quickstart", "--set", "workload.requests=3", "-o", f"{folder}/run", "--json"])
    return f"{folder}/run"


def main() -> int:
    wrong = 0
    for form in forms(*sys.argv[1:2]):
        found = run(form, expected(form)["run"])
        differs = differences(form, found)
        wrong += bool(differs)
        print(f"{form.relative_to(FORMS)}: {'as expected' if not differs else 'WRONG'}")
        if found.refused is not None:
            print(f"    refused: {found.refused}")
        else:
            read = {path: value for path, value in found.fields.items() if path.rpartition(".")[2] not in OWN}
            print(f"    read: {', '.join(f'{path}={value}' for path, value in read.items()) or 'defaults'}")
            for line in found.said:
                print(f"    {'dropped' if DROPPED.search(line) else 'noted'}: {line}")
        for line in differs:
            print(f"    WRONG: {line}")
    print(f"{len(forms(*sys.argv[1:2]))} forms, {wrong} not as expected")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
