"""Reading pages: blocks, commands of a script, anchors, and the comparison with what was printed."""

import pytest
from markdown_blocks import anchors, commands, indented_commands, matches


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


def test_commands_join_continued_lines_and_keep_here_documents():
    script = "# first\nhermes run a \\\n  --set b=1   # quick\ncat > m.py <<'END'\nx = 1  # kept\nEND\nhermes run c\n"
    assert commands(script) == [
        "hermes run a --set b=1", "cat > m.py <<'END'\nx = 1  # kept\nEND", "hermes run c"]


def test_indented_commands_and_anchors(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n\n    hermes run a\n    hermes run b\n\n```bash\n    hermes run c\n```\n\n    x = 1\n")
    assert [block.text for block in indented_commands(page)] == ["hermes run a\nhermes run b\n"]
    assert anchors(page) == {"a-b-c"}
