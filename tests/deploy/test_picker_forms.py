"""Forms of pickers, results and names as users have them: each is read as its companion says, or refused by it.

`NAME.expect.yaml` states the command (`run`), values of what it prints by dotted path (`read`, `absent`), parts of the
lines on stderr (`said`: all of them), or a part of the one line of a refusal (`refused`).
"""

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes.cli import main

FORMS = Path(__file__).parent / "forms"
FOUND = {str(path.relative_to(FORMS)).removesuffix(".expect.yaml"): path for folder in ("picker", "results", "names")
         for path in sorted((FORMS / folder).glob("*.expect.yaml"))}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, own in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(own, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run of three requests."""
    folder = tmp_path_factory.mktemp("forms") / "run"
    with contextlib.redirect_stdout(None):
        assert main(["run", "quickstart", "--set", "workload.requests=3", "-o", str(folder), "--json"]) == 0
    return str(folder)


@pytest.mark.parametrize("name", FOUND)
def test_a_form_is_read_as_expected(name: str, quickstart: str, capsys: pytest.CaptureFixture[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    path = FOUND[name]
    want = yaml.safe_load(path.read_text())
    form = next(one for one in path.parent.glob(f"{name.split('/')[-1]}.*") if not one.name.endswith(".expect.yaml"))
    monkeypatch.chdir(form.parent)
    capsys.readouterr()
    code = main([{"FORM": str(form), "RUN": quickstart}.get(word, word) for word in shlex.split(want["run"])])
    out, err = capsys.readouterr()
    said = [line.removeprefix("hermes: ") for line in err.splitlines()]
    if "refused" in want:
        assert (code, len(said)) == (2, 1), err or out
        assert want["refused"] in said[0]
        return
    assert code == 0, err
    fields = dict(leaves(json.loads(out) if out.lstrip().startswith("{") else yaml.safe_load(out)))
    assert {key: fields.get(key) for key in want["read"]} == want["read"]
    assert [key for key in want.get("absent", ()) for one in fields if one == key or one.startswith(f"{key}.")] == []
    assert [part for part in want.get("said", ()) if not any(part in line for line in said)] == [], said
    assert [line for line in said if not any(part in line for part in want.get("said", ()))] == []
