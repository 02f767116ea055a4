"""Every command in the README, docs/ and studies/ is run, in a folder of the page's own, or is on a reviewed list.

YAML and Python blocks that begin with a comment naming a file are written to it; other Python blocks run (`py` marks a
sketch that does not); a text block after one that ran is what it prints. `...` stands for anything. `make test` runs
the pages that the last commit or the working tree changed and a quarter of the others; `make test-all` all of them.
"""

import contextlib
import io
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import yaml
from draw import changed_files
from each import each
from long_runs import count
from markdown_blocks import ROOT, Block, blocks, commands, indented_commands, matches, pages
from reviewed_commands import LONG, NOT_RUN, WHOLE

import hermes
from hermes.cli import command as root_command

# files of others that pages name, and what stands in for them
STAND_INS = {
    "docs/how-to/traces.md": {"qwen_traceA_blksz_16.jsonl": "bailian", "prompts.jsonl": "prompts"},
    "docs/how-to/calibrate.md": {"steps.yaml": "steps", "searches.yaml": "searches"},
    "docs/how-to/compare.md": {"measured.csv": "measured"},
}
# run as a whole by tests of their own
ELSEWHERE = {"docs/extending.md": "tests/docs/test_extending.py"}
# seconds each: processes of their own, fleets, searches
LONG_PAGES = {"docs/background/recorded-servers.md", "docs/background/sglang.md", *(
    f"docs/tutorial/{name}.md" for name in ("first-scenario", "fleet", "pipelines", "sweeps")), *(
    f"docs/how-to/{name}.md" for name in (
        "calibrate", "compare", "compare-policies", "failures", "fleet", "flow-control", "get-an-answer",
        "launch-commands", "prefill-decode", "report", "research", "routers", "size-a-fleet"))}
NIGHTLY_PAGES = {"docs/background/kv-offload.md", "docs/background/vllm.md"}   # 10 to 30 s each
FULL = bool(count(0, 1))   # with the commands that take longer
THOROUGH_PAGES = {"README.md", "docs/how-to/get-an-answer.md"}   # searches of minutes


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def scripts(page: Path) -> list[Block]:
    return [block for block in [*blocks(page), *indented_commands(page)] if block.language in ("bash", "sh", "console")]


def reviewed(command: str, entries: dict[str, str]) -> str | None:
    """The entry that matches a command."""
    return next((entry for entry in entries if re.fullmatch(entry, command, re.DOTALL)), None)


PAGES = [page for page in pages() if scripts(page) and name_of(page) not in ELSEWHERE]


def has_any(page: Path, entries: dict[str, str]) -> bool:
    return any(reviewed(command, entries) for block in scripts(page) for command in commands(block.text))


def run_python(page: Path, block: Block, namespace: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
    return printed.getvalue()


def put_in_place(page: Path, folder: Path) -> None:
    """What the page takes for granted: the checkout's data, and files of others."""
    for name in ("tests", "scripts", "traces", "scenarios", "hw_profiles"):
        (folder / name).symlink_to(ROOT / name)
    for name, what in STAND_INS.get(name_of(page), {}).items():
        if what in ("searches", "steps"):
            shipped = {"searches": "retrieval-amd-epyc-zen5", "steps": "small-llama-512-torch-cpu"}[what]
            measured = ROOT / "traces" / "hardware" / f"{shipped}.yaml"
            shutil.copyfile(measured, folder / name)
            shutil.copy(measured.with_suffix(".parquet"), folder)   # the header names it
        elif what == "measured":
            hermes.simulate("quickstart").requests.to_csv(folder / name, index=False)
        elif what == "prompts":
            (block,) = [block for block in blocks(page) if block.language == "json"]
            (folder / name).write_text(block.text)
        else:
            (folder / name).write_text("".join(
                f'{{"chat_id": {i}, "parent_chat_id": -1, "timestamp": {i}.0, "input_length": 32, "output_length": 9, '
                f'"type": "text", "turn": 1, "hash_ids": [{i % 3}, {i + 10}]}}\n' for i in range(30)))


PROGRESS = re.compile(r"(?m)^\d+ s: .*\n")   # on stderr, of what takes over ten seconds


def run_page(page: Path, bash, left_out: dict[str, str]) -> None:
    printed: str | None = None
    namespace: dict[str, object] = {}
    found = sorted([*blocks(page), *indented_commands(page)], key=lambda block: block.line)
    for block in found:
        where = f"{name_of(page)}:{block.line}"
        named = re.match(r"# ([\w./-]+\.\w+)\n", block.text)
        if block.language in ("yaml", "python") and named:
            Path(named[1]).write_text(block.text)
            printed = None
        elif block.language in ("bash", "sh", "console"):
            kept = [command for command in commands(block.text) if not reviewed(command, {**NOT_RUN, **left_out})]
            printed = None
            if kept:
                code, text = bash("\n".join(kept))
                assert code == 0, f"{where}: exit code {code}\n{text}"
                text = PROGRESS.sub("", text)
                printed = text if len(kept) == len(commands(block.text)) else None
        elif block.language == "python":
            printed = run_python(page, block, namespace)
        elif block.language == "text" and printed is not None:
            assert matches(block.text, printed), f"{where} shows\n{block.text}\nbut it printed\n{printed}"
            printed = None


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """A page that changed always runs. Of the others the long ones run in `make test-all`, the longest at night."""
    if name_of(page) in changed_files():
        return []
    if name_of(page) in NIGHTLY_PAGES:
        return [pytest.mark.thorough]
    return [pytest.mark.long if name_of(page) in LONG_PAGES else pytest.mark.drawn]


@pytest.mark.feature("Scenarios and commands", "Commands of the documentation run")
@pytest.mark.parametrize("page", [pytest.param(page, marks=marks_of(page)) for page in PAGES], ids=name_of)
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, bash):
    monkeypatch.chdir(tmp_path)
    put_in_place(page, tmp_path)
    run_page(page, bash, WHOLE if FULL and name_of(page) not in THOROUGH_PAGES else {**LONG, **WHOLE})


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) in THOROUGH_PAGES], ids=name_of)
def test_the_searches_of_a_page_run(page, tmp_path, monkeypatch, bash):
    monkeypatch.chdir(tmp_path)
    put_in_place(page, tmp_path)
    run_page(page, bash, WHOLE)


@pytest.mark.whole
@pytest.mark.parametrize("page", [page for page in PAGES if has_any(page, WHOLE)], ids=name_of)
def test_the_whole_studies_of_a_page_run(page, tmp_path, monkeypatch, bash):
    monkeypatch.chdir(tmp_path)
    put_in_place(page, tmp_path)
    run_page(page, bash, {})


def test_every_reviewed_entry_matches_a_command():
    found = [command for page in pages() for block in scripts(page) for command in commands(block.text)]
    for entry in (*NOT_RUN, *LONG, *WHOLE):
        assert any(re.fullmatch(entry, command, re.DOTALL) for command in found), entry


def test_commands_are_fenced():
    """An indented block is neither highlighted nor copied as a command."""
    wrong = [f"{name_of(page)}:{block.line}" for page in pages() for block in indented_commands(page)
             if not name_of(page).startswith("studies/")]
    assert not wrong


@each("page", [page for page in pages() if blocks(page)], ids=name_of)
def test_yaml_blocks_can_be_read(page):
    for block in blocks(page):
        if block.language == "yaml":
            yaml.safe_load(block.text)


@cache
def interface():
    """The command `hermes` as click sees it."""
    return root_command()


def options_of(words: list[str]) -> set[str]:
    """The options of the command that the words begin with; none for a group that a placeholder follows."""
    node = interface()
    for word in words:
        if not hasattr(node, "get_command") or not re.fullmatch(r"[a-z][a-z-]+", word):
            break
        node = node.get_command(None, word)   # the commands of `profile import` are made when asked for
        assert node is not None, f"no command {word}"
    return {option for parameter in node.params for option in (*parameter.opts, *parameter.secondary_opts)}


@each("page", pages(), ids=name_of)
def test_commands_in_the_text_exist(page):
    """`hermes run x --set y`, in a sentence or in a block that is not run: the command and its options exist."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    shown = [part for block in scripts(page) for command in commands(block.text)
             for part in re.findall(r"(?:^|&& |-f 5 )hermes ([^&|>]+)", command)]
    for inline in [*re.findall(r"`hermes ([^`]+)`", text), *shown]:
        inline = re.sub(r'"[^"]*"', "COMMAND", inline)   # in quotes: the options of another program
        known = options_of(inline.split())
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", inline):
            assert option in known | {"--help", "--plugin"}, f"hermes {inline}: no option {option}"
