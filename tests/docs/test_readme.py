"""README.md: its scenario, its figures and its picture are those that its commands give."""

import re
from pathlib import Path

import numpy as np
import pytest
from draw import changed_files
from markdown_blocks import ROOT, blocks, commands
from PIL import Image

import hermes
from hermes.results import Results

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def quickstart() -> Results:
    return hermes.simulate("quickstart")


def test_the_number_of_steps_is_that_of_the_quickstart(quickstart: Results) -> None:
    found = re.findall(r"quickstart's ([\d,]+) steps", README)
    assert found == [f"{quickstart.summary['steps']['steps']:,}"]


def test_two_commands_are_enough_in_a_clone() -> None:
    given = {line.partition("#")[0].strip() for block in blocks(ROOT / "README.md") if block.language == "bash"
             for line in block.text.splitlines()}
    assert {"make run", "make test"} <= given


def test_a_client_is_explained_where_it_first_appears() -> None:
    for name in ("README.md", "docs/index.md", "docs/glossary.md", "docs/tutorial/first-scenario.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "serving instance" in text.partition("lient")[2][:200], name


@(pytest.mark.long if {"README.md", "docs/img/chatbot-replicas.png"} & changed_files() else pytest.mark.thorough)
def test_the_picture_is_what_its_commands_draw(tmp_path: Path, bash) -> None:
    script = [command for block in blocks(ROOT / "README.md") if block.language == "bash"
              for command in commands(block.text) if "chatbot" in command]
    code, printed = bash("\n".join(script))
    assert code == 0, printed
    with Image.open(tmp_path / "chatbot.png") as drawn, \
            Image.open(ROOT / "docs" / "img" / "chatbot-replicas.png") as shown:
        assert drawn.size == shown.size
        assert np.array_equal(np.asarray(drawn), np.asarray(shown))
    frame = hermes.open_sweep(tmp_path / "chatbot").frame().set_index("replicas")
    assert frame["slo.pass"].astype(bool).tolist() == [False] * 4 + [True] * 4
