"""The tutorials are run from their first block to their last, in an empty folder, and show what they print.

YAML blocks begin with a comment that names their file; bash and Python blocks are run; a text block after one of these
is what it prints.
"""

import contextlib
import io
from pathlib import Path

import pytest
from markdown_blocks import Block, blocks, matches

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [
    DOCS / "tutorial" / "first-scenario.md",
    # run most of their commands in processes of their own
    pytest.param(DOCS / "tutorial" / "sweeps.md", marks=pytest.mark.long),
    pytest.param(DOCS / "tutorial" / "pipelines.md", marks=pytest.mark.long),
]


def run_python(page: Path, block: Block, namespace: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch, bash):
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert {block.language for block in found} - {"mermaid"} == {"yaml", "bash", "text", "python"}
    namespace: dict[str, object] = {}
    printed: str | None = None
    for block in found:
        where = f"docs/{page.name}:{block.line}"
        if block.language == "yaml":
            first = block.text.partition("\n")[0]
            assert first.startswith("# "), f"{where}: a YAML block begins with the name of its file"
            Path(first.removeprefix("# ")).write_text(block.text)
            printed = None
        elif block.language == "bash":
            code, printed = bash(block.text)
            assert code == 0, f"{where}: exit code {code}\n{printed}"
        elif block.language == "python":
            printed = run_python(page, block, namespace)
        else:
            assert printed is not None, f"{where}: a text block that follows nothing that prints"
            assert matches(block.text, printed), f"{where} shows\n{block.text}\nbut it printed\n{printed}"


@pytest.mark.parametrize(("shown", "printed", "same"), [
    ("a  b\nc", "a b c\n", True),
    ("a\n...\nd", "a\nb c\nd\n", True),
    ("x ...\ny", "x 12 ms\ny\n", True),
    ("a\n...", "b\n", False),
    ("a\nb", "a\nb\nc\n", False),
    ("1.5", "1x5", False),
])
def test_matches(shown, printed, same):
    assert matches(shown, printed) is same
